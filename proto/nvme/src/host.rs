//! The host: an admin queue that brings a controller up, and I/O queues.
//!
//! A queue has as many slots as commands outstanding; its driver has a buffer and a receive for
//! each. A [`Submission`] names the slot whose buffer holds the command's data.

mod admin;
mod io;
mod slots;

pub use admin::{Admin, Event, Goal, Identity, NamespaceInfo, Progress};
pub use io::{Answer, IoQueue, Operation, OperationKind};

use crate::{CQE_LEN, SQE_LEN, Status};
use thiserror::Error;

/// Outstanding commands of a queue at most.
pub const DEPTH_MAX: u16 = slots::SLOTS_MAX;

/// A command to send.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Submission {
    /// The slot.
    pub slot: u16,
    /// The command.
    pub command: [u8; SQE_LEN],
    /// Bytes to copy to the slot's buffer first.
    pub data: Vec<u8>,
    /// Bytes of the slot's buffer that follow the command in its capsule.
    pub in_capsule: u32,
}

/// Why a controller cannot be used.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
pub enum HostError {
    /// A response that is none.
    #[error("a response has {0} bytes and not {CQE_LEN}")]
    Length(usize),
    /// A response to no outstanding command.
    #[error("a response to command {0:#06x}, which is not outstanding")]
    UnknownCommand(u16),
    /// A command of the bring-up failed.
    #[error("{command} failed: {status}")]
    Refused {
        /// The command.
        command: &'static str,
        /// The status.
        status: Status,
    },
    /// Data that no controller of this transport has.
    #[error("the data of {0} are invalid")]
    Data(&'static str),
    /// The controller did not become ready.
    #[error("the controller did not become ready within its own limit of {0}")]
    NotReady(longhaul_units::Duration),
    /// The controller reports a fatal status.
    #[error("the controller reports a fatal status")]
    Fatal,
    /// The controller did not answer.
    #[error("the controller did not answer {0} within its keep-alive timeout")]
    Silent(&'static str),
    /// The controller does not grant an I/O queue.
    #[error("the controller grants no I/O queue")]
    NoQueues,
}
