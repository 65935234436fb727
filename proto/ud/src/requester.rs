//! The requester: queues datagrams and sends each once.

use longhaul_node::Gather;
use longhaul_units::{Psn, Qpn};
use longhaul_wire::{Bth, Deth, Head, Opcode};
use longhaul_work::{
    Context, Counter, Emit, MESSAGE_MAX, Mtu, SendOp, SendQueue, SendRefused, SendWqe, SendWr,
    Status, total_len,
};

/// A QKey with this bit means the sending QP's. Source: IBTA, volume 1, section 10.2.5.
const QKEY_OF_QP: u32 = 1 << 31;

/// Parameters of a requester's QP.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RequesterConfig {
    /// The local QP.
    pub qpn: Qpn,
    /// The QP's QKey, for work requests whose own QKey has the highest bit set.
    pub qkey: u32,
    /// PSN of the first datagram.
    pub sq_psn: Psn,
    /// The port's active MTU: the maximum datagram.
    pub mtu: Mtu,
    /// MigReq bit to send.
    pub migreq: bool,
    /// Partition key.
    pub pkey: u16,
}

/// The sending half of a UD QP.
///
/// Lifecycle: created with its queue sizes, [`Requester::start`]ed, then driven by posts and by
/// [`Requester::transmit`], which builds each packet when it is sent. A work request is complete
/// when its packet was emitted. After an error it has flushed everything and stays failed until
/// [`Requester::recover`] or [`Requester::start`].
///
/// A datagram that exceeds the MTU completes successfully in its turn without a packet: a channel
/// interface "shall not emit any packets for this message" and "shall not generate an error" (IBTA,
/// volume 1, C10-93.1.1). The kernel's rxe does the same. A counter shows such datagrams.
#[derive(Debug)]
pub struct Requester {
    queue: SendQueue,
    config: RequesterConfig,
    psn: Psn,
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
}

impl Requester {
    /// Creates a requester for `depth` (rounded up to a power of two) work requests of up to
    /// `sge_max` segments (at most [`longhaul_work::SGE_MAX`]) and `inline_max` bytes inline.
    pub fn new(depth: u32, sge_max: u32, inline_max: u32) -> Self {
        Requester {
            queue: SendQueue::new(depth, sge_max, inline_max),
            config: RequesterConfig {
                qpn: Qpn::new(0),
                qkey: 0,
                sq_psn: Psn::new(0),
                mtu: Mtu::B1024,
                migreq: false,
                pkey: longhaul_wire::PKEY_DEFAULT,
            },
            psn: Psn::new(0),
            paused: false,
            failed: false,
        }
    }

