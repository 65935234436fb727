//! The process of a stage: its output, its exit, and killing it.

use super::{BUILT, GRACE, SKIPPED, SKIPPED_BECAUSE};
use crate::cargo::target;
use std::collections::HashSet;
use std::fs::{self, File};
use std::io::{BufRead, BufReader, Read, Write};
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::Mutex;
use std::thread;
use std::time::{Duration, Instant};

/// Prefix of the line with a stage's error.
pub const FAILED_BECAUSE: &str = "xtask: stage failed: ";
/// Interval of progress messages for a silent stage.
const PROGRESS: Duration = Duration::from_secs(300);
const LOOK_AGAIN: Duration = Duration::from_millis(200);
/// Maximum tests named in the summary.
const NAMED_MAX: usize = 20;

/// Result of a stage.
#[derive(Debug)]
pub enum Ending {
    Passed,
    Skipped {
        why: String,
    },
    Failed {
        why: String,
        tests: Vec<String>,
    },
    /// Killed at its limit, with the tests that had failed until then.
    Late {
        tests: Vec<String>,
    },
}

/// Information parsed from a stage's output.
#[derive(Default)]
struct Said {
    skipped: Option<String>,
    failed: Option<String>,
    tests: Vec<String>,
    last: String,
    built_at: Option<Instant>,
}

impl Said {
    fn hear(&mut self, line: &str) {
        if line == BUILT {
            self.built_at = Some(Instant::now());
        } else if let Some(why) = line.strip_prefix(SKIPPED_BECAUSE) {
            self.skipped = Some(why.to_owned());
        } else if let Some(why) = line.strip_prefix(FAILED_BECAUSE) {
            self.failed = Some(why.to_owned());
        } else if let Some(test) = failed_test(line)
            && self.tests.len() < NAMED_MAX
        {
            self.tests.push(test.to_owned());
        }
        if !line.trim().is_empty() {
            line.clone_into(&mut self.last);
        }
    }
}

/// Returns the name in `test NAME ... FAILED`; with `--nocapture` the test's output is in between.
fn failed_test(line: &str) -> Option<&str> {
    let name = line.strip_prefix("test ")?.strip_suffix("FAILED")?;
    name.split(" ... ").next()
}

/// Runs the stage `name`, for at most `limit` after its builds, with `variables` in its
/// environment.
pub fn run(
    root: &Path,
    name: &str,
    place: &str,
    variables: &[(&str, String)],
    limit: Duration,
) -> Result<Ending, String> {
    let folder = target(root).join("nightly");
    let path = folder.join(format!("{name}.log"));
    let unwritable = |e| format!("{}: {e}", path.display());
    fs::create_dir_all(&folder).map_err(unwritable)?;
    let log = File::create(&path).map_err(unwritable)?;
    let program = std::env::current_exe().map_err(|e| format!("where is this program? {e}"))?;
    let mut command = Command::new(program);
    command
        .args(["nightly", "--stage", name])
        .envs(variables.iter().map(|(name, value)| (name, value)));
    let child = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
    let mut child = child.map_err(|e| format!("cannot run the stage: {e}"))?;
    let said = Mutex::new((Said::default(), log));
    let (stdout, stderr) = (child.stdout.take(), child.stderr.take());
    let status = thread::scope(|scope| {
        scope.spawn(|| copy(stdout, &said, std::io::stdout()));
        scope.spawn(|| copy(stderr, &said, std::io::stderr()));
        wait(&mut child, place, &said, limit)
    })?;
    let (said, _) = said.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner);
    Ok(ending(status, said, &path))
}

fn ending(status: Option<ExitStatus>, said: Said, log: &Path) -> Ending {
    let Some(status) = status else { return Ending::Late { tests: said.tests } };
    match (status.code(), said.skipped, said.failed) {
        (Some(0), ..) => Ending::Passed,
        (Some(code), Some(why), _) if code == i32::from(SKIPPED) => Ending::Skipped { why },
        (_, _, failed) => {
            let why = failed.unwrap_or_else(|| status.to_string());
            Ending::Failed { why: format!("{why}; {}", log.display()), tests: said.tests }
        }
    }
}

/// Copies lines to `out`, to the log, and to the search for failures.
fn copy(from: Option<impl Read>, said: &Mutex<(Said, File)>, mut out: impl Write) {
    let Some(from) = from else { return };
    let (mut from, mut line) = (BufReader::new(from), Vec::new());
    while from.read_until(b'\n', &mut line).is_ok_and(|len| len > 0) {
        // A closed output or a full disk must not stop the stage.
        let _ = out.write_all(&line).and_then(|()| out.flush());
        if let Ok(mut said) = said.lock() {
            let _ = said.1.write_all(&line);
            said.0.hear(String::from_utf8_lossy(&line).trim_end());
        }
        line.clear();
    }
}

