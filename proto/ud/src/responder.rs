//! The responder: checks datagrams and places them in receives.

use crate::grh::{GRH_LEN, area};
use longhaul_node::Payload;
use longhaul_units::Qpn;
use longhaul_wire::{Bth, Deth, Opcode, Packet};
use longhaul_work::{
    Completion, CompletionOp, Context, Counter, DropReason, Grh, Mtu, Receive, RecvQueue, Status,
    scatter_list,
};

/// Parameters of a responder's QP.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ResponderConfig {
    /// The local QP.
    pub qpn: Qpn,
    /// QKey that datagrams must have.
    pub qkey: u32,
    /// The port's active MTU: the maximum datagram.
    pub mtu: Mtu,
}

/// Reason why a responder has failed; its QP enters the error state.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fault {
    /// A segment of a receive lies outside its region or may not be written to.
    LocalProtection,
}

/// The receiving half of a UD QP.
///
/// It accepts datagrams in any order and ignores their PSN (IBTA, volume 1, section 9.8.3). It
/// drops and counts datagrams that it cannot accept, without an answer.
///
/// A datagram that exceeds the MTU or the receive is "silently dropped by the responder", which
/// "then waits for a new request packet" (same section; the kernel's rxe and rdmavt do so too). The
/// receive that was too short is kept for the next datagram, as in rdmavt, so that a peer cannot
/// consume receives without filling them.
#[derive(Debug)]
pub struct Responder {
    config: ResponderConfig,
    /// A receive that was too short for the latest datagram.
    held: Option<Receive>,
    fault: Option<Fault>,
}

/// Snapshot of a responder for reports.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ResponderSnapshot {
    /// Whether a receive is held that was too short.
    pub holds_receive: bool,
    /// Reason of its failure, if it has failed.
    pub fault: Option<Fault>,
}

impl Responder {
    /// Creates a responder for a new QP.
    pub fn new(config: ResponderConfig) -> Self {
        Responder { config, held: None, fault: None }
    }

    /// The parameters in force.
    pub fn config(&self) -> &ResponderConfig {
        &self.config
    }

    /// Changes the QKey that datagrams must have.
    pub fn set_qkey(&mut self, qkey: u32) {
        self.config.qkey = qkey;
    }

    /// Reason of its failure, if it has failed.
    #[inline]
    pub fn fault(&self) -> Option<Fault> {
        self.fault
    }

    /// Snapshot for reports.
    pub fn snapshot(&self) -> ResponderSnapshot {
        ResponderSnapshot { holds_receive: self.held.is_some(), fault: self.fault }
    }

    /// Handles a packet for this QP, or for a multicast group that it is attached to; then each of
    /// the group's responders gets the same packet. `bth` is the packet's; the partition key was
    /// checked.
    ///
    /// Each datagram takes one receive from `queue`. Returns `true` if the datagram was delivered.
    pub fn handle_datagram<C: Context>(
        &mut self,
        packet: &Packet<'_>,
        bth: &Bth,
        payload: &Payload<'_>,
        queue: &mut RecvQueue,
        ctx: &mut C,
    ) -> bool {
        if self.fault.is_some() {
            ctx.counters().count(DropReason::ResponderHalted);
            return false;
        }
        let deth = match self.check(packet, bth, payload) {
            Ok(deth) => deth,
            Err(reason) => {
                ctx.counters().count(reason);
                return false;
            }
        };
        let Some(into) = self.held.take().or_else(|| queue.take()) else {
            ctx.counters().count(DropReason::NoReceive);
            return false;
        };
        let byte_len = payload.len() + GRH_LEN;
        if byte_len as u64 > into.capacity {
            self.held = Some(into);
            ctx.counters().count(DropReason::TooLong);
            return false;
        }
        let header = area(packet);
        let segments = queue.segments(&into);
        let placed = scatter_list(ctx, segments, 0, &Payload::Bytes(&header))
            .and_then(|()| scatter_list(ctx, segments, GRH_LEN as u64, payload));
        let wr_id = queue.release(into);
        let status = if placed.is_ok() { Status::Success } else { Status::LocalProtection };
        let completion =
            Completion::of(wr_id, status, CompletionOp::Recv, self.config.qpn, deth.source_qp);
        if placed.is_err() {
            self.fault = Some(Fault::LocalProtection);
            ctx.complete_receive(completion);
            return false;
        }
        ctx.counters().count(Counter::RxSendRequests);
        ctx.complete_receive(Completion {
            byte_len: byte_len as u32,
            immediate: packet.immediate(),
            solicited: bth.solicited,
            grh: Some(if packet.layout().is_ipv6 { Grh::V6 } else { Grh::V4 }),
            ..completion
        });
        true
    }

    /// Checks that need no receive.
    #[inline]
    fn check(
        &self,
        packet: &Packet<'_>,
        bth: &Bth,
        payload: &Payload<'_>,
    ) -> Result<Deth, DropReason> {
        if !matches!(bth.opcode, Opcode::UD_SEND_ONLY | Opcode::UD_SEND_ONLY_IMM) {
            return Err(DropReason::Opcode);
        }
        let deth = packet.deth().ok_or(DropReason::Opcode)?;
        if deth.qkey != self.config.qkey {
            return Err(DropReason::QKey);
        }
        if payload.len() > self.config.mtu.bytes() as usize {
            return Err(DropReason::TooLong);
        }
        Ok(deth)
    }

    /// Completes a held receive with a flush error. The owner then flushes the queue.
    pub fn flush<C: Context>(&mut self, queue: &mut RecvQueue, ctx: &mut C) {
        if let Some(held) = self.held.take() {
            let wr_id = queue.release(held);
            let (op, qpn) = (CompletionOp::Recv, self.config.qpn);
            ctx.complete_receive(Completion::of(wr_id, Status::WrFlush, op, qpn, Qpn::new(0)));
        }
    }

    /// Returns a held receive without a completion.
    pub fn release(&mut self, queue: &mut RecvQueue) {
        if let Some(held) = self.held.take() {
            queue.release(held);
        }
    }
}
