//! Runs points as a Slurm job array.
//!
//! Each task runs the command again with its share of the points, and writes to its own file in the
//! result directory, which all nodes must share.

use super::Args;
use crate::problem::Problem;
use crate::sim::{Failure, Interrupt, Opened, Progress};
use longhaul_campaign::Store;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

/// Poll interval of Slurm, and of Ctrl-C.
const ASK: Duration = Duration::from_secs(2);
const LOOK: Duration = Duration::from_millis(100);
/// Default number of tasks.
const TASKS: usize = 16;

/// Slurm's commands.
pub struct Slurm {
    sbatch: PathBuf,
}

/// A job to submit.
pub struct Job<'a> {
    pub args: &'a Args,
    pub opened: &'a Opened,
    pub directory: &'a Path,
    /// Number of missing points.
    pub missing: usize,
}

impl Slurm {
    /// Finds the commands and checks that Slurm replies, before any work.
    pub fn find() -> Result<Self, Failure> {
        let path = std::env::var_os("PATH").unwrap_or_default();
        let cure = "run this on a host with Slurm's commands, or use --executor local";
        let find = |name: &str| {
            let found =
                std::env::split_paths(&path).map(|dir| dir.join(name)).find(|file| file.is_file());
            let missing = || {
                Problem::new(format!("Slurm is not available: there is no '{name}' in PATH"), cure)
            };
            found.ok_or_else(|| Failure::Other(missing()))
        };
        let (sbatch, squeue) = (find("sbatch")?, find("squeue")?);
        let asked = Command::new(&squeue).args(["--noheader", "--name=longhaul"]).output();
        let asked = asked.map_err(|e| Problem::io("run", &squeue, &e))?;
        if !asked.status.success() {
            let said = String::from_utf8_lossy(&asked.stderr);
            let cause =
                format!("Slurm does not answer: {}", said.lines().next().unwrap_or_default());
            return Err(Failure::Other(Problem::new(cause, cure)));
        }
        Ok(Slurm { sbatch })
    }

    /// Submits the missing points, unless a job is already running them, and waits for its end.
    /// Returns `false` if Ctrl-C ended the wait.
    pub fn run(
        &self,
        job: &Job<'_>,
        store: &mut Store,
        interrupt: &Interrupt,
    ) -> Result<bool, Failure> {
        let known = store.job().filter(|number| is_known(number)).map(str::to_owned);
        let number = match known {
            Some(number) => {
                eprintln!("longhaul sweep: waiting for job {number}, which was submitted before");
                number
            }
            None => {
                let number = self.submit(job)?;
                store.set_job(Some(&number))?;
                eprintln!("longhaul sweep: submitted job {number}");
                number
            }
        };
        let mut progress = Progress::new();
        let mut asked = Instant::now();
        loop {
            std::thread::sleep(LOOK);
            if interrupt.came() {
                progress.done();
                eprintln!(
                    "longhaul sweep: job {number} continues; the same command waits for it and \
                     collects its results; 'scancel {number}' ends it"
                );
                return Ok(false);
            }
            if asked.elapsed() < ASK {
                continue;
            }
            if progress.is_due() {
                progress.show(&format!("{} of {} points", store.lines_of_tasks(), job.missing));
            }
            if !is_known(&number) {
                progress.done();
                store.set_job(None)?;
                return Ok(true);
            }
            asked = Instant::now();
        }
    }

    fn submit(&self, job: &Job<'_>) -> Result<String, Failure> {
        let directory =
            job.directory.canonicalize().map_err(|e| Problem::io("find", job.directory, &e))?;
        let path = directory.join("sweep.sbatch");
        let script = script(job, &directory)?;
        std::fs::write(&path, script).map_err(|e| Problem::io("write", &path, &e))?;
        let mut command = Command::new(&self.sbatch);
        command.arg("--parsable").args(&job.args.sbatch).arg(&path);
        let out = command.output().map_err(|e| Problem::io("run", &self.sbatch, &e))?;
        let said =
            String::from_utf8_lossy(if out.status.success() { &out.stdout } else { &out.stderr })
                .into_owned();
        // JOB or JOB;CLUSTER.
        let number = said.trim().split(';').next().unwrap_or_default();
        if out.status.success()
            && !number.is_empty()
            && number.bytes().all(|byte| byte.is_ascii_digit())
        {
            return Ok(number.to_owned());
        }
        let said = said.lines().collect::<Vec<_>>().join(", ");
        let cause = format!("sbatch refused {}: {said}", path.display());
        Err(Failure::Other(Problem::plain(cause)))
    }
}

/// Fails if a job is already running the same points.
pub fn refuse_running_job(store: &mut Store) -> Result<(), Failure> {
    let Some(job) = store.job() else { return Ok(()) };
    if is_known(job) {
        let cause = format!("Slurm's job {job} runs these points");
        let cure = format!("wait for it with --executor slurm, or end it: scancel {job}");
        return Err(Failure::Other(Problem::new(cause, cure)));
    }
    Ok(store.set_job(None)?)
}

/// Returns whether a job is pending or running. A temporarily unreachable Slurm counts as yes.
fn is_known(number: &str) -> bool {
    let asked =
        Command::new("squeue").args(["--noheader", "--format=%T", "--jobs", number]).output();
    match asked {
        Ok(out) if out.status.success() => !out.stdout.trim_ascii().is_empty(),
        Ok(out) => !String::from_utf8_lossy(&out.stderr).contains("Invalid job id"),
        Err(_) => false,
    }
}

/// The batch script.
fn script(job: &Job<'_>, directory: &Path) -> Result<String, Failure> {
    let args = job.args;
    let program = std::env::current_exe()
        .map_err(|e| Problem::plain(format!("cannot find this program: {e}")))?;
    let file = args.file.canonicalize().map_err(|e| Problem::io("find", &args.file, &e))?;
    let tasks = args.tasks.map_or(TASKS, usize::from).min(job.missing).max(1);
    let jobs = args.jobs.unwrap_or(1);
    let mut words = vec![program.display().to_string(), "sweep".into(), file.display().to_string()];
    let mut option = |name: &str, value: &str| words.extend([name.to_owned(), value.to_owned()]);
    args.vary.iter().for_each(|text| option("--vary", text));
    args.set.iter().for_each(|text| option("--set", text));
    option("--repeat", &args.repeat.to_string());
    if let Some(seed) = args.seed {
        option("--seed", &seed.to_string());
    }
    option("--max-points", &args.max_points.to_string());
    option("--jobs", &jobs.to_string());
    option("--out", &directory.display().to_string());
    let words: Vec<String> = words.iter().map(|word| quoted(word)).collect();
    let mut script = String::from("#!/bin/sh\n");
    // Writing to a String cannot fail.
    let _ = writeln!(script, "# {} points, shared by {tasks} tasks.", job.missing);
    let _ = writeln!(script, "#SBATCH --job-name={}", job.opened.experiment);
    let _ = writeln!(script, "#SBATCH --array=0-{}", tasks - 1);
    let _ = writeln!(script, "#SBATCH --cpus-per-task={jobs}");
    let _ = writeln!(script, "#SBATCH --output=\"{}/slurm-%A_%a.out\"", directory.display());
    let _ = writeln!(script, "exec {} --share \"$SLURM_ARRAY_TASK_ID/{tasks}\"", words.join(" "));
    Ok(script)
}

/// Quotes a word for the shell.
fn quoted(word: &str) -> String {
    format!("'{}'", word.replace('\'', "'\\''"))
}
