//! Commands for a bypass NIC, which connects its two ports to each other when it is told to, or
//! when nothing has told it for a while that its box lives.
//!
//! The guard runs them, one at a time and without waiting for them: what hangs or fails is reported
//! and stops nothing.

use longhaul_units::Duration as Span;
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use serde::{Deserialize, Deserializer, Serialize};
use std::fmt;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use thiserror::Error;

/// Time limit of a command, after which it is killed.
const LIMIT: Duration = Duration::from_secs(5);

/// The commands, and the time between heartbeats.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Bypass {
    /// Makes the NIC connect its ports to the box: run once the box forwards.
    #[serde(default)]
    pub armed: Option<Words>,
    /// Makes the NIC connect its ports to each other: run when a box that has forwarded ends,
    /// however it ends.
    #[serde(default)]
    pub open: Option<Words>,
    /// Tells the NIC that the box lives: run while the box forwards.
    #[serde(default)]
    pub heartbeat: Option<Words>,
    /// Time between heartbeats, in milliseconds.
    #[serde(default = "second", deserialize_with = "interval")]
    pub interval: Duration,
}

fn second() -> Duration {
    Duration::from_secs(1)
}

fn interval<'de, D: Deserializer<'de>>(from: D) -> Result<Duration, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum Given {
        Text(String),
        Known(Duration),
    }
    let span: Span = match Given::deserialize(from)? {
        Given::Known(known) => return Ok(known),
        Given::Text(text) => text.parse().map_err(serde::de::Error::custom)?,
    };
    match Duration::from_nanos(span.as_ns()) {
        Duration::ZERO => Err(serde::de::Error::custom("heartbeats need time between them")),
        interval => Ok(interval),
    }
}

/// A command: a program with its arguments, split at spaces. There is no shell.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Words(Vec<String>);

/// The text has no word.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("write a program and its arguments, split at spaces; there is no shell")]
pub struct NoWords;

impl TryFrom<String> for Words {
    type Error = NoWords;

    fn try_from(text: String) -> Result<Self, NoWords> {
        let words: Vec<String> = text.split_whitespace().map(str::to_string).collect();
        if words.is_empty() { Err(NoWords) } else { Ok(Words(words)) }
    }
}

impl From<Words> for String {
    fn from(words: Words) -> String {
        words.0.join(" ")
    }
}

/// Which of the commands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Which {
    /// [`Bypass::armed`].
    Armed,
    /// [`Bypass::open`].
    Open,
    /// [`Bypass::heartbeat`].
    Heartbeat,
}

impl fmt::Display for Which {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Which::Armed => "armed",
            Which::Open => "open",
            Which::Heartbeat => "heartbeat",
        })
    }
}

/// How a command ended: well, or why not.
pub type Ended = (Which, Result<(), String>);

/// Runs the commands.
pub struct Runner {
    bypass: Bypass,
    running: Option<Running>,
    /// Killed, but perhaps stuck in the kernel.
    killed: Vec<Child>,
}

struct Running {
    which: Which,
    process: Child,
    /// Readable once the process has ended.
    ended: Option<OwnedFd>,
    until: Instant,
}

impl Runner {
    /// A runner of these commands, of which none runs.
    pub fn new(bypass: Bypass) -> Self {
        Runner { bypass, running: None, killed: Vec::new() }
    }

    /// Starts a command, if it is given and none runs; a heartbeat only if none that was killed is
    /// left. Returns why it cannot be started.
    pub fn start(&mut self, which: Which) -> Option<Ended> {
        let words = match which {
            Which::Armed => &self.bypass.armed,
            Which::Open => &self.bypass.open,
            Which::Heartbeat => &self.bypass.heartbeat,
        };
        let (program, arguments) = words.as_ref()?.0.split_first()?;
        self.killed.retain_mut(|killed| matches!(killed.try_wait(), Ok(None)));
        let waits = which == Which::Heartbeat && !self.killed.is_empty();
        if self.running.is_some() || waits {
            return None;
        }
        let mut command = Command::new(program);
        let started = command.args(arguments).stdin(Stdio::null()).stdout(Stdio::null()).spawn();
        match started {
            Ok(process) => {
                let pid = i32::try_from(process.id()).ok().and_then(Pid::from_raw);
                let ended = pid.and_then(|pid| pidfd_open(pid, PidfdFlags::empty()).ok());
                let until = Instant::now() + LIMIT;
                self.running = Some(Running { which, process, ended, until });
                None
            }
            Err(error) => Some((which, Err(format!("{program}: {error}")))),
        }
    }

