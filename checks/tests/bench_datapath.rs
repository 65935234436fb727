//! `longhaul bench datapath` and `longhaul bench box`: every box over rings, boxes in separate
//! processes, result files, and refusals.

use longhaul_bench::ResultFile;
use longhaul_checks::guest::skip_loudly;
use longhaul_checks::testpmd::Testpmd;
use longhaul_checks::{Finished, Program, RuntimeDir, Turn};
use serde_json::Value;
use std::time::Duration;

const LIMIT: Duration = Duration::from_secs(300);
const BRIEF: &str = "--packets 20000 --warm-up 0.01 --seconds 30";

fn run(arguments: &str) -> Finished {
    let runtime = RuntimeDir::new();
    Program::start(&mut runtime.longhaul(&format!("bench datapath {arguments}"))).finish(LIMIT)
}

/// Results of a run with these arguments.
#[track_caller]
fn results(arguments: &str) -> Vec<Value> {
    let _turn = Turn::take();
    let finished = run(&format!("{arguments} {BRIEF} --json"));
    assert!(finished.status.success(), "{finished}");
    let output: Value =
        serde_json::from_str(&finished.stdout).unwrap_or_else(|e| panic!("{e}: {finished}"));
    assert_eq!(output["schema"], "longhaul-datapath/1");
    let results = output["results"].as_array().cloned().unwrap_or_default();
    for result in &results {
        let values = &result["values"];
        for name in ["packets_per_s", "goodput_bps", "one_way_p50_ns", "acknowledged_p999_ns"] {
            assert!(values[name].as_f64().is_some_and(|value| value > 0.0), "{name}: {result}");
        }
        assert_eq!(values["lost_packets"], 0.0, "{result}");
    }
    results
}

#[test]
fn every_box_is_measured_over_rings() {
    let results =
        results("--box load,forward,accelerator,paired,emulator --size 512,4K --flows 16,200");
    assert_eq!(results.len(), 5 * 2 * 2);
    let has_cycles =
        |result: &&Value| result["values"]["box_cycles_per_packet"].as_f64() > Some(1.0);
    assert_eq!(results.iter().filter(has_cycles).count(), 4 * 2 * 2, "{results:?}");
}

#[test]
fn distance_is_behind_an_accelerator_and_inside_an_emulator() {
    let results = results("--box accelerator,emulator --size 1K --distance 200km");
    let ns = |at: usize, name: &str| results[at]["values"][name].as_f64().unwrap();
    // 1 ms one way; an accelerator acknowledges at once, after it has sent the packets on.
    assert!(ns(0, "acknowledged_p50_ns") < 1e6 && ns(0, "one_way_p50_ns") < 1e6, "{results:?}");
    assert!(ns(1, "acknowledged_p50_ns") >= 2e6 && ns(1, "one_way_p50_ns") >= 1e6, "{results:?}");
}

#[test]
fn paired_boxes_are_held_against_their_parts() {
    let results = results("--box paired --size 2K --parity always --keys --parts");
    let values = &results[0]["values"];
    for name in
        ["plain_cycles_per_packet", "coding_cycles_per_packet", "encryption_cycles_per_packet"]
    {
        assert!(values[name].as_f64() > Some(1.0), "{name}: {values}");
    }
    assert!(values["to_parts_ratio"].as_f64() > Some(0.1), "{values}");
}

#[test]
fn over_memif_the_box_is_a_process_of_its_own() {
    let results = results("--over memif --box forward,accelerator,emulator --size 4K --flows 8");
    assert_eq!(results.len(), 3);
    assert!(results.iter().all(|result| result["point"]["over"] == "memif"), "{results:?}");
}

#[test]
fn testpmd_has_the_same_load() {
    if let Some(reason) = Testpmd::missing() {
        return skip_loudly("the data path beside testpmd", &reason);
    }
    let results = results("--over memif --beside testpmd --box forward --size 1K");
    assert!(results[0]["values"]["testpmd_packets_per_s"].as_f64() > Some(1e3), "{results:?}");
}

