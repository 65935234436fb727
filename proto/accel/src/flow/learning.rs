//! Learning a flow from its traffic: requests are remembered as they pass, ACKs name the
//! requester's QP and the MSN.
//!
//! Two steps. First the flow is *paired*: two ACKs to one QP that can be for no other flow between
//! these addresses, and that count the messages as its requests do, name its requester. That takes
//! numbers alone ([`Trace`]). Then it is *taken over*: at the first ACK behind which the store has
//! everything that its requester sent.

use super::credits::Credits;
use super::repetitions::Repetitions;
use super::requester_side::Request;
use super::state::{Remains, State};
use super::{Flow, first_sequence};
use crate::question::ask_instead_of;
use crate::shared::AccelShared;
use crate::store::RequestKind;
use crate::trace::{Count, Fit, Trace};
use crate::{Config, Learnt, PassReason, Role};
use longhaul_node::Frame;
use longhaul_units::{Duration, Instant, Msn, Psn, Qpn};
use longhaul_wire::{Aeth, NakCode, Packet, Syndrome};

/// Memory that a flow may take while it is only watched.
const WATCHED_BYTES_MAX: u64 = 16 << 20;
/// A flow that is not paired within this time, and so many requests, passes for good.
const LEARNT_WITHIN: Duration = Duration::from_ms(10_000);
const LEARNT_WITHIN_REQUESTS: u64 = 1000;
/// Times that a requester goes back to one packet until its responder is asked.
const ASKED_AFTER: u32 = 2;
/// Times that a requester goes back without reaching what its responder lacks until that is taken
/// for lost: it may have sent that each time, and the LAN have lost it.
const TIMES_GONE_BACK: u32 = 4;

/// What is known of a flow while it is learnt.
#[derive(Debug)]
pub(crate) struct Learning {
    pub(crate) trace: Trace,
    /// What the last ACK told that can be for this flow alone.
    evidence: Option<Evidence>,
    /// Where it stands among the candidates of its pair of addresses.
    pub(crate) place: Option<u32>,
    /// A second packet came that goes on from the one before: it is no stray.
    goes_on: bool,
    heard: Heard,
    returns: Returns,
    /// The responder lacks what its requester may no longer have.
    asked: Option<Asked>,
    /// Its requester may be another one: the table is to forget the QPN.
    is_unpaired: bool,
    began_at: Instant,
    requests: u64,
}

/// How far the requests of a flow that is learnt have passed.
#[derive(Clone, Copy, Debug)]
struct Heard {
    /// Behind the last in their order, and when that came: so far the requester may be
    /// acknowledged.
    to: Psn,
    to_at: Instant,
}

#[derive(Clone, Copy, Debug)]
struct Evidence {
    requester_qpn: Qpn,
    msn: Msn,
    count: Count,
}

impl Evidence {
    /// True if both are ACKs to one QP that count the same messages.
    fn agrees_with(&self, before: &Evidence) -> bool {
        let messages = self.count.since(before.count);
        self.requester_qpn == before.requester_qpn
            && messages.is_some_and(|messages| before.msn.plus(messages) == self.msn)
    }

    /// True if it also shows progress since then: one ACK twice is one.
    fn confirms(&self, before: &Evidence) -> bool {
        self.agrees_with(before) && self.msn != before.msn
    }
}

/// The responder expects a packet from before all that this box has seen of a flow: it has sent a
/// sequence NAK, or has said so twice when it was asked.
///
/// A requester that still has the packet goes back to it. One that goes back, and not so far, was
/// acknowledged the packet by a box that has ended since: nobody can send it any more, and the
/// requester does not know.
#[derive(Clone, Copy, Debug)]
struct Asked {
    for_sequence: u64,
    requester_qpn: Qpn,
    msn: Msn,
    is_sure: bool,
}

/// Where a requester goes back to, time and again: what lies before has been acknowledged to it.
#[derive(Clone, Copy, Debug, Default)]
struct Returns {
    /// The latest request.
    last: u64,
    to: u64,
    repetitions: Repetitions,
}

impl Returns {
    /// Returns `true` if the requester goes back to `seq` once more.
    fn note(&mut self, now: Instant, seq: u64) -> bool {
        let goes_back = seq <= self.last;
        self.last = seq;
        if goes_back && seq != self.to {
            (self.to, self.repetitions) = (seq, Repetitions::default());
        }
        goes_back && self.repetitions.count(now)
    }
}

