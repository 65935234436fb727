//! What can go wrong at a port.

use std::io;

use thiserror::Error;

/// An error of a port operation. The port stays usable after every one of them.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum PortError {
    /// The caller asked for a frame that the port cannot carry.
    #[error("frame of {len} bytes is over this port's maximum of {max} bytes")]
    FrameTooLong {
        /// Length asked for, in bytes.
        len: usize,
        /// The port's `frame_bytes_max`.
        max: usize,
    },
    /// The caller asked for a frame shorter than an Ethernet header.
    #[error("frame of {len} bytes is under the minimum of {min} bytes")]
    FrameTooShort {
        /// Length asked for, in bytes.
        len: usize,
        /// The shortest frame, in bytes.
        min: usize,
    },
    /// The peer broke the rules that it shares with this port. It was disconnected.
    #[error("the peer of port {port} broke the protocol: {detail}")]
    PeerViolation {
        /// Name of the port.
        port: String,
        /// Which rule, and the offending value.
        detail: String,
    },
    /// The operating system refused something.
    #[error("{operation}: {source}")]
    Io {
        /// What the port was doing.
        operation: &'static str,
        /// The operating system's answer.
        source: io::Error,
    },
}

impl PortError {
    /// Wraps an operating system error with what was being done.
    pub fn io(operation: &'static str, source: impl Into<io::Error>) -> Self {
        Self::Io { operation, source: source.into() }
    }
}
