//! The requester: queues sends, numbers packets, and repairs what is lost by going back.

use crate::context::{Emit, Intent, total_len};
use crate::pieces::{check_list, gather_list, scatter_list};
use crate::queue::{SendQueue, SendWqe};
use crate::{Context, Counter, DropReason, MESSAGE_MAX, Mtu, SGE_MAX, SendOp, SendWr, Status};
use longhaul_node::{Deadline, Frame, Gather, Payload, Segment, Trailer};
use longhaul_units::{Duration, Instant, Msn, Psn, Qpn};
use longhaul_wire::{Aeth, Bth, Head, NakCode, Opcode, PathTemplate, Position, Reth, Syndrome, Verb};
use longhaul_wire::{credits, rnr_timer};
use thiserror::Error;

/// Most PSNs that may be outstanding. Source: IBTA, volume 1, section 9.7.2.
pub const WINDOW_MAX: u32 = 1 << 23;
/// Added to the first PSN, so that 64-bit sequence numbers can be unwrapped below it.
pub(crate) const SEQUENCE_BASE: u64 = 1 << 24;

/// What a requester must know about its connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RequesterConfig {
    /// The local QP.
    pub qpn: Qpn,
    /// The peer's QP.
    pub dest_qpn: Qpn,
    /// First PSN to send.
    pub sq_psn: Psn,
    /// Path MTU.
    pub mtu: Mtu,
    /// READs that may be outstanding.
    pub max_rd_atomic: u32,
    /// Local ACK timeout; `None` waits for ever.
    pub timeout: Option<Duration>,
    /// Retries without progress, 0 to 7.
    pub retry_cnt: u8,
    /// RNR retries without progress, 0 to 6; 7 never gives up.
    pub rnr_retry: u8,
    /// PSNs that may be outstanding, 1 to [`WINDOW_MAX`]; a READ may overshoot.
    pub window_packets: u32,
    /// Work requests that may be outstanding.
    pub window_messages: u32,
    /// Ask for an ACK at least this often, in packets, besides each message's end.
    pub ack_request_every: u32,
    /// Obey end-to-end credits.
    pub obey_credits: bool,
    /// MigReq bit to send.
    pub migreq: bool,
    /// Partition key.
    pub pkey: u16,
}

