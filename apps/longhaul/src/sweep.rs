//! `longhaul sweep`: a scenario file over ranges of its parameters.

mod grid;
mod local;
mod slurm;

use crate::output;
use crate::problem::Problem;
use crate::sim::{Failure, INTERRUPTED, Interrupt, Opened, Progress, open};
use grid::Grid;
use longhaul_boxes::number::within;
use longhaul_campaign::{Digest, Store};
use std::path::PathBuf;
use std::process::ExitCode;

/// Kind of its results.
const KIND: &str = "sweep";

const EXAMPLES: &str = "\
Examples:
  longhaul sweep mine.toml --vary flow.size=4K..8M,x2 --vary path.distance=10km,100km,1000km
  longhaul sweep mine.toml --vary path.loss=1e-7..1e-3,x10 --repeat 5 --jobs 8 --out out/loss
  longhaul sweep mine.toml --vary flow.op=write,send,read --set flow.qps=4 --executor slurm \\
      --tasks 20

VALUES are separated by commas; FROM..TO doubles unless followed by its step: x10 multiplies, +4K
adds. Points are the product of all --vary. Results go to results.jsonl in --out, one line when a
point ends. If a sweep is interrupted, the same command continues with the missing points. A result
directory belongs to one text of the file: another file needs another --out.";

/// Command line of `longhaul sweep`.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// A scenario file; 'longhaul sim --example' prints one
    file: PathBuf,
    /// Values of a key of the file, one per point
    #[arg(long, value_name = "KEY=VALUES", required = true)]
    vary: Vec<String>,
    /// Set a key of the file for all points
    #[arg(long, value_name = "KEY=VALUE")]
    set: Vec<String>,
    /// Number of runs per point, each with the next seed
    #[arg(
        long,
        value_name = "N",
        default_value_t = 1,
        value_parser = within::<u32>(1..=u32::MAX.into())
    )]
    repeat: u32,
    /// Seed of the first run of each point, instead of the file's
    #[arg(long, value_name = "N")]
    seed: Option<u64>,
    /// Points that run in parallel [default: one per core; with Slurm one per task]
    #[arg(long, value_name = "N", value_parser = within::<u16>(1..=4096))]
    jobs: Option<u16>,
    /// Directory of the results [default: out/ and the experiment's name]
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// Maximum number of points; more are refused
    #[arg(
        long,
        value_name = "N",
        default_value_t = 100_000,
        value_parser = within::<u64>(1..=10_000_000)
    )]
    max_points: u64,
    /// Where points run: on this machine, or as a Slurm job array
    #[arg(long, value_enum, default_value_t = Executor::Local)]
    executor: Executor,
    /// Number of Slurm tasks [default: 16, or the number of points if smaller]
    #[arg(long, value_name = "N", value_parser = within::<u16>(1..=10_000))]
    tasks: Option<u16>,
    /// Option for sbatch, such as --sbatch=--partition=long; may be repeated
    #[arg(long, value_name = "OPTION", allow_hyphen_values = true)]
    sbatch: Vec<String>,
    /// Run only this share of the points, in a task
    #[arg(long, value_name = "I/N", hide = true, value_parser = share)]
    share: Option<Share>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Executor {
    Local,
    Slurm,
}

/// Every n-th point.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Share {
    number: usize,
    of: usize,
}

fn share(text: &str) -> Result<Share, String> {
    let wrong = || "not a share: write 0/4 for the first of four".to_owned();
    let (number, of) = text.split_once('/').ok_or_else(wrong)?;
    let share = Share {
        number: number.parse().map_err(|_| wrong())?,
        of: of.parse().map_err(|_| wrong())?,
    };
    if share.number < share.of { Ok(share) } else { Err(wrong()) }
}

/// Runs the missing points of a grid.
pub fn run(args: &Args) -> ExitCode {
    sweep(args).unwrap_or_else(|failure| failure.report("sweep"))
}

