//! The figures of repeated runs: order statistics, and intervals by the bootstrap.

use fastrand::Rng;
use serde::{Serialize, Serializer};
use std::ops::RangeInclusive;

/// Figures below which medians, quartiles and intervals say little.
pub const FEW: usize = 5;
/// Resamples of a bootstrap.
const RESAMPLES: usize = 2000;
/// Resamples of a bootstrap, at the least.
const RESAMPLES_MIN: usize = 200;
/// Draws of a bootstrap, beyond which there are fewer resamples.
const DRAWS_MAX: usize = 4_000_000;
/// Quantiles of the resampled medians that bound an interval: 95 % lie between them.
const BOUNDS: [f64; 2] = [0.025, 0.975];
/// Interquartile ranges between a box and the end of its whisker, at the most.
const WHISKER: f64 = 1.5;
/// The same figures have the same interval.
const SEED: u64 = 0;

/// Figures in ascending order; there is at least one, and all are finite.
#[derive(Clone, Debug, PartialEq)]
pub struct Samples(Vec<f64>);

/// What [`Samples`] amount to.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Statistics {
    /// Number of figures.
    pub n: usize,
    /// Smallest figure.
    pub min: f64,
    /// First quartile.
    pub q1: f64,
    /// Middle figure, or the mean of the two in the middle.
    pub median: f64,
    /// Third quartile.
    pub q3: f64,
    /// Mean.
    pub mean: f64,
    /// Largest figure.
    pub max: f64,
    /// Interquartile range.
    pub iqr: f64,
    /// 95 % bootstrap interval of the median; `None` for a single figure.
    #[serde(serialize_with = "bounds", skip_serializing_if = "Option::is_none")]
    pub median_interval: Option<RangeInclusive<f64>>,
}

/// A box plot's figures.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct FiveFigures {
    /// Smallest figure within 1.5 interquartile ranges of the first quartile.
    pub low: f64,
    pub q1: f64,
    pub median: f64,
    pub q3: f64,
    /// Largest figure within 1.5 interquartile ranges of the third quartile.
    pub high: f64,
    /// Figures beyond the whiskers.
    pub outliers: Vec<f64>,
}

/// Serialises an interval as `[low, high]`.
pub(crate) fn bounds<S: Serializer>(
    interval: &Option<RangeInclusive<f64>>,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    interval.as_ref().map(|interval| [*interval.start(), *interval.end()]).serialize(serializer)
}

impl Samples {
    /// Of the finite ones of `figures`; `None` if there are none.
    pub fn new(figures: impl IntoIterator<Item = f64>) -> Option<Self> {
        let mut figures: Vec<f64> = figures.into_iter().filter(|f| f.is_finite()).collect();
        figures.sort_by(f64::total_cmp);
        (!figures.is_empty()).then_some(Samples(figures))
    }

    /// Number of figures.
    pub fn n(&self) -> usize {
        self.0.len()
    }

    /// True below [`FEW`].
    pub fn is_few(&self) -> bool {
        self.n() < FEW
    }

    /// Figures in ascending order.
    pub fn figures(&self) -> &[f64] {
        &self.0
    }

    /// Smallest figure.
    pub fn min(&self) -> f64 {
        self.0[0]
    }

    /// Largest figure.
    pub fn max(&self) -> f64 {
        self.0[self.n() - 1]
    }

    /// Mean. That of equal figures is the figure, to the last bit.
    pub fn mean(&self) -> f64 {
        if self.min() == self.max() {
            return self.min();
        }
        self.0.iter().sum::<f64>() / self.n() as f64
    }

    /// Middle figure, or the mean of the two in the middle.
    pub fn median(&self) -> f64 {
        self.quantile(0.5)
    }

    /// The figure below which the fraction `p` lies, interpolated between neighbours (type 7 of
    /// Hyndman and Fan, the default of R and numpy).
    pub fn quantile(&self, p: f64) -> f64 {
        let place = p.clamp(0.0, 1.0) * (self.n() - 1) as f64;
        let (below, above) = (self.0[place.floor() as usize], self.0[place.ceil() as usize]);
        below + (above - below) * place.fract()
    }

