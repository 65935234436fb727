//! Two sets of records side by side.

use crate::assess::{Assessment, Cell, Figure, deviation};
use crate::expectation::Tolerance;
use crate::experiment::Experiment;
use crate::point::Point;
use crate::record::{Provenance, Record, Source};
use crate::samples::{FEW, bounds};
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::RangeInclusive;

/// A figure that both sets have: medians where both have several runs, means otherwise.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Difference {
    /// Experiment.
    pub experiment: String,
    /// Source in the first set.
    pub source_a: Source,
    /// Source in the second set.
    pub source_b: Source,
    /// Parameters.
    pub point: Point,
    /// Name of the value.
    pub value: String,
    /// In the first set.
    pub a: f64,
    /// In the second set.
    pub b: f64,
    /// b / a; none where a is zero.
    pub ratio: Option<f64>,
    /// (b − a) / |a|; none where a is zero and b is not.
    pub deviation: Option<f64>,
    /// Runs or single observations in the first set.
    pub n_a: usize,
    /// Runs or single observations in the second set.
    pub n_b: usize,
    /// 95 % bootstrap interval of the ratio, where both sets have several runs.
    #[serde(serialize_with = "bounds", skip_serializing_if = "Option::is_none")]
    pub ratio_interval: Option<RangeInclusive<f64>>,
    /// Beyond the tolerance, whatever the interval.
    pub is_off: bool,
    /// Beyond the tolerance, and the interval, if there is one, excludes equality.
    pub is_beyond: bool,
}

impl Difference {
    /// Compares the figures of a cell of both sets.
    fn new(
        place: &Cell,
        sources: [Source; 2],
        figures: [&Figure; 2],
        name: &str,
        tolerance: Tolerance,
    ) -> Self {
        let [n_a, n_b] = figures.map(|figure| figure.samples.n());
        let is_repeated = n_a > 1 && n_b > 1;
        let [a, b] = figures.map(|figure| match is_repeated {
            true => figure.samples.median(),
            false => figure.mean,
        });
        let [of_a, of_b] = figures.map(|figure| &figure.samples);
        let ratio_interval = of_b.ratio_interval(of_a);
        let is_off = !tolerance.is_met(b, a);
        let is_distinct = ratio_interval.as_ref().is_none_or(|interval| !interval.contains(&1.0));
        Difference {
            experiment: name.to_owned(),
            source_a: sources[0],
            source_b: sources[1],
            point: place.point.clone(),
            value: place.value.clone(),
            a,
            b,
            ratio: (a != 0.0).then(|| b / a),
            deviation: deviation(b, a),
            n_a,
            n_b,
            ratio_interval,
            is_off,
            is_beyond: is_off && is_distinct,
        }
    }

    /// True if it has an interval of too few runs to say much.
    pub fn is_of_few(&self) -> bool {
        self.ratio_interval.is_some() && self.n_a.min(self.n_b) < FEW
    }
}

/// Something that is not the same in the provenance of two sets.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Origin {
    /// Experiment.
    pub experiment: String,
    /// Field of the provenance, or name in its environment.
    pub name: String,
    /// What only the first set has.
    pub a: Vec<String>,
    /// What only the second set has.
    pub b: Vec<String>,
}

/// A figure that only one set has.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Unmatched {
    /// Experiment.
    pub experiment: String,
    /// Source.
    pub source: Source,
    /// Parameters.
    pub point: Point,
    /// Name of the value.
    pub value: String,
    /// The figure.
    pub figure: f64,
}

/// Two sets of records, matched by experiment, source, point and value.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Comparison {
    /// What both have, in order of experiment, value and point.
    pub differences: Vec<Difference>,
    /// What only the first has.
    pub only_a: Vec<Unmatched>,
    /// What only the second has.
    pub only_b: Vec<Unmatched>,
    /// What differs in how they were made.
    pub provenance: Vec<Origin>,
}

impl Comparison {
    /// Compares `b` with `a`: medians where both have several runs, with an interval of their
    /// ratio, and otherwise runs averaged as in [`Assessment::new`]. Figures of the same source
    /// are matched; an experiment in which the sets have one source each, not the same, is matched
    /// across the two.
    pub fn new(a: &[Record], b: &[Record], tolerance: Tolerance) -> Self {
        let names: BTreeSet<&str> =
            a.iter().chain(b).map(|record| record.experiment.as_str()).collect();
        let mut comparison = Comparison::default();
        for name in names {
            comparison.experiment(name, a, b, tolerance);
            comparison.provenance.extend(origins(name, a, b));
        }
        comparison
    }

