//! Flows whose answers travel another way.
//!
//! Where routes differ by direction, or change, requests pass this box and the responder's ACKs do
//! not. Its requester has them, and goes on; the box hears nothing, and cannot tell what is
//! delivered. It has nothing to add to such a flow: from the moment that it knows, requests pass
//! unacknowledged, as without it. What it has acknowledged by then is its own to deliver, and is
//! sent again, all of it, a few times and as long as
//! [`Config::give_up_after`](crate::Config::give_up_after) lasts.
//!
//! A path that is cut looks the same for a while. So nothing is given up for being silent: once
//! answers come by again, a promise that is still kept is fulfilled as ever, one that was let go
//! and is missed fails the flow, and the flow is learnt anew.

use super::Flow;
use super::repetitions::{APART, Repetitions};
use super::requester::Requester;
use super::state::{Passing, Remains, State};
use crate::shared::AccelShared;
use crate::{DropReason, PassReason};
use longhaul_node::Frame;
use longhaul_units::{Duration, Instant};
use longhaul_wire::{Aeth, NakCode, Packet, Syndrome, Verb};

/// Times that a requester goes back, but not as far as it was acknowledged here: others have
/// acknowledged what lies between. Once may be the LAN's loss.
const SKIPS: u32 = 2;
/// Times that it goes back to what it was not acknowledged here, if its responder was never heard.
const RETURNS_UNHEARD: u32 = 3;
/// The same if it was heard: half of the usual retries are left then.
const RETURNS: u32 = 4;
/// Timeouts in a row after which a responder that was never heard is not expected to answer.
const TIMEOUTS: u32 = 3;
/// Least times that everything acknowledged is sent again.
const RESENDS: u8 = 3;

/// What a requester does while its responder is silent.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Silence {
    returns: Repetitions,
    /// How long the requester waited before the latest return.
    waited: Duration,
    /// Returns after a wait that adaptive retransmission has lengthened: such a requester begins
    /// far below the round trip.
    lengthened: u32,
    /// Those that do not go back as far as was acknowledged here.
    skips: u32,
    /// Time of this box's latest sequence NAK.
    asked_at: Option<Instant>,
}

impl Silence {
    /// This box has sent a sequence NAK.
    pub(crate) fn note_nak_sent(&mut self, now: Instant) {
        self.asked_at = Some(now);
    }

    /// True if the requester goes back because this box asked it to, or because the LAN that made
    /// the gap reorders what follows.
    fn is_explained(&self, now: Instant) -> bool {
        self.asked_at.is_some_and(|at| now.since(at) < APART)
    }

    /// True if the responder was heard since the requester last went back.
    fn ended_by(&self, heard_at: Instant) -> bool {
        self.returns.last_at().is_some_and(|at| heard_at > at)
    }

    /// The requester goes back to a packet sent at `sent_at`. `skips`: not as far as it was
    /// acknowledged here. True if that was once too often.
    fn note_return(
        &mut self,
        now: Instant,
        sent_at: Instant,
        skips: bool,
        returns_max: u32,
    ) -> bool {
        let waited = now.since(self.returns.last_at().unwrap_or(sent_at));
        if !self.returns.count(now) {
            return false;
        }
        let before = std::mem::replace(&mut self.waited, waited);
        self.lengthened += u32::from(before > Duration::ZERO && waited.times(2) > before.times(3));
        self.skips += u32::from(skips);
        self.skips >= SKIPS || self.returns.times() - self.lengthened >= returns_max
    }
}

impl Flow {
    /// True while what is stored is to be delivered.
    #[inline]
    pub(crate) fn delivers(&self) -> bool {
        self.is_terminated() || self.delivers_remains()
    }

    /// True if the flow passes, and something that was acknowledged before is still stored.
    pub(crate) fn delivers_remains(&self) -> bool {
        matches!(self.state, State::Passing(_)) && !self.store.is_empty()
    }

