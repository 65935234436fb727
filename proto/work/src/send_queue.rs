//! The send queue: a ring with the segments and inline data of each entry in one arena.

use crate::pieces::{check_list, gather_list};
use crate::{Completion, CompletionOp, Context, Denied, Destination, Emit, Intent, SGE_MAX};
use crate::{SendOp, SendRefused, SendWr, Sge, Status};
use longhaul_node::{Frame, Gather, Payload, Segment, Trailer};
use longhaul_units::{LKey, Qpn, RKey};
use longhaul_wire::{Head, Opcode, Reth, Transport, Verb};

pub(crate) const NO_SGE: Sge = Sge { address: 0, len: 0, lkey: LKey(0) };
/// Bit that turns an RC opcode into the UC opcode of the same operation.
const UC_OPCODES: u8 = 0x20;
/// Initial entries of a ring.
const FIRST_ENTRIES: usize = 16;

/// One queued send work request.
#[derive(Clone, Copy, Debug)]
pub struct SendWqe {
    /// The `wr_id` as posted.
    pub wr_id: u64,
    /// PSN of the first packet, unwrapped; set by the owner.
    pub first_psn: u64,
    /// PSN behind the last packet; set by the owner.
    pub end_psn: u64,
    /// READ: first PSN of the latest request; set by the owner.
    pub restart_psn: u64,
    /// First byte at the peer: WRITE, READ, atomics.
    pub remote_address: u64,
    /// Atomics: the value to swap in or to add.
    pub swap_or_add: u64,
    /// CMP_SWAP: the value to compare with.
    pub compare: u64,
    /// Length of the message in bytes.
    pub len: u32,
    /// The peer's key: WRITE, READ, atomics.
    pub rkey: RKey,
    /// Datagrams: the destination.
    pub destination: Destination,
    /// Immediate data in network byte order.
    pub immediate: Option<[u8; 4]>,
    /// The peer's key to invalidate.
    pub invalidate: Option<RKey>,
    /// Operation; a READ is a [`Verb::ReadRequest`].
    pub verb: Verb,
    segments: u8,
    /// Whether the data was copied at post time.
    pub inline: bool,
    /// Whether a completion is reported on success too.
    pub signaled: bool,
    /// Whether a solicited event is raised at the peer.
    pub solicited: bool,
    /// Whether it waits for earlier READs and atomics.
    pub fence: bool,
}

impl SendWqe {
    const EMPTY: SendWqe = SendWqe {
        wr_id: 0,
        first_psn: 0,
        end_psn: 0,
        restart_psn: 0,
        remote_address: 0,
        swap_or_add: 0,
        compare: 0,
        len: 0,
        rkey: RKey(0),
        destination: Destination { ah: crate::AhId(0), qpn: Qpn::new(0), qkey: 0 },
        immediate: None,
        invalidate: None,
        verb: Verb::Send,
        segments: 0,
        inline: false,
        signaled: false,
        solicited: false,
        fence: false,
    };

    /// True if it consumes a receive of the peer.
    #[inline]
    pub fn consumes_receive(&self) -> bool {
        self.verb == Verb::Send || self.immediate.is_some()
    }

    /// True if a response returns data: READ and atomics.
    #[inline]
    pub fn awaits_response(&self) -> bool {
        matches!(self.verb, Verb::ReadRequest | Verb::CmpSwap | Verb::FetchAdd)
    }

    /// Opcode of a SEND's or WRITE's packet, by its position in the message. Source: IBTA, volume
    /// 1, table 38.
    #[inline]
    pub fn opcode(&self, transport: Transport, first: bool, last: bool) -> Opcode {
        // Each operation has opcodes for the first, middle, last and only packet; behind the latter
        // two, those with immediate data.
        let position = match (first, last) {
            (true, false) => 0,
            (false, false) => 1,
            (false, true) => 2,
            (true, true) => 4,
        };
        let rc = if last && self.invalidate.is_some() {
            Opcode::RC_SEND_LAST_INV.0 + u8::from(first)
        } else if self.verb == Verb::Write {
            Opcode::RC_WRITE_FIRST.0 + position + u8::from(last && self.immediate.is_some())
        } else {
            Opcode::RC_SEND_FIRST.0 + position + u8::from(last && self.immediate.is_some())
        };
        Opcode(if transport == Transport::Uc { rc | UC_OPCODES } else { rc })
    }

    /// Adds the extended headers of a SEND's or WRITE's packet.
    #[inline]
    pub fn push_headers(&self, head: &mut Head, first: bool, last: bool) {
        if first && self.verb == Verb::Write {
            head.push_reth(&Reth {
                virtual_address: self.remote_address,
                rkey: self.rkey,
                len: self.len,
            });
        }
        if last && let Some(immediate) = self.immediate {
            head.push_immediate(immediate);
        } else if last && let Some(rkey) = self.invalidate {
            head.push_invalidate(rkey);
        }
    }

