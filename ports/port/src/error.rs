//! Errors of ports.

use std::io;

use thiserror::Error;

/// An error of a port operation. The port stays usable after each of them.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum PortError {
    /// The caller asked for a frame that the port cannot carry.
    #[error("frame of {len} bytes is over this port's maximum of {max} bytes")]
    FrameTooLong {
        /// Requested length, in bytes.
        len: usize,
        /// The port's `frame_bytes_max`.
        max: usize,
    },
    /// The caller asked for a frame shorter than an Ethernet header.
    #[error("frame of {len} bytes is under the minimum of {min} bytes")]
    FrameTooShort {
        /// Requested length, in bytes.
        len: usize,
        /// Minimum frame length, in bytes.
        min: usize,
    },
    /// The peer violated the protocol of the port, and was disconnected.
    #[error("the peer of port {port} broke the protocol: {detail}")]
    PeerViolation {
        /// Name of the port.
        port: String,
        /// The rule, and the offending value.
        detail: String,
    },
    /// The port's link cannot be set.
    #[error("cannot set the link of port {port}: {reason}")]
    LinkStays {
        /// Name of the port.
        port: String,
        /// The reason, and the cure if there is one.
        reason: String,
    },
    /// A port of this kind stays with its process.
    #[error("port {port} ({kind}) cannot be handed over to another process")]
    NotHandedOver {
        /// Name of the port.
        port: String,
        /// Its kind.
        kind: &'static str,
    },
    /// An operating system error.
    #[error("{operation}: {source}")]
    Io {
        /// The failed operation.
        operation: &'static str,
        /// The operating system's error.
        source: io::Error,
    },
}

impl PortError {
    /// Wraps an operating system error with the failed operation.
    pub fn io(operation: &'static str, source: impl Into<io::Error>) -> Self {
        Self::Io { operation, source: source.into() }
    }
}
