//! Frames per second from one device to another: by DPDK's testpmd, which swaps their addresses in place, and by two ports,
//! each frame copied from one to the other, as a box does at least once.
//!
//! `cargo bench -p longhaul-dpdk --features libdpdk`
//!
//! The devices are net_null's, which cost nearly nothing: what is compared is what either costs itself, on one processor.
//! Ratios are of runs of the same round.

use longhaul_dpdk::{DpdkConfig, DpdkPort, eal};
use longhaul_port::Port;
use std::io::Write;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

const LENGTHS: [usize; 3] = [64, 1024, 4096];
const ROUNDS: usize = 5;
const FOR: Duration = Duration::from_secs(1);

fn main() {
    eal::start("--no-huge -m 512").unwrap_or_else(|e| panic!("{e}"));
    for (at, len) in LENGTHS.into_iter().enumerate() {
        for copy in [0, 1] {
            let mut ratios = Vec::new();
            let mut figures = Vec::new();
            for round in 0..ROUNDS {
                let number = 100 * at + 10 * copy + 2 * round;
                let (theirs, ours) = (by_testpmd(len, copy), by_ports(len, copy, number));
                ratios.push(ours / theirs);
                figures.push((theirs / 1e6, ours / 1e6));
            }
            ratios.sort_by(f64::total_cmp);
            println!(
                "{len} B, copied by the device that receives: {copy}; ours to testpmd's: median {:.3}, {:.3} to {:.3}; millions per second \
                 (testpmd, ours): {figures:.2?}",
                ratios[ROUNDS / 2],
                ratios[0],
                ratios[ROUNDS - 1],
            );
        }
    }
}

fn devices(len: usize, copy: usize, number: usize) -> [String; 2] {
    [format!("net_null{number},size={len},copy={copy}"), format!("net_null{},no-rx=1", number + 1)]
}

fn by_ports(len: usize, copy: usize, number: usize) -> f64 {
    let open = |devargs: &String| {
        let mut port = DpdkPort::open(&DpdkConfig::new(devargs)).unwrap_or_else(|e| panic!("{e}"));
        port.service().expect("a port");
        port
    };
    let [from, to] = devices(len, copy, number);
    let (mut from, mut to) = (open(&from), open(&to));
    let start = Instant::now();
    while start.elapsed() < FOR {
        for _ in 0..100 {
            let room = to.transmit_room();
            let sent = from.receive(room.min(64), &mut |frame| {
                to.transmit(frame.len(), &mut |out| out.copy_from_slice(frame)).expect("it fits");
            });
            sent.and_then(|_| to.flush()).expect("ports");
        }
    }
    to.counters().tx_frames as f64 / start.elapsed().as_secs_f64()
}

fn by_testpmd(len: usize, copy: usize) -> f64 {
    let mut command = Command::new("dpdk-testpmd");
    command.args([
        "--no-huge",
        "-m",
        "256",
        "--no-pci",
        "--no-shconf",
        "--no-telemetry",
        "--lcores=(0,1)@(0-1)",
    ]);
    command.args(devices(len, copy, 0).map(|device| format!("--vdev={device}")));
    command.args(["--", "-i", "--forward-mode=macswap", "--burst=64", "--total-num-mbufs=8192"]);
    command.args([format!("--mbuf-size={}", len.max(2048) + 128)]);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
    let mut child = command.spawn().expect("dpdk-testpmd: apt-get install dpdk-dev");
    let stdin = child.stdin.as_mut().expect("piped");
    // Time for it to start, which its own clock leaves out.
    writeln!(stdin, "start").expect("testpmd");
    std::thread::sleep(FOR * 2);
    writeln!(stdin, "show port stats all").expect("testpmd");
    std::thread::sleep(FOR);
    writeln!(stdin, "show port stats all\nquit").expect("testpmd");
    let output = child.wait_with_output().expect("testpmd");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    // Of the second look at the second port: frames per second since the first.
    let rate = text.lines().filter_map(|line| line.split_once("Tx-pps:")).next_back();
    let rate = rate.and_then(|(_, rest)| rest.split_whitespace().next()?.parse().ok());
    rate.unwrap_or_else(|| panic!("no rate: {text}"))
}
