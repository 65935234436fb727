//! Results of the tests of a box, as figures by name.

use super::search::GoalResult;
use super::{Cell, Settings};
use crate::boxes::{Over, Setup};
use crate::{Figures, Machine};
use longhaul_datapath::Trial;
use std::collections::BTreeMap;
use std::time::Duration;
use thiserror::Error;

/// Why a test has no result.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
pub enum Absent {
    /// The user left it out.
    #[error("not asked for")]
    NotAsked,
    /// Load and box share a thread, so that no burst reaches the box at once.
    #[error("over rings load and box take turns in one thread: use --over memif")]
    TakesTurns,
    /// The box has no process that could be killed.
    #[error("over rings the box is no process: use --over memif")]
    NoProcess,
    /// The device between two ports is not ours to restart.
    #[error("what connects the ports is not restarted by this program")]
    NotOurs,
    /// The box loses frames at any load.
    #[error("there is no throughput to test it at")]
    NoThroughput,
    /// No frame of the trial's delay was sampled.
    #[error("too few frames for a sample of the delay")]
    NoSamples,
    /// No frame arrived after the restart.
    #[error("no frame arrived after the restart, within {} s", .0.as_secs_f64())]
    NoFrames(Duration),
}

/// Delay at the throughput, in nanoseconds.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Latency {
    /// Mean.
    pub mean: f64,
    /// Median.
    pub p50: u64,
    /// 99th percentile.
    pub p99: u64,
    /// Maximum.
    pub max: u64,
}

impl Latency {
    /// Of a trial's samples.
    pub(super) fn of(trial: &Trial) -> Result<Self, Absent> {
        let times = &trial.one_way;
        if times.is_empty() {
            return Err(Absent::NoSamples);
        }
        Ok(Latency {
            mean: times.mean(),
            p50: times.value_at_quantile(0.5),
            p99: times.value_at_quantile(0.99),
            max: times.max(),
        })
    }
}

/// Results of one row of the table.
#[derive(Clone, Debug)]
pub struct Outcome {
    cell: Cell,
    setup: Setup,
    over: Over,
    loss_ratio: f64,
    /// Length of the frames with FCS, in bytes.
    pub frame_bytes: u64,
    /// Maximum load, in frames per second.
    pub max_load: f64,
    /// Result of the throughput search.
    pub found: GoalResult,
    /// Trials of the search.
    pub trials: u64,
    /// Delay at the throughput.
    pub latency: Result<Latency, Absent>,
    /// Load in frames per second and loss ratio, from the maximum load downwards.
    pub loss_rates: Vec<(f64, f64)>,
    /// Longest burst of each repeat, in frames.
    pub bursts: Result<Vec<u64>, Absent>,
    /// Time from the end of an overload to the last loss, of each repeat.
    pub recoveries: Result<Vec<Duration>, Absent>,
    /// Time without frames around a restart, of each repeat.
    pub resets: Result<Vec<Duration>, Absent>,
    /// Growth of memory, in bytes.
    pub(super) memory_growth: u64,
}

impl Outcome {
    pub(super) fn new(
        cell: Cell,
        settings: &Settings,
        frame_bytes: u64,
        max_load: f64,
        found: GoalResult,
        trials: u64,
    ) -> Self {
        let why = match found {
            GoalResult::Regular(_) => Absent::NotAsked,
            GoalResult::Irregular { .. } => Absent::NoThroughput,
        };
        Outcome {
            cell,
            setup: settings.setup.clone(),
            over: settings.over,
            loss_ratio: settings.goal.loss_ratio,
            frame_bytes,
            max_load,
            found,
            trials,
            latency: Err(why),
            loss_rates: Vec::new(),
            bursts: Err(Absent::NotAsked),
            recoveries: Err(why),
            resets: Err(Absent::NotAsked),
            memory_growth: 0,
        }
    }

    /// Settings of the box.
    pub fn setup(&self) -> &Setup {
        &self.setup
    }

    /// Connection of load and box.
    pub fn over(&self) -> Over {
        self.over
    }

    /// Goal Loss Ratio of the search.
    pub fn loss_ratio(&self) -> f64 {
        self.loss_ratio
    }

    /// Tests without a result although they were asked for, with the reasons.
    pub fn absent(&self) -> Vec<(&'static str, Absent)> {
        let all = [
            ("latency", self.latency.err()),
            ("back-to-back frames", self.bursts.as_ref().err().copied()),
            ("system recovery", self.recoveries.as_ref().err().copied()),
            ("reset", self.resets.as_ref().err().copied()),
        ];
        let named = all.into_iter().filter_map(|(name, why)| Some((name, why?)));
        named.filter(|(_, why)| *why != Absent::NotAsked).collect()
    }
}

/// Mean in seconds.
pub(super) fn mean_s(times: &[Duration]) -> f64 {
    times.iter().map(Duration::as_secs_f64).sum::<f64>() / times.len().max(1) as f64
}

impl Figures for Outcome {
    type Cell = Cell;

    fn cell(&self) -> &Cell {
        &self.cell
    }

    fn values(&self, _machine: &Machine) -> BTreeMap<String, f64> {
        let mut values = BTreeMap::from([
            ("max_load_frames_per_s".to_owned(), self.max_load),
            ("search_trials".to_owned(), self.trials as f64),
        ]);
        let mut put = |name: &str, value: f64| values.insert(name.to_owned(), value);
        match self.found {
            GoalResult::Regular(bounds) => {
                put("throughput_frames_per_s", bounds.lower);
                put("throughput_bps", bounds.lower * self.frame_bytes as f64 * 8.0);
                put("goodput_bps", bounds.lower * self.cell.payload_bytes as f64 * 8.0);
                put("conditional_throughput_frames_per_s", bounds.conditional_throughput);
                if let Some(upper) = bounds.upper {
                    put("upper_bound_frames_per_s", upper);
                }
            }
            GoalResult::Irregular { min_load } => {
                put("upper_bound_frames_per_s", min_load);
            }
        }
        if let Ok(latency) = self.latency {
            put("latency_mean_ns", latency.mean);
            put("latency_median_ns", latency.p50 as f64);
            put("latency_p99_ns", latency.p99 as f64);
            put("latency_max_ns", latency.max as f64);
        }
        for (load, loss) in &self.loss_rates {
            let percent = (100.0 * load / self.max_load).round();
            put(&format!("frame_loss_at_{percent}_percent"), 100.0 * loss);
        }
        if let Ok(bursts) = &self.bursts {
            let sum: u64 = bursts.iter().sum();
            put("back_to_back_frames", sum as f64 / bursts.len().max(1) as f64);
        }
        if let Ok(recoveries) = &self.recoveries {
            put("system_recovery_s", mean_s(recoveries));
        }
        if let Ok(resets) = &self.resets {
            put("reset_s", mean_s(resets));
        }
        values
    }

    fn memory_growth(&self) -> u64 {
        self.memory_growth
    }

    fn faults(&self) -> Vec<String> {
        match self.found {
            GoalResult::Regular(_) => Vec::new(),
            GoalResult::Irregular { min_load } => {
                vec![format!("it loses frames even at {min_load:.0} frames/s")]
            }
        }
    }
}
