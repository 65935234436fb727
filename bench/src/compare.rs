//! Two sets of records side by side.

use crate::assess::{Assessment, Cell, deviation};
use crate::expectation::Tolerance;
use crate::experiment::Experiment;
use crate::point::Point;
use crate::record::{Record, Source};
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};

/// A figure that both sets have.
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
    /// Too far apart.
    pub is_beyond: bool,
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
}

impl Comparison {
    /// Compares `b` with `a`, runs averaged as in [`Assessment::new`]. Figures of the same source
    /// are matched; an experiment in which the sets have one source each, not the same, is matched
    /// across the two.
    pub fn new(a: &[Record], b: &[Record], tolerance: Tolerance) -> Self {
        let names: BTreeSet<&str> =
            a.iter().chain(b).map(|record| record.experiment.as_str()).collect();
        let mut comparison = Comparison::default();
        for name in names {
            comparison.experiment(name, a, b, tolerance);
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
                let figure = |cells: &BTreeMap<_, &Cell>, source| {
                    let cell: &&Cell = cells.get(&place)?;
                    cell.figures.get(&source).map(|figure| figure.mean)
                };
                let unmatched = |source, figure| Unmatched {
                    experiment: name.to_owned(),
                    source,
                    point: cell.point.clone(),
                    value: cell.value.clone(),
                    figure,
                };
                match (figure(&cells_a, source_a), figure(&cells_b, source_b)) {
                    (Some(a), Some(b)) => self.differences.push(Difference {
                        experiment: name.to_owned(),
                        source_a,
                        source_b,
                        point: cell.point.clone(),
                        value: cell.value.clone(),
                        a,
                        b,
                        ratio: (a != 0.0).then(|| b / a),
                        deviation: deviation(b, a),
                        is_beyond: !tolerance.is_met(b, a),
                    }),
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
}
