//! The responder: takes requests in PSN order, places them in memory, and answers.

use crate::requester::{ATOMIC_LEN, SEQUENCE_BASE};
use longhaul_node::{Frame, Payload, Segment, Trailer};
use longhaul_units::{Msn, Psn, Qpn, RKey};
use longhaul_wire::{
    Aeth, AtomicAckEth, Bth, Head, NakCode, Opcode, PKEY_DEFAULT, Packet, PathTemplate, Position,
    Reth, Syndrome, Verb, credit_code,
};
use longhaul_work::{
    Completion, CompletionOp, Context, Counter, DropReason, Emit, MESSAGE_MAX, Mtu, Receive,
    RecvQueue, RemoteIntent, Status, scatter_list,
};
use std::collections::VecDeque;

/// What a responder must know about its connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ResponderConfig {
    /// The local QP.
    pub qpn: Qpn,
    /// The peer's QP.
    pub dest_qpn: Qpn,
    /// First PSN to expect.
    pub rq_psn: Psn,
    /// Path MTU.
    pub mtu: Mtu,
    /// READs and atomics that the peer may have outstanding.
    pub max_dest_rd_atomic: u32,
    /// RNR timer code to send, 0 to 31.
    pub min_rnr_timer: u8,
    /// Acknowledge at least this often, in packets, whether asked or not.
    pub ack_every: u32,
    /// Report the receives posted as credits instead of "no limit"; not where queue pairs share
    /// them.
    pub report_credits: bool,
    /// MigReq bit to send.
    pub migreq: bool,
    /// Partition key.
    pub pkey: u16,
}

impl Default for ResponderConfig {
    /// That of a queue pair which is not connected.
    fn default() -> Self {
        ResponderConfig {
            qpn: Qpn::new(0),
            dest_qpn: Qpn::new(0),
            rq_psn: Psn::new(0),
            mtu: Mtu::B256,
            max_dest_rd_atomic: 0,
            min_rnr_timer: 0,
            ack_every: 1,
            report_credits: false,
            migreq: false,
            pkey: PKEY_DEFAULT,
        }
    }
}

/// Why a responder gave up; its QP goes to the error state.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fault {
    /// Answered with "invalid request".
    InvalidRequest,
    /// Answered with "remote access error".
    RemoteAccess,
    /// Answered with "remote operational error".
    RemoteOperational,
}

/// The message that is coming in.
#[derive(Clone, Copy, Debug)]
enum Message {
    None,
    Send { received: u64, into: Receive },
    Write { address: u64, rkey: RKey, len: u32, received: u32 },
}

/// A READ or an atomic to answer. PSNs are unwrapped.
#[derive(Clone, Copy, Debug)]
struct Read {
    first: u64,
    end: u64,
    /// Next response to send.
    cursor: u64,
    address: u64,
    rkey: RKey,
    len: u32,
    msn: Msn,
    is_duplicate: bool,
    /// An atomic: what it found.
    original: Option<u64>,
}

/// The receiving half of an RC QP.
///
/// ACKs are coalesced: what arrives between two calls of [`Responder::transmit`] is acknowledged at
/// once. Responses leave in PSN order: an ACK or NAK waits until the READs before it are answered.
#[derive(Debug)]
pub struct Responder {
    config: ResponderConfig,
    expected: u64,
    msn: u64,
    message: Message,
    reads: VecDeque<Read>,
    /// Results of the latest atomics, by PSN, for duplicates of them.
    atomics: VecDeque<(u64, u64)>,
    /// READs and atomics queued for the first time; repetitions are not counted.
    new_reads: u32,
    ack_due: bool,
    since_ack: u32,
    /// A sequence or RNR NAK was raised for `expected`; no other until it arrives.
    gap_open: bool,
    /// Highest PSN that came too early.
    gap_top: u64,
    nak: Option<Syndrome>,
    fault: Option<Fault>,
}

/// A responder's state, for people.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ResponderSnapshot {
    /// Next PSN expected.
    pub expected: Psn,
    /// Messages completed.
    pub msn: Msn,
    /// READs being answered.
    pub reads: u32,
    /// A gap is open: a NAK was sent and the expected PSN has not come.
    pub gap_open: bool,
}

