//! Cells in rows and columns.

use crate::assess::{Assessment, Cell, Series, Verdict};
use crate::expectation::Basis;
use crate::quantity::{Quantity, Unit, percent};
use crate::record::Source;
use serde::Serialize;
use std::collections::BTreeSet;
use std::fmt::Write;

/// Rows of a scattered experiment's table: those farthest from their reference.
const SCATTERED_ROWS: usize = 15;

/// A column: one source of one series.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct TableColumn {
    /// Series, for people; empty where there is only one.
    pub group: String,
    /// Source.
    pub source: Source,
    /// The others of its group are held against this one.
    pub is_reference: bool,
}

/// One figure.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct TableCell {
    /// In the table's unit, rounded; `failed` where the run ended in an error; empty when missing.
    pub text: String,
    /// As a fraction of the reference.
    pub deviation: Option<f64>,
    /// Against the reference; none for the reference itself.
    pub verdict: Option<Verdict>,
    /// Who expects something here.
    pub basis: Option<Basis>,
    /// The run ended in an error, which the note is.
    pub failed: bool,
    /// A constant was fitted here.
    pub fitted: bool,
    /// The document seems wrong here.
    pub suspect: bool,
    /// Runs that it is the mean of.
    pub runs: u32,
    /// What is to be said of it.
    pub note: Option<String>,
}

/// A row.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct TableRow {
    /// Value of the row's parameter, for people.
    pub label: String,
    /// By column.
    pub cells: Vec<Option<TableCell>>,
}

/// A table of one value.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Table {
    /// What it shows: `goodput (Gbit/s), 10 km`.
    pub title: String,
    /// Name of the parameter along the rows.
    pub rows_are: String,
    /// Columns; those of a group are neighbours.
    pub columns: Vec<TableColumn>,
    /// Rows.
    pub rows: Vec<TableRow>,
}

impl TableCell {
    fn new(cell: &Cell, source: Source, format: impl Fn(f64) -> String) -> Option<Self> {
        let figure = cell.figures.get(&source);
        let judgement = cell.judgements.get(&source);
        let failure = cell.failures.get(&source);
        if figure.is_none() && judgement.is_none() && failure.is_none() {
            return None;
        }
        let text = match (figure, failure) {
            (Some(figure), _) => format(figure.mean),
            (None, Some(_)) => "failed".to_owned(),
            (None, None) => String::new(),
        };
        Some(TableCell {
            text,
            deviation: judgement.and_then(|judgement| judgement.deviation),
            verdict: judgement.map(|judgement| judgement.verdict),
            basis: judgement.and_then(|judgement| judgement.basis),
            failed: failure.is_some(),
            fitted: figure.is_some() && cell.is_fitted(source),
            suspect: cell.suspect && source.is_given(),
            runs: figure.map_or(0, |figure| figure.runs),
            note: failure.cloned().or_else(|| figure.and_then(|figure| figure.note.clone())),
        })
    }

    /// The deviation in percent; empty where there is none.
    pub fn deviation_text(&self) -> String {
        self.deviation.map_or(String::new(), percent)
    }

    /// What stands for the verdict: ✓ or ✗, with ᵗ where theory says what is expected and ᵒ where
    /// only we do; ◆ where a constant was fitted; † where the document seems wrong.
    pub fn symbol(&self) -> &'static str {
        match (self.verdict, self.fitted, self.basis) {
            (Some(Verdict::Within), true, _) => "◆",
            (Some(Verdict::Within), false, Some(Basis::Theory)) => "✓ᵗ",
            (Some(Verdict::Within), false, Some(Basis::Own)) => "✓ᵒ",
            (Some(Verdict::Within), false, _) => "✓",
            (Some(Verdict::Beyond), true, _) => "✗◆",
            (Some(Verdict::Beyond), false, Some(Basis::Theory)) => "✗ᵗ",
            (Some(Verdict::Beyond), false, Some(Basis::Own)) => "✗ᵒ",
            (Some(Verdict::Beyond), false, _) => "✗",
            (Some(Verdict::Missing), ..) => "missing",
            (Some(Verdict::Unjudged) | None, true, _) => "◇",
            _ if self.suspect => "†",
            _ => "",
        }
    }
}