/// Why a send work request was not queued.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
pub enum SendRefused {
    /// All entries are in use.
    #[error("send queue of {0} is full")]
    Full(u32),
    /// More segments than the queue was made for.
    #[error("{given} segments, at most {max}")]
    TooManySegments {
        /// As posted.
        given: usize,
        /// As created.
        max: u32,
    },
    /// More inline data than the queue was made for.
    #[error("{given} bytes inline, at most {max}")]
    InlineTooLong {
        /// As posted.
        given: u64,
        /// As created.
        max: u32,
    },
    /// Longer than a message can be.
    #[error("message of {given} bytes, at most {MESSAGE_MAX}")]
    MessageTooLong {
        /// As posted.
        given: u64,
    },
    /// A combination that makes no sense.
    #[error("{0}")]
    Invalid(&'static str),
    /// An operation that this requester does not know.
    #[error("{0} is not supported")]
    NotSupported(&'static str),
}

/// The sending half of an RC QP.
///
/// Lifecycle: made with its queue sizes, [`Requester::start`]ed with a connection's parameters, then driven by
/// posts, responses and time, until it fails or is stopped. Packets are built when [`Requester::transmit`] is
/// called, never before. It knows no memory regions and no completion queues: those come with the [`Context`].
///
/// The work requests in the ring, named by a running index: `done` is the oldest incomplete one, `current` the
/// one to send from next, `tail` the next to be posted. The same for PSNs, unwrapped to 64 bits: `una` is the
/// oldest unacknowledged (for a READ: the next response), `next` the next to send, `sent` what lies behind the
/// highest ever sent, `planned` the first of the next message to be posted. `una` lies in `done`, `next` in
/// `current`.
#[derive(Debug)]
pub struct Requester {
    queue: SendQueue,
    sge_max: u32,
    inline_max: u32,
    config: RequesterConfig,
    done: u64,
    current: u64,
    tail: u64,
    una: u64,
    next: u64,
    sent: u64,
    planned: u64,
    /// READs from `done` up to `current` that await responses.
    reads: u32,
    retries_left: u8,
    rnr_left: u8,
    /// Gone back, and nothing acknowledged since: further NAKs for the same gap are echoes.
    recovering: bool,
    rnr_until: Option<Instant>,
    timer_at: Option<Instant>,
    /// Messages that consume a receive may have an index below this; `None` without limit.
    credit_limit: Option<u64>,
    since_ack_request: u32,
    paused: bool,
    failed: bool,
}

/// A requester's state, for people.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RequesterSnapshot {
    /// Oldest unacknowledged PSN.
    pub una: Psn,
    /// Next PSN to send.
    pub next: Psn,
    /// PSNs outstanding.
    pub outstanding_packets: u64,
    /// Work requests queued and not completed.
    pub queued: u64,
    /// READs outstanding.
    pub reads: u32,
    /// Retries left until failure.
    pub retries_left: u8,
    /// Waiting for an RNR timer.
    pub rnr_wait: bool,
    /// Gone back without progress since.
    pub recovering: bool,
    /// When the local ACK timer runs out.
    pub timer_at: Option<Instant>,
}

impl Requester {
    /// A stopped requester for `depth` (rounded up to a power of two) work requests of up to `sge_max` segments
    /// (at most [`SGE_MAX`]) and `inline_max` bytes inline.
    pub fn new(depth: u32, sge_max: u32, inline_max: u32) -> Self {
        let config = RequesterConfig {
            qpn: Qpn::new(0),
            dest_qpn: Qpn::new(0),
            sq_psn: Psn::new(0),
            mtu: Mtu::B1024,
            max_rd_atomic: 0,
            timeout: None,
            retry_cnt: 0,
            rnr_retry: 0,
            window_packets: WINDOW_MAX,
            window_messages: u32::MAX,
            ack_request_every: 64,
            obey_credits: true,
            migreq: false,
            pkey: longhaul_wire::PKEY_DEFAULT,
        };
        let mut requester = Requester {
            queue: SendQueue::new(depth, sge_max.min(SGE_MAX as u32), inline_max),
            sge_max: sge_max.min(SGE_MAX as u32),
            inline_max,
            config,
            done: 0,
            current: 0,
            tail: 0,
            una: 0,
            next: 0,
            sent: 0,
            planned: 0,
            reads: 0,
            retries_left: 0,
            rnr_left: 0,
            recovering: false,
            rnr_until: None,
            timer_at: None,
            credit_limit: None,
            since_ack_request: 0,
            paused: false,
            failed: false,
        };
        requester.start(config);
        requester
    }

    /// Forgets everything and begins a connection.
    pub fn start(&mut self, config: RequesterConfig) {
        let first = SEQUENCE_BASE + u64::from(config.sq_psn.get());
        self.config = config;
        (self.done, self.current, self.tail) = (0, 0, 0);
        (self.una, self.next, self.sent, self.planned) = (first, first, first, first);
        self.reads = 0;
        self.retries_left = config.retry_cnt;
        self.rnr_left = config.rnr_retry;
        self.recovering = false;
        self.rnr_until = None;
        self.timer_at = None;
        self.credit_limit = None;
        self.since_ack_request = 0;
        self.paused = false;
        self.failed = false;
    }

    /// Capacity of the queue in work requests.
    pub fn depth(&self) -> u32 {
        self.queue.depth() as u32
    }

    /// The parameters in force.
    pub fn config(&self) -> &RequesterConfig {
        &self.config
    }

    /// True after an error completion; everything queued has been flushed.
    #[inline]
    pub fn is_failed(&self) -> bool {
        self.failed
    }

    /// True when nothing is queued.
    pub fn is_idle(&self) -> bool {
        self.done == self.tail
    }

    /// Stops beginning further messages (or begins again). What has begun is finished.
    pub fn pause(&mut self, paused: bool) {
        self.paused = paused;
    }

    /// True when paused and everything that had begun is done.
    pub fn is_drained(&self) -> bool {
        self.paused && self.una == self.sent
    }

