//! `longhaul measure`: a campaign of measurements, declared in a file.

mod presets;
mod published;
mod summary;

use crate::exec;
use crate::job_array::{self, Job, incomplete, is_at_work};
use crate::output;
use crate::output::table::truncate;
use crate::problem::Problem;
use crate::sim::{Failure, INTERRUPTED, Interrupt, Progress, time_left};
use longhaul_bench::Record;
use longhaul_boxes::figures::count;
use longhaul_campaign::slurm::{Share, Slurm};
use longhaul_campaign::{
    BySsh, Campaign, Executor, InLab, News, OnMachine, Point, RunError, Site, SshHosts, Store,
    StoreError, Tally, measure, missing,
};
use longhaul_lab::LabName;
use longhaul_rdma::attach;
use std::error::Error;
use std::ffi::OsString;
use std::io::IsTerminal as _;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::time::Duration;

/// Kind of its results.
const KIND: &str = "campaign";
/// The copy of the file that tasks of a job read, because the file may change while they wait.
const COPY: &str = "job.toml";
/// What it consists of.
const PARTS: &str = "runs";

const EXAMPLES: &str = "\
Examples:
  longhaul measure --example > mine.toml
  longhaul measure mine.toml --list          the points, without running anything
  longhaul measure mine.toml
  longhaul measure mine.toml --reduced       a part of it that takes less time
  longhaul measure mine.toml --retry-failed  the runs that failed, once more
  longhaul measure mine.toml --executor slurm --tasks 20 --sbatch=--time=1:00:00
  longhaul measure --list                    the presets, campaigns of published tables
  longhaul measure iown2-c1 --reduced        a preset: its part for a lab
  longhaul measure iown2-c1 --clients node1 --servers node2 --set device=mlx5_2
  longhaul report out/mine/results.jsonl --out report.html

Results go to results.jsonl in --out, one line when a run ends; output/ has what the programs
printed. If a campaign is interrupted, the same command continues with the missing runs; the file
may get further values and repeats meanwhile. Exit code: 0, every run has a result; 1, some failed,
with the reason in their results; 2, the file or an option is wrong; 130, Ctrl-C. The file and its
keys: docs/campaigns.md.";

/// A commented campaign.
const EXAMPLE: &str = include_str!("measure/example.toml");

/// Command line of `longhaul measure`.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// A campaign file, which --example shows, or the name of a preset, which --list shows
    #[arg(required_unless_present_any = ["example", "list"])]
    file: Option<PathBuf>,
    /// Directory of the results [default: out/ and the campaign's name]
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// Print the points, or without a file the presets, and end
    #[arg(long)]
    list: bool,
    /// Measure the part of the campaign that its `reduced` table selects
    #[arg(long)]
    reduced: bool,
    /// Measure the runs that failed before once more
    #[arg(long, conflicts_with = "list")]
    retry_failed: bool,
    /// Print one JSON object instead of text
    #[arg(long)]
    json: bool,
    /// Print a commented example of a campaign file
    #[arg(long, exclusive = true)]
    example: bool,
    #[command(flatten)]
    changes: Changes,
    #[command(flatten)]
    array: job_array::Options,
}

/// What the command line changes of a campaign.
#[derive(Debug, clap::Args)]
struct Changes {
    /// Hosts of the clients, as ssh knows them, instead of the file's
    #[arg(long, value_name = "HOST,...", value_delimiter = ',', requires = "servers")]
    clients: Vec<String>,
    /// Hosts of the servers
    #[arg(long, value_name = "HOST,...", value_delimiter = ',', requires = "clients")]
    servers: Vec<String>,
    /// Give an axis other values, such as --set device=mlx5_2; may be repeated
    #[arg(long, value_name = "AXIS=VALUES")]
    set: Vec<String>,
    /// Add a parameter to the results, such as --label distance_km=380; may be repeated
    #[arg(long, value_name = "NAME=VALUE")]
    label: Vec<String>,
}