    /// The completion of this work request.
    pub fn completion(&self, status: Status, qpn: Qpn, peer_qpn: Qpn) -> Completion {
        let op = match self.verb {
            Verb::Write => CompletionOp::Write,
            Verb::ReadRequest => CompletionOp::Read,
            Verb::CmpSwap => CompletionOp::CmpSwap,
            Verb::FetchAdd => CompletionOp::FetchAdd,
            _ => CompletionOp::Send,
        };
        Completion { byte_len: self.len, ..Completion::of(self.wr_id, status, op, qpn, peer_qpn) }
    }

    fn of(wr: &SendWr<'_>, len: u32, signaled: bool) -> Self {
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
            SendOp::CmpSwap { remote_address, rkey, compare, swap } => {
                wqe.verb = Verb::CmpSwap;
                wqe.remote_address = remote_address;
                wqe.rkey = rkey;
                wqe.compare = compare;
                wqe.swap_or_add = swap;
            }
            SendOp::FetchAdd { remote_address, rkey, add } => {
                wqe.verb = Verb::FetchAdd;
                wqe.remote_address = remote_address;
                wqe.rkey = rkey;
                wqe.swap_or_add = add;
            }
            SendOp::Datagram { destination, immediate } => {
                wqe.destination = destination;
                wqe.immediate = immediate;
            }
        }
        wqe
    }
}

/// The ring of a requester. Entries have running 64-bit indices; those from `done` up to `tail` are
/// in use. The ring allocates as it fills, so that an idle queue pair costs little.
#[derive(Debug)]
pub struct SendQueue {
    ring: Box<[SendWqe]>,
    segments: Box<[Sge]>,
    inline: Box<[u8]>,
    done: u64,
    tail: u64,
    depth: usize,
    sge_max: usize,
    inline_max: usize,
}

impl SendQueue {
    /// For `depth` (rounded up to a power of two) work requests of up to `sge_max` segments (at
    /// most [`SGE_MAX`]) and `inline_max` bytes inline.
    pub fn new(depth: u32, sge_max: u32, inline_max: u32) -> Self {
        SendQueue {
            ring: Box::default(),
            segments: Box::default(),
            inline: Box::default(),
            done: 0,
            tail: 0,
            depth: depth.max(1).next_power_of_two() as usize,
            sge_max: (sge_max as usize).clamp(1, SGE_MAX),
            inline_max: inline_max as usize,
        }
    }

    /// Capacity in entries.
    #[inline]
    pub fn depth(&self) -> u64 {
        self.depth as u64
    }

    /// Maximum segments of an entry.
    pub fn sge_max(&self) -> u32 {
        self.sge_max as u32
    }

    /// Maximum inline bytes of an entry.
    pub fn inline_max(&self) -> u32 {
        self.inline_max as u32
    }

    /// Index of the oldest entry in use.
    #[inline]
    pub fn done(&self) -> u64 {
        self.done
    }

    /// Index of the next entry to be put.
    #[inline]
    pub fn tail(&self) -> u64 {
        self.tail
    }

    /// Entries in use.
    #[inline]
    pub fn len(&self) -> u64 {
        self.tail - self.done
    }

