//! Memory regions by key.

use crate::{Access, PdId};

/// A registered region.
#[derive(Clone, Copy, Debug)]
struct Region {
    address: u64,
    iova: u64,
    len: u64,
    access: Access,
    pd: PdId,
}

#[derive(Clone, Copy, Debug, Default)]
struct Slot {
    region: Option<Region>,
    /// Low byte of the key, incremented with every registration so that stale keys fail.
    generation: u8,
    /// The peer's key was invalidated.
    invalidated: bool,
}

/// Regions by key: index in the upper 24 bits, generation in the low 8.
#[derive(Debug)]
pub(crate) struct MrTable {
    slots: Vec<Slot>,
    free: std::collections::VecDeque<u32>,
    count_max: u32,
}

impl MrTable {
    pub fn new(count_max: u32) -> Self {
        MrTable { slots: Vec::new(), free: Default::default(), count_max: count_max.min(1 << 23) }
    }

    pub fn count_max(&self) -> u32 {
        self.count_max
    }

    /// Inserts a region and returns its key; `None` if the table is full.
    pub fn insert(
        &mut self,
        pd: PdId,
        address: u64,
        iova: u64,
        len: u64,
        access: Access,
    ) -> Option<u32> {
        let index = if (self.slots.len() as u32) < self.count_max {
            self.slots.push(Slot::default());
            self.slots.len() as u32 - 1
        } else {
            self.free.pop_front()?
        };
        let slot = &mut self.slots[index as usize];
        slot.region = Some(Region { address, iova, len, access, pd });
        slot.generation = slot.generation.wrapping_add(1);
        slot.invalidated = false;
        // Index 0 could yield key 0, which programs use for "none".
        Some((index + 1) << 8 | u32::from(slot.generation))
    }

    /// Slot of a key, if its generation is current.
    #[inline]
    fn find(&self, key: u32) -> Option<(usize, &Slot)> {
        let index = ((key >> 8) as usize).checked_sub(1)?;
        let slot = self.slots.get(index)?;
        (slot.generation == key as u8 && slot.region.is_some()).then_some((index, slot))
    }

    /// Replaces the region of a key, under the same key, and returns the PD of the old one. A key
    /// that a peer had invalidated becomes valid again.
    pub fn replace(
        &mut self,
        key: u32,
        pd: PdId,
        address: u64,
        iova: u64,
        len: u64,
        access: Access,
    ) -> Option<PdId> {
        let (index, _) = self.find(key)?;
        let slot = &mut self.slots[index];
        slot.invalidated = false;
        slot.region.replace(Region { address, iova, len, access, pd }).map(|old| old.pd)
    }

    /// Removes a region and returns its PD.
    pub fn remove(&mut self, key: u32) -> Option<PdId> {
        let (index, slot) = self.find(key)?;
        let pd = slot.region.map(|r| r.pd);
        self.slots[index].region = None;
        self.free.push_back(index as u32);
        pd
    }

    /// Memory address of `len` bytes at `address`, if the region permits `access` and belongs to
    /// `pd`.
    #[inline]
    pub fn check(&self, key: u32, pd: PdId, address: u64, len: u64, access: Access) -> Option<u64> {
        let (_, slot) = self.find(key)?;
        let region = slot.region.as_ref()?;
        let offset = address.checked_sub(region.iova)?;
        let fits = offset <= region.len && len <= region.len - offset;
        (fits && region.pd == pd && region.access.contains(access)).then(|| region.address + offset)
    }

    /// `true` if the peer may use `key`.
    #[inline]
    pub fn is_remotely_valid(&self, key: u32) -> bool {
        self.find(key).is_some_and(|(_, slot)| !slot.invalidated)
    }

    /// Makes `key` unusable for the peer. Returns `false` if it refers to nothing of `pd` that the
    /// peer could use.
    pub fn invalidate(&mut self, key: u32, pd: PdId) -> bool {
        let Some((index, slot)) = self.find(key) else { return false };
        if slot.invalidated || slot.region.is_none_or(|r| r.pd != pd) {
            return false;
        }
        self.slots[index].invalidated = true;
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PD: PdId = PdId(3);

    #[test]
    fn a_key_reaches_its_region_and_nothing_beyond() {
        let mut table = MrTable::new(4);
        let key = table.insert(PD, 0x1000, 0x50, 100, Access::REMOTE_READ).unwrap();
        assert_eq!(table.check(key, PD, 0x50, 100, Access::REMOTE_READ), Some(0x1000));
        assert_eq!(table.check(key, PD, 0x51, 99, Access::LOCAL_READ), Some(0x1001));
        assert_eq!(table.check(key, PD, 0x51, 100, Access::LOCAL_READ), None);
        assert_eq!(table.check(key, PD, 0x4f, 1, Access::LOCAL_READ), None);
        assert_eq!(table.check(key, PD, u64::MAX, u64::MAX, Access::LOCAL_READ), None);
        assert_eq!(table.check(key, PD, 0x50, 1, Access::REMOTE_WRITE), None);
        assert_eq!(table.check(key, PdId(4), 0x50, 1, Access::LOCAL_READ), None);
        assert_eq!(table.check(0, PD, 0x50, 1, Access::LOCAL_READ), None);
    }

    #[test]
    fn a_stale_key_fails_when_its_slot_is_used_again() {
        let mut table = MrTable::new(1);
        let old = table.insert(PD, 0, 0, 10, Access::ALL).unwrap();
        assert!(table.insert(PD, 0, 0, 10, Access::ALL).is_none());
        assert_eq!(table.remove(old), Some(PD));
        let new = table.insert(PD, 0, 0, 10, Access::ALL).unwrap();
        assert_ne!(old, new);
        assert_eq!(table.check(old, PD, 0, 1, Access::LOCAL_READ), None);
        assert_eq!(table.remove(old), None);
    }

    #[test]
    fn a_replaced_region_keeps_its_key() {
        let mut table = MrTable::new(2);
        let key = table.insert(PD, 0x1000, 0, 10, Access::ALL).unwrap();
        assert!(table.invalidate(key, PD));
        assert_eq!(table.replace(key, PdId(4), 0x2000, 0, 20, Access::LOCAL_WRITE), Some(PD));
        assert!(table.is_remotely_valid(key));
        assert_eq!(table.check(key, PdId(4), 0, 20, Access::LOCAL_WRITE), Some(0x2000));
        assert_eq!(table.check(key, PdId(4), 0, 20, Access::REMOTE_READ), None);
        assert_eq!(table.check(key, PD, 0, 10, Access::LOCAL_READ), None);
        assert_eq!(table.remove(key), Some(PdId(4)));
        assert_eq!(table.replace(key, PD, 0, 0, 10, Access::ALL), None);
    }

    #[test]
    fn an_invalidated_key_fails_for_the_peer_alone() {
        let mut table = MrTable::new(1);
        let key = table.insert(PD, 0, 0, 10, Access::ALL).unwrap();
        assert!(table.invalidate(key, PD));
        assert!(!table.invalidate(key, PD));
        assert!(!table.is_remotely_valid(key));
        assert!(table.check(key, PD, 0, 1, Access::LOCAL_READ).is_some());
    }
}