impl Responder {
    /// A responder in the state of a fresh connection.
    pub fn new(config: ResponderConfig) -> Self {
        Responder {
            expected: SEQUENCE_BASE + u64::from(config.rq_psn.get()),
            msn: 0,
            message: Message::None,
            reads: VecDeque::new(),
            atomics: VecDeque::new(),
            new_reads: 0,
            ack_due: false,
            since_ack: 0,
            gap_open: false,
            gap_top: 0,
            nak: None,
            fault: None,
            config,
        }
    }

    /// The parameters in force.
    pub fn config(&self) -> &ResponderConfig {
        &self.config
    }

    /// Changes the RNR timer code.
    pub fn set_min_rnr_timer(&mut self, code: u8) {
        self.config.min_rnr_timer = code;
    }

    /// Changes how many READs and atomics the peer may have outstanding.
    pub fn set_max_dest_rd_atomic(&mut self, max_dest_rd_atomic: u32) {
        self.config.max_dest_rd_atomic = max_dest_rd_atomic;
    }

    /// True when READs or atomics wait for their responses.
    #[inline]
    pub fn is_answering(&self) -> bool {
        !self.reads.is_empty()
    }

    /// Why it gave up, if it did.
    #[inline]
    pub fn fault(&self) -> Option<Fault> {
        self.fault
    }

    /// State for people.
    pub fn snapshot(&self) -> ResponderSnapshot {
        ResponderSnapshot {
            expected: Psn::from_sequence(self.expected),
            msn: Msn::new(self.msn as u32),
            reads: self.reads.len() as u32,
            gap_open: self.gap_open,
        }
    }

    /// Takes a request packet. Receives come from `queue`; the one that a message is being placed
    /// in stays taken between calls, until the message ends, [`Responder::flush`] or
    /// [`Responder::release`].
    pub fn handle_request<C: Context>(
        &mut self,
        packet: &Packet<'_>,
        bth: &Bth,
        payload: &Payload<'_>,
        queue: &mut RecvQueue,
        ctx: &mut C,
    ) {
        if self.fault.is_some() {
            ctx.counters().count(DropReason::ResponderHalted);
            return;
        }
        let Some(psn) = bth.psn.unwrap_near(self.expected) else {
            ctx.counters().count(DropReason::OutOfSequence);
            return;
        };
        // Behind the last packet of a train.
        let end = psn + u64::from(payload.count());
        if psn > self.expected {
            self.too_early(psn, end, ctx);
            return;
        }
        if end <= self.expected {
            ctx.counters().add(Counter::DuplicateRequest, end - psn);
            self.duplicate(psn, packet, bth, payload, ctx);
            return;
        }
        ctx.counters().add(Counter::DuplicateRequest, self.expected - psn);
        let count = end - self.expected;
        let verb = bth.opcode.verb();
        let begins = matches!(bth.opcode.position(), Position::First | Position::Only);
        let in_order = match (self.message, verb) {
            (Message::None, Some(_)) => begins && bth.opcode.is_request(),
            (Message::Send { .. }, Some(Verb::Send))
            | (Message::Write { .. }, Some(Verb::Write)) => !begins,
            _ => false,
        };
        if !in_order || !self.length_is_right(bth.opcode, payload.len() as u32) {
            self.give_up(Fault::InvalidRequest, ctx);
            return;
        }
        let payload = match *payload {
            Payload::Train { len, .. } => &Payload::Synthetic { len: len * count as usize },
            _ => payload,
        };
        let taken = match verb {
            Some(Verb::Send) => self.take_send(packet, bth, payload, queue, ctx),
            Some(Verb::Write) => self.take_write(packet, bth, payload, queue, ctx),
            Some(Verb::ReadRequest) => self.take_read(packet, ctx),
            _ => self.take_atomic(packet, bth, ctx),
        };
        if taken {
            self.gap_open = false;
            if let Some(Syndrome::RnrNak { .. }) = self.nak {
                self.nak = None;
            }
            self.expected += count - 1;
            self.since_ack += count as u32;
            if bth.ack_request || self.since_ack >= self.config.ack_every {
                self.ack_due = true;
            }
        }
    }