impl Changes {
    fn apply(&self, campaign: &mut Campaign) -> Result<(), Failure> {
        if !self.clients.is_empty() {
            if campaign.site == Site::Lab {
                let cause = "this campaign runs in labs, and --clients and --servers name hosts";
                let cure = "remove them, or [lab] from the file, or --reduced";
                return Err(Failure::Value(Problem::new(cause, cure)));
            }
            let (clients, servers) = (self.clients.clone(), self.servers.clone());
            let hosts = SshHosts { clients, servers, ..SshHosts::default() };
            hosts
                .check()
                .map_err(|error| Failure::value(format!("--clients and --servers: {error}")))?;
            campaign.site = Site::Ssh(hosts);
        }
        for (option, texts) in [("--set", &self.set), ("--label", &self.label)] {
            for text in texts {
                let refused = |why: String| Failure::value(format!("{option} {text}: {why}"));
                let (key, value) =
                    text.split_once('=').ok_or_else(|| refused("write NAME=VALUE".to_owned()))?;
                let done = match option {
                    "--set" => campaign.set(key, value),
                    _ => campaign.label(key, value),
                };
                done.map_err(|fault| refused(fault.to_string()))?;
            }
        }
        Ok(())
    }

    /// Its words.
    fn words(&self) -> Vec<String> {
        let mut words = Vec::new();
        let mut option = |name: &str, value: &str| words.extend([format!("{name}={value}")]);
        if !self.clients.is_empty() {
            option("--clients", &self.clients.join(","));
            option("--servers", &self.servers.join(","));
        }
        self.set.iter().for_each(|text| option("--set", text));
        self.label.iter().for_each(|text| option("--label", text));
        words
    }
}

/// Runs what a campaign has no results of.
pub fn run(args: &Args) -> ExitCode {
    campaign(args).unwrap_or_else(|failure| failure.report("measure"))
}

fn campaign(args: &Args) -> Result<ExitCode, Failure> {
    let Some(path) = &args.file else {
        let text = if args.list { presets::list()? } else { EXAMPLE.to_owned() };
        output::print(&text)?;
        return Ok(ExitCode::SUCCESS);
    };
    let slurm = args.array.slurm()?;
    let text = presets::text(path).map_err(Failure::Value)?;
    let name = path.display().to_string();
    let mut campaign = Campaign::parse(&name, &text, args.reduced).map_err(Failure::value)?;
    args.changes.apply(&mut campaign)?;
    let mut executor = executor(&campaign, args.list).map_err(Failure::Value)?;
    let points = campaign.points(&*executor).map_err(Failure::value)?;
    if args.list {
        output::print(&summary::list(&campaign, &points, args.json)?)?;
        return Ok(ExitCode::SUCCESS);
    }
    campaign.experiment.published = published::cells(&campaign, &points)?;
    let directory = directory(args, &campaign);
    let interrupt = Interrupt::listen()?;
    let mut run = |share: Share, store: &mut Store| {
        let mut progress = Progress::new();
        let mut news = |news: News<'_>| tell(&campaign, &mut progress, &news);
        let stop = interrupt.flag();
        let ran = measure(&campaign, &points, share, &mut *executor, store, stop, &mut news);
        progress.done();
        ran.map_err(of_run)
    };
    if let Some(share) = args.array.share {
        let mut store = Store::open_share(KIND, &directory, &campaign.digest(), share.number)?;
        let is_interrupted = run(share, &mut store)?.is_interrupted;
        return Ok(ExitCode::from(if is_interrupted { INTERRUPTED } else { 0 }));
    }
    let mut store = open(args, &campaign, path, &directory)?;
    let tally = match slurm {
        None if store.job().is_some() => return Err(job_array::refusal(&store, PARTS)),
        None => run(Share::WHOLE, &mut store)?,
        Some(slurm) => {
            let missing = missing(&campaign, &points, Share::WHOLE, &store).len();
            let job = Job {
                command: "measure",
                parts: PARTS,
                name: &campaign.experiment.name,
                kind: KIND,
                arguments: arguments(args, &directory)?,
                directory: &directory,
                cpus: 1,
                missing,
            };
            if store.job().is_none() {
                let copy = directory.join(COPY);
                std::fs::write(&copy, &text).map_err(|e| Problem::io("write", &copy, &e))?;
            }
            in_job(args, &slurm, &job, &campaign, &points, &mut store, &interrupt)?
        }
    };
    conclude(args, &campaign, &points, &store, &tally)
}