    /// Discards all state and starts.
    pub fn start(&mut self, config: RequesterConfig) {
        self.config = config;
        self.queue.reset();
        self.psn = config.sq_psn;
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

    /// Changes the QP's QKey, for packets not yet sent.
    pub fn set_qkey(&mut self, qkey: u32) {
        self.config.qkey = qkey;
    }

    /// `true` after an error completion; everything queued has been flushed. The QP's send queue is
    /// in error (SQE), its receive queue continues. Source: IBTA, volume 1, section 10.3.1.
    #[inline]
    pub fn is_failed(&self) -> bool {
        self.failed
    }

    /// Resumes after a failure, with the next PSN: the QP leaves SQE for RTS.
    pub fn recover(&mut self) {
        self.failed = false;
        self.paused = false;
    }

    /// `true` if nothing is queued.
    pub fn is_idle(&self) -> bool {
        self.queue.is_empty()
    }

    /// Pauses or resumes sending.
    pub fn pause(&mut self, paused: bool) {
        self.paused = paused;
    }

    /// `true` if paused: datagrams are never partially sent.
    pub fn is_drained(&self) -> bool {
        self.paused
    }

    /// Work requests queued and not completed.
    #[inline]
    pub fn queued(&self) -> u64 {
        self.queue.len()
    }

    /// Snapshot for reports.
    pub fn snapshot(&self) -> RequesterSnapshot {
        RequesterSnapshot { next: self.psn, queued: self.queue.len() }
    }

    /// Queues a work request; inline data is read from `memory` at once.
    ///
    /// # Errors
    /// [`SendRefused`] for anything but a datagram, and if a limit of the queue is exceeded.
    pub fn post(
        &mut self,
        wr: &SendWr<'_>,
        signal_all: bool,
        memory: &dyn Gather,
    ) -> Result<(), SendRefused> {
        if !matches!(wr.op, SendOp::Datagram { .. }) {
            return Err(SendRefused::NotSupported(
                "anything but a datagram of a datagram queue pair",
            ));
        }
        let len = total_len(wr.segments);
        if len > MESSAGE_MAX {
            return Err(SendRefused::MessageTooLong { given: len });
        }
        self.queue.admit(wr, len)?;
        self.queue.put(wr, len as u32, wr.signaled || signal_all, memory);
        Ok(())
    }

    /// `true` if [`Requester::transmit`] has something to do.
    #[inline]
    pub fn can_transmit(&self) -> bool {
        !self.queue.is_empty() && !self.paused && !self.failed
    }

    /// Sends one packet, if any. The caller has granted room. Returns `true` if a packet was sent.
    pub fn transmit<C: Context>(&mut self, ctx: &mut C, emit: &mut impl Emit) -> bool {
        while self.can_transmit() {
            let wqe = *self.queue.oldest();
            let fits = wqe.len <= self.config.mtu.bytes();
            if !fits {
                ctx.counters().count(Counter::TxTooLong);
            } else if let Err(status) = self.send(&wqe, ctx, emit) {
                self.fail(ctx, status);
                return false;
            }
            if wqe.signaled {
                self.complete(&wqe, Status::Success, ctx);
            }
            self.queue.pop();
            if fits {
                return true;
            }
        }
        false
    }

    #[inline]
    fn send<C: Context>(
        &mut self,
        wqe: &SendWqe,
        ctx: &C,
        emit: &mut impl Emit,
    ) -> Result<(), Status> {
        let destination = &wqe.destination;
        let template = ctx.path(destination.ah).ok_or(Status::LocalQpOperation)?;
        let opcode =
            if wqe.immediate.is_some() { Opcode::UD_SEND_ONLY_IMM } else { Opcode::UD_SEND_ONLY };
        let mut bth = Bth::new(opcode, destination.qpn, self.psn);
        bth.solicited = wqe.solicited;
        bth.migreq = self.config.migreq;
        bth.pkey = self.config.pkey;
        let qkey =
            if destination.qkey & QKEY_OF_QP != 0 { self.config.qkey } else { destination.qkey };
        let mut head = Head::begin(template, &bth);
        head.push_deth(&Deth { qkey, reserved_8: 0, source_qp: self.config.qpn });
        if let Some(immediate) = wqe.immediate {
            head.push_immediate(immediate);
        }
        let pad_len = head.finish(template, wqe.len as usize);
        self.queue
            .emit(self.queue.done(), (0, wqe.len), (head.bytes(), pad_len), ctx, emit)
            .map_err(|_| Status::LocalProtection)?;
        self.psn = self.psn.plus(1);
        Ok(())
    }

    fn complete<C: Context>(&self, wqe: &SendWqe, status: Status, ctx: &mut C) {
        ctx.complete_send(wqe.completion(status, self.config.qpn, wqe.destination.qpn));
    }

    /// Ends the oldest work request with `status` and flushes the rest.
    #[cold]
    fn fail<C: Context>(&mut self, ctx: &mut C, status: Status) {
        self.failed = true;
        let qpn = self.config.qpn;
        self.queue.fail(status, |wqe| (qpn, wqe.destination.qpn), ctx);
    }

    /// Stops, and completes all work requests with a flush error, in order. Call again for those
    /// posted later.
    pub fn flush<C: Context>(&mut self, ctx: &mut C) {
        self.fail(ctx, Status::WrFlush);
    }
}