    #[inline]
    fn length_is_right(&self, opcode: Opcode, len: u32) -> bool {
        let mtu = self.config.mtu.bytes();
        if !matches!(opcode.verb(), Some(Verb::Send | Verb::Write)) {
            return len == 0;
        }
        match opcode.position() {
            Position::First | Position::Middle => len == mtu,
            Position::Last => (1..=mtu).contains(&len),
            Position::Only => len <= mtu,
        }
    }

    #[cold]
    fn too_early<C: Context>(&mut self, psn: u64, end: u64, ctx: &mut C) {
        ctx.counters().add(DropReason::OutOfSequence.counter(), end - psn);
        self.gap_top = self.gap_top.max(end - 1);
        if !self.gap_open {
            self.gap_open = true;
            self.nak = Some(Syndrome::Nak(NakCode::PsnSequence));
        }
    }

    #[cold]
    fn duplicate<C: Context>(
        &mut self,
        psn: u64,
        packet: &Packet<'_>,
        bth: &Bth,
        payload: &Payload<'_>,
        ctx: &mut C,
    ) {
        match bth.opcode.verb() {
            Some(Verb::Send | Verb::Write) => self.ack_due = true,
            Some(Verb::ReadRequest) if payload.is_empty() => {
                if !packet.reth().is_some_and(|reth| self.queue_duplicate_read(psn, &reth, ctx)) {
                    ctx.counters().count(DropReason::DuplicateRead);
                }
            }
            Some(Verb::CmpSwap | Verb::FetchAdd) => {
                if !self.queue_duplicate_atomic(psn) {
                    ctx.counters().count(DropReason::DuplicateRead);
                }
            }
            _ => ctx.counters().count(DropReason::Opcode),
        }
    }

    /// READs and atomics that can be queued, duplicates included.
    fn reads_max(&self) -> usize {
        2 * self.config.max_dest_rd_atomic as usize
    }

    /// Queues a duplicate READ, from `psn` on. False when it contradicts the original.
    fn queue_duplicate_read<C: Context>(&mut self, psn: u64, reth: &Reth, ctx: &mut C) -> bool {
        let end = psn + self.config.mtu.packets(u64::from(reth.len));
        let allowed = ctx.permits(RemoteIntent::Read)
            && (reth.len == 0
                || ctx
                    .remote(
                        reth.rkey,
                        reth.virtual_address,
                        u64::from(reth.len),
                        RemoteIntent::Read,
                    )
                    .is_ok());
        if end > self.expected || !allowed {
            return false;
        }
        let read = Read {
            first: psn,
            end,
            cursor: psn,
            address: reth.virtual_address,
            rkey: reth.rkey,
            len: reth.len,
            msn: Msn::new(self.msn as u32),
            is_duplicate: true,
            original: None,
        };
        self.queue_duplicate(read)
    }

    /// Queues a duplicate atomic's response, with the original result. False when that is
    /// forgotten.
    fn queue_duplicate_atomic(&mut self, psn: u64) -> bool {
        let Some(&(_, original)) = self.atomics.iter().find(|(at, _)| *at == psn) else {
            return false;
        };
        let msn = Msn::new(self.msn as u32);
        self.queue_duplicate(Read {
            first: psn,
            end: psn + 1,
            cursor: psn,
            address: 0,
            rkey: RKey(0),
            len: 0,
            msn,
            is_duplicate: true,
            original: Some(original),
        })
    }

    /// Queues a duplicate where its PSNs belong. False when it contradicts what is queued, or
    /// there is no space.
    fn queue_duplicate(&mut self, read: Read) -> bool {
        let has_space = self.reads.len() < self.reads_max();
        let at = self.reads.partition_point(|r| r.end <= read.first);
        match self.reads.get_mut(at) {
            Some(queued) if queued.first <= read.first => {
                if queued.end != read.end || queued.original != read.original {
                    return false;
                }
                if read.first < queued.cursor {
                    self.new_reads -= u32::from(!queued.is_duplicate);
                    *queued = read;
                }
                true
            }
            Some(queued) if queued.first < read.end => false,
            _ if has_space => {
                self.reads.insert(at, read);
                true
            }
            _ => false,
        }
    }