    /// Its requester goes back to `seq`. True if that makes it likely that the responder's answers
    /// reach it on another path, or reach nobody: the flow had better pass.
    pub(crate) fn shows_one_way(&mut self, now: Instant, seq: u64) -> bool {
        // What lies behind all that is stored nobody can have acknowledged.
        if !self.is_terminated() || !(self.requester.acks.to()..=self.store.end()).contains(&seq) {
            return false;
        }
        let Requester { silence, hold, acks, .. } = &mut self.requester;
        let retransmission = &self.responder.retransmission;
        let is_silent = retransmission.may_send() && !hold.is_for_responder();
        if !is_silent || silence.ended_by(retransmission.heard_at()) {
            *silence = Silence { asked_at: silence.asked_at, ..Silence::default() };
        }
        if silence.is_explained(now) {
            return false;
        }
        let sent_at =
            self.store.entry(self.store.index_of(seq)).map_or(Instant::ZERO, |it| it.sent_at);
        if !retransmission.rtt().can_answer(sent_at, now) {
            return false;
        }
        // A READ that is answered in part is asked for the rest of.
        let skips =
            seq > acks.to() && self.store.awaited_at(seq).is_none_or(|read| read.first == seq);
        let returns_max = if self.answer.is_deduced() { RETURNS_UNHEARD } else { RETURNS };
        silence.note_return(now, sent_at, skips, returns_max)
    }

    /// True if no answer was ever seen, and none is expected.
    pub(crate) fn was_never_answered(&self) -> bool {
        self.answer.is_deduced() && self.responder.retransmission.backoff() >= TIMEOUTS
    }

    /// The flow passes from here on: no answers are seen here.
    pub(crate) fn pass_one_way(&mut self, now: Instant, shared: &mut AccelShared) {
        self.pass_but_for_remains(now, shared, PassReason::OneWay);
        shared.counters.flows_one_way += 1;
    }

    /// The flow passes for good, if it does not yet: it uses an operation that the box does not
    /// know.
    pub(crate) fn pass_for_unknown_opcode(&mut self, now: Instant, shared: &mut AccelShared) {
        if self.for_good.is_none() {
            self.pass_for_good(now, shared, PassReason::UnknownOpcode);
            shared.counters.flows_unknown_opcode += 1;
        }
    }

    /// The flow passes from here on, whatever its requester and its responder do.
    pub(crate) fn pass_for_good(
        &mut self,
        now: Instant,
        shared: &mut AccelShared,
        reason: PassReason,
    ) {
        self.for_good = Some(reason);
        match &mut self.state {
            State::Terminated => self.pass_but_for_remains(now, shared, reason),
            State::Learning(_) => self.pass_for(shared, reason),
            State::Passing(Passing { reason: PassReason::Mode, .. }) | State::Failed(_) => {}
            State::Passing(passing) => passing.reason = reason,
        }
    }

    /// The flow passes from here on; what was acknowledged stays stored until it is delivered.
    fn pass_but_for_remains(&mut self, now: Instant, shared: &mut AccelShared, reason: PassReason) {
        // What was not sent, before what is to pass. What finds no room is sent again, by this box
        // or by its requester.
        for frame in self.store.waiting_frames() {
            shared.queue_to_wan(frame.clone());
        }
        self.store.count_all_as_sent(now);
        let acks = &self.requester.acks;
        let freed = self.store.truncate(acks.to(), acks.messages());
        shared.shares.sub(self.tenant, freed);
        self.requester.sent.note_last();
        self.begin_sides_afresh();
        self.state.pass(reason, if self.started { Remains::Owed } else { Remains::None });
        self.follow_passed_requests(shared);
        self.responder.retransmission.restart_timer(now);
        if self.store.is_empty() {
            self.let_remains_go(shared);
        } else if reason == PassReason::OneWay {
            self.resend_remains(now);
        }
    }

    fn resend_remains(&mut self, now: Instant) {
        if let State::Passing(passing) = &mut self.state {
            passing.resends = passing.resends.saturating_add(1);
        }
        self.responder.retransmission.resend_all(now, &mut self.store);
    }

