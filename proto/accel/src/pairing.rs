//! Finds the requester to which an ACK to an unknown QP belongs.
//!
//! A wrong pairing would acknowledge one flow's requests to another flow's requester, so the box
//! never guesses. An ACK belongs to a flow only if no other flow between its addresses can have
//! sent the acknowledged packet, and all flows between them are followed. An ambiguous ACK pairs
//! none, and the flows keep passing.

use crate::accelerator::Accelerator;
use crate::key::WireKey;
use crate::trace::{Count, Fit};
use longhaul_units::{Duration, Instant, Msn};
use longhaul_wire::{Aeth, NakCode, Packet, Syndrome};

/// Time for which ACKs to an unfollowed requester may still arrive.
const UNFOLLOWED_FOR: Duration = Duration::from_ms(1000);

/// Candidates examined per millisecond for ACKs to unknown QPs: about 1 % of a core.
const LOOKS_PER_MS: usize = 1 << 15;

/// Bounds the work on ACKs to unknown QPs.
#[derive(Debug)]
pub(crate) struct Looks {
    left: usize,
    since: Instant,
    /// Answers to questions may arrive until then.
    pub(crate) answers_until: Instant,
}

impl Default for Looks {
    fn default() -> Self {
        Looks { left: LOOKS_PER_MS, since: Instant::ZERO, answers_until: Instant::ZERO }
    }
}

impl Looks {
    /// True if `candidates` may be examined, which it counts.
    pub(crate) fn take(&mut self, now: Instant, candidates: usize) -> bool {
        if now.since(self.since) >= Duration::from_ms(1) {
            (self.since, self.left) = (now, LOOKS_PER_MS);
        }
        let may = self.left >= candidates.min(LOOKS_PER_MS);
        if may {
            self.left = self.left.saturating_sub(candidates);
        }
        may
    }
}

impl Accelerator {
    /// Pairs the only flow that an ACK to an unknown QP fits. Returns `true` if there is one.
    pub(crate) fn try_to_pair(&mut self, now: Instant, packet: &Packet<'_>) -> bool {
        let Some(aeth) = packet.aeth().filter(|aeth| matches!(aeth.syndrome, Syndrome::Ack { .. }))
        else {
            return false;
        };
        let Some((slot, count)) = self.owner_of_ack(now, packet, aeth.msn) else { return false };
        let Some(flow) = self.flows.get_mut(slot) else { return false };
        if flow.take_evidence(&mut self.shared, packet, aeth, count) {
            self.flows.pair(slot, packet.dest_qp());
            self.take_over(now, slot, packet, aeth);
        }
        true
    }

    /// Returns the only flow that an ACK to an unknown QP fits, with the messages that its
    /// requester has completed by then.
    ///
    /// A flow that has used the PSN is ruled out if it has completed more messages than `msn`: a
    /// gap in its trace could only make the number smaller.
    fn owner_of_ack(
        &mut self,
        now: Instant,
        packet: &Packet<'_>,
        msn: Msn,
    ) -> Option<(u32, Count)> {
        let candidates = self.flows.candidates(WireKey::of_wan_pair(packet))?;
        if !candidates.are_complete(now) || !self.shared.looks.take(now, candidates.len()) {
            return None;
        }
        let (mut owner, mut possible) = (None, 0);
        for slot in candidates.acknowledged_by(packet.psn()) {
            let learning = self.flows.get(slot).and_then(|flow| flow.learning());
            match learning.map(|learning| learning.trace.fit(now, packet.psn())) {
                None | Some(Fit::No) => {}
                Some(Fit::Maybe) => possible += 1,
                Some(Fit::Yes(count)) if count.exceeds(msn) => {}
                Some(Fit::Yes(count)) => {
                    possible += 1;
                    owner = Some((slot, count));
                }
            }
        }
        if possible > 1 {
            self.shared.counters.pairing_ambiguous += 1;
        }
        owner.filter(|_| possible == 1)
    }

    /// Processes an ACK to the requester of a flow that is being learnt. Returns `false` if it
    /// cannot be for that flow, which is then unpaired.
    pub(crate) fn take_over(
        &mut self,
        now: Instant,
        slot: u32,
        packet: &Packet<'_>,
        aeth: Aeth,
    ) -> bool {
        let Some(flow) = self.flows.get_mut(slot) else { return false };
        match flow.take_over(now, &mut self.shared, packet, aeth) {
            Some(true) => {
                self.flow_changes += 1;
                self.supersede(slot);
            }
            Some(false) => {}
            None => {
                self.flows.unpair(slot);
                self.flows.nominate(slot);
                return false;
            }
        }
        self.touch(slot);
        true
    }

    /// Notes that requests between these addresses pass without a flow in the table.
    pub(crate) fn note_unfollowed(&mut self, now: Instant, pair: WireKey) {
        self.flows.note_unfollowed(pair, now + UNFOLLOWED_FOR);
    }

    /// Notes a sequence NAK for an unknown QP, or an answer to a question: the responder may lack
    /// packets that a box before this one has acknowledged.
    pub(crate) fn note_asked(&mut self, now: Instant, packet: &Packet<'_>) {
        let Some(aeth) = packet.aeth() else { return };
        let next = match aeth.syndrome {
            Syndrome::Nak(NakCode::PsnSequence) => packet.psn(),
            Syndrome::Ack { .. } if now < self.shared.looks.answers_until => packet.psn().plus(1),
            _ => return,
        };
        let Some(candidates) = self.flows.candidates(WireKey::of_wan_pair(packet)) else { return };
        if !self.shared.looks.take(now, candidates.len()) {
            return;
        }
        let mut behind = None;
        for slot in candidates.all() {
            let Some(flow) = self.flows.get(slot) else { continue };
            if flow.begins_behind(next) && behind.is_none() {
                behind = Some(slot);
            } else if flow.begins_behind(next) || flow.may_have_asked(next) {
                // Several flows may have sent the missing packet.
                return;
            }
        }
        let Some(slot) = behind else { return };
        if let Some(flow) = self.flows.get_mut(slot) {
            flow.note_asked(next, packet.dest_qp(), aeth);
        }
        self.follow(now, slot);
        self.touch(slot);
    }
}
