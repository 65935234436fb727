//! The requester: queues sends and numbers packets.

use longhaul_node::Gather;
use longhaul_units::{Psn, Qpn};
use longhaul_wire::{Bth, Head, PathTemplate, Transport};
use longhaul_work::{
    Context, Emit, Intent, MESSAGE_MAX, Mtu, SendOp, SendQueue, SendRefused, SendWr, Status,
    total_len,
};

/// Parameters of a requester's connection.
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
    /// MigReq bit to send.
    pub migreq: bool,
    /// Partition key.
    pub pkey: u16,
}

/// The sending half of a UC QP.
///
/// Lifecycle: created with its queue sizes, [`Requester::start`]ed with a connection's parameters,
/// then driven by posts until it is stopped. Packets are built when [`Requester::transmit`] is
/// called, never before. A work request is complete when its last packet was emitted, so that only
/// the rate at which the caller grants room limits the packets in flight. After an error it has
/// flushed everything and stays failed until [`Requester::recover`] or [`Requester::start`].
///
/// PSNs are unwrapped to 64 bits.
#[derive(Debug)]
pub struct Requester {
    queue: SendQueue,
    config: RequesterConfig,
    /// Next PSN to send.
    next: u64,
    /// Bytes of the oldest message that have been sent.
    offset: u32,
    paused: bool,
    failed: bool,
}

/// Snapshot of a requester for reports.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RequesterSnapshot {
    /// Next PSN to send.
    pub next: Psn,
    /// Work requests queued and not completed.
    pub queued: u64,
    /// Bytes of the oldest work request that have been sent.
    pub offset: u32,
}

impl Requester {
    /// Creates a stopped requester for `depth` (rounded up to a power of two) work requests of up
    /// to `sge_max` segments (at most [`longhaul_work::SGE_MAX`]) and `inline_max` bytes inline.
    pub fn new(depth: u32, sge_max: u32, inline_max: u32) -> Self {
        let config = RequesterConfig {
            qpn: Qpn::new(0),
            dest_qpn: Qpn::new(0),
            sq_psn: Psn::new(0),
            mtu: Mtu::B1024,
            migreq: false,
            pkey: longhaul_wire::PKEY_DEFAULT,
        };
        Requester {
            queue: SendQueue::new(depth, sge_max, inline_max),
            config,
            next: 0,
            offset: 0,
            paused: false,
            failed: false,
        }
    }

