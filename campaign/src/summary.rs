//! The results of a campaign, a row for each value of each point.

use crate::topology::is_sum;
use longhaul_bench::{Point as Place, Record};
use serde::Serialize;
use std::collections::BTreeMap;

/// The runs of one value at one point.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Row {
    /// Parameters of the point.
    pub point: Place,
    /// Name of the value, which ends in its unit.
    pub value: String,
    /// Number of figures: of runs, or where pairs are samples of one distribution, of pairs.
    pub n: usize,
    /// Smallest figure.
    pub min: f64,
    /// Middle figure, or the mean of the two in the middle.
    pub median: f64,
    /// Mean.
    pub mean: f64,
    /// Largest figure.
    pub max: f64,
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
    let row = |((value, point), mut figures): ((&str, &Place), Vec<f64>)| {
        figures.sort_by(f64::total_cmp);
        let n = figures.len();
        Row {
            point: point.clone(),
            value: value.to_owned(),
            n,
            min: figures[0],
            median: f64::midpoint(figures[(n - 1) / 2], figures[n / 2]),
            mean: figures.iter().sum::<f64>() / n as f64,
            max: figures[n - 1],
        }
    };
    figures.into_iter().map(row).collect()
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
        let figures = |row: &Row| (row.n, row.min, row.median, row.mean, row.max);
        assert_eq!(figures(&found[0]), (4, 1.0, 2.5, 2.5, 4.0));
        assert_eq!((figures(&found[1]), found.len()), ((1, 9.0, 9.0, 9.0, 9.0), 2));
    }
}
