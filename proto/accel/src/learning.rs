//! Learning a flow from its traffic: requests are remembered as they pass, ACKs name the requester's QP and the MSN.

use crate::flow::{Flow, Shared, Tentative, first_sequence};
use crate::requester_side::Request;
use crate::store::Kind;
use crate::{FlowState, Learnt};
use longhaul_node::Frame;
use longhaul_units::Instant;
use longhaul_wire::{Aeth, Packet};

/// Memory that a flow may take while it is only watched.
const WATCHED_BYTES_MAX: u64 = 16 << 20;

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
        let request = Request::of(packet, self.path_mtu);
        let seq = self.sequence_of(packet);
        let is_next = self.started && seq == self.store.end();
        if self.started && (self.store.start()..self.store.end()).contains(&seq) {
            self.resent_at = now;
            return;
        }
        let config = &shared.config;
        // What is only watched leaves room for what has been promised.
        let is_small = self.store.bytes() < WATCHED_BYTES_MAX.min(config.flow_bytes_max / 2)
            && shared.stored_bytes < config.total_bytes_max / 2;
        let (Some(span), true) =
            (request.span, self.has_room(shared, frame.payload.len(), request.span.unwrap_or(1)))
        else {
            self.started = false;
            shared.stored_bytes -= self.store.restart(first_sequence(packet.psn()));
            return;
        };
        if !is_next || !is_small {
            shared.stored_bytes -= self.store.restart(first_sequence(packet.psn()));
            self.tentative = None;
        }
        self.started = true;
        if request.kind == Kind::Response && self.store.is_empty() && self.tentative.is_none() {
            // Its own responses answer it. A flow of READs alone is not worth remembering.
            let next = first_sequence(packet.psn()) + span;
            shared.stored_bytes -= self.store.restart(next);
            return;
        }
        shared.stored_bytes += self.store.push(held, span, request.kind, request.ends, request.ack_request);
        self.store.count_all_as_sent(now);
    }

    /// True when an ACK of `packet`'s PSN can be one for what is remembered here.
    pub(crate) fn could_pair(&self, packet: &Packet<'_>) -> bool {
        let seq = self.sequence_of(packet);
        self.state == FlowState::Learning
            && self.started
            && self.requester_qpn.is_none()
            && (self.store.start()..self.store.end()).contains(&seq)
            && self.store.entry(self.store.index_of(seq)).is_some_and(|entry| entry.last == seq)
    }

    /// An ACK that fits this flow only. The first is remembered; when a second one counts the messages as this flow
    /// does, the flow is terminated from here on. True when that has happened.
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
        let agrees = self.tentative.is_some_and(|before| {
            before.requester_qpn == seen.requester_qpn
                && i64::from(seen.msn.since(before.msn)) == seen.messages as i64 - before.messages as i64
                && seen.messages > before.messages
        });
        self.tentative = Some(seen);
        let released = self.store.release(seq + 1, true);
        shared.stored_bytes -= released.bytes;
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