/// Arguments of the tasks of a job.
fn arguments(args: &Args, directory: &Path) -> Result<Vec<String>, Failure> {
    let directory = directory.canonicalize().map_err(|e| Problem::io("find", directory, &e))?;
    let copy = directory.join(COPY);
    let reduced = args.reduced.then(|| "--reduced".to_owned());
    let out = ["--out".to_owned(), directory.display().to_string()];
    let words = [copy.display().to_string()].into_iter().chain(reduced).chain(out);
    Ok(words.chain(args.changes.words()).collect())
}

/// Has Slurm measure what is missing.
fn in_job(
    args: &Args,
    slurm: &Slurm,
    job: &Job<'_>,
    campaign: &Campaign,
    points: &[Point],
    store: &mut Store,
    interrupt: &Interrupt,
) -> Result<Tally, Failure> {
    let before = store.records().len();
    store.describe(&campaign.experiment)?;
    let is_idle = job.missing == 0 && store.job().is_none();
    let is_over = is_idle || args.array.run(slurm, job, store, interrupt)?;
    let left = missing(campaign, points, Share::WHOLE, store).len();
    if is_over && left > 0 {
        let total = points.len() * campaign.repeats as usize;
        return Err(incomplete(left, total, job.parts, job.directory));
    }
    let new = store.records()[before..].iter();
    let measured = new.filter(|record| record.failed.is_empty()).count();
    Ok(Tally { measured, is_interrupted: !is_over, ..Tally::default() })
}

/// Where the campaign's programs run, or for a list would run.
fn executor(campaign: &Campaign, is_for_list: bool) -> Result<Box<dyn Executor>, Problem> {
    match &campaign.site {
        Site::Unnamed if !is_for_list => {
            let cause = format!("{} runs on two hosts or more", campaign.experiment.name);
            let cure = "name them with --clients and --servers, or add --reduced for a lab";
            Err(Problem::new(cause, cure))
        }
        Site::Machine | Site::Unnamed => {
            let command = |words: &[OsString]| Ok(on_machine(words)?);
            Ok(Box::new(OnMachine::new(command)))
        }
        Site::Lab => {
            let name = format!("measure-{}", std::process::id());
            let name: LabName = name.parse().map_err(Problem::from)?;
            let (sample, times_calls) = (campaign.sample, campaign.times_calls);
            Ok(Box::new(InLab::new(name, move |(dir, host), words| {
                let mut command = exec::command(dir, host, &itself(words)?)?;
                if let Some(interval) = sample {
                    // Twice as often as they are read, so that no interval is without an update.
                    let ms = (interval.as_millis() / 2).clamp(1, 60_000);
                    command.env(attach::ENV_COUNTERS_MS, ms.to_string());
                }
                if times_calls {
                    // The split of its time is wanted, not the trace.
                    command.env(attach::ENV_TRACE, "/dev/null");
                }
                Ok::<_, Box<dyn Error>>(command)
            })))
        }
        Site::Ssh(hosts) => Ok(Box::new(BySsh::new(hosts.clone()))),
    }
}

fn on_machine(words: &[OsString]) -> Result<Command, Problem> {
    let words = itself(words)?;
    let (name, arguments) =
        words.split_first().ok_or_else(|| Problem::plain("no program given"))?;
    let mut command = Command::new(exec::find_program(name)?);
    command.args(arguments);
    Ok(command)
}

/// The words of a command, `longhaul` replaced by this program.
fn itself(words: &[OsString]) -> Result<Vec<OsString>, Problem> {
    let mut words = words.to_vec();
    if let Some(first) = words.first_mut()
        && *first == "longhaul"
    {
        let program = std::env::current_exe()
            .map_err(|error| Problem::plain(format!("cannot find this program: {error}")))?;
        *first = program.into_os_string();
    }
    Ok(words)
}

