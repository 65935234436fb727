//! Our device by UDP over loopback, and bare datagrams of the same size: in runs that the kernel
//! cuts and joins (GSO and GRO), as our device sends them, and one by one, as iperf3 does.
//!
//! `cargo build --release -p longhaul -p longhaul-preload && cargo bench -p longhaul-checks --bench
//! against_datagrams`

use clap::Parser;
use longhaul_checks::perftest::{BANDWIDTH, figures};
use longhaul_checks::samples::{Keep, Rounds, median};
use longhaul_checks::{Program, RuntimeDir, Turn, free_tcp_port, require, wait_for_listener};
use serde_json::json;
use std::process::Command;
use std::time::Duration;

const LIMIT: Duration = Duration::from_secs(60);
/// A packet of 4096 bytes with BTH and ICRC.
const DATAGRAM_BYTES: u32 = 4112;
const BARE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/python/datagrams.py");

#[derive(Parser)]
struct Args {
    #[command(flatten)]
    rounds: Rounds,
    #[command(flatten)]
    keep: Keep,
}

fn main() {
    let args = Args::parse();
    require("ib_write_bw", "perftest");
    require("python3", "python3");
    let _turn = Turn::take();
    let runtime = RuntimeDir::new();
    let names =
        ["WRITE 64 KiB by UDP, in runs", "bare datagrams, in runs", "bare datagrams, one by one"];
    let mut samples: [Vec<f64>; 3] = Default::default();
    for round in 1..=args.rounds.rounds {
        eprintln!("round {round} of {}", args.rounds.rounds);
        samples[0].push(ours(&runtime, args.rounds.seconds));
        samples[1].push(bare("runs", args.rounds.seconds));
        samples[2].push(bare("singles", args.rounds.seconds));
    }
    println!(
        "{:<32} {:>8} {:>8} {:>8}  ours is",
        "Gbit/s over loopback", "median", "least", "most"
    );
    for (name, of) in names.into_iter().zip(&samples) {
        let (least, most) =
            of.iter().fold((f64::MAX, 0.0_f64), |(least, most), x| (least.min(*x), most.max(*x)));
        let ratios: Vec<f64> = samples[0].iter().zip(of).map(|(ours, bare)| ours / bare).collect();
        println!(
            "{name:<32} {:>8.2} {least:>8.2} {most:>8.2}  {:.2} times",
            median(of),
            median(&ratios)
        );
    }
    args.keep.write("against_datagrams.json", &json!({ "names": names, "gbits": samples }));
}

/// What ib_write_bw moves between two of our devices.
fn ours(runtime: &RuntimeDir, seconds: u32) -> f64 {
    let port = free_tcp_port();
    let end = |ip: &str, peer: &str| {
        let program = format!(
            "ib_write_bw -F -d longhaul0 -m 4096 -s 65536 -u 18 -p {port} --report_gbits -f 1"
        );
        let line = format!("exec --udp={ip} -- {program} -D {} {peer}", seconds + 2);
        Program::start(&mut runtime.longhaul(&line))
    };
    let server = wait_for_listener(end("127.0.0.1", ""), port);
    let limit = LIMIT + Duration::from_secs(seconds.into());
    let client = end("127.0.0.2", "127.0.0.1").succeed(limit);
    server.succeed(limit);
    figures(&client.stdout)[BANDWIDTH]
}

/// What of bare datagrams arrives.
fn bare(how: &str, seconds: u32) -> f64 {
    let (size, seconds) = (DATAGRAM_BYTES.to_string(), seconds.to_string());
    let mut command = Command::new("python3");
    command.args([BARE, how, size.as_str(), seconds.as_str()]);
    let done = Program::start(&mut command).succeed(LIMIT);
    done.stdout.trim().parse().unwrap_or_else(|e| panic!("{e} in {done}"))
}
