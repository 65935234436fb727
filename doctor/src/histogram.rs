//! Distributions in bounded memory: exact for few distinct values, then in 16 classes per power of
//! two.

use serde::Serialize;

/// Maximum distinct values before they are grouped into classes.
const EXACT_MAX: usize = 64;
/// Classes per power of two.
const CLASSES: usize = 16;
/// Exponents 4 to 63, after the values below 16.
const BUCKETS: usize = 61 * CLASSES;

/// Counts of 64-bit values.
#[derive(Clone, Debug, Default)]
pub(crate) struct Histogram {
    count: u64,
    min: u64,
    max: u64,
    /// Sorted values with their counts; empty once there are buckets.
    exact: Vec<(u64, u64)>,
    buckets: Option<Box<[u32; BUCKETS]>>,
}

/// The usual figures of a distribution.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
pub struct Quantiles {
    /// Number of values.
    pub samples: u64,
    /// The smallest.
    pub min: u64,
    /// The median; to 3 % beyond 64 distinct values.
    pub median: u64,
    /// The 99th percentile, with the same precision.
    pub p99: u64,
    /// The largest.
    pub max: u64,
}

fn bucket(value: u64) -> usize {
    if value < CLASSES as u64 {
        return value as usize;
    }
    let exponent = 63 - value.leading_zeros() as usize;
    (exponent - 3) * CLASSES + (value >> (exponent - 4)) as usize % CLASSES
}

/// The middle of a bucket.
fn middle(bucket: usize) -> u64 {
    if bucket < CLASSES {
        return bucket as u64;
    }
    let exponent = bucket / CLASSES + 3;
    let width = 1_u64 << (exponent - 4);
    ((CLASSES + bucket % CLASSES) as u64) * width + width / 2
}

impl Histogram {
    pub fn add(&mut self, value: u64) {
        self.min = if self.count == 0 { value } else { self.min.min(value) };
        self.max = self.max.max(value);
        self.count += 1;
        if let Some(buckets) = &mut self.buckets {
            let slot = &mut buckets[bucket(value)];
            *slot = slot.saturating_add(1);
            return;
        }
        match self.exact.binary_search_by_key(&value, |&(v, _)| v) {
            Ok(at) => self.exact[at].1 += 1,
            Err(at) if self.exact.len() < EXACT_MAX => self.exact.insert(at, (value, 1)),
            Err(_) => self.spill(value),
        }
    }

    fn spill(&mut self, value: u64) {
        let mut buckets = Box::new([0_u32; BUCKETS]);
        for (value, count) in self.exact.drain(..).chain([(value, 1)]) {
            let slot = &mut buckets[bucket(value)];
            *slot = slot.saturating_add(u32::try_from(count).unwrap_or(u32::MAX));
        }
        self.exact = Vec::new();
        self.buckets = Some(buckets);
    }

    pub fn count(&self) -> u64 {
        self.count
    }

    /// `None` without values.
    pub fn min(&self) -> Option<u64> {
        (self.count > 0).then_some(self.min)
    }

    pub fn max(&self) -> u64 {
        self.max
    }

    /// Returns the value that `share` of all values do not exceed; 0 without values.
    pub fn quantile(&self, share: f64) -> u64 {
        let rank = (self.count as f64 * share).ceil() as u64;
        if rank <= 1 || rank >= self.count {
            return if rank <= 1 { self.min } else { self.max };
        }
        let mut passed = 0;
        for (value, count) in self.classes() {
            passed += count;
            if passed >= rank {
                return value.clamp(self.min, self.max);
            }
        }
        self.max
    }

    /// Values, or the middles of classes, with their counts.
    fn classes(&self) -> impl Iterator<Item = (u64, u64)> {
        let classed = self.buckets.iter().flat_map(|b| b.iter().enumerate());
        let classed = classed.map(|(bucket, &count)| (middle(bucket), u64::from(count)));
        self.exact.iter().copied().chain(classed)
    }

    /// Returns the share of values that are at least `value`, 0 to 1; with classes, those in its
    /// class or above.
    pub fn share_from(&self, value: u64) -> f64 {
        let from = if self.buckets.is_some() { middle(bucket(value)) } else { value };
        let above: u64 = self.classes().filter(|&(v, _)| v >= from).map(|(_, count)| count).sum();
        above as f64 / self.count.max(1) as f64
    }

    /// `None` without values.
    pub fn quantiles(&self) -> Option<Quantiles> {
        (self.count > 0).then(|| Quantiles {
            samples: self.count,
            min: self.min,
            median: self.quantile(0.5),
            p99: self.quantile(0.99),
            max: self.max,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn few_values_are_exact() {
        let mut h = Histogram::default();
        (0..100).for_each(|_| h.add(5000));
        h.add(7);
        assert_eq!(
            h.quantiles().unwrap(),
            Quantiles { samples: 101, min: 7, median: 5000, p99: 5000, max: 5000 }
        );
        assert_eq!(h.share_from(5000), 100.0 / 101.0);
    }

    #[test]
    fn many_values_are_right_to_three_percent() {
        let mut h = Histogram::default();
        (1..=100_000_u64).for_each(|v| h.add(v * 1000));
        for (share, expected) in [(0.01, 1e6), (0.5, 5e7), (0.99, 9.9e7)] {
            let error = h.quantile(share) as f64 / expected - 1.0;
            assert!(error.abs() < 0.035, "{share}: {error}");
        }
        assert!((h.share_from(50_000_000) - 0.5).abs() < 0.04);
        assert_eq!((h.quantile(0.0), h.quantile(1.0)), (1000, 100_000_000));
    }

    #[test]
    fn the_largest_value_has_a_bucket() {
        let mut h = Histogram::default();
        (0..=EXACT_MAX as u64).for_each(|v| h.add(v));
        h.add(u64::MAX);
        assert_eq!(h.quantile(1.0), u64::MAX);
        for value in [0, 15, 16, 17, 1 << 40, u64::MAX] {
            let error = middle(bucket(value)).abs_diff(value);
            assert!(error <= value / 16, "{value}");
        }
    }
}