    /// The next PSN that a new message will begin with.
    pub fn planned_psn(&self) -> Psn {
        Psn::from_sequence(self.planned)
    }

    /// State for people.
    pub fn snapshot(&self) -> RequesterSnapshot {
        RequesterSnapshot {
            una: Psn::from_sequence(self.una),
            next: Psn::from_sequence(self.next),
            outstanding_packets: self.next - self.una,
            queued: self.tail - self.done,
            reads: self.reads,
            retries_left: self.retries_left,
            rnr_wait: self.rnr_until.is_some(),
            recovering: self.recovering,
            timer_at: self.timer_at,
        }
    }

    /// Queues a work request; inline data is read from `memory` at once.
    pub fn post(
        &mut self,
        wr: &SendWr<'_>,
        signal_all: bool,
        memory: &dyn Gather,
    ) -> Result<(), SendRefused> {
        let len = self.check(wr)?;
        let index = self.tail;
        self.queue.put(index, wr, len as u32, wr.signaled || signal_all, memory);
        let first = self.planned;
        self.planned = first + self.config.mtu.packets(len);
        let wqe = self.queue.get_mut(index);
        (wqe.first_psn, wqe.end_psn, wqe.restart_psn) = (first, self.planned, first);
        self.tail += 1;
        Ok(())
    }

    fn check(&self, wr: &SendWr<'_>) -> Result<u64, SendRefused> {
        let len = total_len(wr.segments);
        if len > MESSAGE_MAX {
            return Err(SendRefused::MessageTooLong { given: len });
        }
        match wr.op {
            SendOp::CmpSwap { .. } | SendOp::FetchAdd { .. } => {
                return Err(SendRefused::NotSupported("an atomic operation"));
            }
            SendOp::Send { immediate: Some(_), invalidate: Some(_) } => {
                return Err(SendRefused::Invalid(
                    "a SEND carries immediate data or an invalidation, not both",
                ));
            }
            SendOp::Read { .. } if wr.inline => {
                return Err(SendRefused::Invalid("a READ cannot be inline"));
            }
            SendOp::Read { .. } if self.config.max_rd_atomic == 0 => {
                return Err(SendRefused::Invalid("max_rd_atomic is 0, so a READ could never start"));
            }
            _ => {}
        }
        if wr.inline && len > u64::from(self.inline_max) {
            return Err(SendRefused::InlineTooLong { given: len, max: self.inline_max });
        }
        if !wr.inline && wr.segments.len() > self.sge_max as usize {
            return Err(SendRefused::TooManySegments { given: wr.segments.len(), max: self.sge_max });
        }
        if self.tail - self.done == self.queue.depth() {
            return Err(SendRefused::Full(self.depth()));
        }
        Ok(len)
    }

    /// True when [`Requester::transmit`] would send something.
    #[inline]
    pub fn can_transmit(&self, now: Instant) -> bool {
        if self.current == self.tail || self.failed || self.rnr_until.is_some_and(|t| t > now) {
            return false;
        }
        let wqe = self.queue.get(self.current);
        let outstanding = self.next - self.una;
        if outstanding >= u64::from(self.config.window_packets)
            || self.current - self.done >= u64::from(self.config.window_messages)
        {
            return false;
        }
        if wqe.verb == Verb::ReadRequest {
            if self.reads >= self.config.max_rd_atomic || wqe.end_psn - self.una > u64::from(WINDOW_MAX) {
                return false;
            }
        } else if let Some(limit) = self.credit_limit
            && wqe.consumes_receive()
            && self.current >= limit
            && self.una <= wqe.first_psn
            && outstanding > 0
        {
            // Out of credits: only a single packet may probe, with nothing else outstanding.
            return false;
        }
        let begins = self.next == wqe.first_psn;
        !(begins && ((wqe.fence && self.reads > 0) || (self.paused && self.next == self.sent)))
    }

