//! A hash index from keys to slots of the flow table.

use crate::key::WireKey;
use foldhash::fast::FixedState;
use hashbrown::HashTable;
use std::hash::BuildHasher;

/// Maps a key to a slot of the flow table; the flow in the slot holds the key.
///
/// An entry is 8 bytes, without the key: a look-up reads the flow anyway, and the tables of many
/// flows exceed the cache.
#[derive(Debug)]
pub(crate) struct Index {
    slots: HashTable<TaggedSlot>,
    state: FixedState,
}

#[derive(Clone, Copy, Debug)]
struct TaggedSlot {
    /// Low bits of the key's hash.
    tag: u32,
    slot: u32,
}

impl TaggedSlot {
    /// The hash used in the table, which needs entropy in both its high and its low bits.
    #[inline]
    fn hash(&self) -> u64 {
        u64::from(self.tag) << 32 | u64::from(self.tag)
    }
}

impl Index {
    pub(crate) fn new(seed: u64) -> Self {
        Index { slots: HashTable::new(), state: FixedState::with_seed(seed) }
    }

    #[inline]
    fn tagged(&self, key: &WireKey, slot: u32) -> TaggedSlot {
        TaggedSlot { tag: self.state.hash_one(key) as u32, slot }
    }

    /// The slot of `key`; `has_key` returns whether the flow in a slot has that key.
    #[inline]
    pub(crate) fn get(&self, key: &WireKey, has_key: impl Fn(u32) -> bool) -> Option<u32> {
        let sought = self.tagged(key, 0);
        let found = self
            .slots
            .find(sought.hash(), |tagged| tagged.tag == sought.tag && has_key(tagged.slot));
        found.map(|tagged| tagged.slot)
    }

    /// Maps `key` to `slot`, replacing any previous entry; `has_key` as for [`Index::get`].
    pub(crate) fn insert(&mut self, key: &WireKey, slot: u32, has_key: impl Fn(u32) -> bool) {
        let tagged = self.tagged(key, slot);
        let same = |other: &TaggedSlot| {
            other.tag == tagged.tag && (other.slot == slot || has_key(other.slot))
        };
        match self.slots.find_mut(tagged.hash(), same) {
            Some(other) => *other = tagged,
            None => _ = self.slots.insert_unique(tagged.hash(), tagged, TaggedSlot::hash),
        }
    }

    /// Removes the entry that maps `key` to `slot`, if there is one.
    pub(crate) fn remove(&mut self, key: &WireKey, slot: u32) {
        let tagged = self.tagged(key, slot);
        let same = |other: &TaggedSlot| (other.tag, other.slot) == (tagged.tag, slot);
        if let Ok(found) = self.slots.find_entry(tagged.hash(), same) {
            found.remove();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::HashMap;

    fn key(number: u32) -> WireKey {
        WireKey::of_connection([10, 0, 0, 1].into(), [10, 0, 0, 2].into(), 0, number)
    }

    proptest! {
        #[test]
        fn is_as_a_map(steps in prop::collection::vec((0..3_u8, 0..40_u32, 0..60_u32), 0..300)) {
            let (mut index, mut model) = (Index::new(7), HashMap::new());
            // Key of each slot's flow. A slot whose entry was taken over keeps its key, as a flow
            // does.
            let mut keys = HashMap::new();
            for (step, number, slot) in steps {
                let has_key = |keys: &HashMap<u32, u32>, slot| keys.get(&slot) == Some(&number);
                match step {
                    0 if !keys.contains_key(&slot) => {
                        index.insert(&key(number), slot, |slot| has_key(&keys, slot));
                        keys.insert(slot, number);
                        model.insert(number, slot);
                    }
                    1 => {
                        if let Some(number) = keys.remove(&slot) {
                            index.remove(&key(number), slot);
                            if model.get(&number) == Some(&slot) {
                                model.remove(&number);
                            }
                        }
                    }
                    _ => {
                        let found = index.get(&key(number), |slot| has_key(&keys, slot));
                        prop_assert_eq!(found, model.get(&number).copied());
                    }
                }
                prop_assert_eq!(index.slots.len(), model.len());
            }
        }
    }
}
