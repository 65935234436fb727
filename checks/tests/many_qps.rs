//! Hundreds of queue pairs with perftest's default timeout, on processors that have other things to do.

use longhaul_checks::perftest::{believable_bandwidth, rows};
use longhaul_checks::{Ready, TestLab, free_tcp_port, require};
use std::time::Duration;

const LIMIT: Duration = Duration::from_secs(300);

/// `ib_write_bw` with `options` through a lab, until its end.
fn write(lab: &TestLab, options: &str) {
    require("ib_write_bw", "perftest");
    let port = free_tcp_port();
    let base = format!("ib_write_bw -d longhaul0 -F -p {port} -s 65536 {options}");
    let (_, client) = lab.pair(&base, &format!("{base} 127.0.0.1"), Ready::Tcp(port), LIMIT);
    let row = rows(&client.stdout).pop().unwrap_or_else(|| panic!("{options}: {}", client.stdout));
    believable_bandwidth(&row).unwrap_or_else(|fault| panic!("{options}: {fault}"));
}

#[test]
fn hundreds_of_queue_pairs_outlast_the_default_timeout() {
    let lab = TestLab::up("--distance 1km");
    write(&lab, "-q 512 -m 1024 -n 16 -t 16");
    write(&lab, "-q 300 -m 1024 -n 8 -t 8 -b");
}

#[test]
#[ignore = "nightly: 512 queue pairs with 8 MiB each outstanding, one way and both"]
fn deep_queues_of_hundreds_of_queue_pairs() {
    for accelerate in ["", "--accelerate"] {
        let lab = TestLab::up(&format!("--distance 1km {accelerate}"));
        write(&lab, "-q 512 -m 1024 -n 200");
        write(&lab, "-q 300 -m 1024 -n 200 -b");
    }
}

#[test]
#[ignore = "nightly: 2,000 queue pairs at every path MTU, with and without boxes, one way and both"]
fn thousands_of_queue_pairs_at_every_path_mtu() {
    for accelerate in ["", "--accelerate"] {
        let lab = TestLab::up(&format!("--distance 1km {accelerate}"));
        for mtu in [256, 512, 1024, 2048, 4096] {
            write(&lab, &format!("-q 2000 -m {mtu} -n 5 -t 5"));
            write(&lab, &format!("-q 2000 -m {mtu} -n 5 -t 5 -b"));
        }
    }
}
