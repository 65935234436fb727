//! A program: its start, its end and what it printed.

use longhaul_lab::die_with_parent;
use rustix::process::{Pid, Signal, kill_process, kill_process_group};
use std::fmt;
use std::fs;
use std::io::{self, Read};
use std::os::unix::process::CommandExt as _;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle, sleep};
use std::time::{Duration, Instant};

/// Interval of looks at a program.
pub(crate) const LOOK_AGAIN: Duration = Duration::from_millis(5);
/// Bytes of each output that are kept; more are read and dropped.
const KEPT_MAX: usize = 16 << 20;
/// Time for the rest of the output once a program has ended. Its descendants may hold the pipe.
const REST_WITHIN: Duration = Duration::from_secs(1);

/// Process group of a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Group {
    /// Its own: Ctrl-C at the terminal does not reach it, and its descendants end with it.
    Own,
    /// The caller's: Ctrl-C reaches it.
    Callers,
}

/// How a program learns that it should end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Interruption {
    /// By SIGINT.
    Signal,
    /// By the end of its standard input, as programs on other hosts.
    EndOfInput,
}

/// A program, which is killed on drop.
pub struct Process {
    name: String,
    child: Child,
    group: Group,
    interruption: Interruption,
    /// Standard output, and standard error.
    output: [Collected; 2],
}

/// A program that has ended.
#[derive(Clone, Debug)]
pub struct Ended {
    /// Its name, and where it ran.
    pub name: String,
    /// Its exit, if it ended by itself.
    pub status: Option<ExitStatus>,
    /// What it printed.
    pub stdout: String,
    /// What it printed as errors.
    pub stderr: String,
}

impl Ended {
    /// True if it ended by itself and reports success.
    pub fn is_success(&self) -> bool {
        self.status.is_some_and(|status| status.success())
    }

    /// Its exit.
    pub fn how(&self) -> String {
        self.status.map_or("did not end by itself".to_owned(), |status| status.to_string())
    }

    /// The last line of its errors, or else of its output.
    pub fn last_words(&self) -> Option<&str> {
        let is_blank = |text: &str| text.trim().is_empty();
        let of = if is_blank(&self.stderr) { &self.stdout } else { &self.stderr };
        of.lines().rfind(|line| !is_blank(line)).map(str::trim)
    }
}

impl fmt::Display for Ended {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}\n{}{}", self.name, self.how(), self.stdout, self.stderr)
    }
}

impl Process {
    /// Starts `command`, which errors call `name`. It ends with the calling thread.
    ///
    /// # Errors
    /// The operating system's.
    pub fn start(
        name: String,
        mut command: Command,
        interruption: Interruption,
        group: Group,
    ) -> io::Result<Self> {
        command.stdin(match interruption {
            Interruption::Signal => Stdio::null(),
            Interruption::EndOfInput => Stdio::piped(),
        });
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        if group == Group::Own {
            command.process_group(0);
        }
        die_with_parent(&mut command);
        let mut child = command.spawn()?;
        let output = [Collected::of(child.stdout.take()), Collected::of(child.stderr.take())];
        Ok(Process { name, child, group, interruption, output })
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Its exit status, once it has ended.
    pub fn status(&mut self) -> Option<ExitStatus> {
        self.child.try_wait().ok().flatten()
    }

    /// True if it listens on TCP `port`, or another program in its network.
    pub fn listens(&self, port: u16) -> bool {
        // From the kernel's table, because a server would take a connection for its client.
        ["tcp", "tcp6"].iter().any(|table| {
            let path = format!("/proc/{}/net/{table}", self.child.id());
            has_listener(&fs::read_to_string(path).unwrap_or_default(), port)
        })
    }

    /// True if it has printed `text`.
    pub fn says(&self, text: &str) -> bool {
        self.output.iter().any(|output| output.text().contains(text))
    }

    /// State and processor time of its first thread, in ticks of 10 ms.
    pub fn rest(&self) -> Option<(bool, u64)> {
        let id = self.child.id();
        let stat = fs::read_to_string(format!("/proc/{id}/task/{id}/stat")).ok()?;
        let columns: Vec<&str> = stat.rsplit_once(')')?.1.split_whitespace().collect();
        let ticks = |at: usize| columns.get(at)?.parse::<u64>().ok();
        Some((*columns.first()? == "S", ticks(11)? + ticks(12)?))
    }

    /// Time in which it ends once it was asked.
    pub fn ends_within(&self) -> Duration {
        match self.interruption {
            Interruption::Signal => Duration::from_secs(2),
            // The other host kills it after 2 s.
            Interruption::EndOfInput => Duration::from_secs(5),
        }
    }

    /// Asks it to end.
    pub fn interrupt(&mut self) {
        match self.interruption {
            Interruption::Signal => self.signal(Signal::INT),
            Interruption::EndOfInput => drop(self.child.stdin.take()),
        }
    }

    /// Sends `signal` to its group, or to it alone in the caller's group.
    fn signal(&self, signal: Signal) {
        let id = Pid::from_child(&self.child);
        // It may have ended. It is not reaped, so its id is not reused.
        let _ = match self.group {
            Group::Own => kill_process_group(id, signal),
            Group::Callers => kill_process(id, signal),
        };
    }

    /// Kills its group, waits for it, and returns what it printed.
    pub fn end(mut self) -> Ended {
        let status = self.status();
        self.kill();
        let [stdout, stderr] = self.output.each_mut().map(Collected::finish);
        Ended { name: std::mem::take(&mut self.name), status, stdout, stderr }
    }

    fn kill(&mut self) {
        // Descendants may outlive it.
        self.signal(Signal::KILL);
        let _ = self.child.wait();
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.kill();
    }
}

/// What a program has written to a pipe.
struct Collected {
    bytes: Arc<Mutex<Vec<u8>>>,
    reader: JoinHandle<()>,
}

impl Collected {
    fn of(pipe: Option<impl Read + Send + 'static>) -> Self {
        let bytes: Arc<Mutex<Vec<u8>>> = Arc::default();
        let kept = Arc::clone(&bytes);
        let reader = thread::spawn(move || {
            let Some(mut pipe) = pipe else { return };
            let mut some = [0; 16 << 10];
            loop {
                let count = match pipe.read(&mut some) {
                    Ok(count @ 1..) => count,
                    Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                    _ => return,
                };
                let mut kept = kept.lock().unwrap_or_else(PoisonError::into_inner);
                let room = KEPT_MAX.saturating_sub(kept.len()).min(count);
                kept.extend_from_slice(&some[..room]);
            }
        });
        Collected { bytes, reader }
    }

