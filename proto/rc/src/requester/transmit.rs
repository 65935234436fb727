//! Sends requests: decides whether one may be sent, and builds its packets.

use super::repair::Repair;
use super::{Requester, WINDOW_MAX};
use longhaul_node::{Frame, Payload, Trailer};
use longhaul_units::{Instant, Psn};
use longhaul_wire::{AtomicEth, Bth, Head, Opcode, PathTemplate, Reth, Transport, Verb};
use longhaul_work::{Context, Counter, Emit, Intent, SendWqe, Status};

impl Requester {
    /// `true` if [`Requester::transmit`] would send something.
    #[inline]
    pub fn can_transmit(&self, now: Instant) -> bool {
        if self.cursor.current == self.queue.tail()
            || self.failed
            || self.readiness.until().is_some_and(|t| t > now)
        {
            return false;
        }
        let wqe = self.queue.get(self.cursor.current);
        let outstanding = self.outstanding();
        if outstanding >= u64::from(self.window)
            || self.cursor.current - self.queue.done() >= u64::from(self.config.window_messages)
        {
            return false;
        }
        if wqe.awaits_response() {
            if self.cursor.reads >= self.config.max_rd_atomic
                || wqe.end_psn - self.una > u64::from(WINDOW_MAX)
            {
                return false;
            }
        } else if let Some(limit) = self.credit_limit
            && wqe.consumes_receive()
            && self.cursor.current >= limit
            && self.una <= wqe.first_psn
            && outstanding > 0
        {
            // Out of credits: a single packet may be outstanding, as a probe.
            return false;
        }
        let begins = self.cursor.next == wqe.first_psn;
        !(begins
            && ((wqe.fence && self.cursor.reads > 0)
                || (self.paused && self.cursor.next == self.sent)))
    }

    /// Sends one packet, if any. The caller has granted room. Returns `true` if a packet was sent.
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
        self.readiness.end_wait();
        if self.repair == (Repair::Probing { first_due: true }) {
            return self.send_first(now, ctx, template, emit);
        }
        let psn = self.cursor.next;
        let is_unasked = self.cursor.asked <= self.una;
        let is_question = self.queue.get(self.cursor.current).awaits_response();
        let built = if is_question {
            self.send_read_or_atomic(ctx, template, emit)
        } else {
            self.send_data(ctx, template, emit)
        };
        if !built {
            // Completions are in order, so the failure waits for all earlier work requests. Packets
            // of this one need no ACK: none had an AckReq.
            if self.queue.done() == self.cursor.current {
                self.fail(ctx, Status::LocalProtection);
            }
            return false;
        }
        if psn < self.sent {
            ctx.counters().add(Counter::TxRetransmits, self.cursor.next.min(self.sent) - psn);
        } else if self.timed.is_none() && self.cursor.asked == self.cursor.next {
            // A READ is answered by its first response.
            self.timed = Some((if is_question { psn + 1 } else { self.cursor.next }, now));
        }
        self.sent = self.sent.max(self.cursor.next);
        if is_unasked {
            self.timer.restart(now, self.timeout());
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
        let turn = self.cursor;
        (self.cursor.next, self.cursor.current) = (self.una, self.queue.done());
        let built = if self.queue.get(self.cursor.current).awaits_response() {
            self.send_read_or_atomic(ctx, template, emit)
        } else {
            self.send_data(ctx, template, emit)
        };
        let packets = self.cursor.next - self.una;
        self.cursor = turn;
        if !built {
            self.fail(ctx, Status::LocalProtection);
            return false;
        }
        ctx.counters().add(Counter::TxRetransmits, packets);
        self.timer.restart(now, self.timeout());
        true
    }

    fn bth(&self, opcode: Opcode) -> Bth {
        let mut bth = Bth::new(opcode, self.config.dest_qpn, Psn::from_sequence(self.cursor.next));
        bth.migreq = self.config.migreq;
        bth.pkey = self.config.pkey;
        bth
    }

