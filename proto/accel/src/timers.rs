//! Scheduling of flows: at the end of a batch of frames, and at their deadlines.

use crate::flow::Flow;
use longhaul_units::Instant;
use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// Identifies one use of a slot in the flow table, so that references to an earlier use are
/// detected.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Hash)]
pub(crate) struct SlotId {
    pub(crate) slot: u32,
    pub(crate) generation: u32,
}

/// Flows that have changed since their duties were last processed.
#[derive(Debug, Default)]
pub(crate) struct Touched(Vec<SlotId>);

impl Touched {
    /// Adds `flow` unless it is in the list.
    #[inline]
    pub(crate) fn add(&mut self, id: SlotId, flow: &mut Flow) {
        if !std::mem::replace(&mut flow.bookkeeping.is_touched, true) {
            self.0.push(id);
        }
    }

    pub(crate) fn get(&self, index: usize) -> Option<SlotId> {
        self.0.get(index).copied()
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = SlotId> + '_ {
        self.0.iter().copied()
    }

    pub(crate) fn drain(&mut self) -> impl Iterator<Item = SlotId> + '_ {
        self.0.drain(..)
    }
}

/// Heap of the times at which flows must be examined.
///
/// A flow's deadline mostly moves later (each ACK restarts it). The heap keeps the earlier time, at
/// which the flow is examined and re-armed; the cost per packet is one comparison.
#[derive(Debug, Default)]
pub(crate) struct Timers(BinaryHeap<Reverse<(Instant, SlotId)>>);

impl Timers {
    /// Arms `id`, armed for `armed`, for `at`. Returns the time for which it is armed afterwards.
    #[inline]
    pub(crate) fn arm(
        &mut self,
        id: SlotId,
        armed: Option<Instant>,
        at: Option<Instant>,
    ) -> Option<Instant> {
        match (armed, at) {
            (armed, None) => armed,
            (Some(armed), Some(at)) if armed <= at => Some(armed),
            (_, Some(at)) => {
                self.0.push(Reverse((at, id)));
                Some(at)
            }
        }
    }

    /// Removes the entries for which `is_armed` is false, once the heap has grown large.
    pub(crate) fn tidy(&mut self, len_usual: usize, is_armed: impl Fn(SlotId, Instant) -> bool) {
        if self.0.len() > 4 * len_usual + 1024 {
            self.0.retain(|&Reverse((at, id))| is_armed(id, at));
        }
    }

    pub(crate) fn pop_due(&mut self, now: Instant) -> Option<(Instant, SlotId)> {
        match self.0.peek() {
            Some(&Reverse((at, _))) if at <= now => self.0.pop().map(|Reverse(due)| due),
            _ => None,
        }
    }

    pub(crate) fn next(&self) -> Option<(Instant, SlotId)> {
        self.0.peek().map(|&Reverse(next)| next)
    }
}
