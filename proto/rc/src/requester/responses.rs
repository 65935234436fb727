//! What comes back: ACKs, NAKs, READ responses and atomic ACKs, and the repair that they start.

use super::{Repair, Requester};
use longhaul_node::Payload;
use longhaul_units::{Duration, Instant, Msn, Psn};
use longhaul_wire::{
    Aeth, NakCode, Opcode, Position, Syndrome, Verb, credits, rnr_backoff, rnr_timer,
};
use longhaul_work::{Context, Counter, DropReason, Status, scatter_list};

/// Packets that may be outstanding, however often the responder was not ready.
const RNR_WINDOW_MIN: u32 = 4;

impl Requester {
    /// Takes an ACK, RNR NAK or NAK.
    pub fn handle_ack<C: Context>(&mut self, now: Instant, psn: Psn, aeth: &Aeth, ctx: &mut C) {
        let Some(psn) = self.locate(psn, ctx) else {
            return;
        };
        if psn < self.una {
            if psn + 1 == self.una {
                // The latest ACK again: it may bring credits.
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
                if psn < self.queue.get(self.done).end_psn {
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

    /// Takes a READ response, or a train of them.
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
        // Of a train, what is before has come already.
        let end = psn + count;
        let psn = psn.max(self.una);
        let wqe = self.queue.get(self.done);
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
        if scatter_list(ctx, self.queue.segments(self.done), offset, payload).is_err() {
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

    /// Takes the response to an atomic.
    pub fn handle_atomic_ack<C: Context>(
        &mut self,
        now: Instant,
        psn: Psn,
        aeth: &Aeth,
        original: u64,
        ctx: &mut C,
    ) {
        let Some(psn) = self.locate_response(now, psn, 1, ctx) else { return };
        let is_atomic = matches!(self.queue.get(self.done).verb, Verb::CmpSwap | Verb::FetchAdd);
        if !is_atomic || !matches!(aeth.syndrome, Syndrome::Ack { .. }) {
            ctx.counters().count(Counter::ReqBadResponse);
            self.fail(ctx, Status::BadResponse);
            return;
        }
        let bytes = original.to_ne_bytes();
        if scatter_list(ctx, self.queue.segments(self.done), 0, &Payload::Bytes(&bytes)).is_err() {
            self.fail(ctx, Status::LocalProtection);
            return;
        }
        self.learn_credits(aeth);
        self.progress(psn + 1);
        self.complete_oldest(ctx);
        self.settle(now, ctx);
    }

    /// The sequence number of a READ response or atomic ACK, the first of `count`, with everything
    /// before it acknowledged; the next of them lies in the oldest work request. `None` when none
    /// is the next of its kind.
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
            ctx.counters().add(DropReason::GhostAck.counter(), before);
            return (before < count).then_some(psn);
        }
        if self.advance(now, psn, ctx) {
            ctx.counters().add(DropReason::ResponseGap.counter(), count);
            self.implied_nak(ctx);
            return None;
        }
        Some(psn)
    }

    /// The sequence number of a response. Counts and refuses what was never sent.
    fn locate<C: Context>(&self, psn: Psn, ctx: &mut C) -> Option<u64> {
        let sequence = psn.unwrap_near(self.una).filter(|&s| s < self.sent && !self.failed);
        if sequence.is_none() {
            ctx.counters().count(DropReason::UnsentAck);
        }
        sequence
    }

    /// Acknowledges everything before `to`, up to an outstanding READ or atomic. True when one
    /// stood in the way.
    fn advance<C: Context>(&mut self, now: Instant, to: u64, ctx: &mut C) -> bool {
        let mut passed_read = false;
        let before = self.una;
        while self.una < to {
            let wqe = self.queue.get(self.done);
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

    #[inline]
    fn progress(&mut self, to: u64) {
        if self.window < self.config.window_packets {
            self.grow_window(to - self.una);
        }
        self.una = to;
        self.retries_left = self.config.retry_cnt;
        self.rnr_left = self.config.rnr_retry;
        self.repair = Repair::None;
        self.rnr_until = None;
        self.not_ready_since = None;
    }

    /// Doubles the window within a round trip, as slow start does.
    #[cold]
    fn grow_window(&mut self, packets: u64) {
        let grown = u64::from(self.window) + packets;
        self.window = grown.min(u64::from(self.config.window_packets)) as u32;
    }

    fn complete_oldest<C: Context>(&mut self, ctx: &mut C) {
        let wqe = self.queue.get(self.done);
        if wqe.awaits_response() && self.done < self.current {
            self.reads -= 1;
        }
        if wqe.signaled {
            ctx.complete_send(wqe.completion(
                Status::Success,
                self.config.qpn,
                self.config.dest_qpn,
            ));
        }
        self.done += 1;
    }

    /// After progress: acknowledged packets need no retransmission, and the timer restarts.
    fn settle<C: Context>(&mut self, now: Instant, ctx: &mut C) {
        if let Some((end, at)) = self.timed
            && self.una >= end
        {
            self.timed = None;
            ctx.note_answer_delay(now.since(at));
        }
        if self.next < self.una {
            self.next = self.una;
            self.current = self.done;
            self.reads = 0;
        }
        self.timer_at = if self.una < self.next { self.timeout().map(|t| now + t) } else { None };
    }

    fn learn_credits(&mut self, aeth: &Aeth) {
        let Syndrome::Ack { credit_code } = aeth.syndrome else { return };
        if !self.config.obey_credits {
            return;
        }
        self.credit_limit = credits(credit_code).map(|n| {
            let distance = i64::from(aeth.msn.since(Msn::new(self.done as u32)));
            self.done.saturating_add_signed(distance) + u64::from(n)
        });
    }

    fn sequence_nak<C: Context>(&mut self, ctx: &mut C) {
        if self.repair == Repair::GoingBack {
            ctx.counters().count(DropReason::NakIgnored);
            return;
        }
        ctx.counters().count(Counter::PacketSeqErr);
        self.repair_gap(ctx);
    }

    fn implied_nak<C: Context>(&mut self, ctx: &mut C) {
        if self.repair == Repair::GoingBack {
            return;
        }
        ctx.counters().count(Counter::ImpliedNakSeqErr);
        self.repair_gap(ctx);
    }

    /// The responder misses the oldest unacknowledged packet. The answer to a probe costs no second
    /// retry.
    fn repair_gap<C: Context>(&mut self, ctx: &mut C) {
        if matches!(self.repair, Repair::Probing { .. }) || self.take_retry(ctx) {
            self.go_back();
        }
    }

    /// The local ACK timer has expired.
    pub(super) fn answer_timeout<C: Context>(&mut self, now: Instant, ctx: &mut C) {
        if !self.take_retry(ctx) {
            return;
        }
        if self.next - self.una > u64::from(self.config.probe_above) {
            self.probe();
            if self.can_transmit(now) {
                return;
            }
        }
        self.go_back();
    }

    fn not_ready<C: Context>(&mut self, now: Instant, timer_code: u8, ctx: &mut C) {
        if self.rnr_until.is_some() {
            ctx.counters().count(DropReason::NakIgnored);
            return;
        }
        ctx.counters().count(Counter::RxRnrNak);
        if self.config.rnr_retry != 7 {
            if self.rnr_left == 0 {
                ctx.counters().count(Counter::RnrNakRetryErr);
                self.fail(ctx, Status::RnrRetryExceeded);
                return;
            }
            self.rnr_left -= 1;
        }
        self.back_off(now, rnr_timer(timer_code));
        self.go_back();
    }

    /// Asks a responder that stays not ready less often, and with fewer packets: they take a shared
    /// link's capacity from others.
    #[cold]
    fn back_off(&mut self, now: Instant, timer: Duration) {
        let outstanding = (self.next - self.una).min(u64::from(self.window)) as u32;
        self.window = (outstanding / 2).max(RNR_WINDOW_MIN.min(self.window));
        let since = *self.not_ready_since.get_or_insert(now);
        self.rnr_until = Some(now + rnr_backoff(timer, now.since(since)));
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

    /// Takes one of the retries; without any left, the requester fails.
    fn take_retry<C: Context>(&mut self, ctx: &mut C) -> bool {
        if self.retries_left == 0 {
            ctx.counters().count(Counter::RetryExceededErr);
            self.fail(ctx, Status::RetryExceeded);
            return false;
        }
        self.retries_left -= 1;
        true
    }

    /// Retransmits the last packet, asking for an ACK, and before it the first. A responder that
    /// has all of them repeats its latest ACK; one that misses a packet between sends a NAK; one
    /// whose NAK was lost sends none before the first has come.
    fn probe(&mut self) {
        let between_messages =
            self.current == self.tail || self.next == self.queue.get(self.current).first_psn;
        self.current -= u64::from(between_messages);
        let wqe = self.queue.get(self.current);
        if wqe.awaits_response() {
            self.next = wqe.first_psn.max(self.una);
            self.reads -= 1;
        } else {
            self.next -= 1;
        }
        self.repair = Repair::Probing { first_due: self.next > self.una };
        self.asked = self.una;
        self.timer_at = None;
        self.since_ack_request = self.ack_request_every();
    }

    /// Retransmits from the oldest unacknowledged PSN.
    fn go_back(&mut self) {
        self.next = self.una;
        self.current = self.done;
        self.reads = 0;
        self.repair = Repair::GoingBack;
        // Which transmission an answer would belong to is not known.
        self.timed = None;
        self.asked = self.una;
        self.timer_at = None;
        self.since_ack_request = 0;
    }
}
