//! Repair of losses: NAKs, timeouts, probes and going back.

use super::cursor::Cursor;
use super::{Readiness, Requester, Retries};
use longhaul_units::Instant;
use longhaul_wire::rnr_timer;
use longhaul_work::{Context, Counter, DropReason, Status};

/// Packets that may be outstanding, however often the responder was not ready.
const RNR_WINDOW_MIN: u32 = 4;

/// Progress of a loss's repair; an acknowledgement ends it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Repair {
    /// Nothing has been retransmitted since the last progress.
    None,
    /// The first and the last outstanding packet are retransmitted, to learn what the responder
    /// has.
    Probing {
        /// Whether the first is still to be sent.
        first_due: bool,
    },
    /// All unacknowledged packets are being retransmitted. Further NAKs for the same gap are
    /// ignored.
    GoingBack,
}

impl Requester {
    /// A sequence NAK arrived.
    pub(super) fn sequence_nak<C: Context>(&mut self, ctx: &mut C) {
        if self.repair == Repair::GoingBack {
            ctx.counters().count(DropReason::NakIgnored);
            return;
        }
        ctx.counters().count(Counter::PacketSeqErr);
        self.repair_gap(ctx);
    }

    /// A response passed an outstanding READ or atomic: its response was lost.
    pub(super) fn implied_nak<C: Context>(&mut self, ctx: &mut C) {
        if self.repair == Repair::GoingBack {
            return;
        }
        ctx.counters().count(Counter::ImpliedNakSeqErr);
        self.repair_gap(ctx);
    }

    /// The oldest unacknowledged packet is missing. The answer to a probe costs no second retry.
    fn repair_gap<C: Context>(&mut self, ctx: &mut C) {
        if matches!(self.repair, Repair::Probing { .. }) || self.retries.take() {
            self.go_back();
        } else {
            self.give_up(ctx);
        }
    }

    /// The local ACK timer has expired.
    pub(super) fn answer_timeout<C: Context>(&mut self, now: Instant, ctx: &mut C) {
        if !self.retries.take_timeout(&self.config) {
            return self.give_up(ctx);
        }
        if self.outstanding() > u64::from(self.config.probe_above) {
            self.probe();
            if self.can_transmit(now) {
                return;
            }
        }
        self.go_back();
    }

    /// An RNR NAK arrived.
    pub(super) fn not_ready<C: Context>(&mut self, now: Instant, timer_code: u8, ctx: &mut C) {
        if self.readiness.until().is_some() {
            ctx.counters().count(DropReason::NakIgnored);
            return;
        }
        ctx.counters().count(Counter::RxRnrNak);
        if !self.retries.take_rnr(&self.config) {
            ctx.counters().count(Counter::RnrNakRetryErr);
            self.fail(ctx, Status::RnrRetryExceeded);
            return;
        }
        self.shrink_window();
        self.readiness.wait(now, rnr_timer(timer_code));
        self.go_back();
    }

    /// Halves the window: retransmissions to a responder that stays not ready take a shared link's
    /// capacity from others.
    #[cold]
    fn shrink_window(&mut self) {
        let outstanding = self.outstanding().min(u64::from(self.window)) as u32;
        self.window = (outstanding / 2).max(RNR_WINDOW_MIN.min(self.window));
    }

    /// Fails: no retry is left.
    fn give_up<C: Context>(&mut self, ctx: &mut C) {
        ctx.counters().count(Counter::RetryExceededErr);
        self.fail(ctx, Status::RetryExceeded);
    }

    /// Progress: everything before `to` is acknowledged.
    #[inline]
    pub(super) fn progress(&mut self, to: u64) {
        if self.window < self.config.window_packets {
            self.grow_window(to - self.una);
        }
        self.una = to;
        self.retries = Retries::full(&self.config);
        self.repair = Repair::None;
        self.readiness = Readiness::Ready;
    }

    /// Doubles the window within a round trip, as slow start does.
    #[cold]
    fn grow_window(&mut self, packets: u64) {
        let grown = u64::from(self.window) + packets;
        self.window = grown.min(u64::from(self.config.window_packets)) as u32;
    }

    /// Retransmits the last packet, with an AckReq, and before it the first. A responder that has
    /// all packets repeats its latest ACK. One that misses a packet in between sends a NAK; if that
    /// NAK was lost, it sends none before the first packet arrives.
    fn probe(&mut self) {
        self.cursor.current -= u64::from(self.is_between_messages());
        let wqe = self.queue.get(self.cursor.current);
        if wqe.awaits_response() {
            self.cursor.next = wqe.first_psn.max(self.una);
            self.cursor.reads -= 1;
        } else {
            self.cursor.next -= 1;
        }
        self.repair = Repair::Probing { first_due: self.cursor.next > self.una };
        self.cursor.asked = self.una;
        self.timer.stop();
        self.cursor.since_ack_request = self.ack_request_every();
    }

    /// Retransmits from the oldest unacknowledged PSN.
    fn go_back(&mut self) {
        self.cursor = Cursor::at(self.una, self.queue.done());
        self.repair = Repair::GoingBack;
        // An answer may belong to any of the transmissions.
        self.timed = None;
        self.timer.stop();
    }
}
