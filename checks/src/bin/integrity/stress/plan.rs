//! The work of one side of a lane, derived from the seed.

use crate::plan::size;
use longhaul_units::{Rng, SplitMix64};

/// A work request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verb {
    Send,
    SendImmediate(u32),
    /// Invalidates the key in the peer's last mark.
    SendInvalidate,
    Write,
    WriteImmediate(u32),
    Read,
    FetchAdd(u64),
    /// Compares with the word's value, or with another one.
    CompareSwap {
        is_equal: bool,
        swap: u64,
    },
}

impl Verb {
    /// `true` if it consumes a receive of the peer.
    pub fn is_received(self) -> bool {
        self.is_send() || matches!(self, Verb::WriteImmediate(_))
    }

    pub fn is_send(self) -> bool {
        matches!(self, Verb::Send | Verb::SendImmediate(_) | Verb::SendInvalidate)
    }

    pub fn is_write(self) -> bool {
        matches!(self, Verb::Write | Verb::WriteImmediate(_))
    }

    pub fn is_atomic(self) -> bool {
        matches!(self, Verb::FetchAdd(_) | Verb::CompareSwap { .. })
    }

    /// `true` if data returns to the requester.
    pub fn fetches(self) -> bool {
        self == Verb::Read || self.is_atomic()
    }
}

/// A work request with its offsets.
#[derive(Clone, Copy, Debug)]
pub struct Step {
    pub verb: Verb,
    pub len: usize,
    /// Offset in the requester's source, or in its fetched data.
    pub local: usize,
    /// Offset in the responder's target, receives, or readable memory.
    pub remote: usize,
    pub pieces: usize,
    pub signaled: bool,
    /// Seed of the data.
    pub pattern: u64,
}

/// Sizes of all lanes.
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    pub seed: u64,
    pub largest: usize,
    pub batch_bytes: usize,
}

/// Maximum work requests of a batch.
pub const STEPS_MAX: usize = 24;
/// Maximum bytes between two ranges, which must stay unchanged.
const GAP_MAX: u64 = 40;

impl Shape {
    /// Memory of a batch, gaps included.
    pub fn arena(&self) -> usize {
        (self.batch_bytes + self.largest + STEPS_MAX * (GAP_MAX as usize + 8)).next_multiple_of(64)
    }

    /// Memory for READs by peers.
    pub fn readable(&self) -> usize {
        (2 * self.largest).next_multiple_of(64)
    }

    /// A batch of the server or the client.
    pub fn batch(&self, lane: usize, server: bool, number: usize) -> Vec<Step> {
        let at = (lane as u64) << 32 | (number as u64) << 1 | u64::from(server);
        let mut rng = SplitMix64::new(self.seed ^ at.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        let mut steps: Vec<Step> = Vec::new();
        // Ends of the previous ranges: source, fetched data, target, receives.
        let mut ends = [0; 4];
        let mut bytes = 0;
        while bytes < self.batch_bytes && steps.len() < STEPS_MAX {
            let verb =
                verb(&mut rng, number > 0 && steps.iter().all(|s| s.verb != Verb::SendInvalidate));
            let len = match verb {
                verb if verb.is_atomic() => 8,
                Verb::Read => size(self.largest, &mut rng),
                _ if rng.chance(0.06) => 0,
                _ => size(self.largest, &mut rng),
            };
            let mut place = |area: usize| {
                let at = (ends[area] + rng.below(GAP_MAX) as usize).next_multiple_of(8);
                ends[area] = at + len;
                at
            };
            let local = place(usize::from(verb.fetches()));
            let remote = match verb {
                verb if verb.is_write() => place(2),
                verb if verb.is_send() => place(3),
                Verb::Read => rng.below((self.readable() - len + 1) as u64) as usize,
                _ => 0,
            };
            let pieces = if verb.is_atomic() { 1 } else { (1 + rng.below(4) as usize).min(len) };
            let (signaled, pattern) = (rng.chance(0.75), rng.next_u64());
            steps.push(Step { verb, len, local, remote, pieces, signaled, pattern });
            bytes += len;
        }
        steps
    }
}

fn verb(rng: &mut SplitMix64, may_invalidate: bool) -> Verb {
    let immediate = rng.next_u64() as u32;
    match rng.below(10) {
        0 | 1 => Verb::Send,
        2 => Verb::SendImmediate(immediate),
        3 if may_invalidate => Verb::SendInvalidate,
        3 | 4 => Verb::Write,
        5 => Verb::WriteImmediate(immediate),
        6 | 7 => Verb::Read,
        8 => Verb::FetchAdd(rng.next_u64()),
        _ => Verb::CompareSwap { is_equal: rng.chance(0.5), swap: rng.next_u64() },
    }
}
