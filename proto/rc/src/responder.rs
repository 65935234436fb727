//! The responder: processes requests in PSN order, places their data in memory, and responds.

mod acknowledgement;
mod outstanding;
mod requests;
mod transmit;

use crate::requester::SEQUENCE_BASE;
use acknowledgement::Acknowledgement;
use longhaul_node::Payload;
use longhaul_units::{Msn, Psn, Qpn};
use longhaul_wire::{Bth, NakCode, PKEY_DEFAULT, Packet, Position, Verb};
use longhaul_work::{Context, Counter, DropReason, Mtu, RecvQueue, Status};
use outstanding::Outstanding;
use requests::{Message, Refusal};

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
    /// READs and atomics that the peer may have outstanding.
    pub max_dest_rd_atomic: u32,
    /// RNR timer code to send, 0 to 31.
    pub min_rnr_timer: u8,
    /// Maximum packets between ACKs, requested or not.
    pub ack_every: u32,
    /// Report the posted receives as credits instead of "no limit"; not for queue pairs that share
    /// them.
    pub report_credits: bool,
    /// MigReq bit to send.
    pub migreq: bool,
    /// Partition key.
    pub pkey: u16,
}

impl Default for ResponderConfig {
    /// Configuration of an unconnected queue pair.
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

/// Reason why a responder has failed; its QP enters the error state. Source: IBTA, volume 1,
/// section 9.9.3.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fault {
    /// Answered with "invalid request".
    InvalidRequest,
    /// Answered with "remote access error".
    RemoteAccess,
    /// Answered with "remote operational error".
    RemoteOperational,
}

impl Fault {
    fn nak_code(self) -> NakCode {
        match self {
            Fault::InvalidRequest => NakCode::InvalidRequest,
            Fault::RemoteAccess => NakCode::RemoteAccess,
            Fault::RemoteOperational => NakCode::RemoteOperational,
        }
    }

    fn counter(self) -> Counter {
        match self {
            Fault::InvalidRequest => Counter::RespInvalidRequest,
            Fault::RemoteAccess => Counter::RespRemoteAccess,
            Fault::RemoteOperational => Counter::RespRemoteOperation,
        }
    }
}

/// The receiving half of an RC QP.
///
/// ACKs are coalesced: one ACK covers all packets that arrive between two calls of
/// [`Responder::transmit`]. Responses are sent in PSN order: an ACK or NAK waits until the READs
/// before it are answered.
#[derive(Debug)]
pub struct Responder {
    config: ResponderConfig,
    /// Expected PSN, unwrapped.
    expected: u64,
    /// Messages completed.
    msn: u64,
    message: Message,
    outstanding: Outstanding,
    acknowledgement: Acknowledgement,
    fault: Option<Fault>,
}

/// Snapshot of a responder for reports.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ResponderSnapshot {
    /// Expected PSN.
    pub expected: Psn,
    /// Messages completed.
    pub msn: Msn,
    /// READs and atomics to answer.
    pub reads: u32,
    /// A sequence or RNR NAK was raised for the expected PSN, which has not arrived since.
    pub gap_open: bool,
}

impl Responder {
    /// Creates a responder for a new connection.
    pub fn new(config: ResponderConfig) -> Self {
        let first = SEQUENCE_BASE + u64::from(config.rq_psn.get());
        Responder {
            expected: first,
            msn: 0,
            message: Message::None,
            outstanding: Outstanding::default(),
            acknowledgement: Acknowledgement::new(first),
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

    /// Changes the maximum of READs and atomics that the peer may have outstanding.
    pub fn set_max_dest_rd_atomic(&mut self, max_dest_rd_atomic: u32) {
        self.config.max_dest_rd_atomic = max_dest_rd_atomic;
    }

    /// True when READs or atomics wait for their responses.
    #[inline]
    pub fn is_answering(&self) -> bool {
        !self.outstanding.is_empty()
    }

    /// Reason why the responder has failed, if it has.
    #[inline]
    pub fn fault(&self) -> Option<Fault> {
        self.fault
    }

    /// Snapshot for reports.
    pub fn snapshot(&self) -> ResponderSnapshot {
        ResponderSnapshot {
            expected: Psn::from_sequence(self.expected),
            msn: Msn::new(self.msn as u32),
            reads: self.outstanding.len() as u32,
            gap_open: self.acknowledgement.gap_is_open(),
        }
    }

    /// Handles a request packet. Receives are taken from `queue`. The receive of a message stays
    /// taken between calls, until the message ends, [`Responder::flush`] or [`Responder::release`].
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
            ctx.counters().add(DropReason::OutOfSequence, end - psn);
            self.acknowledgement.out_of_sequence(end - 1);
            return;
        }
        if end <= self.expected {
            ctx.counters().add(Counter::DuplicateRequest, end - psn);
            self.handle_duplicate(psn, packet, bth, payload, ctx);
            return;
        }
        ctx.counters().add(Counter::DuplicateRequest, self.expected - psn);
        let count = end - self.expected;
        if let Err(refusal) = self.take(packet, bth, payload, count as u32, queue, ctx) {
            self.refuse(refusal, ctx);
        }
    }

