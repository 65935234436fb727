//! Responses: ACKs, NAKs, READ responses and atomic ACKs.

use super::Requester;
use longhaul_node::Payload;
use longhaul_units::{Instant, Msn, Psn};
use longhaul_wire::{Aeth, NakCode, Opcode, Position, Syndrome, Verb, credits};
use longhaul_work::{Context, Counter, DropReason, Status, scatter_list};

impl Requester {
    /// Handles an ACK, RNR NAK or NAK.
    pub fn handle_ack<C: Context>(&mut self, now: Instant, psn: Psn, aeth: &Aeth, ctx: &mut C) {
        let Some(psn) = self.locate(psn, ctx) else {
            return;
        };
        if psn < self.una {
            if psn + 1 == self.una {
                // A duplicate of the latest ACK may carry credits.
                self.learn_credits(aeth);
            }
            ctx.counters().count(DropReason::GhostAck);
            return;
        }
        match aeth.syndrome {
            Syndrome::Ack { .. } => {
                let passed_read = self.advance(now, psn + 1, ctx);
                self.learn_credits(aeth);
                ctx.counters().count(Counter::RxAcks);
                if passed_read {
                    self.implied_nak(ctx);
                }
            }
            Syndrome::RnrNak { timer_code } => {
                if self.advance(now, psn, ctx) {
                    self.implied_nak(ctx);
                } else {
                    self.not_ready(now, timer_code, ctx);
                }
            }
            Syndrome::Nak(NakCode::PsnSequence) => {
                if self.advance(now, psn, ctx) {
                    self.implied_nak(ctx);
                } else {
                    self.sequence_nak(ctx);
                }
            }
            Syndrome::Nak(
                code @ (NakCode::InvalidRequest
                | NakCode::RemoteAccess
                | NakCode::RemoteOperational),
            ) => {
                self.advance(now, psn, ctx);
                if psn < self.queue.oldest().end_psn {
                    self.fatal_nak(code, ctx);
                } else {
                    self.implied_nak(ctx);
                }
            }
            Syndrome::Nak(NakCode::InvalidRd) | Syndrome::Reserved(_) => {
                ctx.counters().count(DropReason::Syndrome);
            }
        }
    }

    /// Handles a READ response, or a train of them.
    pub fn handle_read_response<C: Context>(
        &mut self,
        now: Instant,
        psn: Psn,
        opcode: Opcode,
        aeth: Option<&Aeth>,
        payload: &Payload<'_>,
        ctx: &mut C,
    ) {
        let count = u64::from(payload.count());
        let Some(psn) = self.locate_response(now, psn, count, ctx) else { return };
        // The first packets of a train may be duplicates.
        let end = psn + count;
        let psn = psn.max(self.una);
        let wqe = self.queue.oldest();
        let last = end == wqe.end_psn;
        let restarts = psn == wqe.first_psn || psn == wqe.restart_psn;
        let fits = match opcode.position() {
            Position::First => !last && restarts,
            Position::Middle => !last && psn != wqe.first_psn,
            Position::Last => last && psn != wqe.first_psn,
            Position::Only => last && restarts,
        };
        let is_ack = aeth.is_none_or(|a| matches!(a.syndrome, Syndrome::Ack { .. }));
        if wqe.verb != Verb::ReadRequest || !fits || !is_ack {
            ctx.counters().count(Counter::ReqBadResponse);
            self.fail(ctx, Status::BadResponse);
            return;
        }
        let mtu = u64::from(self.config.mtu.bytes());
        let offset = (psn - wqe.first_psn) * mtu;
        let is_within = end <= wqe.end_psn;
        if !is_within || payload.len() as u64 != (u64::from(wqe.len) - offset).min(mtu) {
            self.fail(ctx, Status::LocalLength);
            return;
        }
        let payload = match *payload {
            Payload::Train { len, .. } => &Payload::Synthetic { len: len * (end - psn) as usize },
            _ => payload,
        };
        if scatter_list(ctx, self.queue.segments(self.queue.done()), offset, payload).is_err() {
            self.fail(ctx, Status::LocalProtection);
            return;
        }
        if let Some(aeth) = aeth {
            self.learn_credits(aeth);
        }
        self.progress(end);
        if last {
            self.complete_oldest(ctx);
        }
        self.settle(now, ctx);
    }