impl Learning {
    /// Of a flow whose next packet is `start`.
    pub(crate) fn new(now: Instant, start: u64) -> Self {
        Learning {
            trace: Trace::new(start),
            evidence: None,
            place: None,
            goes_on: false,
            heard: Heard { to: Psn::from_sequence(start), to_at: now },
            returns: Returns::default(),
            asked: None,
            is_unpaired: false,
            began_at: now,
            requests: 0,
        }
    }

    /// Of a flow whose requester may be another one, but which keeps its place among candidates.
    pub(crate) fn anew(now: Instant, start: u64, place: Option<u32>) -> Self {
        Learning { place, is_unpaired: true, ..Learning::new(now, start) }
    }

    /// The requester has sent everything before `to` earlier, and goes back.
    pub(crate) fn may_go_back_from(&mut self, now: Instant, to: u64) {
        self.heard = Heard { to: Psn::from_sequence(to), to_at: now };
    }

    /// Takes a request in. True if its responder is to be asked how far it is.
    fn note(&mut self, now: Instant, seq: u64, request: &Request, config: &Config) -> bool {
        self.goes_on |= self.requests > 0 && seq == self.trace.end();
        self.requests += 1;
        self.trace.note(now, request.requested(seq));
        let end = Psn::from_sequence(seq + request.span.unwrap_or(1));
        if end.is_after(self.heard.to) || now.since(self.heard.to_at) >= config.give_up_after {
            self.heard = Heard { to: end, to_at: now };
        }
        self.asked.take_if(|asked| seq <= asked.for_sequence);
        // A near box sends a READ again alone, with older packets undelivered: a NIC does not.
        let shows_oldest = request.kind != RequestKind::Response || config.role == Role::Near;
        shows_oldest
            && self.returns.note(now, seq)
            && self.returns.repetitions.times() >= ASKED_AFTER
            && !self.asked.is_some_and(|asked| asked.is_sure)
    }

    /// Its requester goes on.
    fn note_progress(&mut self) {
        self.asked = None;
        self.returns.repetitions = self.returns.repetitions.restarted();
    }

    fn has_gone_on_in_vain(&self, now: Instant) -> bool {
        self.requests > LEARNT_WITHIN_REQUESTS && now.since(self.began_at) >= LEARNT_WITHIN
    }
}

impl Flow {
    /// Returns `true`, once, if the table has to forget the requester's QPN.
    pub(crate) fn takes_unpairing(&mut self) -> bool {
        let learning = self.state.learning_mut();
        learning.is_some_and(|learning| std::mem::take(&mut learning.is_unpaired))
    }

    /// True for a flow of which a single packet has come.
    pub(crate) fn is_stray(&self) -> bool {
        self.state.learning().is_some_and(|learning| !learning.goes_on)
    }

    /// Takes the numbers of a request in, while they may name its requester.
    ///
    /// True if its responder is to be asked how far it is.
    pub(crate) fn trace(
        &mut self,
        now: Instant,
        shared: &AccelShared,
        seq: u64,
        request: &Request,
    ) -> bool {
        let learning = self.state.learning_mut();
        learning.is_some_and(|learning| learning.note(now, seq, request, &shared.config))
    }

