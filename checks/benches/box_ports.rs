//! What boxes carry over AF_XDP ports and over `AF_PACKET` ones: iperf3 and ib_write_bw between two
//! network namespaces through an accelerator, an emulated fibre and an accelerator.
//!
//! `cargo build --release -p longhaul -p longhaul-preload && cargo bench -p longhaul-checks --bench
//! box_ports`, as root
//!
//! Rounds of all kinds of ports take turns; ratios are of rounds that follow each other.

use clap::Parser;
use longhaul_checks::network::{LIMIT, Namespace, Network, RIGHT};
use longhaul_checks::perftest::{BANDWIDTH, figures};
use longhaul_checks::samples::{Keep, Rounds};
use longhaul_checks::{Program, require, samples};
use serde_json::{Value, json};
use std::process::Command;
use std::time::Duration;

#[derive(Parser)]
struct Args {
    #[command(flatten)]
    rounds: Rounds,
    #[command(flatten)]
    keep: Keep,
    /// MTU of all interfaces
    #[arg(long, default_value_t = 1500)]
    mtu: u32,
}

/// Name, and what goes around an interface's name.
const KINDS: [(&str, &str, &str); 3] = [
    ("AF_PACKET", "", ""),
    ("AF_XDP generic", "xdp:", ",generic"),
    ("AF_XDP native", "xdp:", ",native"),
];

fn main() {
    let args = Args::parse();
    require("iperf3", "iperf3");
    require("ib_write_bw", "perftest");
    let Some(network) = Network::new("what boxes carry", args.mtu) else { return };
    network.cut_datagrams_at_hosts();
    let mut samples: [[Vec<f64>; 2]; KINDS.len()] = Default::default();
    for _ in 0..args.rounds.rounds {
        for ((_, before, after), samples) in KINDS.iter().zip(&mut samples) {
            let port = |name: &str| format!("{before}{name}{after}");
            let [west, w1, w2, e2, e1, east] = ["west", "w1", "w2", "e2", "e1", "east"].map(port);
            let boxes = [
                network.start(&format!(
                    "accelerate --name near --lan {west} --wan {w1} --distance 10km"
                )),
                network.start(&format!("emulate --a {w2} --b {e2} --distance 10km --rate 100G")),
                network.start(&format!(
                    "accelerate --name far --lan {east} --wan {e1} --distance 10km"
                )),
            ];
            samples[0].push(tcp(&network, args.rounds.seconds));
            samples[1].push(roce(&network, args.rounds.seconds, args.mtu));
            for one in boxes {
                one.end();
            }
        }
    }
    println!(
        "MTU {}, medians of {} rounds, Gbit/s (ratio to AF_PACKET, least to most)",
        args.mtu, args.rounds.rounds
    );
    let mut all = Vec::new();
    for ((name, ..), own) in KINDS.iter().zip(&samples) {
        print!("{name:<16}");
        for (what, own, peer) in
            [("TCP", &own[0], &samples[0][0]), ("RoCE", &own[1], &samples[0][1])]
        {
            let ratios: Vec<f64> = own.iter().zip(peer).map(|(one, peer)| one / peer).collect();
            let (least, most) = ratios.iter().fold((f64::MAX, 0.0_f64), |(least, most), ratio| {
                (least.min(*ratio), most.max(*ratio))
            });
            let (rate, ratio) = (samples::median(own), samples::median(&ratios));
            print!("  {what} {rate:>7.3} ({ratio:.2}, {least:.2} to {most:.2})");
        }
        println!();
        all.push(json!({ "ports": name, "tcp_gbits": own[0], "roce_gbits": own[1] }));
    }
    args.keep.write("box_ports.json", &json!({ "mtu": args.mtu, "kinds": all }));
}

/// What iperf3 gets across, in Gbit/s.
fn tcp(network: &Network, seconds: u32) -> f64 {
    let start = |host: &Namespace, arguments: &str| {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &host.name, "iperf3"]).args(arguments.split_whitespace());
        Program::start(&mut command)
    };
    let server = start(&network.right, "-s -1");
    std::thread::sleep(Duration::from_millis(500));
    let client = start(&network.left, &format!("-c {RIGHT} -t {seconds} -O 1 -J")).succeed(LIMIT);
    server.succeed(LIMIT);
    let report: Value = serde_json::from_str(&client.stdout).expect("JSON");
    report["end"]["sum_received"]["bits_per_second"].as_f64().expect("a rate") / 1e9
}

/// What ib_write_bw gets across between our RNICs, in Gbit/s.
fn roce(network: &Network, seconds: u32, mtu: u32) -> f64 {
    let mtu = if mtu > 4200 { 4096 } else { 1024 };
    let line = format!("ib_write_bw -s 65536 -m {mtu} -D {seconds} --report_gbits");
    let both = network.begin(&line);
    let client = both.client.succeed(LIMIT);
    both.server.succeed(LIMIT);
    figures(&client.stdout)[BANDWIDTH]
}
