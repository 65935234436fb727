//! A box in another process, between two memif sockets.

use super::boxes::{self, BoxKind, Cell, FRAME_BYTES_MAX, Setup};
use crate::bench::pinning;
use crate::problem::Problem;
use crate::sim::Failure;
use longhaul_datapath::{Bridge, Load, LoadConfig, Measured, Plan, Progress, Row, Seen};
use longhaul_host::{Clock, Driver, DriverConfig, DriverCounters, MalformedFrames, TurnConfig};
use longhaul_memif::{MemifConfig, MemifPort};
use longhaul_node::Node;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fs::DirBuilder;
use std::io::{Read as _, Write as _};
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
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

/// A private folder with two sockets, removed on drop.
pub struct Sockets(PathBuf);

impl Sockets {
    /// Creates a new folder.
    pub fn new() -> Result<Self, Problem> {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let path =
            std::env::temp_dir().join(format!("longhaul-bench-{}-{number}", std::process::id()));
        DirBuilder::new().mode(0o700).create(&path).map_err(|e| Problem::io("make", &path, &e))?;
        Ok(Sockets(path))
    }

    /// The folder.
    pub fn folder(&self) -> &Path {
        &self.0
    }

    /// The requesters' socket and the responders'.
    pub fn paths(&self) -> [PathBuf; 2] {
        sockets(&self.0)
    }

    /// A load whose ends listen at the two sockets.
    pub fn row(&self, load: LoadConfig) -> Result<Row<MemifPort>, Problem> {
        let load = Load::new(load).map_err(|e| Problem::plain(e.to_string()))?;
        let [near, far] = self.paths();
        Ok(Row::new(load, master(&near, "requesters")?, master(&far, "responders")?, Vec::new()))
    }
}

impl Drop for Sockets {
    fn drop(&mut self) {
        // At worst two unused sockets remain.
        let _ = std::fs::remove_dir_all(&self.0);
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

fn master(path: &Path, name: &str) -> Result<MemifPort, Problem> {
    MemifPort::master(path, 0, config(name)).map_err(|e| Problem::plain(e.to_string()))
}

/// A box in another process.
pub struct Served {
    child: Child,
    sockets: Sockets,
    flows: u32,
}

impl Served {
    /// Starts this program as the box, which connects to the load's ports once they exist.
    pub fn start(core: Option<usize>, cell: &Cell, setup: &Setup) -> Result<Self, Problem> {
        let sockets = Sockets::new()?;
        let refused = |e| Problem::plain(format!("cannot start the box: {e}"));
        let mut command = Command::new(std::env::current_exe().map_err(refused)?);
        command.args(["bench", "datapath", "--serve"]).arg(&sockets.0);
        command.args(["--box", cell.kind.name(), "--rate", &setup.rate.as_bps().to_string()]);
        command.args([
            "--size",
            &cell.payload_bytes.to_string(),
            "--flows",
            &cell.flows.to_string(),
        ]);
        command.args(["--distance", &format!("{}m", cell.distance.metres())]);
        command.args(core.map(|core| format!("--cores={core}")));
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let child = pinning::start_unpinned(&mut command).map_err(refused)?;
        Ok(Served { child, sockets, flows: cell.flows })
    }

    /// The load around it.
    pub fn row(&self, load: LoadConfig) -> Result<Row<MemifPort>, Problem> {
        self.sockets.row(load)
    }

    /// Measures, and ends the box. Returns also its processor time in nanoseconds.
    pub fn measure(
        mut self,
        row: &mut Row<MemifPort>,
        plan: &Plan,
        mut tell: impl FnMut(&Progress) -> bool,
    ) -> Result<(Measured, u64), Failure> {
        let failed = super::failure;
        let before =
            Plan { lasts: plan.warm_up, warm_up: Duration::ZERO, packets_max: None, ..*plan };
        row.measure(&before, &mut tell).map_err(failed)?;
        let start = self.used_ns();
        let measured =
            row.measure(&Plan { warm_up: Duration::ZERO, ..*plan }, &mut tell).map_err(failed)?;
        let used_ns = self.used_ns() - start;
        let farewell = self.end()?;
        if let Some(ready) = farewell.ready_flows.filter(|ready| *ready < self.flows) {
            let (stage, flows) = ("the box", self.flows);
            return Err(failed(longhaul_datapath::Failure::NotReady { stage, ready, flows }));
        }
        Ok((measured, used_ns))
    }

    /// Processor time of its forwarding thread.
    fn used_ns(&self) -> u64 {
        let text = std::fs::read_to_string(format!("/proc/{}/schedstat", self.child.id()))
            .unwrap_or_default();
        text.split_whitespace().next().and_then(|ns| ns.parse().ok()).unwrap_or(0)
    }

    fn end(&mut self) -> Result<Farewell, Problem> {
        drop(self.child.stdin.take());
        let mut text = String::new();
        let read = self.child.stdout.take().map(|mut stdout| stdout.read_to_string(&mut text));
        let ended = self.child.wait();
        match (read, ended) {
            (Some(Ok(_)), Ok(status)) if status.success() => serde_json::from_str(&text)
                .map_err(|e| Problem::plain(format!("the box said what it should not: {e}"))),
            (_, ended) => Err(Problem::plain(format!("the box ended early: {ended:?}"))),
        }
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        // It may already have ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Runs the box between the sockets in `folder`, until standard input ends.
pub fn serve(
    folder: &Path,
    cell: &Cell,
    setup: &Setup,
    core: Option<usize>,
) -> Result<ExitCode, Problem> {
    if let Some(core) = core {
        pinning::pin(core)?;
    }
    let [near, far] = sockets(folder);
    let slave = |path: &Path, name: &str| {
        MemifPort::slave(path, 0, config(name)).map_err(|e| Problem::plain(e.to_string()))
    };
    let ports = [slave(&near, "near")?, slave(&far, "far")?];
    let farewell = match cell.kind {
        BoxKind::Accelerator => drive(boxes::alone(cell)?, ports, boxes::of_near)?,
        BoxKind::Emulator => drive(boxes::emulated(cell, setup)?, ports, boxes::of_link)?,
        BoxKind::None | BoxKind::Forward | BoxKind::Paired => forward(ports)?,
    };
    let text = serde_json::to_string(&farewell).map_err(|e| Problem::plain(e.to_string()))?;
    // The other process may have ended.
    let _ = writeln!(std::io::stdout(), "{text}");
    Ok(ExitCode::SUCCESS)
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
) -> Result<Farewell, Problem> {
    let turn = TurnConfig { malformed: MalformedFrames::Carry, ..TurnConfig::default() };
    let config = DriverConfig { turn, ..DriverConfig::default() };
    let driver = Driver::new(node, ports.into(), Clock::start(), config);
    let (driver, handle) = driver.map_err(|e| Problem::plain(format!("cannot run: {e}")))?;
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

fn forward(ports: [MemifPort; 2]) -> Result<Farewell, Problem> {
    let must_stop = Arc::new(AtomicBool::new(false));
    let told = Arc::clone(&must_stop);
    when_input_ends(move || told.store(true, Ordering::Relaxed));
    let mut bridge = Bridge::new(ports);
    let mut farewell = Farewell::default();
    while !must_stop.load(Ordering::Relaxed) {
        let is_busy = bridge.carry().map_err(|e| Problem::plain(e.to_string()))?;
        farewell.turns += 1;
        if !is_busy {
            farewell.idle_turns += 1;
            std::thread::yield_now();
        }
    }
    Ok(farewell)
}
