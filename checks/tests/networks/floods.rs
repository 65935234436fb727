//! Floods of small frames at the LAN port of `longhaul accelerate`: a known flow continues.
//! Skipped, loudly, if namespaces cannot be created.

use longhaul_checks::network::{Network, Raw};
use longhaul_checks::require;
use std::time::{Duration, Instant};

/// Duration of a flood: several times a requester's retry budget.
const FLOOD: Duration = Duration::from_secs(6);
const PER_SECOND: u32 = 100_000;

/// A frame to an unused address with an unused EtherType.
fn stray(_number: u32) -> Vec<u8> {
    let mut frame = vec![2; 60];
    frame[12..14].copy_from_slice(&[0x88, 0xb5]);
    frame
}

/// A RoCEv2 request to an unused QP, between unused addresses.
fn roce(number: u32) -> Vec<u8> {
    let mut frame = vec![0; 60];
    frame[..14].copy_from_slice(&[2, 2, 2, 2, 2, 2, 4, 4, 4, 4, 4, 4, 8, 0]);
    frame[14..34]
        .copy_from_slice(&[69, 0, 0, 46, 0, 0, 64, 0, 64, 17, 0, 0, 10, 7, 0, 1, 10, 7, 0, 2]);
    frame[34..42].copy_from_slice(&[0xc0, 1, 0x12, 0xb7, 0, 26, 0, 0]);
    // A SEND ONLY with its QP and PSN.
    frame[42..46].copy_from_slice(&[4, 0, 0xff, 0xff]);
    frame[46..50].copy_from_slice(&(0x80_0000 + number % 0x7f_ffff).to_be_bytes());
    frame
}

/// Sends frames at the required rate, or as fast as this machine can: a tenth of the frames takes a
/// busy machine longer.
fn flood(from: &Raw, frame: fn(u32) -> Vec<u8>) {
    let begin = Instant::now();
    let mut sent = 0;
    while begin.elapsed() < FLOOD || sent <= PER_SECOND / 10 {
        if f64::from(sent) < begin.elapsed().as_secs_f64() * f64::from(PER_SECOND) {
            from.send(&frame(sent));
            sent += 1;
        } else {
            std::thread::yield_now();
        }
    }
}

fn a_flow_survives(what: &str, frame: fn(u32) -> Vec<u8>) {
    require("ib_write_bw", "perftest");
    let Some(network) = Network::new(what, 1500) else { return };
    let accelerate = network.start("accelerate --lan west --wan east");
    let raw = Raw::open(&network.left, "eth0");
    network.transfer("ib_write_bw -F -s 65536 -m 1024 -D 9 -t 16 -u 16", || {
        network.wait_for(&accelerate, "a flow", |status| {
            let counters = &status["pairs"][0]["accelerator"]["counters"];
            counters["flows_from_traffic"].as_u64() > Some(0)
        });
        flood(&raw, frame);
    });
    let status = network.status(&accelerate);
    let lan = &status["pairs"][0]["ports"][0];
    assert!(lan["rx_frames"].as_u64() > Some(10_000), "{status:#}");
    accelerate.end();
}

#[test]
fn of_frames_that_are_no_roce() {
    a_flow_survives("a flood of stray frames", stray);
}

#[test]
fn of_roce_to_unknown_qps() {
    a_flow_survives("a flood of RoCEv2 to unknown QPs", roce);
}
