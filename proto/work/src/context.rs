//! What a requester or responder needs of the device around it.

use crate::{AhId, Completion, Counters, Sge};
use longhaul_node::{Gather, Payload};
use longhaul_units::{Duration, LKey, RKey};
use longhaul_wire::PathTemplate;

/// What a requester or responder may do to the peer's or its own memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Intent {
    /// Read local memory to send it.
    LocalRead,
    /// Write received data to local memory.
    LocalWrite,
}

/// What a peer wants to do to local memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RemoteIntent {
    /// RDMA WRITE.
    Write,
    /// RDMA READ.
    Read,
    /// CMP_SWAP or FETCH_ADD.
    Atomic,
}

/// A key, range or permission was wrong.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Denied;

/// What a QP's state machines need of the device around them: regions, completion queues, counters.
///
/// Statically dispatched, so that a device with its tables costs no indirect call per packet.
pub trait Context {
    /// The memory address of `len` bytes at `address` of the region that `lkey` names.
    fn local(&self, lkey: LKey, address: u64, len: u32, intent: Intent) -> Result<u64, Denied>;

    /// The memory address of `len` bytes at `address` of the region that a peer names by `rkey`.
    fn remote(
        &self,
        rkey: RKey,
        address: u64,
        len: u64,
        intent: RemoteIntent,
    ) -> Result<u64, Denied>;

    /// Whether the QP's attributes let the peer do this at all.
    fn permits(&self, intent: RemoteIntent) -> bool;

    /// Makes the region that `rkey` names unusable for the peer. False when there is none.
    fn invalidate(&mut self, rkey: RKey) -> bool;

    /// Copies `payload` to memory `address`, as [`Context::local`] or [`Context::remote`] gave it.
    fn scatter(&mut self, address: u64, payload: &Payload<'_>);

    /// Adds `add` to the 8 bytes at memory `address`, in the host's byte order and modulo 2^64, as
    /// one indivisible step; returns what was there.
    fn fetch_add(&mut self, address: u64, add: u64) -> u64;

    /// Stores `swap` in the 8 bytes at memory `address` when they hold `compare`, as one
    /// indivisible step; returns what was there.
    fn compare_swap(&mut self, address: u64, compare: u64, swap: u64) -> u64;

    /// The headers of datagrams that go by an address handle; `None` when there is none of that
    /// number.
    fn path(&self, ah: AhId) -> Option<&PathTemplate>;

    /// The memory, for frames that refer to it.
    fn gather(&self) -> &dyn Gather;

    /// A send work request is done.
    fn complete_send(&mut self, completion: Completion);

    /// A receive work request is done.
    fn complete_receive(&mut self, completion: Completion);

    /// The device's counters.
    fn counters(&mut self) -> &mut Counters;

    /// An answer came so long after the packet that asked for it was sent.
    fn note_answer_delay(&mut self, _delay: Duration) {}

    /// How long answers may take, by what those of all QPs took lately.
    fn expected_answer_delay(&self) -> Duration {
        Duration::ZERO
    }
}

/// Takes the frames that a state machine builds, one at a time, with room granted beforehand.
pub trait Emit {
    /// Packets that one frame may stand for, at least 1: see [`longhaul_node::Payload::Train`].
    fn train_max(&mut self) -> u32 {
        1
    }

    /// Takes one frame.
    fn emit(&mut self, frame: &longhaul_node::Frame<'_>);
}

/// Sum of the lengths of `segments`.
pub fn total_len(segments: &[Sge]) -> u64 {
    segments.iter().map(|s| u64::from(s.len)).sum()
}