    /// All of them.
    pub fn statistics(&self) -> Statistics {
        let [q1, median, q3] = [0.25, 0.5, 0.75].map(|p| self.quantile(p));
        Statistics {
            n: self.n(),
            min: self.min(),
            q1,
            median,
            q3,
            mean: self.mean(),
            max: self.max(),
            iqr: q3 - q1,
            median_interval: self.median_interval(),
        }
    }

    /// 95 % bootstrap interval of the median; `None` for a single figure.
    pub fn median_interval(&self) -> Option<RangeInclusive<f64>> {
        let mut rng = Rng::with_seed(SEED);
        let mut resample = Vec::new();
        let count = resamples(self.n());
        interval(self.n() > 1, (0..count).map(|_| self.resampled(&mut rng, &mut resample)))
    }

    /// 95 % bootstrap interval of the ratio of the median of `self` to that of `base`; `None` if
    /// either is a single figure, or a median of `base` can be zero or negative.
    pub fn ratio_interval(&self, base: &Samples) -> Option<RangeInclusive<f64>> {
        let mut rng = Rng::with_seed(SEED);
        let mut resample = Vec::new();
        let is_defined = self.n() > 1 && base.n() > 1 && base.min() > 0.0;
        let count = resamples(self.n().max(base.n()));
        let ratios = (0..count).map(|_| {
            let below = base.resampled(&mut rng, &mut resample);
            self.resampled(&mut rng, &mut resample) / below
        });
        interval(is_defined, ratios)
    }

    /// The median of as many figures, drawn with replacement. `resample` is for reuse.
    fn resampled(&self, rng: &mut Rng, resample: &mut Vec<f64>) -> f64 {
        resample.clear();
        resample.extend((0..self.n()).map(|_| self.0[rng.usize(..self.n())]));
        let middle = self.n() / 2;
        let (below, above, _) = resample.select_nth_unstable_by(middle, f64::total_cmp);
        if self.n() % 2 == 1 {
            return *above;
        }
        f64::midpoint(below.iter().copied().fold(f64::NEG_INFINITY, f64::max), *above)
    }

    /// Quartiles, whiskers and outliers.
    pub(crate) fn five_figures(&self) -> FiveFigures {
        let [q1, median, q3] = [0.25, 0.5, 0.75].map(|p| self.quantile(p));
        let reach = WHISKER * (q3 - q1);
        let is_within = |figure: &&f64| (q1 - reach..=q3 + reach).contains(*figure);
        let low = self.0.iter().find(is_within).copied().unwrap_or(q1);
        let high = self.0.iter().rfind(is_within).copied().unwrap_or(q3);
        let outliers = self.0.iter().filter(|figure| !is_within(figure)).copied().collect();
        // A quartile lies between two figures and may be beyond the last one within reach.
        FiveFigures { low: low.min(q1), q1, median, q3, high: high.max(q3), outliers }
    }
}

fn resamples(figures: usize) -> usize {
    (DRAWS_MAX / figures.max(1)).clamp(RESAMPLES_MIN, RESAMPLES)
}

