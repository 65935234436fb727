//! `longhaul reproduce`: compares predictions and simulations with published tables, formulas and
//! the project's goals.

mod declared;
mod execute;
#[cfg(test)]
mod pictures;
mod predict;

use crate::output;
use crate::problem::Problem;
use declared::{Declared, Extent, named, names};
use longhaul_bench::{Report, ResultWriter};
use longhaul_boxes::number::within;
use std::io::{self, IsTerminal as _, Write as _};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

const EXAMPLES: &str = "\
Examples:
  longhaul reproduce
  longhaul reproduce iown-c1 ntt-distance --out c1.html
  longhaul reproduce --list
  longhaul reproduce --reduced --check
  longhaul reproduce --check --csv tables --results results.jsonl

An experiment compares the planner's predictions and the simulated protocol code with a document's
figures, a formula, or a goal of this project. Only the first count as reproduced. Cells to which a
constant was fitted are marked and counted separately. The cell of a failed run shows the error, and
counts as missing if a figure was expected. Exit code: 0; 1 with --check if a cell is off or
missing; 2 on an error.";

/// Exit code if a cell is off.
const OFF: u8 = 1;
/// Exit code for other failures.
const FAILED: u8 = 2;
/// Pause between two lines of progress.
const PROGRESS_INTERVAL: Duration = Duration::from_millis(200);

/// Command line of `longhaul reproduce`.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// Experiments, by name or as files like those in labs/experiments [default: all]
    names: Vec<String>,
    /// List the experiments and exit
    #[arg(long)]
    list: bool,
    /// File of the report, one HTML file
    #[arg(long, value_name = "FILE", default_value = "reproduction.html")]
    out: PathBuf,
    /// Write each table as CSV into this directory
    #[arg(long, value_name = "DIR")]
    csv: Option<PathBuf>,
    /// Write all results into this file, one JSON object per line, as 'longhaul report' reads it
    #[arg(long, value_name = "FILE")]
    results: Option<PathBuf>,
    /// Print the report as JSON instead of text
    #[arg(long)]
    json: bool,
    /// Exit with 1 if a cell is off or missing
    #[arg(long)]
    check: bool,
    /// Run a part of each experiment, which takes seconds
    #[arg(long)]
    reduced: bool,
    /// Points that run in parallel [default: the number of processors]
    #[arg(long, value_name = "N")]
    #[arg(value_parser = within::<u16>(1..=1024))]
    jobs: Option<u16>,
}

/// Runs the experiments.
pub fn run(args: &Args) -> ExitCode {
    match reproduce(args) {
        Ok(is_met) if args.check && !is_met => ExitCode::from(OFF),
        Ok(_) => ExitCode::SUCCESS,
        Err(problem) => {
            eprintln!("longhaul reproduce: {problem}");
            ExitCode::from(FAILED)
        }
    }
}

fn reproduce(args: &Args) -> Result<bool, Problem> {
    let wanted: Vec<&str> = if args.names.is_empty() {
        names().collect()
    } else {
        args.names.iter().map(String::as_str).collect()
    };
    let experiments: Vec<Declared> = wanted.into_iter().map(named).collect::<Result<_, _>>()?;
    if args.list {
        for declared in &experiments {
            let experiment = &declared.experiment;
            output::print(&format!("{:16} {}\n", experiment.name, experiment.title))?;
        }
        return Ok(true);
    }
    if args.names.is_empty() && !args.reduced {
        eprintln!(
            "longhaul reproduce: all {} experiments take about ten minutes on two cores; --reduced \
             takes seconds",
            experiments.len()
        );
    }
    let mut writer = args.results.as_deref().map(open).transpose()?;
    let jobs = args.jobs.map_or_else(
        || std::thread::available_parallelism().map_or(1, std::num::NonZero::get),
        usize::from,
    );
    let mut report =
        Report::new("Published results of RDMA over distance, predicted and simulated");
    let extent = if args.reduced { Extent::Reduced } else { Extent::Whole };
    if args.reduced {
        report = report.notice("Each experiment is reduced to a part of its points (--reduced).");
    }
    for declared in &experiments {
        let (points, experiment) = declared.plan(extent)?;
        let progress = Progress::new(&experiment.name, points.len());
        let records = execute::execute(declared, &points, jobs, |done| progress.show(done))?;
        progress.end();
        if let (Some(writer), Some(path)) = (&mut writer, &args.results) {
            let written = writer
                .describe(&experiment)
                .and_then(|()| records.iter().try_for_each(|record| writer.record(record)));
            written.map_err(|error| Problem::plain(format!("{}: {error}", path.display())))?;
        }
        report = report.experiment(&experiment, &records);
    }
    report.write_html(&args.out).map_err(|error| Problem::plain(error.to_string()))?;
    if let Some(directory) = &args.csv {
        report.write_csv(directory).map_err(|error| Problem::plain(error.to_string()))?;
    }
    if args.json {
        let json = report.json().map_err(|error| Problem::plain(error.to_string()))?;
        output::print(&format!("{json}\n"))?;
    } else {
        output::print(&format!("{}\n{}\n", report.text(), args.out.display()))?;
    }
    Ok(report.summary().is_met())
}

fn open(path: &Path) -> Result<ResultWriter, Problem> {
    ResultWriter::create(path)
        .map_err(|error| Problem::plain(format!("{}: {error}", path.display())))
}

/// A progress line on a terminal.
struct Progress<'a> {
    name: &'a str,
    points: usize,
    began: Instant,
    shown: std::sync::Mutex<Option<Instant>>,
}

impl<'a> Progress<'a> {
    fn new(name: &'a str, points: usize) -> Self {
        Progress { name, points, began: Instant::now(), shown: std::sync::Mutex::default() }
    }

    fn show(&self, done: usize) {
        if !io::stderr().is_terminal() {
            return;
        }
        let Ok(mut shown) = self.shown.lock() else { return };
        if shown.is_none_or(|at| at.elapsed() >= PROGRESS_INTERVAL) {
            *shown = Some(Instant::now());
            eprint!(
                "\r{}: {done} of {} points, {:.0?} ",
                self.name,
                self.points,
                self.began.elapsed()
            );
            let _ = io::stderr().flush();
        }
    }

    fn end(&self) {
        if io::stderr().is_terminal() {
            eprintln!(
                "\r{}: {} points in {:.1?}          ",
                self.name,
                self.points,
                self.began.elapsed()
            );
        }
    }
}