    /// Handles the last `count` packets of a train, or one packet, from the expected PSN.
    fn take<C: Context>(
        &mut self,
        packet: &Packet<'_>,
        bth: &Bth,
        payload: &Payload<'_>,
        count: u32,
        queue: &mut RecvQueue,
        ctx: &mut C,
    ) -> Result<(), Refusal> {
        let verb = bth.opcode.verb();
        let position = bth.opcode.position();
        let begins = matches!(position, Position::First | Position::Only);
        let continues = match (self.message, verb) {
            (Message::None, Some(_)) => begins && bth.opcode.is_request(),
            (Message::Send(_), Some(Verb::Send)) | (Message::Write(_), Some(Verb::Write)) => {
                !begins
            }
            _ => false,
        };
        let len = payload.len() as u32;
        let has_right_length = match verb {
            Some(Verb::Send | Verb::Write) => self.config.mtu.admits(position, len),
            _ => len == 0,
        };
        if !continues || !has_right_length {
            return Err(Fault::InvalidRequest.into());
        }
        let payload = match *payload {
            Payload::Train { len, .. } => &Payload::Synthetic { len: len * count as usize },
            _ => payload,
        };
        match verb {
            Some(Verb::Send) => self.take_send(packet, bth, payload, queue, ctx)?,
            Some(Verb::Write) => self.take_write(packet, bth, payload, queue, ctx)?,
            Some(Verb::ReadRequest) => return self.take_read(packet, ctx),
            _ => return self.take_atomic(packet, bth, ctx),
        }
        self.expected += u64::from(count);
        let (end, every) = (self.expected, self.config.ack_every);
        self.acknowledgement.taken(end, count, bth.ack_request, every);
        Ok(())
    }

    #[cold]
    fn handle_duplicate<C: Context>(
        &mut self,
        psn: u64,
        packet: &Packet<'_>,
        bth: &Bth,
        payload: &Payload<'_>,
        ctx: &mut C,
    ) {
        let is_taken = match bth.opcode.verb() {
            Some(Verb::Send | Verb::Write) => {
                self.acknowledgement.owe_ack();
                true
            }
            Some(Verb::ReadRequest) if payload.is_empty() => {
                packet.reth().is_some_and(|reth| self.take_duplicate_read(psn, &reth, ctx))
            }
            Some(Verb::CmpSwap | Verb::FetchAdd) => self.take_duplicate_atomic(psn),
            _ => {
                ctx.counters().count(DropReason::Opcode);
                return;
            }
        };
        if !is_taken {
            ctx.counters().count(DropReason::DuplicateRead);
        }
    }

    #[cold]
    fn refuse<C: Context>(&mut self, refusal: Refusal, ctx: &mut C) {
        match refusal {
            Refusal::NotReady => {
                ctx.counters().count(Counter::TxRnrNak);
                self.acknowledgement.not_ready(self.config.min_rnr_timer);
            }
            Refusal::Fatal(fault) => self.fail(fault, ctx),
        }
    }

    fn fail<C: Context>(&mut self, fault: Fault, ctx: &mut C) {
        ctx.counters().count(fault.counter());
        self.acknowledgement.fail(fault);
        self.fault = Some(fault);
    }

    /// Completes the receive of the message being received, if any, with a flush error. Responses
    /// that are due are still sent; the caller passes no further requests.
    pub fn flush<C: Context>(&mut self, queue: &mut RecvQueue, ctx: &mut C) {
        self.end_receive(Status::WrFlush, queue, ctx);
    }

    /// Returns the receive of the message being received, if any, without a completion.
    pub fn release(&mut self, queue: &mut RecvQueue) {
        if let Message::Send(send) = std::mem::replace(&mut self.message, Message::None) {
            queue.release(send.into);
        }
    }
}
