//! Whether a thread that finds no work polls on or sleeps.

use std::time::{Duration, Instant};

/// Longest time without work that a thread polls through: about what a wake-up costs.
const LONGEST: Duration = Duration::from_micros(20);

/// The time without work of a polling thread. The thread polls through it only if the one before
/// was short: fast work then costs no wake-ups, and slow work no polling.
#[derive(Debug, Default)]
pub struct BusyPoll {
    since: Option<Instant>,
    was_short: bool,
}

impl BusyPoll {
    /// There is no work. `true` if the thread should look again rather than sleep.
    pub fn goes_on(&mut self) -> bool {
        let since = *self.since.get_or_insert_with(Instant::now);
        self.was_short && since.elapsed() < LONGEST
    }

    /// There is work.
    pub fn found(&mut self) {
        if let Some(since) = self.since.take() {
            self.was_short = since.elapsed() < LONGEST;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_short_time_without_work_lets_the_next_be_polled_through() {
        let mut busy = BusyPoll::default();
        assert!(!busy.goes_on(), "nothing is known of this thread's work");
        busy.was_short = true;
        busy.since = None;
        // The machine may have stopped this thread for longer than the limit.
        let began = Instant::now();
        let goes_on = busy.goes_on();
        assert!(goes_on || began.elapsed() >= LONGEST);
        busy.since = Some(began.checked_sub(LONGEST).unwrap());
        assert!(!busy.goes_on(), "it sleeps at the limit");
        busy.found();
        assert!(!busy.was_short && !busy.goes_on(), "and at once the next time");
        busy.since = Some(Instant::now() + LONGEST);
        busy.found();
        assert!(busy.was_short);
        busy.found();
        assert!(busy.was_short, "work without a pause changes nothing");
    }
}
