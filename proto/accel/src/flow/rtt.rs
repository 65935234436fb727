//! The round-trip time of a path, and the timeouts that follow from it.

use crate::Config;
use longhaul_units::{Duration, Instant};

/// Round trip to the responder and back, and the retransmission timeout that follows from it (RFC
/// 6298, section 2).
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Rtt {
    smoothed: Option<Duration>,
    variation: Duration,
    shortest: Option<Duration>,
}

impl Rtt {
    /// Takes a sample from a packet that was sent exactly once (Karn's rule).
    pub(crate) fn sample(&mut self, sent_at: Instant, now: Instant) {
        let rtt = now.since(sent_at);
        self.shortest = Some(self.shortest.map_or(rtt, |shortest| shortest.min(rtt)));
        match self.smoothed {
            None => {
                self.smoothed = Some(rtt);
                self.variation = rtt.divided_by(2);
            }
            Some(smoothed) => {
                let error = if rtt > smoothed { rtt - smoothed } else { smoothed - rtt };
                self.variation = self.variation.times(3).divided_by(4) + error.divided_by(4);
                self.smoothed = Some(smoothed.times(7).divided_by(8) + rtt.divided_by(8));
            }
        }
    }

    pub(crate) fn smoothed(&self) -> Option<Duration> {
        self.smoothed
    }

    pub(crate) fn shortest(&self) -> Option<Duration> {
        self.shortest
    }

    /// Timeout after `backoff` timeouts in a row.
    pub(crate) fn timeout(&self, config: &Config, backoff: u32) -> Duration {
        let base = match self.smoothed {
            None => config.rto_initial,
            // A steady path shows no variation; a quarter of the round trip is for what it does not
            // show.
            Some(smoothed) => smoothed + self.variation.times(4).max(smoothed.divided_by(4)),
        };
        let backed_off = base.max(config.rto_min).times(1 << backoff.min(20));
        backed_off.min(config.rto_max.max(config.rto_min))
    }

    /// The path has turned out to be as short as this.
    pub(crate) fn shorten(&mut self, rtt: Duration) {
        self.shortest = self.shortest.map(|shortest| shortest.min(rtt));
    }

    /// How long an answer to something sent is not yet overdue.
    pub(crate) fn patience(&self, config: &Config) -> Duration {
        match self.smoothed {
            None => config.rto_initial,
            Some(smoothed) => smoothed + smoothed.divided_by(4) + self.variation.times(2),
        }
    }

    /// True if an answer at `now` can be one to what was sent at `sent_at`: most of the shortest
    /// round trip ago.
    pub(crate) fn can_answer(&self, sent_at: Instant, now: Instant) -> bool {
        let shortest = self.shortest.unwrap_or_default();
        now.since(sent_at) >= shortest - shortest.divided_by(8)
    }
}
