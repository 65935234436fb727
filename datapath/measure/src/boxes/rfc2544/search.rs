//! Throughput search by loss ratio, with the terms of RFC 9971 (Multiple Loss Ratio Search).

use std::time::Duration;

/// Short trials that narrow the search before the first full-length trial.
const COARSE_STEPS: u32 = 12;
/// Bounds of a search that never converges: trials in all.
const TRIALS_MAX: u32 = 400;

/// A search goal.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Goal {
    /// Goal Loss Ratio: a trial with a greater one is a high-loss trial. 0 to 1.
    pub loss_ratio: f64,
    /// Goal Exceed Ratio: share of high-loss trials that a lower bound may have. 0 to 1.
    pub exceed_ratio: f64,
    /// Goal Final Trial Duration.
    pub final_trial: Duration,
    /// Goal Initial Trial Duration, of the trials that narrow the search.
    pub initial_trial: Duration,
    /// Goal Duration Sum: full-length trials at a load last at least this long together.
    pub duration_sum: Duration,
    /// Goal Width: the distance of the bounds at the end, relative to the upper one.
    pub width: f64,
}

/// What a trial of a search yields.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct TrialResult {
    /// Trial Loss Ratio.
    pub loss_ratio: f64,
    /// Frames per second that the box forwarded.
    pub forwarding_rate: f64,
}

/// Result of a search for a goal.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum GoalResult {
    /// A Regular Goal Result.
    Regular(Bounds),
    /// An Irregular Goal Result: even the minimum load is an upper bound.
    Irregular {
        /// The minimum load, in frames per second.
        min_load: f64,
    },
}

/// Bounds of a regular goal result, in frames per second.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Bounds {
    /// Relevant Lower Bound.
    pub lower: f64,
    /// Relevant Upper Bound; `None` if the maximum load is the lower bound.
    pub upper: Option<f64>,
    /// Conditional Throughput: what the box forwarded at the lower bound, in the worst trial within
    /// the exceed ratio.
    pub conditional_throughput: f64,
}

/// A load whose full-length trials decide whether it is a lower or an upper bound.
#[derive(Default)]
struct Load {
    /// Loss ratios of full-length trials.
    losses: Vec<f64>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Class {
    Lower,
    Upper,
    Undecided,
}

impl Load {
    fn class(&self, goal: &Goal) -> Class {
        let wanted = goal.duration_sum.as_secs_f64() / goal.final_trial.as_secs_f64();
        let wanted = (wanted - 1e-9).ceil().max(1.0);
        let measured = self.losses.len() as f64;
        let high = self.losses.iter().filter(|loss| **loss > goal.loss_ratio).count() as f64;
        let (whole, missing) = (wanted.max(measured), (wanted - measured).max(0.0));
        if high > goal.exceed_ratio * whole {
            Class::Upper
        } else if high + missing <= goal.exceed_ratio * whole {
            Class::Lower
        } else {
            Class::Undecided
        }
    }

