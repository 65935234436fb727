//! A queue whose entries can be removed by key in constant time.

use std::num::NonZeroU32;

/// Identifies an entry of a [`Queue`] while it is queued.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Key(NonZeroU32);

/// A doubly linked list in a slab.
///
/// An event may cancel ten thousand waiting messages or events at once, so that each removal must
/// not cost a walk.
#[derive(Debug)]
pub(crate) struct Queue<T> {
    slots: Vec<Slot<T>>,
    first: Option<Key>,
    last: Option<Key>,
    free: Option<Key>,
    len: usize,
}

#[derive(Debug)]
struct Slot<T> {
    item: Option<T>,
    previous: Option<Key>,
    /// The next slot in the queue, or in the free list.
    next: Option<Key>,
}

impl<T> Default for Queue<T> {
    fn default() -> Self {
        Queue { slots: Vec::new(), first: None, last: None, free: None, len: 0 }
    }
}

impl<T> Queue<T> {
    /// Slots kept when the queue runs empty.
    const KEPT: usize = 256;

    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    fn slot(&mut self, key: Key) -> &mut Slot<T> {
        &mut self.slots[key.0.get() as usize - 1]
    }

    pub fn push_back(&mut self, item: T) -> Key {
        let slot = Slot { item: Some(item), previous: self.last, next: None };
        let key = match self.free {
            Some(key) => {
                self.free = self.slot(key).next;
                *self.slot(key) = slot;
                key
            }
            None => {
                self.slots.push(slot);
                // Bounded by the manager's tables, far below 2^32.
                Key(NonZeroU32::new(self.slots.len() as u32).expect("not empty after a push"))
            }
        };
        match self.last.replace(key) {
            Some(last) => self.slot(last).next = Some(key),
            None => self.first = Some(key),
        }
        self.len += 1;
        key
    }

    pub fn pop_front(&mut self) -> Option<(Key, T)> {
        let key = self.first?;
        self.remove(key).map(|item| (key, item))
    }

    /// Removes an entry; `None` if it is not queued.
    pub fn remove(&mut self, key: Key) -> Option<T> {
        let item = self.slots.get_mut(key.0.get() as usize - 1)?.item.take()?;
        let (previous, next) = (self.slot(key).previous, self.slot(key).next);
        match previous {
            Some(previous) => self.slot(previous).next = next,
            None => self.first = next,
        }
        match next {
            Some(next) => self.slot(next).previous = previous,
            None => self.last = previous,
        }
        self.slot(key).next = self.free.replace(key);
        self.len -= 1;
        if self.len == 0 && self.slots.len() > Self::KEPT {
            *self = Queue::default();
        }
        Some(item)
    }

    /// The entries in order.
    pub fn iter(&self) -> impl Iterator<Item = &T> {
        let mut at = self.first;
        std::iter::from_fn(move || {
            let slot = &self.slots[at?.0.get() as usize - 1];
            at = slot.next;
            slot.item.as_ref()
        })
    }
}

#[cfg(test)]
mod tests {
    use super::Queue;
    use longhaul_units::{Rng, SplitMix64};

    #[test]
    fn keeps_the_order_whatever_is_taken_out() {
        let mut rng = SplitMix64::new(1);
        let mut queue = Queue::default();
        let mut model = Vec::new();
        for n in 0..50_000u32 {
            match rng.below(if n % 5000 < 3000 { 3 } else { 6 }) {
                0 | 1 => model.push((queue.push_back(n), n)),
                2 | 3 if !model.is_empty() => {
                    let (key, item) = model.remove(rng.below(model.len() as u64) as usize);
                    assert_eq!(queue.remove(key), Some(item));
                }
                _ => {
                    let expected = if model.is_empty() { None } else { Some(model.remove(0)) };
                    assert_eq!(queue.pop_front(), expected);
                }
            }
            assert_eq!(queue.is_empty(), model.is_empty());
            if n % 100 == 0 {
                assert!(queue.iter().eq(model.iter().map(|(_, item)| item)));
            }
        }
    }

    #[test]
    fn gives_its_memory_back_when_it_runs_empty() {
        let mut queue = Queue::default();
        for n in 0..10_000 {
            queue.push_back(n);
        }
        while queue.pop_front().is_some() {}
        assert_eq!(queue.slots.capacity(), 0);
    }
}
