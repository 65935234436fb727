//! The work of a command as a Slurm job array: its options, the submission and the wait.

use crate::problem::Problem;
use crate::sim::{Failure, Interrupt, Progress, time_left};
use longhaul_boxes::number::within;
use longhaul_campaign::Store;
use longhaul_campaign::slurm::{JobArray, Share, Slurm, SlurmError, is_active, settle};
use std::path::Path;
use std::time::{Duration, Instant};

/// Poll interval of Slurm, and of Ctrl-C.
const ASK: Duration = Duration::from_secs(2);
const LOOK: Duration = Duration::from_millis(100);
/// Default number of tasks.
const TASKS: usize = 16;

/// Options of commands whose work tasks of a job can share.
#[derive(Debug, clap::Args)]
pub struct Options {
    /// Where it runs: on this machine, or as a Slurm job array
    #[arg(long, value_enum, default_value_t = Executor::Local)]
    executor: Executor,
    /// Number of Slurm tasks [default: 16, or what there is to do if less]
    #[arg(long, value_name = "N", value_parser = within::<u16>(1..=10_000))]
    tasks: Option<u16>,
    /// Option for sbatch, such as --sbatch=--partition=long; may be repeated
    #[arg(long, value_name = "OPTION", allow_hyphen_values = true)]
    sbatch: Vec<String>,
    /// Run only this share of the work, in a task
    #[arg(long, value_name = "I/N", hide = true)]
    pub share: Option<Share>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Executor {
    Local,
    Slurm,
}

/// What a job does.
pub struct Job<'a> {
    /// The command of this program.
    pub command: &'a str,
    /// What it consists of, in the plural.
    pub parts: &'a str,
    /// Name of the job.
    pub name: &'a str,
    /// Name of the script.
    pub kind: &'a str,
    /// Arguments of each task.
    pub arguments: Vec<String>,
    /// Directory of the results.
    pub directory: &'a Path,
    /// Processors of each task.
    pub cpus: u16,
    /// Number of parts without results.
    pub missing: usize,
}

impl Options {
    /// Slurm, if it is to do the work.
    pub fn slurm(&self) -> Result<Option<Slurm>, Failure> {
        if self.executor == Executor::Slurm {
            return Ok(Some(Slurm::find()?));
        }
        if self.tasks.is_some() || !self.sbatch.is_empty() {
            let cause = "--tasks and --sbatch are for Slurm; add --executor slurm";
            return Err(Failure::value(cause));
        }
        Ok(None)
    }

    /// Submits a job, unless one is already at work, waits for its end and collects its results.
    /// Returns `false` if Ctrl-C ended the wait.
    pub fn run(
        &self,
        slurm: &Slurm,
        job: &Job<'_>,
        store: &mut Store,
        interrupt: &Interrupt,
    ) -> Result<bool, Failure> {
        let command = job.command;
        let number = match store.job() {
            Some(number) => {
                eprintln!(
                    "longhaul {command}: waiting for job {number}, which was submitted before"
                );
                number.to_owned()
            }
            None => {
                let number = self.submit(slurm, job)?;
                store.set_job(Some(&number))?;
                eprintln!("longhaul {command}: submitted job {number}");
                number
            }
        };
        if wait(&number, job, store, interrupt) {
            settle(store, &number)?;
            return Ok(true);
        }
        eprintln!(
            "longhaul {command}: job {number} continues; the same command waits for it and \
             collects its results; 'scancel {number}' ends it"
        );
        Ok(false)
    }

    fn submit(&self, slurm: &Slurm, job: &Job<'_>) -> Result<String, Failure> {
        let program = std::env::current_exe()
            .map_err(|e| Problem::plain(format!("cannot find this program: {e}")))?;
        let words = [program.display().to_string(), job.command.to_owned()];
        let words: Vec<String> = words.into_iter().chain(job.arguments.iter().cloned()).collect();
        Ok(slurm.submit(&JobArray {
            name: job.name,
            kind: job.kind,
            words: &words,
            directory: job.directory,
            tasks: self.tasks.map_or(TASKS, usize::from).min(job.missing).max(1),
            cpus: job.cpus,
            options: &self.sbatch,
        })?)
    }
}

/// Waits for the end of a job and shows its progress. Returns `false` if Ctrl-C came first.
fn wait(number: &str, job: &Job<'_>, store: &Store, interrupt: &Interrupt) -> bool {
    let mut progress = Progress::new();
    let there = store.results_of_tasks();
    let mut asked = Instant::now();
    let is_over = loop {
        std::thread::sleep(LOOK);
        if interrupt.came() {
            break false;
        }
        if asked.elapsed() < ASK {
            continue;
        }
        let (done, seconds) = (store.results_of_tasks(), progress.elapsed().as_secs_f64());
        if progress.is_due() {
            let rate = done.saturating_sub(there) as f64 / seconds;
            let left = job.missing.saturating_sub(done) as f64 / rate;
            let left =
                if rate > 0.0 { format!(", {} left", time_left(left)) } else { String::new() };
            progress.show(&format!("{done} of {} {}{left}", job.missing, job.parts));
        }
        if !is_active(number) {
            break true;
        }
        asked = Instant::now();
    };
    progress.done();
    is_over
}

/// Collects the results of a job that ended while nobody waited. Returns whether one is still at
/// work.
pub fn is_at_work(store: &mut Store) -> Result<bool, Failure> {
    let Some(job) = store.job().map(str::to_owned) else { return Ok(false) };
    if is_active(&job) {
        return Ok(true);
    }
    settle(store, &job)?;
    Ok(false)
}

/// Why this process does not do the work of a store's job.
pub fn refusal(store: &Store, parts: &str) -> Failure {
    let job = store.job().unwrap_or_default();
    let cause = format!("Slurm's job {job} works on these {parts}");
    let cure = format!("wait for it with --executor slurm, or end it: scancel {job}");
    Failure::Other(Problem::new(cause, cure))
}

/// Why a job that ended left parts without results.
pub fn incomplete(left: usize, total: usize, parts: &str, directory: &Path) -> Failure {
    let logs = directory.join("slurm-*.out");
    let cause = format!("the job ended, and {left} of {total} {parts} are missing");
    let cure =
        format!("{} contain the reasons; the same command continues with them", logs.display());
    Failure::Other(Problem::new(cause, cure))
}

impl From<SlurmError> for Failure {
    fn from(error: SlurmError) -> Self {
        let cause = error.to_string();
        Failure::Other(match error {
            SlurmError::Missing(_) | SlurmError::Silent(_) => Problem::new(
                cause,
                "run this on a host with Slurm's commands, or use --executor local",
            ),
            SlurmError::Refused { .. } | SlurmError::Io { .. } => Problem::plain(cause),
        })
    }
}