    fn take_send<C: Context>(
        &mut self,
        packet: &Packet<'_>,
        bth: &Bth,
        payload: &Payload<'_>,
        queue: &mut RecvQueue,
        ctx: &mut C,
    ) -> bool {
        let (offset, into) = match self.message {
            Message::Send { received, into } => (received, into),
            _ => match queue.take() {
                Some(into) => (0, into),
                None => {
                    self.not_ready(ctx);
                    return false;
                }
            },
        };
        let received = offset + payload.len() as u64;
        self.message = Message::Send { received, into };
        if received > into.capacity {
            ctx.counters().count(Counter::RespLocalLength);
            self.end_receive(Status::LocalLength, queue, ctx);
            self.give_up(Fault::InvalidRequest, ctx);
            return false;
        }
        if scatter_list(ctx, queue.segments(&into), offset, payload).is_err() {
            self.end_receive(Status::LocalProtection, queue, ctx);
            self.give_up(Fault::RemoteOperational, ctx);
            return false;
        }
        if bth.opcode.ends_message() {
            let invalidated = packet.invalidate();
            if let Some(rkey) = invalidated
                && !ctx.invalidate(rkey)
            {
                self.end_receive(Status::LocalAccess, queue, ctx);
                self.give_up(Fault::RemoteAccess, ctx);
                return false;
            }
            ctx.counters().count(Counter::RxSendRequests);
            let wr_id = queue.release(into);
            ctx.complete_receive(Completion {
                byte_len: received as u32,
                immediate: packet.immediate(),
                invalidated,
                solicited: bth.solicited,
                ..self.receive_completion(wr_id, Status::Success)
            });
            self.message = Message::None;
            self.msn += 1;
        }
        self.expected += 1;
        true
    }

    fn take_write<C: Context>(
        &mut self,
        packet: &Packet<'_>,
        bth: &Bth,
        payload: &Payload<'_>,
        queue: &mut RecvQueue,
        ctx: &mut C,
    ) -> bool {
        let here = payload.len() as u32;
        let (address, rkey, len, before) = match (self.message, packet.reth()) {
            (Message::Write { address, rkey, len, received }, _) => (address, rkey, len, received),
            (_, Some(reth)) => {
                if let Err(fault) = check_write(&reth, ctx) {
                    self.give_up(fault, ctx);
                    return false;
                }
                (reth.virtual_address, reth.rkey, reth.len, 0)
            }
            _ => unreachable!("a WRITE that begins has a RETH"),
        };
        let ends = bth.opcode.ends_message();
        let left = len - before;
        if (ends && here != left) || (!ends && here >= left) {
            self.give_up(Fault::InvalidRequest, ctx);
            return false;
        }
        if packet.immediate().is_some() && queue.is_empty() {
            self.not_ready(ctx);
            return false;
        }
        if here > 0 {
            let at = address.wrapping_add(u64::from(before));
            match ctx.remote(rkey, at, u64::from(here), RemoteIntent::Write) {
                Ok(memory) => ctx.scatter(memory, payload),
                Err(_) => {
                    self.give_up(Fault::RemoteAccess, ctx);
                    return false;
                }
            }
        }
        self.message = Message::Write { address, rkey, len, received: before + here };
        if ends {
            ctx.counters().count(Counter::RxWriteRequests);
            if let Some(immediate) = packet.immediate()
                && let Some(wr_id) = queue.pop()
            {
                ctx.complete_receive(Completion {
                    op: CompletionOp::RecvWriteImmediate,
                    byte_len: len,
                    immediate: Some(immediate),
                    solicited: bth.solicited,
                    ..self.receive_completion(wr_id, Status::Success)
                });
            }
            self.message = Message::None;
            self.msn += 1;
        }
        self.expected += 1;
        true
    }

