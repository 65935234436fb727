//! `longhaul demo`: Debian's ib_write_bw over 0, 10, 100 and 1000 km, without and with
//! accelerators.

mod cell;
mod perftest;
mod plot;
mod results;

use crate::output;
use crate::problem::Problem;
use longhaul_boxes::fibre::Ecn;
use longhaul_boxes::figures;
use longhaul_boxes::number::within;
use longhaul_boxes::quantity::{Distance, Size};
use longhaul_lab::{Accelerate, HostName, Lab, LabName, Lifetime, Spec};

use cell::Cell;
use longhaul_units::BitRate;
use results::{Provenance, Results};
use std::io::{IsTerminal, Write};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Instant;

/// Time of a run with its lab, on an idle machine.
const CELL_SECONDS: u64 = 6;

const EXAMPLES: &str = "\
Examples:
  longhaul demo                  all distances and sizes, about three minutes
  longhaul demo --quick          512 B and 64 KiB at 1000 km
  longhaul demo --out /tmp/demo  directory of results.json, throughput.svg and packets.pcap";

#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// Run only 512 B and 64 KiB at 1000 km
    #[arg(long)]
    quick: bool,
    /// Directory for results.json, throughput.svg and packets.pcap
    #[arg(long, default_value = "out/demo")]
    out: PathBuf,
    /// Rate of the hosts' ports and of the fibre
    #[arg(long, default_value = "10G")]
    rate: BitRate,
    /// Measured seconds per run; one more before and after are not counted
    #[arg(long, default_value_t = 2, value_parser = within::<u32>(1..=60))]
    seconds: u32,
    /// Seed of all random values
    #[arg(long, default_value_t = 1)]
    seed: u64,
}

pub fn run(args: &Args) -> Result<ExitCode, Problem> {
    std::fs::create_dir_all(&args.out).map_err(|e| Problem::io("create", &args.out, &e))?;
    let cells = if args.quick { cell::quick() } else { cell::all() };
    let started = Instant::now();
    let mut results = Results::new(Provenance::gather(args.rate, args.seed));
    let mut progress = Progress::new(cells.len());
    progress.report(&format!(
        "{} runs, about {} on an idle machine",
        cells.len(),
        figures::count((cells.len() as u64 * CELL_SECONDS).div_ceil(60), "minute")
    ));
    let results_path = args.out.join("results.json");
    let mut running: Option<(Distance, bool, Lab)> = None;
    let mut failed = 0;
    for cell in cells {
        progress.step(&cell);
        for attempts_left in [1, 0] {
            if running
                .as_ref()
                .is_none_or(|(d, a, _)| (*d, *a) != (cell.distance, cell.accelerated))
            {
                // Stop the previous lab, whose name the next one reuses.
                end(running.take(), &progress);
            }
            let (_, _, lab) = match &mut running {
                Some(running) => running,
                none => none.insert((
                    cell.distance,
                    cell.accelerated,
                    start_lab(args, &cell, &results)?,
                )),
            };
            match perftest::measure(lab, &cell, args.seconds) {
                Ok(run) => {
                    results.runs.push(run);
                    // Keep the results so far even if the rest fails.
                    results.write(&results_path)?;
                    break;
                }
                Err(problem) => {
                    let then = if attempts_left > 0 { "once more" } else { "left out" };
                    progress.report(&format!("{cell}: {problem}\n{cell}: {then}"));
                    failed += usize::from(attempts_left == 0);
                    // The next run must not find remains of this one.
                    end(running.take(), &progress);
                }
            }
        }
    }
    end(running, &progress);
    progress.done();

    output::print(&results.table())?;
    results.write(&results_path)?;
    plot::write(&results, args.rate, &args.out.join("throughput.svg"))?;
    output::print(&format!(
        "\n{:.0} s. Wrote results.json, throughput.svg and packets.pcap to {}\n",
        started.elapsed().as_secs_f64(),
        args.out.display()
    ))?;
    match failed {
        0 => Ok(ExitCode::SUCCESS),
        _ => Err(Problem::plain(format!(
            "{failed} of {} runs failed and are omitted",
            progress.total
        ))),
    }
}

/// A lab for `cell`. The first accelerated one over the longest fibre records its packets.
fn start_lab(args: &Args, cell: &Cell, results: &Results) -> Result<Lab, Problem> {
    let longest = cell.distance == Distance::from_km(1000);
    let first = !results.runs.iter().any(|r| r.accelerated && r.distance_km == cell.distance.km());
    let record = longest && cell.accelerated && first;
    let name: LabName = format!("demo-{}", std::process::id()).parse()?;
    let spec = Spec {
        name,
        hosts: 2,
        distance: cell.distance,
        rate: args.rate,
        accelerate: if cell.accelerated { Accelerate::Both } else { Accelerate::None },
        loss: 0.0,
        loss_burst: None,
        cut_for: None,
        cut_every: None,
        rule: Vec::new(),
        at: Vec::new(),
        queue: Size::from_bytes(16 << 20),
        ecn: Ecn::Off,
        memory: Size::from_bytes(4 << 30),
        seed: args.seed,
        pcap: record.then(|| args.out.join("packets.pcap")),
        pcap_frames: 1000,
    };
    Ok(Lab::start(&spec, Lifetime::OfParent)?)
}

/// Stops a lab, and reports what it logged: the recording may have failed.
fn end(running: Option<(Distance, bool, Lab)>, progress: &Progress) {
    if let Some(log) = running.and_then(|(_, _, lab)| lab.end()) {
        progress.report(&format!("the lab logged: {log}"));
    }
}

/// A progress line.
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
            // Failing to write a progress line is not an error.
            let _ = std::io::stderr().flush();
        } else {
            eprintln!("{line}");
        }
    }

    /// Prints a permanent line above the progress line.
    fn report(&self, text: &str) {
        self.done();
        eprintln!("longhaul: {text}");
    }

    fn done(&self) {
        if self.terminal {
            eprint!("\r\x1b[K");
        }
    }
}

/// The measuring host and its target.
const CLIENT: HostName = HostName::A;
const SERVER: HostName = HostName::B;