    /// Sends one packet, if there is one to send. The caller has granted room. True when a packet was sent.
    pub fn transmit<C: Context>(
        &mut self,
        now: Instant,
        ctx: &mut C,
        template: &PathTemplate,
        emit: &mut impl Emit,
    ) -> bool {
        if !self.can_transmit(now) {
            return false;
        }
        self.rnr_until = None;
        let wqe = *self.queue.get(self.current);
        let psn = self.next;
        let built = if wqe.verb == Verb::ReadRequest {
            self.send_read(&wqe, ctx, template, emit)
        } else {
            self.send_data(&wqe, ctx, template, emit)
        };
        if !built {
            // Completions come in order: the failure waits until everything before is acknowledged.
            if self.una == psn {
                self.fail(ctx, Status::LocalProtection);
            }
            return false;
        }
        if psn < self.sent {
            ctx.counters().count(Counter::TxRetransmits);
        }
        self.sent = self.sent.max(self.next);
        if self.timer_at.is_none() {
            self.timer_at = self.config.timeout.map(|t| now + t);
        }
        true
    }

    fn bth(&self, opcode: Opcode) -> Bth {
        let mut bth = Bth::new(opcode, self.config.dest_qpn, Psn::from_sequence(self.next));
        bth.migreq = self.config.migreq;
        bth.pkey = self.config.pkey;
        bth
    }

    fn send_read<C: Context>(
        &mut self,
        wqe: &SendWqe,
        ctx: &mut C,
        template: &PathTemplate,
        emit: &mut impl Emit,
    ) -> bool {
        if check_list(ctx, self.queue.segments(self.current), Intent::LocalWrite).is_err() {
            return false;
        }
        let offset = (self.next - wqe.first_psn) * u64::from(self.config.mtu.bytes());
        let mut bth = self.bth(Opcode::RC_READ_REQUEST);
        bth.ack_request = true;
        let mut head = Head::begin(template, &bth);
        head.push_reth(&Reth {
            virtual_address: wqe.remote_address.wrapping_add(offset),
            rkey: wqe.rkey,
            len: wqe.len - offset as u32,
        });
        let pad_len = head.finish(template, 0);
        emit.emit(&Frame {
            head: head.bytes(),
            payload: Payload::EMPTY,
            trailer: Trailer::Sealed { pad_len },
        });
        self.queue.get_mut(self.current).restart_psn = self.next;
        self.next = wqe.end_psn;
        self.current += 1;
        self.reads += 1;
        self.since_ack_request = 0;
        true
    }

    fn send_data<C: Context>(
        &mut self,
        wqe: &SendWqe,
        ctx: &mut C,
        template: &PathTemplate,
        emit: &mut impl Emit,
    ) -> bool {
        let mtu = self.config.mtu.bytes();
        let offset = (self.next - wqe.first_psn) * u64::from(mtu);
        let len = (u64::from(wqe.len) - offset).min(u64::from(mtu)) as u32;
        let first = self.next == wqe.first_psn;
        let last = self.next + 1 == wqe.end_psn;
        // The whole message before its first packet: one that fails half-way would leave packets that nobody
        // acknowledges.
        if first
            && !wqe.inline
            && check_list(ctx, self.queue.segments(self.current), Intent::LocalRead).is_err()
        {
            return false;
        }
        let mut bth = self.bth(request_opcode(wqe, first, last));
        bth.solicited = last && wqe.solicited && wqe.consumes_receive();
        bth.ack_request = last
            || self.since_ack_request + 1 >= self.config.ack_request_every
            || self.next + 1 - self.una >= u64::from(self.config.window_packets)
            || (self.una == self.next && self.credit_limit.is_some());
        let mut head = Head::begin(template, &bth);
        if first && wqe.verb == Verb::Write {
            head.push_reth(&Reth { virtual_address: wqe.remote_address, rkey: wqe.rkey, len: wqe.len });
        }
        if last && let Some(immediate) = wqe.immediate {
            head.push_immediate(immediate);
        } else if last && let Some(rkey) = wqe.invalidate {
            head.push_invalidate(rkey);
        }
        let pad_len = head.finish(template, len as usize);
        let trailer = Trailer::Sealed { pad_len };
        let head = head.bytes();
        if wqe.inline {
            let at = offset as usize;
            let bytes = &self.queue.inline(self.current)[at..at + len as usize];
            emit.emit(&Frame { head, payload: Payload::Bytes(bytes), trailer });
        } else if let &[sge] = self.queue.segments(self.current) {
            let Ok(address) = ctx.local(sge.lkey, sge.address.wrapping_add(offset), len, Intent::LocalRead)
            else {
                return false;
            };
            let piece = [Segment { address, len: len as usize }];
            emit.emit(&Frame { head, payload: Payload::Memory(ctx.gather(), &piece), trailer });
        } else {
            let segments = self.queue.segments(self.current);
            let mut pieces = [Segment { address: 0, len: 0 }; SGE_MAX];
            let Ok(used) = gather_list(ctx, segments, offset, len, &mut pieces) else { return false };
            emit.emit(&Frame { head, payload: Payload::Memory(ctx.gather(), &pieces[..used]), trailer });
        }
        self.since_ack_request = if bth.ack_request { 0 } else { self.since_ack_request + 1 };
        self.next += 1;
        self.current += u64::from(last);
        true
    }

