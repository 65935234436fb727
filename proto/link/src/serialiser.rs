//! Times at which the wire becomes free, without accumulating rounding errors.

use longhaul_units::{BitRate, Duration, Instant};

/// Picoseconds per byte at 1 bit/s.
const PS_PER_BYTE_AT_1_BPS: u64 = 8_000_000_000_000;

/// Time at which the wire becomes free, exact to a fraction of a picosecond, so that a rate whose
/// byte time is not a whole number of picoseconds is exact over any length of time.
#[derive(Debug)]
pub(crate) struct Serialiser {
    rate: BitRate,
    /// Whole picoseconds per byte, and the remainder, in 1/rate of a picosecond.
    byte_ps: u64,
    byte_rest: u64,
    /// The wire becomes free `rest / rate` picoseconds after this.
    free_at: Instant,
    rest: u64,
}

impl Serialiser {
    pub(crate) fn new(rate: BitRate) -> Self {
        let bps = rate.as_bps();
        Serialiser {
            rate,
            byte_ps: PS_PER_BYTE_AT_1_BPS / bps,
            byte_rest: PS_PER_BYTE_AT_1_BPS % bps,
            free_at: Instant::ZERO,
            rest: 0,
        }
    }

    /// How long a frame that arrives at `now` waits before its first bit is sent; zero if the wire
    /// is idle.
    #[inline]
    pub(crate) fn backlog(&self, now: Instant) -> Duration {
        self.free_at.since(now)
    }

    /// Sends `bytes` after everything before. Returns the first whole picosecond at which the last
    /// bit has left.
    #[inline]
    pub(crate) fn send(&mut self, now: Instant, bytes: u64) -> Instant {
        if now > self.free_at {
            self.free_at = now;
            self.rest = 0;
        }
        self.free_at += Duration::from_ps(self.byte_ps.saturating_mul(bytes));
        if self.byte_rest != 0 {
            let bps = u128::from(self.rate.as_bps());
            let rest = u128::from(self.byte_rest) * u128::from(bytes) + u128::from(self.rest);
            // Each below 2^64: byte_rest is below the rate, and so is a remainder.
            self.free_at += Duration::from_ps((rest / bps) as u64);
            self.rest = (rest % bps) as u64;
        }
        if self.rest == 0 { self.free_at } else { self.free_at + Duration::from_ps(1) }
    }

    /// Changes the rate of subsequent frames, which follow the earlier ones.
    pub(crate) fn set_rate(&mut self, rate: BitRate) {
        let free_at =
            if self.rest == 0 { self.free_at } else { self.free_at + Duration::from_ps(1) };
        *self = Serialiser { free_at, ..Serialiser::new(rate) };
    }

    pub(crate) fn rate(&self) -> BitRate {
        self.rate
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn frames_back_to_back_end_when_their_sum_would(
            bps in 1_000_u64..2_000_000_000_000,
            frames in prop::collection::vec(84_u64..20_000, 1..100),
        ) {
            let rate = BitRate::from_bps(bps).unwrap();
            let mut serialiser = Serialiser::new(rate);
            let mut sum = 0;
            for bytes in frames {
                sum += bytes;
                let end = serialiser.send(Instant::ZERO, bytes);
                prop_assert_eq!(end.since(Instant::ZERO), rate.time_for_bytes(sum));
            }
        }
    }

    #[test]
    fn an_idle_wire_starts_at_once() {
        let mut serialiser = Serialiser::new(BitRate::from_gbps(8).unwrap());
        assert_eq!(serialiser.send(Instant::from_ns(50), 100), Instant::from_ns(150));
        assert_eq!(serialiser.backlog(Instant::from_ns(70)), Duration::from_ns(80));
        assert_eq!(serialiser.backlog(Instant::from_ns(200)), Duration::ZERO);
        assert_eq!(serialiser.send(Instant::from_ns(200), 100), Instant::from_ns(300));
    }
}
