//! Requests in sequence: SENDs and WRITEs are placed, READs and atomics are queued.

use super::outstanding::{Answer, Request};
use super::{Fault, Responder};
use crate::requester::ATOMIC_LEN;
use longhaul_node::Payload;
use longhaul_units::{Msn, RKey};
use longhaul_wire::{Bth, Opcode, Packet, Reth};
use longhaul_work::{
    Completion, CompletionOp, Context, Counter, IncomingSend, MESSAGE_MAX, PlaceFault, RecvQueue,
    RemoteIntent, Status,
};

/// The message being received.
#[derive(Clone, Copy, Debug)]
pub(super) enum Message {
    None,
    Send(IncomingSend),
    Write(Write),
}

/// A WRITE, of which `received` of `len` bytes are placed.
#[derive(Clone, Copy, Debug)]
pub(super) struct Write {
    address: u64,
    rkey: RKey,
    len: u32,
    received: u32,
}

/// Reason to refuse a request in sequence. The expected PSN does not advance.
#[derive(Clone, Copy, Debug)]
pub(super) enum Refusal {
    /// No receive waits.
    NotReady,
    /// The responder has failed.
    Fatal(Fault),
}

impl From<PlaceFault> for Fault {
    fn from(fault: PlaceFault) -> Self {
        match fault {
            PlaceFault::LocalLength => Fault::InvalidRequest,
            PlaceFault::LocalProtection => Fault::RemoteOperational,
        }
    }
}

impl From<Fault> for Refusal {
    fn from(fault: Fault) -> Self {
        Refusal::Fatal(fault)
    }
}

impl Responder {
    /// Places one packet of a SEND.
    #[inline(never)]
    pub(super) fn take_send<C: Context>(
        &mut self,
        packet: &Packet<'_>,
        bth: &Bth,
        payload: &Payload<'_>,
        queue: &mut RecvQueue,
        ctx: &mut C,
    ) -> Result<(), Refusal> {
        let mut send = match self.message {
            Message::Send(send) => send,
            _ => IncomingSend::begin(queue.take().ok_or(Refusal::NotReady)?),
        };
        let placed = send.place(payload, send.into.capacity, queue, ctx);
        self.message = Message::Send(send);
        if let Err(fault) = placed {
            self.end_receive(fault.status(), queue, ctx);
            return Err(Fault::from(fault).into());
        }
        if bth.opcode.ends_message() {
            self.complete_send(packet, bth, &send, queue, ctx)?;
        }
        Ok(())
    }

    /// Completes the receive of a SEND whose last packet is placed.
    #[inline]
    fn complete_send<C: Context>(
        &mut self,
        packet: &Packet<'_>,
        bth: &Bth,
        send: &IncomingSend,
        queue: &mut RecvQueue,
        ctx: &mut C,
    ) -> Result<(), Fault> {
        let invalidated = packet.invalidate();
        if let Some(rkey) = invalidated
            && !ctx.invalidate(rkey)
        {
            self.end_receive(Status::LocalAccess, queue, ctx);
            return Err(Fault::RemoteAccess);
        }
        ctx.counters().count(Counter::RxSendRequests);
        let wr_id = queue.release(send.into);
        ctx.complete_receive(Completion {
            byte_len: send.received as u32,
            immediate: packet.immediate(),
            invalidated,
            solicited: bth.solicited,
            ..self.receive_completion(wr_id, Status::Success)
        });
        self.end_message();
        Ok(())
    }

    /// Places one packet of a WRITE.
    #[inline(never)]
    pub(super) fn take_write<C: Context>(
        &mut self,
        packet: &Packet<'_>,
        bth: &Bth,
        payload: &Payload<'_>,
        queue: &mut RecvQueue,
        ctx: &mut C,
    ) -> Result<(), Refusal> {
        let here = payload.len() as u32;
        let write = match (self.message, packet.reth()) {
            (Message::Write(write), _) => write,
            (_, Some(reth)) => begin_write(&reth, ctx)?,
            _ => unreachable!("a WRITE that begins has a RETH"),
        };
        let ends = bth.opcode.ends_message();
        let left = write.len - write.received;
        if (ends && here != left) || (!ends && here >= left) {
            return Err(Fault::InvalidRequest.into());
        }
        if packet.immediate().is_some() && queue.is_empty() {
            return Err(Refusal::NotReady);
        }
        if here > 0 {
            let at = write.address.wrapping_add(u64::from(write.received));
            let memory = ctx
                .remote(write.rkey, at, u64::from(here), RemoteIntent::Write)
                .map_err(|_| Fault::RemoteAccess)?;
            ctx.scatter(memory, payload);
        }
        self.message = Message::Write(Write { received: write.received + here, ..write });
        if ends {
            self.complete_write(packet, bth, write.len, queue, ctx);
        }
        Ok(())
    }

    /// Counts a WRITE whose last packet is placed; immediate data completes a receive.
    #[inline]
    fn complete_write<C: Context>(
        &mut self,
        packet: &Packet<'_>,
        bth: &Bth,
        byte_len: u32,
        queue: &mut RecvQueue,
        ctx: &mut C,
    ) {
        ctx.counters().count(Counter::RxWriteRequests);
        if let Some(immediate) = packet.immediate()
            && let Some(wr_id) = queue.pop()
        {
            ctx.complete_receive(Completion {
                op: CompletionOp::RecvWriteImmediate,
                byte_len,
                immediate: Some(immediate),
                solicited: bth.solicited,
                ..self.receive_completion(wr_id, Status::Success)
            });
        }
        self.end_message();
    }

    #[inline]
    fn end_message(&mut self) {
        self.message = Message::None;
        self.msn += 1;
    }

