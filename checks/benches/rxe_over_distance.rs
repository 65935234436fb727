//! Goodput between two emulated kernels with rxe through our boxes, by distance, message size and
//! accelerators.
//!
//! `cargo bench -p longhaul-checks --bench rxe_over_distance`
//!
//! Emulated kernels are slow: ratios count. What distance costs without accelerators shows where
//! rxe's window of 129 packets is less than the guests could send in a round trip.

use clap::Parser;
use longhaul_checks::guest::skip_loudly;
use longhaul_checks::interop::{Between, RxeHosts};
use longhaul_checks::perftest::{BANDWIDTH, complaint, figures};
use longhaul_checks::samples::{Keep, Rounds};
use longhaul_checks::{Turn, samples};
use serde_json::json;
use std::time::Duration;

const SIZES: [u32; 3] = [512, 4096, 65536];
const LIMIT: Duration = Duration::from_secs(90);

#[derive(Parser)]
struct Args {
    #[command(flatten)]
    rounds: Rounds,
    #[command(flatten)]
    keep: Keep,
}

fn main() {
    let args = Args::parse();
    let _turn = Turn::take();
    let hosts = match RxeHosts::boot("bch", |config| config) {
        Ok(hosts) => hosts,
        Err(reason) => return skip_loudly("rxe through our boxes", &reason),
    };
    let near_only = Between { far: false, ..Between::accelerated(1000) };
    let ways = [
        ("0 km, accelerators", Between::accelerated(0)),
        ("100 km, accelerators", Between::accelerated(100)),
        ("1000 km, accelerators", Between::accelerated(1000)),
        ("1000 km, near one alone", near_only),
        ("0 km, plain", Between::plain(0)),
        ("1000 km, plain", Between::plain(1000)),
        ("10000 km, accelerators", Between::accelerated(10_000)),
        ("10000 km, plain", Between::plain(10_000)),
    ];
    let mut all = vec![SIZES.map(|_| Vec::new()); ways.len()];
    for round in 1..=args.rounds.rounds {
        eprintln!("round {round} of {}", args.rounds.rounds);
        for ((_, between), rows) in ways.iter().zip(&mut all) {
            let _boxes = hosts.join(*between, None);
            for (bytes, samples) in SIZES.into_iter().zip(rows) {
                samples.push(gbits(&hosts, bytes, args.rounds.seconds));
            }
        }
    }
    println!(
        "{:<26}{:>10}{:>10}{:>10}   Gbit/s, and parts of 0 km with accelerators",
        "ib_write_bw", "512 B", "4 KiB", "64 KiB"
    );
    let medians: Vec<[f64; 3]> =
        all.iter().map(|rows| rows.each_ref().map(|samples| samples::median(samples))).collect();
    for ((name, _), row) in ways.iter().zip(&medians) {
        let parts: Vec<String> = row
            .iter()
            .zip(&medians[0])
            .map(|(value, whole)| format!("{:.2}", value / whole))
            .collect();
        println!(
            "{name:<26}{:>10.3}{:>10.3}{:>10.3}   {}",
            row[0],
            row[1],
            row[2],
            parts.join(" ")
        );
    }
    let ways: Vec<_> = ways
        .iter()
        .zip(&all)
        .map(|((name, _), rows)| json!({ "way": name, "message_bytes": SIZES, "gbits": rows }))
        .collect();
    args.keep
        .write("rxe_over_distance.json", &json!({ "seconds": args.rounds.seconds, "ways": ways }));
}

/// What ib_write_bw reaches.
fn gbits(hosts: &RxeHosts, bytes: u32, seconds: u32) -> f64 {
    // The first and last second do not count; the timeout is above the longest round trip.
    let line =
        format!("ib_write_bw -s {bytes} -D {} -f 1 -m 4096 -u 18 --report_gbits", seconds + 2);
    let client = hosts.perftest(&line, LIMIT).unwrap_or_else(|text| panic!("{text}"));
    assert_eq!(complaint(&client.stdout), None, "{client}");
    figures(&client.stdout)[BANDWIDTH]
}
