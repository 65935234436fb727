//! Token bucket that paces a sender to a bit rate.

use crate::wire_bytes;
use longhaul_units::{BitRate, Duration, Instant};

/// Token units per byte. A rate in bits per second times a time in picoseconds gives units of
/// 10^-12 bit.
const UNITS_PER_BYTE: u128 = 8_000_000_000_000;

/// Length of the longest RoCEv2 frame: VLAN tag, IPv6 and a payload of 4096 bytes, with a margin
/// for any header stack.
const FULL_FRAME_LEN: usize = 4096 + 128;

/// A token bucket in exact integer arithmetic: rounding errors never accumulate.
///
/// The bucket starts full. A frame may be sent if [`Pacer::ready_at`] is not in the future; the
/// caller then reports it to [`Pacer::take`], in bytes on the wire ([`wire_bytes`]). "Ready" means
/// tokens for one full-size RoCEv2 frame (4096 bytes of payload), or for `burst_bytes` if that is
/// less.
///
/// In any time `t` at most `rate * t + burst_bytes` are sent, rounded up to the tokens of the next
/// picosecond, as long as no frame is longer than the tokens that it waits for. A longer frame puts
/// the bucket into debt, which later frames wait for: the mean rate holds, and the bound is
/// exceeded by at most that one frame.
#[derive(Clone, Debug)]
pub struct Pacer {
    rate: BitRate,
    /// Capacity of the bucket in token units: the burst, plus less than a picosecond's earnings, so
    /// that a sender that calls at the first whole picosecond loses nothing.
    capacity: i128,
    /// Tokens required for a frame while frames flow.
    frame: i128,
    /// Tokens required for the first frame after the bucket ran dry.
    quantum: i128,
    is_dry: bool,
    /// Tokens at time `at`; negative in debt.
    level: i128,
    at: Instant,
}

impl Pacer {
    /// Paces to `rate`, in bytes on the wire, with at most `burst_bytes` back to back after a
    /// pause.
    ///
    /// With `burst_bytes` below a full-size frame, down to 0, frames are spaced exactly one
    /// serialisation time apart.
    pub fn new(rate: BitRate, burst_bytes: u64) -> Self {
        Pacer::in_batches(rate, burst_bytes, 0)
    }

    /// Like [`Pacer::new`], but after the bucket runs dry, frames wait until `batch_bytes` of
    /// tokens have accumulated, and are then sent back to back. This saves a sender the cost of a
    /// call for each frame.
    ///
    /// `batch_bytes` is capped at `burst_bytes`; below a full-size frame it has no effect.
    pub fn in_batches(rate: BitRate, burst_bytes: u64, batch_bytes: u64) -> Self {
        let burst = units(burst_bytes);
        let frame = burst.min(units(wire_bytes(FULL_FRAME_LEN)));
        let quantum = units(batch_bytes).clamp(frame, burst);
        let capacity = burst + i128::from(rate.as_bps() - 1);
        Pacer { rate, capacity, frame, quantum, is_dry: false, level: burst, at: Instant::ZERO }
    }

    /// Paces to `rate` from `now` on, with at most `burst_bytes` back to back. Credit, up to the
    /// new burst, and debt carry over; batches end.
    pub fn retune(&mut self, now: Instant, rate: BitRate, burst_bytes: u64) {
        let level = self.level_at(now);
        let at = self.at.max(now);
        *self = Pacer::new(rate, burst_bytes);
        self.level = level.min(self.capacity);
        self.at = at;
        self.is_dry = self.level < self.frame;
    }

    /// Forfeits credit beyond `burst_bytes`.
    pub fn forfeit(&mut self, now: Instant, burst_bytes: u64) {
        self.level = self.level_at(now).min(units(burst_bytes));
        self.at = self.at.max(now);
    }

    /// The rate.
    pub fn rate(&self) -> BitRate {
        self.rate
    }

