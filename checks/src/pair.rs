//! A server and its client: conditions for the client's start, and the required exit of both.

use crate::process::stat_columns;
use crate::program::{Finished, Program};
use std::fs;
use std::net::{Ipv4Addr, TcpListener};
use std::ops::Range;
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread::sleep;
use std::time::{Duration, Instant};

/// Time limit of quick operations that may hang.
pub(crate) const LIMIT: Duration = Duration::from_secs(120);
const LOOK_AGAIN: Duration = Duration::from_millis(10);

/// Condition for the start of a client.
#[derive(Clone, Copy, Debug)]
pub enum Ready {
    /// Once its server listens on this TCP port.
    Tcp(u16),
    /// Once its server is attached to the network and sleeps: its RDMA-CM listeners are not
    /// visible.
    Attached,
}

/// Waits until the first thread of process `id` has slept for a while without using the processor,
/// as a server does that waits for its client. Some servers spin: the wait ends when the thread has
/// used the processor for longer than any server needs until it listens.
pub fn wait_until_asleep(id: u32) {
    const LOOKS: u32 = 10;
    const INTERVAL: Duration = Duration::from_millis(40);
    /// Three seconds.
    const TICKS_MAX: u64 = 300;
    let deadline = Instant::now() + LIMIT;
    let (mut quiet, mut before) = (0, None);
    while quiet < LOOKS && Instant::now() < deadline {
        sleep(INTERVAL);
        let Some((sleeps, ticks)) = first_thread(id) else { return };
        if ticks > TICKS_MAX {
            return;
        }
        quiet = if sleeps && before == Some(ticks) { quiet + 1 } else { 0 };
        before = Some(ticks);
    }
}

/// Whether a process's first thread sleeps, and its processor time in ticks of 10 ms; `None` once
/// the process has ended.
fn first_thread(id: u32) -> Option<(bool, u64)> {
    let columns = stat_columns(&format!("/proc/{id}/task/{id}/stat"))?;
    let state = columns.first()?.as_str();
    let ticks = |at: usize| columns.get(at)?.parse::<u64>().ok();
    (state != "Z").then_some((state == "S", ticks(11)? + ticks(12)?))
}

/// Starts `client` beside the running `server` and waits for both ends: both must succeed, the
/// client within `limit`.
///
/// # Errors
/// The output of both, if one of them fails or hangs.
pub(crate) fn end_both(
    server: Program,
    client: &mut Command,
    limit: Duration,
) -> Result<(Finished, Finished), String> {
    let client = Program::start(client).end_within(limit);
    // Its peer is gone: the server exits soon, or never.
    let server = server.end_within(LIMIT);
    both(server, client)
}

/// Both ends, which must have succeeded.
///
/// # Errors
/// The output of both, if one of them failed or hung.
pub(crate) fn both(
    server: Result<Finished, String>,
    client: Result<Finished, String>,
) -> Result<(Finished, Finished), String> {
    match (server, client) {
        (Ok(server), Ok(client)) if server.status.success() && client.status.success() => {
            Ok((server, client))
        }
        (server, client) => {
            let text = |outcome: Result<Finished, String>| match outcome {
                Ok(finished) => finished.to_string(),
                Err(hung) => hung,
            };
            Err(format!("=== the client\n{}\n=== the server\n{}", text(client), text(server)))
        }
    }
}

/// Ports that the kernel gives no client by itself (`ip_local_port_range` begins at 32768): one
/// that is free stays so until a program listens.
const PORTS: Range<u16> = 20_000..32_000;

/// An unused TCP port.
///
/// # Panics
/// If there is none.
pub fn free_tcp_port() -> u16 {
    static GIVEN: AtomicU32 = AtomicU32::new(0);
    let mut ports = PORTS.map(|_| {
        // Test processes run one after the other, and begin with different ports.
        let number = std::process::id().wrapping_add(GIVEN.fetch_add(1, Ordering::Relaxed));
        PORTS.start + (number % PORTS.len() as u32) as u16
    });
    ports
        .find(|port| TcpListener::bind((Ipv4Addr::UNSPECIFIED, *port)).is_ok())
        .expect("a free port")
}

/// Waits until `server` listens on TCP `port`.
///
/// # Panics
/// If it exits before or does not do so in time, with its output.
pub fn wait_for_listener(server: Program, port: u16) -> Program {
    let id = server.id();
    wait_until(server, "it listens", || is_listened_on(id, port))
}

/// Waits until `is_so`.
///
/// # Panics
/// If `server` exits before, or the condition does not hold in time, with the output.
pub(crate) fn wait_until(server: Program, what: &str, is_so: impl FnMut() -> bool) -> Program {
    try_wait_until(server, what, is_so).unwrap_or_else(|text| panic!("{text}"))
}

/// Waits until `is_so`.
///
/// # Errors
/// The output, if `server` exits before, or the condition does not hold in time.
pub(crate) fn try_wait_until(
    mut server: Program,
    what: &str,
    mut is_so: impl FnMut() -> bool,
) -> Result<Program, String> {
    let deadline = Instant::now() + LIMIT;
    while !is_so() {
        if !server.is_running() || Instant::now() > deadline {
            return Err(match server.end_within(Duration::ZERO) {
                Ok(ended) => format!("it ended before {what}: {ended}"),
                Err(hung) => format!("waited for {LIMIT:?} until {what}: {hung}"),
            });
        }
        sleep(LOOK_AGAIN);
    }
    Ok(server)
}

/// `true` if a process listens on TCP `port` in the network namespace of process `id`; asks the
/// kernel, because a connection would count as a client.
pub(crate) fn is_listened_on(id: u32, port: u16) -> bool {
    const LISTEN: &str = "0A";
    ["tcp", "tcp6"].iter().any(|table| {
        let table = fs::read_to_string(format!("/proc/{id}/net/{table}")).unwrap_or_default();
        table.lines().skip(1).any(|row| {
            let mut columns = row.split_whitespace().skip(1);
            let (local, state) =
                (columns.next().unwrap_or_default(), columns.nth(1).unwrap_or_default());
            state == LISTEN && local.ends_with(&format!(":{port:04X}"))
        })
    })
}
