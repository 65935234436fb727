//! What a target asks of its driver.

use super::QueueId;
use crate::{CQE_LEN, Remote, Status};
use longhaul_units::RKey;
use std::fmt;
use std::ops::Range;

/// A slot of a queue.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Token {
    /// The queue.
    pub queue: QueueId,
    /// The slot.
    pub slot: u16,
}

/// A subsystem, by its place in [`super::TargetConfig::subsystems`].
pub type SubsystemId = usize;

/// All namespaces of a subsystem.
pub const ALL_NAMESPACES: u32 = 0xffff_ffff;

/// A step of the driver.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Step {
    /// Nothing to do.
    Nothing,
    /// READ the host's memory to the slot's buffer; then call [`super::Target::fetched`].
    Fetch {
        /// The slot.
        token: Token,
        /// The host's memory.
        from: Remote,
    },
    /// Access a namespace; then call [`super::Target::executed`].
    Execute {
        /// The slot.
        token: Token,
        /// The subsystem.
        subsystem: SubsystemId,
        /// The namespace, or [`ALL_NAMESPACES`] for a flush.
        namespace: u32,
        /// The access.
        io: Io,
        /// Force Unit Access: what is written is on stable storage when it is executed, and what
        /// is read before it is read.
        durable: bool,
    },
    /// Send a response, and its data before it; then call [`super::Target::sent`].
    Respond(Response),
    /// End the connection of a queue; then call [`super::Target::closed`].
    Disconnect {
        /// The queue.
        queue: QueueId,
        /// Why.
        reason: EndReason,
    },
}

/// An access to a namespace, in bytes.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Io {
    /// Read to the slot's buffer.
    Read {
        /// Offset in the namespace.
        offset: u64,
        /// Length.
        len: u32,
    },
    /// Write.
    Write {
        /// Offset in the namespace.
        offset: u64,
        /// Length.
        len: u32,
        /// The data.
        from: Source,
    },
    /// Compare the namespace with data.
    Compare {
        /// Offset in the namespace.
        offset: u64,
        /// Length.
        len: u32,
        /// The data.
        with: Source,
    },
    /// Write zeros.
    WriteZeroes(Range<u64>),
    /// Deallocate ranges, which then read as zeros.
    Deallocate(Vec<Range<u64>>),
    /// Make all earlier writes permanent.
    Flush,
}

/// Location of a command's data.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Source {
    /// The beginning of the slot's buffer.
    Buffer,
    /// This offset in the data of the slot's capsule.
    Capsule(u32),
}

/// Why an access failed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum IoError {
    /// The data of a Compare differ.
    Differs,
    /// The medium cannot be read.
    Read,
    /// The medium cannot be written.
    Write,
    /// The medium is full.
    Full,
    /// The namespace is gone, or shorter than it was.
    Gone,
}

impl IoError {
    pub(super) fn status(self) -> Status {
        match self {
            IoError::Differs => Status::COMPARE_FAILURE.permanent(),
            IoError::Read => Status::READ_ERROR,
            IoError::Write => Status::WRITE_FAULT,
            IoError::Full => Status::CAPACITY_EXCEEDED.permanent(),
            IoError::Gone => Status::INVALID_NAMESPACE.permanent(),
        }
    }
}

/// A response.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Response {
    /// The slot.
    pub token: Token,
    /// The response capsule.
    pub completion: [u8; CQE_LEN],
    /// Key that the SEND shall invalidate.
    pub invalidate: Option<RKey>,
    /// Data to WRITE before.
    pub output: Option<Output>,
}

/// Data of a response.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Output {
    /// The beginning of the slot's buffer, as long as the host's memory.
    Buffer(Remote),
    /// Other bytes, as many as the host's memory.
    Bytes(Vec<u8>, Remote),
}

/// Why a target ends a connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum EndReason {
    /// A capsule that is shorter than a command.
    Malformed,
    /// More commands than the queue has entries.
    TooManyCommands,
    /// No Connect command came.
    NoConnect,
    /// The host is silent.
    KeepAliveExpired,
    /// The controller of an I/O queue was reset, or its admin queue ended.
    ControllerGone,
}

impl fmt::Display for EndReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            EndReason::Malformed => "a capsule was shorter than a command",
            EndReason::TooManyCommands => "it sent more commands than its queue has entries",
            EndReason::NoConnect => "it sent no Connect command",
            EndReason::KeepAliveExpired => "its keep-alive timer expired",
            EndReason::ControllerGone => "its controller was reset or its admin queue ended",
        })
    }
}
