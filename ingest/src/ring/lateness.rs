//! How many windows behind the newest one messages arrive.

/// Arrivals by the age of their window: the number of newer windows that had begun.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Lateness {
    counts: [u64; Self::BOUNDS.len() + 1],
    sum: u64,
}

impl Lateness {
    /// Largest age of each class but the last, which has none.
    pub const BOUNDS: [u64; 6] = [0, 1, 2, 4, 8, 16];

    /// Counts an arrival in a window of `age`.
    #[inline]
    pub(super) fn add(&mut self, age: u64) {
        let log = u64::BITS - age.saturating_sub(1).leading_zeros();
        let class = if age == 0 { 0 } else { 1 + log as usize };
        self.counts[class.min(Self::BOUNDS.len())] += 1;
        self.sum = self.sum.saturating_add(age);
    }

    /// Arrivals of each class.
    #[must_use]
    pub fn counts(&self) -> &[u64] {
        &self.counts
    }

    /// Sum of the ages.
    #[must_use]
    pub fn sum(&self) -> u64 {
        self.sum
    }

    /// Adds the arrivals of `other`.
    pub fn merge(&mut self, other: &Lateness) {
        for (to, from) in self.counts.iter_mut().zip(other.counts) {
            *to += from;
        }
        self.sum = self.sum.saturating_add(other.sum);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_age_is_in_the_first_class_that_reaches_it() {
        for age in [0, 1, 2, 3, 4, 5, 8, 9, 16, 17, 1000, u64::MAX] {
            let mut lateness = Lateness::default();
            lateness.add(age);
            let class = Lateness::BOUNDS.iter().position(|bound| age <= *bound);
            let class = class.unwrap_or(Lateness::BOUNDS.len());
            assert_eq!(lateness.counts()[class], 1, "{age}");
            assert_eq!(lateness.sum(), age);
        }
    }
}
