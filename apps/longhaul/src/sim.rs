//! `longhaul sim`: a scenario file in virtual time.

mod capture;
mod progress;
mod results;
mod scenario;
pub mod text;

pub use progress::{Interrupt, Progress, time_left};
pub use results::{point, record};
pub use scenario::{Opened, open};

use crate::output;
use crate::problem::Problem;
use capture::{Captures, Point};
use longhaul_bench::{ResultWriter, Started};
use longhaul_boxes::number::within;
use longhaul_sim::file::{EXAMPLE, Loaded};
use longhaul_sim::{Outcome, Simulation};
use serde::Serialize;
use std::path::PathBuf;
use std::process::ExitCode;

const EXAMPLES: &str = "\
Examples:
  longhaul sim --example > mine.toml
  longhaul sim mine.toml
  longhaul sim mine.toml --set path.distance=1000km --set flow.size=4K
  longhaul sim mine.toml --pcap wan=wan.pcap && longhaul doctor wan.pcap
  longhaul sim mine.toml --json | jq '.outcome.flows[] | {name, goodput_bps}'

The same file and seed give byte-identical output, on any number of threads. Keys and worked
examples: docs/simulator.md. Exit code: 0, all flows succeeded; 1, a flow failed or did not end, or
the simulation found a defect; 2, the file is invalid.";

/// Command line of `longhaul sim`.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// A scenario file
    #[arg(required_unless_present = "example")]
    file: Option<PathBuf>,
    /// Print a commented example of a scenario file
    #[arg(long, exclusive = true)]
    example: bool,
    /// Set a key of the file: TABLE.KEY in all tables of that kind, TABLE.NAME.KEY in one
    #[arg(long, value_name = "KEY=VALUE")]
    set: Vec<String>,
    /// Seed of all random decisions, instead of the file's
    #[arg(long, value_name = "N")]
    seed: Option<u64>,
    /// Number of threads; more than one help if long links divide the network
    #[arg(
        long,
        value_name = "N",
        default_value_t = 1,
        value_parser = within::<u16>(1..=1024)
    )]
    threads: u16,
    /// Record the frames at one end of a link: its first, or the one at STATION
    #[arg(long, value_name = "LINK[@STATION]=FILE")]
    pcap: Vec<String>,
    /// Record the frames at both ends of every link, as LINK@STATION.pcap in this directory
    #[arg(long, value_name = "DIR")]
    pcap_dir: Option<PathBuf>,
    /// Recorded bytes per frame
    #[arg(
        long,
        value_name = "BYTES",
        default_value_t = 128,
        value_parser = within::<u32>(14..=65_535)
    )]
    snap_len: u32,
    /// Print one JSON object instead of text
    #[arg(long)]
    json: bool,
    /// Append the results to this file, as one JSON object per line
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
}

/// Exit code for an invalid file.
pub const USAGE: u8 = 2;
/// Exit code after Ctrl-C.
pub const INTERRUPTED: u8 = 130;

/// Why a run failed.
pub enum Failure {
    /// The scenario, or a value on the command line.
    Value(Problem),
    /// Anything else.
    Other(Problem),
}

impl From<Problem> for Failure {
    fn from(problem: Problem) -> Self {
        Failure::Other(problem)
    }
}

impl Failure {
    /// An invalid value.
    pub fn value(cause: impl std::fmt::Display) -> Self {
        Failure::Value(Problem::plain(cause.to_string()))
    }

    /// Prints the error, as `longhaul COMMAND: …`.
    pub fn report(&self, command: &str) -> ExitCode {
        let (problem, code) = match self {
            Failure::Value(problem) => (problem, ExitCode::from(USAGE)),
            Failure::Other(problem) => (problem, ExitCode::FAILURE),
        };
        eprintln!("longhaul {command}: {problem}");
        code
    }
}

/// Output of `--json`, independent of the machine.
#[derive(Serialize)]
struct Output<'a> {
    /// Version of this layout.
    schema: &'static str,
    experiment: &'a str,
    seed: u64,
    outcome: &'a Outcome,
}

/// Runs a scenario, and prints the outcome.
pub fn run(args: &Args) -> ExitCode {
    simulate(args).unwrap_or_else(|failure| failure.report("sim"))
}

fn simulate(args: &Args) -> Result<ExitCode, Failure> {
    let Some(path) = &args.file else {
        output::print(EXAMPLE)?;
        return Ok(ExitCode::SUCCESS);
    };
    let mut opened = open(path, &args.set)?;
    if let Some(seed) = args.seed {
        opened.seed(seed)?;
    }
    let Loaded { scenario, links } = opened.load()?;
    let points = Point::all(&args.pcap, args.pcap_dir.as_deref(), &scenario, &links)?;
    // Check the scenario before creating files.
    Simulation::new(scenario.clone(), |_, _| None)
        .map_err(|e| Failure::value(in_file(path, &e)))?;
    for warning in scenario.warnings() {
        eprintln!("longhaul sim: warning: {warning}");
    }
    if let Some(directory) = &args.pcap_dir {
        std::fs::create_dir_all(directory).map_err(|e| Problem::io("create", directory, &e))?;
    }
    let mut captures = Captures::create(points, args.snap_len)?;
    let mut writer = match &args.out {
        Some(out) => Some(ResultWriter::resume(out).map_err(|e| Problem::plain(e.to_string()))?.0),
        None => None,
    };
    let simulation = Simulation::new(scenario.clone(), |cable, end| captures.recorders(cable, end))
        .map_err(|e| Failure::value(in_file(path, &e)))?;
    let interrupt = Interrupt::listen()?;
    let mut progress = Progress::new();
    let started = Started::now();
    let outcome = simulation.run(args.threads.into(), |at| {
        progress.of_run(&scenario, &at);
        !interrupt.came()
    });
    progress.done();
    if args.json {
        print_json(&opened.experiment, scenario.seed, &outcome)?;
    } else {
        let text = text::render(&opened.experiment, &scenario, &links, &outcome, output::columns());
        output::print(&text)?;
    }
    let is_whole = outcome.unfinished.is_none();
    if let Some(writer) = &mut writer {
        if is_whole {
            let provenance = started.provenance(Some(scenario.seed), args.threads.into());
            let record =
                record(&opened.experiment, &opened.parameters, &scenario, &outcome, provenance);
            writer.record(&record).map_err(|e| Problem::plain(e.to_string()))?;
        } else {
            eprintln!("longhaul sim: the run did not end; no results were added");
        }
    }
    captures.finish()?;
    if interrupt.came() {
        return Ok(ExitCode::from(INTERRUPTED));
    }
    let is_well = is_whole
        && outcome.violations.is_empty()
        && outcome.flows.iter().all(|flow| flow.failure.is_none());
    Ok(if is_well { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn print_json(experiment: &str, seed: u64, outcome: &Outcome) -> Result<(), Problem> {
    let output = Output { schema: "longhaul-sim/1", experiment, seed, outcome };
    let json = serde_json::to_string_pretty(&output);
    output::print(&(json.map_err(|e| Problem::plain(format!("cannot write JSON: {e}")))? + "\n"))
}

fn in_file(path: &std::path::Path, error: &dyn std::fmt::Display) -> String {
    format!("{}: {error}", path.display())
}
