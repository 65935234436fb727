//! How often a requester goes back to packets that it has sent already.

use longhaul_units::{Duration, Instant};

/// Shortest time between two repetitions; packets that come sooner were duplicated or reordered by
/// the LAN.
pub(crate) const APART: Duration = Duration::from_ms(1);

/// A count of repetitions that are at least [`APART`] apart.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Repetitions {
    times: u32,
    at: Option<Instant>,
}

impl Repetitions {
    /// No repetition yet of a packet that was first sent at `at`.
    pub(crate) fn since(at: Instant) -> Self {
        Repetitions { times: 0, at: Some(at) }
    }

    /// Counts a repetition; returns `false` if it came too soon.
    pub(crate) fn count(&mut self, now: Instant) -> bool {
        if self.is_within(now, APART) {
            return false;
        }
        *self = Repetitions { times: self.times.saturating_add(1), at: Some(now) };
        true
    }

    /// Restarts the count, [`APART`] after the last repetition.
    pub(crate) fn restarted(self) -> Self {
        Repetitions { times: 0, ..self }
    }

    pub(crate) fn times(&self) -> u32 {
        self.times
    }

    /// True if the last counted repetition is less than `time` ago.
    pub(crate) fn is_within(&self, now: Instant, time: Duration) -> bool {
        self.at.is_some_and(|at| now.since(at) < time)
    }

    /// Time of the last counted repetition.
    pub(crate) fn last_at(&self) -> Option<Instant> {
        self.at
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn copies_of_one_packet_count_once() {
        let at = |us| Instant::ZERO + Duration::from_us(us);
        let mut repetitions = Repetitions::default();
        assert!(repetitions.count(at(5)), "the first");
        assert!(!repetitions.count(at(500)) && repetitions.count(at(1005)));
        assert_eq!(repetitions.times(), 2);
        let mut restarted = repetitions.restarted();
        assert!(!restarted.count(at(1500)) && restarted.count(at(2005)));
        assert_eq!(restarted.times(), 1);
        assert!(!Repetitions::since(at(0)).count(at(999)));
    }
}