/// A unit and decimals in which all figures of a value can be told apart.
pub(crate) struct Format {
    pub unit: Unit,
    /// None where figures span so much that each has its own.
    decimals: Option<usize>,
}

/// Figures that span more than this have each its own decimals.
const DECIMALS_SPAN: f64 = 1e3;

impl Format {
    pub fn of(quantity: &Quantity, figures: impl Iterator<Item = f64> + Clone) -> Self {
        let most = figures.clone().fold(0.0_f64, |most, figure| most.max(figure.abs()));
        let unit = quantity.unit(most);
        let sizes = figures.map(|figure| figure.abs() / unit.divisor).filter(|size| *size > 0.0);
        let least = sizes.clone().fold(f64::INFINITY, f64::min);
        if sizes.clone().all(|size| size.fract() == 0.0) {
            return Format { unit, decimals: Some(0) };
        }
        if most / unit.divisor / least > DECIMALS_SPAN {
            return Format { unit, decimals: None };
        }
        let most_digits = 3 - (most / unit.divisor).log10().floor() as i32;
        let least_digits = 2 - least.log10().floor() as i32;
        Format { unit, decimals: Some(most_digits.max(least_digits).clamp(0, 4) as usize) }
    }

    pub fn text(&self, figure: f64) -> String {
        let figure = figure / self.unit.divisor;
        match self.decimals {
            Some(decimals) => format!("{figure:.decimals$}"),
            None => four_digits(figure),
        }
    }
}

/// With four significant digits, zeros at the end too.
fn four_digits(figure: f64) -> String {
    match figure.abs().log10().floor() {
        exponent if exponent < -4.0 => {
            if figure == 0.0 {
                "0".to_owned()
            } else {
                format!("{figure:.3e}")
            }
        }
        exponent => format!("{figure:.*}", (3.0 - exponent).max(0.0) as usize),
    }
}

/// Tables of `assessment`: one for each value and panel, or several where the series do not fit
/// into `width` characters side by side.
pub fn tables(assessment: &Assessment, width: usize) -> Vec<Table> {
    let mut tables = Vec::new();
    for value in assessment.values() {
        let cells: Vec<&Cell> =
            assessment.cells().iter().filter(|cell| cell.value == value).collect();
        let figures = cells.iter().flat_map(|cell| cell.figures.values().map(|figure| figure.mean));
        let format = Format::of(&Quantity::of(value), figures);
        let unit = if format.unit.name.is_empty() {
            String::new()
        } else {
            format!(" ({})", format.unit.name)
        };
        let title = format!("{}{unit}", assessment.layout().name(value));
        if assessment.layout().x.is_none() {
            tables.push(scattered(assessment, &cells, &title, &format));
        } else {
            pivot(assessment, &cells, &title, &format, width, &mut tables);
        }
    }
    tables
}

/// The points farthest from their reference, a row each.
fn scattered(assessment: &Assessment, cells: &[&Cell], title: &str, format: &Format) -> Table {
    let layout = assessment.layout();
    let farthest = |cell: &Cell| {
        let all = cell.judgements.values().map(|judgement| {
            let is_missing = judgement.verdict == Verdict::Missing;
            if is_missing { f64::INFINITY } else { judgement.deviation.map_or(0.0, f64::abs) }
        });
        all.fold(0.0, f64::max)
    };
    let mut sorted: Vec<&Cell> = cells.to_vec();
    sorted.sort_by(|a, b| farthest(b).total_cmp(&farthest(a)));
    let title = if sorted.len() > SCATTERED_ROWS {
        let which =
            if farthest(sorted[0]) > 0.0 { "that lie farthest off" } else { "that come first" };
        format!("{title}: the {SCATTERED_ROWS} of {} points {which}", sorted.len())
    } else {
        title.to_owned()
    };
    sorted.truncate(SCATTERED_ROWS);
    let columns = columns(assessment, "", cells.iter().copied());
    let row = |cell: &&Cell| TableRow {
        label: layout.place_name(&cell.point),
        cells: columns
            .iter()
            .map(|column| TableCell::new(cell, column.source, |f| format.text(f)))
            .collect(),
    };
    Table { title, rows_are: "point".to_owned(), rows: sorted.iter().map(row).collect(), columns }
}