/// Waits for the stage; `None` if it was killed.
fn wait(
    child: &mut Child,
    place: &str,
    said: &Mutex<(Said, File)>,
    limit: Duration,
) -> Result<Option<ExitStatus>, String> {
    let started = Instant::now();
    let mut next = PROGRESS;
    loop {
        if let Some(status) = child.try_wait().map_err(|e| format!("waiting for the stage: {e}"))? {
            return Ok(Some(status));
        }
        let elapsed = started.elapsed();
        let built_at = said.lock().ok().and_then(|said| said.0.built_at);
        if built_at.map_or(elapsed > limit + GRACE, |at| at.elapsed() > limit) {
            end(child);
            return Ok(None);
        }
        if elapsed > next {
            let last = said.lock().map(|said| said.0.last.clone()).unwrap_or_default();
            eprintln!("== {place}: {} min; last: {last}", elapsed.as_secs() / 60);
            next += PROGRESS;
        }
        thread::sleep(LOOK_AGAIN);
    }
}

/// Kills a stage with its descendants, and takes down the labs of its tests.
fn end(child: &mut Child) {
    let all = descendants(child.id());
    let numbers = all.iter().map(u32::to_string);
    let _ = Command::new("kill").arg("-KILL").args(numbers).stderr(Stdio::null()).status();
    let _ = child.wait();
    for entry in fs::read_dir("/tmp").into_iter().flatten().flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        let process = name.strip_prefix("longhaul-check-").and_then(|rest| rest.split('-').next());
        if process.and_then(|id| id.parse().ok()).is_some_and(|id| all.contains(&id)) {
            take_down(&entry.path());
        }
    }
}

/// Takes down the lab whose files are in the folder of a killed test.
fn take_down(folder: &Path) {
    let mut command = Command::new(crate::program::path(&crate::workspace()));
    command.args(["lab", "down", "--name", "check"]).env("XDG_RUNTIME_DIR", folder);
    let _ = command.stdout(Stdio::null()).stderr(Stdio::null()).status();
    let _ = fs::remove_dir_all(folder);
}

/// Returns a process and its descendants, as far as their parents are alive.
fn descendants(of: u32) -> HashSet<u32> {
    let mut parents: Vec<(u32, u32)> = Vec::new();
    for entry in fs::read_dir("/proc").into_iter().flatten().flatten() {
        let Some(id) = entry.file_name().to_str().and_then(|name| name.parse().ok()) else {
            continue;
        };
        let Ok(stat) = fs::read_to_string(entry.path().join("stat")) else { continue };
        // The name, in parentheses, may contain anything; state and parent follow it.
        let Some((_, rest)) = stat.rsplit_once(')') else { continue };
        parents.extend(
            rest.split_whitespace().nth(1).and_then(|parent| parent.parse().ok()).map(|p| (id, p)),
        );
    }
    let mut all = HashSet::from([of]);
    loop {
        let before = all.len();
        all.extend(
            parents
                .iter()
                .filter(|(_, parent)| all.contains(parent))
                .map(|(id, _)| *id)
                .collect::<Vec<_>>(),
        );
        if all.len() == before {
            return all;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn output_tells_why_a_stage_failed_and_which_tests_did() {
        let mut said = Said::default();
        for line in [
            "test right::one ... ok",
            "test wrong::one ... FAILED",
            "test loud ... printed this FAILED",
            "test result: FAILED. 1 passed",
            "xtask: stage failed: cargo test failed",
        ] {
            said.hear(line);
        }
        assert_eq!(said.tests, ["wrong::one", "loud"]);
        assert_eq!(said.failed.as_deref(), Some("cargo test failed"));
    }

    #[test]
    fn a_stage_that_hangs_is_ended_with_what_it_started() {
        let mut child = Command::new("sh").args(["-c", "sleep 1000 & sleep 1000"]).spawn().unwrap();
        let started = Instant::now();
        let all = loop {
            let all = descendants(child.id());
            if all.len() == 3 || started.elapsed() > Duration::from_secs(60) {
                break all;
            }
        };
        let said = Said { built_at: Some(started), ..Said::default() };
        let said = Mutex::new((said, File::open("/dev/null").unwrap()));
        assert_eq!(wait(&mut child, "", &said, Duration::ZERO), Ok(None));
        assert_eq!(all.len(), 3, "the shell and its two");
        let lives = |id: &u32| {
            let state = fs::read_to_string(format!("/proc/{id}/stat")).unwrap_or_default();
            state.rsplit_once(") ").is_some_and(|(_, rest)| !rest.starts_with('Z'))
        };
        while all.iter().any(lives) {
            assert!(started.elapsed() < Duration::from_secs(60), "they live on");
            thread::sleep(LOOK_AGAIN);
        }
    }
}
