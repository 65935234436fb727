//! The points of a campaign and what was measured there, for people and programs.

use super::published;
use crate::output;
use crate::output::table::blocks;
use crate::problem::Problem;
use longhaul_bench::{FEW, Point as Place, Quantity, Record, Scalar, Statistics};
use longhaul_boxes::figures::count;
use longhaul_campaign::{Campaign, Compared, Point, Row, Store, Tally, rows};
use serde::Serialize;
use std::collections::BTreeSet;
use std::path::Path;

/// What is known at the end.
pub struct Outcome<'a> {
    pub campaign: &'a Campaign,
    pub points: &'a [Point],
    /// Of these points.
    pub records: &'a [Record],
    /// Published figures beside these.
    pub compared: &'a [Compared],
    pub store: &'a Store,
    pub tally: &'a Tally,
}

/// Output of `--list --json`.
#[derive(Serialize)]
struct List<'a> {
    /// Version of this layout.
    schema: &'static str,
    experiment: &'a str,
    repeats: u32,
    points: Vec<&'a Place>,
}

/// Output of `--json`.
#[derive(Serialize)]
struct Document<'a> {
    /// Version of this layout.
    schema: &'static str,
    experiment: &'a str,
    results: &'a Path,
    points: usize,
    repeats: u32,
    /// Runs of this call with results.
    measured: usize,
    is_interrupted: bool,
    summary: Vec<Row>,
    #[serde(skip_serializing_if = "<[Compared]>::is_empty")]
    published: &'a [Compared],
    failed: Vec<Failed<'a>>,
}

/// A run that failed.
#[derive(Serialize)]
struct Failed<'a> {
    point: &'a Place,
    repeat: Option<u32>,
    reason: &'a str,
}

/// The points, one a line.
pub fn list(campaign: &Campaign, points: &[Point], as_json: bool) -> Result<String, Problem> {
    let repeats = campaign.repeats;
    let name = &campaign.experiment.name;
    if as_json {
        let points = points.iter().map(|point| &point.place).collect();
        let list = List { schema: "longhaul-measure-list/1", experiment: name, repeats, points };
        return Ok(output::to_json(&list)? + "\n");
    }
    let lines: String = points.iter().map(|point| format!("{}\n", point.place)).collect();
    let runs = points.len() as u64 * u64::from(repeats);
    let (points, runs) = (count(points.len() as u64, "point"), count(runs, "run"));
    Ok(format!("{lines}{name}: {points}, {runs}\n"))
}

impl Outcome<'_> {
    /// Records of runs that failed, with the reason.
    pub fn failed(&self) -> impl Iterator<Item = (&Record, &str)> {
        self.records.iter().filter_map(|record| {
            let (_, reason) = record.failed.iter().next()?;
            Some((record, reason.as_str()))
        })
    }

    /// One JSON object.
    pub fn json(&self) -> Result<String, Problem> {
        let failed = self.failed().map(|(record, reason)| Failed {
            point: &record.point,
            repeat: record.provenance.as_ref().and_then(|provenance| provenance.repeat),
            reason,
        });
        let document = Document {
            schema: "longhaul-measure/1",
            experiment: &self.campaign.experiment.name,
            results: self.store.path(),
            points: self.points.len(),
            repeats: self.campaign.repeats,
            measured: self.tally.measured,
            is_interrupted: self.tally.is_interrupted,
            summary: rows(self.records),
            published: self.compared,
            failed: failed.collect(),
        };
        Ok(output::to_json(&document)? + "\n")
    }

    /// A table for each value that a program owes, what follows from the number of runs, and the
    /// runs that failed.
    pub fn text(&self, width: usize) -> String {
        let rows = rows(self.records);
        let mut text = String::new();
        let mut few = 0;
        for program in &self.campaign.programs {
            let name = Scalar::from(program.name.as_str());
            for value in program.values() {
                let is_its =
                    |row: &&Row| row.value == value && row.point.get("program") == Some(&name);
                let of_value: Vec<&Row> = rows.iter().filter(is_its).collect();
                if of_value.is_empty() {
                    continue;
                }
                few += of_value.iter().filter(|row| row.statistics.n < FEW).count();
                let label = Quantity::of(&value).label().to_owned();
                text += &format!("{}: {label}\n{}\n", program.name, table(&of_value, width));
            }
        }
        if few > 0 {
            let rows = count(few as u64, "row");
            let line = format!(
                "{rows} with n below {FEW}: their medians and extremes say little; raise 'repeats'"
            );
            text += &output::wrapped(&line, width);
        }
        if !self.compared.is_empty() {
            text += &published::text(self.campaign, self.compared, width);
        }
        let mut by_reason: Vec<(&str, Vec<&Record>)> = Vec::new();
        for (record, reason) in self.failed() {
            match by_reason.iter_mut().find(|(known, _)| *known == reason) {
                Some((_, records)) => records.push(record),
                None => by_reason.push((reason, vec![record])),
            }
        }
        for (reason, records) in by_reason {
            let more = match records.len() {
                1 => String::new(),
                all => format!(" and {} more", all - 1),
            };
            let line = format!("failed: {}{more}: {reason}", records[0].point);
            text += &output::wrapped(&line, width);
        }
        let runs = count(self.tally.measured as u64, "new run");
        text + &format!("{runs}: {}\n", self.store.path().display())
    }
}

/// Rows of one value, with the parameters that differ.
fn table(rows: &[&Row], width: usize) -> String {
    let keys: BTreeSet<&str> =
        rows.iter().flat_map(|row| row.point.iter().map(|(key, _)| key)).collect();
    let differs = |key: &&&str| rows.iter().any(|row| row.point.get(key) != rows[0].point.get(key));
    let keys: Vec<&str> = keys.iter().filter(differs).copied().collect();
    let heads = keys.iter().map(|key| Quantity::of(key).label().to_owned());
    let figures = ["n", "min", "median", "mean", "max", "IQR"].map(str::to_owned);
    let mut lines = vec![heads.chain(figures).collect::<Vec<String>>()];
    for row in rows {
        let quantity = Quantity::of(&row.value);
        let parameter =
            |key: &&str| row.point.get(key).map_or_else(String::new, |value| value.humanised(key));
        let Statistics { n, min, median, mean, max, iqr, .. } = row.statistics;
        let figures = [min, median, mean, max, iqr];
        let figures = figures.map(|figure| quantity.humanised(figure));
        let line = keys.iter().map(parameter).chain([n.to_string()]).chain(figures);
        lines.push(line.collect());
    }
    blocks(&lines, keys.len() + 1, width)
}

#[cfg(test)]
mod tests {
    use super::*;
    use longhaul_bench::Samples;

    #[test]
    fn a_table_has_the_parameters_that_differ() {
        let row = |km: f64, figure: f64| Row {
            point: Place::new().with("program", "write").with("distance_km", km).with("qps", 1),
            value: "goodput_bps".to_owned(),
            statistics: Samples::new([figure; 5]).unwrap().statistics(),
        };
        let (near, far) = (row(0.0, 9.5e9), row(1000.0, 1e9));
        assert_eq!(
            table(&[&near, &far], 100),
            "distance  n         min      median        mean         max      IQR\n\
             0 km      5  9.5 Gbit/s  9.5 Gbit/s  9.5 Gbit/s  9.5 Gbit/s  0 bit/s\n\
             1000 km   5    1 Gbit/s    1 Gbit/s    1 Gbit/s    1 Gbit/s  0 bit/s\n"
        );
    }
}