/// The directory of a campaign's results.
fn directory(args: &Args, campaign: &Campaign) -> PathBuf {
    let name = &campaign.experiment.name;
    match (&args.out, args.reduced) {
        (Some(out), _) => out.clone(),
        (None, false) => Path::new("out").join(name),
        (None, true) => Path::new("out").join(format!("{name}-reduced")),
    }
}

/// The results of a campaign.
fn open(args: &Args, campaign: &Campaign, file: &Path, directory: &Path) -> Result<Store, Failure> {
    let mut store = Store::open(KIND, directory, &campaign.digest(), file)?;
    let is_at_work = is_at_work(&mut store)?;
    if args.retry_failed && is_at_work {
        return Err(job_array::refusal(&store, PARTS));
    }
    if args.retry_failed {
        let forgotten = store.forget_failed()?;
        eprintln!("longhaul measure: {} once more", count(forgotten as u64, "failed run"));
    }
    if !store.records().is_empty() {
        let there = count(store.records().len() as u64, "run");
        eprintln!("longhaul measure: {there} have results in {}", store.path().display());
    }
    Ok(store)
}

/// Shows the progress.
fn tell(campaign: &Campaign, progress: &mut Progress, news: &News<'_>) {
    let place = |point: &Point| point.place.to_string();
    match news {
        News::Begins { point, repeat, done, of, left } => {
            let repeats = campaign.repeats;
            let left = left.map_or_else(String::new, |left| {
                format!(", {} left", time_left(Duration::as_secs_f64(&left)))
            });
            let (number, place) = (done + 1, place(point));
            let line = format!("[{number}/{of}{left}] {place}, run {repeat} of {repeats}");
            let is_terminal = std::io::stderr().is_terminal();
            let width = if is_terminal { output::columns() } else { usize::MAX };
            progress.show(&truncate(&line, width));
        }
        News::Failed { point, reason, is_tried_again } => {
            progress.done();
            let then = if *is_tried_again { "once more" } else { "recorded as failed" };
            eprintln!("longhaul measure: {}: {reason}: {then}", place(point));
        }
        News::Logged(log) => {
            progress.done();
            eprintln!("longhaul measure: the lab logged: {log}");
        }
    }
}

fn of_run(error: RunError) -> Failure {
    let problem = match error {
        RunError::Store(StoreError::Write(_) | StoreError::Io { .. }) | RunError::Output { .. } => {
            let cause = format!("{error}; the runs that ended before are complete");
            Problem::new(cause, "free some space and repeat the command")
        }
        RunError::Powertop(_) => Problem::new(
            error.to_string(),
            "run as root on machines where powertop estimates power, or remove the key",
        ),
        RunError::Store(error) => error.into(),
    };
    Failure::Other(problem)
}

/// Prints the summary.
fn conclude(
    args: &Args,
    campaign: &Campaign,
    points: &[Point],
    store: &Store,
    tally: &Tally,
) -> Result<ExitCode, Failure> {
    let is_ours = |record: &&Record| points.iter().any(|point| point.place == record.point);
    let records: Vec<Record> = store.records().iter().filter(is_ours).cloned().collect();
    let compared = published::compare(campaign, &records)?;
    let outcome =
        summary::Outcome { campaign, points, records: &records, compared: &compared, store, tally };
    output::print(&if args.json { outcome.json()? } else { outcome.text(output::columns()) })?;
    if tally.is_interrupted {
        eprintln!(
            "longhaul measure: stopped; the same command continues with the runs that are missing"
        );
        return Ok(ExitCode::from(INTERRUPTED));
    }
    match outcome.failed().count() {
        0 => Ok(ExitCode::SUCCESS),
        failed => Err(Failure::Other(Problem::new(
            format!("{} failed", count(failed as u64, "run")),
            "their results have the reason; --retry-failed measures them once more",
        ))),
    }
}
