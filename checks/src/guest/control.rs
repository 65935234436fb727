//! Sends commands to a guest and receives their output; the guest's half is `agent.sh`.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

/// Functions for the guest's shell, which answers once it has them.
const AGENT: &str = include_str!("agent.sh");

/// Messages from the guest.
#[derive(Default)]
struct Heard {
    ready: bool,
    /// Exit codes of ended jobs, by number.
    ended: BTreeMap<u32, i32>,
    /// The guest has exited.
    closed: bool,
}

#[derive(Default)]
struct Ear {
    heard: Mutex<Heard>,
    news: Condvar,
}

/// The two ports of a guest.
pub struct Control {
    commands: Mutex<UnixStream>,
    results: Mutex<BufReader<UnixStream>>,
    ear: Arc<Ear>,
}

/// Reason why a guest did not answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Silence {
    /// No answer in time.
    #[error("the guest does not answer")]
    TooLong,
    /// QEMU or the guest's shell has exited.
    #[error("the guest has gone")]
    Gone,
}

impl Control {
    /// Uses port 1 and port 2.
    ///
    /// # Panics
    /// If the first cannot be opened twice.
    pub fn new(commands: UnixStream, results: UnixStream, patience: Duration) -> Self {
        let lines = BufReader::new(commands.try_clone().expect("a second descriptor"));
        let ear = Arc::new(Ear::default());
        let listener = Arc::clone(&ear);
        thread::spawn(move || listener.listen(lines));
        // A stream of any length must arrive in bounded time.
        results.set_read_timeout(Some(patience)).expect("a timeout above zero");
        Control {
            commands: Mutex::new(commands),
            results: Mutex::new(BufReader::new(results)),
            ear,
        }
    }

    /// Waits until the guest has booted.
    ///
    /// # Errors
    /// If it has not within `limit`.
    pub fn wait_ready(&self, limit: Duration) -> Result<(), Silence> {
        self.send(AGENT)?;
        self.ear.wait(limit, |heard| heard.ready.then_some(()))
    }

    /// Starts job `number`: `command` for dash, killed with all its children after `seconds`.
    ///
    /// # Errors
    /// If the guest has exited.
    pub fn start(&self, number: u32, seconds: u64, command: &str) -> Result<(), Silence> {
        self.send(&format!("job {number} {seconds} {}", quoted(command)))
    }

    /// Waits until job `number` exits. Returns its exit code, as in a shell.
    ///
    /// # Errors
    /// If it does not within `limit`.
    pub fn wait_end(&self, number: u32, limit: Duration) -> Result<i32, Silence> {
        self.ear.wait(limit, |heard| heard.ended.remove(&number))
    }

    /// `true` if job `number` has exited and was not waited for.
    pub fn has_ended(&self, number: u32) -> bool {
        self.ear.lock().ended.contains_key(&number)
    }

    /// Standard output and standard error of job `number` so far.
    ///
    /// # Errors
    /// If they do not arrive.
    pub fn fetch(&self, number: u32) -> Result<(String, String), Silence> {
        // After a panic in the middle of a stream, the rest of that stream would be read.
        let mut results = self.results.lock().map_err(|_| Silence::Gone)?;
        self.send(&format!("fetch {number}"))?;
        Ok((stream(&mut results)?, stream(&mut results)?))
    }

    /// Removes the files of job `number`.
    ///
    /// # Errors
    /// If the guest has exited.
    pub fn forget(&self, number: u32) -> Result<(), Silence> {
        self.send(&format!("forget {number}"))
    }

    /// Sends `signal`, without SIG, to all of job `number`.
    ///
    /// # Errors
    /// If the guest has exited.
    pub fn signal(&self, number: u32, signal: &str) -> Result<(), Silence> {
        self.send(&format!("stop {number} {signal}"))
    }

    fn send(&self, line: &str) -> Result<(), Silence> {
        let mut commands = self.commands.lock().unwrap_or_else(PoisonError::into_inner);
        commands.write_all(format!("{line}\n").as_bytes()).map_err(|_| Silence::Gone)
    }
}

impl Ear {
    fn lock(&self) -> MutexGuard<'_, Heard> {
        // Each line changes one field.
        self.heard.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn listen(&self, lines: BufReader<UnixStream>) {
        for line in lines.lines() {
            let Ok(line) = line else { break };
            let words: Vec<&str> = line.split_whitespace().collect();
            let mut heard = self.lock();
            match words[..] {
                ["ready"] => heard.ready = true,
                ["done", number, code] => {
                    if let (Ok(number), Ok(code)) = (number.parse(), code.parse()) {
                        heard.ended.insert(number, code);
                    }
                }
                _ => {}
            }
            self.news.notify_all();
        }
        self.lock().closed = true;
        self.news.notify_all();
    }

    fn wait<T>(
        &self,
        limit: Duration,
        mut look: impl FnMut(&mut Heard) -> Option<T>,
    ) -> Result<T, Silence> {
        let deadline = Instant::now() + limit;
        let mut heard = self.lock();
        loop {
            if let Some(found) = look(&mut heard) {
                return Ok(found);
            }
            if heard.closed {
                return Err(Silence::Gone);
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(Silence::TooLong);
            }
            heard = self.news.wait_timeout(heard, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}

/// Reads a line with a length, and as many bytes.
fn stream(results: &mut BufReader<UnixStream>) -> Result<String, Silence> {
    let mut length = String::new();
    results.read_line(&mut length).map_err(|_| Silence::TooLong)?;
    let length: u64 = length.trim().parse().map_err(|_| Silence::Gone)?;
    let mut bytes = Vec::new();
    results.by_ref().take(length).read_to_end(&mut bytes).map_err(|_| Silence::TooLong)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// Quotes text as one word for a shell.
fn quoted(text: &str) -> String {
    format!("'{}'", text.replace('\'', r"'\''"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quotes_survive_a_shell() {
        let text = "echo 'a  b'\n \"$HOME\" \\\\";
        let line = format!("printf %s {}", quoted(text));
        let done = std::process::Command::new("sh").args(["-c", &line]).output().unwrap();
        assert_eq!(String::from_utf8_lossy(&done.stdout), text);
    }
}
