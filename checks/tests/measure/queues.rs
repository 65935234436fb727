//! The fill of the send queues of our own programs, and the time of a client in its verbs calls.

use super::*;

/// Storage over a path on which requests wait for their completions.
const STORAGE: &str = r#"
name = "check"
repeats = 1
limit_s = 120
sample_ms = 10
[lab]
rate = "10G"
network = "none"
distance = "20km"
[[program]]
name = "storage"
server = "longhaul storage target --namespace memory:16M"
client = "longhaul storage host --rw randrw --bs 64K --depth 16 --ops 3000 --wait 60"
"#;

const CALLS: &str = r#"
name = "check"
repeats = 1
limit_s = 60
times_calls = true
[lab]
rate = "10G"
network = "none"
[[program]]
name = "write"
client = "ib_write_bw -d longhaul0 -F -s 4096 -n 5000"
"#;

#[test]
fn of_storage_are_sampled_beside_goodput_and_drawn() {
    let _turn = Turn::take();
    let place = Place::new(STORAGE);
    place.succeed("x.toml --out o");
    let results = place.results();
    let [result] = &results.values().collect::<Vec<_>>()[..] else { panic!("{results:?}") };
    let series = |name: &str| -> Vec<f64> {
        let figures = result["samples"][name].as_array().unwrap_or_else(|| panic!("{result}"));
        figures.iter().filter_map(Value::as_f64).collect()
    };
    for host in ["a", "b"] {
        let fill = series(&format!("{host}.send_queue_fill"));
        assert_eq!(fill.len(), series(&format!("{host}.sent_bps")).len(), "{host}");
        let most = fill.iter().copied().fold(0.0, f64::max);
        // Each command has a capsule, and at the target a transfer and a response.
        assert!((1.0..=64.0).contains(&most), "{host}: {fill:?}");
    }
    assert!(result["absent"]["send_queue_fill"].is_null(), "{result}");
    let mut report = place.runtime.longhaul_inside("report o/results.jsonl --out report.html");
    Program::start(&mut report).succeed(LIMIT);
    let page = fs::read_to_string(place.runtime.path().join("report.html")).expect("a page");
    assert!(page.contains("send requests in the queues over the middle of a run"));
}

#[test]
fn of_perftest_are_timed_by_call() {
    require("ib_write_bw", "perftest");
    let _turn = Turn::take();
    let place = Place::new(CALLS);
    place.succeed("x.toml --out o");
    for (key, result) in place.results() {
        let seconds = |call: &str| result["values"][format!("in_{call}_s")].as_f64();
        assert!(seconds("post_send") > Some(0.0), "{key}: {result}");
        assert!(seconds("poll_cq") > Some(0.0), "{key}: {result}");
    }
}