    fn text(&self) -> String {
        let bytes = self.bytes.lock().unwrap_or_else(PoisonError::into_inner);
        String::from_utf8_lossy(&bytes).into_owned()
    }

    fn finish(&mut self) -> String {
        let deadline = Instant::now() + REST_WITHIN;
        while !self.reader.is_finished() && Instant::now() < deadline {
            sleep(Duration::from_millis(1));
        }
        self.text()
    }
}

/// Returns whether the kernel's `table` of TCP sockets has a listener on `port`.
fn has_listener(table: &str, port: u16) -> bool {
    const LISTEN: &str = "0A";
    table.lines().skip(1).any(|row| {
        // Number, local address, remote address, state.
        let mut columns = row.split_whitespace().skip(1);
        let (local, state) =
            (columns.next().unwrap_or_default(), columns.nth(1).unwrap_or_default());
        state == LISTEN && local.ends_with(&format!(":{port:04X}"))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_listening_socket_is_found() {
        let table = "  sl  local_address rem_address   st tx_queue rx_queue\n   0: 0100007F:4853 \
                     00000000:0000 0A 0\n   1: 0100007F:4854 0100007F:C350 01 0\n";
        assert!(has_listener(table, 18515));
        assert!(!has_listener(table, 18516), "a connection");
        assert!(!has_listener(table, 0x853), "another port");
        assert!(!has_listener("", 18515));
    }

    #[test]
    fn a_program_ends_with_its_descendants_and_output() {
        let mut command = Command::new("sh");
        command.args(["-c", "echo out; echo err >&2; sleep 1000 & echo $!; wait"]);
        let mut process =
            Process::start("sh".to_owned(), command, Interruption::Signal, Group::Own).unwrap();
        let deadline = Instant::now() + Duration::from_secs(60);
        while process.output[0].text().lines().count() < 2 && Instant::now() < deadline {
            sleep(LOOK_AGAIN);
        }
        assert!(process.status().is_none() && process.says("err"));
        let ended = process.end();
        assert!(ended.status.is_none() && ended.how() == "did not end by itself", "{ended}");
        let sleeper = ended.stdout.lines().nth(1).unwrap().to_owned();
        assert_eq!((&ended.stdout[..4], ended.last_words()), ("out\n", Some("err")));
        let is_alive = || {
            fs::read_to_string(format!("/proc/{sleeper}/stat"))
                .is_ok_and(|stat| !stat.contains(") Z "))
        };
        while is_alive() {
            assert!(Instant::now() < deadline, "{sleeper} survives");
            sleep(LOOK_AGAIN);
        }
    }
}