    /// Takes an ACK, RNR NAK or NAK.
    pub fn handle_ack<C: Context>(&mut self, now: Instant, psn: Psn, aeth: &Aeth, ctx: &mut C) {
        let Some(psn) = self.locate(psn, ctx) else {
            return;
        };
        if psn < self.una {
            if psn + 1 == self.una {
                // The latest ACK again: it may bring credits.
                self.learn_credits(aeth);
            }
            ctx.counters().count(DropReason::GhostAck);
            return;
        }
        match aeth.syndrome {
            Syndrome::Ack { .. } => {
                let passed_read = self.advance(now, psn + 1, ctx);
                self.learn_credits(aeth);
                ctx.counters().count(Counter::RxAcks);
                if passed_read {
                    self.implied_nak(ctx);
                }
            }
            Syndrome::RnrNak { timer_code } => {
                if self.advance(now, psn, ctx) {
                    self.implied_nak(ctx);
                } else {
                    self.not_ready(now, timer_code, ctx);
                }
            }
            Syndrome::Nak(NakCode::PsnSequence) => {
                if self.advance(now, psn, ctx) {
                    self.implied_nak(ctx);
                } else if self.recovering {
                    ctx.counters().count(DropReason::NakIgnored);
                } else {
                    ctx.counters().count(Counter::PacketSeqErr);
                    self.retry(ctx);
                }
            }
            Syndrome::Nak(
                code @ (NakCode::InvalidRequest | NakCode::RemoteAccess | NakCode::RemoteOperational),
            ) => {
                self.advance(now, psn, ctx);
                if psn < self.queue.get(self.done).end_psn {
                    self.fatal_nak(code, ctx);
                } else {
                    self.implied_nak(ctx);
                }
            }
            Syndrome::Nak(NakCode::InvalidRd) | Syndrome::Reserved(_) => {
                ctx.counters().count(DropReason::Syndrome);
            }
        }
    }

    /// Takes a READ response.
    pub fn handle_read_response<C: Context>(
        &mut self,
        now: Instant,
        psn: Psn,
        opcode: Opcode,
        aeth: Option<&Aeth>,
        payload: &Payload<'_>,
        ctx: &mut C,
    ) {
        let Some(psn) = self.locate(psn, ctx) else {
            return;
        };
        if psn < self.una {
            ctx.counters().count(DropReason::GhostAck);
            return;
        }
        if self.advance(now, psn, ctx) {
            ctx.counters().count(DropReason::ResponseGap);
            self.implied_nak(ctx);
            return;
        }
        let wqe = *self.queue.get(self.done);
        let last = psn + 1 == wqe.end_psn;
        let restarts = psn == wqe.first_psn || psn == wqe.restart_psn;
        let fits = match opcode.position() {
            Position::First => !last && restarts,
            Position::Middle => !last && psn != wqe.first_psn,
            Position::Last => last && psn != wqe.first_psn,
            Position::Only => last && restarts,
        };
        let is_ack = aeth.is_none_or(|a| matches!(a.syndrome, Syndrome::Ack { .. }));
        if wqe.verb != Verb::ReadRequest || !fits || !is_ack {
            ctx.counters().count(Counter::ReqBadResponse);
            self.fail(ctx, Status::BadResponse);
            return;
        }
        let mtu = u64::from(self.config.mtu.bytes());
        let offset = (psn - wqe.first_psn) * mtu;
        if payload.len() as u64 != (u64::from(wqe.len) - offset).min(mtu) {
            self.fail(ctx, Status::LocalLength);
            return;
        }
        if scatter_list(ctx, self.queue.segments(self.done), offset, payload).is_err() {
            self.fail(ctx, Status::LocalProtection);
            return;
        }
        if let Some(aeth) = aeth {
            self.learn_credits(aeth);
        }
        self.progress(psn + 1);
        if last {
            self.complete_oldest(ctx);
        }
        self.settle(now);
    }

