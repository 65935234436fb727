//! The requester: queues sends, numbers packets, and repairs what is lost by going back.

mod responses;

use longhaul_node::{Deadline, Frame, Gather, Payload, Trailer};
use longhaul_units::{Duration, Instant, Psn, Qpn};
use longhaul_wire::{AtomicEth, Bth, Head, Opcode, PathTemplate, Reth, Verb};
use longhaul_work::{
    Context, Counter, Emit, Intent, MESSAGE_MAX, Mtu, SendOp, SendQueue, SendRefused, SendWqe,
    SendWr, Status, total_len,
};

/// Most PSNs that may be outstanding. Source: IBTA, volume 1, section 9.7.2.
pub const WINDOW_MAX: u32 = 1 << 23;
/// Packets up to which a retransmission of everything outstanding costs little more than a probe.
pub const PROBE_ABOVE: u32 = 8;
/// Bytes that an atomic works on.
pub(crate) const ATOMIC_LEN: u64 = 8;
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
    /// READs and atomics that may be outstanding.
    pub max_rd_atomic: u32,
    /// Local ACK timeout; `None` waits for ever.
    pub timeout: Option<Duration>,
    /// As ConnectX with adaptive retransmission: the timer begins at this and doubles with each
    /// retry without progress, whatever `timeout` says. Source: behaviour reported in
    /// linux-rdma/perftest issue 251.
    pub adaptive_timeout: Option<Duration>,
    /// Retries without progress, 0 to 7.
    pub retry_cnt: u8,
    /// RNR retries without progress, 0 to 6; 7 never gives up.
    pub rnr_retry: u8,
    /// PSNs that may be outstanding, 1 to [`WINDOW_MAX`]; a READ may overshoot.
    pub window_packets: u32,
    /// Work requests that may be outstanding.
    pub window_messages: u32,
    /// Ask for an ACK at least this often, in packets, besides each message's end. More than
    /// `window_packets` counts as that many: a full window that nobody was asked to acknowledge
    /// would wait for the timer.
    pub ack_request_every: u32,
    /// Ask for an ACK with the packet that fills the window as well, so that all of it comes back
    /// in a round trip. Kernel rxe does not.
    pub ack_request_at_window_end: bool,
    /// With more packets than this outstanding, a local ACK timeout retransmits the first and the
    /// last alone, and the answer tells what is missing. `u32::MAX` always retransmits everything,
    /// as NICs do.
    pub probe_above: u32,
    /// Packets that count as sent without an AckReq when the connection begins. Where it differs
    /// from QP to QP, those that begin together do not all ask at once, and answers tell at any
    /// time how long they take.
    pub ack_request_phase: u32,
    /// While the device's answers take longer than the local ACK timeout, a timer waits for up to
    /// this many times that: 4 is what the standard allows (IBTA, volume 1, section 9.7.6.1.3).
    pub timeout_stretch_max: u32,
    /// Obey end-to-end credits.
    pub obey_credits: bool,
    /// MigReq bit to send.
    pub migreq: bool,
    /// Partition key.
    pub pkey: u16,
}

impl Default for RequesterConfig {
    /// That of a queue pair which is not connected.
    fn default() -> Self {
        RequesterConfig {
            qpn: Qpn::new(0),
            dest_qpn: Qpn::new(0),
            sq_psn: Psn::new(0),
            mtu: Mtu::B1024,
            max_rd_atomic: 0,
            timeout: None,
            adaptive_timeout: None,
            retry_cnt: 0,
            rnr_retry: 0,
            window_packets: WINDOW_MAX,
            window_messages: u32::MAX,
            ack_request_every: 64,
            ack_request_at_window_end: true,
            probe_above: PROBE_ABOVE,
            ack_request_phase: 0,
            timeout_stretch_max: 1,
            obey_credits: true,
            migreq: false,
            pkey: longhaul_wire::PKEY_DEFAULT,
        }
    }
}

/// How far the repair of a loss has come; progress ends it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Repair {
    /// Nothing has been retransmitted since the last progress.
    None,
    /// The first and the last packet are retransmitted, to learn what the responder has.
    Probing {
        /// The first has not left yet.
        first_due: bool,
    },
    /// Everything unacknowledged is being retransmitted: further NAKs for the same gap are echoes.
    GoingBack,
}

