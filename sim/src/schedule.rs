//! The schedule: the earliest deadline among all slots.

use longhaul_units::Instant;

/// Deadlines of a fixed number of slots, with fast access to the earliest.
///
/// A tournament tree: the slots are leaves of a complete binary tree, and each inner node holds the
/// earlier of its two children. A change costs one comparison per level, independent of the number
/// of packets in flight. Among equal deadlines the lowest slot comes first.
#[derive(Debug)]
pub(crate) struct Schedule {
    /// Nodes from the root at 1 to the leaves, which begin at `leaves`.
    tree: Vec<Entry>,
    leaves: usize,
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    at: u64,
    slot: u32,
}

const NEVER: u64 = u64::MAX;

impl Schedule {
    /// Creates `slots` slots without deadlines.
    pub fn new(slots: usize) -> Self {
        let leaves = slots.next_power_of_two().max(2);
        let mut tree = vec![Entry { at: NEVER, slot: 0 }; 2 * leaves];
        for (slot, leaf) in tree[leaves..].iter_mut().enumerate() {
            leaf.slot = slot as u32;
        }
        for node in (1..leaves).rev() {
            tree[node] = tree[2 * node];
        }
        Schedule { tree, leaves }
    }

    /// Sets the only deadline of `slot`.
    #[inline]
    pub fn set(&mut self, slot: usize, at: Option<Instant>) {
        let at = at.map_or(NEVER, Instant::as_ps);
        let mut node = self.leaves + slot;
        if self.tree[node].at == at {
            return;
        }
        self.tree[node].at = at;
        while node > 1 {
            node /= 2;
            let (left, right) = (self.tree[2 * node], self.tree[2 * node + 1]);
            self.tree[node] = if right.at < left.at { right } else { left };
        }
    }

    /// Returns the earliest deadline and its slot.
    #[inline]
    pub fn first(&self) -> Option<(Instant, usize)> {
        let Entry { at, slot } = self.tree[1];
        (at != NEVER).then(|| (Instant::from_ps(at), slot as usize))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn the_earliest_and_of_these_the_lowest_comes_first(
            slots in 1_usize..20,
            changes in prop::collection::vec((0_usize..20, prop::option::of(0_u64..6)), 1..60),
        ) {
            let mut schedule = Schedule::new(slots);
            let mut model = vec![None; slots];
            for (slot, at) in changes {
                let at = at.map(Instant::from_ps);
                let slot = slot % slots;
                schedule.set(slot, at);
                model[slot] = at;
                let first =
                    model.iter().enumerate().filter_map(|(i, at)| at.map(|at| (at, i))).min();
                prop_assert_eq!(schedule.first(), first);
            }
        }
    }
}
