//! Successive lives of a QP.
//!
//! A QP that is reset, or created with a QPN that was in use before, begins at an unrelated PSN,
//! while the box may still have packets of the previous life to deliver. A request that cannot
//! continue the stored ones therefore does not affect the flow: the box forwards it and all that
//! follow it, and follows them as a separate flow, the *successor*. When the responder's ACKs show
//! that it is in the successor's life, the box removes the previous flow with its undeliverable
//! packets.

use crate::accelerator::{Accelerator, WAN};
use crate::flow::{Beginning, Flow};
use crate::key::WireKey;
use crate::trace::Fit;
use longhaul_node::Frame;
use longhaul_units::Instant;
use longhaul_wire::{Aeth, Packet, Syndrome, Verb};

impl Accelerator {
    /// The flow of a request: the one in `slot`, or another life of its QPs. `None` if the table
    /// has no room for the latter.
    #[cold]
    pub(crate) fn life_of(
        &mut self,
        now: Instant,
        slot: u32,
        frame: &Frame<'_>,
        packet: &Packet<'_>,
    ) -> Option<u32> {
        let flow = self.flows.get(slot)?;
        let is_expected = flow.is_next(packet);
        let mut is_another_life = flow.is_another_life(packet, frame.payload.len());
        if flow.successor().is_none() && !is_another_life {
            return Some(slot);
        }
        let successor = flow.successor().filter(|&id| self.flows.is_current(id));
        if let Some(id) = successor {
            let next = self.flows.get(id.slot)?;
            let seq = next.sequence_in_trace(packet);
            let trace = &next.learning()?.trace;
            if seq == trace.end() || (!is_expected && trace.goes_on_with(seq)) {
                return Some(id.slot);
            }
            is_another_life |= !next.is_stray() && flow.has_been_left(packet);
            if !is_expected && !is_another_life {
                return Some(slot);
            }
            // The previous life continues, or a third one begins.
            self.remove_flow(id.slot);
        }
        let key = *self.flows.get(slot)?.key();
        self.flows.get_mut(slot)?.set_successor(None);
        if is_expected || !is_another_life {
            return Some(slot);
        }
        let beginning = Beginning::of_traffic(packet);
        let next = Flow::new(now, &self.shared.config, key, beginning);
        let next = self.admit(now, next)?;
        let successor = self.flows.insert_successor(next)?;
        let id = self.flows.id(successor);
        self.flows.get_mut(slot)?.set_successor(Some(id));
        self.shared.counters.other_lives += 1;
        Some(successor)
    }

    /// Returns `true` if it has forwarded a response to the requester of the flow in `slot`,
    /// because the flow is being learnt or the response is for another life of its QPs.
    #[cold]
    pub(crate) fn is_for_others(
        &mut self,
        now: Instant,
        slot: u32,
        frame: &Frame<'_>,
        packet: &Packet<'_>,
    ) -> bool {
        let Some(flow) = self.flows.get(slot) else { return false };
        let is_learnt = flow.is_learning();
        let is_for_successor = || {
            let next = flow.successor().filter(|&id| self.flows.is_current(id));
            let next = next.and_then(|id| self.flows.get(id.slot)?.learning());
            next.is_some_and(|next| next.trace.fit(now, packet.psn()) != Fit::No)
                && !flow.has_outstanding(packet.psn())
        };
        let is_ack = |aeth: &Aeth| matches!(aeth.syndrome, Syndrome::Ack { .. });
        let is_acknowledge = packet.opcode().verb() == Some(Verb::Acknowledge);
        let aeth = packet.aeth().filter(|aeth| is_acknowledge && is_ack(aeth));
        if is_learnt || is_for_successor() {
            self.pass(WAN, frame);
            let Some(aeth) = aeth else { return true };
            if !(is_learnt && self.take_over(now, slot, packet, aeth)) {
                self.try_to_pair(now, packet);
            }
            return true;
        }
        if aeth.is_none() || !flow.is_over_for(now, packet) || !self.try_to_pair(now, packet) {
            return false;
        }
        // Another connection uses the requester's QPN, with another responder.
        if self.flows.by_requester(WireKey::of_wan_packet(packet)) != Some(slot) {
            self.orphan(slot);
        }
        self.pass(WAN, frame);
        true
    }

    /// Removes the previous life, because the responder is in that of the flow in `slot`.
    pub(crate) fn supersede(&mut self, slot: u32) {
        let Some(key) = self.flows.get(slot).map(|flow| flow.key().wire()) else { return };
        let Some(before) = self.flows.by_responder(key).filter(|&before| before != slot) else {
            return;
        };
        if self.flows.get(before).and_then(|flow| flow.successor()) == Some(self.flows.id(slot)) {
            self.shared.counters.flows_reset += 1;
            self.remove_flow(before);
        }
    }

    /// Makes the flow in `slot` an orphan, because its requester's QPN has another owner: stored
    /// packets are delivered, and nobody is answered.
    pub(crate) fn orphan(&mut self, slot: u32) {
        self.flows.let_requester_go(slot);
        let Some(flow) = self.flows.get_mut(slot) else { return };
        flow.become_orphan();
        self.shared.counters.flows_reset += 1;
        self.touch(slot);
    }
}
