//! Flows between two addresses whose requester QPN is unknown, by the PSNs that an ACK for them may
//! carry.

use longhaul_units::{Instant, Psn};

/// One flow, in 12 bytes: a single ACK may scan thousands.
#[derive(Clone, Copy, Debug)]
struct Candidate {
    slot: u32,
    from: Psn,
    /// Number of PSNs, starting at `from`.
    span: u32,
}

/// All unpaired flows of one address pair.
#[derive(Debug)]
pub(crate) struct Candidates {
    flows: Vec<Candidate>,
    /// Until this time an ACK may be for a requester that is not among them.
    unfollowed_until: Instant,
}

impl Default for Candidates {
    fn default() -> Self {
        Candidates { flows: Vec::new(), unfollowed_until: Instant::ZERO }
    }
}

impl Candidates {
    /// Stores the flow in `slot`, with the PSNs `from..to`, at its `place` or at a new one.
    pub(crate) fn put(&mut self, slot: u32, place: &mut Option<u32>, (from, to): (Psn, Psn)) {
        let span = u32::try_from(to.since(from)).unwrap_or(0);
        let candidate = Candidate { slot, from, span };
        match place.and_then(|place| self.flows.get_mut(place as usize)) {
            Some(known) => *known = candidate,
            None => {
                *place = Some(self.flows.len() as u32);
                self.flows.push(candidate);
            }
        }
    }

    /// Removes the flow at `place`. Returns the slot of the flow that moved there, if any.
    pub(crate) fn take_out(&mut self, place: u32) -> Option<u32> {
        self.flows.swap_remove(place as usize);
        self.flows.get(place as usize).map(|moved| moved.slot)
    }

    pub(crate) fn note_unfollowed(&mut self, until: Instant) {
        self.unfollowed_until = self.unfollowed_until.max(until);
    }

    /// True if an ACK can only be for one of these flows.
    pub(crate) fn are_complete(&self, now: Instant) -> bool {
        self.unfollowed_until <= now
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.flows.is_empty()
    }

    pub(crate) fn len(&self) -> usize {
        self.flows.len()
    }

    /// Slots of all candidates.
    pub(crate) fn all(&self) -> impl Iterator<Item = u32> + '_ {
        self.flows.iter().map(|flow| flow.slot)
    }

    /// Slots of the flows that an ACK of `psn` may be for.
    pub(crate) fn acknowledged_by(&self, psn: Psn) -> impl Iterator<Item = u32> + '_ {
        let holds = move |flow: &&Candidate| {
            u32::try_from(psn.since(flow.from)).is_ok_and(|at| at < flow.span)
        };
        self.flows.iter().filter(holds).map(|flow| flow.slot)
    }
}
