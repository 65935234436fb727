//! One life of a QP after another.
//!
//! A QP that is reset, or created anew under a number that was in use before, begins at a PSN of
//! its own. What the box still has to deliver may belong to the life before. So a request that does
//! not go on from there changes nothing for the flow: it passes, as does all that follows it, and
//! is watched as a flow of its own, the *successor*. When the responder's ACKs show that it is in
//! that life, the flow before goes, and with it what nobody can take any more.

use crate::accelerator::{Accelerator, WAN};
use crate::flow::{Beginning, Flow};
use crate::key::WireKey;
use crate::repetitions::Repetitions;
use crate::requester_side::{ACK_TIMEOUT_MIN, GAP_MAX};
use crate::timers::SlotId;
use crate::trace::{Fit, OUTSTANDING_MAX};
use longhaul_node::Frame;
use longhaul_units::{Instant, Psn};
use longhaul_wire::{Aeth, Packet, Syndrome, Verb};

/// Times that a packet comes again in spite of its answer until its sender is taken for one that
/// does not know the flow.
const REPEATS_MAX: u32 = 2;

/// A packet that comes again and again although it was acknowledged each time: its sender takes no
/// such answer.
#[derive(Clone, Copy, Debug)]
struct Repeated {
    seq: u64,
    /// The last one behind it that was repeated with it.
    last: u64,
    repetitions: Repetitions,
}

/// What tells the lives of a flow's QPs apart.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Lives {
    /// Another life, to which requests belong that do not fit this one.
    pub(crate) successor: Option<SlotId>,
    /// UDP source port of the requester, 0 until its first request: it keeps that for life.
    pub(crate) request_port: u16,
    /// A packet that its requester repeats in spite of the answer.
    repeated: Option<Repeated>,
    /// An ACK behind all that is stored: the requester sent that before this box was on its path.
    pub(crate) acked_elsewhere: Option<u64>,
    /// The QPN of its requester has another owner, which is answered by others.
    pub(crate) is_orphan: bool,
}

impl Lives {
    /// With nothing repeated or acknowledged elsewhere.
    pub(crate) fn afresh(&self) -> Self {
        Lives { repeated: None, acked_elsewhere: None, ..*self }
    }

    /// The requester goes on.
    #[inline]
    pub(crate) fn note_accepted(&mut self) {
        self.repeated = None;
    }

    pub(crate) fn is_repeated(&self, seq: u64) -> bool {
        self.repeated.is_some_and(|repeated| repeated.seq == seq)
    }

    /// True if the sender of a packet takes no answer to it: it does not know the flow.
    pub(crate) fn is_repeated_in_vain(&self) -> bool {
        self.repeated.is_some_and(|repeated| repeated.repetitions.times() >= REPEATS_MAX)
    }

    /// A packet came that its requester should not send again, and is answered.
    pub(crate) fn note_repeated(&mut self, now: Instant, seq: u64) {
        match &mut self.repeated {
            Some(repeated) if repeated.seq == seq => {
                repeated.last = seq;
                repeated.repetitions.count(now);
            }
            // The packets behind the first that is repeated are repeated with it, until the
            // requester goes back, and not so far. The LAN may reorder them.
            Some(repeated)
                if repeated.seq < seq
                    && (repeated.last < seq
                        || repeated.repetitions.is_within(now, ACK_TIMEOUT_MIN)) =>
            {
                repeated.last = repeated.last.max(seq);
            }
            _ => {
                let repetitions = Repetitions::since(now);
                self.repeated = Some(Repeated { seq, last: seq, repetitions });
            }
        }
    }
}

