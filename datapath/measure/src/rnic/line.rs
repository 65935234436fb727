//! Ports of the two ends, and the responder as its requester sees it.

use super::Error;
use super::figures::{EndFigures, Start};
use longhaul_af_xdp::XdpPort;
use longhaul_boxes::Xdp;
use longhaul_datapath::{End, Introduction, Role, TransferConfig, resident_bytes};
use longhaul_memif::{MemifConfig, MemifError, MemifPort};
use longhaul_port::loopback::{self, LoopbackPort};
use std::path::{Path, PathBuf};

/// The longest frame: 4 KiB of payload and its headers, in whole cache lines.
const FRAME_BYTES_MAX: usize = 4352;

/// A responder in this or another process.
pub trait FarEnd {
    /// Passes it the requester's parameters, and returns its own.
    fn introduce(&mut self, requester: &Introduction) -> Result<Introduction, Error>;

    /// Steps it, if it runs in this thread; returns whether it did work.
    fn step(&mut self) -> Result<bool, Error>;

    /// Starts its measurement.
    fn begin(&mut self) -> Result<(), Error>;

    /// Returns its figures since [`FarEnd::begin`]. It keeps running until dropped.
    fn end(&mut self) -> Result<EndFigures, Error>;
}

/// A responder in this thread.
pub struct InOneThread {
    end: End<LoopbackPort>,
    start: Option<Start>,
}

impl InOneThread {
    /// An end at `port`.
    pub fn new(config: TransferConfig, port: LoopbackPort) -> Result<Self, Error> {
        let end = End::new(Role::Responder, config, port)?;
        Ok(InOneThread { end, start: None })
    }
}

impl FarEnd for InOneThread {
    fn introduce(&mut self, requester: &Introduction) -> Result<Introduction, Error> {
        self.end.connect(requester)?;
        Ok(self.end.introduction())
    }

    fn step(&mut self) -> Result<bool, Error> {
        Ok(self.end.step()?)
    }

    fn begin(&mut self) -> Result<(), Error> {
        self.start = Some(Start::of(&mut self.end));
        Ok(())
    }

    fn end(&mut self) -> Result<EndFigures, Error> {
        let start = self.start.take();
        Ok(start.map(|start| start.until_now(&self.end, resident_bytes())).unwrap_or_default())
    }
}

/// Two ends of rings.
pub fn rings(frames: u32) -> Result<(LoopbackPort, LoopbackPort), Error> {
    loopback::pair("rings", frames as usize, FRAME_BYTES_MAX).map_err(Error::Ring)
}

fn memif_config(name: &str, frames: u32) -> MemifConfig {
    let ring_size_log2 = frames.ilog2() as u8;
    MemifConfig { ring_size_log2, frame_bytes_max: FRAME_BYTES_MAX, ..MemifConfig::new(name) }
}

fn socket(folder: &Path) -> PathBuf {
    folder.join("rnic.sock")
}

/// The requester's end.
pub fn memif_master(folder: &Path, frames: u32) -> Result<MemifPort, MemifError> {
    MemifPort::master(socket(folder), 0, memif_config("requester", frames))
}

/// The responder's end.
pub fn memif_slave(folder: &Path, frames: u32) -> Result<MemifPort, MemifError> {
    MemifPort::slave(socket(folder), 0, memif_config("responder", frames))
}

/// An end of a cable.
pub fn xdp(interface: &Xdp) -> Result<XdpPort, Error> {
    let port = XdpPort::open(&interface.config(FRAME_BYTES_MAX));
    port.map_err(|error| Error::Xdp { interface: interface.clone(), error })
}
