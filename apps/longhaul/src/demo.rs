//! `longhaul demo`: Debian's ib_write_bw over 0, 10, 100 and 1000 km, without and with accelerators.

mod cell;
mod perftest;
mod plot;
mod results;

use crate::lab::{Accelerate, HostName, Lab, LabName, Lifetime, Spec};
use crate::problem::Problem;
use crate::quantity::{Distance, Size};
pub use perftest::die_with_parent;

use cell::Cell;
use longhaul_units::BitRate;
use results::{Provenance, Results};
use std::io::{IsTerminal, Write};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Instant;

const EXAMPLES: &str = "\
Examples:
  longhaul demo                  all distances and sizes, about five minutes
  longhaul demo --quick          512 B and 64 KiB at 1000 km
  longhaul demo --out /tmp/demo  where results.json, throughput.svg and packets.pcap go";

#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// 512 B and 64 KiB at 1000 km only
    #[arg(long)]
    quick: bool,
    /// Directory for results.json, throughput.svg and packets.pcap
    #[arg(long, default_value = "out/demo")]
    out: PathBuf,
    /// Rate of the hosts' ports and of the fibre
    #[arg(long, default_value = "10G")]
    rate: BitRate,
    /// Seconds that each run measures; one more on either side is not counted
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u32).range(1..=60))]
    seconds: u32,
    /// Seed of everything random
    #[arg(long, default_value_t = 1)]
    seed: u64,
}

pub fn run(args: &Args) -> Result<ExitCode, Problem> {
    std::fs::create_dir_all(&args.out).map_err(|e| Problem::io("create", &args.out, &e))?;
    let cells = if args.quick { cell::quick() } else { cell::all() };
    let started = Instant::now();
    let mut results = Results::new(Provenance::gather(args.rate, args.seed));
    let mut progress = Progress::new(cells.len());
    let mut running: Option<(Distance, bool, Lab)> = None;
    for cell in cells {
        let same_lab =
            running.as_ref().is_some_and(|(d, a, _)| (*d, *a) == (cell.distance, cell.accelerated));
        if !same_lab {
            // Stops the one before, whose name the next one takes.
            drop(running.take());
            running = Some((cell.distance, cell.accelerated, start_lab(args, &cell, &results)?));
        }
        let Some((_, _, lab)) = &running else { unreachable!("started above") };
        progress.step(&cell);
        let run = perftest::measure(lab, &cell, args.seconds)?;
        results.runs.push(run);
    }
    drop(running);
    progress.done();

    print!("{}", results.table());
    results.write(&args.out.join("results.json"))?;
    plot::write(&results, args.rate, &args.out.join("throughput.svg"))?;
    println!(
        "\n{:.0} s. Wrote results.json, throughput.svg and packets.pcap to {}",
        started.elapsed().as_secs_f64(),
        args.out.display()
    );
    Ok(ExitCode::SUCCESS)
}

/// A lab for `cell`. The first accelerated one over the longest fibre records its packets.
fn start_lab(args: &Args, cell: &Cell, results: &Results) -> Result<Lab, Problem> {
    let longest = cell.distance == Distance::from_km(1000);
    let first = !results.runs.iter().any(|r| r.accelerated && r.distance_km == cell.distance.km());
    let record = longest && cell.accelerated && first;
    let name: LabName = format!("demo-{}", std::process::id()).parse().map_err(Problem::plain)?;
    let spec = Spec {
        name,
        distance: cell.distance,
        rate: args.rate,
        accelerate: if cell.accelerated { Accelerate::Both } else { Accelerate::None },
        loss: 0.0,
        queue: Size::from_bytes(16 << 20),
        memory: Size::from_bytes(4 << 30),
        seed: args.seed,
        pcap: record.then(|| args.out.join("packets.pcap")),
        pcap_frames: 1000,
    };
    Lab::start(&spec, Lifetime::OfParent)
}

/// One line that says how far the work is.
struct Progress {
    total: usize,
    step: usize,
    terminal: bool,
}

impl Progress {
    fn new(total: usize) -> Self {
        Progress { total, step: 0, terminal: std::io::stderr().is_terminal() }
    }

    fn step(&mut self, cell: &Cell) {
        self.step += 1;
        let line = format!("[{:2}/{}] ib_write_bw {cell}", self.step, self.total);
        if self.terminal {
            eprint!("\r\x1b[K{line}");
            // A progress line that cannot be written is no reason to stop.
            let _ = std::io::stderr().flush();
        } else {
            eprintln!("{line}");
        }
    }

    fn done(&self) {
        if self.terminal {
            eprint!("\r\x1b[K");
        }
    }
}

/// The host that measures and the one that it writes to.
const CLIENT: HostName = HostName::A;
const SERVER: HostName = HostName::B;
