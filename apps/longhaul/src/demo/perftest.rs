//! Runs Debian's ib_write_bw on both hosts and reads its result.

use super::cell::Cell;
use super::results::Run;
use super::{CLIENT, SERVER};
use crate::exec;
use crate::problem::Problem;
use longhaul_lab::{HostName, Lab, die_with_parent};
use std::ffi::OsString;
use std::fmt;
use std::fs;
use std::io::Read;
use std::net::TcpListener;
use std::process::{Child, Stdio};
use std::thread::{self, JoinHandle, sleep};
use std::time::{Duration, Instant};

/// Address of ib_write_bw's TCP exchanges before and after the transfer.
const EXCHANGE: &str = "127.0.0.1";
const LOOK_AGAIN: Duration = Duration::from_millis(10);
/// Time beyond the expected duration after which a run counts as hung.
const GRACE: Duration = Duration::from_secs(40);

/// Time limit for a server to listen.
const LISTENS_WITHIN: Duration = Duration::from_secs(15);
/// Time limit for a server to end after its client failed.
const AFTER_FAILURE: Duration = Duration::from_secs(1);

/// Measures `cell` in `lab` for `seconds`.
pub fn measure(lab: &Lab, cell: &Cell, seconds: u32) -> Result<Run, Problem> {
    let port = free_tcp_port()?;
    let server_arguments = arguments(cell, seconds, port, None);
    let client_arguments = arguments(cell, seconds, port, Some(EXCHANGE));
    let mut server = Program::start(lab, SERVER, &server_arguments)?;
    // ib_write_bw does not retry its first connection.
    if !server.listens(port) {
        return Err(Problem::plain(format!(
            "the server never listened\n{}",
            server.end(Instant::now())
        )));
    }
    let client = Program::start(lab, CLIENT, &client_arguments)?;
    let deadline = Instant::now() + Duration::from_secs(u64::from(seconds) + 2) + GRACE;
    let client = client.end(deadline);
    let server =
        server.end(if client.is_success { deadline } else { Instant::now() + AFTER_FAILURE });
    if !(client.is_success && server.is_success) {
        return Err(Problem::plain(format!("the run failed\n{client}\n{server}")));
    }
    let output = client.stdout;
    let (goodput_gbps, mpps) = read_result(&output).ok_or_else(|| {
        Problem::plain(format!("ib_write_bw printed no result for {cell}:\n{output}"))
    })?;
    Ok(Run {
        distance_km: cell.distance.km(),
        message_bytes: cell.message.bytes(),
        accelerated: cell.accelerated,
        goodput_gbps,
        messages_per_second: mpps * 1e6,
        command: client_arguments.iter().map(|a| a.to_string_lossy()).collect::<Vec<_>>().join(" "),
    })
}

fn arguments(cell: &Cell, seconds: u32, port: u16, server: Option<&str>) -> Vec<OsString> {
    // One second at either end is not counted, so that the store is in steady state.
    let text = format!(
        "ib_write_bw -d longhaul0 -F --report_gbits -s {} -D {} -f 1 -p {port}",
        cell.message.bytes(),
        seconds + 2
    );
    text.split(' ').map(OsString::from).chain(server.map(OsString::from)).collect()
}

fn free_tcp_port() -> Result<u16, Problem> {
    TcpListener::bind(("127.0.0.1", 0))
        .and_then(|listener| listener.local_addr())
        .map(|address| address.port())
        .map_err(|e| Problem::plain(format!("no TCP port is free on 127.0.0.1: {e}")))
}

/// The average bandwidth in Gbit/s and the message rate in Mpps of the last line of figures.
fn read_result(output: &str) -> Option<(f64, f64)> {
    let mut columns = None;
    for line in output.lines() {
        let figures: Vec<f64> =
            line.split_whitespace().map_while(|word| word.parse().ok()).collect();
        if figures.len() == 5 && line.split_whitespace().count() == 5 {
            columns = Some((figures[3], figures[4]));
        }
    }
    columns
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
    fn start(lab: &Lab, host: HostName, arguments: &[OsString]) -> Result<Self, Problem> {
        let mut command = exec::command(lab.dir(), host, arguments)?;
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        die_with_parent(&mut command);
        let name = format!("{} on host {host}", arguments[0].to_string_lossy());
        let mut child =
            command.spawn().map_err(|e| Problem::plain(format!("cannot run {name}: {e}")))?;
        let output = vec![collect(child.stdout.take()), collect(child.stderr.take())];
        Ok(Program { name, child, output })
    }

    /// Waits until a process listens on TCP `port`; returns `false` if the program ends or takes
    /// too long.
    fn listens(&mut self, port: u16) -> bool {
        let deadline = Instant::now() + LISTENS_WITHIN;
        while Instant::now() < deadline && matches!(self.child.try_wait(), Ok(None)) {
            if is_listened_on(port) {
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

/// Returns whether a process listens on TCP `port`, from the kernel's table, because the server
/// would take a connection for a client.
fn is_listened_on(port: u16) -> bool {
    let tables = ["/proc/net/tcp", "/proc/net/tcp6"]
        .map(|path| fs::read_to_string(path).unwrap_or_default());
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

    #[test]
    fn the_result_line_is_found() {
        let output = " #bytes     #iterations    BW peak[Gb/sec]    BW average[Gb/sec]   \
                      MsgRate[Mpps]\n 65536      10000            0.00               9.81    \
                      \t\t   0.018715\n---\n";
        assert_eq!(read_result(output), Some((9.81, 0.018715)));
        assert_eq!(read_result("Couldn't listen to port 18515"), None);
    }
}