    /// Time at which the next full-size frame may be sent, at least `now`.
    #[inline]
    pub fn ready_at(&self, now: Instant) -> Instant {
        let needed = if self.is_dry { self.quantum } else { self.frame };
        let missing = needed - self.level_at(now);
        if missing <= 0 {
            return now;
        }
        let rate = self.rate.as_bps();
        // Up to 2 MB fit in 64 bits, where division is many times faster.
        let wait = match u64::try_from(missing) {
            Ok(missing) => missing.div_ceil(rate),
            Err(_) => {
                u64::try_from(missing.unsigned_abs().div_ceil(rate.into())).unwrap_or(u64::MAX)
            }
        };
        now.max(self.at) + Duration::from_ps(wait)
    }

    /// Counts `bytes` on the wire as sent at `now`.
    #[inline]
    pub fn take(&mut self, now: Instant, bytes: u64) {
        self.level = self.level_at(now).saturating_sub(units(bytes));
        self.at = self.at.max(now);
        self.is_dry = self.level < self.frame;
    }

    #[inline]
    fn level_at(&self, now: Instant) -> i128 {
        let earned = u128::from(now.since(self.at).as_ps()) * u128::from(self.rate.as_bps());
        // Not negative: `level <= capacity`.
        let space = (self.capacity - self.level).unsigned_abs();
        if earned >= space { self.capacity } else { self.level + earned as i128 }
    }
}

