//! `longhaul reproduce`: the published tables come out, and what is off is said. Those that take minutes run by
//! `cargo test -p longhaul-checks --test reproduce -- --ignored`.

use longhaul_checks::{Finished, Program, RuntimeDir};
use serde_json::Value;
use std::fs;
use std::time::Duration;

const LIMIT: Duration = Duration::from_secs(900);

fn run(runtime: &RuntimeDir, arguments: &str) -> Finished {
    Program::start(&mut runtime.longhaul_inside(arguments)).finish(LIMIT)
}

fn assert_all_as_expected(arguments: &str) {
    let runtime = RuntimeDir::new();
    let done = run(&runtime, &format!("reproduce --check {arguments}"));
    assert_eq!(done.status.code(), Some(0), "{done}");
    let page = fs::read_to_string(runtime.path().join("reproduction.html")).unwrap();
    assert!(page.contains("<svg") || arguments == "power", "no plot");
}

#[test]
fn what_takes_seconds_is_as_published() {
    assert_all_as_expected("ntt-distance iown-d1 step1-reads ceiling power");
}

#[test]
#[ignore = "minutes: the same in CI would take a tenth of it"]
fn everything_is_as_published() {
    assert_all_as_expected("");
}

#[test]
fn results_are_read_back_by_report_and_tables_by_anything() {
    let runtime = RuntimeDir::new();
    let here = runtime.path();
    let done = run(&runtime, "reproduce ntt-distance --results r.jsonl --csv tables --json");
    assert_eq!(done.status.code(), Some(0), "{done}");
    let json: Value = serde_json::from_str(&done.stdout).unwrap();
    assert!(json["experiments"][0]["name"] == "ntt-distance", "{json}");
    let again = run(&runtime, "report r.jsonl --out again.html --check");
    assert_eq!(again.status.code(), Some(0), "{again}");
    let tables: Vec<_> = fs::read_dir(here.join("tables")).unwrap().collect();
    assert!(!tables.is_empty());
}

#[test]
fn an_experiment_that_there_is_not_is_refused_with_those_that_there_are() {
    let runtime = RuntimeDir::new();
    let done = run(&runtime, "reproduce iown-c2");
    assert_eq!(done.status.code(), Some(2), "{done}");
    assert_eq!(done.stderr.lines().count(), 1, "{done}");
    for part in ["iown-c2", "iown-c1", "ntt-distance"] {
        assert!(done.stderr.contains(part), "{done}");
    }
}

/// Appendix C of the published report: the requester stops when the delta of PSNs is 15, which are 16 READs of a packet.
#[test]
fn the_doctor_finds_the_stall_of_16_reads_in_a_simulated_capture() {
    let runtime = RuntimeDir::new();
    let here = runtime.path();
    let scenario = r#"
[path]
distance = "100km"
rate = "100G"
nic = "connectx6"
[[flow]]
op = "read"
size = "4K"
tx_depth = 2048
iterations = 2000
"#;
    fs::write(here.join("reads.toml"), scenario).unwrap();
    let simulated = run(&runtime, "sim reads.toml --pcap-dir captures");
    assert_eq!(simulated.status.code(), Some(0), "{simulated}");
    let done = run(&runtime, "doctor --json captures/wan@a.pcap");
    let report: Value = serde_json::from_str(&done.stdout).unwrap_or_else(|e| panic!("{e}: {done}"));
    let flows = report["flows"].as_array().unwrap();
    let finding = flows
        .iter()
        .flat_map(|flow| flow["findings"].as_array().unwrap())
        .find(|finding| finding["rule"] == "read_limit")
        .unwrap_or_else(|| panic!("no finding of the READ limit: {done}"));
    let words = finding.to_string();
    assert!(words.contains("16"), "{words}");
}