    /// The retransmission timer of a flow that passes has ended.
    pub(crate) fn insist_on_remains(&mut self, now: Instant, shared: &mut AccelShared) {
        let is_long =
            now.since(self.responder.retransmission.advanced_at()) >= shared.config.give_up_after;
        let State::Passing(Passing { resends, .. }) = self.state else { return };
        if is_long && resends >= RESENDS {
            return self.let_remains_go(shared);
        }
        self.responder.retransmission.note_timeout();
        self.resend_remains(now);
    }

    fn let_remains_go(&mut self, shared: &mut AccelShared) {
        self.msn_base = self.msn_after(self.requester.acks.messages());
        self.discard_store(shared, self.store.end());
    }

    /// True if the flow passes, and something that was acknowledged is not known to be delivered.
    fn may_owe_remains(&self) -> bool {
        matches!(self.state, State::Passing(Passing { remains: Remains::Owed, .. }))
    }

    /// A request passes at `seq`. If that lies before what was acknowledged, it is of another life,
    /// or its requester missed the ACKs: this box owes the responder nothing any more.
    pub(crate) fn note_passing(&mut self, seq: u64) {
        if let State::Passing(Passing { remains: remains @ Remains::Owed, .. }) = &mut self.state
            && self.store.is_empty()
            && seq < self.store.end()
        {
            *remains = Remains::None;
        }
    }

    /// Handles a response of a flow that does not store: forwards or drops it, or returns `true` if
    /// it answers what was acknowledged before.
    #[cold]
    pub(crate) fn is_for_remains(
        &mut self,
        now: Instant,
        shared: &mut AccelShared,
        frame: &Frame<'_>,
        packet: &Packet<'_>,
    ) -> bool {
        let is_acknowledge = packet.opcode().verb() == Some(Verb::Acknowledge);
        if self.may_owe_remains() {
            let aeth = packet.aeth().filter(|_| is_acknowledge);
            return self.handle_late_answer(now, shared, frame, packet, aeth);
        }
        if (matches!(self.state, State::Failed(_)) && is_acknowledge) || self.is_stale_nak(packet) {
            self.drop_frame(shared, DropReason::AckAbsorbed);
        } else {
            shared.pass_to_lan(frame);
        }
        false
    }

    /// An answer is seen, after all. The requester waits for answers to what it sent after the flow
    /// began to pass; returns `true` for an answer to what is stored.
    fn handle_late_answer(
        &mut self,
        now: Instant,
        shared: &mut AccelShared,
        frame: &Frame<'_>,
        packet: &Packet<'_>,
        aeth: Option<Aeth>,
    ) -> bool {
        let from = self.store.end();
        let seq = packet.psn().unwrap_near(self.requester.sent.next()).unwrap_or(0);
        let is_ack = aeth.is_some_and(|aeth| matches!(aeth.syndrome, Syndrome::Ack { .. }));
        let had_remains = self.delivers_remains();
        self.responder.retransmission.note_heard(now);
        if seq >= from || (is_ack && seq + 1 == from) {
            // The responder has everything before it.
            self.take_delivered(now, shared, from);
            if let State::Passing(passing) = &mut self.state {
                passing.remains = Remains::DeliveredTo(from);
            }
        } else if aeth.is_some() && had_remains {
            return true;
        }
        if seq < from && is_ack && had_remains {
            self.drop_frame(shared, DropReason::AckAbsorbed);
        } else if seq >= from || aeth.is_none() || is_ack {
            shared.pass_to_lan(frame);
        } else {
            // The responder lacks what nobody has any more.
            shared.counters.stored_lost += 1;
            self.drop_frame(shared, DropReason::AckAbsorbed);
            let latest = self.requester.sent.latest().max(from);
            let is_owed = latest > self.requester.acks.to();
            self.fail(now, shared, NakCode::RemoteOperational, is_owed);
        }
        false
    }
}
