//! The ring buffer that holds the entries of a store.

use crate::store::Entry;
use std::hint::black_box;

/// How many entries ahead of a write the target of a later write is prefetched. Over a long path an
/// entry was last accessed a round trip earlier, and the atomic reference count of the next stored
/// frame waits for all earlier writes.
const FETCH_AHEAD: usize = 8;
/// Entries in the first allocation.
const ROOM_MIN: usize = 4;

/// The entries of a store, in order: a ring that doubles when full. The caller bounds its length.
///
/// Unlike in a `VecDeque`, an entry is written in place, so that no store-to-load forwarding fails
/// on a moved entry, and the target of a later write can be prefetched.
#[derive(Debug, Default)]
pub(crate) struct Entries {
    /// A power of two of slots, or none. Unused slots hold no frame.
    slots: Vec<Entry>,
    /// Free-running.
    first: usize,
    len: usize,
}

impl Entries {
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.len == 0
    }

    pub(crate) fn capacity(&self) -> usize {
        self.slots.len()
    }

    #[inline]
    fn place(&self, index: usize) -> usize {
        self.first.wrapping_add(index) & self.slots.len().wrapping_sub(1)
    }

    #[inline]
    pub(crate) fn get(&self, index: usize) -> Option<&Entry> {
        if index < self.len { self.slots.get(self.place(index)) } else { None }
    }

    #[inline]
    pub(crate) fn get_mut(&mut self, index: usize) -> Option<&mut Entry> {
        let place = self.place(index);
        if index < self.len { self.slots.get_mut(place) } else { None }
    }

    #[inline]
    pub(crate) fn front(&self) -> Option<&Entry> {
        self.get(0)
    }

    pub(crate) fn back_mut(&mut self) -> Option<&mut Entry> {
        self.get_mut(self.len.checked_sub(1)?)
    }

    /// Entries from `index` on.
    pub(crate) fn from(&self, index: usize) -> impl DoubleEndedIterator<Item = &Entry> {
        (index..self.len).filter_map(|index| self.get(index))
    }

    /// Index of the first entry for which `is_before` is false; it must be false for all behind it.
    pub(crate) fn partition_point(&self, is_before: impl Fn(&Entry) -> bool) -> usize {
        let (mut low, mut high) = (0, self.len);
        while low < high {
            let middle = low + (high - low) / 2;
            if self.get(middle).is_some_and(&is_before) { low = middle + 1 } else { high = middle }
        }
        low
    }

    /// Appends an entry for the caller to fill. Its fields are stale, except `frame`, which is
    /// `None`.
    #[inline]
    pub(crate) fn push_back(&mut self) -> &mut Entry {
        if self.len == self.slots.len() {
            self.grow();
        }
        let soon = self.place(self.len + FETCH_AHEAD);
        black_box(self.slots[soon].kind);
        let place = self.place(self.len);
        self.len += 1;
        &mut self.slots[place]
    }

    #[cold]
    #[inline(never)]
    fn grow(&mut self) {
        let room = (2 * self.slots.len()).max(ROOM_MIN);
        let mut slots = Vec::with_capacity(room);
        for index in 0..self.len {
            let place = self.place(index);
            slots.push(std::mem::take(&mut self.slots[place]));
        }
        slots.resize_with(room, Entry::default);
        (self.slots, self.first) = (slots, 0);
    }

    /// Releases all but the first `len` entries.
    pub(crate) fn truncate(&mut self, len: usize) {
        for index in len..self.len {
            let place = self.place(index);
            self.slots[place].frame = None;
        }
        self.len = self.len.min(len);
    }

    /// Releases up to `count` entries from the front.
    #[inline]
    pub(crate) fn drop_front(&mut self, count: usize) {
        for _ in 0..count.min(self.len) {
            let place = self.place(0);
            self.slots[place].frame = None;
            self.first = self.first.wrapping_add(1);
            self.len -= 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use longhaul_node::{Frame, FramePool};
    use proptest::prelude::*;
    use std::collections::VecDeque;

    fn firsts(entries: &Entries) -> Vec<u64> {
        entries.from(0).map(|entry| entry.first).collect()
    }

    proptest! {
        #[test]
        fn is_as_a_queue(steps in prop::collection::vec((any::<bool>(), 0_usize..9), 0..200)) {
            let (mut entries, mut model) = (Entries::default(), VecDeque::new());
            let mut next = 0;
            for (pushes, count) in steps {
                if pushes {
                    for _ in 0..count {
                        entries.push_back().first = next;
                        model.push_back(next);
                        next += 1;
                    }
                } else {
                    entries.drop_front(count);
                    model.drain(..count.min(model.len()));
                }
                prop_assert_eq!(firsts(&entries), model.iter().copied().collect::<Vec<_>>());
                let len = model.len();
                prop_assert_eq!((entries.len(), entries.is_empty()), (len, model.is_empty()));
                prop_assert_eq!(entries.front().map(|e| e.first), model.front().copied());
                prop_assert_eq!(entries.back_mut().map(|e| e.first), model.back().copied());
                prop_assert!(entries.get(len).is_none() && entries.get_mut(len).is_none());
                for seq in 0..=next {
                    let point = model.partition_point(|first| *first < seq);
                    prop_assert_eq!(entries.partition_point(|e| e.first < seq), point);
                    prop_assert_eq!(entries.get(point).map(|e| e.first), model.get(point).copied());
                    let rest: Vec<u64> = entries.from(point).rev().map(|e| e.first).collect();
                    prop_assert_eq!(rest, model.range(point..).rev().copied().collect::<Vec<_>>());
                }
            }
        }
    }

    #[test]
    fn what_is_let_go_keeps_no_frame() {
        let (mut pool, mut entries) = (FramePool::new(), Entries::default());
        for round in 0..20_u8 {
            for _ in 0..6 {
                let entry = entries.push_back();
                assert!(entry.frame.is_none());
                entry.frame = Some(pool.hold(&Frame::opaque(&[round; 64])));
            }
            entries.drop_front(5);
        }
        let kept = entries.slots.iter().filter(|entry| entry.frame.is_some()).count();
        assert_eq!((kept, entries.len()), (20, 20));
        entries.drop_front(100);
        assert!(entries.slots.iter().all(|entry| entry.frame.is_none()) && entries.is_empty());
    }

    #[test]
    fn an_entry_is_a_line_of_the_cache() {
        assert_eq!((size_of::<Entry>(), align_of::<Entry>()), (64, 64));
    }
}
