//! Frames per second from one device to another: by DPDK's testpmd, which swaps addresses in place,
//! and by two ports that copy each frame, send it from its place, or keep it for a while first,
//! like a box that stores it.
//!
//! `cargo bench -p longhaul-dpdk --features libdpdk`
//!
//! The devices are net_null's, which cost almost nothing, so the comparison is of the programs' own
//! costs on one processor. Ratios are of runs of the same round.

use longhaul_dpdk::{DpdkConfig, DpdkPort, eal};
use longhaul_port::{Lease, Port, PortError, Received};
use std::collections::VecDeque;
use std::io::Write;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

const LENGTHS: [usize; 3] = [64, 1024, 4096];
const ROUNDS: usize = 3;
const FOR: Duration = Duration::from_secs(1);

/// Treatment of a frame between the two ports.
#[derive(Clone, Copy, Debug)]
enum Manner {
    Copied,
    Referred,
    /// This number of frames is kept before the first is sent.
    Kept(usize),
}

const MANNERS: [Manner; 3] = [Manner::Copied, Manner::Referred, Manner::Kept(2048)];

fn main() {
    eal::start("--no-huge -m 512").unwrap_or_else(|e| panic!("{e}"));
    let mut number = 0;
    for len in LENGTHS {
        for copy in [0, 1] {
            let mut theirs = Vec::new();
            let mut ours = MANNERS.map(|_| Vec::new());
            for _ in 0..ROUNDS {
                theirs.push(by_testpmd(len, copy));
                for (manner, rates) in MANNERS.into_iter().zip(&mut ours) {
                    rates.push(by_ports(len, copy, number, manner));
                    number += 2;
                }
            }
            println!(
                "{len} B, copied by the device that receives: {copy}; testpmd {} M/s",
                spread(&theirs, 1e6)
            );
            for (manner, rates) in MANNERS.into_iter().zip(&ours) {
                let ratios: Vec<f64> =
                    rates.iter().zip(&theirs).map(|(ours, theirs)| ours / theirs).collect();
                println!(
                    "  {manner:?}: {} M/s, to testpmd's {}",
                    spread(rates, 1e6),
                    spread(&ratios, 1.0)
                );
            }
        }
    }
}

/// Median, minimum and maximum.
fn spread(values: &[f64], unit: f64) -> String {
    let mut sorted: Vec<f64> = values.iter().map(|value| value / unit).collect();
    sorted.sort_by(f64::total_cmp);
    format!("{:.3} ({:.3} to {:.3})", sorted[sorted.len() / 2], sorted[0], sorted[sorted.len() - 1])
}

fn devices(len: usize, copy: usize, number: usize) -> [String; 2] {
    [format!("net_null{number},size={len},copy={copy}"), format!("net_null{},no-rx=1", number + 1)]
}

fn by_ports(len: usize, copy: usize, number: usize, manner: Manner) -> f64 {
    let open = |devargs: &String| {
        let mut port = DpdkPort::open(&DpdkConfig::new(devargs)).unwrap_or_else(|e| panic!("{e}"));
        port.service().expect("a port");
        port
    };
    let [from, to] = devices(len, copy, number);
    let (mut from, mut to) = (open(&from), open(&to));
    let mut kept: VecDeque<Lease> = VecDeque::new();
    let start = Instant::now();
    while start.elapsed() < FOR {
        for _ in 0..100 {
            pass(&mut from, &mut to, manner, &mut kept).expect("ports");
        }
    }
    to.counters().tx_frames as f64 / start.elapsed().as_secs_f64()
}

/// Passes one burst.
fn pass(
    from: &mut DpdkPort,
    to: &mut DpdkPort,
    manner: Manner,
    kept: &mut VecDeque<Lease>,
) -> Result<(), PortError> {
    let burst = to.transmit_room().min(64);
    let mut copy = |frame: &[u8]| {
        to.transmit(frame.len(), &mut |out| out.copy_from_slice(frame)).expect("it fits");
    };
    let hold = match manner {
        Manner::Copied => {
            from.receive(burst, &mut copy)?;
            return to.flush();
        }
        Manner::Referred => 0,
        Manner::Kept(frames) => frames,
    };
    from.receive_lent(burst, &mut |frame| match frame {
        Received::Lent(lease) => kept.push_back(lease.clone()),
        passing => copy(passing.bytes()),
    })?;
    while kept.len() > hold {
        let lease = kept.pop_front().expect("more than none");
        to.transmit_lent(&lease)?;
    }
    to.flush()
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
    // Time for it to start, which its own clock excludes.
    writeln!(stdin, "start").expect("testpmd");
    std::thread::sleep(FOR * 2);
    writeln!(stdin, "show port stats all").expect("testpmd");
    std::thread::sleep(FOR);
    writeln!(stdin, "show port stats all\nquit").expect("testpmd");
    let output = child.wait_with_output().expect("testpmd");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    // From the second statistics of the second port: frames per second since the first ones.
    let rate = text.lines().filter_map(|line| line.split_once("Tx-pps:")).next_back();
    let rate = rate.and_then(|(_, rest)| rest.split_whitespace().next()?.parse().ok());
    rate.unwrap_or_else(|| panic!("no rate: {text}"))
}
