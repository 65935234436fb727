//! The RTT to a responder, and the timeouts derived from it.

use crate::Config;
use longhaul_cc::RttEstimate;
use longhaul_units::{Duration, Instant};

/// RTT to the responder, and the timeouts derived from it.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Rtt(RttEstimate);

impl Rtt {
    /// Takes a sample from a packet that was sent exactly once (Karn's rule).
    pub(crate) fn sample(&mut self, sent_at: Instant, now: Instant) {
        self.0.sample(now.since(sent_at));
    }

    pub(crate) fn smoothed(&self) -> Option<Duration> {
        self.0.smoothed()
    }

    pub(crate) fn shortest(&self) -> Option<Duration> {
        self.0.shortest()
    }

    /// Timeout after `backoff` timeouts in a row.
    pub(crate) fn timeout(&self, config: &Config, backoff: u32) -> Duration {
        let base = match self.0.smoothed() {
            None => config.rto_initial,
            // A steady path has no variation; a quarter of the RTT covers what its samples do not
            // show.
            Some(smoothed) => smoothed + self.0.variation().times(4).max(smoothed.divided_by(4)),
        };
        let backed_off = base.max(config.rto_min).times(1 << backoff.min(20));
        backed_off.min(config.rto_max.max(config.rto_min))
    }

    /// Lowers the shortest RTT to `rtt`.
    pub(crate) fn shorten(&mut self, rtt: Duration) {
        self.0.shorten(rtt);
    }

    /// Time after which an answer is overdue.
    pub(crate) fn patience(&self, config: &Config) -> Duration {
        match self.0.smoothed() {
            None => config.rto_initial,
            Some(smoothed) => smoothed + smoothed.divided_by(4) + self.0.variation().times(2),
        }
    }

    /// True if an answer at `now` can be for a packet sent at `sent_at`: at least most of the
    /// shortest RTT has passed.
    pub(crate) fn can_answer(&self, sent_at: Instant, now: Instant) -> bool {
        let shortest = self.0.shortest().unwrap_or_default();
        now.since(sent_at) >= shortest - shortest.divided_by(8)
    }
}