    fn experiment(&mut self, name: &str, a: &[Record], b: &[Record], tolerance: Tolerance) {
        let (sources_a, sources_b) = (sources(name, a), sources(name, b));
        let across = match (&sources_a[..], &sources_b[..]) {
            ([a], [b]) if a != b => Some((*a, *b)),
            _ => None,
        };
        let all = || Source::ALL.into_iter();
        let pairs: Vec<_> =
            across.map_or_else(|| all().map(|s| (s, s)).collect(), |pair| vec![pair]);
        // One assessment, so that both sides come in the same order.
        let experiment = Experiment::new(name, "");
        let both: Vec<Record> = a.iter().chain(b).cloned().collect();
        let order = Assessment::new(&experiment, &both);
        let (a, b) = (Assessment::new(&experiment, a), Assessment::new(&experiment, b));
        let (cells_a, cells_b) = (by_place(&a), by_place(&b));
        for (source_a, source_b) in pairs {
            for cell in order.cells() {
                let place = (cell.value.as_str(), &cell.point);
                let of_a = cells_a.get(&place).and_then(|cell| cell.figures.get(&source_a));
                let of_b = cells_b.get(&place).and_then(|cell| cell.figures.get(&source_b));
                let unmatched = |source, figure: &Figure| Unmatched {
                    experiment: name.to_owned(),
                    source,
                    point: cell.point.clone(),
                    value: cell.value.clone(),
                    figure: figure.mean,
                };
                match (of_a, of_b) {
                    (Some(a), Some(b)) => {
                        let sources = [source_a, source_b];
                        let difference = Difference::new(cell, sources, [a, b], name, tolerance);
                        self.differences.push(difference);
                    }
                    (Some(a), None) => self.only_a.push(unmatched(source_a, a)),
                    (None, Some(b)) => self.only_b.push(unmatched(source_b, b)),
                    (None, None) => {}
                }
            }
        }
    }

    /// How many figures are too far apart.
    pub fn beyond(&self) -> usize {
        self.differences.iter().filter(|difference| difference.is_beyond).count()
    }

    /// The figures farthest apart; what is not zero against zero is farther than anything.
    pub fn worst(&self) -> Option<&Difference> {
        let size = |difference: &Difference| difference.deviation.map_or(f64::INFINITY, f64::abs);
        self.differences.iter().max_by(|a, b| size(a).total_cmp(&size(b)))
    }
}

fn sources(name: &str, records: &[Record]) -> Vec<Source> {
    let all: BTreeSet<Source> =
        records.iter().filter(|r| r.experiment == name).map(|r| r.source).collect();
    all.into_iter().collect()
}

/// What differs in the provenance of an experiment's records.
fn origins(name: &str, a: &[Record], b: &[Record]) -> Vec<Origin> {
    let [all_a, all_b] = [a, b].map(|records| {
        let mut all: BTreeMap<&str, BTreeSet<String>> = BTreeMap::new();
        let of_name = records.iter().filter(|record| record.experiment == name);
        for provenance in of_name.filter_map(|record| record.provenance.as_ref()) {
            for (key, value) in facts(provenance) {
                all.entry(key).or_default().insert(value);
            }
        }
        all
    });
    // Records without provenance differ in nothing that can be named.
    if all_a.is_empty() || all_b.is_empty() {
        return Vec::new();
    }
    let none = BTreeSet::new();
    let keys: BTreeSet<&str> = all_a.keys().chain(all_b.keys()).copied().collect();
    let origin = |key: &str| {
        let [of_a, of_b] = [&all_a, &all_b].map(|all| all.get(key).unwrap_or(&none));
        let only = |these: &BTreeSet<String>, those: &BTreeSet<String>| -> Vec<String> {
            these.difference(those).cloned().collect()
        };
        let (experiment, key) = (name.to_owned(), key.to_owned());
        Origin { experiment, name: key, a: only(of_a, of_b), b: only(of_b, of_a) }
    };
    let origins = keys.into_iter().map(origin);
    origins.filter(|origin| !(origin.a.is_empty() && origin.b.is_empty())).collect()
}

/// What can be the same in the provenance of two runs.
fn facts(provenance: &Provenance) -> impl Iterator<Item = (&str, String)> {
    let seed = provenance.seed.map(|seed| ("seed", seed.to_string()));
    let own = [
        ("longhaul", provenance.longhaul.clone()),
        ("host", provenance.host.clone()),
        ("threads", provenance.threads.to_string()),
        ("command", without_ports(&provenance.command)),
    ];
    let environment = provenance.environment.iter();
    let environment = environment.map(|(key, value)| (key.as_str(), value.clone()));
    own.into_iter().filter(|(_, value)| !value.is_empty()).chain(seed).chain(environment)
}

/// Options of programs whose value is a port, which is another one in each run.
const PORT_OPTIONS: [&str; 3] = ["-p", "-lp", "--port"];

/// A command line with `PORT` for ports.
fn without_ports(command: &str) -> String {
    let mut words = Vec::new();
    let mut is_port = false;
    for word in command.split(' ') {
        let is_number = |text: &str| !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
        words.push(match word.rsplit_once(':') {
            _ if is_port && is_number(word) => "PORT".to_owned(),
            Some((address, port)) if is_number(port) => format!("{address}:PORT"),
            _ => word.to_owned(),
        });
        is_port = PORT_OPTIONS.contains(&word);
    }
    words.join(" ")
}