    /// Passes a request on and remembers it, as long as what is remembered has no gap.
    pub(crate) fn watch_request(
        &mut self,
        now: Instant,
        shared: &mut AccelShared,
        frame: &Frame<'_>,
        packet: &Packet<'_>,
    ) {
        let Some(held) = shared.hold(frame) else { return };
        shared.queue_to_wan(held.clone());
        let request = self.request_of(packet);
        let seq = self.sequence_of(packet);
        if self.trace(now, shared, seq, &request) {
            ask_instead_of(now, shared, packet, seq);
        }
        let is_paired = self.requester_qpn.is_some();
        if !is_paired
            && self.state.learning().is_some_and(|learning| learning.has_gone_on_in_vain(now))
        {
            return self.pass_for(shared, PassReason::NotLearnt);
        }
        let is_next = self.started && seq == self.store.end();
        if self.started && (self.store.start()..self.store.end()).contains(&seq) {
            self.responder.retransmission.note_resent(now);
            return;
        }
        let config = &shared.config;
        // What is only watched leaves room for what has been promised.
        let is_small = self.store.bytes() < WATCHED_BYTES_MAX.min(config.flow_bytes_max / 2)
            && shared.shares.may_watch(config, self.tenant);
        let (Some(span), true) =
            (request.span, self.has_room(shared, frame.payload.len(), request.span.unwrap_or(1)))
        else {
            self.started = false;
            shared.shares.sub(self.tenant, self.store.restart(first_sequence(packet.psn())));
            return;
        };
        if !is_next || !(is_small || is_paired) {
            shared.shares.sub(self.tenant, self.store.restart(first_sequence(packet.psn())));
        }
        self.started = true;
        let is_suspected =
            self.state.learning().is_some_and(|learning| learning.evidence.is_some());
        if request.kind == RequestKind::Response && self.store.is_empty() && !is_suspected {
            // Its own responses answer it. A flow of READs alone is not worth remembering.
            let next = first_sequence(packet.psn()) + span;
            shared.shares.sub(self.tenant, self.store.restart(next));
            return;
        }
        self.store.wake(&mut shared.spare);
        let bytes = self.store.push(held, span, request.kind, request.ends, request.ack_request);
        shared.shares.add(self.tenant, bytes);
        self.store.count_all_as_sent(now);
    }

    /// Passes all requests from here on, and keeps none.
    pub(crate) fn pass_for(&mut self, shared: &mut AccelShared, reason: PassReason) {
        self.discard_store(shared, self.store.end());
        self.started = false;
        self.begin_sides_afresh();
        self.state.pass(reason, Remains::None);
    }

    /// True if the responder that expects `next` can be that of what has passed.
    pub(crate) fn may_have_asked(&self, next: Psn) -> bool {
        let learning = self.state.learning();
        learning.is_some_and(|learning| learning.trace.may_hold(learning.trace.sequence_of(next)))
    }

    /// True if it can be one that lacks packets from before this box was on the path.
    pub(crate) fn begins_behind(&self, next: Psn) -> bool {
        let learning = self.state.learning().filter(|_| self.is_learning());
        learning
            .is_some_and(|learning| learning.trace.begins_behind(learning.trace.sequence_of(next)))
    }

    /// The responder says that it expects `next`, from before what is remembered.
    pub(crate) fn note_asked(&mut self, next: Psn, requester_qpn: Qpn, aeth: Aeth) {
        let Some(learning) = self.state.learning_mut() else { return };
        let for_sequence = learning.trace.sequence_of(next);
        let is_answer = matches!(aeth.syndrome, Syndrome::Ack { .. });
        if is_answer && learning.returns.repetitions.times() < ASKED_AFTER {
            // To nothing that was asked.
            return;
        }
        let is_same = |asked: Asked| {
            (asked.for_sequence, asked.requester_qpn) == (for_sequence, requester_qpn)
        };
        let is_sure = !is_answer || learning.asked.is_some_and(is_same);
        learning.asked = Some(Asked { for_sequence, requester_qpn, msn: aeth.msn, is_sure });
    }

    /// Fails the flow, when the responder lacks what its requester no longer has. Returns the
    /// requester's QPN.
    ///
    /// The NAK acknowledges all before the PSN that it names, so that this must be the first that
    /// the requester still has.
    pub(crate) fn fail_if_lost(&mut self, now: Instant, shared: &mut AccelShared) -> Option<Qpn> {
        let learning = self.state.learning_mut()?;
        let Returns { to, repetitions, .. } = learning.returns;
        let is_lost = |asked: &mut Asked| {
            asked.is_sure && repetitions.times() >= TIMES_GONE_BACK && asked.for_sequence < to
        };
        let asked = learning.asked.take_if(is_lost)?;
        self.requester.acks = self.requester.acks.restarted(to);
        self.msn_base = asked.msn;
        let is_owed = self.store.end() > to;
        self.fail(now, shared, NakCode::RemoteOperational, is_owed);
        Some(asked.requester_qpn)
    }

    /// True if `packet`, an ACK, is for what this flow never sent, or when nothing is stored and
    /// it is not the last ACK again: another flow's requester may have this one's QPN now.
    pub(crate) fn is_over_for(&self, now: Instant, packet: &Packet<'_>) -> bool {
        if let Some(learning) = self.state.learning() {
            return learning.trace.fit(now, packet.psn()) == Fit::No;
        }
        let seq = packet.psn().unwrap_near(self.store.responder_next);
        match self.store.is_empty() {
            true => seq != Some(self.store.responder_next - 1),
            false => seq.is_some_and(|seq| seq >= self.store.sent_to()),
        }
    }

