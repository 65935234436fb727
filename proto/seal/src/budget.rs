//! Budget of events per second, with a burst of one second's worth.

use longhaul_units::Instant;

/// Allows `per_s` events per second, and at most one second's worth at once.
pub(crate) struct Budget {
    per_s: u64,
    left: u64,
    at: Instant,
}

impl Budget {
    pub(crate) fn new(per_s: u32) -> Self {
        Budget { per_s: u64::from(per_s), left: u64::from(per_s), at: Instant::ZERO }
    }

    /// Takes one event from the budget; `false` if it is exhausted.
    pub(crate) fn take(&mut self, now: Instant) -> bool {
        let elapsed = u128::from(now.since(self.at).as_ns());
        let earned =
            (elapsed * u128::from(self.per_s) / 1_000_000_000).min(u128::from(self.per_s)) as u64;
        if earned > 0 {
            self.left = (self.left + earned).min(self.per_s);
            self.at = now;
        }
        let may = self.left > 0;
        self.left -= u64::from(may);
        may
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_more_than_a_seconds_worth_beyond_the_rate() {
        let mut budget = Budget::new(10);
        let taken = (0..100_000_u64).filter(|n| budget.take(Instant::from_ns(n * 100_000))).count();
        assert!((100..=110).contains(&taken), "{taken} in 10 s");
    }
}