fn by_place(assessment: &Assessment) -> BTreeMap<(&str, &Point), &Cell> {
    assessment.cells().iter().map(|cell| ((cell.value.as_str(), &cell.point), cell)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(source: Source, bytes: u32, goodput: f64) -> Record {
        Record::new("x", source, Point::new().with("message_bytes", bytes))
            .value("goodput_bps", goodput)
    }

    #[test]
    fn figures_are_matched_by_source_and_point() {
        let a = [
            record(Source::Simulated, 1, 100.0),
            record(Source::Predicted, 1, 50.0),
            record(Source::Simulated, 2, 7.0),
        ];
        let b = [
            record(Source::Simulated, 1, 102.0),
            record(Source::Predicted, 1, 50.4),
            record(Source::Simulated, 3, 8.0),
        ];
        let comparison = Comparison::new(&a, &b, Tolerance::Percent(1.0));
        let found: Vec<_> = comparison
            .differences
            .iter()
            .map(|d| (d.source_a, d.deviation.unwrap(), d.is_beyond))
            .collect();
        assert_eq!(found.len(), 2);
        assert!(
            found[0].0 == Source::Predicted && (found[0].1 - 0.008).abs() < 1e-9 && !found[0].2,
            "{found:?}"
        );
        assert!(
            found[1].0 == Source::Simulated && (found[1].1 - 0.02).abs() < 1e-9 && found[1].2,
            "{found:?}"
        );
        let only = |list: &[Unmatched]| list.iter().map(|u| u.figure).collect::<Vec<_>>();
        assert_eq!((only(&comparison.only_a), only(&comparison.only_b)), (vec![7.0], vec![8.0]));
        assert_eq!((comparison.beyond(), comparison.worst().unwrap().a), (1, 100.0));
    }

    #[test]
    fn one_source_each_is_matched_across_the_two() {
        let comparison = Comparison::new(
            &[record(Source::Simulated, 1, 100.0)],
            &[record(Source::Measured, 1, 100.5)],
            Tolerance::Percent(1.0),
        );
        assert_eq!((comparison.differences.len(), comparison.beyond()), (1, 0));
        assert!(comparison.only_a.is_empty() && comparison.only_b.is_empty());
    }

    #[test]
    fn zero_agrees_with_zero_alone() {
        let compare = |b| {
            let (a, b) = ([record(Source::Simulated, 1, 0.0)], [record(Source::Simulated, 1, b)]);
            Comparison::new(&a, &b, Tolerance::Percent(1.0))
        };
        assert_eq!(compare(0.0).beyond(), 0);
        assert_eq!(compare(1e-9).beyond(), 1);
        assert_eq!(compare(1.0).worst().unwrap().deviation, None);
    }

    #[test]
    fn repeated_runs_differ_only_where_the_interval_excludes_equality() {
        let runs = |goodputs: &[f64]| -> Vec<Record> {
            goodputs.iter().map(|goodput| record(Source::Measured, 1, *goodput)).collect()
        };
        let a = runs(&[80.0, 98.0, 100.0, 101.0, 120.0]);
        let compare = |b: &[Record]| {
            let comparison = Comparison::new(&a, b, Tolerance::Percent(1.0));
            comparison.differences[0].clone()
        };
        let noise = compare(&runs(&[85.0, 99.0, 104.0, 106.0, 119.0]));
        assert_eq!((noise.a, noise.b, noise.n_a), (100.0, 104.0, 5));
        assert!(noise.is_off && !noise.is_beyond && !noise.is_of_few(), "{noise:?}");
        let faster = compare(&runs(&[170.0, 180.0, 190.0, 191.0, 200.0]));
        assert!(faster.is_beyond && *faster.ratio_interval.unwrap().start() > 1.0);
        let few = compare(&runs(&[170.0, 180.0]));
        assert!(few.is_beyond && few.is_of_few(), "{few:?}");
        // A single run has no interval; means are compared.
        let single = compare(&runs(&[100.0]));
        assert_eq!((single.a, single.b, single.ratio_interval), (99.8, 100.0, None));
    }

    #[test]
    fn what_differs_in_provenance_is_named() {
        let made = |kernel: &str, command: &str| {
            let environment = [("kernel".to_owned(), kernel.to_owned())].into();
            let command = command.to_owned();
            let provenance =
                Provenance { command, environment, threads: 1, ..Provenance::default() };
            record(Source::Measured, 1, 1.0).from_run(provenance)
        };
        let a = [made("6.1", "ib_write_bw -p 4711 10.0.0.1")];
        let b = [made("6.5", "ib_write_bw -p 815 10.0.0.1")];
        let compare = |b: &[Record]| Comparison::new(&a, b, Tolerance::Percent(1.0)).provenance;
        let kernel = Origin {
            experiment: "x".to_owned(),
            name: "kernel".to_owned(),
            a: vec!["6.1".to_owned()],
            b: vec!["6.5".to_owned()],
        };
        assert_eq!(compare(&b), [kernel]);
        assert_eq!(compare(&a), []);
        assert_eq!(compare(&[record(Source::Measured, 1, 1.0)]), []);
        let other = [made("6.1", "qperf -lp 9 10.0.0.1:99")];
        assert_eq!(compare(&other)[0].b, ["qperf -lp PORT 10.0.0.1:PORT"]);
    }
}