    /// Executes an atomic and queues its response.
    #[inline(never)]
    pub(super) fn take_atomic<C: Context>(
        &mut self,
        packet: &Packet<'_>,
        bth: &Bth,
        ctx: &mut C,
    ) -> Result<(), Refusal> {
        let Some(atomic) = packet.atomic_eth() else { unreachable!("an atomic has an AtomicETH") };
        let is_full = self.outstanding.is_full(self.config.max_dest_rd_atomic);
        let is_aligned = atomic.virtual_address % ATOMIC_LEN == 0;
        if is_full || !ctx.permits(RemoteIntent::Atomic) || !is_aligned {
            return Err(Fault::InvalidRequest.into());
        }
        let at = ctx.remote(atomic.rkey, atomic.virtual_address, ATOMIC_LEN, RemoteIntent::Atomic);
        // The peer's address may be aligned while the memory behind it is not.
        let memory =
            at.ok().filter(|memory| memory % ATOMIC_LEN == 0).ok_or(Fault::RemoteAccess)?;
        ctx.counters().count(Counter::RxAtomicRequests);
        let original = if bth.opcode == Opcode::RC_CMP_SWAP {
            ctx.compare_swap(memory, atomic.compare, atomic.swap_or_add)
        } else {
            ctx.fetch_add(memory, atomic.swap_or_add)
        };
        self.outstanding.remember(self.expected, original, self.config.max_dest_rd_atomic);
        self.queue(self.expected + 1, Answer::Atomic { original });
        Ok(())
    }

    /// Queues a READ.
    pub(super) fn take_read<C: Context>(
        &mut self,
        packet: &Packet<'_>,
        ctx: &mut C,
    ) -> Result<(), Refusal> {
        let Some(reth) = packet.reth() else { unreachable!("a READ request has a RETH") };
        let is_full = self.outstanding.is_full(self.config.max_dest_rd_atomic);
        let len = u64::from(reth.len);
        if is_full || !ctx.permits(RemoteIntent::Read) || len > MESSAGE_MAX {
            return Err(Fault::InvalidRequest.into());
        }
        check_range(&reth, RemoteIntent::Read, ctx)?;
        ctx.counters().count(Counter::RxReadRequests);
        self.queue(self.expected + self.config.mtu.packets(len), Answer::read(&reth));
        Ok(())
    }

    /// Queues a request in sequence, whose last response has the PSN before `end`. Its responses
    /// acknowledge it.
    fn queue(&mut self, end: u64, answer: Answer) {
        self.msn += 1;
        let first = self.expected;
        let msn = Msn::new(self.msn as u32);
        let request = Request { first, end, cursor: first, msn, is_duplicate: false, answer };
        self.outstanding.push(request, self.config.max_dest_rd_atomic);
        self.expected = end;
        self.acknowledgement.close_gap();
    }

    /// Queues a duplicate READ. Returns `false` if it contradicts the original.
    pub(super) fn take_duplicate_read<C: Context>(
        &mut self,
        psn: u64,
        reth: &Reth,
        ctx: &mut C,
    ) -> bool {
        let end = psn + self.config.mtu.packets(u64::from(reth.len));
        let is_allowed =
            ctx.permits(RemoteIntent::Read) && check_range(reth, RemoteIntent::Read, ctx).is_ok();
        end <= self.expected && is_allowed && self.queue_duplicate(psn, end, Answer::read(reth))
    }

    /// Queues the original result of a duplicate atomic. Returns `false` if it is forgotten.
    pub(super) fn take_duplicate_atomic(&mut self, psn: u64) -> bool {
        self.outstanding
            .result(psn)
            .is_some_and(|original| self.queue_duplicate(psn, psn + 1, Answer::Atomic { original }))
    }

    fn queue_duplicate(&mut self, first: u64, end: u64, answer: Answer) -> bool {
        let msn = Msn::new(self.msn as u32);
        let request = Request { first, end, cursor: first, msn, is_duplicate: true, answer };
        self.outstanding.insert_duplicate(request, self.config.max_dest_rd_atomic)
    }

    fn receive_completion(&self, wr_id: u64, status: Status) -> Completion {
        Completion::of(wr_id, status, CompletionOp::Recv, self.config.qpn, self.config.dest_qpn)
    }

    /// Completes the receive of the SEND being received, if any.
    pub(super) fn end_receive<C: Context>(
        &mut self,
        status: Status,
        queue: &mut RecvQueue,
        ctx: &mut C,
    ) {
        if let Message::Send(send) = std::mem::replace(&mut self.message, Message::None) {
            ctx.complete_receive(self.receive_completion(queue.release(send.into), status));
        }
    }
}

impl Answer {
    fn read(reth: &Reth) -> Self {
        Answer::Read { address: reth.virtual_address, rkey: reth.rkey, len: reth.len }
    }
}

/// Checks the RETH of a WRITE that begins: permission, length and memory.
#[inline]
fn begin_write<C: Context>(reth: &Reth, ctx: &C) -> Result<Write, Fault> {
    if !ctx.permits(RemoteIntent::Write) || u64::from(reth.len) > MESSAGE_MAX {
        return Err(Fault::InvalidRequest);
    }
    check_range(reth, RemoteIntent::Write, ctx)?;
    Ok(Write { address: reth.virtual_address, rkey: reth.rkey, len: reth.len, received: 0 })
}

/// Checks that the peer may access the memory that `reth` names. Without bytes the key is not
/// checked (IBTA, volume 1, C9-88).
#[inline]
fn check_range<C: Context>(reth: &Reth, intent: RemoteIntent, ctx: &C) -> Result<(), Fault> {
    let len = u64::from(reth.len);
    if len > 0 && ctx.remote(reth.rkey, reth.virtual_address, len, intent).is_err() {
        return Err(Fault::RemoteAccess);
    }
    Ok(())
}
