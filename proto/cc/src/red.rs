//! ECN marking of a queue by random early detection (RED).

use longhaul_units::{BitRate, Duration, Rng, SplitMix64};

/// RED parameters for the instantaneous queue length, as DCQCN requires.
///
/// Source: Zhu et al., "Congestion Control for Large-Scale RDMA Deployments", SIGCOMM 2015, section
/// 3.1 and figure 5; Floyd and Jacobson 1993 for the name.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RedConfig {
    /// Kmin, in bytes on the wire: a queue up to this length marks nothing. In real time frames
    /// arrive in batches, and Kmin must exceed one turn's batch, or an uncongested queue marks.
    pub kmin_bytes: u64,
    /// Kmax, in bytes on the wire, at least Kmin: a longer queue marks every frame.
    pub kmax_bytes: u64,
    /// Pmax, 0 to 1: the marking probability at Kmax; it rises linearly from 0 at Kmin.
    pub pmax: f64,
}

impl RedConfig {
    /// Thresholds for a queue of `queue_bytes`: Kmin a sixteenth of it, Kmax a quarter, Pmax 0.1.
    /// The rest of the queue holds the frames in flight until the first marks take effect.
    pub const fn for_queue(queue_bytes: u64) -> Self {
        RedConfig { kmin_bytes: queue_bytes / 16, kmax_bytes: queue_bytes / 4, pmax: 0.1 }
    }

    /// `true` if each field is within its bounds.
    pub fn is_valid(&self) -> bool {
        self.kmin_bytes <= self.kmax_bytes && (0.0..=1.0).contains(&self.pmax)
    }
}

/// Decides for each frame that arrives at a queue whether to mark it. Equal seeds and equal waits
/// yield equal marks.
///
/// The queue is measured as transmission time, which a queue before a serialiser knows.
#[derive(Clone, Debug)]
pub struct Red {
    kmin: Duration,
    kmax: Duration,
    /// Rise of the probability per picosecond beyond Kmin.
    slope_per_ps: f64,
    rng: SplitMix64,
}

impl Red {
    /// Creates a marker for a queue that drains at `rate`. If Kmax < Kmin, both count as Kmin.
    pub fn new(config: &RedConfig, rate: BitRate, seed: u64) -> Self {
        let kmin = rate.time_for_bytes(config.kmin_bytes);
        let kmax = rate.time_for_bytes(config.kmax_bytes).max(kmin);
        let span_ps = (kmax.as_ps() - kmin.as_ps()).max(1);
        Red { kmin, kmax, slope_per_ps: config.pmax / span_ps as f64, rng: SplitMix64::new(seed) }
    }

    /// `true` if a frame that finds `wait` of queue before it must be marked. Call it only for
    /// frames that can be marked: each call may consume randomness.
    #[inline]
    pub fn marks(&mut self, wait: Duration) -> bool {
        if wait <= self.kmin {
            return false;
        }
        if wait > self.kmax {
            return true;
        }
        let beyond_ps = wait.as_ps() - self.kmin.as_ps();
        self.rng.chance(beyond_ps as f64 * self.slope_per_ps)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CONFIG: RedConfig = RedConfig { kmin_bytes: 100_000, kmax_bytes: 400_000, pmax: 0.2 };

    fn rate() -> BitRate {
        BitRate::from_gbps(10).unwrap()
    }

    /// Share of 100,000 frames that are marked behind `queue_bytes`.
    fn share(queue_bytes: u64) -> f64 {
        let mut red = Red::new(&CONFIG, rate(), 7);
        let wait = rate().time_for_bytes(queue_bytes);
        (0..100_000).filter(|_| red.marks(wait)).count() as f64 / 1e5
    }

    #[test]
    fn nothing_is_marked_up_to_kmin_and_everything_beyond_kmax() {
        assert_eq!(share(0), 0.0);
        assert_eq!(share(100_000), 0.0);
        assert_eq!(share(400_001), 1.0);
    }

    #[test]
    fn the_probability_rises_in_proportion_between_the_thresholds() {
        for (queue_bytes, expected) in
            [(175_000, 0.05), (250_000, 0.1), (325_000, 0.15), (400_000, 0.2)]
        {
            let share = share(queue_bytes);
            // Five standard deviations of 100,000 draws are less than 0.0064.
            assert!((share - expected).abs() < 0.0064, "{share} at {queue_bytes} bytes");
        }
    }

    #[test]
    fn equal_thresholds_are_a_step() {
        let config = RedConfig { kmin_bytes: 5000, kmax_bytes: 5000, pmax: 0.5 };
        let mut red = Red::new(&config, rate(), 1);
        assert!(!red.marks(rate().time_for_bytes(5000)));
        assert!(red.marks(rate().time_for_bytes(5001)));
    }

    #[test]
    fn the_same_seed_marks_the_same_frames() {
        let wait = rate().time_for_bytes(300_000);
        let marks = |seed| {
            let mut red = Red::new(&CONFIG, rate(), seed);
            (0..1000).map(|_| red.marks(wait)).collect::<Vec<_>>()
        };
        assert_eq!(marks(3), marks(3));
        assert_ne!(marks(3), marks(4));
    }

    #[test]
    fn values_out_of_bounds_are_told() {
        assert!(CONFIG.is_valid());
        assert!(!RedConfig { kmin_bytes: 400_001, ..CONFIG }.is_valid());
        for pmax in [-0.1, 1.1, f64::NAN] {
            assert!(!RedConfig { pmax, ..CONFIG }.is_valid(), "{pmax}");
        }
    }
}
