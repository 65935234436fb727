//! The requester: queues sends, numbers packets, and retransmits by going back.

mod config;
mod cursor;
mod repair;
mod responses;
mod retries;
mod timer;
mod transmit;

pub use config::RequesterConfig;

use cursor::Cursor;
use longhaul_node::{Deadline, Gather};
use longhaul_units::{Duration, Instant, Psn};
use longhaul_work::{
    Context, Counter, MESSAGE_MAX, SendOp, SendQueue, SendRefused, SendWr, Status, total_len,
};
use repair::Repair;
use retries::{Readiness, Retries};
use timer::AckTimer;

/// Maximum outstanding PSNs. Source: IBTA, volume 1, section 9.7.2.
pub const WINDOW_MAX: u32 = 1 << 23;
/// Packets up to which retransmitting everything outstanding costs little more than a probe.
pub const PROBE_ABOVE: u32 = 8;
/// Bytes of an atomic's operand.
pub(crate) const ATOMIC_LEN: u64 = 8;
/// Added to the first PSN, so that 64-bit sequence numbers can be unwrapped below it.
pub(crate) const SEQUENCE_BASE: u64 = 1 << 24;

/// The sending half of an RC QP.
///
/// Lifecycle: created with its queue sizes, [`Requester::start`]ed with a connection's parameters,
/// then driven by posts, responses and time, until it fails or is stopped. Packets are built when
/// [`Requester::transmit`] is called, never before. Memory regions and completion queues belong to
/// the [`Context`].
///
/// PSNs are unwrapped to 64 bits. `una` is the oldest unacknowledged PSN (of a READ: the next
/// response), `sent` follows the highest PSN ever sent, and `planned` is the first PSN of the next
/// message to be posted. `una` belongs to the oldest work request, and `una <= cursor.next <= sent
/// <= planned`.
#[derive(Debug)]
pub struct Requester {
    queue: SendQueue,
    config: RequesterConfig,
    una: u64,
    cursor: Cursor,
    sent: u64,
    planned: u64,
    retries: Retries,
    /// Packets that may be outstanding: `config.window_packets`, or fewer after an RNR NAK.
    window: u32,
    repair: Repair,
    readiness: Readiness,
    timer: AckTimer,
    /// A packet with an AckReq: the PSN behind the packets that its answer acknowledges, and the
    /// time at which it was sent.
    timed: Option<(u64, Instant)>,
    /// Messages that consume a receive need an index below this; `None` without limit.
    credit_limit: Option<u64>,
    paused: bool,
    failed: bool,
}

/// Snapshot of a requester for reports.
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
    /// Expiry of the local ACK timer.
    pub timer_at: Option<Instant>,
}

impl Requester {
    /// Creates a stopped requester for `depth` (rounded up to a power of two) work requests of up
    /// to `sge_max` segments (at most [`longhaul_work::SGE_MAX`]) and `inline_max` bytes inline.
    pub fn new(depth: u32, sge_max: u32, inline_max: u32) -> Self {
        let config = RequesterConfig::default();
        let mut requester = Requester {
            queue: SendQueue::new(depth, sge_max, inline_max),
            config,
            una: 0,
            cursor: Cursor::default(),
            sent: 0,
            planned: 0,
            retries: Retries::full(&config),
            window: 0,
            repair: Repair::None,
            readiness: Readiness::Ready,
            timer: AckTimer::default(),
            timed: None,
            credit_limit: None,
            paused: false,
            failed: false,
        };
        requester.start(config);
        requester
    }

    /// Discards all state and starts a connection.
    pub fn start(&mut self, config: RequesterConfig) {
        let first = SEQUENCE_BASE + u64::from(config.sq_psn.get());
        self.config = config;
        self.queue.reset();
        (self.una, self.sent, self.planned) = (first, first, first);
        self.cursor = Cursor::start(first, config.ack_request_phase);
        self.retries = Retries::full(&config);
        self.window = config.window_packets;
        self.repair = Repair::None;
        self.readiness = Readiness::Ready;
        self.timer = AckTimer::default();
        self.timed = None;
        self.credit_limit = None;
        self.paused = false;
        self.failed = false;
    }

    /// Capacity of the queue in work requests.
    pub fn depth(&self) -> u32 {
        self.queue.depth() as u32
    }

    /// Changes parameters of a connection in use.
    pub fn adjust(&mut self, change: impl FnOnce(&mut RequesterConfig)) {
        let is_whole = self.window == self.config.window_packets;
        change(&mut self.config);
        let whole = self.config.window_packets;
        self.window = if is_whole { whole } else { self.window.min(whole) };
    }

    /// The parameters in force.
    pub fn config(&self) -> &RequesterConfig {
        &self.config
    }

    /// `true` after an error completion; everything queued has been flushed.
    #[inline]
    pub fn is_failed(&self) -> bool {
        self.failed
    }