#[test]
fn results_go_to_a_file_that_reports_read() {
    let _turn = Turn::take();
    let runtime = RuntimeDir::new();
    let file = runtime.path().join("results.jsonl");
    for _ in 0..2 {
        let finished = run(&format!("--box forward --size 512 {BRIEF} --out {}", file.display()));
        assert!(finished.status.success() && finished.stdout.contains("forward"), "{finished}");
    }
    let read = ResultFile::read(&file).unwrap();
    assert_eq!(read.records.len(), 2);
    assert!(
        read.records
            .iter()
            .all(|record| record.experiment == "datapath" && record.provenance.is_some())
    );
}

#[test]
fn what_makes_no_sense_is_refused_in_one_line() {
    for (arguments, part) in [
        ("--size 8K", "4 KiB"),
        ("--flows 0", "from 1 to"),
        ("--flows 100000", "from 1 to"),
        ("--box moon", "moon"),
        ("--beside testpmd", "--over memif"),
        ("--over memif --box paired", "over rings"),
        ("--parts", "paired boxes"),
        ("--ack-every 0", "ack_every"),
        ("--depth 4", "depth"),
        ("--cores 0,1", "--cores"),
        ("--cores 99999", "99999"),
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

fn run_box(arguments: &str) -> Finished {
    let runtime = RuntimeDir::new();
    Program::start(&mut runtime.longhaul(&format!("bench box {arguments}"))).finish(LIMIT)
}

#[test]
fn a_box_over_memif_has_a_result_of_every_test() {
    let _turn = Turn::take();
    // A load that a busy machine offers, too.
    let finished = run_box(
        "--over memif --box accelerator --size 512 --flows 8 --line-rate 50M --trial-seconds 0.05 \
         --trials 1 --repeats 1 --json",
    );
    assert!(finished.status.success(), "{finished}");
    let output: Value = serde_json::from_str(&finished.stdout).unwrap();
    assert_eq!(output["schema"], "longhaul-box/1");
    let result = &output["results"][0];
    for name in [
        "throughput_frames_per_s",
        "conditional_throughput_frames_per_s",
        "latency_mean_ns",
        "frame_loss_at_100_percent",
        "back_to_back_frames",
        "system_recovery_s",
        "reset_s",
    ] {
        assert!(
            result["values"][name].as_f64().is_some_and(|value| value >= 0.0),
            "{name}: {result}"
        );
    }
    assert!(result["values"]["reset_s"].as_f64() > Some(1e-4), "{result}");
    assert_eq!(result["absent"], serde_json::json!({}), "{result}");
}

#[test]
fn a_box_over_rings_names_the_tests_that_need_a_process() {
    let _turn = Turn::take();
    let finished = run_box(
        "--box forward --size 64 --flows 1 --line-rate 10M --trial-seconds 0.02 --trials 1",
    );
    assert!(finished.status.success(), "{finished}");
    assert!(finished.stdout.contains("no reset: over rings"), "{finished}");
    assert!(finished.stdout.contains("no back-to-back frames"), "{finished}");
}

#[test]
fn tests_of_a_box_that_make_no_sense_are_refused_in_one_line() {
    for (arguments, part) in [
        ("--near eth1", "--far"),
        ("--near lo --far lo", "both lo"),
        ("--size 8K", "4 KiB"),
        ("--over memif --box paired", "over rings"),
        ("--width 0", "not a width"),
        ("--tests moon", "moon"),
        ("--near no-such-port --far lo", "no-such-port"),
    ] {
        let finished = run_box(arguments);
        assert!(matches!(finished.status.code(), Some(1 | 2)), "{finished}");
        assert!(
            finished.stderr.contains(part) && finished.stderr.lines().count() == 1,
            "{finished}"
        );
    }
}
