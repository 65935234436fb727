//! The local ACK timer.

use longhaul_units::{Duration, Instant};

/// Time since a packet with an AckReq was sent, or since the last progress (IBTA, volume 1, section
/// 9.7.6.1.3). Until a packet with an AckReq is sent, each packet restarts it.
#[derive(Debug, Default)]
pub(super) struct AckTimer {
    expiry: Option<Instant>,
    /// The expiry to which it was extended.
    extended: Option<Instant>,
}

impl AckTimer {
    #[inline]
    pub(super) fn expiry(&self) -> Option<Instant> {
        self.expiry
    }

    /// Restarts the timer, or stops it if there is no timeout.
    #[inline]
    pub(super) fn restart(&mut self, now: Instant, timeout: Option<Duration>) {
        self.expiry = timeout.map(|timeout| now + timeout);
    }

    #[inline]
    pub(super) fn stop(&mut self) {
        self.expiry = None;
    }

    #[inline]
    pub(super) fn has_expired(&self, now: Instant) -> bool {
        self.expiry.is_some_and(|at| at <= now)
    }

    /// Extends the timer by `extra`, once. Returns `true` if it then has not expired.
    pub(super) fn extend(&mut self, now: Instant, extra: Duration) -> bool {
        let Some(expiry) = self.expiry.filter(|_| self.extended != self.expiry) else {
            return false;
        };
        let until = expiry + extra;
        (self.expiry, self.extended) = (Some(until), Some(until));
        until > now
    }
}
