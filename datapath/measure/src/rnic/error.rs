//! Errors of the measurement of the software RNIC.

use super::PATIENCE;
use crate::{FolderError, end_of};
use longhaul_af_xdp::XdpError;
use longhaul_boxes::Xdp;
use longhaul_datapath::{EndError, TransferError};
use longhaul_memif::MemifError;
use std::io;
use std::process::ExitStatus;
use thiserror::Error;

/// A cell that cannot be measured.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
pub enum CellError {
    /// The transfer is impossible.
    #[error(transparent)]
    Transfer(#[from] TransferError),
    /// Rings have a power of two of frames.
    #[error("a ring of {0} frames: not a power of two")]
    Ring(u32),
}

/// Why a measurement of the software RNIC failed.
#[derive(Debug, Error)]
pub enum Error {
    /// An end failed.
    #[error(transparent)]
    End(#[from] EndError),
    /// A ring cannot be created.
    #[error("cannot make a ring: {0}")]
    Ring(io::Error),
    /// A memif port cannot be created.
    #[error(transparent)]
    Memif(#[from] MemifError),
    /// An AF_XDP port cannot be created.
    #[error("{interface}: {error}")]
    Xdp {
        /// The interface.
        interface: Xdp,
        /// The cause.
        error: XdpError,
    },
    /// There is no folder for the socket.
    #[error(transparent)]
    Folder(#[from] FolderError),
    /// The link did not come up.
    #[error("no peer attached to the other end within {} s", PATIENCE.as_secs())]
    NoPeer,
    /// Messages in flight did not complete.
    #[error("messages did not end within {} s", PATIENCE.as_secs())]
    Unfinished,
    /// The callback ended the measurement.
    #[error("interrupted")]
    Interrupted,
    /// The responder's process cannot be started.
    #[error("cannot start the responder: {0}")]
    StartResponder(io::Error),
    /// The responder's standard output is not a pipe.
    #[error("the responder has no output")]
    NoOutput,
    /// The responder's process ended before it was told to. Its own message is on standard error.
    #[error("the responder ended early: {}", end_of(.0))]
    ResponderEnded(io::Result<ExitStatus>),
    /// An answer of the responder's process is not one.
    #[error("invalid output of the responder: {0}")]
    Answer(serde_json::Error),
    /// A message between the processes cannot be serialised.
    #[error(transparent)]
    Write(serde_json::Error),
    /// In the responder's process: over rings there is none.
    #[error("over rings there is one process")]
    ServedOverRings,
    /// In the responder's process: standard input ended too early.
    #[error("the requester's parameters did not arrive")]
    NoRequester,
    /// In the responder's process: standard output is closed.
    #[error("nobody listens: {0}")]
    NobodyListens(io::Error),
}
