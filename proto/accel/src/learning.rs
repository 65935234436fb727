//! Learning a flow from its traffic: requests are remembered as they pass, ACKs name the requester's QP and the MSN.

use crate::flow::{Flow, Shared, Tentative, first_sequence};
use crate::requester_side::WINDOW;
use crate::store::Kind;
use crate::{FlowState, Learnt};
use longhaul_node::Frame;
use longhaul_units::{Duration, Instant, Msn, Psn, Qpn};
use longhaul_wire::{Aeth, NakCode, Packet};

/// Memory that a flow may take while it is only watched.
const WATCHED_BYTES_MAX: u64 = 16 << 20;

/// A sequence NAK for a packet from before all that this box has seen of a flow.
///
/// A requester that still has the packet goes back to it. One that goes back, and not so far, was acknowledged the packet by
/// a box that has ended since: nobody can send it any more, and the requester does not know.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Asked {
    for_sequence: u64,
    requester_qpn: Qpn,
    msn: Msn,
    /// The latest request.
    last: u64,
    /// The earliest request that the requester went back to, and how often and when it did. What lies before has been
    /// acknowledged to it. READs and atomics do not count: they may be repeated alone.
    oldest: u64,
    went_back: u32,
    at: Instant,
}

/// Times that a requester goes back without reaching what it was asked for until that is taken for lost: it may have sent
/// that each time, and the LAN have lost it.
const TIMES_GONE_BACK: u32 = 5;
/// Time from one to the next, which tells repetitions from what the LAN duplicates or reorders.
const GONE_BACK_APART: Duration = Duration::from_ms(1);

