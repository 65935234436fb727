//! The kernel's rxe and our device in one emulated guest: perftest on both, round by round.
//!
//! `cargo build --release -p longhaul -p longhaul-preload && cargo bench -p longhaul-checks --bench
//! against_rxe`
//!
//! Everything is emulated, instruction by instruction: only the ratios mean something, and they too
//! depend on what the emulator is good at.

use clap::Parser;
use longhaul_checks::guest::against_rxe::{self, Extent, Figure, Stack};
use longhaul_checks::guest::{Guest, Kernel, skip_loudly};
use longhaul_checks::samples::{Keep, Rounds};
use longhaul_checks::{Turn, samples};
use serde_json::{Value, json};

#[derive(Parser)]
struct Args {
    #[command(flatten)]
    rounds: Rounds,
    /// More words for the guest's kernel, such as mitigations=off
    #[arg(long)]
    kernel_argument: Vec<String>,
    /// QEMU's processor model; without carry-less multiplication by default, whose emulation slows
    /// our ICRC alone
    #[arg(long, default_value = against_rxe::CPU)]
    cpu: String,
    #[command(flatten)]
    keep: Keep,
}

/// The samples of one figure on one stack.
struct Series {
    figure: Figure,
    stack: Stack,
    samples: Vec<f64>,
}

impl Series {
    fn median(&self) -> f64 {
        samples::median(&self.samples)
    }

    /// Round by round, how many times as good `ours` is.
    fn ratios(&self, ours: &Series) -> Vec<f64> {
        let pairs = ours.samples.iter().zip(&self.samples);
        pairs.map(|(&ours, &theirs)| self.figure.ratio(ours, theirs)).collect()
    }
}

fn main() {
    let args = Args::parse();
    let _turn = Turn::take();
    let kernel = match Kernel::newest() {
        Ok(kernel) => kernel,
        Err(reason) => return skip_loudly("the comparison with rxe", &reason),
    };
    let mut config = against_rxe::config();
    config.kernel_arguments.extend(args.kernel_argument.iter().cloned());
    config.cpu.clone_from(&args.cpu);
    let guest = Guest::boot_kernel(&kernel, &config);
    against_rxe::prepare(&guest);

    let pairs = Figure::ALL.iter().flat_map(|&figure| Stack::ALL.map(|stack| (figure, stack)));
    let mut all: Vec<Series> =
        pairs.map(|(figure, stack)| Series { figure, stack, samples: Vec::new() }).collect();
    for round in 1..=args.rounds.rounds {
        eprintln!("round {round} of {}", args.rounds.rounds);
        for series in &mut all {
            series.samples.push(against_rxe::measure(
                &guest,
                series.stack,
                series.figure,
                Extent::Seconds(args.rounds.seconds),
            ));
        }
    }
    report(&all);
    let result = json!({
        "provenance": {
            "guest_kernel": kernel.release(), "kernel_arguments": args.kernel_argument,
            "cpu": args.cpu,
            "longhaul": env!("CARGO_PKG_VERSION"),
            "rounds": args.rounds.rounds, "seconds": args.rounds.seconds,
        },
        "series": all.iter().map(|series| to_json(series, peer(&all, series))).collect::<Vec<_>>(),
    });
    args.keep.write("against_rxe.json", &result);
}

/// Of the same figure, what `series` is held against.
fn peer<'a>(all: &'a [Series], series: &Series) -> Option<&'a Series> {
    let stack = series.stack.peer()?;
    all.iter().find(|other| other.figure == series.figure && other.stack == stack)
}

fn report(all: &[Series]) {
    println!(
        "{:<28} {:<32} {:>10} {:<7} {:>8} {:>8}  times rxe on the same medium",
        "in one guest, emulated", "", "median", "", "least", "most"
    );
    for series in all {
        let Series { figure, stack, samples, .. } = series;
        let ratio = peer(all, series).map_or(String::new(), |peer| {
            let ratios = peer.ratios(series);
            let (least, most) = spread(&ratios);
            format!("{:.2} ({least:.2} to {most:.2})", samples::median(&ratios))
        });
        let ((name, unit), (least, most)) = ((figure.name(), figure.unit()), spread(samples));
        let median = series.median();
        println!(
            "{name:<28} {:<32} {median:>10.2} {unit:<7} {least:>8.2} {most:>8.2}  {ratio}",
            stack.name()
        );
    }
}

fn spread(samples: &[f64]) -> (f64, f64) {
    samples.iter().fold((f64::INFINITY, f64::NEG_INFINITY), |(least, most), sample| {
        (least.min(*sample), most.max(*sample))
    })
}

fn to_json(series: &Series, peer: Option<&Series>) -> Value {
    json!({
        "figure": series.figure.name(), "unit": series.figure.unit(), "stack": series.stack.name(),
        "median": series.median(), "samples": series.samples,
        "times_rxe_on_the_same_medium": peer.map(|peer| peer.ratios(series)),
    })
}