/// Columns of a series, as far as a source has figures there.
fn columns<'a>(
    assessment: &Assessment,
    group: &str,
    cells: impl Iterator<Item = &'a Cell>,
) -> Vec<TableColumn> {
    let present: BTreeSet<Source> = cells
        .flat_map(|cell| {
            cell.figures.keys().chain(cell.failures.keys()).chain(cell.judgements.keys()).copied()
        })
        .collect();
    let column = |source| TableColumn {
        group: group.to_owned(),
        source,
        is_reference: Some(source) == assessment.reference(),
    };
    let mut columns: Vec<TableColumn> = present.into_iter().map(column).collect();
    columns.sort_by_key(|column| !column.is_reference);
    columns
}

/// Characters that a group's columns take.
fn group_width(columns: &[TableColumn]) -> usize {
    columns.iter().map(|column| if column.is_reference { 10 } else { 20 }).sum()
}

fn pivot(
    assessment: &Assessment,
    cells: &[&Cell],
    title: &str,
    format: &Format,
    width: usize,
    tables: &mut Vec<Table>,
) {
    let layout = assessment.layout();
    let panel_place =
        layout.panel.as_ref().and_then(|panel| layout.varying.iter().position(|v| v == panel));
    let mut series: Vec<Series> = Vec::new();
    for cell in cells {
        let of = layout.series(&cell.point);
        if series.last() != Some(&of) {
            series.push(of);
        }
    }
    let panel_of = |series: &Series| panel_place.and_then(|place| series[place].clone());
    let mut groups: Vec<Vec<Series>> = Vec::new();
    let mut taken = 0;
    for one in series {
        let group = columns(
            assessment,
            "",
            cells.iter().copied().filter(|c| layout.series(&c.point) == one),
        );
        let needed = group_width(&group);
        match groups.last_mut() {
            Some(last) if panel_of(&last[0]) == panel_of(&one) && taken + needed <= width => {
                last.push(one);
                taken += needed;
            }
            _ => {
                groups.push(vec![one]);
                taken = needed;
            }
        }
    }
    for group in groups {
        let panel = layout.panel.as_deref();
        let name = layout.series_name(&group[0], |key| Some(key) == panel);
        let title = if name.is_empty() { title.to_owned() } else { format!("{title}, {name}") };
        tables.push(one_table(assessment, cells, &group, title, format));
    }
}

fn one_table(
    assessment: &Assessment,
    cells: &[&Cell],
    group: &[Series],
    title: String,
    format: &Format,
) -> Table {
    let layout = assessment.layout();
    let x = layout.x.as_deref().unwrap_or_default();
    let panel = layout.panel.as_deref();
    let mut all_columns = Vec::new();
    // Of each column, the series that it belongs to.
    let mut owners = Vec::new();
    let mut by_series: Vec<Vec<&Cell>> = Vec::new();
    for (i, series) in group.iter().enumerate() {
        let of: Vec<&Cell> =
            cells.iter().copied().filter(|c| layout.series(&c.point) == *series).collect();
        let name = layout.series_name(series, |key| Some(key) != panel);
        let columns = columns(assessment, &name, of.iter().copied());
        owners.extend(columns.iter().map(|_| i));
        all_columns.extend(columns);
        by_series.push(of);
    }
    let mut places: Vec<(Option<usize>, &Cell)> =
        by_series.iter().flatten().map(|cell| (layout.x_place(&cell.point), *cell)).collect();
    places.sort_by_key(|(place, _)| *place);
    places.dedup_by_key(|(place, _)| *place);
    let rows = places.into_iter().map(|(place, sample)| {
        let at = |i: usize| by_series[i].iter().find(|cell| layout.x_place(&cell.point) == place);
        let cell = |(column, owner): (&TableColumn, &usize)| {
            TableCell::new(at(*owner)?, column.source, |figure| format.text(figure))
        };
        TableRow {
            label: sample.point.get(x).map_or("–".to_owned(), |value| layout.text(x, value)),
            cells: all_columns.iter().zip(&owners).map(cell).collect(),
        }
    });
    let rows = rows.collect();
    Table { title, rows_are: layout.name(x), columns: all_columns, rows }
}

