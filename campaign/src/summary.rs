//! The results of a campaign, a row for each value of each point.

use crate::topology::is_sum;
use longhaul_bench::{Point as Place, Record, Samples, Statistics};
use serde::Serialize;
use std::collections::BTreeMap;

/// The runs of one value at one point.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Row {
    /// Parameters of the point.
    pub point: Place,
    /// Name of the value, which ends in its unit.
    pub value: String,
    /// What the figures amount to: those of runs, or where pairs are samples of one distribution,
    /// those of pairs.
    #[serde(flatten)]
    pub statistics: Statistics,
}

/// Rows of all values in `records`, by value and point.
pub fn rows(records: &[Record]) -> Vec<Row> {
    let mut figures: BTreeMap<(&str, &Place), Vec<f64>> = BTreeMap::new();
    for record in records {
        for (value, figure) in &record.values {
            let figures = figures.entry((value, &record.point)).or_default();
            let of_pairs = record.pairs.iter().filter(|_| !is_sum(value));
            let mut of_pairs = of_pairs.filter_map(|pair| pair.values.get(value)).peekable();
            match of_pairs.peek() {
                Some(_) => figures.extend(of_pairs),
                None => figures.push(*figure),
            }
        }
    }
    let row = |((value, point), figures): ((&str, &Place), Vec<f64>)| {
        let statistics = Samples::new(figures)?.statistics();
        Some(Row { point: point.clone(), value: value.to_owned(), statistics })
    };
    figures.into_iter().filter_map(row).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use longhaul_bench::Source;

    #[test]
    fn a_row_has_the_middle_and_the_extremes() {
        let record = |figure: f64| {
            Record::new("x", Source::Measured, Place::new().with("qps", 1)).value("a_bps", figure)
        };
        let other = Record::new("x", Source::Measured, Place::new().with("qps", 2));
        let records =
            [record(4.0), record(1.0), other.value("a_bps", 9.0), record(2.0), record(3.0)];
        let found = rows(&records);
        let figures = |row: &Row| {
            let all = &row.statistics;
            (all.n, all.min, all.median, all.mean, all.max)
        };
        assert_eq!(figures(&found[0]), (4, 1.0, 2.5, 2.5, 4.0));
        assert_eq!((figures(&found[1]), found.len()), ((1, 9.0, 9.0, 9.0, 9.0), 2));
    }
}