    /// An ACK that can be for this flow only. True if it is the second in a row to this QP, and
    /// shows that the QP's responder counts the messages of this flow: the QP is its requester.
    pub(crate) fn take_evidence(
        &mut self,
        shared: &mut AccelShared,
        packet: &Packet<'_>,
        aeth: Aeth,
        count: Count,
    ) -> bool {
        let seq = self.sequence_of(packet);
        let is_learning = self.is_learning();
        let Some(learning) = self.state.learning_mut() else { return false };
        let evidence = Evidence { requester_qpn: packet.dest_qp(), msn: aeth.msn, count };
        let before = learning.evidence.replace(evidence);
        learning.note_progress();
        if !is_learning {
            return false;
        }
        let is_confirmed = before.is_some_and(|before| evidence.confirms(&before));
        if !is_confirmed {
            self.release_all_below(shared, seq + 1);
        }
        is_confirmed
    }

    /// Releases everything below `limit`, answered or not.
    pub(crate) fn release_all_below(&mut self, shared: &mut AccelShared, limit: u64) {
        let released = self.store.release(limit, true);
        self.store.rest(&mut shared.spare);
        shared.shares.sub(self.tenant, released.bytes);
    }

    /// An ACK to the requester of a flow that is paired. `None` when it cannot be for this flow:
    /// the pairing is void. True if everything that the requester has sent behind it is stored:
    /// the flow is terminated from here on.
    ///
    /// Not while the requester goes back over what has passed: answers to the first time can take
    /// it past all that is remembered, and what it sent then would lie behind a gap that nobody can
    /// fill.
    pub(crate) fn take_over(
        &mut self,
        now: Instant,
        shared: &mut AccelShared,
        packet: &Packet<'_>,
        aeth: Aeth,
    ) -> Option<bool> {
        let learning = self.state.learning_mut()?;
        let heard_to = learning.heard.to;
        match (learning.trace.fit(now, packet.psn()), &learning.evidence) {
            (Fit::Yes(count), Some(before)) => {
                let evidence = Evidence { requester_qpn: packet.dest_qp(), msn: aeth.msn, count };
                if !evidence.agrees_with(before) {
                    return None;
                }
            }
            (Fit::No, _) => return None,
            _ => return Some(false),
        }
        learning.note_progress();
        let first = learning.trace.first();
        let seq = self.sequence_of(packet);
        let goes_back = heard_to.is_after(Psn::from_sequence(self.store.end()));
        let entry = self.store.entry(self.store.index_of(seq)).filter(|entry| entry.last() == seq);
        let messages = match entry {
            Some(entry) => entry.messages,
            None if self.store.is_empty() && seq + 1 == self.store.end() => self.store.messages(),
            None => return Some(false),
        };
        if goes_back || !self.started {
            self.release_all_below(shared, seq + 1);
            return Some(false);
        }
        let released = self.store.release(seq + 1, true);
        self.store.rest(&mut shared.spare);
        shared.shares.sub(self.tenant, released.bytes);
        self.state = State::Terminated;
        // What it sent while it was learnt may have been another life.
        self.requester.sent.set_latest(self.store.end());
        self.learnt = Learnt::Traffic;
        self.msn_base = Msn::new(aeth.msn.get().wrapping_sub(messages as u32));
        self.store.responder_next = seq + 1;
        self.requester.acks = self.requester.acks.taken_over(first.min(seq), seq + 1, messages);
        self.requester.acks.want(self.store.last_wish().unwrap_or(seq + 1));
        self.responder.credits = Credits::after(messages);
        self.responder.retransmission.note_heard(now);
        self.responder.retransmission.restart_timer(now);
        self.answer.learn_from_responder(packet);
        // Neither stored packets nor pseudo-ACKs overtake what was passed on before.
        self.follow_passed_requests(shared);
        self.follow_passed_responses(shared);
        shared.counters.flows_from_traffic += 1;
        if let Some(sent_at) = released.sample {
            self.responder.retransmission.sample(sent_at, now);
        }
        self.note_credits(aeth);
        self.advance_frontier(now, shared);
        Some(true)
    }
}
