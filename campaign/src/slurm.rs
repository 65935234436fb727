//! Slurm's job arrays: their submission, their end, and why a task ended.
//!
//! Each task runs the command of the campaign again with its [`Share`] of the runs, and writes to
//! its own file in the directory of results, which all nodes must share.

use crate::store::{Store, StoreError};
use std::collections::BTreeMap;
use std::fmt::{self, Write as _};
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::str::FromStr;
use thiserror::Error;

/// Every n-th run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Share {
    /// Its number, from 0.
    pub number: usize,
    of: usize,
}

/// A text that is no share.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("not a share: write 0/4 for the first of four")]
pub struct NoShare;

impl Share {
    /// All runs.
    pub const WHOLE: Share = Share { number: 0, of: 1 };

    /// Its items.
    pub fn select<T>(self, items: impl IntoIterator<Item = T>) -> impl Iterator<Item = T> {
        items.into_iter().skip(self.number).step_by(self.of)
    }
}

impl FromStr for Share {
    type Err = NoShare;

    fn from_str(text: &str) -> Result<Self, NoShare> {
        let (number, of) = text.split_once('/').ok_or(NoShare)?;
        let parse = |text: &str| text.parse::<usize>().map_err(|_| NoShare);
        let share = Share { number: parse(number)?, of: parse(of)? };
        if share.number < share.of { Ok(share) } else { Err(NoShare) }
    }
}

impl fmt::Display for Share {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.number, self.of)
    }
}

/// Why no job runs.
#[derive(Debug, Error)]
pub enum SlurmError {
    /// A command is not installed.
    #[error("Slurm is not available: there is no '{0}' in PATH")]
    Missing(&'static str),
    /// The controller does not reply.
    #[error("Slurm does not answer: {0}")]
    Silent(String),
    /// sbatch refuses the script.
    #[error("sbatch refused {}: {said}", script.display())]
    Refused {
        /// The script.
        script: PathBuf,
        /// What sbatch printed.
        said: String,
    },
    /// The operating system's error.
    #[error("cannot {action} {}: {error}", path.display())]
    Io {
        /// What was done.
        action: &'static str,
        /// The file.
        path: PathBuf,
        /// The error.
        error: io::Error,
    },
}

fn io_error<'a>(action: &'static str, path: &'a Path) -> impl Fn(io::Error) -> SlurmError + 'a {
    move |error| SlurmError::Io { action, path: path.to_owned(), error }
}

/// Slurm's commands.
#[derive(Debug)]
pub struct Slurm {
    sbatch: PathBuf,
}

/// A job to submit.
pub struct JobArray<'a> {
    /// Its name.
    pub name: &'a str,
    /// Name of the script, without its end.
    pub kind: &'a str,
    /// Program and arguments; tasks add `--share`.
    pub words: &'a [String],
    /// Directory of the results.
    pub directory: &'a Path,
    /// Number of tasks.
    pub tasks: usize,
    /// Processors of each task.
    pub cpus: u16,
    /// Options of sbatch.
    pub options: &'a [String],
}

impl Slurm {
    /// Finds the commands and checks that Slurm replies, before any work.
    ///
    /// # Errors
    /// A command is missing, or the controller does not reply.
    pub fn find() -> Result<Self, SlurmError> {
        let path = std::env::var_os("PATH").unwrap_or_default();
        let find = |name: &'static str| {
            let mut files = std::env::split_paths(&path).map(|directory| directory.join(name));
            files.find(|file| file.is_file()).ok_or(SlurmError::Missing(name))
        };
        let (sbatch, squeue) = (find("sbatch")?, find("squeue")?);
        let asked = Command::new(&squeue).args(["--noheader", "--name=longhaul"]).output();
        let asked = asked.map_err(io_error("run", &squeue))?;
        if !asked.status.success() {
            let said = String::from_utf8_lossy(&asked.stderr);
            return Err(SlurmError::Silent(said.lines().next().unwrap_or_default().to_owned()));
        }
        Ok(Slurm { sbatch })
    }

    /// Submits a job. Returns its number.
    ///
    /// # Errors
    /// The script cannot be written, or sbatch refuses it.
    pub fn submit(&self, array: &JobArray<'_>) -> Result<String, SlurmError> {
        let directory = array.directory.canonicalize();
        let directory = directory.map_err(io_error("find", array.directory))?;
        let path = directory.join(format!("{}.sbatch", array.kind));
        std::fs::write(&path, array.script(&directory)).map_err(io_error("write", &path))?;
        let mut command = Command::new(&self.sbatch);
        command.arg("--parsable").args(array.options).arg(&path);
        let out = command.output().map_err(io_error("run", &self.sbatch))?;
        let printed = if out.status.success() { &out.stdout } else { &out.stderr };
        let said = String::from_utf8_lossy(printed).into_owned();
        // JOB or JOB;CLUSTER.
        let number = said.trim().split(';').next().unwrap_or_default();
        let is_number = !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit());
        if out.status.success() && is_number {
            return Ok(number.to_owned());
        }
        let said = said.lines().collect::<Vec<_>>().join(", ");
        Err(SlurmError::Refused { script: path, said })
    }
}

