//! `longhaul reproduce`: the published tables are reproduced, and deviations and failures are
//! reported. A part of each experiment runs here; the nightly tier runs all of it, which takes
//! minutes.

use longhaul_checks::{Finished, Program, RuntimeDir};
use serde_json::Value;
use std::fs;
use std::path::Path;
use std::time::Duration;

const LIMIT: Duration = Duration::from_secs(900);

fn run(runtime: &RuntimeDir, arguments: &str) -> Finished {
    Program::start(&mut runtime.longhaul_inside(arguments)).finish(LIMIT)
}

fn assert_all_as_expected(arguments: &str) {
    let runtime = RuntimeDir::new();
    let done = run(&runtime, &format!("reproduce --check --json {arguments}"));
    assert_eq!(done.status.code(), Some(0), "{done}");
    let json: Value = serde_json::from_str(&done.stdout).unwrap();
    for experiment in json["experiments"].as_array().unwrap() {
        let tally = &experiment["tally"];
        let judged: u64 = ["published", "theory", "own"]
            .iter()
            .map(|basis| {
                tally[basis]["within"].as_u64().unwrap() + tally[basis]["fitted"].as_u64().unwrap()
            })
            .sum();
        assert!(judged > 0 && tally["failed"] == 0, "{experiment:#}");
    }
    assert_eq!(json["experiments"].as_array().unwrap().len(), 23);
    let page = fs::read_to_string(runtime.path().join("reproduction.html")).unwrap();
    assert!(page.contains("<svg"), "no plot");
}

#[test]
fn a_part_of_every_experiment_is_as_expected() {
    assert_all_as_expected("--reduced");
}

#[test]
#[ignore = "nightly: minutes to an hour of both processors"]
fn every_experiment_is_as_expected() {
    assert_all_as_expected("");
}

/// The second of two runs cannot end in time.
const LATE: &str = r#"
[experiment]
name = "late"
title = "One of two is late"
values = ["goodput_bps"]
[[experiment.expectations]]
basis = "theory"
value = "goodput_bps"
tolerance = { at_least = 1e6 }
sources = ["simulated"]
WHERE
[scenario]
time_max = "10ms"
[scenario.path]
rate = "10G"
nic = "connectx6"
[[scenario.flow]]
op = "write"
size = "4K"
iterations = 100
[[run]]
vary = { "path.distance" = "1km,10000km" }
"#;

#[test]
fn a_run_that_ends_in_an_error_is_a_cell_that_says_so() {
    let runtime = RuntimeDir::new();
    let here = runtime.path();
    for (name, only, code) in
        [("owed.toml", "", 1), ("free.toml", "where = { \"path.distance_m\" = { is = 1000 } }", 0)]
    {
        fs::write(here.join(name), LATE.replace("WHERE", only)).unwrap();
        let done = run(&runtime, &format!("reproduce {name} ceiling --check --results r.jsonl"));
        assert_eq!(done.status.code(), Some(code), "{done}");
        for part in [
            "failed at 10000 km, simulated: its time was over",
            "2 of 2 figures as theory has them",
        ] {
            assert!(done.stdout.contains(part), "{part}: {done}");
        }
        assert_eq!(done.stdout.contains("missing"), code == 1, "{done}");
        let page = fs::read_to_string(here.join("reproduction.html")).unwrap();
        assert!(page.contains("its time was over"), "{done}");
        // The file says so too.
        let again = run(&runtime, "report r.jsonl --check");
        assert_eq!(again.status.code(), Some(code), "{again}");
        assert!(again.stdout.contains("failed at 10000 km"), "{again}");
    }
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

/// Appendix C of the published report: the requester stops at a PSN delta of 15, which is 16 READs
/// of one packet.
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
    let report: Value =
        serde_json::from_str(&done.stdout).unwrap_or_else(|e| panic!("{e}: {done}"));
    let flows = report["flows"].as_array().unwrap();
    let finding = flows
        .iter()
        .flat_map(|flow| flow["findings"].as_array().unwrap())
        .find(|finding| finding["rule"] == "read_limit")
        .unwrap_or_else(|| panic!("no finding of the READ limit: {done}"));
    let words = finding.to_string();
    assert!(words.contains("16"), "{words}");
}

/// Appendix E of the second report: packets are repeated and CNPs come, although every captured
/// packet bears ECN 10.
#[test]
fn the_doctor_explains_cnps_without_marks_and_repetitions_that_come_too_soon() {
    let runtime = RuntimeDir::new();
    let scenario = Path::new(env!("CARGO_MANIFEST_DIR"))
        .parent()
        .unwrap()
        .join("labs/scenarios/iown-c1-disturbed.toml");
    let sim = format!("sim {} --pcap port=port.pcap", scenario.display());
    let done = run(&runtime, &sim);
    assert!(done.status.success(), "{done}");
    let report: Value =
        serde_json::from_str(&run(&runtime, "doctor --json port.pcap").stdout).unwrap();
    let text = report.to_string();
    for part in [
        "marked behind this capture point",
        "0 requests with congestion experienced",
        "adaptive retransmission",
    ] {
        assert!(text.contains(part), "{part}: {text}");
    }
    let cured = format!(
        "{sim} --set host.a.egress_rate=97500M --set host.a.nic.adaptive_retransmission=false"
    );
    assert!(run(&runtime, &cured).status.success());
    let report: Value =
        serde_json::from_str(&run(&runtime, "doctor --json port.pcap").stdout).unwrap();
    let text = report.to_string();
    assert!(!text.contains("marked behind") && !text.contains("came too soon"), "{text}");
}
