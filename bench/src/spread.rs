//! The spread of repeated runs: a row for each point.

use crate::assess::{Assessment, Cell};
use crate::quantity::Quantity;
use crate::record::Source;
use crate::samples::{FEW, Statistics};
use crate::table::Format;
use std::fmt::Write;

/// Rows of a table; further ones are counted.
const ROWS_MAX: usize = 60;

/// Heads of the columns behind the point.
pub(crate) const HEADS: [&str; 7] = ["n", "min", "median", "95 % of median", "mean", "max", "IQR"];

/// The spread of one value.
pub(crate) struct Spread {
    /// Value and unit.
    pub title: String,
    pub rows: Vec<SpreadRow>,
    /// Further rows.
    pub omitted: usize,
    /// Rows of fewer than [`FEW`] figures, those omitted among them.
    pub few: usize,
}

/// The spread of one source's figures at one point.
pub(crate) struct SpreadRow {
    pub point: String,
    /// In the order of [`HEADS`].
    pub figures: [String; 7],
    pub is_few: bool,
}

/// A table for each value that has repeated runs or single observations.
pub(crate) fn spreads(assessment: &Assessment) -> Vec<Spread> {
    let of_value = |value: &str| spread(assessment, value);
    assessment.values().into_iter().filter_map(of_value).collect()
}

fn spread(assessment: &Assessment, value: &str) -> Option<Spread> {
    let is_repeated = |cell: &&Cell| {
        cell.value == value && cell.figures.values().any(|figure| figure.samples.n() > 1)
    };
    let cells: Vec<&Cell> = assessment.cells().iter().filter(is_repeated).collect();
    let all = cells.iter().flat_map(|cell| {
        let repeated = cell.figures.iter().filter(|(_, figure)| figure.samples.n() > 1);
        repeated.map(move |(source, figure)| (*cell, *source, figure.samples.statistics()))
    });
    let all: Vec<(&Cell, Source, Statistics)> = all.collect();
    let first = all.first()?.1;
    let names_source = all.iter().any(|(_, source, _)| *source != first);
    let figures = all.iter().flat_map(|(_, _, all)| [all.min, all.median, all.max]);
    let format = Format::of(&Quantity::of(value), figures);
    let row = |(cell, source, all): &(&Cell, Source, Statistics)| {
        let place = assessment.layout().place_name(&cell.point);
        let source = if names_source { source.name() } else { "" };
        let parts = [place.as_str(), source].into_iter().filter(|part| !part.is_empty());
        let text = |figure| format.text(figure);
        let interval = all.median_interval.as_ref();
        let interval =
            interval.map_or(String::new(), |i| format!("{}–{}", text(*i.start()), text(*i.end())));
        SpreadRow {
            point: parts.collect::<Vec<_>>().join(", "),
            figures: [
                all.n.to_string(),
                text(all.min),
                text(all.median),
                interval,
                text(all.mean),
                text(all.max),
                text(all.iqr),
            ],
            is_few: all.n < FEW,
        }
    };
    let unit = match format.unit.name {
        "" => String::new(),
        name => format!(" ({name})"),
    };
    Some(Spread {
        title: format!("{}{unit}: spread", assessment.layout().name(value)),
        rows: all.iter().take(ROWS_MAX).map(row).collect(),
        omitted: all.len().saturating_sub(ROWS_MAX),
        few: all.iter().filter(|(_, _, all)| all.n < FEW).count(),
    })
}

impl Spread {
    /// What limits the table, a sentence each.
    pub fn remarks(&self) -> Vec<String> {
        let rows =
            |count: usize| if count == 1 { "1 row".to_owned() } else { format!("{count} rows") };
        let mut remarks = Vec::new();
        if self.few > 0 {
            remarks.push(format!(
                "{} with n below {FEW}: medians, quartiles and intervals say little there.",
                rows(self.few)
            ));
        }
        if self.omitted > 0 {
            remarks.push(format!("{} more in CSV and JSON.", rows(self.omitted)));
        }
        remarks
    }

    fn lines(&self) -> impl Iterator<Item = Vec<&str>> {
        let head = std::iter::once("").chain(HEADS).collect();
        let rows = self.rows.iter().map(|row| {
            let figures = row.figures.iter().map(String::as_str);
            std::iter::once(row.point.as_str()).chain(figures).collect()
        });
        std::iter::once(head).chain(rows)
    }

