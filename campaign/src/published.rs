//! Published tables beside the results of a campaign.

use longhaul_bench::{Point as Place, Record, Samples, Scalar};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Which of several runs' figures a table has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Statistic {
    /// The smallest.
    Min,
    /// The middle one.
    Median,
    /// Their mean.
    Mean,
    /// The largest.
    Max,
}

impl Statistic {
    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Statistic::Min => "min",
            Statistic::Median => "median",
            Statistic::Mean => "mean",
            Statistic::Max => "max",
        }
    }

    fn of(self, figures: &Samples) -> f64 {
        match self {
            Statistic::Min => figures.min(),
            Statistic::Median => figures.median(),
            Statistic::Mean => figures.mean(),
            Statistic::Max => figures.max(),
        }
    }
}

/// `[[published]]` of a campaign's file: the columns of a table, and the points whose figures they
/// are.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Published {
    /// Name of the table.
    pub table: String,
    /// Cells by which its rows are selected.
    #[serde(default, rename = "where")]
    only: BTreeMap<String, String>,
    /// Parameters of the points; with several values, each has the figure.
    #[serde(default)]
    at: BTreeMap<String, Choice>,
    /// Columns that are parameters of the points.
    #[serde(default)]
    columns: BTreeMap<String, String>,
    /// Columns of figures.
    figures: BTreeMap<Statistic, String>,
    /// Name of the figures' value in results.
    value: String,
    /// Their factor to the value's unit.
    #[serde(default = "one")]
    times: f64,
}

fn one() -> f64 {
    1.0
}

/// One value of a parameter, or several.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(untagged)]
enum Choice {
    One(Scalar),
    Several(Vec<Scalar>),
}

/// A published figure beside the measured one.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Compared {
    /// Parameters of the published figure; other parameters may differ among its runs.
    pub point: Place,
    /// Name of the value.
    pub value: String,
    /// Which figure of several runs it is.
    pub statistic: Statistic,
    /// The document's.
    pub published: f64,
    /// Of these runs; absent if there are none.
    pub measured: Option<f64>,
    /// Number of the runs.
    pub n: usize,
}

impl Published {
    /// The table's figures beside those of `records`; `rows` has the table's cells by column.
    pub fn compare(&self, rows: &[BTreeMap<String, String>], records: &[Record]) -> Vec<Compared> {
        let is_ours = |row: &&BTreeMap<String, String>| {
            self.only.iter().all(|(column, cell)| row.get(column) == Some(cell))
        };
        let mut compared = Vec::new();
        for row in rows.iter().filter(is_ours) {
            for point in self.points(row) {
                let figures = figures(records, &point, &self.value);
                for (statistic, column) in &self.figures {
                    let cell = row.get(column).and_then(|cell| cell.parse::<f64>().ok());
                    // An empty cell was not published.
                    let Some(published) = cell else { continue };
                    compared.push(Compared {
                        point: point.clone(),
                        value: self.value.clone(),
                        statistic: *statistic,
                        published: published * self.times,
                        measured: figures.as_ref().map(|figures| statistic.of(figures)),
                        n: figures.as_ref().map_or(0, Samples::n),
                    });
                }
            }
        }
        compared
    }

    /// The points that have the figures of a row.
    fn points(&self, row: &BTreeMap<String, String>) -> Vec<Place> {
        let mut points = vec![Place::new()];
        for (key, choice) in &self.at {
            let values = match choice {
                Choice::One(value) => std::slice::from_ref(value),
                Choice::Several(values) => values,
            };
            let with = |point: &Place| -> Vec<Place> {
                values.iter().map(|value| point.clone().with(key, value.clone())).collect()
            };
            points = points.iter().flat_map(with).collect();
        }
        for (column, key) in &self.columns {
            let cell = row.get(column).map_or("", String::as_str);
            let number = cell.parse::<f64>().map(Scalar::from);
            let value = number.unwrap_or_else(|_| Scalar::from(cell));
            points = points.into_iter().map(|point| point.with(key, value.clone())).collect();
        }
        points
    }
}

/// The figures of `value` at points that have the parameters of `point`; `None` if there are none.
fn figures(records: &[Record], point: &Place, value: &str) -> Option<Samples> {
    let is_at = |record: &&Record| point.iter().all(|(key, at)| record.point.get(key) == Some(at));
    let found = records.iter().filter(is_at).filter_map(|record| record.values.get(value).copied());
    Samples::new(found)
}

#[cfg(test)]
mod tests {
    use super::*;
    use longhaul_bench::Source;

    #[test]
    fn figures_stand_beside_the_runs_of_their_points() {
        let published: Published = toml::from_str(
            r#"
table = "t"
where = { op = "write" }
at = { program = ["a", "b"] }
columns = { size = "message_bytes" }
figures = { min = "least", mean = "avg" }
value = "goodput_bps"
times = 1e9
"#,
        )
        .unwrap();
        let row = |cells: [&str; 4]| -> BTreeMap<String, String> {
            let names = ["op", "size", "least", "avg"].map(str::to_owned);
            names.into_iter().zip(cells.map(str::to_owned)).collect()
        };
        let rows = [
            row(["write", "4096", "1", "2"]),
            row(["write", "8192", "", "3"]),
            row(["x", "4096", "9", "9"]),
        ];
        let record = |repeat: u32, figure: f64| {
            let point =
                Place::new().with("program", "a").with("message_bytes", 4096).with("qps", repeat);
            Record::new("x", Source::Measured, point).value("goodput_bps", figure)
        };
        let compared = published.compare(&rows, &[record(1, 5e9), record(2, 1e9)]);
        let found: Vec<_> =
            compared.iter().map(|one| (one.published, one.measured, one.n)).collect();
        let (none, min, mean) = (None, Some(1e9), Some(3e9));
        let expected = [
            (1e9, min, 2),
            (2e9, mean, 2),
            (1e9, none, 0),
            (2e9, none, 0),
            (3e9, none, 0),
            (3e9, none, 0),
        ];
        assert_eq!(found, expected);
        let place = Place::new().with("program", "a").with("message_bytes", 4096);
        assert_eq!(compared[0].point, place);
    }
}
