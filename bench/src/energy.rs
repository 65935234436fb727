//! Energy per bit, and the reduction against a baseline at the same parameters.

use crate::point::{Point, Scalar};
use crate::record::{Record, Source};
use crate::samples::Samples;
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};

/// Watts of powertop's estimate for the programs, to which documents add those of a NIC.
pub const POWERTOP: &str = "powertop";
/// Name of the power that the user states.
const STATED: &str = "stated";
/// Seconds that a client spends in `post_send`.
const POSTING: &str = "in_post_send_s";

/// What is compared with what.
#[derive(Clone, Debug, PartialEq)]
pub struct Baseline {
    /// The parameter that tells the baseline from the others, such as `program`.
    pub key: String,
    /// Its value for the baseline, such as `tcp`.
    pub value: Scalar,
    /// Watts of runs without recorded power, by the parameter's value; `None` is for all others.
    pub stated_w: BTreeMap<Option<Scalar>, f64>,
    /// Watts of a NIC that are added to powertop's, in W.
    pub nic_w: f64,
}

/// The runs of one point, by one source of power: medians.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Energy {
    /// Power, in W.
    pub power_w: f64,
    /// Goodput, in bit/s.
    pub goodput_bps: f64,
    /// Power by goodput, in nJ.
    pub per_bit_nj: f64,
    /// Seconds in `post_send`, where the runs have them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub posting_s: Option<f64>,
    /// Power times the seconds in `post_send`, in W·s.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub posting_ws: Option<f64>,
    /// Number of runs.
    pub n: usize,
}

/// A point beside the baseline.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Saving {
    /// Its experiment.
    pub experiment: String,
    /// Where its goodput comes from.
    pub source: Source,
    /// Its parameters.
    pub point: Point,
    /// The command of one of its runs; empty for runs that have none.
    pub command: String,
    /// What told its power: a recorded source such as `psu`, or `stated`.
    pub power: String,
    /// Of the baseline's runs.
    pub baseline: Energy,
    /// Of its own.
    pub own: Energy,
    /// Reduction of the energy per bit, in percent of the baseline's.
    pub reduction_percent: f64,
    /// Reduction of power times seconds in `post_send`, likewise.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub posting_reduction_percent: Option<f64>,
}

/// A run's power, goodput and seconds in `post_send`.
struct Drawn {
    power_w: f64,
    goodput_bps: f64,
    posting_s: Option<f64>,
}

impl Baseline {
    /// True for runs of the baseline.
    fn is_of(&self, record: &Record) -> bool {
        record.point.get(&self.key) == Some(&self.value)
    }

    /// The power of a run by source; empty without goodput.
    fn drawn(&self, record: &Record) -> BTreeMap<String, Drawn> {
        let Some(&goodput_bps) = record.values.get("goodput_bps").filter(|bps| **bps > 0.0) else {
            return BTreeMap::new();
        };
        let posting_s = record.values.get(POSTING).copied();
        let recorded = record.values.iter().filter_map(|(name, watts)| {
            let source = name.strip_prefix("power_")?.strip_suffix("_w")?;
            let nic_w = if source == POWERTOP { self.nic_w } else { 0.0 };
            Some((source.to_owned(), watts + nic_w))
        });
        let mut watts: BTreeMap<String, f64> = recorded.collect();
        let value = record.point.get(&self.key).cloned();
        let stated = self.stated_w.get(&value).or_else(|| self.stated_w.get(&None));
        if let (true, Some(stated)) = (watts.is_empty(), stated) {
            watts.insert(STATED.to_owned(), *stated);
        }
        let drawn = |power_w: f64| Drawn { power_w, goodput_bps, posting_s };
        watts.into_iter().map(|(source, power_w)| (source, drawn(power_w))).collect()
    }

    /// The energy of `runs` by source of power.
    fn energy(&self, runs: &[&Record]) -> BTreeMap<String, Energy> {
        let mut by_source: BTreeMap<String, Vec<Drawn>> = BTreeMap::new();
        for run in runs {
            for (source, drawn) in self.drawn(run) {
                by_source.entry(source).or_default().push(drawn);
            }
        }
        let energy = |(source, runs): (String, Vec<Drawn>)| {
            let median = |of: &dyn Fn(&Drawn) -> Option<f64>| {
                Some(Samples::new(runs.iter().filter_map(of))?.median())
            };
            let energy = Energy {
                power_w: median(&|run| Some(run.power_w))?,
                goodput_bps: median(&|run| Some(run.goodput_bps))?,
                per_bit_nj: median(&|run| Some(run.power_w / run.goodput_bps * 1e9))?,
                posting_s: median(&|run| run.posting_s),
                posting_ws: median(&|run| Some(run.power_w * run.posting_s?)),
                n: runs.len(),
            };
            Some((source, energy))
        };
        by_source.into_iter().filter_map(energy).collect()
    }

