//! The kernel's rxe and our device in one emulated guest: perftest on both, round by round.
//!
//! `cargo build --release -p longhaul -p longhaul-preload && cargo bench -p longhaul-checks --bench against_rxe`
//!
//! Everything is emulated, instruction by instruction: only the ratios mean something, and they too depend on what
//! the emulator is good at.

use clap::Parser;
use longhaul_checks::guest::against_rxe::{self, Figure, Stack};
use longhaul_checks::guest::{Guest, Kernel, skip_loudly};
use longhaul_checks::samples::{Keep, Rounds};
use longhaul_checks::{Turn, samples};
use serde_json::{Value, json};

/// What ours is to be at least, as a multiple of rxe.
const GOAL: f64 = 2.0;

#[derive(Parser)]
struct Args {
    #[command(flatten)]
    rounds: Rounds,
    /// More words for the guest's kernel, such as mitigations=off
    #[arg(long)]
    kernel_argument: Vec<String>,
    /// QEMU's processor model; without carry-less multiplication by default, whose emulation slows our ICRC alone
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

    /// Round by round, how many times as good `ours` is; the median.
    fn ratio(&self, ours: &Series) -> f64 {
        let pairs = ours.samples.iter().zip(&self.samples);
        let samples = pairs.map(|(&ours, &theirs)| self.figure.ratio(ours, theirs)).collect();
        Series { samples, ..*self }.median()
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
                args.rounds.seconds,
            ));
        }
    }
    report(&all);
    let result = json!({
        "provenance": {
            "guest_kernel": kernel.release(), "kernel_arguments": args.kernel_argument,
            "cpu": args.cpu,
            "longhaul": env!("CARGO_PKG_VERSION"), "rounds": args.rounds.rounds, "seconds": args.rounds.seconds,
        },
        "goal": GOAL,
        "series": all.iter().map(|series| to_json(series, ours(&all, series.figure))).collect::<Vec<_>>(),
    });
    args.keep.write("against_rxe.json", &result);
}

fn ours(all: &[Series], figure: Figure) -> &Series {
    let found = all.iter().find(|series| series.figure == figure && series.stack == Stack::Longhaul);
    found.expect("every figure is measured on every stack")
}

fn report(all: &[Series]) {
    println!("{:<28} {:<16} {:>10} {:<7} {:>12}", "in one guest, emulated", "", "median", "", "ours is");
    for series in all {
        let Series { figure, stack, .. } = series;
        let ratio = match stack {
            Stack::Longhaul => format!("goal {GOAL}"),
            _ => format!("{:.2} times", series.ratio(ours(all, *figure))),
        };
        let (name, unit) = (figure.name(), figure.unit());
        println!("{name:<28} {:<16} {:>10.2} {unit:<7} {ratio:>12}", stack.name(), series.median());
    }
}

fn to_json(series: &Series, ours: &Series) -> Value {
    json!({
        "figure": series.figure.name(), "unit": series.figure.unit(), "stack": series.stack.name(),
        "median": series.median(), "samples": series.samples, "ours_is_times": series.ratio(ours),
    })
}