impl JobArray<'_> {
    /// The batch script.
    fn script(&self, directory: &Path) -> String {
        let words: Vec<String> = self.words.iter().map(|word| quoted(word)).collect();
        let mut script = String::from("#!/bin/sh\n");
        // Writing to a String cannot fail.
        let _ = writeln!(script, "#SBATCH --job-name={}", self.name);
        let _ = writeln!(script, "#SBATCH --array=0-{}", self.tasks.saturating_sub(1));
        let _ = writeln!(script, "#SBATCH --cpus-per-task={}", self.cpus);
        let _ = writeln!(script, "#SBATCH --output=\"{}\"", log(directory, "%A", "%a").display());
        let (words, tasks) = (words.join(" "), self.tasks);
        let _ = writeln!(script, "exec {words} --share \"$SLURM_ARRAY_TASK_ID/{tasks}\"");
        script
    }
}

/// The log of a task.
fn log(directory: &Path, job: &str, task: &str) -> PathBuf {
    directory.join(format!("slurm-{job}_{task}.out"))
}

/// Quotes a word for the shell.
pub(crate) fn quoted(word: &str) -> String {
    format!("'{}'", word.replace('\'', "'\\''"))
}

/// Returns whether a job is pending or running. A temporarily unreachable Slurm counts as yes.
pub fn is_active(job: &str) -> bool {
    let asked = Command::new("squeue").args(["--noheader", "--format=%T", "--jobs", job]).output();
    match asked {
        Ok(out) if out.status.success() => !out.stdout.trim_ascii().is_empty(),
        Ok(out) => !String::from_utf8_lossy(&out.stderr).contains("Invalid job id"),
        Err(_) => false,
    }
}

/// Collects the results of a job that has ended. A run during which Slurm killed its task gets the
/// reason as its result; one that ended with its task for another reason stays missing.
///
/// # Errors
/// A task still writes, or the results cannot be written.
pub fn settle(store: &mut Store, job: &str) -> Result<(), StoreError> {
    store.collect()?;
    let unfinished = store.take_unfinished()?;
    let states = if unfinished.is_empty() { BTreeMap::new() } else { states(job) };
    for (task, mut record) in unfinished {
        let log = std::fs::read(log(store.directory(), job, &task.to_string()));
        let log = String::from_utf8_lossy(&log.unwrap_or_default()).into_owned();
        let state = states.get(&task).map_or("", String::as_str);
        let Some(why) = killed(state, &log) else { continue };
        if store.has_record(&record) {
            continue;
        }
        let reason = format!("Slurm killed task {task} of job {job}: {why}");
        record.failed.values_mut().for_each(|value| value.clone_from(&reason));
        store.add(&record)?;
    }
    store.set_job(None)
}

/// The states of a job's tasks, as long as the controller remembers them.
fn states(job: &str) -> BTreeMap<usize, String> {
    let mut squeue = Command::new("squeue");
    squeue.args(["--noheader", "--array", "--states=all", "--format=%K %T", "--jobs", job]);
    let listed = squeue.output().map(|out| String::from_utf8_lossy(&out.stdout).into_owned());
    parse_states(&listed.unwrap_or_default())
}

fn parse_states(listed: &str) -> BTreeMap<usize, String> {
    let row = |line: &str| {
        let (task, state) = line.trim().split_once(' ')?;
        Some((task.parse().ok()?, state.trim().to_owned()))
    };
    listed.lines().filter_map(row).collect()
}

