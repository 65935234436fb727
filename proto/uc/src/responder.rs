//! The responder: places the messages that arrive complete, and sends nothing.

use longhaul_node::Payload;
use longhaul_units::{Psn, Qpn, RKey};
use longhaul_wire::{Bth, Packet, Position, Transport, Verb};
use longhaul_work::{
    Completion, CompletionOp, Context, Counter, DropReason, IncomingSend, MESSAGE_MAX, Mtu,
    PlaceFault, Receive, RecvQueue, RemoteIntent, Status,
};

/// Parameters of a responder's connection.
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
}

/// The message being received.
#[derive(Clone, Copy, Debug)]
enum Message {
    /// None, or an aborted message: packets are dropped until another message begins.
    None,
    Send(IncomingSend),
    Write(Write),
}

/// A WRITE, of which `left` bytes are missing, from `address`.
#[derive(Clone, Copy, Debug)]
struct Write {
    address: u64,
    rkey: RKey,
    len: u32,
    left: u32,
}

/// The receiving half of a UC QP.
///
/// A packet that begins a message is accepted whatever its PSN, and ends a message that is still
/// incomplete. All others must follow the previous packet. An aborted message leaves only counts:
/// the receive of an aborted SEND serves the next message that needs one, and an aborted WRITE has
/// written the bytes that arrived. Source: IBTA, volume 1, sections 9.8.2 and 9.9.3.
#[derive(Debug)]
pub struct Responder {
    config: ResponderConfig,
    expected: Psn,
    message: Message,
    /// The receive of an aborted SEND; `None` in [`Message::Send`].
    kept: Option<Receive>,
    fault: Option<PlaceFault>,
}

/// Snapshot of a responder for reports.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ResponderSnapshot {
    /// PSN behind the latest packet.
    pub expected: Psn,
    /// Whether a message is being received.
    pub in_message: bool,
    /// Whether a receive is taken, for the current message or for the next one.
    pub holds_receive: bool,
}

impl Responder {
    /// Creates a responder for a new connection.
    pub fn new(config: ResponderConfig) -> Self {
        Responder {
            expected: config.rq_psn,
            message: Message::None,
            kept: None,
            fault: None,
            config,
        }
    }

    /// The parameters in force.
    pub fn config(&self) -> &ResponderConfig {
        &self.config
    }

    /// Reason why the responder has failed, if it has: its QP enters the error state. The peer is
    /// not told.
    #[inline]
    pub fn fault(&self) -> Option<PlaceFault> {
        self.fault
    }

    /// Snapshot for reports.
    pub fn snapshot(&self) -> ResponderSnapshot {
        ResponderSnapshot {
            expected: self.expected,
            in_message: !matches!(self.message, Message::None),
            holds_receive: self.kept.is_some() || matches!(self.message, Message::Send(_)),
        }
    }

