//! Several clients and servers in a lab.

use super::*;

#[test]
fn several_hosts_of_a_lab_measure_together() {
    require("ib_write_bw", "perftest");
    let _turn = Turn::take();
    let place = Place::new(
        r#"
name = "check"
repeats = 2
[lab]
rate = "10G"
network = "none"
memory = "64M"
[axes]
clients = [1, 2]
servers = [1, 2]
[[program]]
name = "write"
client = "ib_write_bw -d longhaul0 -F -s 4096 -n 500"
axes = { servers = [1] }
[[program]]
name = "latency"
client = "ib_write_lat -d longhaul0 -F -s 8 -n 200"
axes = { clients = [1] }
[[program]]
name = "storage"
server = "longhaul storage target --namespace memory:16M"
client = "longhaul storage host --rw randread --bs 4K --depth 8 --ops 500 --wait 60"
axes = { clients = [2], servers = [1] }
"#,
    );
    let done = json(&place.succeed("x.toml --out o --json"));
    assert_eq!((&done["measured"], &done["failed"]), (&10.into(), &Value::Array(vec![])));
    let mut several = 0;
    for (key, result) in place.results() {
        let pairs = result["pairs"].as_array().cloned().unwrap_or_default();
        let number = |side: &str| result["point"][side].as_u64().unwrap();
        let count = number("clients").max(number("servers")) as usize;
        assert_eq!(pairs.len(), if count == 1 { 0 } else { count }, "{key}: {result}");
        if let Some(goodput) = result["values"]["goodput_bps"].as_f64() {
            let of = |pair: &Value| pair["values"]["goodput_bps"].as_f64().unwrap();
            let sum: f64 = pairs.iter().map(of).sum();
            assert!(count == 1 || (goodput - sum).abs() <= sum * 1e-9, "{key}: {result}");
        }
        several += usize::from(count > 1);
    }
    assert_eq!(several, 6);
    // The figures of pairs are samples of one distribution of latencies.
    let rows = done["summary"].as_array().unwrap();
    let latency = |servers: u64| {
        let is_it = |row: &&Value| {
            row["value"] == "latency_median_ns" && row["point"]["servers"] == servers
        };
        rows.iter().find(is_it).unwrap()["n"].clone()
    };
    assert_eq!((latency(1), latency(2)), (2.into(), 4.into()));
}