    /// Executes an atomic; its response is queued behind those of the READs before it.
    #[inline(never)]
    fn take_atomic<C: Context>(&mut self, packet: &Packet<'_>, bth: &Bth, ctx: &mut C) -> bool {
        let Some(atomic) = packet.atomic_eth() else { unreachable!("an atomic has an AtomicETH") };
        let full = self.new_reads >= self.config.max_dest_rd_atomic;
        if full || !ctx.permits(RemoteIntent::Atomic) || atomic.virtual_address % ATOMIC_LEN != 0 {
            self.give_up(Fault::InvalidRequest, ctx);
            return false;
        }
        let at = ctx.remote(atomic.rkey, atomic.virtual_address, ATOMIC_LEN, RemoteIntent::Atomic);
        // The address that the peer names may be aligned while the memory behind it is not.
        let Some(memory) = at.ok().filter(|memory| memory % ATOMIC_LEN == 0) else {
            self.give_up(Fault::RemoteAccess, ctx);
            return false;
        };
        ctx.counters().count(Counter::RxAtomicRequests);
        let original = if bth.opcode == Opcode::RC_CMP_SWAP {
            ctx.compare_swap(memory, atomic.compare, atomic.swap_or_add)
        } else {
            ctx.fetch_add(memory, atomic.swap_or_add)
        };
        if self.atomics.len() >= self.config.max_dest_rd_atomic as usize {
            self.atomics.pop_front();
        }
        self.atomics.push_back((self.expected, original));
        self.queue_new(Read {
            first: self.expected,
            end: self.expected + 1,
            cursor: self.expected,
            address: 0,
            rkey: atomic.rkey,
            len: 0,
            msn: Msn::new(self.msn as u32 + 1),
            is_duplicate: false,
            original: Some(original),
        });
        // Its response acknowledges it.
        false
    }

    fn take_read<C: Context>(&mut self, packet: &Packet<'_>, ctx: &mut C) -> bool {
        let Some(reth) = packet.reth() else { unreachable!("a READ request has a RETH") };
        let full = self.new_reads >= self.config.max_dest_rd_atomic;
        if full || !ctx.permits(RemoteIntent::Read) || u64::from(reth.len) > MESSAGE_MAX {
            self.give_up(Fault::InvalidRequest, ctx);
            return false;
        }
        let len = u64::from(reth.len);
        if len > 0 && ctx.remote(reth.rkey, reth.virtual_address, len, RemoteIntent::Read).is_err()
        {
            self.give_up(Fault::RemoteAccess, ctx);
            return false;
        }
        ctx.counters().count(Counter::RxReadRequests);
        self.queue_new(Read {
            first: self.expected,
            end: self.expected + self.config.mtu.packets(len),
            cursor: self.expected,
            address: reth.virtual_address,
            rkey: reth.rkey,
            len: reth.len,
            msn: Msn::new(self.msn as u32 + 1),
            is_duplicate: false,
            original: None,
        });
        // Its responses acknowledge it.
        false
    }

    /// Queues a READ or an atomic that came in sequence.
    fn queue_new(&mut self, read: Read) {
        if self.reads.len() >= self.reads_max()
            && let Some(oldest) = self.reads.pop_front()
        {
            // Duplicates fill the space: the oldest is dropped, and its requester's timer will
            // retransmit it.
            self.new_reads -= u32::from(!oldest.is_duplicate);
        }
        self.msn += 1;
        self.expected = read.end;
        self.new_reads += 1;
        self.reads.push_back(read);
        self.gap_open = false;
    }

    fn not_ready<C: Context>(&mut self, ctx: &mut C) {
        ctx.counters().count(Counter::TxRnrNak);
        self.gap_open = true;
        self.nak = Some(Syndrome::RnrNak { timer_code: self.config.min_rnr_timer });
    }

    fn receive_completion(&self, wr_id: u64, status: Status) -> Completion {
        Completion::of(wr_id, status, CompletionOp::Recv, self.config.qpn, self.config.dest_qpn)
    }

