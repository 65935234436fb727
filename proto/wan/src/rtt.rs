//! RTT estimate and reordering window of one path.

use longhaul_cc::RttEstimate;
use longhaul_units::{Duration, Instant};

/// RTT of one path, and the timeout derived from it.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Rtt(RttEstimate);

impl Rtt {
    pub(crate) fn sample(&mut self, rtt: Duration) {
        self.0.sample(rtt);
    }

    /// Zero before the first sample.
    pub(crate) fn smoothed(&self) -> Duration {
        self.0.smoothed().unwrap_or_default()
    }

    pub(crate) fn least(&self) -> Option<Duration> {
        self.0.shortest()
    }

    /// Time after which an answer is overdue.
    pub(crate) fn response_timeout(&self) -> Duration {
        self.0.smoothed().map_or(INITIAL, |smoothed| smoothed + self.0.variation().times(4))
    }
}

/// Timeout before the first RTT sample. Source: RFC 9002, section 6.2.2.
const INITIAL: Duration = Duration::from_ms(333);

/// How long a number may be overtaken before it is presumed lost: the reordering observed, with a
/// margin.
///
/// Grows immediately and forgets after two epochs. Source: RFC 8985 (RACK), section 6.2, which
/// counts instead of measuring.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Reordering {
    seen: Duration,
    seen_before: Duration,
    epoch_ends: Instant,
}

impl Reordering {
    /// Length of an epoch in round trips, and its minimum.
    const EPOCH_RTTS: u64 = 16;
    const EPOCH_MIN: Duration = Duration::from_ms(50);
    const LEAST: Duration = Duration::from_us(20);

    /// Notes that a number arrived `late` after a larger one.
    pub(crate) fn note(&mut self, late: Duration) {
        self.seen = self.seen.max(late);
    }

    /// Forgets what was seen two epochs ago.
    pub(crate) fn end_epoch(&mut self, now: Instant, rtt: Duration) {
        if now >= self.epoch_ends {
            self.seen_before = self.seen;
            self.seen = Duration::ZERO;
            self.epoch_ends = now + rtt.times(Self::EPOCH_RTTS).max(Self::EPOCH_MIN);
        }
    }

    /// The reordering window for a path with this RTT: at most two RTTs and 2 ms.
    pub(crate) fn window(&self, rtt: Duration) -> Duration {
        let seen = self.seen.max(self.seen_before);
        let least = rtt.divided_by(64).max(Self::LEAST);
        let most = rtt.times(2) + Duration::from_ms(2);
        (seen + seen.divided_by(4)).max(least).min(most)
    }
}

/// Share of transmissions that are lost, over the last several thousand.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct LossMeter {
    lost: u64,
    resolved: u64,
}

impl LossMeter {
    const REMEMBERED: u64 = 16_384;

    pub(crate) fn arrived(&mut self, count: u64) {
        self.resolved += count;
        if self.resolved > Self::REMEMBERED {
            self.resolved /= 2;
            self.lost /= 2;
        }
    }

    pub(crate) fn lost(&mut self) {
        self.lost += 1;
        self.arrived(1);
    }

    pub(crate) fn was_not_lost(&mut self) {
        self.lost = self.lost.saturating_sub(1);
    }

    /// 0 to 1.
    pub(crate) fn rate(&self) -> f64 {
        self.lost.min(self.resolved) as f64 / self.resolved.max(100) as f64
    }

    /// Copies of a retransmitted frame, for `in_flight` frames.
    pub(crate) fn copies(&self, in_flight: u64, max: u8) -> u8 {
        copies_for(self.rate(), in_flight, max)
    }
}

/// Copies of a retransmitted frame on a path with this loss, for `in_flight` frames: as many as
/// cost less than they save. If all copies are lost, everything in the stream waits for a round
/// trip.
pub(crate) fn copies_for(loss: f64, in_flight: u64, max: u8) -> u8 {
    // `saved` is the ratio of saving to cost: a copy costs `loss` of the path's capacity, and the
    // first further one saves `in_flight · loss²` such waits per round trip.
    let mut saved = in_flight as f64 * loss;
    let mut copies = 1;
    while copies < max && saved > 1.0 {
        saved *= loss;
        copies += 1;
    }
    copies
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn copies_follow_loss_and_length() {
        for (lost_per_10_000, in_flight, copies) in [
            (0, 30_000, 1),
            (1, 3000, 1),
            (10, 30_000, 2),
            (100, 30_000, 3),
            (500, 30_000, 4),
            (500, 50, 2),
        ] {
            let mut meter = LossMeter::default();
            (0..lost_per_10_000).for_each(|_| meter.lost());
            meter.arrived(10_000 - lost_per_10_000);
            assert_eq!(
                meter.copies(in_flight, 4),
                copies,
                "{lost_per_10_000} of 10,000, {in_flight} in flight"
            );
        }
    }

    #[test]
    fn the_window_grows_at_once_and_is_forgotten_slowly() {
        let rtt = Duration::from_ms(10);
        let mut reordering = Reordering::default();
        assert_eq!(reordering.window(rtt), rtt.divided_by(64));
        reordering.end_epoch(Instant::ZERO, rtt);
        reordering.note(Duration::from_ms(1));
        assert_eq!(reordering.window(rtt), Duration::from_us(1250));
        let mut now = Instant::ZERO;
        for _ in 0..3 {
            assert!(
                now.since(Instant::ZERO) > Duration::ZERO
                    || reordering.window(rtt) > Duration::from_ms(1)
            );
            now += Duration::from_ms(161);
            reordering.end_epoch(now, rtt);
        }
        assert_eq!(reordering.window(rtt), rtt.divided_by(64));
        reordering.note(Duration::from_ms(10_000));
        assert_eq!(reordering.window(rtt), Duration::from_ms(22), "bounded");
    }
}