/// The sending half of an RC QP.
///
/// Lifecycle: made with its queue sizes, [`Requester::start`]ed with a connection's parameters,
/// then driven by posts, responses and time, until it fails or is stopped. Packets are built when
/// [`Requester::transmit`] is called, never before. It knows no memory regions and no completion
/// queues: those come with the [`Context`].
///
/// The work requests in the ring, named by a running index: `done` is the oldest incomplete one,
/// `current` the one to send from next, `tail` the next to be posted. The same for PSNs, unwrapped
/// to 64 bits: `una` is the oldest unacknowledged (for a READ: the next response), `next` the next
/// to send, `sent` what lies behind the highest ever sent, `planned` the first of the next message
/// to be posted. `una` lies in `done`, `next` in `current`. `asked` lies behind the latest packet
/// that asks for an answer: an ACK is outstanding if and only if `una < asked`.
///
/// The local ACK timer measures the time since a packet that asks for an answer was sent, or since
/// the last progress (IBTA, volume 1, section 9.7.6.1.3). Until one asks, every packet restarts the
/// timer.
#[derive(Debug)]
pub struct Requester {
    queue: SendQueue,
    config: RequesterConfig,
    done: u64,
    current: u64,
    tail: u64,
    una: u64,
    next: u64,
    sent: u64,
    asked: u64,
    planned: u64,
    /// READs and atomics from `done` up to `current` that await responses.
    reads: u32,
    retries_left: u8,
    rnr_left: u8,
    /// Packets that may be outstanding: `config.window_packets`, or fewer after an RNR NAK.
    window: u32,
    repair: Repair,
    rnr_until: Option<Instant>,
    /// First RNR NAK since the last progress.
    not_ready_since: Option<Instant>,
    timer_at: Option<Instant>,
    /// When the timer expires that has been waited for beyond the timeout.
    stretched: Option<Instant>,
    /// A packet that asked, by the PSN behind what its answer acknowledges, and when it was sent.
    timed: Option<(u64, Instant)>,
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
    /// READs and atomics outstanding.
    pub reads: u32,
    /// Retries left until failure.
    pub retries_left: u8,
    /// Waiting for an RNR timer.
    pub rnr_wait: bool,
    /// Retransmitting, without progress since.
    pub recovering: bool,
    /// When the local ACK timer runs out.
    pub timer_at: Option<Instant>,
}