impl Table {
    /// Neighbouring columns of one series: its name and how many.
    pub fn groups(&self) -> Vec<(&str, usize)> {
        let mut groups: Vec<(&str, usize)> = Vec::new();
        for column in &self.columns {
            match groups.last_mut() {
                Some((name, count)) if *name == column.group => *count += 1,
                _ => groups.push((&column.group, 1)),
            }
        }
        groups
    }

    fn cell_text(cell: Option<&TableCell>) -> String {
        let Some(cell) = cell else { return String::new() };
        let parts = [cell.text.clone(), cell.deviation_text(), cell.symbol().to_owned()];
        parts.into_iter().filter(|part| !part.is_empty()).collect::<Vec<_>>().join("  ")
    }

    /// A line for each run that ended in an error.
    fn failures(&self) -> Vec<String> {
        let mut failures = Vec::new();
        for row in &self.rows {
            for (column, cell) in self.columns.iter().zip(&row.cells) {
                let Some(cell) = cell.as_ref().filter(|cell| cell.failed) else { continue };
                let at = [row.label.as_str(), column.group.as_str(), column.source.name()];
                let at: Vec<_> = at.into_iter().filter(|part| !part.is_empty()).collect();
                failures.push(format!(
                    "failed at {}: {}",
                    at.join(", "),
                    cell.note.as_deref().unwrap_or_default()
                ));
            }
        }
        failures
    }

    /// For a terminal.
    pub fn text(&self) -> String {
        let mut grid = vec![vec![self.rows_are.clone()]];
        grid[0].extend(self.columns.iter().map(|column| column.source.name().to_owned()));
        // Symbols in a column of their own, so that figures stay below each other.
        let symbols: Vec<usize> = (0..self.columns.len())
            .map(|i| {
                let cells = self.rows.iter().filter_map(|row| row.cells[i].as_ref());
                cells.map(|cell| cell.symbol().chars().count()).max().unwrap_or(0)
            })
            .collect();
        for row in &self.rows {
            let cells = row.cells.iter().zip(&symbols).map(|(cell, &width)| {
                let text = Self::cell_text(cell.as_ref());
                let symbol = cell.as_ref().map_or(0, |cell| cell.symbol().chars().count());
                let lacking =
                    if symbol > 0 { width - symbol } else { width + 2 * usize::from(width > 0) };
                if text.is_empty() { text } else { text + &" ".repeat(lacking) }
            });
            grid.push(std::iter::once(row.label.clone()).chain(cells).collect());
        }
        let width =
            |column: usize| grid.iter().map(|line| line[column].chars().count()).max().unwrap_or(0);
        let mut widths: Vec<usize> = (0..=self.columns.len()).map(width).collect();
        let mut text = format!("{}\n", self.title);
        let groups = self.groups();
        if groups.iter().any(|(name, _)| !name.is_empty()) {
            let mut line = " ".repeat(widths[0]);
            let mut first = 1;
            for (name, count) in groups {
                let taken: usize = widths[first..first + count].iter().map(|width| width + 2).sum();
                // A name longer than its columns widens the last of them.
                let lacking = (name.chars().count() + 2).saturating_sub(taken);
                widths[first + count - 1] += lacking;
                let _ = write!(line, "  {name:<width$}", width = taken + lacking - 2);
                first += count;
            }
            let _ = writeln!(text, "{}", line.trim_end());
        }
        for line in grid {
            let cells = line.iter().zip(&widths).enumerate();
            let cells = cells.map(|(i, (cell, &width))| match i {
                0 => format!("{cell:<width$}"),
                _ => format!("{cell:>width$}"),
            });
            let _ = writeln!(text, "{}", cells.collect::<Vec<_>>().join("  ").trim_end());
        }
        for failure in self.failures() {
            let _ = writeln!(text, "{failure}");
        }
        text
    }