    /// Discards all state and starts a connection.
    pub fn start(&mut self, config: RequesterConfig) {
        self.config = config;
        self.queue.reset();
        self.offset = 0;
        self.next = u64::from(config.sq_psn.get());
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

    /// `true` after an error completion; everything queued has been flushed. The QP's send queue is
    /// in error (SQE), its receive queue continues. Source: IBTA, volume 1, section 10.3.1.
    #[inline]
    pub fn is_failed(&self) -> bool {
        self.failed
    }

    /// Resumes after a failure, with the next PSN: the QP leaves SQE for RTS. The peer drops the
    /// interrupted message at the first packet of the next.
    pub fn recover(&mut self) {
        self.failed = false;
        self.paused = false;
    }

    /// `true` if nothing is queued.
    pub fn is_idle(&self) -> bool {
        self.queue.is_empty()
    }

    /// Pauses or resumes: a paused requester finishes a begun message and begins no others.
    pub fn pause(&mut self, paused: bool) {
        self.paused = paused;
    }

    /// `true` if paused and every begun message is complete.
    pub fn is_drained(&self) -> bool {
        self.paused && self.offset == 0
    }

    /// Next PSN to send.
    pub fn next_psn(&self) -> Psn {
        Psn::from_sequence(self.next)
    }

    /// Work requests queued and not completed.
    #[inline]
    pub fn queued(&self) -> u64 {
        self.queue.len()
    }

    /// Snapshot for reports.
    pub fn snapshot(&self) -> RequesterSnapshot {
        RequesterSnapshot { next: self.next_psn(), queued: self.queue.len(), offset: self.offset }
    }

    /// Queues a work request; inline data is read from `memory` at once. A fence has no effect.
    ///
    /// # Errors
    /// [`SendRefused`], and nothing is queued. READs, atomics, invalidations and datagrams are
    /// always refused.
    pub fn post(
        &mut self,
        wr: &SendWr<'_>,
        signal_all: bool,
        memory: &dyn Gather,
    ) -> Result<(), SendRefused> {
        let len = self.check(wr)?;
        self.queue.put(wr, len as u32, wr.signaled || signal_all, memory);
        Ok(())
    }

    fn check(&self, wr: &SendWr<'_>) -> Result<u64, SendRefused> {
        let missing = match wr.op {
            SendOp::Send { invalidate: None, .. } | SendOp::Write { .. } => None,
            SendOp::Send { .. } => Some("an invalidation of an unreliable queue pair"),
            SendOp::Read { .. } => Some("a READ of an unreliable queue pair"),
            SendOp::CmpSwap { .. } | SendOp::FetchAdd { .. } => {
                Some("an atomic of an unreliable queue pair")
            }
            SendOp::Datagram { .. } => Some("a datagram of a connected queue pair"),
        };
        if let Some(what) = missing {
            return Err(SendRefused::NotSupported(what));
        }
        let len = total_len(wr.segments);
        if len > MESSAGE_MAX {
            return Err(SendRefused::MessageTooLong { given: len });
        }
        self.queue.admit(wr, len)?;
        Ok(len)
    }

    /// `true` if [`Requester::transmit`] would send something.
    #[inline]
    pub fn can_transmit(&self) -> bool {
        !self.queue.is_empty() && !self.failed && (self.offset > 0 || !self.paused)
    }

    /// Sends one packet, if any. The caller has granted room. Returns `true` if a packet was sent.
    ///
    /// Memory that may not be read fails the requester: see [`Requester::is_failed`].
    pub fn transmit<C: Context>(
        &mut self,
        ctx: &mut C,
        template: &PathTemplate,
        emit: &mut impl Emit,
    ) -> bool {
        if !self.can_transmit() {
            return false;
        }
        let wqe = self.queue.oldest();
        let left = wqe.len - self.offset;
        let len = left.min(self.config.mtu.bytes());
        let (first, last) = (self.offset == 0, len == left);
        // A message of several packets is checked before its first: the peer drops an incomplete
        // message.
        if first && !last && self.queue.check(self.queue.done(), Intent::LocalRead, ctx).is_err() {
            self.fail(ctx);
            return false;
        }
        let mut bth =
            Bth::new(wqe.opcode(Transport::Uc, first, last), self.config.dest_qpn, self.next_psn());
        bth.migreq = self.config.migreq;
        bth.pkey = self.config.pkey;
        bth.solicited = last && wqe.solicited && wqe.consumes_receive();
        let mut head = Head::begin(template, &bth);
        wqe.push_headers(&mut head, first, last);
        let pad_len = head.finish(template, len as usize);
        let piece = (u64::from(self.offset), len);
        if self.queue.emit(self.queue.done(), piece, (head.bytes(), pad_len), ctx, emit).is_err() {
            self.fail(ctx);
            return false;
        }
        self.next += 1;
        if last {
            if wqe.signaled {
                let (qpn, peer) = (self.config.qpn, self.config.dest_qpn);
                ctx.complete_send(wqe.completion(Status::Success, qpn, peer));
            }
            self.queue.pop();
            self.offset = 0;
        } else {
            self.offset += len;
        }
        true
    }

    /// Completes the message being sent with a protection error, and all later ones with a flush
    /// error.
    #[cold]
    fn fail<C: Context>(&mut self, ctx: &mut C) {
        self.end(Status::LocalProtection, ctx);
    }

    /// Stops, and completes all work requests with a flush error, in order. Call again for those
    /// posted later.
    pub fn flush<C: Context>(&mut self, ctx: &mut C) {
        self.end(Status::WrFlush, ctx);
    }

    /// Stops: completes the oldest work request with `status`, and the others with a flush error.
    fn end<C: Context>(&mut self, status: Status, ctx: &mut C) {
        self.failed = true;
        self.offset = 0;
        let ends = (self.config.qpn, self.config.dest_qpn);
        self.queue.fail(status, |_| ends, ctx);
    }
}
