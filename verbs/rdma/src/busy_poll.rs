//! Whether a thread that finds no work polls on or sleeps.

use std::time::{Duration, Instant};

/// The time without work of a polling thread. The thread polls through it only if the one before
/// was short: fast work then costs no wake-ups, and slow work no polling.
#[derive(Debug)]
pub struct BusyPoll {
    longest: Duration,
    since: Option<Instant>,
    was_short: bool,
}

impl BusyPoll {
    /// `longest` is the longest time without work that the thread polls through: about what a
    /// wake-up costs, to the thread itself or to whoever waits for it.
    #[must_use]
    pub fn up_to(longest: Duration) -> Self {
        BusyPoll { longest, since: None, was_short: false }
    }

    /// There is no work. `true` if the thread should look again rather than sleep.
    pub fn should_poll(&mut self) -> bool {
        let since = *self.since.get_or_insert_with(Instant::now);
        self.was_short && since.elapsed() < self.longest
    }

    /// There is work.
    pub fn note_work(&mut self) {
        if let Some(since) = self.since.take() {
            self.was_short = since.elapsed() < self.longest;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LONGEST: Duration = Duration::from_micros(20);

    #[test]
    fn only_a_short_time_without_work_lets_the_next_be_polled_through() {
        let mut busy = BusyPoll::up_to(LONGEST);
        assert!(!busy.should_poll(), "nothing is known of this thread's work");
        busy.was_short = true;
        busy.since = None;
        // The machine may have stopped this thread for longer than the limit.
        let began = Instant::now();
        let should_poll = busy.should_poll();
        assert!(should_poll || began.elapsed() >= LONGEST);
        busy.since = Some(began.checked_sub(LONGEST).unwrap());
        assert!(!busy.should_poll(), "it sleeps at the limit");
        busy.note_work();
        assert!(!busy.was_short && !busy.should_poll(), "and at once the next time");
        busy.since = Some(Instant::now() + LONGEST);
        busy.note_work();
        assert!(busy.was_short);
        busy.note_work();
        assert!(busy.was_short, "work without a pause changes nothing");
    }
}
