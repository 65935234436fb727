//! RTT estimation (RFC 6298).

use longhaul_units::Duration;

/// RTT estimate: smoothed RTT, its variation, and the shortest sample (RFC 6298, section 2, which
/// calls the first two SRTT and RTTVAR). The caller derives timeouts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RttEstimate {
    smoothed: Option<Duration>,
    variation: Duration,
    shortest: Option<Duration>,
}

impl RttEstimate {
    /// Adds a sample of a packet that was sent exactly once (Karn's rule).
    pub fn sample(&mut self, rtt: Duration) {
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

    /// Lowers the shortest RTT to `rtt`, if there is a sample.
    pub fn shorten(&mut self, rtt: Duration) {
        self.shortest = self.shortest.map(|shortest| shortest.min(rtt));
    }

    /// SRTT, after the first sample.
    pub fn smoothed(&self) -> Option<Duration> {
        self.smoothed
    }

    /// RTTVAR; zero before the first sample.
    pub fn variation(&self) -> Duration {
        self.variation
    }

    /// The shortest sample.
    pub fn shortest(&self) -> Option<Duration> {
        self.shortest
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// RFC 6298, section 2: alpha is 1/8, beta 1/4, and RTTVAR is updated first.
    #[test]
    fn follows_the_rfc() {
        let ms = Duration::from_ms;
        let mut rtt = RttEstimate::default();
        rtt.shorten(ms(1));
        assert_eq!((rtt.smoothed(), rtt.shortest()), (None, None));
        rtt.sample(ms(80));
        assert_eq!((rtt.smoothed(), rtt.variation()), (Some(ms(80)), ms(40)));
        rtt.sample(ms(160));
        assert_eq!((rtt.smoothed(), rtt.variation()), (Some(ms(90)), ms(50)));
        assert_eq!(rtt.shortest(), Some(ms(80)));
        rtt.shorten(ms(70));
        assert_eq!((rtt.smoothed(), rtt.shortest()), (Some(ms(90)), Some(ms(70))));
    }
}
