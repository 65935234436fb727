//! A box in another process, between two memif sockets.

use super::Launch;
use super::between::{self, FRAME_BYTES_MAX};
use super::cell::{BoxKind, Cell, Setup};
use super::error::Error;
use crate::folder::Folder;
use crate::pinning;
use longhaul_datapath::{Bridge, Failure, Load, LoadConfig, Measured, Plan, Progress, Row, Seen};
use longhaul_host::{Clock, Driver, DriverConfig, DriverCounters, MalformedFrames, TurnConfig};
use longhaul_memif::{MemifConfig, MemifError, MemifPort};
use longhaul_node::Node;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::io::{Read as _, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

const RING_SIZE_LOG2: u8 = 10;
/// Frames of each ring.
pub const RING_FRAMES: u64 = 1 << RING_SIZE_LOG2;

/// Final report of a box.
#[derive(Debug, Default, Serialize, Deserialize)]
pub struct Farewell {
    turns: u64,
    idle_turns: u64,
    ready_flows: Option<u32>,
    drops: BTreeMap<String, u64>,
}

/// A private folder with two sockets.
pub struct Sockets(Folder);

impl Sockets {
    /// Creates a new folder.
    pub fn new() -> Result<Self, Error> {
        Ok(Sockets(Folder::new()?))
    }

    /// The requesters' socket and the responders'.
    pub fn paths(&self) -> [PathBuf; 2] {
        sockets(self.0.path())
    }

    /// A load whose ends listen at the two sockets.
    pub fn row(&self, load: LoadConfig) -> Result<Row<MemifPort>, Error> {
        let load = Load::new(load)?;
        let [near, far] = self.paths();
        Ok(Row::new(load, master(&near, "requesters")?, master(&far, "responders")?, Vec::new()))
    }
}

fn sockets(folder: &Path) -> [PathBuf; 2] {
    ["near.sock", "far.sock"].map(|name| folder.join(name))
}

fn config(name: &str) -> MemifConfig {
    MemifConfig {
        ring_size_log2: RING_SIZE_LOG2,
        frame_bytes_max: FRAME_BYTES_MAX,
        ..MemifConfig::new(name)
    }
}

fn master(path: &Path, name: &str) -> Result<MemifPort, MemifError> {
    MemifPort::master(path, 0, config(name))
}

/// A box in another process.
pub struct Served {
    child: Child,
    sockets: Sockets,
    flows: u32,
}

impl Served {
    /// Starts the box's process, which connects to the load's ports once they exist.
    pub fn start(cell: &Cell, launch: &Launch<'_>) -> Result<Self, Error> {
        let sockets = Sockets::new()?;
        let child = spawn(cell, &sockets, launch)?;
        Ok(Served { child, sockets, flows: cell.flows })
    }

    /// Kills the box's process and starts another between the same sockets.
    pub fn restart(&mut self, cell: &Cell, launch: &Launch<'_>) -> Result<(), Error> {
        self.kill();
        self.child = spawn(cell, &self.sockets, launch)?;
        Ok(())
    }

    fn kill(&mut self) {
        // It may already have ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    /// The load around it.
    pub fn row(&self, load: LoadConfig) -> Result<Row<MemifPort>, Error> {
        self.sockets.row(load)
    }

    /// Measures, and ends the box. Returns also its processor time in nanoseconds.
    pub fn measure(
        mut self,
        row: &mut Row<MemifPort>,
        plan: &Plan,
        mut tell: impl FnMut(&Progress) -> bool,
    ) -> Result<(Measured, u64), Error> {
        let before =
            Plan { lasts: plan.warm_up, warm_up: Duration::ZERO, packets_max: None, ..*plan };
        row.measure(&before, &mut tell)?;
        let start = self.used_ns();
        let measured = row.measure(&Plan { warm_up: Duration::ZERO, ..*plan }, &mut tell)?;
        let used_ns = self.used_ns() - start;
        let farewell = self.end()?;
        if let Some(ready) = farewell.ready_flows.filter(|ready| *ready < self.flows) {
            let (stage, flows) = ("the box", self.flows);
            return Err(Failure::NotReady { stage, ready, flows }.into());
        }
        Ok((measured, used_ns))
    }

    /// Processor time of its forwarding thread.
    fn used_ns(&self) -> u64 {
        let text = std::fs::read_to_string(format!("/proc/{}/schedstat", self.child.id()))
            .unwrap_or_default();
        text.split_whitespace().next().and_then(|ns| ns.parse().ok()).unwrap_or(0)
    }

    fn end(&mut self) -> Result<Farewell, Error> {
        drop(self.child.stdin.take());
        let mut text = String::new();
        let read = self.child.stdout.take().map(|mut stdout| stdout.read_to_string(&mut text));
        let ended = self.child.wait();
        match (read, ended) {
            (Some(Ok(_)), Ok(status)) if status.success() => {
                serde_json::from_str(&text).map_err(Error::BoxOutput)
            }
            (_, ended) => Err(Error::BoxEnded(ended)),
        }
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        self.kill();
    }
}

fn spawn(cell: &Cell, sockets: &Sockets, launch: &Launch<'_>) -> Result<Child, Error> {
    let mut command = launch(cell, sockets.0.path()).map_err(Error::StartBox)?;
    command.stdin(Stdio::piped()).stdout(Stdio::piped());
    pinning::start_unpinned(&mut command).map_err(Error::StartBox)
}

/// Runs the box between the sockets in `folder`, until standard input ends, and writes its final
/// report to standard output.
///
/// # Errors
/// Ports or box cannot be created, or a port failed.
pub fn serve(folder: &Path, cell: &Cell, setup: &Setup) -> Result<(), Error> {
    let [near, far] = sockets(folder);
    let slave = |path: &Path, name: &str| MemifPort::slave(path, 0, config(name));
    let ports = [slave(&near, "near")?, slave(&far, "far")?];
    let farewell = match cell.kind {
        BoxKind::Accelerator => drive(between::alone(cell)?, ports, between::of_near)?,
        BoxKind::Emulator => drive(between::emulated(cell, setup)?, ports, between::of_link)?,
        BoxKind::None | BoxKind::Forward | BoxKind::Paired => forward(ports)?,
    };
    let text = serde_json::to_string(&farewell).map_err(Error::Report)?;
    // The other process may have ended.
    let _ = writeln!(std::io::stdout(), "{text}");
    Ok(())
}

/// Calls `then` when standard input ends.
fn when_input_ends(then: impl FnOnce() + Send + 'static) {
    std::thread::spawn(move || {
        let _ = std::io::copy(&mut std::io::stdin(), &mut std::io::sink());
        then();
    });
}

fn drive<N: Node + Send + 'static>(
    node: N,
    ports: [MemifPort; 2],
    look: fn(&N) -> Seen,
) -> Result<Farewell, Error> {
    let turn = TurnConfig { malformed: MalformedFrames::Carry, ..TurnConfig::default() };
    let config = DriverConfig { turn, ..DriverConfig::default() };
    let driver = Driver::new(node, ports.into(), Clock::start(), config);
    let (driver, handle) = driver.map_err(Error::Drive)?;
    when_input_ends(move || handle.stop());
    let finished = driver.run(|_, _: &mut N, _: &mut [MemifPort], _: &DriverCounters| {});
    let seen = look(&finished.node);
    Ok(Farewell {
        turns: finished.counters.turns,
        idle_turns: finished.counters.idle_turns,
        ready_flows: seen.ready_flows,
        drops: seen.drops.iter().map(|(name, count)| ((*name).to_owned(), *count)).collect(),
    })
}

fn forward(ports: [MemifPort; 2]) -> Result<Farewell, Error> {
    let must_stop = Arc::new(AtomicBool::new(false));
    let told = Arc::clone(&must_stop);
    when_input_ends(move || told.store(true, Ordering::Relaxed));
    let mut bridge = Bridge::new(ports);
    let mut farewell = Farewell::default();
    while !must_stop.load(Ordering::Relaxed) {
        let is_busy = bridge.carry()?;
        farewell.turns += 1;
        if !is_busy {
            farewell.idle_turns += 1;
            std::thread::yield_now();
        }
    }
    Ok(farewell)
}
