//! A hash index from keys to slots of the flow table.

use crate::key::WireKey;
use foldhash::fast::FixedState;
use hashbrown::HashTable;
use std::hash::BuildHasher;

/// Finds slots of flows by a key that the flow itself keeps.
///
/// An entry is eight bytes: who looks for a flow reads the flow anyway, and tables of many flows
/// leave the cache.
#[derive(Debug)]
pub(crate) struct Index {
    places: HashTable<Place>,
    state: FixedState,
}

#[derive(Clone, Copy, Debug)]
struct Place {
    /// Of the key's hash.
    tag: u32,
    slot: u32,
}

impl Place {
    /// The hash that the table goes by, which looks at both ends of it.
    #[inline]
    fn hash(&self) -> u64 {
        u64::from(self.tag) << 32 | u64::from(self.tag)
    }
}

impl Index {
    pub(crate) fn new(seed: u64) -> Self {
        Index { places: HashTable::new(), state: FixedState::with_seed(seed) }
    }

    #[inline]
    fn place(&self, key: &WireKey, slot: u32) -> Place {
        Place { tag: self.state.hash_one(key) as u32, slot }
    }

    /// The slot under `key`; `has_key` tells whether the flow in a slot has it.
    #[inline]
    pub(crate) fn get(&self, key: &WireKey, has_key: impl Fn(u32) -> bool) -> Option<u32> {
        let sought = self.place(key, 0);
        let found =
            self.places.find(sought.hash(), |place| place.tag == sought.tag && has_key(place.slot));
        found.map(|place| place.slot)
    }

    /// Puts `slot` under `key`, in the place of any other; `has_key` as for [`Index::get`].
    pub(crate) fn insert(&mut self, key: &WireKey, slot: u32, has_key: impl Fn(u32) -> bool) {
        let place = self.place(key, slot);
        let same =
            |other: &Place| other.tag == place.tag && (other.slot == slot || has_key(other.slot));
        match self.places.find_mut(place.hash(), same) {
            Some(other) => *other = place,
            None => _ = self.places.insert_unique(place.hash(), place, Place::hash),
        }
    }

    /// Forgets that `slot` is under `key`, if it is.
    pub(crate) fn remove(&mut self, key: &WireKey, slot: u32) {
        let place = self.place(key, slot);
        let same = |other: &Place| (other.tag, other.slot) == (place.tag, slot);
        if let Ok(found) = self.places.find_entry(place.hash(), same) {
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
            // The key of each slot's flow: a slot whose key another one has taken keeps it, as a
            // flow does.
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
                prop_assert_eq!(index.places.len(), model.len());
            }
        }
    }
}
