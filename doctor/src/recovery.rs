//! Go-back-N seen from outside: causes and costs of retransmissions.

use crate::histogram::Histogram;
use crate::stalls::Cause;
use longhaul_units::Psn;

/// Maximum episodes stored with figures; later ones are only counted.
const EPISODES_MAX: usize = 256;
/// Maximum tries of one packet whose intervals are stored.
const TRIES_MAX: usize = 12;

/// One run of retransmissions.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Episode {
    pub cause: Cause,
    /// Time of the first retransmission.
    pub at_ns: u64,
    pub frame: u64,
    /// Time since the last packet or progress.
    pub waited_ns: u64,
    pub from: Psn,
    /// Packets that this capture point had seen before.
    pub packets: u64,
    pub bytes: u64,
    /// The first packet had been acknowledged before its retransmission.
    pub was_acknowledged: bool,
}

/// Sums over the episodes of one cause.
#[derive(Clone, Debug, Default)]
pub(crate) struct Sum {
    pub episodes: u64,
    pub packets: u64,
    pub bytes: u64,
    pub waited: Histogram,
}

/// An event that causes retransmissions.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Demand {
    pub cause: Cause,
    pub sequence: u64,
    pub at_ns: u64,
}

/// All of one flow's episodes.
#[derive(Clone, Debug, Default)]
pub(crate) struct Recovery {
    pub episodes: Vec<Episode>,
    sums: [Option<Box<Sum>>; Cause::ALL.len()],
    current: Option<(Episode, u64)>,
    demand: Option<Demand>,
    /// Timeouts of one packet without progress in between.
    tries: Vec<u64>,
    tries_at: u64,
    /// The longest run of such tries, as the wait before each.
    pub longest_tries: Vec<u64>,
    /// Premature retransmissions: the response came sooner afterwards than the minimum round trip.
    pub premature: u64,
}

impl Recovery {
    /// Records a NAK, or a response that passes an outstanding READ.
    pub fn demanded(&mut self, demand: Demand) {
        self.demand = Some(demand);
    }

    pub fn has_demand(&self) -> bool {
        self.demand.is_some()
    }

    pub fn demanded_at_ns(&self) -> Option<u64> {
        self.demand.map(|d| d.at_ns)
    }

    /// Records that everything below `sequence` is acknowledged.
    pub fn progressed(&mut self, sequence: u64) {
        if self.demand.is_some_and(|d| d.sequence < sequence) {
            self.demand = None;
        }
        if self.tries_at < sequence {
            self.tries.clear();
        }
    }

    /// Returns whether the retransmission of `sequence` begins an episode, and its cause.
    pub fn cause_of(
        &self,
        sequence: u64,
        waited_ns: u64,
        rtt_min_ns: Option<u64>,
    ) -> Option<Cause> {
        if self.current.is_some_and(|(_, expected)| sequence >= expected) {
            return None;
        }
        Some(match self.demand {
            Some(demand) => demand.cause,
            // Too soon for a timer: its cause is missing in the capture.
            None if waited_ns < rtt_min_ns.unwrap_or(0) / 2 => Cause::Unprompted,
            None => Cause::Timeout,
        })
    }

    pub fn begin(&mut self, episode: Episode, sequence: u64) {
        self.end();
        if episode.cause == Cause::Timeout {
            if self.tries_at != sequence {
                self.tries.clear();
                self.tries_at = sequence;
            }
            if self.tries.len() < TRIES_MAX {
                self.tries.push(episode.waited_ns);
            }
            if self.tries.len() > self.longest_tries.len() {
                self.longest_tries.clone_from(&self.tries);
            }
        }
        self.current = Some((episode, sequence));
    }

    /// Adds a packet to the current episode; `bytes` if this capture point had seen it before.
    pub fn resent(&mut self, sequence: u64, bytes: Option<u64>) {
        if let Some((episode, expected)) = &mut self.current {
            *expected = sequence + 1;
            if let Some(bytes) = bytes {
                episode.packets += 1;
                episode.bytes += bytes;
            }
        }
        if self.demand.is_some_and(|d| d.sequence == sequence) {
            self.demand = None;
        }
    }

    /// Ends the episode, at a first transmission or the end of the capture.
    pub fn end(&mut self) {
        let Some((episode, _)) = self.current.take() else { return };
        let sum = self.sums[episode.cause as usize].get_or_insert_default();
        sum.episodes += 1;
        sum.packets += episode.packets;
        sum.bytes += episode.bytes;
        sum.waited.add(episode.waited_ns);
        if self.episodes.len() < EPISODES_MAX {
            self.episodes.push(episode);
        }
    }

    /// Discards pending causes when the queue pair is reset.
    pub fn restart(&mut self) {
        self.end();
        self.demand = None;
        self.tries.clear();
    }

    pub fn is_recovering(&self) -> bool {
        self.current.is_some()
    }

    pub fn of(&self, cause: Cause) -> Option<&Sum> {
        self.sums[cause as usize].as_deref()
    }

    pub fn sums(&self) -> impl Iterator<Item = (Cause, &Sum)> {
        Cause::ALL.into_iter().filter_map(|cause| Some((cause, self.of(cause)?)))
    }

    /// Returns whether the waits of one packet grow by a factor near two at least three times in a
    /// row.
    pub fn backs_off(&self) -> bool {
        let waits = &self.longest_tries;
        waits.len() >= 3
            && waits.windows(2).all(|w| {
                let factor = w[1] as f64 / w[0].max(1) as f64;
                (1.4..3.0).contains(&factor)
            })
    }
}