impl Flow {
    /// Passes a request on and remembers it, as long as what is remembered has no gap.
    pub(crate) fn watch_request(
        &mut self,
        now: Instant,
        shared: &mut Shared,
        frame: &Frame<'_>,
        packet: &Packet<'_>,
    ) {
        let Some(held) = shared.hold(frame) else { return };
        shared.queue_to_wan(held.clone());
        self.request_port = packet.udp_source_port();
        self.heard.at = now;
        let request = self.request_of(packet);
        let seq = self.sequence_of(packet);
        let is_next = self.started && seq == self.store.end();
        let end = Psn::from_sequence(seq + request.span.unwrap_or(1));
        if end.is_after(self.heard.to) || now.since(self.heard.to_at) >= shared.config.give_up_after {
            (self.heard.to, self.heard.to_at) = (end, now);
        }
        self.note_whether_it_has(now, seq, request.kind);
        if self.started && (self.store.start()..self.store.end()).contains(&seq) {
            self.resent_at = now;
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
        if !is_next || !is_small {
            shared.shares.sub(self.tenant, self.store.restart(first_sequence(packet.psn())));
            self.tentative = None;
        }
        self.started = true;
        if request.kind == Kind::Response && self.store.is_empty() && self.tentative.is_none() {
            // Its own responses answer it. A flow of READs alone is not worth remembering.
            let next = first_sequence(packet.psn()) + span;
            shared.shares.sub(self.tenant, self.store.restart(next));
            return;
        }
        self.goes_on |= is_next;
        self.store.wake(&mut shared.spare);
        let bytes = self.store.push(held, span, request.kind, request.ends, request.ack_request);
        shared.shares.add(self.tenant, bytes);
        self.store.count_all_as_sent(now);
    }

    /// True when a sequence NAK for `packet`'s PSN can be an answer to what is remembered here, or to what passed unremembered.
    pub(crate) fn may_have_asked(&self, packet: &Packet<'_>) -> bool {
        let seq = self.sequence_of(packet);
        !self.started || self.store.is_empty() || (self.store.start()..=self.store.end()).contains(&seq)
    }

    /// True when it can be one for a packet before what is remembered here.
    pub(crate) fn begins_behind(&self, packet: &Packet<'_>) -> bool {
        let seq = self.sequence_of(packet);
        self.state == FlowState::Learning
            && self.requester_qpn.is_none()
            && self.started
            && seq < self.store.start()
            && self.store.start() - seq < WINDOW
    }

    /// The responder asks for a packet from before what is remembered.
    pub(crate) fn note_asked(&mut self, now: Instant, packet: &Packet<'_>, aeth: Aeth) {
        self.asked = Some(Asked {
            for_sequence: self.sequence_of(packet),
            requester_qpn: packet.dest_qp(),
            msn: aeth.msn,
            last: self.lan_next - 1,
            oldest: u64::MAX,
            went_back: 0,
            at: now,
        });
    }

    fn note_whether_it_has(&mut self, now: Instant, seq: u64, kind: Kind) {
        let Some(asked) = &mut self.asked else { return };
        if seq <= asked.for_sequence {
            self.asked = None;
            return;
        }
        if kind == Kind::Response {
            return;
        }
        let goes_back = seq <= asked.last;
        asked.last = seq;
        if goes_back && seq < asked.oldest {
            asked.oldest = seq;
            asked.went_back = 0;
        }
        if goes_back && seq == asked.oldest && now.since(asked.at) >= GONE_BACK_APART {
            asked.went_back += 1;
            asked.at = now;
        }
    }

    /// Fails the flow, when the responder has asked for what its requester no longer has. Returns the requester's QPN.
    ///
    /// The NAK acknowledges all before the PSN that it names, so that this must be the first that the requester still has.
    pub(crate) fn fail_if_lost(&mut self, now: Instant, shared: &mut Shared) -> Option<Qpn> {
        let asked = self.asked.filter(|asked| asked.went_back >= TIMES_GONE_BACK)?;
        self.asked = None;
        self.requester_qpn = Some(asked.requester_qpn);
        (self.acked_to, self.acked_messages) = (asked.oldest, 0);
        self.msn_base = asked.msn;
        self.fail(now, shared, NakCode::RemoteOperational, false);
        Some(asked.requester_qpn)
    }

    /// True when `packet`, an ACK, is for what this flow never sent, or when nothing is stored and it is not the last ACK again:
    /// another flow's requester may have this one's QPN now.
    pub(crate) fn is_over_for(&self, packet: &Packet<'_>) -> bool {
        let seq = packet.psn().unwrap_near(self.store.responder_next);
        match self.store.is_empty() {
            true => seq != Some(self.store.responder_next - 1),
            false => seq.is_some_and(|seq| seq >= self.store.sent_to()),
        }
    }

    /// True when an ACK of `packet`'s PSN can be one for what is remembered here.
    pub(crate) fn could_pair(&self, packet: &Packet<'_>) -> bool {
        let seq = self.sequence_of(packet);
        self.state == FlowState::Learning
            && self.started
            && self.requester_qpn.is_none()
            && (self.store.start()..self.store.end()).contains(&seq)
            && self.store.entry(self.store.index_of(seq)).is_some_and(|entry| entry.last() == seq)
    }

    /// An ACK that fits this flow only. The first is remembered; when a second one counts the messages as this flow
    /// does, the flow is terminated from here on. True when that has happened.
    ///
    /// Not while the requester goes back over what has passed: answers to the first time can take it past all that is remembered,
    /// and what it sent then would lie behind a gap that nobody can fill.
    pub(crate) fn take_evidence(
        &mut self,
        now: Instant,
        shared: &mut Shared,
        packet: &Packet<'_>,
        aeth: Aeth,
    ) -> bool {
        let seq = self.sequence_of(packet);
        let Some(entry) = self.store.entry(self.store.index_of(seq)) else { return false };
        let seen = Tentative { requester_qpn: packet.dest_qp(), msn: aeth.msn, messages: entry.messages };
        let goes_back = self.heard.to.is_after(Psn::from_sequence(self.store.end()));
        let agrees = self.tentative.is_some_and(|before| {
            !goes_back
                && before.requester_qpn == seen.requester_qpn
                && i64::from(seen.msn.since(before.msn)) == seen.messages as i64 - before.messages as i64
                && seen.messages > before.messages
        });
        self.tentative = Some(seen);
        self.asked = None;
        let released = self.store.release(seq + 1, true);
        self.store.rest(&mut shared.spare);
        shared.shares.sub(self.tenant, released.bytes);
        if !agrees {
            return false;
        }
        self.state = FlowState::Terminated;
        self.learnt = Learnt::Traffic;
        self.requester_qpn = Some(seen.requester_qpn);
        self.tentative = None;
        self.msn_base = longhaul_units::Msn::new(aeth.msn.get().wrapping_sub(seen.messages as u32));
        self.store.responder_next = seq + 1;
        self.acked_to = seq + 1;
        self.acked_messages = seen.messages;
        self.responder_messages = seen.messages;
        self.wanted_to = self.store.last_wish().unwrap_or(seq + 1);
        self.alive_at = now;
        self.timer_base = now;
        self.answer.learn_from_responder(packet);
        // Neither stored packets nor pseudo-ACKs overtake what was passed on before.
        self.wan_mark = shared.to_wan.mark();
        self.lan_mark = shared.to_lan.mark();
        shared.counters.flows_from_traffic += 1;
        if let Some(sent_at) = released.sample.filter(|&at| at > self.resent_at) {
            self.rtt.sample(sent_at, now);
        }
        self.note_credits(aeth);
        self.advance_frontier(now, shared);
        true
    }
}
