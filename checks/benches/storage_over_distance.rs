//! NVMe-oF and NFS between two emulated kernels with rxe through our boxes: random reads and writes
//! of 4 KiB by depth, and of 1 MiB over a longer fibre, with and without accelerators, and what
//! bounds each, by the doctor; with `--writes`, the round trips of a write by its size, with and
//! without read-ahead.
//!
//! `cargo bench -p longhaul-checks --bench storage_over_distance -- --writes`
//!
//! Emulated kernels take a millisecond or two for an operation that hardware does in microseconds:
//! ratios count.

use clap::Parser;
use longhaul_checks::guest::skip_loudly;
use longhaul_checks::interop::storage::over_distance::{Measured, Storage, Use, measure, table};
use longhaul_checks::interop::storage::{self, write_and_compare};
use longhaul_checks::interop::{Between, BoxKind, RxeHosts};
use longhaul_checks::samples::{Keep, Rounds};
use longhaul_checks::{Turn, longhaul};
use serde_json::json;
use std::fs;
use std::time::Duration;

const LIMIT: Duration = Duration::from_secs(120);
/// What is read later is written before.
const WRITTEN_MIB: u32 = 16;

#[derive(Parser)]
struct Args {
    #[command(flatten)]
    rounds: Rounds,
    /// Length of the fibre that is held against none
    #[arg(long, default_value_t = 100)]
    km: u32,
    /// The same for 1 MiB at a time
    #[arg(long, default_value_t = 5000)]
    large_km: u32,
    /// Those alone
    #[arg(long)]
    large: bool,
    /// Instead: writes of 4 KiB to 1 MiB, one at a time, with and without read-ahead, over this
    /// many km each
    #[arg(long, value_name = "KM", value_delimiter = ',', num_args = 0..)]
    #[arg(default_missing_value = "0,10,100,1000")]
    writes: Option<Vec<u32>>,
    #[command(flatten)]
    keep: Keep,
}

fn main() {
    let args = Args::parse();
    let _turn = Turn::take();
    let hosts = match RxeHosts::boot("stb", |config| storage::server(storage::client(config))) {
        Ok(hosts) => hosts,
        Err(reason) => return skip_loudly("storage over rxe through our boxes", &reason),
    };
    let captures = longhaul().with_file_name("interop-storage");
    fs::create_dir_all(&captures).unwrap_or_else(|e| panic!("{}: {e}", captures.display()));
    for storage in Storage::BOTH {
        let _boxes = hosts.join(Between::plain(0), None);
        storage.serve(&hosts);
        storage
            .lend(&hosts, |path| write_and_compare(&hosts.guests()[0], path, WRITTEN_MIB, LIMIT));
    }
    let cells = match &args.writes {
        Some(distances) => writes(distances),
        None => cells(&args),
    };
    let mut all: Vec<Vec<Measured>> = vec![Vec::new(); cells.len()];
    for round in 1..=args.rounds.rounds {
        eprintln!("round {round} of {}", args.rounds.rounds);
        for (&(what, between), measured) in cells.iter().zip(&mut all) {
            measured.push(measure(&hosts, what, between, args.rounds.seconds, &captures));
        }
    }
    let middle: Vec<Measured> = all.iter().map(|rounds| middle(rounds)).collect();
    println!("{}", table(&middle));
    let result = json!({
        "seconds": args.rounds.seconds, "rounds": args.rounds.rounds, "median": middle, "all": all,
    });
    args.keep.write("storage_over_distance.json", &result);
}

/// What is measured, over which fibres.
fn cells(args: &Args) -> Vec<(Use, Between)> {
    let over = |what: Use, km: u32| {
        [0, km].into_iter().flat_map(move |km| {
            [Between::plain(km), Between::accelerated(km)].map(|between| (what, between))
        })
    };
    let small = Use::small().filter(|_| !args.large).flat_map(|what| over(what, args.km));
    small.chain(Use::large().flat_map(|what| over(what, args.large_km))).collect()
}

/// Writes one at a time, without boxes, with whole ones, and with read-ahead.
fn writes(distances: &[u32]) -> Vec<(Use, Between)> {
    let over = |km: u32| {
        let boxes = [BoxKind::Whole, BoxKind::ReadAhead].map(|kind| Between::boxes(km, kind));
        std::iter::once(Between::plain(km)).chain(boxes)
    };
    let cells =
        |what: Use| distances.iter().flat_map(move |km| over(*km).map(move |it| (what, it)));
    Use::writes().flat_map(cells).collect()
}

/// The round whose number of operations is the median.
fn middle(rounds: &[Measured]) -> Measured {
    let mut sorted: Vec<&Measured> = rounds.iter().collect();
    sorted.sort_by(|a, b| a.figures.iops.total_cmp(&b.figures.iops));
    sorted[sorted.len() / 2].clone()
}