/// Why Slurm killed a task, from its state or from what slurmstepd wrote into its log; `None` if it
/// ended for another reason.
fn killed(state: &str, log: &str) -> Option<&'static str> {
    const TIME: &str = "its time limit; raise it with --sbatch=--time=HOURS:MINUTES:SECONDS";
    const MEMORY: &str = "out of memory; raise the limit with --sbatch=--mem=SIZE";
    match state {
        "TIMEOUT" => return Some(TIME),
        "OUT_OF_MEMORY" => return Some(MEMORY),
        "DEADLINE" => return Some("its deadline"),
        _ => {}
    }
    let is_said = |words: &[&str]| {
        // The name of the node may follow.
        let mut lines = log.lines().filter(|line| line.starts_with("slurmstepd"));
        lines.any(|line| words.iter().any(|words| line.to_lowercase().contains(words)))
    };
    if is_said(&["due to time limit"]) {
        return Some(TIME);
    }
    let memory = ["oom-kill", "oom_kill", "out of memory", "exceeded memory", "memory limit"];
    is_said(&memory).then_some(MEMORY)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_are_disjoint_and_complete() {
        let mut all: Vec<u32> = Vec::new();
        for number in 0..3 {
            all.extend(Share { number, of: 3 }.select(0..10));
        }
        assert_eq!(all, [0, 3, 6, 9, 1, 4, 7, 2, 5, 8]);
        assert_eq!(Share::WHOLE.select(0..3).collect::<Vec<_>>(), [0, 1, 2]);
        assert_eq!("1/4".parse(), Ok(Share { number: 1, of: 4 }));
        assert_eq!(Share { number: 1, of: 4 }.to_string(), "1/4");
        for text in ["", "4", "4/4", "0/0", "x/2", "-1/2"] {
            assert_eq!(text.parse::<Share>(), Err(NoShare), "{text}");
        }
    }

    #[test]
    fn the_script_quotes_its_words() {
        let words = ["/bin/longhaul", "measure", "it's.toml"].map(str::to_owned);
        let directory = Path::new("/out");
        let options = [];
        let (name, kind) = ("x", "campaign");
        let array =
            JobArray { name, kind, words: &words, directory, tasks: 3, cpus: 2, options: &options };
        assert_eq!(
            array.script(directory),
            "#!/bin/sh\n#SBATCH --job-name=x\n#SBATCH --array=0-2\n#SBATCH --cpus-per-task=2\n\
             #SBATCH --output=\"/out/slurm-%A_%a.out\"\n\
             exec '/bin/longhaul' 'measure' 'it'\\''s.toml' --share \"$SLURM_ARRAY_TASK_ID/3\"\n"
        );
    }

    #[test]
    fn only_what_slurm_killed_has_a_reason() {
        let states = parse_states("0 COMPLETED\n1 TIMEOUT\n 12 OUT_OF_MEMORY \nN/A FAILED\n\n");
        assert_eq!(states.len(), 3, "{states:?}");
        let why = |task: usize| killed(&states[&task], "");
        assert_eq!(why(0), None);
        assert!(why(1).is_some_and(|why| why.contains("time limit")));
        assert!(why(12).is_some_and(|why| why.contains("out of memory")));
        let time = "slurmstepd: error: *** JOB 7 ON n1 CANCELLED AT 2026-01-02T03:04:05 DUE TO \
                    TIME LIMIT ***\n";
        assert!(killed("", time).is_some_and(|why| why.contains("time limit")));
        let memory = "slurmstepd: error: Detected 1 oom_kill event in StepId=7.batch.\n";
        assert!(killed("FAILED", memory).is_some_and(|why| why.contains("out of memory")));
        let memory = "slurmstepd-n1: error: StepId=2.batch exceeded memory limit (4 > 3)\n";
        assert!(killed("FAILED", memory).is_some_and(|why| why.contains("out of memory")));
        let cancelled = "slurmstepd: error: *** JOB 7 ON n1 CANCELLED AT 2026-01-02T03:04:05 ***\n";
        assert_eq!(killed("CANCELLED", cancelled), None);
        assert_eq!(killed("", "a program is out of memory\n"), None);
    }
}