    /// Handles a request packet. Receives are taken from `queue`; one may stay taken between calls.
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
        let (Transport::Uc, Some(verb)) = (bth.opcode.transport(), bth.opcode.verb()) else {
            ctx.counters().count(DropReason::Opcode);
            return;
        };
        let in_turn = bth.psn == self.expected;
        if !in_turn {
            ctx.counters().count(Counter::SequenceGap);
        }
        self.expected = bth.psn.plus(1);
        let taken = if matches!(bth.opcode.position(), Position::First | Position::Only) {
            self.abort_message(ctx);
            Ok(())
        } else {
            match (self.message, verb) {
                (Message::Send(_), Verb::Send) | (Message::Write(_), Verb::Write) if in_turn => {
                    Ok(())
                }
                _ => Err(DropReason::BrokenMessage),
            }
        };
        let taken = taken.and_then(|()| {
            if !self.config.mtu.admits(bth.opcode.position(), payload.len() as u32) {
                return Err(DropReason::Malformed);
            }
            match verb {
                Verb::Send => self.take_send(packet, bth, payload, queue, ctx),
                _ => self.take_write(packet, bth, payload, queue, ctx),
            }
        });
        if let Err(reason) = taken {
            ctx.counters().count(reason);
            self.abort_message(ctx);
        }
    }

    /// Aborts the message being received, if any. Its receive is kept for the next.
    #[inline]
    fn abort_message<C: Context>(&mut self, ctx: &mut C) {
        match self.message {
            Message::None => return,
            Message::Send(send) => self.kept = Some(send.into),
            Message::Write(_) => {}
        }
        self.message = Message::None;
        ctx.counters().count(Counter::MessageBrokenOff);
    }

    fn take_send<C: Context>(
        &mut self,
        packet: &Packet<'_>,
        bth: &Bth,
        payload: &Payload<'_>,
        queue: &mut RecvQueue,
        ctx: &mut C,
    ) -> Result<(), DropReason> {
        let mut send = match self.message {
            Message::Send(send) => send,
            _ => IncomingSend::begin(
                self.kept.take().or_else(|| queue.take()).ok_or(DropReason::NoReceive)?,
            ),
        };
        let placed = send.place(payload, send.into.capacity.min(MESSAGE_MAX), queue, ctx);
        self.message = Message::Send(send);
        // The standard drops a message that is too long. This responder reports it to the program,
        // whose buffer is too small.
        if let Err(fault) = placed {
            self.give_up(fault, queue, ctx);
            return Ok(());
        }
        if bth.opcode.ends_message() {
            self.message = Message::None;
            ctx.counters().count(Counter::RxSendRequests);
            ctx.complete_receive(Completion {
                byte_len: send.received as u32,
                immediate: packet.immediate(),
                solicited: bth.solicited,
                ..self.receive_completion(queue.release(send.into), Status::Success)
            });
        }
        Ok(())
    }

    fn take_write<C: Context>(
        &mut self,
        packet: &Packet<'_>,
        bth: &Bth,
        payload: &Payload<'_>,
        queue: &mut RecvQueue,
        ctx: &mut C,
    ) -> Result<(), DropReason> {
        let here = payload.len() as u32;
        let (begins, write) = match self.message {
            Message::Write(write) => (false, write),
            _ => (true, begin_write(packet, ctx)?),
        };
        let ends = bth.opcode.ends_message();
        if (ends && here != write.left) || (!ends && here >= write.left) {
            return Err(DropReason::Malformed);
        }
        let immediate = packet.immediate();
        if immediate.is_some() && self.kept.is_none() && queue.is_empty() {
            return Err(DropReason::NoReceive);
        }
        if here > 0 {
            // The range of the whole message is checked before its first byte is written.
            let checked = u64::from(if begins { write.len } else { here });
            let memory = ctx
                .remote(write.rkey, write.address, checked, RemoteIntent::Write)
                .map_err(|_| DropReason::WriteRefused)?;
            ctx.scatter(memory, payload);
        }
        if !ends {
            self.message = Message::Write(Write {
                address: write.address.wrapping_add(here.into()),
                left: write.left - here,
                ..write
            });
            return Ok(());
        }
        self.message = Message::None;
        ctx.counters().count(Counter::RxWriteRequests);
        if immediate.is_some()
            && let Some(wr_id) =
                self.kept.take().map(|kept| queue.release(kept)).or_else(|| queue.pop())
        {
            ctx.complete_receive(Completion {
                op: CompletionOp::RecvWriteImmediate,
                byte_len: write.len,
                immediate,
                solicited: bth.solicited,
                ..self.receive_completion(wr_id, Status::Success)
            });
        }
        Ok(())
    }

    fn receive_completion(&self, wr_id: u64, status: Status) -> Completion {
        Completion::of(wr_id, status, CompletionOp::Recv, self.config.qpn, self.config.dest_qpn)
    }

    #[cold]
    fn give_up<C: Context>(&mut self, fault: PlaceFault, queue: &mut RecvQueue, ctx: &mut C) {
        self.fault = Some(fault);
        self.end_receive(fault.status(), queue, ctx);
    }

    /// Completes the receive that is taken, if any.
    fn end_receive<C: Context>(&mut self, status: Status, queue: &mut RecvQueue, ctx: &mut C) {
        if let Some(receive) = self.take_receive() {
            ctx.complete_receive(self.receive_completion(queue.release(receive), status));
        }
    }

    /// Returns the receive in use, and discards the message being received.
    fn take_receive(&mut self) -> Option<Receive> {
        match std::mem::replace(&mut self.message, Message::None) {
            Message::Send(send) => Some(send.into),
            _ => self.kept.take(),
        }
    }

    /// Stops: the receive that is taken completes with a flush error, before those that wait in the
    /// queue.
    pub fn flush<C: Context>(&mut self, queue: &mut RecvQueue, ctx: &mut C) {
        self.end_receive(Status::WrFlush, queue, ctx);
    }

    /// Returns the receive that is taken, without a completion.
    pub fn release(&mut self, queue: &mut RecvQueue) {
        if let Some(receive) = self.take_receive() {
            queue.release(receive);
        }
    }
}

/// Parses the first packet of a WRITE. Its range is not checked yet.
#[inline]
fn begin_write<C: Context>(packet: &Packet<'_>, ctx: &C) -> Result<Write, DropReason> {
    if !ctx.permits(RemoteIntent::Write) {
        return Err(DropReason::WriteRefused);
    }
    match packet.reth() {
        Some(reth) if u64::from(reth.len) <= MESSAGE_MAX => Ok(Write {
            address: reth.virtual_address,
            rkey: reth.rkey,
            len: reth.len,
            left: reth.len,
        }),
        _ => Err(DropReason::Malformed),
    }
}
