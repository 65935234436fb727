//! Programs of NVMe over Fabrics: what a command costs in capsules, RDMA operations and time.
//!
//! Capsules are those of NVMe, except that data in them has only a length. One flow has one
//! operation: a read is a command, a WRITE of its data and a response; a write is a command, a READ
//! of its data, unless they are in the capsule, and a response.

mod controller;
mod initiator;

pub(crate) use controller::Controller;
pub(crate) use initiator::Initiator;

use super::memory::Spans;
use super::{Goal, Op, Posted};
use longhaul_nvme::{CQE_LEN, Command, Completion, DataPointer, Remote, SQE_LEN, Status, io};
use longhaul_units::{BitRate, Duration, Instant, RKey};

/// Bytes of a command capsule without data: a submission queue entry.
const COMMAND: u32 = SQE_LEN as u32;
/// Bytes of a response capsule: a completion queue entry.
const RESPONSE: u32 = CQE_LEN as u32;
/// The namespace of all commands.
const NAMESPACE: u32 = 1;

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

    /// Identifier of a queue's `number`-th command, from 0 on. Commands complete in their order, so
    /// that outstanding ones differ.
    fn id(&self, number: u64) -> u16 {
        let buffers = Spans::DATA_MAX / u64::from(self.size).max(1);
        (number % buffers.clamp(1, u64::from(self.depth).min(1 << 16))) as u16
    }

    /// Offset in the host's memory of the data that the `number`-th command writes. What commands
    /// read goes to the start.
    fn offset(&self, number: u64) -> u64 {
        if self.op == Op::Write { u64::from(self.id(number)) * u64::from(self.size) } else { 0 }
    }

    /// The SEND of a queue's `number`-th command, with data in the host's memory from `address` on.
    fn command(&self, number: u64, (address, rkey): (u64, RKey)) -> Posted {
        let opcode = if self.op == Op::Read { io::READ } else { io::WRITE };
        let address = address + self.offset(number);
        let remote = Remote { address, rkey, len: self.size };
        let data = DataPointer::Keyed { remote, invalidate: false };
        let id = self.id(number);
        let command = Command { id, descriptor: data.write(), ..Command::new(opcode, NAMESPACE) };
        let capsule = (!self.is_in_capsule()).then(|| command.write());
        Posted { capsule, ..send(self.capsule()) }
    }

    /// The SEND of the response to a queue's `number`-th command.
    fn response(&self, number: u64) -> Posted {
        let id = self.id(number);
        let completion =
            Completion { result: 0, sq_head: 0, queue: 0, id, status: Status::SUCCESS };
        let mut capsule = [0; SQE_LEN];
        capsule[..CQE_LEN].copy_from_slice(&completion.write());
        Posted { capsule: Some(capsule), ..send(RESPONSE) }
    }
}

/// A SEND of so many bytes.
fn send(bytes: u32) -> Posted {
    Posted {
        op: Op::Send,
        size: bytes,
        wr_id: 0,
        signaled: false,
        solicited: false,
        offset: 0,
        capsule: None,
    }
}