    /// Handles the response to an atomic.
    pub fn handle_atomic_ack<C: Context>(
        &mut self,
        now: Instant,
        psn: Psn,
        aeth: &Aeth,
        original: u64,
        ctx: &mut C,
    ) {
        let Some(psn) = self.locate_response(now, psn, 1, ctx) else { return };
        let is_atomic = matches!(self.queue.oldest().verb, Verb::CmpSwap | Verb::FetchAdd);
        if !is_atomic || !matches!(aeth.syndrome, Syndrome::Ack { .. }) {
            ctx.counters().count(Counter::ReqBadResponse);
            self.fail(ctx, Status::BadResponse);
            return;
        }
        let bytes = original.to_ne_bytes();
        if scatter_list(ctx, self.queue.segments(self.queue.done()), 0, &Payload::Bytes(&bytes))
            .is_err()
        {
            self.fail(ctx, Status::LocalProtection);
            return;
        }
        self.learn_credits(aeth);
        self.progress(psn + 1);
        self.complete_oldest(ctx);
        self.settle(now, ctx);
    }

    /// The unwrapped PSN of a READ response or atomic ACK, the first of `count`; acknowledges all
    /// packets before it. The first response that is no duplicate belongs to the oldest work
    /// request. `None` if all are duplicates, or if a response before them is missing.
    fn locate_response<C: Context>(
        &mut self,
        now: Instant,
        psn: Psn,
        count: u64,
        ctx: &mut C,
    ) -> Option<u64> {
        let psn = self.locate(psn, ctx)?;
        let before = self.una.saturating_sub(psn).min(count);
        if before > 0 {
            ctx.counters().add(DropReason::GhostAck, before);
            return (before < count).then_some(psn);
        }
        if self.advance(now, psn, ctx) {
            ctx.counters().add(DropReason::ResponseGap, count);
            self.implied_nak(ctx);
            return None;
        }
        Some(psn)
    }

    /// The unwrapped PSN of a response. `None`, and counted, if that PSN was never sent.
    fn locate<C: Context>(&self, psn: Psn, ctx: &mut C) -> Option<u64> {
        let sequence = psn.unwrap_near(self.una).filter(|&s| s < self.sent && !self.failed);
        if sequence.is_none() {
            ctx.counters().count(DropReason::UnsentAck);
        }
        sequence
    }

    /// Acknowledges everything before `to`, up to an outstanding READ or atomic. Returns `true` if
    /// there is one before `to`.
    fn advance<C: Context>(&mut self, now: Instant, to: u64, ctx: &mut C) -> bool {
        let mut passed_read = false;
        let before = self.una;
        while self.una < to {
            let wqe = self.queue.oldest();
            if wqe.awaits_response() {
                passed_read = true;
                break;
            }
            let end = wqe.end_psn;
            self.progress(end.min(to));
            if end <= to {
                self.complete_oldest(ctx);
            }
        }
        if self.una != before {
            self.settle(now, ctx);
        }
        passed_read
    }

    fn complete_oldest<C: Context>(&mut self, ctx: &mut C) {
        let wqe = self.queue.oldest();
        if wqe.awaits_response() && self.queue.done() < self.cursor.current {
            self.cursor.reads -= 1;
        }
        if wqe.signaled {
            ctx.complete_send(wqe.completion(
                Status::Success,
                self.config.qpn,
                self.config.dest_qpn,
            ));
        }
        self.queue.pop();
    }

    /// After progress: skips packets that need no retransmission, restarts the timer, and records
    /// the answer's delay.
    fn settle<C: Context>(&mut self, now: Instant, ctx: &mut C) {
        if let Some((end, at)) = self.timed
            && self.una >= end
        {
            self.timed = None;
            ctx.note_answer_delay(now.since(at));
        }
        if self.cursor.next < self.una {
            self.cursor.next = self.una;
            self.cursor.current = self.queue.done();
            self.cursor.reads = 0;
        }
        let timeout = if self.una < self.cursor.next { self.timeout() } else { None };
        self.timer.restart(now, timeout);
    }

    fn learn_credits(&mut self, aeth: &Aeth) {
        let Syndrome::Ack { credit_code } = aeth.syndrome else { return };
        if !self.config.obey_credits {
            return;
        }
        self.credit_limit = credits(credit_code).map(|n| {
            let distance = i64::from(aeth.msn.since(Msn::new(self.queue.done() as u32)));
            self.queue.done().saturating_add_signed(distance) + u64::from(n)
        });
    }

    fn fatal_nak<C: Context>(&mut self, code: NakCode, ctx: &mut C) {
        let (counter, status) = match code {
            NakCode::RemoteAccess => (Counter::ReqRemoteAccess, Status::RemoteAccess),
            NakCode::RemoteOperational => (Counter::ReqRemoteOperation, Status::RemoteOperation),
            _ => (Counter::ReqRemoteInvalidRequest, Status::RemoteInvalidRequest),
        };
        ctx.counters().count(counter);
        self.fail(ctx, status);
    }
}