    /// The worst loss ratio within the exceed ratio.
    fn conditional_loss(&self, goal: &Goal) -> f64 {
        let mut losses = self.losses.clone();
        losses.sort_by(f64::total_cmp);
        let worst = ((1.0 - goal.exceed_ratio) * losses.len() as f64).ceil() as usize;
        losses.get(worst.saturating_sub(1)).copied().unwrap_or(1.0)
    }
}

/// Searches between `min_load` and `max_load`, in frames per second. `measure` runs a trial at a
/// load for a duration.
///
/// # Errors
/// Those of `measure`.
pub fn search<E>(
    goal: &Goal,
    [min_load, max_load]: [f64; 2],
    mut measure: impl FnMut(f64, Duration) -> Result<TrialResult, E>,
) -> Result<GoalResult, E> {
    let candidate = narrow(goal, [min_load, max_load], &mut measure)?;
    let mut trials = 0;
    let mut lower: Option<(f64, f64)> = None;
    let mut upper: Option<f64> = None;
    let mut step = goal.width;
    loop {
        let load = match (lower, upper) {
            (None, None) => candidate,
            (Some((low, _)), None) if low >= max_load => break,
            (Some((low, _)), None) => (low * (1.0 + step)).min(max_load),
            (None, Some(high)) if high <= min_load => {
                return Ok(GoalResult::Irregular { min_load });
            }
            (None, Some(high)) => (high * (1.0 - step.min(0.5))).max(min_load),
            (Some((low, _)), Some(high)) if high - low <= goal.width * high => break,
            (Some((low, _)), Some(high)) => (low * high).sqrt(),
        };
        if lower.is_none() || upper.is_none() {
            step *= 2.0;
        }
        let mut at = Load::default();
        while at.class(goal) == Class::Undecided {
            at.losses.push(measure(load, goal.final_trial)?.loss_ratio);
            trials += 1;
        }
        match at.class(goal) {
            Class::Lower => lower = Some((load, load * (1.0 - at.conditional_loss(goal)))),
            Class::Upper | Class::Undecided => upper = Some(load),
        }
        if trials >= TRIALS_MAX && lower.is_some() {
            break;
        }
    }
    let (lower, conditional_throughput) = lower.unwrap_or((min_load, 0.0));
    Ok(GoalResult::Regular(Bounds { lower, upper, conditional_throughput }))
}

/// A load near the bounds, by single short trials.
fn narrow<E>(
    goal: &Goal,
    [min_load, max_load]: [f64; 2],
    measure: &mut impl FnMut(f64, Duration) -> Result<TrialResult, E>,
) -> Result<f64, E> {
    let first = measure(max_load, goal.initial_trial)?;
    if first.loss_ratio <= goal.loss_ratio {
        return Ok(max_load);
    }
    let (mut low, mut high) = (min_load, max_load);
    // A box that loses only what exceeds its capacity forwards its capacity.
    let mut load = first.forwarding_rate;
    for _ in 0..COARSE_STEPS {
        if high - low <= 2.0 * goal.width * high {
            break;
        }
        load = if load > low && load < high { load } else { (low * high).sqrt() };
        let trial = measure(load, goal.initial_trial)?;
        if trial.loss_ratio <= goal.loss_ratio {
            low = load
        } else {
            high = load
        }
        load = (low * high).sqrt();
    }
    Ok(low)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::convert::Infallible;

    fn goal() -> Goal {
        Goal {
            loss_ratio: 0.0,
            exceed_ratio: 0.5,
            final_trial: Duration::from_secs(1),
            initial_trial: Duration::from_millis(250),
            duration_sum: Duration::from_secs(3),
            width: 0.01,
        }
    }

    /// A box that forwards `capacity`, and in each `nth` trial loses something anyway.
    fn of_box(
        capacity: f64,
        nth: Option<u32>,
    ) -> impl FnMut(f64, Duration) -> Result<TrialResult, Infallible> {
        let mut trials = 0;
        move |load, _| {
            trials += 1;
            let hiccup = nth.is_some_and(|nth| trials % nth == 0);
            let loss_ratio = (1.0 - capacity / load).max(if hiccup { 1e-3 } else { 0.0 });
            Ok(TrialResult { loss_ratio, forwarding_rate: load * (1.0 - loss_ratio) })
        }
    }

    fn bounds(goal: &Goal, capacity: f64, nth: Option<u32>) -> Bounds {
        match search(goal, [10.0, 1e7], of_box(capacity, nth)).unwrap() {
            GoalResult::Regular(bounds) => bounds,
            irregular => panic!("{irregular:?}"),
        }
    }

    #[test]
    fn bounds_enclose_the_capacity_within_the_width() {
        for capacity in [25.0, 4_711.0, 3.3e6] {
            let found = bounds(&goal(), capacity, None);
            let upper = found.upper.unwrap();
            assert!(found.lower <= capacity && capacity < upper, "{found:?}");
            assert!(upper - found.lower <= 0.01 * upper, "{found:?}");
            assert_eq!(found.conditional_throughput, found.lower);
        }
    }

    #[test]
    fn an_exceed_ratio_forgives_single_trials_with_loss() {
        let found = bounds(&goal(), 1e6, Some(4));
        assert!(found.lower > 0.98e6 && found.lower <= 1e6, "{found:?}");
        let strict = Goal { exceed_ratio: 0.0, ..goal() };
        let found = search(&strict, [10.0, 1e7], of_box(1e6, Some(2))).unwrap();
        assert_eq!(found, GoalResult::Irregular { min_load: 10.0 });
    }

    #[test]
    fn a_greater_loss_ratio_finds_a_greater_load() {
        let lossy = Goal { loss_ratio: 0.1, ..goal() };
        let found = bounds(&lossy, 9e5, None);
        assert!((0.98e6..=1e6).contains(&found.lower), "{found:?}");
        assert!(found.conditional_throughput <= 9e5 * (1.0 + 1e-9), "{found:?}");
    }

    #[test]
    fn a_box_that_takes_all_has_no_upper_bound_and_a_broken_one_is_irregular() {
        let found = bounds(&goal(), 1e9, None);
        assert_eq!((found.lower, found.upper), (1e7, None));
        let broken = search(&goal(), [10.0, 1e7], of_box(0.0, None)).unwrap();
        assert_eq!(broken, GoalResult::Irregular { min_load: 10.0 });
    }
}
