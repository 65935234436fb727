//! Instants and durations in picoseconds.

use std::fmt;
use std::ops::{Add, AddAssign, Sub};

/// A point in virtual or real time: picoseconds since the driver's epoch.
///
/// 64 bits of picoseconds cover 213 days; a driver's epoch is the start of its process or run. The
/// unit is a picosecond because one byte at 800 Gbit/s takes 10 ps.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Instant(u64);

/// A span of time in picoseconds, never negative.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Duration(u64);

impl Instant {
    /// The driver's epoch.
    pub const ZERO: Instant = Instant(0);

    /// From picoseconds since the epoch.
    pub const fn from_ps(ps: u64) -> Self {
        Instant(ps)
    }

    /// From nanoseconds since the epoch; saturates after 213 days.
    pub const fn from_ns(ns: u64) -> Self {
        Instant(ns.saturating_mul(1000))
    }

    /// Picoseconds since the epoch.
    pub const fn as_ps(self) -> u64 {
        self.0
    }

    /// Whole nanoseconds since the epoch.
    pub const fn as_ns(self) -> u64 {
        self.0 / 1000
    }

    /// Time from `earlier` to `self`, zero when `earlier` is later.
    pub const fn since(self, earlier: Instant) -> Duration {
        Duration(self.0.saturating_sub(earlier.0))
    }
}

impl Duration {
    /// No time at all.
    pub const ZERO: Duration = Duration(0);

    /// From picoseconds.
    pub const fn from_ps(ps: u64) -> Self {
        Duration(ps)
    }

    /// From nanoseconds; saturates.
    pub const fn from_ns(ns: u64) -> Self {
        Duration(ns.saturating_mul(1000))
    }

    /// From microseconds; saturates.
    pub const fn from_us(us: u64) -> Self {
        Duration(us.saturating_mul(1_000_000))
    }

    /// From milliseconds; saturates.
    pub const fn from_ms(ms: u64) -> Self {
        Duration(ms.saturating_mul(1_000_000_000))
    }

    /// One-way delay of `metres` of fibre at 5 µs per km.
    pub const fn of_fibre_m(metres: u64) -> Self {
        Duration(metres.saturating_mul(5_000))
    }

    /// The local ACK timeout of exponent `code` (0 to 31): 4.096 µs x 2^code.
    ///
    /// `None` for 0, which disables the timer. Source: IBTA, volume 1, section 9.7.6.1.3.
    pub const fn of_ack_timeout(code: u8) -> Option<Self> {
        match code & 31 {
            0 => None,
            code => Some(Duration(4_096_000 << code)),
        }
    }

    /// Picoseconds.
    pub const fn as_ps(self) -> u64 {
        self.0
    }

    /// Whole nanoseconds.
    pub const fn as_ns(self) -> u64 {
        self.0 / 1000
    }

    /// Seconds, for display and statistics.
    pub fn as_secs_f64(self) -> f64 {
        self.0 as f64 * 1e-12
    }

    /// `self` times `n`; saturates.
    #[must_use]
    pub const fn times(self, n: u64) -> Self {
        Duration(self.0.saturating_mul(n))
    }

    /// `self` with at most four significant digits, rounded down.
    #[must_use]
    pub const fn rounded_down(self) -> Self {
        match self.0.checked_ilog10() {
            Some(digits @ 4..) => Duration(self.0 - self.0 % 10_u64.pow(digits - 3)),
            _ => self,
        }
    }

    /// `self` divided by `n`, which is not zero.
    #[must_use]
    pub const fn divided_by(self, n: u64) -> Self {
        Duration(self.0 / n)
    }
}

impl Add<Duration> for Instant {
    type Output = Instant;
    fn add(self, d: Duration) -> Instant {
        Instant(self.0.saturating_add(d.0))
    }
}

impl AddAssign<Duration> for Instant {
    fn add_assign(&mut self, d: Duration) {
        *self = *self + d;
    }
}

impl Add for Duration {
    type Output = Duration;
    fn add(self, d: Duration) -> Duration {
        Duration(self.0.saturating_add(d.0))
    }
}

impl Sub for Duration {
    type Output = Duration;
    /// Saturates at zero.
    fn sub(self, d: Duration) -> Duration {
        Duration(self.0.saturating_sub(d.0))
    }
}

impl fmt::Debug for Instant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", Duration(self.0))
    }
}

impl fmt::Debug for Duration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}")
    }
}

impl fmt::Display for Duration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ps = self.0;
        match ps {
            0..1_000_000 => write!(f, "{} ns", ps as f64 / 1e3),
            1_000_000..1_000_000_000 => write!(f, "{} µs", ps as f64 / 1e6),
            1_000_000_000..1_000_000_000_000 => write!(f, "{} ms", ps as f64 / 1e9),
            _ => write!(f, "{} s", ps as f64 / 1e12),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ack_timeout_follows_the_exponent() {
        assert_eq!(Duration::of_ack_timeout(0), None);
        assert_eq!(Duration::of_ack_timeout(14), Some(Duration::from_ns(67_108_864)));
    }

    #[test]
    fn a_time_is_rounded_down_to_four_digits() {
        for (ps, rounded) in [(0, "0 ns"), (9_999, "9.999 ns"), (5_490_513_200, "5.49 ms")] {
            assert_eq!(Duration::from_ps(ps).rounded_down().to_string(), rounded);
        }
        assert_eq!(Duration::from_ps(u64::MAX).rounded_down().to_string(), "18440000 s");
    }

    #[test]
    fn a_thousand_kilometres_is_five_milliseconds() {
        assert_eq!(Duration::of_fibre_m(1_000_000), Duration::from_ms(5));
    }

    #[test]
    fn time_never_runs_negative() {
        assert_eq!(Instant::ZERO.since(Instant::from_ns(5)), Duration::ZERO);
        assert_eq!(Duration::from_ns(1) - Duration::from_ns(2), Duration::ZERO);
    }
}
