//! Responses: READ responses and atomic ACKs first, in PSN order, then ACKs and NAKs.

use super::acknowledgement::{Nak, Reply};
use super::outstanding::{Answer, Request};
use super::{Fault, Responder};
use longhaul_node::{Frame, Payload, Segment, Trailer};
use longhaul_units::{Msn, Psn, RKey};
use longhaul_wire::{Aeth, AtomicAckEth, Bth, Head, Opcode, PathTemplate, Syndrome, credit_code};
use longhaul_work::{Context, Counter, Emit, RecvQueue, RemoteIntent};

impl Responder {
    /// True when [`Responder::transmit`] would send something.
    #[inline]
    pub fn can_transmit(&self) -> bool {
        !self.outstanding.is_empty() || self.acknowledgement.is_owed()
    }

    /// Sends one packet, if any. The caller has granted room. Returns `true` if a packet was sent.
    pub fn transmit<C: Context>(
        &mut self,
        queue: &RecvQueue,
        ctx: &mut C,
        template: &PathTemplate,
        emit: &mut impl Emit,
    ) -> bool {
        if let Some(&request) = self.outstanding.oldest() {
            let sent = match request.answer {
                Answer::Read { address, rkey, len } => self.send_read_response(
                    &request,
                    (address, rkey, len),
                    queue,
                    ctx,
                    template,
                    emit,
                ),
                Answer::Atomic { original } => {
                    self.send_atomic_ack(&request, original, queue, template, emit);
                    Ok(1)
                }
            };
            match sent {
                Ok(count) => {
                    self.sent(&request, count);
                    return true;
                }
                Err(fault) => {
                    // The region went away. Later requests cannot be answered either.
                    self.outstanding.clear();
                    self.expected = request.cursor;
                    self.fail(fault, ctx);
                }
            }
        }
        self.send_acknowledge(queue, ctx, template, emit)
    }

    /// Sends an ACK or a NAK, if one is owed.
    fn send_acknowledge<C: Context>(
        &mut self,
        queue: &RecvQueue,
        ctx: &mut C,
        template: &PathTemplate,
        emit: &mut impl Emit,
    ) -> bool {
        let (psn, syndrome) = match self.acknowledgement.take(self.expected) {
            None => return false,
            Some(Reply::Ack { end }) => (end - 1, self.ack_syndrome(queue)),
            Some(Reply::Nak(nak)) => {
                if nak == Nak::Sequence {
                    ctx.counters().count(Counter::TxSequenceNak);
                }
                (self.expected, nak.syndrome())
            }
        };
        ctx.counters().count(Counter::TxAcks);
        let mut head = Head::begin(template, &self.bth(Opcode::RC_ACK, psn));
        head.push_aeth(&Aeth { syndrome, msn: Msn::new(self.msn as u32) });
        emit_empty(head, template, emit);
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

    /// Sends the next response to a READ, or a train of them; returns how many.
    fn send_read_response<C: Context>(
        &self,
        request: &Request,
        (address, rkey, read_len): (u64, RKey, u32),
        queue: &RecvQueue,
        ctx: &C,
        template: &PathTemplate,
        emit: &mut impl Emit,
    ) -> Result<u64, Fault> {
        let Request { first, end, cursor, .. } = *request;
        let mtu = self.config.mtu.bytes();
        let offset = (cursor - first) as u32 * mtu;
        let len = (read_len - offset).min(mtu);
        let (is_first, is_last) = (cursor == first, cursor + 1 == end);
        let opcode = match (is_first, is_last) {
            (true, true) => Opcode::RC_READ_RESPONSE_ONLY,
            (true, false) => Opcode::RC_READ_RESPONSE_FIRST,
            (false, false) => Opcode::RC_READ_RESPONSE_MIDDLE,
            (false, true) => Opcode::RC_READ_RESPONSE_LAST,
        };
        let mut head = Head::begin(template, &self.bth(opcode, cursor));
        if opcode.has_aeth() {
            head.push_aeth(&Aeth { syndrome: self.ack_syndrome(queue), msn: request.msn });
        }
        if len == 0 {
            emit_empty(head, template, emit);
            return Ok(1);
        }
        let pad_len = head.finish(template, len as usize);
        let (head, trailer) = (head.bytes(), Trailer::Sealed { pad_len });
        // Middle responses differ in nothing but their PSN.
        let train_max = if is_first || is_last { 1 } else { emit.train_max() };
        let count = u64::from(train_max).min(end - 1 - cursor).max(1);
        let at = address.wrapping_add(u64::from(offset));
        let address = ctx
            .remote(rkey, at, u64::from(len) * count, RemoteIntent::Read)
            .map_err(|_| Fault::RemoteAccess)?;
        let piece = [Segment { address, len: len as usize }];
        let payload = match count {
            1 => Payload::Memory(ctx.gather(), &piece),
            count => Payload::Train { len: len as usize, count: count as u32 },
        };
        emit.emit(&Frame { head, payload, trailer });
        Ok(count)
    }

    fn send_atomic_ack(
        &self,
        request: &Request,
        original: u64,
        queue: &RecvQueue,
        template: &PathTemplate,
        emit: &mut impl Emit,
    ) {
        let mut head = Head::begin(template, &self.bth(Opcode::RC_ATOMIC_ACK, request.cursor));
        head.push_aeth(&Aeth { syndrome: self.ack_syndrome(queue), msn: request.msn });
        head.push_atomic_ack(&AtomicAckEth { original });
        emit_empty(head, template, emit);
    }

    /// `count` responses to the oldest request were sent. The last response to the latest request
    /// acknowledges everything.
    #[inline]
    fn sent(&mut self, request: &Request, count: u64) {
        if self.outstanding.sent(count) && request.end == self.expected {
            self.acknowledgement.settle();
        }
    }
}

/// Emits a packet without payload.
fn emit_empty(mut head: Head, template: &PathTemplate, emit: &mut impl Emit) {
    let pad_len = head.finish(template, 0);
    emit.emit(&Frame {
        head: head.bytes(),
        payload: Payload::EMPTY,
        trailer: Trailer::Sealed { pad_len },
    });
}