    /// For a document.
    pub fn markdown(&self) -> String {
        let escaped = |text: &str| text.replace('|', "\\|").replace('\n', " ");
        let mut text = format!("{}\n\n| {} |", escaped(&self.title), escaped(&self.rows_are));
        for column in &self.columns {
            let between = if column.group.is_empty() { "" } else { " " };
            let _ = write!(text, " {}{between}{} |", escaped(&column.group), column.source.name());
        }
        let _ = write!(text, "\n|---|{}\n", "--:|".repeat(self.columns.len()));
        for row in &self.rows {
            let _ = write!(text, "| {} |", escaped(&row.label));
            for cell in &row.cells {
                let _ = write!(text, " {} |", escaped(&Self::cell_text(cell.as_ref())));
            }
            text.push('\n');
        }
        for failure in self.failures() {
            let _ = write!(text, "\n{}\n", escaped(&failure));
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use crate::*;

    fn assessment(sources: &[(Source, f64)]) -> Assessment {
        let mut records = Vec::new();
        for op in ["read", "send"] {
            for (bytes, goodput) in [(4096, 2.19e9), (1 << 20, 98.2e9)] {
                let point = Point::new().with("op", op).with("message_bytes", bytes);
                for (source, factor) in sources {
                    let record = Record::new("c1", *source, point.clone());
                    records.push(record.value("goodput_bps", goodput * factor));
                }
            }
        }
        let experiment = Experiment {
            expectations: vec![Expectation::percent("goodput_bps", 1.0).by(Basis::Published)],
            labels: [("read", "READ"), ("send", "SEND")]
                .map(|(a, b)| (a.to_owned(), b.to_owned()))
                .into(),
            ..Experiment::new("c1", "")
        };
        Assessment::new(&experiment, &records)
    }

    #[test]
    fn rows_are_sizes_and_columns_are_sources_of_each_series() {
        let tables =
            tables(&assessment(&[(Source::Published, 1.0), (Source::Simulated, 1.02)]), 100);
        let expected = "goodput (Gbit/s)\n\
            \x20        READ                           SEND\n\
            message  published           simulated  published           simulated\n\
            4 KiB         2.19    2.23  +2.00 %  ✗       2.19    2.23  +2.00 %  ✗\n\
            1 MiB        98.20  100.16  +2.00 %  ✗      98.20  100.16  +2.00 %  ✗\n";
        assert_eq!(tables.iter().map(Table::text).collect::<String>(), expected);
        assert!(
            tables[0].markdown().contains("| 4 KiB | 2.19 | 2.23  +2.00 %  ✗ |"),
            "{}",
            tables[0].markdown()
        );
    }

    #[test]
    fn series_that_do_not_fit_side_by_side_get_tables_of_their_own() {
        let all = [(Source::Published, 1.0), (Source::Simulated, 1.0), (Source::Predicted, 1.0)];
        let tables = tables(&assessment(&all), 60);
        let groups: Vec<_> = tables.iter().map(|table| table.groups()[0]).collect();
        assert_eq!(groups, [("READ", 3), ("SEND", 3)]);
    }

    #[test]
    fn of_scattered_points_the_farthest_come_first() {
        let records: Vec<Record> = (1..=40)
            .flat_map(|i| {
                let point = Point::new().with("message_bytes", i * 1024).with("distance_km", i % 7);
                let of = |source, figure| {
                    Record::new("grid", source, point.clone()).value("goodput_bps", figure)
                };
                [of(Source::Simulated, 100.0), of(Source::Predicted, 100.0 + f64::from(i))]
            })
            .collect();
        let experiment = Experiment { scattered: true, ..Experiment::new("grid", "") };
        let tables = tables(&Assessment::new(&experiment, &records), 100);
        assert_eq!(tables.len(), 1);
        assert_eq!(tables[0].rows.len(), 15);
        assert_eq!(tables[0].rows[0].label, "5 km, 40 KiB");
        assert!(
            tables[0].title.ends_with("the 15 of 40 points that lie farthest off"),
            "{}",
            tables[0].title
        );
    }
}
