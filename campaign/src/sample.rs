//! What this machine does while programs run: processor time of their threads, counters of network
//! devices, energy.

mod counters;
mod devices;
mod power;
pub(crate) mod powertop;
mod threads;

pub use counters::{Readings, Rise};
pub use devices::{Device, Traffic, of_machine};
pub use power::{Power, PowerMeter};
pub use threads::{Activity, Sampler};

use std::ops::Range;
use std::path::Path;
use std::time::Duration;

/// Share of the greatest activity from which an interval counts as active.
const ACTIVE_SHARE: f64 = 0.1;
/// Longest gap between active intervals of one stretch, in intervals.
const GAP_MAX: usize = 5;
/// Active intervals below which all of them are the middle.
const SPLIT_MIN: usize = 8;

/// A recording in progress.
pub struct Recording {
    before: Readings,
    meter: PowerMeter,
    sampler: Option<Sampler>,
}

/// What was recorded of a run.
#[derive(Debug, Default)]
pub struct Recorded {
    /// Increase of counters and energy.
    pub rise: Rise,
    /// Power of GPUs, supplies and sensors.
    pub power: Power,
    /// Processor time of threads and traffic of devices, if they were sampled.
    pub activity: Option<Activity>,
    /// What powertop told, if it was asked.
    pub powertop: Option<powertop::Estimate>,
}

impl Recording {
    /// Begins: reads all counters and, if there is an `interval`, samples the threads of all
    /// descendants of this process and the traffic of `devices`.
    pub fn begin(interval: Option<Duration>, devices: Vec<Device>) -> Self {
        let before = Readings::now(Path::new("/"));
        let meter = PowerMeter::start();
        Recording {
            before,
            meter,
            sampler: interval.map(|interval| Sampler::start(interval, devices)),
        }
    }

    /// Ends.
    pub fn end(self) -> Recorded {
        let activity = self.sampler.map(Sampler::end);
        let rise = Readings::now(Path::new("/")).since(&self.before);
        Recorded { rise, power: self.meter.end(), activity, powertop: None }
    }
}

/// The middle of a run, of the activity of its programs by interval.
///
/// An interval is active if it has at least a tenth of the greatest activity. Active intervals with
/// short gaps are a stretch; the stretch with the most activity is the run, and its middle half is
/// the middle. That leaves out connecting, ramping up and ending.
pub fn middle(activity: &[f64]) -> Range<usize> {
    let most = activity.iter().copied().fold(0.0, f64::max);
    let mut stretches: Vec<Range<usize>> = Vec::new();
    for (at, share) in activity.iter().enumerate() {
        if *share <= 0.0 || *share < ACTIVE_SHARE * most {
            continue;
        }
        match stretches.last_mut() {
            Some(last) if at - last.end <= GAP_MAX => last.end = at + 1,
            _ => stretches.push(at..at + 1),
        }
    }
    let sum = |stretch: &Range<usize>| activity[stretch.clone()].iter().sum::<f64>();
    let run = stretches.into_iter().max_by(|a, b| sum(a).total_cmp(&sum(b))).unwrap_or(0..0);
    let quarter = if run.len() < SPLIT_MIN { 0 } else { run.len() / 4 };
    run.start + quarter..run.end - quarter
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_middle_leaves_out_the_beginning_and_the_end() {
        // Four intervals of connecting, sixteen of work, four of nothing.
        let run: Vec<f64> = [[0.01; 4].as_slice(), &[1.0; 8], &[0.5; 8], &[0.0; 4]].concat();
        assert_eq!(middle(&run), 8..16);
        assert_eq!(middle(&[0.0, 1.0, 1.0, 0.0]), 1..3);
        assert_eq!(middle(&[0.0; 20]), 0..0);
        assert_eq!(middle(&[]), 0..0);
    }

    #[test]
    fn the_longest_work_is_the_run_and_short_gaps_belong_to_it() {
        // Starting, waiting, and work of which the scheduler takes two intervals.
        let run: Vec<f64> =
            [[1.0; 6].as_slice(), &[0.0; 40], &[1.0; 8], &[0.0; 2], &[1.0; 10]].concat();
        assert_eq!(middle(&run), 51..61);
    }
}
