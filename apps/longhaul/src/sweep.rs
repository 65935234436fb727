//! `longhaul sweep`: a scenario file over ranges of its parameters.

mod grid;
mod local;

use crate::job_array::{self, Job, incomplete, is_at_work};
use crate::output;
use crate::problem::Problem;
use crate::sim::{Failure, INTERRUPTED, Interrupt, Opened, Progress, open};
use grid::Grid;
use longhaul_boxes::number::within;
use longhaul_campaign::slurm::{Share, Slurm};
use longhaul_campaign::{Digest, Store};
use std::path::{Path, PathBuf};
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
    #[command(flatten)]
    array: job_array::Options,
}

/// Runs the missing points of a grid.
pub fn run(args: &Args) -> ExitCode {
    sweep(args).unwrap_or_else(|failure| failure.report("sweep"))
}

fn sweep(args: &Args) -> Result<ExitCode, Failure> {
    let slurm = args.array.slurm()?;
    let mut opened = open(&args.file, &args.set)?;
    if let Some(seed) = args.seed {
        opened.seed(seed)?;
    }
    let base = opened.load()?;
    if base.links.iter().any(|link| link.record.is_some()) && args.array.share.is_none() {
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
    if let Some(share) = args.array.share {
        let mut store = Store::open_share(KIND, &directory, &digest, share.number)?;
        let missing = missing(&points, share, &store);
        return finish(args, &opened, &grid, &missing, &mut store);
    }
    let mut store = Store::open(KIND, &directory, &digest, &args.file)?;
    let is_at_work = is_at_work(&mut store)?;
    let missing = missing(&points, Share::WHOLE, &store);
    let there = points.len() - missing.len();
    if there > 0 {
        eprintln!("longhaul sweep: {there} of {} points already have results", points.len());
    }
    match slurm {
        None if is_at_work => Err(job_array::refusal(&store, "points")),
        None => finish(args, &opened, &grid, &missing, &mut store),
        Some(slurm) => {
            let job = job(args, &opened, &directory, missing.len())?;
            submit(args, &slurm, &job, &points, &mut store)
        }
    }
}

/// The points of a share that have no result.
fn missing(points: &[grid::Point], share: Share, store: &Store) -> Vec<grid::Point> {
    let is_missing = |point: &&grid::Point| !store.has(&point.place, point.seed);
    share.select(points).filter(is_missing).cloned().collect()
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

/// The job that simulates the missing points.
fn job<'a>(
    args: &Args,
    opened: &'a Opened,
    directory: &'a Path,
    missing: usize,
) -> Result<Job<'a>, Failure> {
    let file = args.file.canonicalize().map_err(|e| Problem::io("find", &args.file, &e))?;
    let jobs = args.jobs.unwrap_or(1);
    let mut arguments = vec![file.display().to_string()];
    let mut option = |name: &str, value: &str| arguments.extend([name.into(), value.into()]);
    args.vary.iter().for_each(|text| option("--vary", text));
    args.set.iter().for_each(|text| option("--set", text));
    option("--repeat", &args.repeat.to_string());
    if let Some(seed) = args.seed {
        option("--seed", &seed.to_string());
    }
    option("--max-points", &args.max_points.to_string());
    option("--jobs", &jobs.to_string());
    let out = directory.canonicalize().map_err(|e| Problem::io("find", directory, &e))?;
    option("--out", &out.display().to_string());
    Ok(Job {
        command: "sweep",
        parts: "points",
        name: &opened.experiment,
        kind: KIND,
        arguments,
        directory,
        cpus: jobs,
        missing,
    })
}

/// Has Slurm simulate the missing points.
fn submit(
    args: &Args,
    slurm: &Slurm,
    job: &Job<'_>,
    points: &[grid::Point],
    store: &mut Store,
) -> Result<ExitCode, Failure> {
    let interrupt = Interrupt::listen()?;
    if job.missing > 0 && !args.array.run(slurm, job, store, &interrupt)? {
        return Ok(ExitCode::from(INTERRUPTED));
    }
    let (left, total) = (missing(points, Share::WHOLE, store).len(), points.len());
    if left > 0 {
        return Err(incomplete(left, total, job.parts, job.directory));
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
