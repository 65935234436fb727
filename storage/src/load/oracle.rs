//! Contents of blocks, and what each block must contain.

use super::record::{Versions, Written};

/// A block with other contents than were written.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Mismatch {
    /// First block of the operation, in the namespace.
    pub block: u64,
    /// Offset of the first wrong byte.
    pub at: u32,
    /// How often the block had been written.
    pub version: u32,
}

/// Contents of each unit of a job: its version, 0 if it was not written.
pub(super) struct Oracle {
    seed: u64,
    versions: Vec<u32>,
    /// Version of the last write that was completed.
    acknowledged: Vec<u32>,
    /// Units with an outstanding operation.
    busy: Vec<bool>,
}

const STEP: u64 = 0x9e37_79b9_7f4a_7c15;

impl Oracle {
    pub(super) fn new(seed: u64, units: u64) -> Self {
        let units = usize::try_from(units).unwrap_or(usize::MAX);
        Oracle {
            seed,
            versions: vec![0; units],
            acknowledged: vec![0; units],
            busy: vec![false; units],
        }
    }

    /// Reserves the first idle unit from `unit` on, in a circle.
    pub(super) fn reserve(&mut self, unit: u64) -> Option<u64> {
        let count = self.busy.len();
        let start = unit as usize;
        let idle = (0..count).map(|i| (start + i) % count).find(|unit| !self.busy[*unit])?;
        self.busy[idle] = true;
        Some(idle as u64)
    }

    pub(super) fn release(&mut self, unit: u64) {
        self.busy[unit as usize] = false;
    }

    /// Notes that the last write of a unit was completed.
    pub(super) fn acknowledge(&mut self, unit: u64) {
        self.acknowledged[unit as usize] = self.versions[unit as usize];
    }

    /// What has been written, from block `first` on.
    pub(super) fn record(&self, first: u64) -> Written {
        let units = self.written().map(|unit| {
            let (acknowledged, begun) = (self.acknowledged[unit as usize], self.version(unit));
            (unit, Versions { acknowledged, begun })
        });
        Written { seed: self.seed, first, units: units.collect() }
    }

    /// Contents for the next write of a reserved unit.
    pub(super) fn fill(&mut self, unit: u64, to: &mut [u8]) {
        self.versions[unit as usize] += 1;
        self.put(unit, to);
    }

    /// Contents that differ in every byte from what was last written.
    pub(super) fn complement(&self, unit: u64, to: &mut [u8]) {
        self.put(unit, to);
        to.iter_mut().for_each(|byte| *byte = !*byte);
    }

    fn put(&self, unit: u64, to: &mut [u8]) {
        let mut word = first_word(self.seed, unit, self.version(unit));
        for piece in to.chunks_mut(8) {
            piece.copy_from_slice(&word.to_le_bytes()[..piece.len()]);
            word = word.wrapping_add(STEP);
        }
    }

    pub(super) fn version(&self, unit: u64) -> u32 {
        self.versions[unit as usize]
    }

    /// Units that were written.
    pub(super) fn written(&self) -> impl Iterator<Item = u64> {
        let written = self.versions.iter().enumerate().filter(|(_, version)| **version > 0);
        written.map(|(unit, _)| unit as u64)
    }

    /// Offset of the first byte that differs from what was last written.
    pub(super) fn differs(&self, unit: u64, found: &[u8]) -> Option<u32> {
        contents_differ(self.seed, unit, self.version(unit), 0, found)
    }
}

/// Offset of the first byte that differs from what this version of a unit has from byte `from` on,
/// a multiple of 8.
pub(super) fn contents_differ(
    seed: u64,
    unit: u64,
    version: u32,
    from: usize,
    found: &[u8],
) -> Option<u32> {
    let begun = (from as u64 / 8).wrapping_mul(STEP);
    let mut word = first_word(seed, unit, version).wrapping_add(begun);
    for (i, piece) in found.chunks(8).enumerate() {
        let expected = word.to_le_bytes();
        if let Some(at) = piece.iter().zip(expected).position(|(one, other)| *one != other) {
            return Some((8 * i + at) as u32);
        }
        word = word.wrapping_add(STEP);
    }
    None
}

fn first_word(seed: u64, unit: u64, version: u32) -> u64 {
    // SplitMix64's finalizer (Steele, Lea, Flood, 2014).
    let mut word = seed ^ unit.rotate_left(24) ^ u64::from(version);
    word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    word ^ (word >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn other_units_other_versions_and_other_bytes_differ() {
        let mut oracle = Oracle::new(7, 4);
        let (mut first, mut second, mut other) = ([0; 1001], [0; 1001], [0; 1001]);
        oracle.fill(2, &mut first);
        assert_eq!(oracle.differs(2, &first), None);
        let mut complement = [0; 1001];
        oracle.complement(2, &mut complement);
        assert!(complement.iter().zip(first).all(|(one, other)| *one != other));
        oracle.fill(2, &mut second);
        oracle.fill(3, &mut other);
        assert_eq!(oracle.differs(2, &second), None);
        assert!(oracle.differs(2, &first).is_some() && oracle.differs(2, &other).is_some());
        second[1000] ^= 1;
        assert_eq!(oracle.differs(2, &second), Some(1000));
        assert_eq!(oracle.written().collect::<Vec<_>>(), [2, 3]);
    }

    #[test]
    fn a_unit_has_one_operation() {
        let mut oracle = Oracle::new(7, 3);
        assert_eq!(
            [2, 2, 2, 2].map(|unit| oracle.reserve(unit)),
            [Some(2), Some(0), Some(1), None]
        );
        oracle.release(0);
        assert_eq!(oracle.reserve(1), Some(0));
    }
}
