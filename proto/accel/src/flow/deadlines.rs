//! The deadlines of a flow, and what happens when they pass.

use super::Flow;
use super::requester::Requester;
use super::responder::Responder;
use crate::Config;
use crate::shared::AccelShared;
use longhaul_node::Deadline;
use longhaul_units::{Duration, Instant};

/// Bytes of memory to acknowledge when none were acknowledged for [`Flow::ack_hold`] because the
/// responder is too far behind: they restart the requester's timer and retry counter.
const TRICKLE_BYTES: u64 = 64 << 10;

impl Flow {
    /// When to call [`Flow::handle_timeout`] next.
    #[inline]
    pub(crate) fn deadline(&self, config: &Config) -> Option<Deadline> {
        if !self.delivers() {
            return None;
        }
        let Responder { retransmission, pace, .. } = &self.responder;
        let Requester { allowance, replay, missing, .. } = &self.requester;
        let retransmission_at = retransmission.due(config, &self.store);
        let timer = retransmission_at.map(|at| Deadline { at, reason: "retransmission timer" });
        // Fast path: most flows wait for nothing else.
        let is_steady = retransmission.is_steady()
            && pace.waiting_until().is_none()
            && self.store.awaited.is_empty()
            && allowance.withheld_until().is_none()
            && replay.is_none()
            && !missing.is_full();
        if is_steady { timer } else { Deadline::earliest(timer, self.rarer_deadline(config)) }
    }

    /// The earliest deadline other than the retransmission timer's.
    #[cold]
    fn rarer_deadline(&self, config: &Config) -> Option<Deadline> {
        let Responder { retransmission, pace, .. } = &self.responder;
        let Requester { allowance, replay, missing, .. } = &self.requester;
        let awaited = self.store.awaited.front();
        let due = [
            (retransmission.rnr_until(), "RNR wait"),
            (pace.waiting_until(), "rate that congestion leaves"),
            (awaited.and_then(|awaited| awaited.recover_at), "gap in READ responses"),
            (retransmission.answer_until(), "what a probe's answer means"),
            (allowance.withheld_until(), "withheld pseudo-ACK"),
            (
                replay.map(|replay| replay.at() + self.replay_patience(config)),
                "responses of a repeated READ",
            ),
            (missing.room_check_at(), "room in the store"),
        ];
        due.into_iter()
            .filter_map(|(at, reason)| Some(Deadline { at: at?, reason }))
            .reduce(|first, next| if next.at < first.at { next } else { first })
    }

    fn replay_patience(&self, config: &Config) -> Duration {
        self.responder.retransmission.rtt().patience(config).times(2)
    }

    /// Handles every deadline that has passed.
    pub(crate) fn handle_timeout(&mut self, now: Instant, shared: &mut AccelShared) {
        if !self.delivers() {
            return;
        }
        let patience = self.replay_patience(&shared.config);
        self.requester.replay.take_if(|replay| replay.at() + patience <= now);
        if self.requester.allowance.withheld_until().is_some_and(|at| at <= now) {
            if !self.requester.hold.is_for_responder() {
                self.store.advance_frontier_by(TRICKLE_BYTES);
            }
            let until = now + self.ack_hold(shared);
            self.requester.allowance.withhold(until);
            self.advance_frontier(now, shared);
        }
        if self.requester.missing.takes_room_check(now) {
            self.ask_again_if_roomy(shared);
            let Requester { hold, missing, .. } = &mut self.requester;
            hold.check_refused(now, &self.store, missing);
        }
        self.responder.pace.end_wait(now);
        self.responder.retransmission.judge_answer(now, &mut self.store);
        let awaited = self.store.awaited.front();
        if awaited.and_then(|awaited| awaited.recover_at).is_some_and(|at| at <= now) {
            self.resend_reads(now, shared, false);
        }
        let retransmission = &mut self.responder.retransmission;
        if !retransmission.may_send() {
            retransmission.end_wait(now);
        } else if retransmission.due(&shared.config, &self.store).is_some_and(|due| due <= now) {
            self.time_out(now, shared);
        }
    }

    /// The retransmission timer has expired.
    fn time_out(&mut self, now: Instant, shared: &mut AccelShared) {
        shared.counters.local_ack_timeout_err += 1;
        self.counters.timeouts += 1;
        if self.delivers_remains() {
            return self.insist_on_remains(now, shared);
        }
        let retransmission = &mut self.responder.retransmission;
        if now.since(retransmission.advanced_at()) >= shared.config.give_up_after {
            return self.pass_one_way(now, shared);
        }
        retransmission.note_timeout();
        retransmission.probe(now);
    }
}