/// Between the bounds of `figures`, where that `is_defined`.
fn interval(is_defined: bool, figures: impl Iterator<Item = f64>) -> Option<RangeInclusive<f64>> {
    let figures = if is_defined { Samples::new(figures)? } else { return None };
    let [low, high] = BOUNDS.map(|p| figures.quantile(p));
    Some(low..=high)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn samples(figures: &[f64]) -> Samples {
        Samples::new(figures.iter().copied()).unwrap()
    }

    #[test]
    fn quartiles_are_those_of_numpy() {
        // numpy.percentile([1, 2, 3, 4, 10], [25, 50, 75]) and of the first four.
        let odd = samples(&[10.0, 4.0, 1.0, 3.0, 2.0]).statistics();
        assert_eq!((odd.q1, odd.median, odd.q3, odd.iqr), (2.0, 3.0, 4.0, 2.0));
        assert_eq!((odd.n, odd.min, odd.mean, odd.max), (5, 1.0, 4.0, 10.0));
        let even = samples(&[4.0, 1.0, 3.0, 2.0]).statistics();
        assert_eq!((even.q1, even.median, even.q3), (1.75, 2.5, 3.25));
        let single = samples(&[7.0]).statistics();
        assert_eq!((single.q1, single.median, single.max, single.iqr), (7.0, 7.0, 7.0, 0.0));
        assert_eq!(single.median_interval, None);
        assert_eq!(Samples::new([f64::NAN, f64::INFINITY]), None);
    }

    #[test]
    fn whiskers_end_within_one_and_a_half_interquartile_ranges() {
        let five = samples(&[1.0, 10.0, 11.0, 12.0, 13.0, 14.0, 40.0]).five_figures();
        // Quartiles 10.5 and 13.5: from 6 to 18.
        assert_eq!((five.low, five.q1, five.q3, five.high), (10.0, 10.5, 13.5, 14.0));
        assert_eq!(five.outliers, [1.0, 40.0]);
        let equal = samples(&[2.0; 6]).five_figures();
        assert_eq!((equal.low, equal.high, equal.outliers.len()), (2.0, 2.0, 0));
        // The third quartile, 25, lies beyond the last figure within reach.
        let skewed = samples(&[0.0, 0.0, 0.0, 0.0, 100.0, 100.0]).five_figures();
        assert!(skewed.high >= skewed.q3, "{skewed:?}");
    }

    /// Probability that the median of a resample of `n` is at most the `k`th figure, for odd `n`.
    fn at_most(k: usize, n: usize) -> f64 {
        let p = k as f64 / n as f64;
        let mut binomial = (1.0 - p).powi(n as i32);
        let mut sum = 0.0;
        for hits in 0..=n {
            if hits > n / 2 {
                sum += binomial;
            }
            binomial *= (n - hits) as f64 / (hits + 1) as f64 * p / (1.0 - p);
        }
        sum
    }

    #[test]
    fn intervals_are_those_of_the_exact_bootstrap_distribution() {
        for n in [5_usize, 9, 21, 51] {
            let figures: Vec<f64> = (1..=n).map(|k| k as f64).collect();
            let exact = |p: f64| (1..n).find(|k| at_most(*k, n) > p).unwrap_or(n) as f64;
            let interval = samples(&figures).median_interval().unwrap();
            // 2000 resamples miss a bound that lies between two figures by one.
            assert!((interval.start() - exact(0.025)).abs() <= 1.0, "{n}: {interval:?}");
            assert!((interval.end() - exact(0.975)).abs() <= 1.0, "{n}: {interval:?}");
            assert!(interval.contains(&samples(&figures).median()));
        }
        assert_eq!(samples(&[1.0, 2.0]).median_interval(), Some(1.0..=2.0));
        assert_eq!(samples(&[3.0; 9]).median_interval(), Some(3.0..=3.0));
        let long: Vec<f64> = (0..30_000).map(f64::from).collect();
        let interval = samples(&long).median_interval().unwrap();
        // Half the width is 1.96 times half the root of n.
        let width = interval.end() - interval.start();
        assert!((200.0..500.0).contains(&width), "{interval:?}");
    }

    #[test]
    fn a_ratio_includes_one_where_runs_do_not_differ() {
        let base = samples(&[98.0, 99.0, 100.0, 101.0, 102.0]);
        let same = samples(&[97.0, 99.5, 100.2, 101.0, 103.0]).ratio_interval(&base).unwrap();
        assert!(same.contains(&1.0), "{same:?}");
        let other = samples(&[107.0, 109.5, 110.2, 111.0, 113.0]).ratio_interval(&base).unwrap();
        assert!(*other.start() > 1.04 && *other.end() < 1.16, "{other:?}");
        assert_eq!(base.ratio_interval(&samples(&[0.0, 1.0, 2.0])), None);
        assert_eq!(base.ratio_interval(&samples(&[1.0])), None);
    }

    #[test]
    fn statistics_are_one_json_object() {
        let json = serde_json::to_string(&samples(&[1.0, 3.0]).statistics()).unwrap();
        assert_eq!(
            json,
            "{\"n\":2,\"min\":1.0,\"q1\":1.5,\"median\":2.0,\"q3\":2.5,\"mean\":2.0,\"max\":3.0,\
             \"iqr\":1.0,\"median_interval\":[1.0,3.0]}"
        );
    }
}
