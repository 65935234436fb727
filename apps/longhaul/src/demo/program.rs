//! A client and its server on the hosts of the demo's lab.

use super::{CLIENT, SERVER};
use crate::exec;
use crate::problem::Problem;
use longhaul_campaign::parser::Values;
use longhaul_campaign::{Ended, Group, Launch, Programs, Ready};
use longhaul_lab::{HostName, Lab};
use std::ffi::OsString;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

/// Time beyond the expected duration after which a run counts as hung.
const GRACE: Duration = Duration::from_secs(40);

/// Runs `server`, which listens on TCP `port`, and `client`, which measures for `expected`. Returns
/// what the client printed.
pub fn run(
    lab: &Lab,
    server: &str,
    client: &str,
    port: u16,
    expected: Duration,
) -> Result<Ended, Problem> {
    let programs = Programs {
        servers: vec![(launch(lab, SERVER, server)?, Ready::Listens(port))],
        clients: vec![launch(lab, CLIENT, client)?],
        server_ends: true,
        limit: expected + GRACE,
        group: Group::Callers,
    };
    let never = AtomicBool::new(false);
    let client = programs.run(&never).map(|mut output| output.clients.swap_remove(0));
    client.map_err(|fault| {
        let printed = fault.outputs().iter().map(ToString::to_string).collect::<String>();
        Problem::plain(format!("the run failed: {fault}\n{printed}"))
    })
}

/// The goodput among a program's results.
pub fn goodput_gbps(values: &Values) -> Result<f64, Problem> {
    let goodput = values.get("goodput_bps").map(|bps| bps / 1e9);
    goodput.ok_or_else(|| Problem::plain("the program printed no goodput"))
}

/// A program on `host`.
fn launch(lab: &Lab, host: HostName, line: &str) -> Result<Launch, Problem> {
    let words: Vec<OsString> = line.split(' ').map(OsString::from).collect();
    let name = format!("{} on host {host}", words[0].to_string_lossy());
    Ok(Launch::here(name, exec::command(lab.dir(), host, &words)?))
}