    /// `true` if nothing is queued.
    pub fn is_idle(&self) -> bool {
        self.queue.is_empty()
    }

    /// Pauses or resumes: a paused requester finishes begun messages and begins no others.
    pub fn pause(&mut self, paused: bool) {
        self.paused = paused;
    }

    /// `true` if paused with all begun messages acknowledged.
    pub fn is_drained(&self) -> bool {
        self.paused && self.una == self.sent && self.is_between_messages()
    }

    /// `true` if the next packet begins a message.
    fn is_between_messages(&self) -> bool {
        let Cursor { next, current, .. } = self.cursor;
        current == self.queue.tail() || next == self.queue.get(current).first_psn
    }

    /// PSNs sent since the latest go-back, and not acknowledged.
    #[inline]
    fn outstanding(&self) -> u64 {
        self.cursor.next - self.una
    }

    /// First PSN of the next message to be posted.
    pub fn planned_psn(&self) -> Psn {
        Psn::from_sequence(self.planned)
    }

    /// Work requests queued and not completed.
    #[inline]
    pub fn queued(&self) -> u64 {
        self.queue.len()
    }

    /// Snapshot for reports.
    pub fn snapshot(&self) -> RequesterSnapshot {
        RequesterSnapshot {
            una: Psn::from_sequence(self.una),
            next: Psn::from_sequence(self.cursor.next),
            outstanding_packets: self.outstanding(),
            queued: self.queue.len(),
            reads: self.cursor.reads,
            retries_left: self.retries.left(),
            rnr_wait: self.readiness.until().is_some(),
            recovering: self.repair != Repair::None,
            timer_at: self.timer.expiry(),
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
        let first = self.planned;
        self.planned = first + self.config.mtu.packets(len);
        let wqe = self.queue.put(wr, len as u32, wr.signaled || signal_all, memory);
        (wqe.first_psn, wqe.end_psn, wqe.restart_psn) = (first, self.planned, first);
        Ok(())
    }

    /// Checks a work request; returns the length of its message.
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
        self.queue.admit(wr, len)?;
        // An atomic leaves the rest of its segments unchanged.
        Ok(if matches!(wr.op, SendOp::CmpSwap { .. } | SendOp::FetchAdd { .. }) {
            ATOMIC_LEN
        } else {
            len
        })
    }

    /// Time at which [`Requester::handle_timeout`] must be called.
    #[inline]
    pub fn deadline(&self) -> Option<Deadline> {
        if let Some(at) = self.readiness.until() {
            return Some(Deadline { at, reason: "RNR timer" });
        }
        self.timer.expiry().map(|at| Deadline { at, reason: "local ACK timer" })
    }

    /// Handles expired timers. Early and repeated calls do nothing.
    pub fn handle_timeout<C: Context>(&mut self, now: Instant, ctx: &mut C) {
        if self.readiness.until().is_some_and(|at| at <= now) {
            self.readiness.end_wait();
        }
        if !self.timer.has_expired(now) {
            return;
        }
        if self.cursor.asked <= self.una && self.can_transmit(now) {
            // The port had no room for the packet with the AckReq: no answer is due.
            self.timer.restart(now, self.timeout());
        } else if !self.extend_timeout(now, ctx) {
            ctx.counters().count(Counter::LocalAckTimeoutErr);
            self.answer_timeout(now, ctx);
        }
    }

    /// Time without progress until a retransmission.
    fn timeout(&self) -> Option<Duration> {
        match self.config.adaptive_timeout {
            None => self.config.timeout,
            Some(first) => Some(self.retries.adaptive_wait(first, self.config.timeout)),
        }
    }

    /// Extends the timer while answers take longer than the timeout: packets that queue behind
    /// those of other QPs, at a slow device or peer, are not lost.
    #[cold]
    fn extend_timeout<C: Context>(&mut self, now: Instant, ctx: &C) -> bool {
        let (Some(timeout), None) = (self.config.timeout, self.config.adaptive_timeout) else {
            return false;
        };
        let longest = timeout.times(u64::from(self.config.timeout_stretch_max));
        let wait = ctx.expected_answer_delay().min(longest);
        wait > timeout && self.timer.extend(now, wait - timeout)
    }

    /// Completes the oldest work request with `status` and flushes the others.
    fn fail<C: Context>(&mut self, ctx: &mut C, status: Status) {
        self.failed = true;
        self.timer.stop();
        self.readiness.end_wait();
        let ends = (self.config.qpn, self.config.dest_qpn);
        self.queue.fail(status, |_| ends, ctx);
        self.cursor.current = self.queue.tail();
    }

    /// Stops, and completes all work requests with a flush error, in order. Call again for those
    /// posted later.
    pub fn flush<C: Context>(&mut self, ctx: &mut C) {
        self.fail(ctx, Status::WrFlush);
    }
}
