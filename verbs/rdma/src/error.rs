//! The error type of all calls.

use longhaul_cm::{CallError, ConnectError, ListenError};
use longhaul_rnic::{ErrorClass, Failure, PostError, VerbsError};
use std::net::IpAddr;
use thiserror::Error;

use crate::AttachError;
use crate::slot::SlotError;

/// Why a call was refused. A refused call changes nothing.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum RdmaError {
    /// The device refused a control operation.
    #[error(transparent)]
    Verbs(#[from] VerbsError),
    /// The device refused a work request.
    #[error(transparent)]
    Post(#[from] PostError),
    /// The connection manager refused to listen.
    #[error(transparent)]
    Listen(#[from] ListenError),
    /// The connection manager refused to connect.
    #[error(transparent)]
    Connect(#[from] ConnectError),
    /// The connection manager refused a call on a connection.
    #[error(transparent)]
    Call(#[from] CallError),
    /// The peer ended or refused the connection, or did not respond.
    #[error("the peer {0}")]
    Peer(&'static str),
    /// The peer's program refused the connection.
    #[error("the peer refused the connection")]
    Refused(
        /// Its private data, with trailing zeros.
        Box<[u8]>,
    ),
    /// The environment does not describe a port.
    #[error(transparent)]
    Attach(#[from] AttachError),
    /// The port has no place for another process.
    #[error(transparent)]
    Slot(#[from] SlotError),
    /// A connection request was rejected, because this process has no descriptor for the
    /// connection. Its listener goes on.
    #[error("a connection request of {peer} was rejected: {source}")]
    Rejected {
        /// Who requested it.
        peer: IpAddr,
        /// The operating system's error.
        source: std::io::Error,
    },
    /// An operating system error.
    #[error("{operation}: {source}")]
    Io {
        /// The failed operation.
        operation: &'static str,
        /// The operating system's error.
        source: std::io::Error,
    },
    /// The device was opened before a fork and belongs to the parent process; the child cannot use
    /// it.
    #[error("this device was opened before a fork and belongs to the parent process")]
    Forked,
    /// No frame can reach a peer.
    #[error("{ip} cannot be reached: {}", .failure.reason())]
    Unreachable {
        /// The peer.
        ip: IpAddr,
        /// The cause.
        failure: Failure,
    },
    /// The caller's time limit expired.
    #[error("nothing came within {0:?}")]
    TimedOut(std::time::Duration),
}

impl RdmaError {
    /// The `errno` value that a verbs call reports for this error.
    #[must_use]
    pub fn errno(&self) -> i32 {
        match self {
            RdmaError::Verbs(error) => errno_of(error.class()),
            RdmaError::Post(error) => errno_of(error.class()),
            RdmaError::Listen(ListenError::InUse(_)) => libc::EADDRINUSE,
            RdmaError::Listen(ListenError::TooMany(_))
            | RdmaError::Connect(ConnectError::TooMany(_)) => libc::ENOMEM,
            RdmaError::Connect(_) | RdmaError::Call(_) | RdmaError::Attach(_) => libc::EINVAL,
            RdmaError::Peer(_) | RdmaError::Refused(_) => libc::ECONNREFUSED,
            RdmaError::Slot(error) => error.errno(),
            RdmaError::Io { source, .. } | RdmaError::Rejected { source, .. } => {
                source.raw_os_error().unwrap_or(libc::EIO)
            }
            RdmaError::Forked => libc::EIO,
            RdmaError::Unreachable { failure: Failure::NoAnswer, .. } => libc::ETIMEDOUT,
            RdmaError::Unreachable { failure: Failure::NoRoute, .. } => libc::ENETUNREACH,
            RdmaError::Unreachable { failure: Failure::TableFull, .. } => libc::ENOMEM,
            RdmaError::TimedOut(_) => libc::ETIMEDOUT,
        }
    }
}

/// The `errno` value that `ibv_post_send` and `ibv_post_recv` return for a refused work request. An
/// operation that the transport does not support has the same value as one that does not exist.
#[must_use]
pub fn errno_of_post(error: &PostError) -> i32 {
    match error.class() {
        ErrorClass::NotSupported => libc::EINVAL,
        class => errno_of(class),
    }
}

fn errno_of(class: ErrorClass) -> i32 {
    match class {
        ErrorClass::Invalid | ErrorClass::BadState => libc::EINVAL,
        ErrorClass::NoMemory => libc::ENOMEM,
        ErrorClass::Busy => libc::EBUSY,
        ErrorClass::NotSupported => libc::EOPNOTSUPP,
        ErrorClass::TimedOut => libc::ETIMEDOUT,
    }
}
