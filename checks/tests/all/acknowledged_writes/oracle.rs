//! What each unit of a namespace may contain.

use longhaul_units::{Rng, SplitMix64};

pub const BLOCK: usize = 512;

/// Writes of a unit, numbered from 1; 0 means that it was never written.
#[derive(Clone, Copy, Default)]
struct Unit {
    /// The last one that was begun.
    begun: u64,
    /// The last one that was acknowledged or read.
    acknowledged: u64,
    /// The last one that a flush covers.
    durable: u64,
}

/// The contents that a host wrote, and those that it must find.
pub struct Oracle {
    seed: u64,
    unit_len: usize,
    units: Vec<Unit>,
    /// Acknowledged writes.
    pub acknowledged: u64,
    /// Times that the medium lost its volatile cache.
    pub power_losses: u32,
}

impl Oracle {
    pub fn new(seed: u64, units: usize, unit_len: usize) -> Self {
        Oracle {
            seed,
            unit_len,
            units: vec![Unit::default(); units],
            acknowledged: 0,
            power_losses: 0,
        }
    }

    pub fn units(&self) -> usize {
        self.units.len()
    }

    pub fn unit_len(&self) -> usize {
        self.unit_len
    }

    /// Contents of the next write of a unit, and its number.
    pub fn begin(&mut self, unit: usize) -> (u64, Vec<u8>) {
        self.units[unit].begun += 1;
        let version = self.units[unit].begun;
        let blocks = self.unit_len / BLOCK;
        (version, (0..blocks).flat_map(|block| self.contents(unit, block, version)).collect())
    }

    /// A write was acknowledged that was sent after `power_losses` losses of power. It was executed
    /// before the next one.
    pub fn acknowledge(&mut self, unit: usize, version: u64, power_losses: u32) {
        self.acknowledged += 1;
        if power_losses == self.power_losses {
            let known = &mut self.units[unit].acknowledged;
            *known = version.max(*known);
        }
    }

    /// What a flush that is sent now covers.
    pub fn covered(&self) -> Vec<u64> {
        self.units.iter().map(|unit| unit.acknowledged).collect()
    }

    pub fn flushed(&mut self, covered: &[u64]) {
        for (unit, version) in self.units.iter_mut().zip(covered) {
            unit.durable = unit.durable.max(*version);
            unit.acknowledged = unit.acknowledged.max(*version);
        }
    }

    /// The medium lost what no flush covered, or a part of it.
    pub fn lose_power(&mut self) {
        self.power_losses += 1;
        self.units.iter_mut().for_each(|unit| unit.acknowledged = unit.durable);
    }

    /// Checks what a unit contains. The host knows from then on what it has seen, unless the medium
    /// lost power meanwhile.
    pub fn read(&mut self, unit: usize, found: &[u8], power_losses: u32) -> Result<(), String> {
        let mut oldest = u64::MAX;
        for (block, found) in found.chunks(BLOCK).enumerate() {
            let Unit { begun, acknowledged, .. } = self.units[unit];
            let version = u64::from_le_bytes(*found.first_chunk().expect("a block"));
            let wanted = match version {
                0 => vec![0; BLOCK],
                version => self.contents(unit, block, version),
            };
            if version > begun || found != wanted {
                return Err(format!("block {block} of unit {unit} has bytes that nobody wrote"));
            }
            if version < acknowledged {
                return Err(format!(
                    "block {block} of unit {unit} has write {version}; write {acknowledged} of \
                     {begun} was acknowledged"
                ));
            }
            oldest = oldest.min(version);
        }
        if power_losses == self.power_losses {
            self.units[unit].acknowledged = oldest;
        }
        Ok(())
    }

    fn contents(&self, unit: usize, block: usize, version: u64) -> Vec<u8> {
        let place = (unit as u64) << 40 ^ (block as u64) << 32;
        let mut words = SplitMix64::new(self.seed ^ place ^ version.rotate_left(20));
        let words = (1..BLOCK / 8).map(move |_| words.next_u64());
        std::iter::once(version).chain(words).flat_map(u64::to_le_bytes).collect()
    }
}
