//! When each message is due, and which are left out.

use super::{Recording, Source, Station};
use std::time::{Duration, Instant};

/// Waits longer than this sleep; shorter ones poll.
const SLEEP_ABOVE: Duration = Duration::from_micros(150);
/// A sleep ends this early, because a wake-up takes time.
const WAKE_EARLY: Duration = Duration::from_micros(80);
/// Longest sleep.
const SLEEP_MAX: Duration = Duration::from_millis(50);

/// Schedule of a station's messages: absolute, so that delays do not add up.
pub struct Schedule {
    begun: Option<Instant>,
    /// Between messages; zero: none are paced.
    interval: f64,
    /// Times of recorded messages that are due as they were recorded; empty otherwise.
    times: Vec<Duration>,
    count: u64,
    jitter: Duration,
    gap: f64,
    random: u64,
    behind: Duration,
}

impl Schedule {
    /// The schedule of `station`, which begins with the first message.
    #[must_use]
    pub fn new(station: &Station) -> Self {
        let bits = f64::from(station.message_bytes) * 8.0;
        let times = match (&station.source, station.rate) {
            (Source::Recorded(Recording { times, .. }), None) => times.clone(),
            _ => Vec::new(),
        };
        Schedule {
            times,
            begun: None,
            interval: station.rate.map_or(0.0, |rate| bits / rate),
            count: 0,
            jitter: station.jitter,
            gap: station.gap,
            random: station.seed,
            behind: Duration::ZERO,
        }
    }

    /// Time since the first message.
    #[must_use]
    pub fn elapsed(&self) -> Duration {
        self.begun.map_or(Duration::ZERO, |begun| begun.elapsed())
    }

    /// Largest delay behind the schedule.
    #[must_use]
    pub fn behind(&self) -> Duration {
        self.behind
    }

    /// A number from 0 to 1 (SplitMix64).
    fn draw(&mut self) -> f64 {
        self.random = self.random.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut word = self.random;
        word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((word ^ (word >> 31)) >> 11) as f64 / (1_u64 << 53) as f64
    }

    /// Whether the next message is left out.
    pub fn is_gap(&mut self) -> bool {
        self.gap > 0.0 && self.draw() < self.gap
    }

    /// Waits until the next message is due. `idle` runs while there is time, at least once in a
    /// while.
    ///
    /// # Errors
    /// Those of `idle`.
    pub fn wait<E>(&mut self, mut idle: impl FnMut() -> Result<(), E>) -> Result<(), E> {
        let begun = *self.begun.get_or_insert_with(Instant::now);
        let recorded = self.times.get(self.count as usize).copied();
        if self.interval == 0.0 && recorded.is_none() {
            return Ok(());
        }
        let paced = || Duration::from_secs_f64(self.count as f64 * self.interval);
        let scheduled = recorded.unwrap_or_else(paced);
        self.count += 1;
        let late = if self.jitter.is_zero() { 0.0 } else { self.draw() };
        let due = scheduled + self.jitter.mul_f64(late);
        let mut now = begun.elapsed();
        self.behind = self.behind.max(now.saturating_sub(due));
        while now < due {
            let left = due - now;
            if left > SLEEP_ABOVE {
                std::thread::sleep((left - WAKE_EARLY).min(SLEEP_MAX));
            }
            idle()?;
            now = begun.elapsed();
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gaps_have_their_probability_and_come_from_the_seed() {
        let station = Station { gap: 0.1, ..Station::default() };
        let count = |station: &Station| {
            let mut schedule = Schedule::new(station);
            (0..100_000).filter(|_| schedule.is_gap()).count()
        };
        let gaps = count(&station);
        assert!((9_500..10_500).contains(&gaps), "{gaps}");
        assert_eq!(count(&station), gaps);
        assert_ne!(count(&Station { seed: 2, ..station }), gaps);
    }

    #[test]
    fn recorded_messages_are_due_as_they_were_recorded_or_at_the_rate() {
        let times: Vec<_> = [0, 20, 30].map(Duration::from_millis).into();
        let source = Source::Recorded(Recording { bytes: vec![0; 3000], times });
        let station = Station { message_bytes: 1000, source, ..Station::default() };
        for (rate, least) in [(None, 30), (Some(1.6e5), 100)] {
            let mut schedule = Schedule::new(&Station { rate, ..station.clone() });
            for _ in 0..3 {
                schedule.wait(|| Ok::<_, ()>(())).unwrap();
            }
            assert!(schedule.elapsed() >= Duration::from_millis(least));
        }
    }

    #[test]
    fn no_message_leaves_before_its_time() {
        let station = Station { message_bytes: 1000, rate: Some(80e6), ..Station::default() };
        let mut schedule = Schedule::new(&station);
        let begun = Instant::now();
        for _ in 0..=200 {
            schedule.wait(|| Ok::<_, ()>(())).unwrap();
        }
        assert!(begun.elapsed() >= Duration::from_millis(20));
    }
}
