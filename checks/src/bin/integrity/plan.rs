//! The work of one side, derived from the seed.

use longhaul_units::{Rng, SplitMix64};

/// One work request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verb {
    Write,
    WriteImmediate(u32),
    Send,
    SendImmediate(u32),
    Read,
}

impl Verb {
    /// `true` if it consumes a receive of the peer.
    pub fn is_received(self) -> bool {
        !matches!(self, Verb::Write | Verb::Read)
    }
}

/// A work request with its offsets.
#[derive(Clone, Copy, Debug)]
pub struct Step {
    pub wr_id: u64,
    pub verb: Verb,
    pub len: usize,
    /// Offset of the source (WRITE, SEND) or the destination (READ) in the requester's memory.
    pub local: usize,
    /// WRITE and READ: offset at the responder. SEND: offset in the responder's receive memory.
    pub remote: usize,
    /// SEND: number of bytes by which its receive exceeds the message.
    pub slack: usize,
    /// Segments of local memory.
    pub pieces: usize,
    pub signaled: bool,
    /// Seed of the data.
    pub pattern: u64,
}

/// Work posted between two synchronisations.
#[derive(Debug)]
pub struct Batch {
    pub steps: Vec<Step>,
}

/// Sizes of a plan.
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    pub seed: u64,
    pub batches: usize,
    pub batch_bytes: usize,
    pub largest: usize,
}

/// Maximum work requests of a batch: with the marks they fit into every queue.
const STEPS_MAX: usize = 100;

impl Shape {
    /// Bytes of each half of the written memory.
    pub fn half(&self) -> usize {
        2 * self.largest
    }

    /// Maximum local memory of one batch, slack included.
    pub fn arena(&self) -> usize {
        self.batch_bytes + self.largest + STEPS_MAX * 64
    }

    /// The work of the server or the client.
    pub fn plan(&self, server: bool) -> Vec<Batch> {
        let mut rng = SplitMix64::new(self.seed.wrapping_mul(2).wrapping_add(server.into()));
        (0..self.batches).map(|number| self.batch(number, &mut rng)).collect()
    }

    /// WRITEs use one half of the responder's memory and READs the other: a READ that is
    /// retransmitted may otherwise return a later WRITE's data.
    fn batch(&self, number: usize, rng: &mut SplitMix64) -> Batch {
        let (written, read) = ((number % 2) * self.half(), ((number + 1) % 2) * self.half());
        let (mut local, mut received, mut bytes) = (0, 0, 0);
        let mut steps = Vec::new();
        while bytes < self.batch_bytes && steps.len() < STEPS_MAX {
            let immediate = rng.next_u64() as u32;
            let mut verb = match rng.below(8) {
                0 => Verb::WriteImmediate(immediate),
                1..=2 => Verb::Send,
                3 => Verb::SendImmediate(immediate),
                4..=5 => Verb::Read,
                _ => Verb::Write,
            };
            let mut len = size(self.largest, rng);
            if steps.is_empty() && number < 3 {
                // The longest message, once with each verb.
                len = self.largest;
                verb = [Verb::Write, Verb::Send, Verb::Read][number];
            }
            let slack = rng.below(64) as usize;
            let within = rng.below((self.half() - len + 1) as u64) as usize;
            let remote = match verb {
                Verb::Write | Verb::WriteImmediate(_) => written + within,
                Verb::Read => read + within,
                Verb::Send | Verb::SendImmediate(_) => received,
            };
            if matches!(verb, Verb::Send | Verb::SendImmediate(_)) {
                received += len + slack;
            }
            steps.push(Step {
                wr_id: (number as u64) << 32 | (steps.len() as u64) << 8 | rng.below(256),
                verb,
                len,
                local,
                remote,
                slack,
                pieces: (1 + rng.below(4) as usize).min(len),
                signaled: rng.chance(0.75),
                pattern: rng.next_u64(),
            });
            local += len;
            bytes += len;
        }
        Batch { steps }
    }
}

/// Half of the sizes are near multiples of a path MTU, the others spread evenly over the powers of
/// two.
pub fn size(largest: usize, rng: &mut SplitMix64) -> usize {
    let len = if rng.chance(0.5) {
        let packets = rng.below(6) as usize;
        (packets * 1024 + rng.below(3) as usize).saturating_sub(1)
    } else {
        let power = 1 << rng.below(u64::from(largest.ilog2()) + 1);
        power + rng.below(power as u64) as usize
    };
    len.clamp(1, largest)
}

/// Fills `out` with the data of `pattern`.
pub fn fill(pattern: u64, out: &mut [u8]) {
    let mut rng = SplitMix64::new(pattern);
    for chunk in out.chunks_mut(8) {
        chunk.copy_from_slice(&rng.next_u64().to_le_bytes()[..chunk.len()]);
    }
}
