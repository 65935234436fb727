//! Learning a flow from its traffic: the box remembers requests as they pass, and ACKs show the
//! requester's QPN and the MSN.
//!
//! There are two steps. First the flow is *paired*: two ACKs to one QP that fit no other flow
//! between these addresses, and whose MSN agrees with the flow's requests, identify its requester.
//! Pairing needs only numbers ([`Trace`]). Then the flow is *taken over*: at the first ACK behind
//! which the store has everything that its requester sent.

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

/// Bytes of memory that a flow may use while it is only followed.
const WATCHED_BYTES_MAX: u64 = 16 << 20;
/// A flow that is still unpaired after this time and this many requests passes.
const LEARNT_WITHIN: Duration = Duration::from_ms(10_000);
const LEARNT_WITHIN_REQUESTS: u64 = 1000;
/// Times that a requester returns to one packet before its responder is asked.
const ASKED_AFTER: u32 = 2;
/// Times that a requester goes back, but not to the packet that its responder expects, before that
/// packet counts as lost. The requester may have sent it each time, and the LAN may have lost it.
const TIMES_GONE_BACK: u32 = 4;

/// Learning state of a flow.
#[derive(Debug)]
pub(crate) struct Learning {
    pub(crate) trace: Trace,
    /// The last ACK that fits this flow only.
    evidence: Option<Evidence>,
    /// Its place among the candidates of its address pair.
    pub(crate) place: Option<u32>,
    /// Two consecutive packets came: the flow is no stray packet.
    goes_on: bool,
    heard: Heard,
    returns: Returns,
    /// The responder lacks a packet that the requester may have released.
    asked: Option<Asked>,
    /// The requester may have changed: the table must forget its QPN.
    is_unpaired: bool,
    began_at: Instant,
    requests: u64,
}

/// How far the requests of a followed flow have passed.
#[derive(Clone, Copy, Debug)]
struct Heard {
    /// The PSN behind the last request in order, and when that came. ACKs may reach up to here.
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
    /// True if both are ACKs to one QP and count the same messages.
    fn agrees_with(&self, before: &Evidence) -> bool {
        let messages = self.count.since(before.count);
        self.requester_qpn == before.requester_qpn
            && messages.is_some_and(|messages| before.msn.plus(messages) == self.msn)
    }

    /// True if it also shows progress; the same ACK twice is no confirmation.
    fn confirms(&self, before: &Evidence) -> bool {
        self.agrees_with(before) && self.msn != before.msn
    }
}

/// The responder expects a packet from before all requests that this box has seen: it has sent a
/// sequence NAK, or two equal answers to questions.
///
/// A requester that still has the packet goes back to it. A requester that goes back, but not as
/// far, got its acknowledgement from a box that has ended since: nobody can retransmit the packet,
/// and the requester does not know.
#[derive(Clone, Copy, Debug)]
struct Asked {
    for_sequence: u64,
    requester_qpn: Qpn,
    msn: Msn,
    is_sure: bool,
}

/// The packet to which a requester repeatedly goes back; everything before it was acknowledged.
#[derive(Clone, Copy, Debug, Default)]
struct Returns {
    /// PSN of the latest request.
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
    /// For a flow whose next packet is `start`.
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

    /// For a flow whose requester may have changed; the flow keeps its place among the candidates.
    pub(crate) fn anew(now: Instant, start: u64, place: Option<u32>) -> Self {
        Learning { place, is_unpaired: true, ..Learning::new(now, start) }
    }

    /// Notes that the requester goes back, and had sent everything before `to`.
    pub(crate) fn may_go_back_from(&mut self, now: Instant, to: u64) {
        self.heard = Heard { to: Psn::from_sequence(to), to_at: now };
        self.trace.note_sent_before(now, to);
    }

    /// Processes a request. Returns `true` if the responder must be asked what it expects.
    fn note(&mut self, now: Instant, seq: u64, request: &Request, config: &Config) -> bool {
        self.goes_on |= self.requests > 0 && seq == self.trace.end();
        self.requests += 1;
        self.trace.note(now, request.requested(seq));
        let end = Psn::from_sequence(seq + request.span.unwrap_or(1));
        if end.is_after(self.heard.to) || now.since(self.heard.to_at) >= config.give_up_after {
            self.heard = Heard { to: end, to_at: now };
        }
        self.asked.take_if(|asked| seq <= asked.for_sequence);
        // A near box retransmits a READ alone while older packets are undelivered; a NIC does not.
        let shows_oldest = request.kind != RequestKind::Response || config.role == Role::Near;
        shows_oldest
            && self.returns.note(now, seq)
            && self.returns.repetitions.times() >= ASKED_AFTER
            && !self.asked.is_some_and(|asked| asked.is_sure)
    }

