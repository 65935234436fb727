//! Random choice of the frames that an impairment affects.

use crate::config::Bursts;
use longhaul_units::{Rng, SplitMix64};

/// Draws the number of frames before the next hit instead of the fate of each frame: the
/// distribution is the same, and the cost per frame is nearly zero.
pub(crate) struct Chance {
    model: LossModel,
    rng: SplitMix64,
    before_next: u64,
}

enum LossModel {
    Never,
    /// Each frame independently, with this probability.
    Each(f64),
    /// The two states of Gilbert and Elliott: in the bad one each frame is hit with probability
    /// `loss`, in the good one none is.
    Bursts {
        enter: f64,
        leave: f64,
        loss: f64,
        is_bad: bool,
    },
}

impl Chance {
    /// Hits each frame independently.
    pub(crate) fn new(probability: f64, seed: u64) -> Self {
        Chance::with(
            if probability <= 0.0 { LossModel::Never } else { LossModel::Each(probability) },
            seed,
        )
    }

    /// Hits frames with this mean probability, in bursts if given.
    pub(crate) fn in_bursts(probability: f64, bursts: Option<&Bursts>, seed: u64) -> Self {
        let Some(bursts) = bursts.filter(|_| probability > 0.0) else {
            return Chance::new(probability, seed);
        };
        let leave = 1.0 / bursts.frames;
        let is_bad = probability / bursts.loss;
        let enter = (leave * is_bad / (1.0 - is_bad)).min(1.0);
        Chance::with(LossModel::Bursts { enter, leave, loss: bursts.loss, is_bad: false }, seed)
    }

    fn with(model: LossModel, seed: u64) -> Self {
        let mut chance = Chance { model, rng: SplitMix64::new(seed), before_next: 0 };
        chance.draw();
        chance
    }

    fn draw(&mut self) {
        let rng = &mut self.rng;
        self.before_next = match &mut self.model {
            LossModel::Never => u64::MAX,
            LossModel::Each(probability) => geometric(rng, *probability),
            LossModel::Bursts { enter, leave, loss, is_bad } => {
                let mut frames = 0_u64;
                loop {
                    if !*is_bad {
                        frames = frames.saturating_add(1).saturating_add(geometric(rng, *enter));
                        *is_bad = true;
                    }
                    let is_struck = uniform(rng) <= *loss;
                    *is_bad = uniform(rng) > *leave;
                    if is_struck {
                        break frames;
                    }
                    frames = frames.saturating_add(1);
                }
            }
        };
    }

    /// Frames that pass before the next hit.
    pub(crate) fn before_next(&self) -> u64 {
        self.before_next
    }

    /// Notes that `frames` passed, at most [`Chance::before_next`].
    pub(crate) fn pass(&mut self, frames: u64) {
        if !matches!(self.model, LossModel::Never) {
            self.before_next -= frames;
        }
    }

    /// Returns `true` if the next frame is hit.
    #[inline]
    pub(crate) fn take(&mut self) -> bool {
        if self.before_next == 0 {
            self.draw();
            return true;
        }
        self.pass(1);
        false
    }
}

/// A uniform number above 0 and up to 1, in steps of 2^-53.
fn uniform(rng: &mut SplitMix64) -> f64 {
    ((rng.next_u64() >> 11) + 1) as f64 / (1_u64 << 53) as f64
}

/// Number of failures before the first success.
fn geometric(rng: &mut SplitMix64, probability: f64) -> u64 {
    (uniform(rng).ln() / (1.0 - probability).ln()) as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    const FRAMES: usize = 4_000_000;

    /// Fraction of hit frames, and mean length of runs of them.
    fn observed(mean: f64, bursts: Bursts) -> (f64, f64) {
        let mut chance = Chance::in_bursts(mean, Some(&bursts), 7);
        let (mut struck, mut runs, mut was) = (0, 0, false);
        for _ in 0..FRAMES {
            let is = chance.take();
            struck += u64::from(is);
            runs += u64::from(is && !was);
            was = is;
        }
        (struck as f64 / FRAMES as f64, struck as f64 / runs as f64)
    }

    #[test]
    fn bursts_have_the_mean_and_the_length_that_they_are_given() {
        for (mean, frames) in [(1e-3, 1.0), (1e-3, 8.0), (1e-2, 20.0), (0.3, 4.0)] {
            let (loss, run) = observed(mean, Bursts { frames, loss: 1.0 });
            assert!((loss / mean - 1.0).abs() < 0.1, "{loss} of {mean}");
            assert!((run / frames - 1.0).abs() < 0.1, "{run} of {frames}");
        }
    }

    #[test]
    fn a_burst_that_spares_some_has_shorter_runs_and_the_same_mean() {
        let (loss, run) = observed(1e-2, Bursts { frames: 40.0, loss: 0.5 });
        assert!((loss / 1e-2 - 1.0).abs() < 0.1, "{loss}");
        // A run continues with probability (1 - 1/40) / 2.
        assert!((run / (1.0 / (1.0 - 0.975 / 2.0)) - 1.0).abs() < 0.05, "{run}");
    }

    #[test]
    fn what_never_happens_is_never_drawn() {
        let bursts = Bursts { frames: 10.0, loss: 1.0 };
        for mut chance in [Chance::new(0.0, 1), Chance::in_bursts(0.0, Some(&bursts), 1)] {
            assert!((0..1000).all(|_| !chance.take()));
            assert_eq!(chance.before_next(), u64::MAX);
        }
        assert!(Chance::new(1.0, 1).take());
    }
}