    /// Each point of another value than the baseline's beside the baseline's runs with the same
    /// values of all parameters that both have. Points without such runs, and sources of power
    /// that only one side has, are left out.
    pub fn savings(&self, records: &[Record]) -> Vec<Saving> {
        type Place<'a> = (&'a str, Source, &'a Point);
        let mut points: Vec<(Place<'_>, Vec<&Record>)> = Vec::new();
        for record in records.iter().filter(|record| record.point.get(&self.key).is_some()) {
            let place = (record.experiment.as_str(), record.source, &record.point);
            match points.iter_mut().find(|(known, _)| *known == place) {
                Some((_, runs)) => runs.push(record),
                None => points.push((place, vec![record])),
            }
        }
        let (baselines, others): (Vec<_>, Vec<_>) =
            points.into_iter().partition(|(_, runs)| self.is_of(runs[0]));
        let mut savings = Vec::new();
        for ((experiment, source, point), runs) in others {
            let is_beside = |(other, _): &&(Place<'_>, Vec<&Record>)| {
                (other.0, other.1) == (experiment, source) && self.agree(point, other.2)
            };
            let beside = baselines.iter().filter(is_beside).flat_map(|(_, runs)| runs);
            let mut of_baseline = self.energy(&beside.copied().collect::<Vec<_>>());
            for (power, own) in self.energy(&runs) {
                let Some(baseline) = of_baseline.remove(&power) else { continue };
                let made = runs[0].provenance.as_ref();
                savings.push(Saving {
                    experiment: experiment.to_owned(),
                    source,
                    point: point.clone(),
                    command: made.map_or(String::new(), |made| made.command.clone()),
                    power,
                    baseline,
                    own,
                    reduction_percent: reduction(baseline.per_bit_nj, own.per_bit_nj),
                    posting_reduction_percent: baseline
                        .posting_ws
                        .zip(own.posting_ws)
                        .filter(|(baseline, _)| *baseline > 0.0)
                        .map(|(baseline, own)| reduction(baseline, own)),
                });
            }
        }
        savings
    }

    /// True if all parameters that both points have are equal, but for the key.
    fn agree(&self, a: &Point, b: &Point) -> bool {
        a.iter()
            .all(|(key, value)| key == self.key || b.get(key).is_none_or(|other| other == value))
    }

    /// The values of the key among `records`, in order.
    pub fn values<'a>(&self, records: &'a [Record]) -> BTreeSet<&'a Scalar> {
        records.iter().filter_map(|record| record.point.get(&self.key)).collect()
    }
}

/// What is saved from `before`, in percent of it.
fn reduction(before: f64, after: f64) -> f64 {
    100.0 * (1.0 - after / before)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(program: &str, km: u32, watts: f64, gbps: f64) -> Record {
        let point = Point::new().with("program", program).with("distance_km", km);
        let point = if program == "tcp" { point } else { point.with("message_bytes", 4096) };
        Record::new("x", Source::Measured, point)
            .value("goodput_bps", gbps * 1e9)
            .value("power_psu_w", watts)
    }

    fn against_tcp() -> Baseline {
        let (key, value) = ("program".to_owned(), "tcp".into());
        Baseline { key, value, stated_w: BTreeMap::new(), nic_w: 23.6 }
    }

    #[test]
    fn the_reduction_is_of_the_energy_per_bit_at_each_step() {
        let records = [
            run("tcp", 0, 200.0, 20.0),
            run("tcp", 0, 220.0, 20.0),
            run("tcp", 0, 240.0, 20.0),
            run("tcp", 100, 200.0, 1.0),
            run("write", 0, 180.0, 90.0),
            run("write", 1000, 180.0, 90.0),
        ];
        let savings = against_tcp().savings(&records);
        assert_eq!(savings.len(), 1, "1000 km has no baseline: {savings:?}");
        let Saving { baseline, own, reduction_percent, power, .. } = &savings[0];
        assert_eq!((power.as_str(), baseline.n, own.n), ("psu", 3, 1));
        assert_eq!((baseline.per_bit_nj, own.per_bit_nj), (11.0, 2.0));
        assert!((reduction_percent - 100.0 * 9.0 / 11.0).abs() < 1e-9, "{reduction_percent}");
    }

    #[test]
    fn time_in_post_send_gives_the_documents_figures() {
        // WRITE of table 9.
        let of = |program: &str, seconds: f64| {
            let point = Point::new().with("program", program);
            Record::new("x", Source::Measured, point)
                .value("goodput_bps", 1e9)
                .value("power_powertop_w", 1.4)
                .value("in_post_send_s", seconds)
        };
        let savings = against_tcp().savings(&[of("tcp", 117.86), of("write", 0.0802)]);
        let [saving] = &savings[..] else { panic!("{savings:?}") };
        let close = |a: Option<f64>, b: f64| a.is_some_and(|a| (a - b).abs() < 0.01);
        assert!(close(saving.baseline.posting_ws, 2946.5), "{saving:?}");
        assert!(close(saving.own.posting_ws, 2.005), "{saving:?}");
        assert!(close(saving.posting_reduction_percent, 99.93), "{saving:?}");
        // Goodput and power are the same.
        assert_eq!(saving.reduction_percent, 0.0);
    }

    #[test]
    fn stated_power_is_for_runs_without_any_other() {
        let simulated = |program: &str, gbps: f64| {
            let point = Point::new().with("program", program);
            Record::new("x", Source::Simulated, point).value("goodput_bps", gbps * 1e9)
        };
        let records = [simulated("tcp", 10.0), simulated("write", 50.0), simulated("read", 20.0)];
        assert_eq!(against_tcp().savings(&records), []);
        let stated_w = [(None, 25.0), (Some("read".into()), 50.0)].into();
        let baseline = Baseline { stated_w, ..against_tcp() };
        let savings = baseline.savings(&records);
        let found: Vec<_> = savings
            .iter()
            .map(|saving| (saving.power.as_str(), saving.reduction_percent.round()))
            .collect();
        assert_eq!(found, [("stated", 80.0), ("stated", 0.0)]);
        // Measured power goes first.
        let recorded = records.map(|record| record.value("power_psu_w", 1.0));
        assert!(baseline.savings(&recorded).iter().all(|saving| saving.power == "psu"));
    }
}