impl Requester {
    /// A stopped requester for `depth` (rounded up to a power of two) work requests of up to
    /// `sge_max` segments (at most [`longhaul_work::SGE_MAX`]) and `inline_max` bytes inline.
    pub fn new(depth: u32, sge_max: u32, inline_max: u32) -> Self {
        let config = RequesterConfig::default();
        let mut requester = Requester {
            queue: SendQueue::new(depth, sge_max, inline_max),
            config,
            done: 0,
            current: 0,
            tail: 0,
            una: 0,
            next: 0,
            sent: 0,
            asked: 0,
            planned: 0,
            reads: 0,
            retries_left: 0,
            rnr_left: 0,
            window: 0,
            repair: Repair::None,
            rnr_until: None,
            not_ready_since: None,
            timer_at: None,
            stretched: None,
            timed: None,
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
        (self.una, self.next, self.sent, self.asked, self.planned) =
            (first, first, first, first, first);
        self.reads = 0;
        self.retries_left = config.retry_cnt;
        self.rnr_left = config.rnr_retry;
        self.window = config.window_packets;
        self.repair = Repair::None;
        self.rnr_until = None;
        self.not_ready_since = None;
        self.timer_at = None;
        self.stretched = None;
        self.timed = None;
        self.credit_limit = None;
        self.since_ack_request = config.ack_request_phase;
        self.paused = false;
        self.failed = false;
    }

    /// Capacity of the queue in work requests.
    pub fn depth(&self) -> u32 {
        self.queue.depth() as u32
    }

    /// Changes parameters of a connection that is in use.
    pub fn adjust(&mut self, change: impl FnOnce(&mut RequesterConfig)) {
        change(&mut self.config);
        self.window = self.config.window_packets;
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
        let between_messages =
            self.current == self.tail || self.next == self.queue.get(self.current).first_psn;
        self.paused && self.una == self.sent && between_messages
    }

    /// The next PSN that a new message will begin with.
    pub fn planned_psn(&self) -> Psn {
        Psn::from_sequence(self.planned)
    }

    /// Work requests queued and not completed.
    #[inline]
    pub fn queued(&self) -> u64 {
        self.tail - self.done
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
            recovering: self.repair != Repair::None,
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
        self.queue.put((self.done, index), wr, len as u32, wr.signaled || signal_all, memory);
        let first = self.planned;
        self.planned = first + self.config.mtu.packets(len);
        let wqe = self.queue.get_mut(index);
        (wqe.first_psn, wqe.end_psn, wqe.restart_psn) = (first, self.planned, first);
        self.tail += 1;
        Ok(())
    }

    /// The length of the message.
    fn check(&self, wr: &SendWr<'_>) -> Result<u64, SendRefused> {
        let len = total_len(wr.segments);
        if len > MESSAGE_MAX {
            return Err(SendRefused::MessageTooLong { given: len });
        }
        match wr.op {
            SendOp::Datagram { .. } => {
                return Err(SendRefused::NotSupported("a datagram of a connected queue pair"));
            }
            SendOp::CmpSwap { remote_address, .. } | SendOp::FetchAdd { remote_address, .. }
                if len < ATOMIC_LEN || remote_address % ATOMIC_LEN != 0 =>
            {
                return Err(SendRefused::Invalid("an atomic works on 8 bytes at a multiple of 8"));
            }
            SendOp::Send { immediate: Some(_), invalidate: Some(_) } => {
                return Err(SendRefused::Invalid(
                    "a SEND carries immediate data or an invalidation, not both",
                ));
            }
            SendOp::Read { .. } | SendOp::CmpSwap { .. } | SendOp::FetchAdd { .. } if wr.inline => {
                return Err(SendRefused::Invalid("a READ or an atomic cannot be inline"));
            }
            SendOp::Read { .. } | SendOp::CmpSwap { .. } | SendOp::FetchAdd { .. }
                if self.config.max_rd_atomic == 0 =>
            {
                return Err(SendRefused::Invalid(
                    "max_rd_atomic is 0, so a READ or an atomic could never start",
                ));
            }
            _ => {}
        }
        self.queue.admit(wr, len, self.tail - self.done)?;
        // The rest of an atomic's segments stays as it is.
        Ok(if matches!(wr.op, SendOp::CmpSwap { .. } | SendOp::FetchAdd { .. }) {
            ATOMIC_LEN
        } else {
            len
        })
    }

    /// True when [`Requester::transmit`] would send something.
    #[inline]
    pub fn can_transmit(&self, now: Instant) -> bool {
        if self.current == self.tail || self.failed || self.rnr_until.is_some_and(|t| t > now) {
            return false;
        }
        let wqe = self.queue.get(self.current);
        let outstanding = self.next - self.una;
        if outstanding >= u64::from(self.window)
            || self.current - self.done >= u64::from(self.config.window_messages)
        {
            return false;
        }
        if wqe.awaits_response() {
            if self.reads >= self.config.max_rd_atomic
                || wqe.end_psn - self.una > u64::from(WINDOW_MAX)
            {
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

    /// Sends one packet, if there is one to send. The caller has granted room. True when a packet
    /// was sent.
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
        if self.repair == (Repair::Probing { first_due: true }) {
            return self.send_first(now, ctx, template, emit);
        }
        let psn = self.next;
        let is_unasked = self.asked <= self.una;
        let is_question = self.queue.get(self.current).awaits_response();
        let built = if is_question {
            self.send_read_or_atomic(ctx, template, emit)
        } else {
            self.send_data(ctx, template, emit)
        };
        if !built {
            // Completions come in order: the failure waits until every work request before is done.
            // What has left of this one need not be acknowledged: nobody has asked for that.
            if self.done == self.current {
                self.fail(ctx, Status::LocalProtection);
            }
            return false;
        }
        if psn < self.sent {
            ctx.counters().add(Counter::TxRetransmits, self.next.min(self.sent) - psn);
        } else if self.timed.is_none() && self.asked == self.next {
            // The first of a READ's responses is its answer.
            self.timed = Some((if is_question { psn + 1 } else { self.next }, now));
        }
        self.sent = self.sent.max(self.next);
        if is_unasked {
            self.timer_at = self.timeout().map(|t| now + t);
        }
        true
    }

    /// Retransmits the oldest unacknowledged packet out of turn, for a probe.
    #[cold]
    fn send_first<C: Context>(
        &mut self,
        now: Instant,
        ctx: &mut C,
        template: &PathTemplate,
        emit: &mut impl Emit,
    ) -> bool {
        self.repair = Repair::Probing { first_due: false };
        let turn = (self.next, self.current, self.reads, self.since_ack_request, self.asked);
        (self.next, self.current) = (self.una, self.done);
        let built = if self.queue.get(self.current).awaits_response() {
            self.send_read_or_atomic(ctx, template, emit)
        } else {
            self.send_data(ctx, template, emit)
        };
        let packets = self.next - self.una;
        (self.next, self.current, self.reads, self.since_ack_request, self.asked) = turn;
        if !built {
            self.fail(ctx, Status::LocalProtection);
            return false;
        }
        ctx.counters().add(Counter::TxRetransmits, packets);
        self.timer_at = self.timeout().map(|t| now + t);
        true
    }

    /// How long to wait for progress.
    fn timeout(&self) -> Option<Duration> {
        match self.config.adaptive_timeout {
            None => self.config.timeout,
            Some(first) => {
                let retries = self.config.retry_cnt.saturating_sub(self.retries_left);
                Some(first.times(1 << retries.min(7)))
            }
        }
    }

    fn bth(&self, opcode: Opcode) -> Bth {
        let mut bth = Bth::new(opcode, self.config.dest_qpn, Psn::from_sequence(self.next));
        bth.migreq = self.config.migreq;
        bth.pkey = self.config.pkey;
        bth
    }

    /// Sends a READ, from where responses are missing, or an atomic. False when the result has no
    /// place to go.
    fn send_read_or_atomic<C: Context>(
        &mut self,
        ctx: &mut C,
        template: &PathTemplate,
        emit: &mut impl Emit,
    ) -> bool {
        if self.queue.check(self.current, Intent::LocalWrite, ctx).is_err() {
            return false;
        }
        let next = self.next;
        let wqe = self.queue.get(self.current);
        let opcode = match wqe.verb {
            Verb::CmpSwap => Opcode::RC_CMP_SWAP,
            Verb::FetchAdd => Opcode::RC_FETCH_ADD,
            _ => Opcode::RC_READ_REQUEST,
        };
        let mut bth = self.bth(opcode);
        bth.ack_request = true;
        let mut head = Head::begin(template, &bth);
        if opcode.has_atomic() {
            head.push_atomic(&AtomicEth {
                virtual_address: wqe.remote_address,
                rkey: wqe.rkey,
                swap_or_add: wqe.swap_or_add,
                compare: wqe.compare,
            });
        } else {
            let offset = (next - wqe.first_psn) * u64::from(self.config.mtu.bytes());
            head.push_reth(&Reth {
                virtual_address: wqe.remote_address.wrapping_add(offset),
                rkey: wqe.rkey,
                len: wqe.len - offset as u32,
            });
        }
        let pad_len = head.finish(template, 0);
        emit.emit(&Frame {
            head: head.bytes(),
            payload: Payload::EMPTY,
            trailer: Trailer::Sealed { pad_len },
        });
        let wqe = self.queue.get_mut(self.current);
        wqe.restart_psn = next;
        self.next = wqe.end_psn;
        self.asked = self.next;
        self.current += 1;
        self.reads += 1;
        self.since_ack_request = 0;
        true
    }

    /// Packets of which the last asks for an ACK.
    fn ack_request_every(&self) -> u32 {
        self.config.ack_request_every.min(self.window)
    }

    /// Packets from the next on, which is in the middle of a message, that differ in nothing but
    /// their PSN: none ends the message, none asks for an ACK.
    fn uniform_packets(&self, wqe: &SendWqe) -> u32 {
        if self.credit_limit.is_some() {
            return 1;
        }
        let in_message = wqe.end_psn - 1 - self.next;
        let in_window = u64::from(self.window).saturating_sub(self.next - self.una + 1);
        let unasked = self.ack_request_every().saturating_sub(self.since_ack_request + 1);
        in_message.min(in_window).min(u64::from(unasked)).max(1) as u32
    }

    fn send_data<C: Context>(
        &mut self,
        ctx: &mut C,
        template: &PathTemplate,
        emit: &mut impl Emit,
    ) -> bool {
        let wqe = self.queue.get(self.current);
        let mtu = self.config.mtu.bytes();
        let offset = (self.next - wqe.first_psn) * u64::from(mtu);
        let len = (u64::from(wqe.len) - offset).min(u64::from(mtu)) as u32;
        let first = self.next == wqe.first_psn;
        let last = self.next + 1 == wqe.end_psn;
        // The whole message before its first packet: one that fails half-way would leave packets
        // that nobody acknowledges. A single packet is checked when its payload is found.
        if first && !last && self.queue.check(self.current, Intent::LocalRead, ctx).is_err() {
            return false;
        }
        let mut bth = self.bth(request_opcode(wqe, first, last));
        bth.solicited = last && wqe.solicited && wqe.consumes_receive();
        bth.ack_request = last
            || self.since_ack_request + 1 >= self.ack_request_every()
            || (self.config.ack_request_at_window_end
                && self.next + 1 - self.una >= u64::from(self.window))
            || (self.una == self.next && self.credit_limit.is_some());
        let mut head = Head::begin(template, &bth);
        if first && wqe.verb == Verb::Write {
            head.push_reth(&Reth {
                virtual_address: wqe.remote_address,
                rkey: wqe.rkey,
                len: wqe.len,
            });
        }
        if last && let Some(immediate) = wqe.immediate {
            head.push_immediate(immediate);
        } else if last && let Some(rkey) = wqe.invalidate {
            head.push_invalidate(rkey);
        }
        let pad_len = head.finish(template, len as usize);
        let train_max = if first || last { 1 } else { emit.train_max() };
        let count = if train_max > 1 { self.uniform_packets(wqe).min(train_max) } else { 1 };
        if count > 1 {
            let payload = Payload::Train { len: len as usize, count };
            emit.emit(&Frame { head: head.bytes(), payload, trailer: Trailer::Sealed { pad_len } });
        } else if self
            .queue
            .emit(self.current, (offset, len), (head.bytes(), pad_len), ctx, emit)
            .is_err()
        {
            return false;
        }
        self.next += u64::from(count);
        if bth.ack_request {
            self.since_ack_request = 0;
            self.asked = self.next;
        } else {
            self.since_ack_request += count;
        }
        self.current += u64::from(last);
        true
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
            if self.asked <= self.una && self.can_transmit(now) {
                // The port has had no room for the packet that asks: nobody owes an answer.
                self.timer_at = self.timeout().map(|t| now + t);
                return;
            }
            if !self.extend_timeout(now, ctx) {
                ctx.counters().count(Counter::LocalAckTimeoutErr);
                self.answer_timeout(now, ctx);
            }
        }
    }

    /// Extends the timer while answers take longer than the timeout: packets queued behind other
    /// QPs', on a device or a peer that is late, are not lost.
    #[cold]
    fn extend_timeout<C: Context>(&mut self, now: Instant, ctx: &C) -> bool {
        let (Some(at), Some(timeout), None) =
            (self.timer_at, self.config.timeout, self.config.adaptive_timeout)
        else {
            return false;
        };
        let longest = timeout.times(u64::from(self.config.timeout_stretch_max));
        let wait = ctx.expected_answer_delay().min(longest);
        if wait <= timeout || self.stretched == Some(at) {
            return false;
        }
        let until = at + (wait - timeout);
        self.timer_at = Some(until);
        self.stretched = Some(until);
        until > now
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

    /// Stops and completes everything queued with a flush error, in order; so also what is posted
    /// later.
    pub fn flush<C: Context>(&mut self, ctx: &mut C) {
        self.failed = true;
        self.timer_at = None;
        self.rnr_until = None;
        while self.done < self.tail {
            let wqe = self.queue.get(self.done);
            ctx.complete_send(wqe.completion(
                Status::WrFlush,
                self.config.qpn,
                self.config.dest_qpn,
            ));
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
