//! Runs Debian's ib_write_bw on both hosts and reads its result.

use super::cell::Cell;
use super::results::Run;
use super::{CLIENT, SERVER};
use crate::exec;
use crate::lab::{HostName, Lab};
use crate::problem::Problem;
use std::ffi::OsString;
use std::io::{self, Read};
use std::net::TcpListener;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

/// Where ib_write_bw exchanges addresses over TCP, before and after the transfer.
const EXCHANGE: &str = "127.0.0.1";
/// A run that takes this much longer than it should is hung.
const GRACE: Duration = Duration::from_secs(40);

/// Measures `cell` in `lab` for `seconds`.
pub fn measure(lab: &Lab, cell: &Cell, seconds: u32) -> Result<Run, Problem> {
    let port = free_tcp_port()?;
    let server_arguments = arguments(cell, seconds, port, None);
    let client_arguments = arguments(cell, seconds, port, Some(EXCHANGE));
    let mut server = Program::start(lab, SERVER, &server_arguments)?;
    // ib_write_bw does not retry its first connection; the server needs a moment to listen.
    sleep(Duration::from_millis(300));
    let mut client = Program::start(lab, CLIENT, &client_arguments)?;
    let deadline = Instant::now() + Duration::from_secs(u64::from(seconds) + 2) + GRACE;
    let output = client.finish(deadline)?;
    server.finish(deadline)?;
    let (goodput_gbps, mpps) = read_result(&output)
        .ok_or_else(|| Problem::plain(format!("ib_write_bw printed no result for {cell}:\n{output}")))?;
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
    // One second on either side is not counted: by then the store holds what it holds in steady state.
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
        let figures: Vec<f64> = line.split_whitespace().map_while(|word| word.parse().ok()).collect();
        if figures.len() == 5 && line.split_whitespace().count() == 5 {
            columns = Some((figures[3], figures[4]));
        }
    }
    columns
}

/// A program on a host of the lab; it dies with this one.
struct Program {
    name: String,
    child: Child,
}

impl Program {
    fn start(lab: &Lab, host: HostName, arguments: &[OsString]) -> Result<Self, Problem> {
        let mut command = exec::command(lab.dir(), host, arguments)?;
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        die_with_parent(&mut command);
        let name = format!("{} on host {host}", arguments[0].to_string_lossy());
        let child = command.spawn().map_err(|e| Problem::plain(format!("cannot run {name}: {e}")))?;
        Ok(Program { name, child })
    }

    /// Waits for the end and returns what it printed; an error when it fails or takes too long.
    fn finish(&mut self, deadline: Instant) -> Result<String, Problem> {
        let status = loop {
            match self.child.try_wait() {
                Ok(Some(status)) => break status,
                Ok(None) if Instant::now() < deadline => sleep(Duration::from_millis(20)),
                Ok(None) => {
                    let (out, err) = self.kill();
                    return Err(Problem::plain(format!("{} did not end in time\n{out}{err}", self.name)));
                }
                Err(e) => return Err(Problem::plain(format!("cannot wait for {}: {e}", self.name))),
            }
        };
        let (out, err) = (read_all(self.child.stdout.take()), read_all(self.child.stderr.take()));
        if status.success() {
            Ok(out)
        } else {
            Err(Problem::plain(format!("{} failed ({status})\n{out}{err}", self.name)))
        }
    }

    fn kill(&mut self) -> (String, String) {
        // It may have ended by itself in the meantime.
        let _ = self.child.kill();
        let _ = self.child.wait();
        (read_all(self.child.stdout.take()), read_all(self.child.stderr.take()))
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        if matches!(self.child.try_wait(), Ok(None)) {
            self.kill();
        }
    }
}

fn read_all(pipe: Option<impl Read>) -> String {
    let mut bytes = Vec::new();
    if let Some(mut pipe) = pipe {
        // What could be read is still worth showing.
        let _ = pipe.read_to_end(&mut bytes);
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

/// Has the kernel kill the child when this process goes, however it goes.
pub fn die_with_parent(command: &mut Command) {
    // SAFETY: between fork and exec only prctl is called, which is async-signal-safe.
    unsafe {
        command.pre_exec(|| match libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGTERM) {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_result_line_is_found() {
        let output = " #bytes     #iterations    BW peak[Gb/sec]    BW average[Gb/sec]   MsgRate[Mpps]\n \
                      65536      10000            0.00               9.81    \t\t   0.018715\n---\n";
        assert_eq!(read_result(output), Some((9.81, 0.018715)));
        assert_eq!(read_result("Couldn't listen to port 18515"), None);
    }
}