impl Accelerator {
    /// The flow that a request belongs to: the one in `slot`, or another life of its QPs. `None`
    /// when there is no room for that.
    #[cold]
    pub(crate) fn life_of(
        &mut self,
        now: Instant,
        slot: u32,
        frame: &Frame<'_>,
        packet: &Packet<'_>,
    ) -> Option<u32> {
        let flow = self.flows.get(slot)?;
        let is_expected = flow.sequence_of(packet) == flow.store.end();
        let mut is_another_life = flow.is_another_life(packet, frame.payload.len());
        if flow.lives.successor.is_none() && !is_another_life {
            return Some(slot);
        }
        let successor = flow.lives.successor.filter(|&id| self.flows.is_current(id));
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
            // The life before goes on, or yet another one begins.
            self.remove_flow(id.slot);
        }
        let key = self.flows.get(slot)?.key;
        self.flows.get_mut(slot)?.lives.successor = None;
        if is_expected || !is_another_life {
            return Some(slot);
        }
        let beginning = Beginning::of_traffic(packet);
        let next = Flow::new(now, &self.shared.config, key, beginning);
        let next = self.admit(now, next)?;
        let successor = self.flows.insert_successor(next)?;
        self.flows.get_mut(slot)?.lives.successor = Some(self.flows.id(successor));
        self.shared.counters.other_lives += 1;
        Some(successor)
    }

    /// True when a response to the requester of the flow in `slot` has passed, because that flow is
    /// only learnt, or because the response is for another life of its QPs.
    #[cold]
    pub(crate) fn is_for_others(
        &mut self,
        now: Instant,
        slot: u32,
        frame: &Frame<'_>,
        packet: &Packet<'_>,
    ) -> bool {
        let Some(flow) = self.flows.get(slot) else { return false };
        let is_learnt = flow.is_learnt();
        let is_for_successor = || {
            let next = flow.lives.successor.filter(|&id| self.flows.is_current(id));
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
        // The requester's QPN lives again, with another responder.
        if self.flows.by_requester(WireKey::of_wan_packet(packet)) != Some(slot) {
            self.orphan(slot);
        }
        self.pass(WAN, frame);
        true
    }

    /// The responder is in the life of the flow in `slot`: one before it ends.
    pub(crate) fn supersede(&mut self, slot: u32) {
        let Some(key) = self.flows.get(slot).map(|flow| flow.key.wire()) else { return };
        let Some(before) = self.flows.by_responder(key).filter(|&before| before != slot) else {
            return;
        };
        if self.flows.get(before).and_then(|flow| flow.lives.successor) == Some(self.flows.id(slot))
        {
            self.shared.counters.flows_reset += 1;
            self.remove_flow(before);
        }
    }

    /// The QPN of the requester of the flow in `slot` has another owner. What is stored is
    /// delivered, and nobody answered.
    pub(crate) fn orphan(&mut self, slot: u32) {
        self.flows.let_requester_go(slot);
        let Some(flow) = self.flows.get_mut(slot) else { return };
        flow.lives.is_orphan = true;
        flow.closing = true;
        self.shared.counters.flows_reset += 1;
        self.touch(slot);
    }
}

impl Flow {
    /// True when `packet` is the next of this flow, and no other life of its QPs is known.
    #[inline]
    pub(crate) fn expects(&self, packet: &Packet<'_>) -> bool {
        self.lives.successor.is_none() && packet.psn() == Psn::from_sequence(self.store.end())
    }

    /// True when the next request needs nothing but to be stored.
    #[inline]
    pub(crate) fn only_stores(&self) -> bool {
        self.is_terminated()
            && self.mode.is_final()
            && self.requester.sent.next() <= self.store.end()
            && !self.reads.is_unresolved()
            && !self.requester.hold.is_for_responder()
    }

    /// True when `packet` cannot come from the requester of what is stored, so that it must not be
    /// taken for its next or its last.
    pub(crate) fn is_another_life(&self, packet: &Packet<'_>, payload_len: usize) -> bool {
        let seq = self.sequence_of(packet);
        if seq == self.store.end() || !self.delivers() || self.store.is_empty() {
            return false;
        }
        // A requester that was acknowledged anything has nothing from before its first packet left.
        let is_before_the_first = seq < self.requester.acks.begins_at()
            && self.requester.acks.begins_at() < self.requester.acks.to();
        !self.may_be_sent(seq)
            || is_before_the_first
            || self.comes_by_another_port(packet)
            || (self.lives.is_repeated(seq) && self.lives.is_repeated_in_vain())
            || self.store.contradicts(seq, packet, payload_len)
    }

    /// True when `packet` is not of this flow, whose requester has gone on in another life. Had the
    /// LAN only lost the same packet time and again, it would come back to what is stored.
    fn has_been_left(&self, packet: &Packet<'_>) -> bool {
        let stored = self.store.start()..self.store.end();
        self.delivers() && !stored.is_empty() && !stored.contains(&self.sequence_of(packet))
    }

    /// True when `packet` has not the source port that the requester has kept so far.
    pub(crate) fn comes_by_another_port(&self, packet: &Packet<'_>) -> bool {
        self.lives.request_port != 0 && self.lives.request_port != packet.udp_source_port()
    }

    /// True when a requester of this flow may send `seq` now: it goes on, goes back, or the LAN
    /// lost packets before it.
    pub(crate) fn may_be_sent(&self, seq: u64) -> bool {
        let latest = self.requester.sent.latest().max(self.store.end());
        let last = latest + self.reads.unresolved_max() + GAP_MAX;
        seq + OUTSTANDING_MAX > self.requester.acks.to() && seq <= last
    }

    /// True when an answer of the responder that names `psn` can be to what is stored here.
    #[inline]
    pub(crate) fn has_outstanding(&self, psn: Psn) -> bool {
        let seq = psn.unwrap_near(self.store.responder_next).unwrap_or(0);
        !self.store.is_empty() && seq + 1 >= self.store.responder_next && seq < self.store.sent_to()
    }

    /// True when a response can be for no other flow or life: it names what is outstanding here.
    #[inline]
    pub(crate) fn is_answered_by(&self, packet: &Packet<'_>) -> bool {
        self.is_terminated() && self.has_outstanding(packet.psn())
    }

    /// Unwraps a PSN near what is watched.
    pub(crate) fn sequence_in_trace(&self, packet: &Packet<'_>) -> u64 {
        let end = self.state.learning().map_or(0, |learning| learning.trace.end());
        packet.psn().unwrap_near(end).unwrap_or(0)
    }
}