fn sweep(args: &Args) -> Result<ExitCode, Failure> {
    let slurm = match args.executor {
        Executor::Slurm => Some(slurm::Slurm::find()?),
        Executor::Local => {
            if args.tasks.is_some() || !args.sbatch.is_empty() {
                return Err(Failure::value(
                    "--tasks and --sbatch are for Slurm; add --executor slurm",
                ));
            }
            None
        }
    };
    let mut opened = open(&args.file, &args.set)?;
    if let Some(seed) = args.seed {
        opened.seed(seed)?;
    }
    let base = opened.load()?;
    if base.links.iter().any(|link| link.record.is_some()) && args.share.is_none() {
        eprintln!(
            "longhaul sweep: the file's 'record' is ignored: all points would record to the same \
             file"
        );
    }
    let grid = Grid::new(&opened, &args.vary, args.repeat, args.max_points)?;
    let points = grid.points(&opened)?;
    let directory =
        args.out.clone().unwrap_or_else(|| PathBuf::from("out").join(&opened.experiment));
    let digest = digest(&opened);
    if let Some(share) = args.share {
        let mut store = Store::open_share(KIND, &directory, &digest, share.number)?;
        let missing = points.into_iter().skip(share.number).step_by(share.of);
        let missing: Vec<_> =
            missing.filter(|point| !store.has(&point.place, point.seed)).collect();
        return finish(args, &opened, &grid, &missing, &mut store);
    }
    let mut store = Store::open(KIND, &directory, &digest, &args.file)?;
    let is_missing = |point: &&grid::Point| !store.has(&point.place, point.seed);
    let missing: Vec<_> = points.iter().filter(is_missing).cloned().collect();
    let there = points.len() - missing.len();
    if there > 0 {
        eprintln!("longhaul sweep: {there} of {} points already have results", points.len());
    }
    match slurm {
        None => {
            slurm::refuse_running_job(&mut store)?;
            finish(args, &opened, &grid, &missing, &mut store)
        }
        Some(slurm) => {
            let job =
                slurm::Job { args, opened: &opened, directory: &directory, missing: missing.len() };
            submit(&slurm, &job, &points, &mut store)
        }
    }
}

/// Identifies the scenario of results: its file, and those to which it refers.
fn digest(opened: &Opened) -> String {
    let mut digest = Digest::new();
    digest.take(&opened.text);
    for (name, text) in opened.files() {
        digest.take(&name);
        digest.take(&text);
    }
    digest.finish()
}

/// Submits the missing points to Slurm.
fn submit(
    slurm: &slurm::Slurm,
    job: &slurm::Job<'_>,
    points: &[grid::Point],
    store: &mut Store,
) -> Result<ExitCode, Failure> {
    let interrupt = Interrupt::listen()?;
    if job.missing > 0 && !slurm.run(job, store, &interrupt)? {
        return Ok(ExitCode::from(INTERRUPTED));
    }
    store.collect()?;
    let is_missing = |point: &&grid::Point| !store.has(&point.place, point.seed);
    let (left, total) = (points.iter().filter(is_missing).count(), points.len());
    if left > 0 {
        let logs = job.directory.join("slurm-*.out");
        let cause = format!("the job ended, and {left} of {total} points are missing");
        let cure =
            format!("{} contain the reasons; the same command continues with them", logs.display());
        return Err(Failure::Other(Problem::new(cause, cure)));
    }
    output::print(&format!(
        "{total} points, {} of them new: {}\n",
        job.missing,
        store.path().display()
    ))?;
    Ok(ExitCode::SUCCESS)
}

/// Runs `missing` on this machine.
fn finish(
    args: &Args,
    opened: &Opened,
    grid: &Grid,
    missing: &[grid::Point],
    store: &mut Store,
) -> Result<ExitCode, Failure> {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let jobs = args.jobs.map_or(cores, usize::from).min(missing.len().max(1));
    let interrupt = Interrupt::listen()?;
    let mut progress = Progress::new();
    let tally = local::run(opened, grid, missing, jobs, store, &interrupt, &mut progress);
    progress.done();
    let tally = tally?;
    for what in &tally.failed {
        eprintln!("longhaul sweep: {what}");
    }
    let path = store.path().display();
    if interrupt.came() {
        eprintln!(
            "longhaul sweep: stopped; {} new points of {} are in {path}; the same command \
             continues with the rest",
            tally.finished,
            missing.len()
        );
        return Ok(ExitCode::from(INTERRUPTED));
    }
    output::print(&format!("{} new points: {path}\n", tally.finished))?;
    if !tally.failed.is_empty() {
        let cause = format!("{} points were not simulated", tally.failed.len());
        return Err(Failure::Other(Problem::plain(cause)));
    }
    if tally.violations > 0 {
        let cause = format!("{} points violated an invariant", tally.violations);
        return Err(Failure::Other(Problem::new(
            cause,
            "their results have a note; please report this",
        )));
    }
    Ok(ExitCode::SUCCESS)
}
