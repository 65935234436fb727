//! The handshake step in which this box asks the far box to open a session.

use longhaul_node::Side;
use longhaul_units::{Duration, Instant};

/// Unanswered OPENs after which a session is given up.
const TRIES_MAX: u32 = 8;
/// Minimum timeout of an OPEN.
const TIMEOUT_MIN: Duration = Duration::from_ms(10);

/// Content of an OPEN, and the side by which it leaves.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Open {
    pub(crate) cookie: u64,
    pub(crate) nonce: u64,
    pub(crate) side: Side,
}

/// State of a session whose OPEN is unanswered.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Opening {
    open: Open,
    asked_at: Instant,
    next_at: Instant,
    /// Timeout of the next OPEN.
    timeout: Duration,
    tries: u32,
}

/// Next step of an [`Opening`].
pub(crate) enum Due {
    Nothing,
    Ask(Open),
    GiveUp,
}

impl Opening {
    /// An OPEN is due at once. The far box answered a HELLO after `rtt`, which bounds the first
    /// timeout: hosts wait, and a lost OPEN must cost them only a few round trips.
    pub(crate) fn new(now: Instant, open: Open, rtt: Duration) -> Self {
        let timeout = rtt.times(2).max(TIMEOUT_MIN);
        Opening { open, asked_at: now, next_at: now, timeout, tries: 0 }
    }

    /// Returns the step due at `now`; an OPEN counts as sent. The timeout doubles, up to `every`.
    pub(crate) fn press_on(&mut self, now: Instant, every: Duration) -> Due {
        if self.next_at > now {
            return Due::Nothing;
        }
        if self.tries == TRIES_MAX {
            return Due::GiveUp;
        }
        self.tries += 1;
        self.asked_at = now;
        self.next_at = now + self.timeout.min(every);
        self.timeout = self.timeout.times(2).min(every);
        Due::Ask(self.open)
    }

    /// `true` if an answer with `nonce` answers this OPEN.
    pub(crate) fn is_answered_by(&self, nonce: u64) -> bool {
        self.open.nonce == nonce
    }

    /// RTT shown by an answer at `now`, if it is certain which OPEN it answers.
    pub(crate) fn rtt(&self, now: Instant) -> Option<Duration> {
        (self.tries == 1).then(|| now.since(self.asked_at))
    }

    /// `true` while only the first OPEN was sent.
    pub(crate) fn is_first_try(&self) -> bool {
        self.tries == 1
    }

    pub(crate) fn next_at(&self) -> Instant {
        self.next_at
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_wait_doubles_and_ends() {
        let (mut now, every) = (Instant::ZERO, Duration::from_ms(50));
        let open = Open { cookie: 1, nonce: 2, side: 1 };
        let mut opening = Opening::new(now, open, Duration::from_ms(10));
        let mut waits = Vec::new();
        while let Due::Ask(asked) = opening.press_on(now, every) {
            assert!(opening.is_answered_by(asked.nonce) && !opening.is_answered_by(3));
            assert!(matches!(opening.press_on(now, every), Due::Nothing));
            let rtt = opening.rtt(now + Duration::from_ms(1));
            assert_eq!(rtt, waits.is_empty().then_some(Duration::from_ms(1)));
            waits.push(opening.next_at().since(now));
            now = opening.next_at();
        }
        assert!(matches!(opening.press_on(now, every), Due::GiveUp));
        assert_eq!(waits, [20, 40, 50, 50, 50, 50, 50, 50].map(Duration::from_ms));
    }
}