    /// Completes the receive that a SEND is being placed in, if there is one.
    fn end_receive<C: Context>(&mut self, status: Status, queue: &mut RecvQueue, ctx: &mut C) {
        if let Message::Send { into, .. } = std::mem::replace(&mut self.message, Message::None) {
            ctx.complete_receive(self.receive_completion(queue.release(into), status));
        }
    }

    fn give_up<C: Context>(&mut self, fault: Fault, ctx: &mut C) {
        let (counter, code) = match fault {
            Fault::InvalidRequest => (Counter::RespInvalidRequest, NakCode::InvalidRequest),
            Fault::RemoteAccess => (Counter::RespRemoteAccess, NakCode::RemoteAccess),
            Fault::RemoteOperational => (Counter::RespRemoteOperation, NakCode::RemoteOperational),
        };
        ctx.counters().count(counter);
        self.nak = Some(Syndrome::Nak(code));
        self.fault = Some(fault);
    }

    /// Ends the receive that a message is being placed in, if there is one, with a flush error.
    /// Responses that are due still leave; the caller hands over no further requests.
    pub fn flush<C: Context>(&mut self, queue: &mut RecvQueue, ctx: &mut C) {
        self.end_receive(Status::WrFlush, queue, ctx);
    }

    /// Gives back, without a completion, the receive that a message is being placed in.
    pub fn release(&mut self, queue: &mut RecvQueue) {
        if let Message::Send { into, .. } = std::mem::replace(&mut self.message, Message::None) {
            queue.release(into);
        }
    }

    /// True when [`Responder::transmit`] would send something.
    #[inline]
    pub fn can_transmit(&self) -> bool {
        !self.reads.is_empty() || self.nak.is_some() || self.ack_due
    }

    /// Sends one packet, if there is one to send. The caller has granted room. True when a packet
    /// was sent.
    pub fn transmit<C: Context>(
        &mut self,
        queue: &RecvQueue,
        ctx: &mut C,
        template: &PathTemplate,
        emit: &mut impl Emit,
    ) -> bool {
        if let Some(&read) = self.reads.front() {
            return self.send_read_response(read, queue, ctx, template, emit);
        }
        let (psn, syndrome) = match self.nak {
            Some(Syndrome::Nak(NakCode::PsnSequence)) if self.expected > self.gap_top => {
                // The gap closed before the NAK could leave.
                self.nak = None;
                (self.expected - 1, self.ack_syndrome(queue))
            }
            // The NAK would say as much; but kernel rxe resets its retries by an ACK alone, and
            // ignores a second NAK before one, so that it would have to wait for its timer.
            Some(_) if self.ack_due => (self.expected - 1, self.ack_syndrome(queue)),
            Some(nak) => {
                if nak == Syndrome::Nak(NakCode::PsnSequence) {
                    ctx.counters().count(Counter::TxSequenceNak);
                }
                self.nak = None;
                (self.expected, nak)
            }
            None if self.ack_due => (self.expected - 1, self.ack_syndrome(queue)),
            None => return false,
        };
        // A NAK acknowledges what lies before it.
        self.ack_due = false;
        self.since_ack = 0;
        ctx.counters().count(Counter::TxAcks);
        let bth = self.bth(Opcode::RC_ACK, psn);
        let mut head = Head::begin(template, &bth);
        head.push_aeth(&Aeth { syndrome, msn: Msn::new(self.msn as u32) });
        let pad_len = head.finish(template, 0);
        emit.emit(&Frame {
            head: head.bytes(),
            payload: Payload::EMPTY,
            trailer: Trailer::Sealed { pad_len },
        });
        true
    }

    fn bth(&self, opcode: Opcode, psn: u64) -> Bth {
        let mut bth = Bth::new(opcode, self.config.dest_qpn, Psn::from_sequence(psn));
        bth.migreq = self.config.migreq;
        bth.pkey = self.config.pkey;
        bth
    }

    fn ack_syndrome(&self, queue: &RecvQueue) -> Syndrome {
        if !self.config.report_credits {
            return Syndrome::ACK_UNLIMITED;
        }
        Syndrome::Ack { credit_code: credit_code(queue.len()) }
    }

