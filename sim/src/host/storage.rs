//! Programs of NVMe over Fabrics: what a command costs in capsules, RDMA operations and time.
//!
//! Capsules have their lengths and no contents. One flow has one operation: a read is a command, a
//! WRITE of its data and a response; a write is a command, a READ of its data, unless they are in
//! the capsule, and a response.

mod controller;
mod initiator;

pub(crate) use controller::Controller;
pub(crate) use initiator::Initiator;

use super::{Goal, Op, Posted};
use longhaul_units::{BitRate, Duration, Instant};

/// Bytes of a command capsule without data: a submission queue entry.
const COMMAND: u32 = 64;
/// Bytes of a response capsule: a completion queue entry.
const RESPONSE: u32 = 16;

/// A storage target.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Storage {
    /// Longest data of a write that its command's capsule takes, in bytes.
    pub in_capsule: u32,
    /// Processors that serve the I/O queues, each its share of them: from 1 on.
    pub cores: u32,
    /// A processor's time for a command, besides what posting and polling take.
    pub command: Duration,
    /// Rate at which the drives transfer together; `None`: at once, as memory does.
    pub drive_rate: Option<BitRate>,
    /// Time until a drive begins to transfer.
    pub drive_latency: Duration,
}

/// The commands of a flow.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Commands {
    /// [`Op::Read`] or [`Op::Write`].
    pub op: Op,
    /// Data of a command, in bytes.
    pub size: u32,
    /// Outstanding commands of each I/O queue.
    pub depth: u32,
    pub goal: Goal,
    /// Commands completed before this time do not count.
    pub counts_from: Instant,
    pub storage: Storage,
}

impl Commands {
    /// Receives that an end keeps posted: twice what arrives at once, because the peer learns of
    /// new ones, as end-to-end credits, with acknowledgements of later messages only.
    pub fn receives(depth: u32) -> u32 {
        depth.saturating_mul(2)
    }

    /// Send work requests of a queue: three per command, and as many that are not acknowledged yet.
    pub fn sends(depth: u32) -> u32 {
        depth.saturating_mul(6)
    }

    /// Whether a command's data are in its capsule.
    pub fn is_in_capsule(&self) -> bool {
        self.op == Op::Write && self.size <= self.storage.in_capsule
    }

    /// Bytes of a command's capsule.
    fn capsule(&self) -> u32 {
        COMMAND + if self.is_in_capsule() { self.size } else { 0 }
    }
}

/// A SEND of a capsule.
fn capsule(bytes: u32) -> Posted {
    Posted { op: Op::Send, size: bytes, wr_id: 0, signaled: false, solicited: false }
}
