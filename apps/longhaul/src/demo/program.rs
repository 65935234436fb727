//! A program on a host of the demo's lab: its start, its end and what it printed.

use crate::exec;
use crate::problem::Problem;
use longhaul_lab::{HostName, Lab, die_with_parent};
use std::ffi::OsString;
use std::fmt;
use std::fs;
use std::io::Read;
use std::process::{Child, Stdio};
use std::thread::{self, JoinHandle, sleep};
use std::time::{Duration, Instant};

const LOOK_AGAIN: Duration = Duration::from_millis(10);
/// Time beyond the expected duration after which a run counts as hung.
const GRACE: Duration = Duration::from_secs(40);
/// Time limit for a server to listen.
const LISTENS_WITHIN: Duration = Duration::from_secs(15);
/// Time limit for a server to end after its client failed.
const AFTER_FAILURE: Duration = Duration::from_secs(1);

/// A client and a server that listens on TCP `port`, by the words of their command lines.
pub struct Pair<'a> {
    pub server: (HostName, &'a str),
    pub client: (HostName, &'a str),
    pub port: u16,
    /// Time that they take.
    pub expected: Duration,
}

impl Pair<'_> {
    /// Runs both, and returns what the client printed.
    pub fn run(&self, lab: &Lab) -> Result<String, Problem> {
        let mut server = Program::start(lab, self.server)?;
        // Neither ib_write_bw nor iperf3 retries its first connection.
        if !server.listens(self.port) {
            let server = server.end(Instant::now());
            return Err(Problem::plain(format!("the server never listened\n{server}")));
        }
        let client = Program::start(lab, self.client)?;
        let deadline = Instant::now() + self.expected + GRACE;
        let client = client.end(deadline);
        let server =
            server.end(if client.is_success { deadline } else { Instant::now() + AFTER_FAILURE });
        if !(client.is_success && server.is_success) {
            return Err(Problem::plain(format!("the run failed\n{client}\n{server}")));
        }
        Ok(client.stdout)
    }
}

/// A program on a host of the lab, killed on drop.
struct Program {
    name: String,
    child: Child,
    /// Readers of standard output and standard error: a full pipe would block the program.
    output: Vec<JoinHandle<String>>,
}

/// A program that has ended.
struct Ended {
    name: String,
    /// Description of its exit.
    how: String,
    is_success: bool,
    stdout: String,
    stderr: String,
}

impl fmt::Display for Ended {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}\n{}{}", self.name, self.how, self.stdout, self.stderr)
    }
}

impl Program {
    fn start(lab: &Lab, (host, command_line): (HostName, &str)) -> Result<Self, Problem> {
        let words: Vec<OsString> = command_line.split(' ').map(OsString::from).collect();
        let mut command = exec::command(lab.dir(), host, &words)?;
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        die_with_parent(&mut command);
        let name = format!("{} on host {host}", words[0].to_string_lossy());
        let mut child =
            command.spawn().map_err(|e| Problem::plain(format!("cannot run {name}: {e}")))?;
        let output = vec![collect(child.stdout.take()), collect(child.stderr.take())];
        Ok(Program { name, child, output })
    }

    /// Waits until a process listens on TCP `port` on the program's host; returns `false` if the
    /// program ends or takes too long.
    fn listens(&mut self, port: u16) -> bool {
        let deadline = Instant::now() + LISTENS_WITHIN;
        while Instant::now() < deadline && matches!(self.child.try_wait(), Ok(None)) {
            if is_listened_on(self.child.id(), port) {
                return true;
            }
            sleep(LOOK_AGAIN);
        }
        false
    }

    /// Waits for the program, and kills it at the deadline.
    fn end(mut self, deadline: Instant) -> Ended {
        let (how, is_success) = loop {
            match self.child.try_wait() {
                Ok(Some(status)) => break (status.to_string(), status.success()),
                Ok(None) if Instant::now() < deadline => sleep(LOOK_AGAIN),
                Ok(None) => break ("did not end by itself".to_string(), false),
                Err(e) => break (format!("cannot be waited for: {e}"), false),
            }
        };
        self.kill();
        let mut texts = self.output.drain(..).map(|reader| reader.join().unwrap_or_default());
        let (stdout, stderr) = (texts.next().unwrap_or_default(), texts.next().unwrap_or_default());
        drop(texts);
        Ended { name: std::mem::take(&mut self.name), how, is_success, stdout, stderr }
    }

    /// No effect on a program that was waited for.
    fn kill(&mut self) {
        // It may already have ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        self.kill();
    }
}

fn collect(pipe: Option<impl Read + Send + 'static>) -> JoinHandle<String> {
    thread::spawn(move || {
        let mut bytes = Vec::new();
        if let Some(mut pipe) = pipe {
            // Partial output is still useful.
            let _ = pipe.read_to_end(&mut bytes);
        }
        String::from_utf8_lossy(&bytes).into_owned()
    })
}

/// Returns whether a process in the network namespace of process `id` listens on TCP `port`, from
/// the kernel's table, because the server would take a connection for a client.
fn is_listened_on(id: u32, port: u16) -> bool {
    let tables = ["tcp", "tcp6"]
        .map(|table| fs::read_to_string(format!("/proc/{id}/net/{table}")).unwrap_or_default());
    tables.iter().any(|table| has_listener(table, port))
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
}