    fn send_read_response<C: Context>(
        &mut self,
        read: Read,
        queue: &RecvQueue,
        ctx: &mut C,
        template: &PathTemplate,
        emit: &mut impl Emit,
    ) -> bool {
        if let Some(original) = read.original {
            self.send_atomic_ack(&read, original, queue, template, emit);
            return true;
        }
        let mtu = self.config.mtu.bytes();
        let offset = (read.cursor - read.first) as u32 * mtu;
        let len = (read.len - offset).min(mtu);
        let first = read.cursor == read.first;
        let last = read.cursor + 1 == read.end;
        let opcode = match (first, last) {
            (true, true) => Opcode::RC_READ_RESPONSE_ONLY,
            (true, false) => Opcode::RC_READ_RESPONSE_FIRST,
            (false, false) => Opcode::RC_READ_RESPONSE_MIDDLE,
            (false, true) => Opcode::RC_READ_RESPONSE_LAST,
        };
        let bth = self.bth(opcode, read.cursor);
        let mut head = Head::begin(template, &bth);
        if opcode.has_aeth() {
            head.push_aeth(&Aeth { syndrome: self.ack_syndrome(queue), msn: read.msn });
        }
        let pad_len = head.finish(template, len as usize);
        let (head, trailer) = (head.bytes(), Trailer::Sealed { pad_len });
        // Those in the middle are alike but for their PSN.
        let train_max = if first || last { 1 } else { emit.train_max() };
        let count = u64::from(train_max).min(read.end - 1 - read.cursor).max(1);
        if len == 0 {
            emit.emit(&Frame { head, payload: Payload::EMPTY, trailer });
        } else {
            let at = read.address.wrapping_add(u64::from(offset));
            let Ok(address) = ctx.remote(read.rkey, at, u64::from(len) * count, RemoteIntent::Read)
            else {
                // The region went away under the READ: nothing behind it can be answered either.
                self.reads.clear();
                self.expected = read.cursor;
                self.give_up(Fault::RemoteAccess, ctx);
                return self.transmit(queue, ctx, template, emit);
            };
            let piece = [Segment { address, len: len as usize }];
            let payload = match count {
                1 => Payload::Memory(ctx.gather(), &piece),
                count => Payload::Train { len: len as usize, count: count as u32 },
            };
            emit.emit(&Frame { head, payload, trailer });
        }
        if last {
            self.answered(&read);
        } else if let Some(front) = self.reads.front_mut() {
            front.cursor += count;
        }
        true
    }

    fn send_atomic_ack(
        &mut self,
        read: &Read,
        original: u64,
        queue: &RecvQueue,
        template: &PathTemplate,
        emit: &mut impl Emit,
    ) {
        let mut head = Head::begin(template, &self.bth(Opcode::RC_ATOMIC_ACK, read.cursor));
        head.push_aeth(&Aeth { syndrome: self.ack_syndrome(queue), msn: read.msn });
        head.push_atomic_ack(&AtomicAckEth { original });
        let pad_len = head.finish(template, 0);
        emit.emit(&Frame {
            head: head.bytes(),
            payload: Payload::EMPTY,
            trailer: Trailer::Sealed { pad_len },
        });
        self.answered(read);
    }

    /// The last response to the oldest READ or atomic has left.
    fn answered(&mut self, read: &Read) {
        self.reads.pop_front();
        self.new_reads -= u32::from(!read.is_duplicate);
        if read.end == self.expected {
            // It acknowledged everything so far.
            self.ack_due = false;
            self.since_ack = 0;
        }
    }
}

/// Checks the RETH of a WRITE that begins: the right to write, the length, and the memory.
#[inline]
fn check_write<C: Context>(reth: &Reth, ctx: &C) -> Result<(), Fault> {
    let len = u64::from(reth.len);
    if !ctx.permits(RemoteIntent::Write) || len > MESSAGE_MAX {
        return Err(Fault::InvalidRequest);
    }
    let memory = || ctx.remote(reth.rkey, reth.virtual_address, len, RemoteIntent::Write);
    if len > 0 && memory().is_err() {
        return Err(Fault::RemoteAccess);
    }
    Ok(())
}