/// Does not overflow: 64 bits of bytes times 43 bits.
fn units(bytes: u64) -> i128 {
    (u128::from(bytes) * UNITS_PER_BYTE) as i128
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn rate(bps: u64) -> BitRate {
        BitRate::from_bps(bps).unwrap()
    }

    #[test]
    fn starts_with_a_whole_burst() {
        let mut pacer = Pacer::new(rate(10_000_000_000), 3 * 5000);
        let now = Instant::from_ns(1);
        for _ in 0..3 {
            assert_eq!(pacer.ready_at(now), now);
            pacer.take(now, 5000);
        }
        assert!(pacer.ready_at(now) > now);
    }

    #[test]
    fn without_burst_frames_are_one_serialisation_time_apart() {
        let mut pacer = Pacer::new(rate(10_000_000_000), 0);
        let now = Instant::ZERO;
        pacer.take(now, 1250);
        assert_eq!(pacer.ready_at(now), Instant::from_ns(1000));
        pacer.take(Instant::from_ns(1000), 125);
        assert_eq!(pacer.ready_at(Instant::from_ns(1000)), Instant::from_ns(1100));
    }

    #[test]
    fn in_batches_frames_wait_for_each_other_and_then_go_back_to_back() {
        let mut pacer = Pacer::in_batches(rate(10_000_000_000), 1_000_000, 65_536);
        let mut now = Instant::ZERO;
        let full = wire_bytes(FULL_FRAME_LEN);
        let mut pauses = 0;
        for _ in 0..10_000 {
            let ready = pacer.ready_at(now);
            pauses += u32::from(ready > now);
            now = ready;
            pacer.take(now, full);
        }
        let least = rate(10_000_000_000).time_for_bytes(10_000 * full - 1_000_000);
        assert!(now.since(Instant::ZERO) >= least, "the mean rate holds");
        assert!((600..700).contains(&pauses), "{pauses} pauses, a batch of 15 frames each");
    }

    #[test]
    fn does_not_drift_over_a_hundred_days() {
        // 3 bit/s and frames of 1 byte: 2 2/3 s each, not a whole number of picoseconds.
        let rate = rate(3);
        let mut pacer = Pacer::new(rate, 0);
        let mut now = Instant::ZERO;
        let frames = 3_000_000_u64;
        for _ in 0..frames {
            now = pacer.ready_at(now);
            pacer.take(now, 1);
        }
        let end = pacer.ready_at(now).as_ps();
        assert_eq!(end, frames / 3 * 8_000_000_000_000);
    }

    #[test]
    fn retuned_it_keeps_what_it_owes() {
        let mut pacer = Pacer::new(rate(8_000_000_000), 0);
        pacer.take(Instant::ZERO, 1000);
        // 400 ns have repaid 400 bytes; the other 600 at a tenth of the rate take 6 µs.
        pacer.retune(Instant::from_ns(400), rate(800_000_000), 0);
        assert_eq!(pacer.ready_at(Instant::from_ns(400)), Instant::from_ns(6400));
        pacer.retune(Instant::from_ns(6400), rate(800_000_000), 10_000);
        assert!(
            pacer.ready_at(Instant::from_ns(6400)) > Instant::from_ns(6400),
            "a burst has to be earned"
        );
        assert_eq!(pacer.rate(), rate(800_000_000));
    }

    #[test]
    fn retuned_it_keeps_no_more_than_the_new_burst() {
        let mut pacer = Pacer::new(rate(8_000_000_000), 1_000_000);
        pacer.retune(Instant::ZERO, rate(8_000_000_000), 0);
        pacer.take(Instant::ZERO, 1000);
        assert_eq!(pacer.ready_at(Instant::ZERO), Instant::from_ns(1000));
    }

    #[test]
    fn a_clock_that_steps_back_earns_nothing() {
        let mut pacer = Pacer::new(rate(8_000_000_000), 0);
        pacer.take(Instant::from_ns(100), 100);
        assert_eq!(pacer.ready_at(Instant::from_ns(50)), Instant::from_ns(200));
        pacer.take(Instant::from_ns(50), 100);
        assert_eq!(pacer.ready_at(Instant::from_ns(100)), Instant::from_ns(300));
    }

    #[test]
    fn extreme_values_saturate() {
        let mut pacer = Pacer::new(rate(1), u64::MAX);
        pacer.take(Instant::from_ps(u64::MAX), u64::MAX);
        pacer.take(Instant::from_ps(u64::MAX), u64::MAX);
        assert_eq!(pacer.ready_at(Instant::ZERO), Instant::from_ps(u64::MAX));
    }

    proptest! {
        #[test]
        fn never_exceeds_rate_times_time_plus_burst(
            bps in 1_000_u64..1_000_000_000_000,
            burst in 0_u64..100_000,
            frames in prop::collection::vec((84_u64..4248, 0_u64..10_000_000), 1..200),
        ) {
            let rate = rate(bps);
            let mut pacer = Pacer::new(rate, burst);
            let mut now = Instant::from_ns(5);
            let mut sent: Vec<(Instant, u64)> = Vec::new();
            for (bytes, pause_ps) in frames {
                now = pacer.ready_at(now + Duration::from_ps(pause_ps));
                pacer.take(now, bytes);
                sent.push((now, bytes));
            }
            let frame_max = sent.iter().map(|s| s.1).max().unwrap();
            let quantum = burst.min(wire_bytes(FULL_FRAME_LEN));
            let allowed = units(burst + frame_max.saturating_sub(quantum)).unsigned_abs();
            for (first, &(from, _)) in sent.iter().enumerate() {
                let mut bytes = 0;
                for &(to, len) in &sent[first..] {
                    bytes += len;
                    let earned = u128::from(to.since(from).as_ps() + 1) * u128::from(bps);
                    let taken = units(bytes).unsigned_abs();
                    prop_assert!(taken <= allowed + earned, "{bytes} B in {:?}", to.since(from));
                }
            }
        }

        #[test]
        fn keeps_the_full_rate_when_always_asked(
            bps in 1_000_u64..1_000_000_000_000,
            burst in 0_u64..100_000,
        ) {
            let rate = rate(bps);
            let mut pacer = Pacer::new(rate, burst);
            let mut now = Instant::ZERO;
            let mut bytes = 0_u64;
            for _ in 0..1000 {
                now = pacer.ready_at(now);
                pacer.take(now, 1538);
                bytes += 1538;
            }
            let floor = rate.bytes_in(now.since(Instant::ZERO)) + burst.saturating_sub(4248);
            prop_assert!(bytes + 1538 >= floor, "{bytes} B of {floor}");
        }
    }
}