    /// Notes that the requester makes progress.
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

    /// True while no request has directly followed the one before it.
    pub(crate) fn is_stray(&self) -> bool {
        self.state.learning().is_some_and(|learning| !learning.goes_on)
    }

    /// Processes the PSNs of a request, while they may identify its requester.
    ///
    /// Returns `true` if the responder must be asked what it expects.
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

    /// Forwards a request and remembers it, as long as the remembered requests have no gap.
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
        // Followed flows leave memory for flows with acknowledged packets.
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
            // Its own responses answer it. A flow of READs only is not remembered.
            let next = first_sequence(packet.psn()) + span;
            shared.shares.sub(self.tenant, self.store.restart(next));
            return;
        }
        self.store.wake(&mut shared.spare);
        let bytes = self.store.push(held, span, request.kind, request.ends, request.ack_request);
        shared.shares.add(self.tenant, bytes);
        self.store.count_all_as_sent(now);
    }

    /// Passes all requests from here on, and stores none.
    pub(crate) fn pass_for(&mut self, shared: &mut AccelShared, reason: PassReason) {
        self.discard_store(shared, self.store.end());
        self.started = false;
        self.begin_sides_afresh();
        self.state.pass(reason, Remains::None);
    }

    /// True if a responder that expects `next` can be this flow's.
    pub(crate) fn may_have_asked(&self, next: Psn) -> bool {
        let learning = self.state.learning();
        learning.is_some_and(|learning| learning.trace.may_hold(learning.trace.sequence_of(next)))
    }

    /// True if it can be this flow's and lacks packets from before this box was on the path.
    pub(crate) fn begins_behind(&self, next: Psn) -> bool {
        let learning = self.state.learning().filter(|_| self.is_learning());
        learning
            .is_some_and(|learning| learning.trace.begins_behind(learning.trace.sequence_of(next)))
    }

    /// Notes that the responder expects `next`, from before all remembered requests.
    pub(crate) fn note_asked(&mut self, next: Psn, requester_qpn: Qpn, aeth: Aeth) {
        let Some(learning) = self.state.learning_mut() else { return };
        let for_sequence = learning.trace.sequence_of(next);
        let is_answer = matches!(aeth.syndrome, Syndrome::Ack { .. });
        if is_answer && learning.returns.repetitions.times() < ASKED_AFTER {
            // No question was sent for this flow.
            return;
        }
        let is_same = |asked: Asked| {
            (asked.for_sequence, asked.requester_qpn) == (for_sequence, requester_qpn)
        };
        let is_sure = !is_answer || learning.asked.is_some_and(is_same);
        learning.asked = Some(Asked { for_sequence, requester_qpn, msn: aeth.msn, is_sure });
    }

    /// Fails the flow if the responder lacks packets that its requester has released. Returns the
    /// requester's QPN.
    ///
    /// The fatal NAK acknowledges all PSNs before its own, which must therefore be the first that
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

    /// True if `packet`, an ACK, cannot be for this flow: it names a PSN that was never sent or, if
    /// nothing is stored, it does not repeat the last ACK. Another flow's requester may have got
    /// this one's QPN.
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

    /// Processes an ACK that fits this flow only. Returns `true` if it is the second in a row to
    /// this QP, and agrees with this flow's message count: the QP is the flow's requester.
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

    /// Processes an ACK to the requester of a paired flow. Returns `None` if it cannot be for this
    /// flow, so that the pairing is void, and `true` if the store has everything that the requester
    /// has sent behind the ACK: the flow is terminated from here on.
    ///
    /// The flow is not taken over while the requester retransmits requests that have passed:
    /// answers to their first transmission can advance it past all remembered requests, and its
    /// next ones would lie behind a gap that nobody can fill.
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
        // Requests from the learning phase may belong to another life.
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
        // Neither stored packets nor pseudo-ACKs overtake frames forwarded earlier.
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
