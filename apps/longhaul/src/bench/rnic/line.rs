//! The line between the two ends.

use super::figures::{EndFigures, Start};
use crate::problem::Problem;
use crate::sim::Failure;
use longhaul_af_xdp::XdpPort;
use longhaul_boxes::Xdp;
use longhaul_datapath::{End, Introduction, Role, TransferConfig, resident_bytes};
use longhaul_memif::{MemifConfig, MemifPort};
use longhaul_port::loopback::{self, LoopbackPort};
use std::path::{Path, PathBuf};

/// The longest frame: 4 KiB of payload and its headers, in whole cache lines.
const FRAME_BYTES_MAX: usize = 4352;

/// A line between the two ends.
pub enum Line {
    Rings { frames: u32 },
    Memif { folder: PathBuf, ring: u32 },
    Xdp { requester: Xdp, responder: Xdp },
}

/// A responder in this or another process.
pub trait FarEnd {
    /// Passes it the requester's parameters, and returns its own.
    fn introduce(&mut self, requester: &Introduction) -> Result<Introduction, Failure>;

    /// Steps it, if it runs in this thread; returns whether it did work.
    fn step(&mut self) -> Result<bool, Failure>;

    /// Starts its measurement.
    fn begin(&mut self) -> Result<(), Failure>;

    /// Returns its figures since [`FarEnd::begin`]. It keeps running until dropped.
    fn end(&mut self) -> Result<EndFigures, Failure>;
}

/// A responder in this thread.
pub struct InOneThread {
    end: End<LoopbackPort>,
    start: Option<Start>,
}

impl InOneThread {
    pub fn new(config: TransferConfig, port: LoopbackPort) -> Result<Self, Failure> {
        let end = End::new(Role::Responder, config, port).map_err(super::failure)?;
        Ok(InOneThread { end, start: None })
    }
}

impl FarEnd for InOneThread {
    fn introduce(&mut self, requester: &Introduction) -> Result<Introduction, Failure> {
        self.end.connect(requester).map_err(super::failure)?;
        Ok(self.end.introduction())
    }

    fn step(&mut self) -> Result<bool, Failure> {
        self.end.step().map_err(super::failure)
    }

    fn begin(&mut self) -> Result<(), Failure> {
        self.start = Some(Start::of(&mut self.end));
        Ok(())
    }

    fn end(&mut self) -> Result<EndFigures, Failure> {
        let start = self.start.take();
        Ok(start.map(|start| start.until_now(&self.end, resident_bytes())).unwrap_or_default())
    }
}

/// Two ends of rings.
pub fn rings(frames: u32) -> Result<(LoopbackPort, LoopbackPort), Problem> {
    let made = loopback::pair("rings", frames as usize, FRAME_BYTES_MAX);
    made.map_err(|e| Problem::plain(format!("cannot make a ring: {e}")))
}

fn memif_config(name: &str, ring: u32) -> MemifConfig {
    let ring_size_log2 = ring.ilog2() as u8;
    MemifConfig { ring_size_log2, frame_bytes_max: FRAME_BYTES_MAX, ..MemifConfig::new(name) }
}

fn socket(folder: &Path) -> PathBuf {
    folder.join("rnic.sock")
}

/// The requester's end.
pub fn memif_master(folder: &Path, ring: u32) -> Result<MemifPort, Problem> {
    let port = MemifPort::master(socket(folder), 0, memif_config("requester", ring));
    port.map_err(|e| Problem::plain(e.to_string()))
}

/// The responder's end.
pub fn memif_slave(folder: &Path, ring: u32) -> Result<MemifPort, Problem> {
    let port = MemifPort::slave(socket(folder), 0, memif_config("responder", ring));
    port.map_err(|e| Problem::plain(e.to_string()))
}

/// An end of a cable.
pub fn xdp(interface: &Xdp) -> Result<XdpPort, Problem> {
    let port = XdpPort::open(&interface.config(FRAME_BYTES_MAX));
    port.map_err(|e| Problem::plain(format!("{interface}: {e}")))
}
