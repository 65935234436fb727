//! The device as a requester or responder sees it: memory, completion queues, counters.

use crate::{AhId, Completion, Counters, Sge};
use longhaul_node::{Gather, Payload};
use longhaul_units::{Duration, LKey, RKey};
use longhaul_wire::PathTemplate;

/// Access to local memory by a requester or responder.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Intent {
    /// Read local memory to send it.
    LocalRead,
    /// Write received data to local memory.
    LocalWrite,
}

/// Access to local memory by a peer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RemoteIntent {
    /// RDMA WRITE.
    Write,
    /// RDMA READ.
    Read,
    /// CMP_SWAP or FETCH_ADD.
    Atomic,
}

/// The key, range or permission forbids the access.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Denied;

/// A device as seen by a QP's state machines: regions, completion queues, counters.
///
/// Calls are dispatched statically, so that none is indirect per packet.
pub trait Context {
    /// Memory address of `len` bytes at `address` of the region with key `lkey`.
    fn local(&self, lkey: LKey, address: u64, len: u32, intent: Intent) -> Result<u64, Denied>;

    /// Memory address of `len` bytes at `address` of the region with key `rkey`, for a peer.
    fn remote(
        &self,
        rkey: RKey,
        address: u64,
        len: u64,
        intent: RemoteIntent,
    ) -> Result<u64, Denied>;

    /// Whether the QP's attributes permit this access by the peer.
    fn permits(&self, intent: RemoteIntent) -> bool;

    /// Invalidates `rkey` for the peer. Returns `false` if no region has it.
    fn invalidate(&mut self, rkey: RKey) -> bool;

    /// Copies `payload` to `address`, a result of [`Context::local`] or [`Context::remote`].
    fn scatter(&mut self, address: u64, payload: &Payload<'_>);

    /// Atomically adds `add` modulo 2^64 to the 8 bytes at memory `address`, in the host's byte
    /// order. Returns the original value.
    fn fetch_add(&mut self, address: u64, add: u64) -> u64;

    /// Atomically stores `swap` in the 8 bytes at memory `address` if they equal `compare`.
    /// Returns the original value.
    fn compare_swap(&mut self, address: u64, compare: u64, swap: u64) -> u64;

    /// Header template of an address handle; `None` if there is no such handle.
    fn path(&self, ah: AhId) -> Option<&PathTemplate>;

    /// Registered memory, for frames that refer to it.
    fn gather(&self) -> &dyn Gather;

    /// Reports the completion of a send work request.
    fn complete_send(&mut self, completion: Completion);

    /// Reports the completion of a receive work request.
    fn complete_receive(&mut self, completion: Completion);

    /// The device's counters.
    fn counters(&mut self) -> &mut Counters;

    /// Records the time from a packet that asks for an answer to that answer.
    fn note_answer_delay(&mut self, _delay: Duration) {}

    /// Expected time to an answer, from recent answers of all QPs.
    fn expected_answer_delay(&self) -> Duration {
        Duration::ZERO
    }
}

/// Takes the frames that a state machine builds, one at a time. The caller has granted room.
pub trait Emit {
    /// Maximum packets per frame, at least 1: see [`longhaul_node::Payload::Train`].
    fn train_max(&mut self) -> u32 {
        1
    }

    /// Emits one frame.
    fn emit(&mut self, frame: &longhaul_node::Frame<'_>);
}

/// Sum of the lengths of `segments`.
pub fn total_len(segments: &[Sge]) -> u64 {
    segments.iter().map(|s| u64::from(s.len)).sum()
}
