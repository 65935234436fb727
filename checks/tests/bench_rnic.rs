//! `longhaul bench rnic`: each operation over each line, the cycle breakdown, result files, and
//! refusals.

use longhaul_bench::ResultFile;
use longhaul_checks::guest::skip_loudly;
use longhaul_checks::network::Network;
use longhaul_checks::{Finished, Program, RuntimeDir, Turn, longhaul};
use serde_json::Value;
use std::process::Command;
use std::time::Duration;

const LIMIT: Duration = Duration::from_secs(300);
const BRIEF: &str = "--messages 500 --warm-up 0.01 --seconds 30";

fn command(runtime: &RuntimeDir, arguments: &str) -> Command {
    runtime.longhaul(&format!("bench rnic {arguments}"))
}

fn run(arguments: &str) -> Finished {
    let runtime = RuntimeDir::new();
    Program::start(&mut command(&runtime, arguments)).finish(LIMIT)
}

/// Results printed as JSON.
#[track_caller]
fn parsed(finished: &Finished) -> Vec<Value> {
    assert!(finished.status.success(), "{finished}");
    let output: Value =
        serde_json::from_str(&finished.stdout).unwrap_or_else(|e| panic!("{e}: {finished}"));
    assert_eq!(output["schema"], "longhaul-rnic/1");
    let results = output["results"].as_array().cloned().unwrap_or_default();
    for result in &results {
        for name in [
            "goodput_bps",
            "sender_cycles_per_packet",
            "receiver_cycles_per_packet",
            "sender_goodput_bps",
        ] {
            assert!(
                result["values"][name].as_f64().is_some_and(|value| value > 0.0),
                "{name}: {result}"
            );
        }
        assert!(result["requester"]["messages"].as_u64() >= Some(500), "{result}");
    }
    results
}

#[track_caller]
fn results(arguments: &str) -> Vec<Value> {
    let _turn = Turn::take();
    parsed(&run(&format!("{arguments} {BRIEF} --json")))
}

#[test]
fn each_operation_is_measured_in_one_thread_and_between_processes() {
    let results = results("--over rings,memif --op write,send,read --size 1K,64K --qps 1,8");
    assert_eq!(results.len(), 2 * 3 * 2 * 2);
    for result in &results {
        // Rings and memif wait for room.
        assert_eq!(result["values"]["dropped_frames"], 0.0, "{result}");
        // Packets in flight when measuring began may have arrived before.
        let [qps, depth] = ["qps", "depth"].map(|name| result["point"][name].as_u64().unwrap());
        let under_way = qps * depth;
        let packets = result["responder"]["packets"].as_u64();
        assert!(packets >= Some(500 - under_way), "both ends were measured: {result}");
    }
}

#[test]
fn what_the_cycles_go_into_is_told() {
    let results = results("--over rings,memif --parts --mtu 1024");
    for result in &results {
        let values = &result["values"];
        for part in ["post", "protocol", "copy", "seal", "port"] {
            assert!(
                values[format!("sender_{part}_cycles_per_packet")].as_f64() > Some(0.0),
                "{part}: {values}"
            );
        }
        assert!(values["receiver_copy_cycles_per_packet"].as_f64() > Some(0.0), "{values}");
    }
}

#[test]
fn over_af_xdp_the_ends_are_at_a_cable() {
    let Some(network) = Network::new("the software RNIC's bench over AF_XDP", 9000) else { return };
    let arguments = format!("bench rnic --over xdp --interfaces w1 w2 {BRIEF} --json");
    let mut outer = Command::new("ip");
    outer
        .args(["netns", "exec", &network.middle.name])
        .arg(longhaul())
        .args(arguments.split_whitespace());
    outer.env_remove("LD_PRELOAD");
    let finished = Program::start(&mut outer).finish(LIMIT);
    if finished.stderr.contains("AF_XDP") && !finished.status.success() {
        return skip_loudly("the software RNIC's bench over AF_XDP", &finished.stderr);
    }
    assert_eq!(parsed(&finished).len(), 1);
}

#[test]
fn results_go_to_a_file_that_reports_read() {
    let _turn = Turn::take();
    let runtime = RuntimeDir::new();
    let file = runtime.path().join("results.jsonl");
    let finished = run(&format!("--over rings {BRIEF} --out {}", file.display()));
    assert!(finished.status.success() && finished.stdout.contains("sender Gbit/s"), "{finished}");
    let read = ResultFile::read(&file).unwrap();
    assert!(read.records.len() == 1 && read.records[0].experiment == "rnic", "{:?}", read.records);
}

#[test]
fn what_makes_no_sense_is_refused_in_one_line() {
    for (arguments, part) in [
        ("--size 0", "above zero"),
        ("--size 2G", "in all"),
        ("--qps 0", "qps 0"),
        ("--depth 2000", "depth 2000"),
        ("--op read --depth 129", "depth 129"),
        ("--mtu 1500", "1024"),
        ("--ring 100", "power of two"),
        ("--over moon", "moon"),
        ("--over xdp", "--interfaces A B"),
        ("--over xdp --interfaces nowhere0 nowhere1", "nowhere0"),
        ("--cores 0", "--cores"),
        ("--cores 99998,99999", "99998"),
        ("--seconds 0", "not a time"),
    ] {
        let finished = run(arguments);
        assert!(matches!(finished.status.code(), Some(1 | 2)), "{finished}");
        assert!(
            finished.stderr.contains(part) && finished.stderr.lines().count() == 1,
            "{finished}"
        );
        assert_eq!(finished.stdout, "", "{finished}");
    }
}