    /// The sequence number of a response. Counts and refuses what was never sent.
    fn locate<C: Context>(&self, psn: Psn, ctx: &mut C) -> Option<u64> {
        let sequence = psn.unwrap_near(self.una).filter(|&s| s < self.sent && !self.failed);
        if sequence.is_none() {
            ctx.counters().count(DropReason::UnsentAck);
        }
        sequence
    }

    /// Acknowledges everything before `to`, up to an outstanding READ. True when one stood in the way.
    fn advance<C: Context>(&mut self, now: Instant, to: u64, ctx: &mut C) -> bool {
        let mut passed_read = false;
        let before = self.una;
        while self.una < to {
            let wqe = self.queue.get(self.done);
            if wqe.verb == Verb::ReadRequest {
                passed_read = true;
                break;
            }
            let end = wqe.end_psn;
            self.progress(end.min(to));
            if end <= to {
                self.complete_oldest(ctx);
            }
        }
        if self.una != before {
            self.settle(now);
        }
        passed_read
    }

    #[inline]
    fn progress(&mut self, to: u64) {
        self.una = to;
        self.retries_left = self.config.retry_cnt;
        self.rnr_left = self.config.rnr_retry;
        self.recovering = false;
        self.rnr_until = None;
    }

    fn complete_oldest<C: Context>(&mut self, ctx: &mut C) {
        let wqe = self.queue.get(self.done);
        if wqe.verb == Verb::ReadRequest && self.done < self.current {
            self.reads -= 1;
        }
        if wqe.signaled {
            ctx.complete_send(wqe.completion(Status::Success, self.config.qpn, self.config.dest_qpn));
        }
        self.done += 1;
    }

    /// After progress: what was acknowledged need not be sent again, and the timer begins anew.
    fn settle(&mut self, now: Instant) {
        if self.next < self.una {
            self.next = self.una;
            self.current = self.done;
            self.reads = 0;
        }
        self.timer_at = if self.una < self.next { self.config.timeout.map(|t| now + t) } else { None };
    }

    fn learn_credits(&mut self, aeth: &Aeth) {
        let Syndrome::Ack { credit_code } = aeth.syndrome else { return };
        if !self.config.obey_credits {
            return;
        }
        self.credit_limit = credits(credit_code).map(|n| {
            let distance = i64::from(aeth.msn.since(Msn::new(self.done as u32)));
            self.done.saturating_add_signed(distance) + u64::from(n)
        });
    }

    fn implied_nak<C: Context>(&mut self, ctx: &mut C) {
        if self.recovering {
            return;
        }
        ctx.counters().count(Counter::ImpliedNakSeqErr);
        self.retry(ctx);
    }

    fn not_ready<C: Context>(&mut self, now: Instant, timer_code: u8, ctx: &mut C) {
        if self.rnr_until.is_some() {
            ctx.counters().count(DropReason::NakIgnored);
            return;
        }
        ctx.counters().count(Counter::RxRnrNak);
        if self.config.rnr_retry != 7 {
            if self.rnr_left == 0 {
                ctx.counters().count(Counter::RnrNakRetryErr);
                self.fail(ctx, Status::RnrRetryExceeded);
                return;
            }
            self.rnr_left -= 1;
        }
        self.go_back();
        self.rnr_until = Some(now + rnr_timer(timer_code));
    }

