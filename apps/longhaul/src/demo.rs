//! `longhaul demo`: RDMA without and with accelerators, and TCP, over the same fibre.

mod cell;
mod iperf;
mod perftest;
mod plot;
mod program;
mod results;

use crate::output;
use crate::problem::Problem;
use longhaul_bench::Started;
use longhaul_boxes::figures;
use longhaul_boxes::number::within;
use longhaul_boxes::quantity::Distance;
use longhaul_campaign::{environment, free_tcp_port};
use longhaul_lab::{Accelerate, HostName, Lab, LabName, Lifetime, Spec};

use cell::{Cell, Fibre, Transport};
use longhaul_units::BitRate;
use results::{Measured, Results, Run};
use std::io::{IsTerminal, Write};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Instant;

/// Time of a run with its lab beyond the measured seconds, on an idle machine.
const CELL_OVERHEAD_S: u64 = 2;

const EXAMPLES: &str = "\
Examples:
  longhaul demo                  all paths and message sizes, under four minutes
  longhaul demo --quick          1000 km, with and without loss, at 64 KiB
  longhaul demo --out /tmp/demo  directory of results.jsonl, throughput.svg and packets.pcap

RDMA is ib_write_bw, plain and through two accelerators; where the fibre loses frames, these use the
transport. TCP is iperf3 between the hosts' kernels, without accelerators.";

#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// Run only 64 KiB and TCP at 1000 km, with and without loss
    #[arg(long)]
    quick: bool,
    /// Directory for results.jsonl, throughput.svg and packets.pcap
    #[arg(long, default_value = "out/demo")]
    out: PathBuf,
    /// Rate of the hosts' ports and of the fibre
    #[arg(long, default_value = "10G")]
    rate: BitRate,
    /// Measured seconds per run; one more before, and for RDMA one after, are not counted
    #[arg(long, default_value_t = 1, value_parser = within::<u32>(1..=60))]
    seconds: u32,
    /// Seed of all random values
    #[arg(long, default_value_t = 1)]
    seed: u64,
}

pub fn run(args: &Args) -> Result<ExitCode, Problem> {
    std::fs::create_dir_all(&args.out).map_err(|e| Problem::io("create", &args.out, &e))?;
    let cells = if args.quick { cell::quick() } else { cell::all() };
    let started = Instant::now();
    let programs = environment(&["ib_write_bw", "iperf3"]);
    let mut results = Results::new(args.rate, args.seed, programs);
    let mut writer = Results::create(&args.out.join("results.jsonl"))?;
    let mut progress = Progress::new(cells.len());
    let seconds = cells.len() as u64 * (u64::from(args.seconds) + CELL_OVERHEAD_S);
    progress.report(&format!(
        "{} runs, about {} on an idle machine",
        cells.len(),
        figures::count(seconds.div_ceil(60), "minute")
    ));
    let mut running: Option<RunningLab> = None;
    let mut failed = 0;
    let mut without_tcp = false;
    for cell in cells {
        progress.step(&cell);
        for attempts_left in [1, 0] {
            if running.as_ref().is_none_or(|running| !running.serves(&cell)) {
                // Stop the previous lab, whose name the next one reuses.
                end(running.take(), &progress);
            }
            let running_lab = match &mut running {
                Some(running) => running,
                none => none.insert(RunningLab::start(args, &cell, &results)?),
            };
            let network = running_lab.lab.dir().network()?;
            if let (true, Some(why)) = (cell.transport.is_tcp(), network.missing()) {
                if !std::mem::replace(&mut without_tcp, true) {
                    progress.report(&format!("TCP is left out, hosts have no network: {why}"));
                }
                break;
            }
            let started = Started::now();
            match measure(&running_lab.lab, &cell, args.seconds) {
                Ok(measured) => {
                    results.add(Run::new(&cell, measured), started, &mut writer)?;
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
    plot::write(&results, &args.out.join("throughput.svg"))?;
    output::print(&format!(
        "\n{:.0} s. Wrote results.jsonl, throughput.svg and packets.pcap to {}\n",
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

fn measure(lab: &Lab, cell: &Cell, seconds: u32) -> Result<Measured, Problem> {
    let port = free_tcp_port()
        .map_err(|e| Problem::plain(format!("no TCP port is free on 127.0.0.1: {e}")))?;
    match cell.transport {
        Transport::Rdma { message_bytes, .. } => {
            perftest::measure(lab, message_bytes, seconds, port)
        }
        Transport::Tcp { congestion_control, connections } => {
            iperf::measure(lab, congestion_control, connections, seconds, port)
        }
    }
}

/// A lab, and the cells that it serves.
struct RunningLab {
    path: Fibre,
    accelerated: bool,
    lab: Lab,
}

impl RunningLab {
    /// A lab for `cell`. The first accelerated one over the longest fibre records its packets.
    fn start(args: &Args, cell: &Cell, results: &Results) -> Result<Self, Problem> {
        let (path, accelerated) = (cell.path, cell.transport.is_accelerated());
        let longest = path.distance == Distance::from_km(1000);
        let first = !results.has_accelerated(path.distance);
        let record = longest && accelerated && first;
        let name: LabName = format!("demo-{}", std::process::id()).parse()?;
        let spec = Spec {
            accelerate: match (accelerated, path.loss > 0.0) {
                (false, _) => Accelerate::None,
                (true, false) => Accelerate::Both,
                (true, true) => Accelerate::Transport,
            },
            loss: path.loss,
            seed: args.seed,
            pcap: record.then(|| args.out.join("packets.pcap")),
            ..Spec::of_two(name, path.distance, args.rate)
        };
        Ok(RunningLab { path, accelerated, lab: Lab::start(&spec, Lifetime::OfParent)? })
    }

    fn serves(&self, cell: &Cell) -> bool {
        self.path == cell.path && self.accelerated == cell.transport.is_accelerated()
    }
}

/// Stops a lab, and reports what it logged: the recording may have failed.
fn end(running: Option<RunningLab>, progress: &Progress) {
    if let Some(log) = running.and_then(|running| running.lab.end()) {
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
        let line = format!("[{:2}/{}] {cell}", self.step, self.total);
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
