//! A tenant whose receivers post nothing, and a neighbour that shares boxes and fibre with it. Each
//! host is a tenant. The program is `src/bin/integrity`.

use longhaul_checks::perftest::{BANDWIDTH, complaint, figures};
use longhaul_checks::{Program, TestLab, free_tcp_port, require, wait_for_listener};
use serde_json::Value;
use std::fs::File;
use std::thread::sleep;
use std::time::{Duration, Instant};

const LIMIT: Duration = Duration::from_secs(100);

/// Goodput of `ib_write_bw` from host c to host d, in MiB/s.
fn neighbour(lab: &TestLab) -> f64 {
    require("ib_write_bw", "perftest");
    let port = free_tcp_port();
    let line = format!("ib_write_bw -d longhaul0 -F -p {port} -s 65536 -n 2000");
    let server = wait_for_listener(lab.exec("d", &line), port);
    let client = lab.exec("c", &format!("{line} 127.0.0.1")).succeed(LIMIT);
    server.succeed(LIMIT);
    assert_eq!(complaint(&client.stdout), None, "{}", client.stdout);
    figures(&client.stdout)[BANDWIDTH]
}

/// A counter of the first site's near accelerator.
fn counter(lab: &TestLab, name: &str) -> u64 {
    lab.status()["accelerators"][0]["counters"][name].as_u64().unwrap_or(0)
}

/// 20 queue pairs with SENDs from host a to host b, more than the boxes can store. The first three
/// of each are received: their ACKs let the boxes learn the flows.
fn slow(lab: &TestLab) -> [Program; 2] {
    let port = free_tcp_port();
    let until = lab.runtime().path().join("ready");
    ["", "--server"]
        .into_iter()
        .zip(["a", "b"])
        .map(|(role, host)| {
            let mut command = lab.command(host, "");
            command.arg(env!("CARGO_BIN_EXE_integrity"));
            command.args(
                format!(
                    "{role} --port {port} unready --qps 20 --ready 3 --messages 12 --size 1048576"
                )
                .split_whitespace(),
            );
            Program::start(command.arg("--until").arg(&until))
        })
        .collect::<Vec<_>>()
        .try_into()
        .unwrap_or_else(|_| unreachable!("two programs"))
}

fn neighbour_beside_slow_receivers(boxes: &str) {
    let lab = TestLab::up(&format!(
        "--hosts 4 --distance 100km --rate 1G --queue 16M --memory 256M --accelerate {boxes}"
    ));
    let alone = neighbour(&lab);
    let programs = slow(&lab);
    let deadline = Instant::now() + LIMIT;
    while counter(&lab, "rnr_naks") == 0 {
        assert!(Instant::now() < deadline, "nobody is made to wait: {}", lab.status());
        sleep(Duration::from_millis(20));
    }
    let beside = neighbour(&lab);
    println!("--accelerate {boxes}: {beside:.1} MiB/s beside slow receivers, {alone:.1} alone");
    File::create(lab.runtime().path().join("ready")).expect("a file");
    for program in programs {
        let finished = program.succeed(LIMIT);
        let result: Value = serde_json::from_str(&finished.stdout).expect("JSON");
        assert_eq!(result["messages"], 240, "{finished}");
    }
    assert_eq!(counter(&lab, "flows_failed"), 0, "{}", lab.status());
}

#[test]
#[ignore = "nightly: half a minute each, and load"]
fn slow_receivers_end_no_connection_of_theirs_or_of_a_neighbour() {
    neighbour_beside_slow_receivers("both");
}

#[test]
#[ignore = "nightly: half a minute each, and load"]
fn slow_receivers_end_no_connection_behind_whole_boxes() {
    neighbour_beside_slow_receivers("transport");
}
