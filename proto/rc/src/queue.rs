//! Work queues: rings of fixed capacity with the segments and inline data of each entry in one arena.

use crate::context::total_len;
use crate::{Completion, CompletionOp, RecvWr, SendOp, SendWr, Sge, Status};
use longhaul_node::Gather;
use longhaul_units::{LKey, Qpn, RKey};
use longhaul_wire::Verb;

const NO_SGE: Sge = Sge { address: 0, len: 0, lkey: LKey(0) };

/// One queued send work request.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SendWqe {
    pub wr_id: u64,
    /// PSN of the first packet, unwrapped.
    pub first_psn: u64,
    /// PSN behind the last packet.
    pub end_psn: u64,
    /// READ: PSN that the latest request started from.
    pub restart_psn: u64,
    pub remote_address: u64,
    pub len: u32,
    pub rkey: RKey,
    pub immediate: Option<[u8; 4]>,
    pub invalidate: Option<RKey>,
    pub verb: Verb,
    pub segments: u8,
    pub inline: bool,
    pub signaled: bool,
    pub solicited: bool,
    pub fence: bool,
}

impl SendWqe {
    const EMPTY: SendWqe = SendWqe {
        wr_id: 0,
        first_psn: 0,
        end_psn: 0,
        restart_psn: 0,
        remote_address: 0,
        len: 0,
        rkey: RKey(0),
        immediate: None,
        invalidate: None,
        verb: Verb::Send,
        segments: 0,
        inline: false,
        signaled: false,
        solicited: false,
        fence: false,
    };

    /// True when the peer's receive queue loses an entry.
    pub fn consumes_receive(&self) -> bool {
        self.verb == Verb::Send || self.immediate.is_some()
    }

    pub fn completion(&self, status: Status, qpn: Qpn, peer_qpn: Qpn) -> Completion {
        let op = match self.verb {
            Verb::Write => CompletionOp::Write,
            Verb::ReadRequest => CompletionOp::Read,
            _ => CompletionOp::Send,
        };
        Completion {
            wr_id: self.wr_id,
            status,
            op,
            byte_len: self.len,
            immediate: None,
            invalidated: None,
            qpn,
            peer_qpn,
            solicited: false,
        }
    }
}

/// The ring behind a requester. Entries are named by a running 64-bit index.
#[derive(Debug)]
pub(crate) struct SendQueue {
    ring: Box<[SendWqe]>,
    segments: Box<[Sge]>,
    inline: Box<[u8]>,
    sge_max: usize,
    inline_max: usize,
}

impl SendQueue {
    /// `depth` is rounded up to a power of two.
    pub fn new(depth: u32, sge_max: u32, inline_max: u32) -> Self {
        let depth = depth.max(1).next_power_of_two() as usize;
        let sge_max = sge_max.max(1) as usize;
        let inline_max = inline_max as usize;
        SendQueue {
            ring: vec![SendWqe::EMPTY; depth].into_boxed_slice(),
            segments: vec![NO_SGE; depth * sge_max].into_boxed_slice(),
            inline: vec![0; depth * inline_max].into_boxed_slice(),
            sge_max,
            inline_max,
        }
    }

    pub fn depth(&self) -> u64 {
        self.ring.len() as u64
    }

    #[inline]
    fn slot(&self, index: u64) -> usize {
        index as usize & (self.ring.len() - 1)
    }

    #[inline]
    pub fn get(&self, index: u64) -> &SendWqe {
        &self.ring[self.slot(index)]
    }

    #[inline]
    pub fn get_mut(&mut self, index: u64) -> &mut SendWqe {
        let slot = self.slot(index);
        &mut self.ring[slot]
    }

    #[inline]
    pub fn segments(&self, index: u64) -> &[Sge] {
        let slot = self.slot(index);
        let start = slot * self.sge_max;
        &self.segments[start..start + usize::from(self.ring[slot].segments)]
    }

    #[inline]
    pub fn inline(&self, index: u64) -> &[u8] {
        let slot = self.slot(index);
        let start = slot * self.inline_max;
        &self.inline[start..start + self.ring[slot].len as usize]
    }