    /// Sends a READ, for the responses that are missing, or an atomic. Returns `false` if the
    /// result cannot be placed in memory.
    fn send_read_or_atomic<C: Context>(
        &mut self,
        ctx: &mut C,
        template: &PathTemplate,
        emit: &mut impl Emit,
    ) -> bool {
        if self.queue.check(self.cursor.current, Intent::LocalWrite, ctx).is_err() {
            return false;
        }
        let next = self.cursor.next;
        let wqe = self.queue.get(self.cursor.current);
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
        let wqe = self.queue.get_mut(self.cursor.current);
        wqe.restart_psn = next;
        self.cursor.next = wqe.end_psn;
        self.cursor.asked = self.cursor.next;
        self.cursor.current += 1;
        self.cursor.reads += 1;
        self.cursor.since_ack_request = 0;
        true
    }

    /// Packets from one AckReq to the next.
    pub(super) fn ack_request_every(&self) -> u32 {
        self.config.ack_request_every.min(self.window)
    }

    /// Number of packets from the next one, a middle packet of a message, that differ only in their
    /// PSN: none ends the message or has an AckReq.
    fn uniform_packets(&self, wqe: &SendWqe) -> u32 {
        if self.credit_limit.is_some() {
            return 1;
        }
        let in_message = wqe.end_psn - 1 - self.cursor.next;
        let in_window = u64::from(self.window).saturating_sub(self.cursor.next - self.una + 1);
        let unasked = self.ack_request_every().saturating_sub(self.cursor.since_ack_request + 1);
        in_message.min(in_window).min(u64::from(unasked)).max(1) as u32
    }

    fn send_data<C: Context>(
        &mut self,
        ctx: &mut C,
        template: &PathTemplate,
        emit: &mut impl Emit,
    ) -> bool {
        let wqe = self.queue.get(self.cursor.current);
        let mtu = self.config.mtu.bytes();
        let offset = (self.cursor.next - wqe.first_psn) * u64::from(mtu);
        let len = (u64::from(wqe.len) - offset).min(u64::from(mtu)) as u32;
        let first = self.cursor.next == wqe.first_psn;
        let last = self.cursor.next + 1 == wqe.end_psn;
        // A message of several packets is checked before its first: if it failed half-way, its
        // packets would never be acknowledged. A single packet is checked when it is emitted.
        if first && !last && self.queue.check(self.cursor.current, Intent::LocalRead, ctx).is_err()
        {
            return false;
        }
        let mut bth = self.bth(wqe.opcode(Transport::Rc, first, last));
        bth.solicited = last && wqe.solicited && wqe.consumes_receive();
        bth.ack_request = last
            || self.cursor.since_ack_request + 1 >= self.ack_request_every()
            || (self.config.ack_request_at_window_end
                && self.cursor.next + 1 - self.una >= u64::from(self.window))
            || (self.una == self.cursor.next && self.credit_limit.is_some());
        let mut head = Head::begin(template, &bth);
        wqe.push_headers(&mut head, first, last);
        let pad_len = head.finish(template, len as usize);
        let train_max = if first || last { 1 } else { emit.train_max() };
        let count = if train_max > 1 { self.uniform_packets(wqe).min(train_max) } else { 1 };
        if count > 1 {
            let payload = Payload::Train { len: len as usize, count };
            emit.emit(&Frame { head: head.bytes(), payload, trailer: Trailer::Sealed { pad_len } });
        } else if self
            .queue
            .emit(self.cursor.current, (offset, len), (head.bytes(), pad_len), ctx, emit)
            .is_err()
        {
            return false;
        }
        self.cursor.next += u64::from(count);
        if bth.ack_request {
            self.cursor.since_ack_request = 0;
            self.cursor.asked = self.cursor.next;
        } else {
            self.cursor.since_ack_request += count;
        }
        self.cursor.current += u64::from(last);
        true
    }
}