    /// Readable once the command that runs has ended.
    pub fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        self.running.as_ref()?.ended.as_ref().map(AsFd::as_fd)
    }

    /// When the command that runs is killed.
    pub fn deadline(&self) -> Option<Instant> {
        self.running.as_ref().map(|running| running.until)
    }

    /// Takes note of a command that has ended, and kills one that runs for too long.
    pub fn look(&mut self) -> Option<Ended> {
        let running = self.running.as_mut()?;
        let ended = match running.process.try_wait() {
            Ok(Some(status)) if status.success() => Ok(()),
            Ok(Some(status)) => Err(status.to_string()),
            Ok(None) if Instant::now() < running.until => return None,
            Ok(None) => Err(format!("killed, because it ran for {} s", LIMIT.as_secs())),
            Err(error) => Err(error.to_string()),
        };
        let which = running.which;
        self.stop();
        Some((which, ended))
    }

    /// Kills what still runs, without waiting for its end.
    fn stop(&mut self) {
        if let Some(Running { mut process, .. }) = self.running.take()
            && matches!(process.try_wait(), Ok(None))
        {
            // It may have ended meanwhile.
            let _ = process.kill();
            self.killed.push(process);
        }
    }

    /// Opens the bypass because the box has ended: kills what still runs, and waits for the
    /// command.
    pub fn open(&mut self) -> Option<Ended> {
        self.stop();
        let failed = self.start(Which::Open);
        while failed.is_none() && self.running.is_some() {
            if let Some(ended) = self.look() {
                return Some(ended);
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        failed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn runner(text: &str) -> Runner {
        Runner::new(toml::from_str(text).unwrap())
    }

    fn end(runner: &mut Runner) -> Ended {
        loop {
            if let Some(ended) = runner.look() {
                return ended;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    #[test]
    fn commands_are_words_and_the_interval_is_a_time() {
        let text = "armed = 'nic  arm 1'\nopen = 'nic open'\ninterval = '250ms'";
        let bypass: Bypass = toml::from_str(text).unwrap();
        let words = ["nic", "arm", "1"].map(str::to_string);
        assert_eq!(bypass.armed, Some(Words(words.to_vec())));
        assert_eq!((bypass.interval, &bypass.heartbeat), (Duration::from_millis(250), &None));
        let sent = serde_json::to_string(&bypass).unwrap();
        assert_eq!(serde_json::from_str::<Bypass>(&sent).unwrap(), bypass);
        for text in ["open = ' '", "interval = '0s'", "interval = 'soon'"] {
            assert!(toml::from_str::<Bypass>(text).is_err(), "{text}");
        }
    }

    #[test]
    fn what_fails_is_told_and_what_hangs_is_killed() {
        let mut runner = runner("armed = 'false'\nopen = 'true'\nheartbeat = 'sleep 1000'");
        assert_eq!(runner.start(Which::Armed), None);
        let (which, ended) = end(&mut runner);
        assert!(which == Which::Armed && ended.unwrap_err().contains("exit status: 1"));
        assert_eq!(runner.start(Which::Heartbeat), None);
        assert_eq!(runner.look(), None);
        // None starts beside it.
        assert_eq!(runner.start(Which::Armed), None);
        assert!(runner.descriptor().is_some());
        runner.running.as_mut().unwrap().until = Instant::now();
        let (which, ended) = end(&mut runner);
        assert!(which == Which::Heartbeat && ended.unwrap_err().contains("killed"));
        // Opening does not wait for a heartbeat.
        runner.start(Which::Heartbeat);
        assert_eq!(runner.open(), Some((Which::Open, Ok(()))));
    }

    #[test]
    fn a_program_that_is_not_there_is_told_and_what_is_not_given_is_not_run() {
        let mut runner = runner("open = '/no/such/program now'");
        assert_eq!(runner.start(Which::Heartbeat), None);
        assert!(runner.descriptor().is_none());
        let (which, ended) = runner.open().unwrap();
        assert!(which == Which::Open && ended.unwrap_err().contains("/no/such/program"));
    }
}