    fn fatal_nak<C: Context>(&mut self, code: NakCode, ctx: &mut C) {
        let (counter, status) = match code {
            NakCode::RemoteAccess => (Counter::ReqRemoteAccess, Status::RemoteAccess),
            NakCode::RemoteOperational => (Counter::ReqRemoteOperation, Status::RemoteOperation),
            _ => (Counter::ReqRemoteInvalidRequest, Status::RemoteInvalidRequest),
        };
        ctx.counters().count(counter);
        self.fail(ctx, status);
    }

    fn retry<C: Context>(&mut self, ctx: &mut C) {
        if self.retries_left == 0 {
            ctx.counters().count(Counter::RetryExceededErr);
            self.fail(ctx, Status::RetryExceeded);
            return;
        }
        self.retries_left -= 1;
        self.go_back();
    }

    /// Sends again from the oldest unacknowledged PSN.
    fn go_back(&mut self) {
        self.next = self.una;
        self.current = self.done;
        self.reads = 0;
        self.recovering = true;
        self.timer_at = None;
        self.since_ack_request = 0;
    }

    /// When [`Requester::handle_timeout`] has something to do.
    #[inline]
    pub fn deadline(&self) -> Option<Deadline> {
        if let Some(at) = self.rnr_until {
            return Some(Deadline { at, reason: "RNR timer" });
        }
        self.timer_at.map(|at| Deadline { at, reason: "local ACK timer" })
    }

    /// Acts on what is due. Early and repeated calls do nothing.
    pub fn handle_timeout<C: Context>(&mut self, now: Instant, ctx: &mut C) {
        if self.rnr_until.is_some_and(|at| at <= now) {
            self.rnr_until = None;
        }
        if self.timer_at.is_some_and(|at| at <= now) {
            ctx.counters().count(Counter::LocalAckTimeoutErr);
            self.retry(ctx);
        }
    }

    /// Ends the oldest work request with `status` and flushes the rest.
    fn fail<C: Context>(&mut self, ctx: &mut C, status: Status) {
        self.failed = true;
        if self.done < self.tail {
            let wqe = self.queue.get(self.done);
            ctx.complete_send(wqe.completion(status, self.config.qpn, self.config.dest_qpn));
            self.done += 1;
        }
        self.flush(ctx);
    }

    /// Stops and completes everything queued with a flush error, in order; so also what is posted later.
    pub fn flush<C: Context>(&mut self, ctx: &mut C) {
        self.failed = true;
        self.timer_at = None;
        self.rnr_until = None;
        while self.done < self.tail {
            let wqe = self.queue.get(self.done);
            ctx.complete_send(wqe.completion(Status::WrFlush, self.config.qpn, self.config.dest_qpn));
            self.done += 1;
        }
        self.current = self.tail;
    }
}

#[inline]
fn request_opcode(wqe: &SendWqe, first: bool, last: bool) -> Opcode {
    let immediate = wqe.immediate.is_some();
    let invalidate = wqe.invalidate.is_some();
    match (wqe.verb, first, last) {
        (Verb::Write, true, true) if immediate => Opcode::RC_WRITE_ONLY_IMM,
        (Verb::Write, true, true) => Opcode::RC_WRITE_ONLY,
        (Verb::Write, true, false) => Opcode::RC_WRITE_FIRST,
        (Verb::Write, false, false) => Opcode::RC_WRITE_MIDDLE,
        (Verb::Write, false, true) if immediate => Opcode::RC_WRITE_LAST_IMM,
        (Verb::Write, false, true) => Opcode::RC_WRITE_LAST,
        (_, true, true) if immediate => Opcode::RC_SEND_ONLY_IMM,
        (_, true, true) if invalidate => Opcode::RC_SEND_ONLY_INV,
        (_, true, true) => Opcode::RC_SEND_ONLY,
        (_, true, false) => Opcode::RC_SEND_FIRST,
        (_, false, false) => Opcode::RC_SEND_MIDDLE,
        (_, false, true) if immediate => Opcode::RC_SEND_LAST_IMM,
        (_, false, true) if invalidate => Opcode::RC_SEND_LAST_INV,
        (_, false, true) => Opcode::RC_SEND_LAST,
    }
}
