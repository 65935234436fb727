//! Retries without progress, and the wait for a responder that is not ready.

use super::RequesterConfig;
use longhaul_units::{Duration, Instant};
use longhaul_wire::rnr_backoff;

/// `rnr_retry` of a requester that retries forever.
const RNR_RETRY_FOREVER: u8 = 7;

/// Retries left until the requester fails; progress restores them.
#[derive(Clone, Copy, Debug)]
pub(super) struct Retries {
    /// After timeouts and sequence errors.
    transport: u8,
    /// After RNR NAKs.
    rnr: u8,
    /// Expiries of the adaptive timer, and their sum.
    expiries: u8,
    waited: Duration,
}

impl Retries {
    #[inline]
    pub(super) fn full(config: &RequesterConfig) -> Self {
        let (transport, rnr) = (config.retry_cnt, config.rnr_retry);
        Retries { transport, rnr, expiries: 0, waited: Duration::ZERO }
    }

    #[inline]
    pub(super) fn left(self) -> u8 {
        self.transport
    }

    /// Takes a retry; `false` if none is left.
    pub(super) fn take(&mut self) -> bool {
        take(&mut self.transport)
    }

    /// Takes a retry after a timeout; `false` if none is left. Adaptive retransmission counts time,
    /// not retries: `timeout` for each of `retry_cnt`.
    pub(super) fn take_timeout(&mut self, config: &RequesterConfig) -> bool {
        let Some(first) = config.adaptive_timeout else { return self.take() };
        self.waited = self.waited + self.adaptive_wait(first, config.timeout);
        self.expiries = self.expiries.saturating_add(1);
        let total = config.timeout.map(|timeout| timeout.times(config.retry_cnt.into()));
        total.is_none_or(|total| self.waited < total)
    }

    /// The adaptive timer's next wait: `first`, doubled with each expiry, at most `longest`.
    pub(super) fn adaptive_wait(self, first: Duration, longest: Option<Duration>) -> Duration {
        let wait = first.times(1 << self.expiries.min(63));
        longest.map_or(wait, |longest| wait.min(longest))
    }

    /// Takes an RNR retry; `false` if none is left.
    pub(super) fn take_rnr(&mut self, config: &RequesterConfig) -> bool {
        config.rnr_retry == RNR_RETRY_FOREVER || take(&mut self.rnr)
    }
}

fn take(left: &mut u8) -> bool {
    let had_one = *left > 0;
    *left = left.saturating_sub(1);
    had_one
}

/// Readiness of the responder, according to its latest answer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Readiness {
    /// No RNR NAK since the last progress.
    Ready,
    /// RNR NAKs since `since`; nothing is sent before `until`.
    NotReady { since: Instant, until: Option<Instant> },
}

impl Readiness {
    /// End of the wait that the latest RNR NAK began.
    #[inline]
    pub(super) fn until(self) -> Option<Instant> {
        match self {
            Readiness::Ready => None,
            Readiness::NotReady { until, .. } => until,
        }
    }

    /// Starts a wait of at least `timer` after an RNR NAK; the longer the responder has not been
    /// ready, the longer the wait.
    pub(super) fn wait(&mut self, now: Instant, timer: Duration) {
        let since = match *self {
            Readiness::Ready => now,
            Readiness::NotReady { since, .. } => since,
        };
        let until = Some(now + rnr_backoff(timer, now.since(since)));
        *self = Readiness::NotReady { since, until };
    }

    /// Ends the wait.
    #[inline]
    pub(super) fn end_wait(&mut self) {
        if let Readiness::NotReady { until, .. } = self {
            *until = None;
        }
    }
}
