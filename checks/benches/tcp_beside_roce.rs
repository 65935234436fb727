//! What RoCE and TCP get of one fibre, alone and beside each other, with and without accelerators.
//!
//! `cargo bench -p longhaul-checks --bench tcp_beside_roce`
//!
//! ib_write_bw and iperf3 between two emulated kernels with rxe. The fibre is slower than either
//! could be.

use clap::Parser;
use longhaul_checks::guest::skip_loudly;
use longhaul_checks::interop::{Between, RxeHosts};
use longhaul_checks::perftest::{BANDWIDTH, figures};
use longhaul_checks::samples::{Keep, Rounds};
use longhaul_checks::{Turn, require, samples};
use serde_json::{Value, json};
use std::time::Duration;

const MBITS: u32 = 100;
const LIMIT: Duration = Duration::from_secs(120);

#[derive(Parser)]
struct Args {
    #[command(flatten)]
    rounds: Rounds,
    #[command(flatten)]
    keep: Keep,
}

/// Which of the two run.
#[derive(Clone, Copy, PartialEq)]
enum Running {
    Roce,
    Tcp,
    Both,
}

fn main() {
    let args = Args::parse();
    require("iperf3", "iperf3");
    let _turn = Turn::take();
    let hosts = match RxeHosts::boot("tcp", |config| config.programs(&[("iperf3", "iperf3")])) {
        Ok(hosts) => hosts,
        Err(reason) => return skip_loudly("TCP beside RoCE", &reason),
    };
    let mut ways = Vec::new();
    for km in [0, 100, 1000] {
        for (name, between) in
            [("plain", Between::plain(km)), ("accelerators", Between::accelerated(km))]
        {
            ways.push((format!("{km} km, {name}"), Between { mbits: MBITS, ..between }));
        }
    }
    println!("fibre of {MBITS} Mbit/s, medians of {} rounds, Mbit/s", args.rounds.rounds);
    println!(
        "{:<24}{:>12}{:>12}{:>16}{:>16}",
        "", "RoCE alone", "TCP alone", "RoCE beside", "TCP beside"
    );
    let mut all = Vec::new();
    for (name, between) in ways {
        let mut samples: [Vec<f64>; 4] = Default::default();
        for _ in 0..args.rounds.rounds {
            for running in [Running::Roce, Running::Tcp, Running::Both] {
                // What TCP has left in queues is not to be in the way of the next.
                let boxes = hosts.join(between, None);
                let [roce, tcp] = measure(&hosts, running, args.rounds.seconds);
                boxes.stop();
                let at = usize::from(running == Running::Both) * 2;
                samples[at].extend(roce);
                samples[at + 1].extend(tcp);
            }
        }
        let medians = samples.each_ref().map(|samples| samples::median(samples));
        println!(
            "{name:<24}{:>12.1}{:>12.1}{:>16.1}{:>16.1}",
            medians[0], medians[1], medians[2], medians[3]
        );
        all.push(json!({
            "way": name, "roce_alone": samples[0], "tcp_alone": samples[1],
            "roce_beside": samples[2], "tcp_beside": samples[3],
        }));
    }
    args.keep.write("tcp_beside_roce.json", &json!({ "mbits": MBITS, "ways": all }));
}

/// What RoCE and TCP reach, in Mbit/s; 0 for a program that failed.
fn measure(hosts: &RxeHosts, running: Running, seconds: u32) -> [Option<f64>; 2] {
    let [first, second] = hosts.guests();
    // RoCE begins before TCP does and ends after it; its first and last two seconds do not count.
    let line = format!("ib_write_bw -s 65536 -D {} -f 2 -m 4096 -u 18 --report_gbits", seconds + 4);
    let roce = (running != Running::Tcp).then(|| hosts.begin(&line, LIMIT));
    let tcp = (running != Running::Roce).then(|| {
        let server = second.spawn("iperf3 -s -1", LIMIT);
        // A client that finds no server reports so, and that is no failure to it. State 0A:
        // listening.
        second.succeed(
            "until grep -qh ':1451 .* 0A ' /proc/net/tcp /proc/net/tcp6; do sleep 0.1; done",
            LIMIT,
        );
        let client = format!("iperf3 -c {} -t {seconds} -O 1 -J", hosts.address(1));
        let done = first.succeed(&client, LIMIT);
        server.succeed();
        let report: Value =
            serde_json::from_str(&done.stdout).unwrap_or_else(|e| panic!("{e}: {done}"));
        let rate = report.pointer("/end/sum_received/bits_per_second").and_then(Value::as_f64);
        rate.unwrap_or_else(|| panic!("no rate: {done}")) / 1e6
    });
    let roce = roce.map(|[client, server]| {
        let client = client.finish();
        let rate = client.status.success().then(|| figures(&client.stdout)[BANDWIDTH] * 1e3);
        // A client that has failed leaves its server waiting.
        if rate.is_some() {
            server.finish()
        } else {
            server.finish_now()
        };
        rate.unwrap_or_default()
    });
    [roce, tcp]
}
