//! Two processes joined by shared memory, without a lab: perftest on the preloaded library, and TCP
//! by iperf3 over the loopback interface in the same run, round by round.
//!
//! `cargo build --release -p longhaul -p longhaul-preload && cargo bench -p longhaul-checks --bench
//! back_to_back`
//!
//! Wall time on whatever else the machine does: the load is part of the result, and the ratio to
//! iperf3 is what can be compared between machines.

use clap::Parser;
use longhaul_checks::perftest::{BANDWIDTH, MESSAGE_RATE, TYPICAL, figures};
use longhaul_checks::samples::{Keep, Rounds};
use longhaul_checks::{
    BackToBack, Finished, Program, Ready, Turn, free_tcp_port, require, samples, wait_for_listener,
};
use serde_json::{Value, json};
use std::fs;
use std::process::Command;
use std::time::Duration;

#[derive(Parser)]
struct Args {
    #[command(flatten)]
    rounds: Rounds,
    #[command(flatten)]
    keep: Keep,
}

/// What is measured, in which unit, and what for.
struct Series {
    name: &'static str,
    unit: &'static str,
    goal: &'static str,
    command: String,
    samples: Vec<f64>,
}

impl Series {
    fn new(name: &'static str, unit: &'static str, goal: &'static str, command: &str) -> Self {
        Series { name, unit, goal, command: command.to_owned(), samples: Vec::new() }
    }

    fn median(&self) -> f64 {
        samples::median(&self.samples)
    }

    fn line(&self) -> String {
        let least = self.samples.iter().copied().fold(f64::INFINITY, f64::min);
        let most = self.samples.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let Series { name, unit, goal, .. } = self;
        format!("{name:<44} {:>10.2} {unit:<8} {least:>10.2} {most:>10.2}  {goal}", self.median())
    }

    fn json(&self) -> Value {
        let Series { name, unit, goal, command, samples } = self;
        json!({
            "name": name, "unit": unit, "goal": goal, "command": command,
            "median": self.median(), "samples": samples,
        })
    }
}

fn main() {
    let args = Args::parse();
    require("ib_write_bw", "perftest");
    require("ib_write_lat", "perftest");
    require("iperf3", "iperf3");
    let _turn = Turn::take();
    let bandwidth_time = format!("-D {} -f 1", args.rounds.seconds + 2);
    let large =
        format!("ib_write_bw -d longhaul0 -F --report_gbits -m 4096 -s 65536 {bandwidth_time}");
    let small =
        format!("ib_write_bw -d longhaul0 -F --report_gbits -m 4096 -s 64 {bandwidth_time}");
    let latency = "ib_write_lat -d longhaul0 -F -m 4096 -s 2 -n 20000";
    let tcp = format!("iperf3 -c 127.0.0.1 -t {}", args.rounds.seconds);

    let mut write =
        Series::new("WRITE 64 KiB, MTU 4096, ICRC on", "Gbit/s", "at least 20.49", &large);
    let mut iperf = Series::new("TCP over loopback (iperf3)", "Gbit/s", "", &tcp);
    let mut ratio = Series::new("  ratio", "", "at least 1", "");
    let mut rate = Series::new("WRITE 64 B, one QP", "M/s", "at least 1", &small);
    let mut lat = Series::new("WRITE 2 B, half a round trip, median", "µs", "", latency);
    let load_before = load();
    for round in 1..=args.rounds.rounds {
        eprintln!("round {round} of {}", args.rounds.rounds);
        write.samples.push(perftest(&large)[BANDWIDTH]);
        iperf.samples.push(iperf3(args.rounds.seconds));
        ratio.samples.push(write.samples[round - 1] / iperf.samples[round - 1]);
        rate.samples.push(perftest(&small)[MESSAGE_RATE]);
        lat.samples.push(perftest(latency)[TYPICAL]);
    }
    let load_after = load();

    let all = [write, iperf, ratio, rate, lat];
    println!(
        "{:<44} {:>10} {:<8} {:>10} {:>10}  goal",
        "back to back over memif", "median", "", "least", "most"
    );
    for series in &all {
        println!("{}", series.line());
    }
    println!("{}, {} cores; load before {load_before}, after {load_after}", cpu(), cores());
    let result = json!({
        "provenance": {
            "cpu": cpu(), "cores": cores(), "load_before": load_before, "load_after": load_after,
            "kernel": first_line("/proc/sys/kernel/osrelease"),
            "longhaul": env!("CARGO_PKG_VERSION"),
            "rounds": args.rounds.rounds, "seconds": args.rounds.seconds,
        },
        "series": all.iter().map(Series::json).collect::<Vec<_>>(),
    });
    args.keep.write("back_to_back.json", &result);
}

/// Runs perftest between two processes; the figures of its result line.
fn perftest(line: &str) -> Vec<f64> {
    let port = free_tcp_port();
    let server = format!("{line} -p {port}");
    let client = format!("{server} 127.0.0.1");
    let (_, client) =
        BackToBack::new().pair(&server, &client, Ready::Tcp(port), Duration::from_secs(60));
    figures(&client.stdout)
}

/// Gbit/s of payload that iperf3's receiver has seen.
fn iperf3(seconds: u32) -> f64 {
    let limit = Duration::from_secs(u64::from(seconds) + 20);
    let port = free_tcp_port();
    let line = format!("-s -1 -p {port}");
    let server = Program::start(Command::new("iperf3").args(line.split_whitespace()));
    let server = wait_for_listener(server, port);
    let line = format!("-c 127.0.0.1 -p {port} -t {seconds} -J");
    let client =
        Program::start(Command::new("iperf3").args(line.split_whitespace())).succeed(limit);
    server.succeed(limit);
    received(&client)
}

fn received(client: &Finished) -> f64 {
    let report: Value =
        serde_json::from_str(&client.stdout).unwrap_or_else(|e| panic!("{e} in {client}"));
    let bps = report["end"]["sum_received"]["bits_per_second"].as_f64();
    bps.unwrap_or_else(|| panic!("no result in {client}")) / 1e9
}

fn first_line(path: &str) -> String {
    let text = fs::read_to_string(path).unwrap_or_default();
    text.lines().next().unwrap_or_default().to_owned()
}

/// Runnable processes over the last minute.
fn load() -> String {
    first_line("/proc/loadavg").split(' ').next().unwrap_or_default().to_owned()
}

fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

fn cpu() -> String {
    let text = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix("model name"));
    line.and_then(|rest| rest.split_once(": "))
        .map_or("unknown CPU".to_owned(), |(_, name)| name.to_owned())
}
