//! Errors of the measurement of boxes.

use super::testpmd;
use crate::{FolderError, end_of};
use longhaul_datapath::{FLOWS_MAX, Failure, LoadError};
use longhaul_link::LinkError;
use longhaul_memif::MemifError;
use longhaul_port::PortError;
use longhaul_wan_box::ConfigError;
use std::io;
use std::process::ExitStatus;
use thiserror::Error;

/// Settings that cannot be measured.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
pub enum SettingsError {
    /// The payload is empty, or exceeds a packet.
    #[error("a packet's payload goes from 1 byte to 4 KiB, not {0} bytes")]
    Payload(usize),
    /// Too few or too many QPs.
    #[error("QPs go from 1 to {FLOWS_MAX}, not {0}")]
    Flows(u32),
    /// The load is impossible.
    #[error(transparent)]
    Load(#[from] LoadError),
    /// Paired boxes run in one process.
    #[error("two boxes in a row are measured over rings")]
    PairedOverMemif,
    /// testpmd has no rings.
    #[error("testpmd is measured over memif")]
    TestpmdOverRings,
    /// No cell has paired boxes, or these do neither code nor encrypt.
    #[error("only paired boxes with parity or keys have parts")]
    NoParts,
}

/// Why a measurement of boxes failed.
#[derive(Debug, Error)]
pub enum Error {
    /// The load is impossible.
    #[error(transparent)]
    Load(#[from] LoadError),
    /// The box cannot be created.
    #[error(transparent)]
    Box(#[from] ConfigError),
    /// The fibre cannot be created.
    #[error(transparent)]
    Link(#[from] LinkError),
    /// A ring cannot be created.
    #[error("cannot make a ring: {0}")]
    Ring(io::Error),
    /// A memif port cannot be created.
    #[error(transparent)]
    Memif(#[from] MemifError),
    /// A port failed.
    #[error(transparent)]
    Port(#[from] PortError),
    /// A port of the device under test cannot be opened.
    #[error(transparent)]
    Open(#[from] longhaul_boxes::PortError),
    /// There is no folder for the sockets.
    #[error(transparent)]
    Folder(#[from] FolderError),
    /// Load and box yielded no figures.
    #[error(transparent)]
    Row(#[from] Failure),
    /// The box's process cannot be started.
    #[error("cannot start the box: {0}")]
    StartBox(io::Error),
    /// The box's process ended before it was told to.
    #[error("the box ended early: {}", end_of(.0))]
    BoxEnded(io::Result<ExitStatus>),
    /// The final report of the box's process is not one.
    #[error("invalid output of the box: {0}")]
    BoxOutput(serde_json::Error),
    /// In the box's process: the driver loop cannot be created.
    #[error("cannot run: {0}")]
    Drive(io::Error),
    /// In the box's process: the final report cannot be serialised.
    #[error(transparent)]
    Report(serde_json::Error),
    /// testpmd is not in the search path.
    #[error("{program} is not installed", program = testpmd::PROGRAM)]
    NoTestpmd,
    /// testpmd cannot be started.
    #[error("cannot start {program}: {0}", program = testpmd::PROGRAM)]
    StartTestpmd(io::Error),
}