    /// For a terminal.
    pub fn text(&self) -> String {
        let mut widths = [0; HEADS.len() + 1];
        for line in self.lines() {
            for (width, text) in widths.iter_mut().zip(line) {
                *width = text.chars().count().max(*width);
            }
        }
        let mut text = format!("{}\n", self.title);
        for line in self.lines() {
            let cells = line.iter().zip(widths).enumerate().map(|(i, (cell, width))| match i {
                0 => format!("{cell:<width$}"),
                _ => format!("{cell:>width$}"),
            });
            let _ = writeln!(text, "{}", cells.collect::<Vec<_>>().join("  "));
        }
        for remark in self.remarks() {
            let _ = writeln!(text, "{remark}");
        }
        text
    }

    /// For a document.
    pub fn markdown(&self) -> String {
        let mut text = format!("{}\n\n", self.title.replace('|', "\\|"));
        for (i, line) in self.lines().enumerate() {
            let cells: Vec<String> = line.iter().map(|cell| cell.replace('|', "\\|")).collect();
            let _ = writeln!(text, "| {} |", cells.join(" | "));
            if i == 0 {
                let _ = writeln!(text, "|---|{}", "--:|".repeat(HEADS.len()));
            }
        }
        for remark in self.remarks() {
            let _ = write!(text, "\n{remark}\n");
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Experiment, Point, Record};

    fn measured(km: u32, goodputs: &[f64]) -> Vec<Record> {
        let point = Point::new().with("distance_km", km).with("op", "write");
        let record = |goodput: &f64| {
            Record::new("x", Source::Measured, point.clone()).value("goodput_bps", *goodput)
        };
        goodputs.iter().map(record).collect()
    }

    #[test]
    fn a_row_has_all_statistics_and_few_runs_are_named() {
        let mut records = measured(0, &[9.0e9, 9.4e9, 9.1e9, 9.2e9, 9.3e9]);
        records.extend(measured(100, &[1.0e9, 2.0e9]));
        records.extend(measured(1000, &[1.0e9]));
        let spreads = spreads(&Assessment::new(&Experiment::new("x", ""), &records));
        assert_eq!(spreads.len(), 1);
        assert_eq!(
            spreads[0].text(),
            "goodput (Gbit/s): spread\n\
            \x20       n    min  median  95 % of median   mean    max    IQR\n\
            0 km    5  9.000   9.200     9.000–9.400  9.200  9.400  0.200\n\
            100 km  2  1.000   1.500     1.000–2.000  1.500  2.000  0.500\n\
            1 row with n below 5: medians, quartiles and intervals say little there.\n"
        );
        assert!(spreads[0].markdown().contains("| 100 km | 2 | 1.000 | 1.500 |"));
    }

    #[test]
    fn single_observations_count_and_sources_are_named_where_they_differ() {
        let point = Point::new().with("qps", 1);
        let measured = Record::new("x", Source::Measured, point.clone())
            .with_samples("latency_ns", (1..=100).map(f64::from).collect());
        let simulated = Record::new("x", Source::Simulated, point)
            .value("latency_ns", 9.0)
            .with_samples("latency_ns", vec![1.0, 2.0, 3.0, 4.0, 30.0]);
        let assessment = Assessment::new(&Experiment::new("x", ""), &[measured, simulated]);
        let means: Vec<f64> =
            assessment.cells()[0].figures.values().map(|figure| figure.mean).collect();
        assert_eq!(means, [9.0, 50.5]);
        let text = spreads(&assessment)[0].text();
        assert!(text.contains("measured   100") && text.contains("simulated    5"), "{text}");
    }

    #[test]
    fn long_tables_end_with_the_number_of_further_rows() {
        let records: Vec<Record> = (0..70).flat_map(|km| measured(km, &[1e9, 2e9])).collect();
        let spreads = spreads(&Assessment::new(&Experiment::new("x", ""), &records));
        assert_eq!((spreads[0].rows.len(), spreads[0].few), (60, 70));
        assert!(spreads[0].text().ends_with("10 rows more in CSV and JSON.\n"));
    }
}