    /// True when no entry is in use.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.done == self.tail
    }

    /// Drops all entries without completions; indices begin at 0.
    pub fn reset(&mut self) {
        (self.done, self.tail) = (0, 0);
    }

    /// The oldest entry in use.
    #[inline]
    pub fn oldest(&self) -> &SendWqe {
        self.get(self.done)
    }

    /// Removes the oldest entry.
    #[inline]
    pub fn pop(&mut self) {
        self.done += 1;
    }

    /// Completes the oldest entry, if there is one, with `status` and all others with a flush
    /// error, in order. `ends` gives the sender's QPN and its peer's.
    pub fn fail<C: Context>(
        &mut self,
        mut status: Status,
        ends: impl Fn(&SendWqe) -> (Qpn, Qpn),
        ctx: &mut C,
    ) {
        while !self.is_empty() {
            let wqe = self.oldest();
            let (qpn, peer_qpn) = ends(wqe);
            ctx.complete_send(wqe.completion(status, qpn, peer_qpn));
            self.pop();
            status = Status::WrFlush;
        }
    }

    #[inline]
    fn slot(&self, index: u64) -> usize {
        index as usize & (self.ring.len() - 1)
    }

    /// An entry in use.
    #[inline]
    pub fn get(&self, index: u64) -> &SendWqe {
        &self.ring[self.slot(index)]
    }

    /// An entry in use.
    #[inline]
    pub fn get_mut(&mut self, index: u64) -> &mut SendWqe {
        let slot = self.slot(index);
        &mut self.ring[slot]
    }

    /// The segments of an entry in use.
    #[inline]
    pub fn segments(&self, index: u64) -> &[Sge] {
        let slot = self.slot(index);
        let start = slot * self.sge_max;
        &self.segments[start..start + usize::from(self.ring[slot].segments)]
    }

    /// The inline data of an entry in use.
    #[inline]
    pub fn inline(&self, index: u64) -> &[u8] {
        let slot = self.slot(index);
        let start = slot * self.inline_max;
        &self.inline[start..start + self.ring[slot].len as usize]
    }

    /// Checks that a work request of `len` bytes fits.
    ///
    /// # Errors
    /// [`SendRefused`] with the limit that is exceeded.
    #[inline]
    pub fn admit(&self, wr: &SendWr<'_>, len: u64) -> Result<(), SendRefused> {
        if wr.inline && len > self.inline_max as u64 {
            return Err(SendRefused::InlineTooLong { given: len, max: self.inline_max() });
        }
        if !wr.inline && wr.segments.len() > self.sge_max {
            return Err(SendRefused::TooManySegments {
                given: wr.segments.len(),
                max: self.sge_max(),
            });
        }
        if self.len() == self.depth() {
            return Err(SendRefused::Full(self.depth as u32));
        }
        Ok(())
    }

    /// Adds an entry whose limits were checked, and returns it for its owner to number. Inline data
    /// is read from `memory` at once.
    pub fn put(
        &mut self,
        wr: &SendWr<'_>,
        len: u32,
        signaled: bool,
        memory: &dyn Gather,
    ) -> &mut SendWqe {
        if self.len() as usize == self.ring.len() {
            self.grow();
        }
        let slot = self.slot(self.tail);
        let mut wqe = SendWqe::of(wr, len, signaled);
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
        self.tail += 1;
        self.ring[slot] = wqe;
        &mut self.ring[slot]
    }

    /// Doubles the ring and moves the entries in use.
    #[cold]
    fn grow(&mut self) {
        let entries = (2 * self.ring.len()).clamp(FIRST_ENTRIES.min(self.depth), self.depth);
        let mut wider = SendQueue {
            ring: vec![SendWqe::EMPTY; entries].into_boxed_slice(),
            segments: vec![NO_SGE; entries * self.sge_max].into_boxed_slice(),
            inline: vec![0; entries * self.inline_max].into_boxed_slice(),
            ..*self
        };
        for index in self.done..self.tail {
            let (from, to) = (self.slot(index), wider.slot(index));
            wider.ring[to] = self.ring[from];
            wider.segments[to * self.sge_max..][..self.sge_max]
                .copy_from_slice(&self.segments[from * self.sge_max..][..self.sge_max]);
            wider.inline[to * self.inline_max..][..self.inline_max]
                .copy_from_slice(&self.inline[from * self.inline_max..][..self.inline_max]);
        }
        *self = wider;
    }

    /// Checks that every segment of an entry may be used for `intent`; inline data always may.
    #[inline]
    pub fn check<C: Context>(&self, index: u64, intent: Intent, ctx: &C) -> Result<(), Denied> {
        // An entry with inline data has no segments.
        check_list(ctx, self.segments(index), intent)
    }

    /// Emits a packet behind `head` with `len` bytes at `offset` of an entry's message.
    ///
    /// # Errors
    /// [`Denied`] if a segment may not be read; then nothing was emitted.
    #[inline]
    pub fn emit<C: Context>(
        &self,
        index: u64,
        (offset, len): (u64, u32),
        (head, pad_len): (&[u8], u8),
        ctx: &C,
        emit: &mut impl Emit,
    ) -> Result<(), Denied> {
        let trailer = Trailer::Sealed { pad_len };
        if self.get(index).inline {
            let at = offset as usize;
            let bytes = &self.inline(index)[at..at + len as usize];
            emit.emit(&Frame { head, payload: Payload::Bytes(bytes), trailer });
        } else if len == 0 {
            // The key of an empty segment is not checked.
            emit.emit(&Frame { head, payload: Payload::EMPTY, trailer });
        } else if let &[sge] = self.segments(index) {
            let address =
                ctx.local(sge.lkey, sge.address.wrapping_add(offset), len, Intent::LocalRead)?;
            let piece = [Segment { address, len: len as usize }];
            emit.emit(&Frame { head, payload: Payload::Memory(ctx.gather(), &piece), trailer });
        } else {
            let mut pieces = [Segment { address: 0, len: 0 }; SGE_MAX];
            let used = gather_list(ctx, self.segments(index), offset, len, &mut pieces)?;
            emit.emit(&Frame {
                head,
                payload: Payload::Memory(ctx.gather(), &pieces[..used]),
                trailer,
            });
        }
        Ok(())
    }
}