    /// Fills entry `index`; limits were checked. Inline data is read from `memory` at once.
    pub fn put(&mut self, index: u64, wr: &SendWr<'_>, len: u32, signaled: bool, memory: &dyn Gather) {
        let slot = self.slot(index);
        let mut wqe = SendWqe {
            wr_id: wr.wr_id,
            len,
            inline: wr.inline,
            signaled,
            solicited: wr.solicited,
            fence: wr.fence,
            ..SendWqe::EMPTY
        };
        match wr.op {
            SendOp::Send { immediate, invalidate } => {
                wqe.verb = Verb::Send;
                wqe.immediate = immediate;
                wqe.invalidate = invalidate;
            }
            SendOp::Write { remote_address, rkey, immediate } => {
                wqe.verb = Verb::Write;
                wqe.remote_address = remote_address;
                wqe.rkey = rkey;
                wqe.immediate = immediate;
            }
            SendOp::Read { remote_address, rkey } => {
                wqe.verb = Verb::ReadRequest;
                wqe.remote_address = remote_address;
                wqe.rkey = rkey;
            }
            SendOp::CmpSwap { .. } | SendOp::FetchAdd { .. } => {
                unreachable!("refused when posted")
            }
        }
        if wr.inline {
            let mut at = slot * self.inline_max;
            for segment in wr.segments {
                let end = at + segment.len as usize;
                if segment.len > 0 {
                    memory.gather(segment.address, &mut self.inline[at..end]);
                }
                at = end;
            }
        } else {
            let start = slot * self.sge_max;
            self.segments[start..start + wr.segments.len()].copy_from_slice(wr.segments);
            wqe.segments = wr.segments.len() as u8;
        }
        self.ring[slot] = wqe;
    }
}

/// A ring of receive work requests.
///
/// The front entry stays in the ring while a message is being placed in it, so that depth counts it.
#[derive(Debug)]
pub struct RecvQueue {
    ring: Box<[RecvWqe]>,
    segments: Box<[Sge]>,
    sge_max: usize,
    head: u64,
    tail: u64,
}

#[derive(Clone, Copy, Debug, Default)]
struct RecvWqe {
    wr_id: u64,
    capacity: u64,
    segments: u8,
}

/// Why a receive work request was not queued.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum RecvRefused {
    /// All entries are in use.
    #[error("receive queue of {0} is full")]
    Full(u32),
    /// More segments than the queue was made for.
    #[error("{given} segments, at most {max}")]
    TooManySegments {
        /// As posted.
        given: usize,
        /// As created.
        max: u32,
    },
}

impl RecvQueue {
    /// An empty queue; `depth` is rounded up to a power of two, 0 takes nothing.
    pub fn new(depth: u32, sge_max: u32) -> Self {
        let depth = if depth == 0 { 0 } else { depth.next_power_of_two() as usize };
        let sge_max = sge_max.max(1) as usize;
        RecvQueue {
            ring: vec![RecvWqe::default(); depth].into_boxed_slice(),
            segments: vec![NO_SGE; depth * sge_max].into_boxed_slice(),
            sge_max,
            head: 0,
            tail: 0,
        }
    }

    /// Entries that it can hold.
    pub fn depth(&self) -> u32 {
        self.ring.len() as u32
    }

    /// Entries that it holds.
    #[inline]
    pub fn len(&self) -> u32 {
        (self.tail - self.head) as u32
    }

    /// True when it holds none.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.head == self.tail
    }

    /// Queues a receive work request.
    pub fn post(&mut self, wr: &RecvWr<'_>) -> Result<(), RecvRefused> {
        if wr.segments.len() > self.sge_max {
            return Err(RecvRefused::TooManySegments { given: wr.segments.len(), max: self.sge_max as u32 });
        }
        if self.len() == self.depth() {
            return Err(RecvRefused::Full(self.depth()));
        }
        let slot = self.tail as usize & (self.ring.len() - 1);
        let start = slot * self.sge_max;
        self.segments[start..start + wr.segments.len()].copy_from_slice(wr.segments);
        self.ring[slot] =
            RecvWqe { wr_id: wr.wr_id, capacity: total_len(wr.segments), segments: wr.segments.len() as u8 };
        self.tail += 1;
        Ok(())
    }

    #[inline]
    fn front_slot(&self) -> Option<usize> {
        (!self.is_empty()).then(|| self.head as usize & (self.ring.len() - 1))
    }

    /// Bytes that the front entry takes; `None` when empty.
    #[inline]
    pub(crate) fn front_capacity(&self) -> Option<u64> {
        self.front_slot().map(|slot| self.ring[slot].capacity)
    }

    #[inline]
    pub(crate) fn front_segments(&self) -> &[Sge] {
        match self.front_slot() {
            Some(slot) => {
                let start = slot * self.sge_max;
                &self.segments[start..start + usize::from(self.ring[slot].segments)]
            }
            None => &[],
        }
    }

    /// Removes the front entry and gives its `wr_id`.
    pub fn pop(&mut self) -> Option<u64> {
        let wr_id = self.ring[self.front_slot()?].wr_id;
        self.head += 1;
        Some(wr_id)
    }

    /// Forgets everything, without completions.
    pub fn clear(&mut self) {
        self.head = self.tail;
    }
}
