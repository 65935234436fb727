//! A namespace with a volatile cache, whose accesses take time and overtake each other.

use super::oracle::BLOCK;
use longhaul_nvme::target::{Io, IoError, Token};
use longhaul_units::{Duration, Instant, Rng, SplitMix64};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

/// An access in progress.
pub struct Access {
    pub token: Token,
    pub io: Io,
    pub durable: bool,
    /// What a write writes.
    pub data: Vec<u8>,
}

pub struct Medium {
    current: Vec<u8>,
    stable: Vec<u8>,
    /// Blocks whose contents are not stable.
    dirty: BTreeSet<usize>,
    accesses: BTreeMap<(Instant, u64), Access>,
    count: u64,
    random: SplitMix64,
    slowest: Duration,
}

impl Medium {
    /// All zeros; accesses take up to `slowest`.
    pub fn new(len: usize, slowest: Duration, seed: u64) -> Self {
        Medium {
            current: vec![0; len],
            stable: vec![0; len],
            dirty: BTreeSet::new(),
            accesses: BTreeMap::new(),
            count: 0,
            random: SplitMix64::new(seed),
            slowest,
        }
    }

    pub fn contents(&self) -> &[u8] {
        &self.current
    }

    pub fn submit(&mut self, now: Instant, access: Access) {
        let time = self.random.next_u64() % (self.slowest.as_ns() + 1);
        self.count += 1;
        self.accesses.insert((now + Duration::from_ns(time), self.count), access);
    }

    pub fn next_at(&self) -> Option<Instant> {
        self.accesses.first_key_value().map(|((at, _), _)| *at)
    }

    /// The next access that is done by now, with the bytes of a read.
    pub fn poll(&mut self, now: Instant) -> Option<(Token, Result<Vec<u8>, IoError>)> {
        let entry = self.accesses.first_entry().filter(|entry| entry.key().0 <= now)?;
        let Access { token, io, durable, data } = entry.remove();
        Some((token, self.access(io, durable, &data)))
    }

    fn access(&mut self, io: Io, durable: bool, data: &[u8]) -> Result<Vec<u8>, IoError> {
        let range = |offset: u64, len: u32| offset as usize..offset as usize + len as usize;
        match io {
            Io::Read { offset, len } => return Ok(self.current[range(offset, len)].to_vec()),
            Io::Write { offset, len, .. } => {
                let range = range(offset, len);
                self.current[range.clone()].copy_from_slice(data);
                self.dirty.extend(blocks(&range));
                if durable {
                    self.settle(blocks(&range));
                }
            }
            Io::Flush => self.settle(0..self.current.len() / BLOCK),
            Io::Compare { .. } | Io::WriteZeroes(_) | Io::Deallocate(_) => {
                unreachable!("this host sends none")
            }
        }
        Ok(Vec::new())
    }

    fn settle(&mut self, blocks: Range<usize>) {
        for block in blocks {
            if self.dirty.remove(&block) {
                let bytes = block * BLOCK..(block + 1) * BLOCK;
                self.stable[bytes.clone()].copy_from_slice(&self.current[bytes]);
            }
        }
    }

    /// The target's process dies: accesses that the kernel has begun end, others never begin.
    pub fn abandon(&mut self) {
        while let Some((_, access)) = self.accesses.pop_first() {
            if self.random.next_u64().is_multiple_of(2) {
                // Nobody waits for the outcome.
                let _ = self.access(access.io, access.durable, &access.data);
            }
        }
    }

    /// Of each block that is not stable, the cache was written back or is lost.
    pub fn lose_power(&mut self) {
        self.accesses.clear();
        for block in std::mem::take(&mut self.dirty) {
            let bytes = block * BLOCK..(block + 1) * BLOCK;
            if self.random.next_u64().is_multiple_of(2) {
                self.stable[bytes.clone()].copy_from_slice(&self.current[bytes]);
            } else {
                self.current[bytes.clone()].copy_from_slice(&self.stable[bytes]);
            }
        }
    }
}

fn blocks(bytes: &Range<usize>) -> Range<usize> {
    bytes.start / BLOCK..bytes.end / BLOCK
}
