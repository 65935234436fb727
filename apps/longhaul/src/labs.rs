//! Data of labs/ that is part of the program.

use crate::problem::Problem;
use longhaul_bench::Source;
use std::collections::BTreeMap;

/// Names and texts of files in a folder of labs/.
macro_rules! embedded {
    ($folder:literal, $extension:literal: $($name:literal)*) => {
        &[$((
            $name,
            include_str!(concat!(
                env!("CARGO_MANIFEST_DIR"), "/../../labs/", $folder, "/", $name, $extension
            )),
        )),*]
    };
}
pub(crate) use embedded;

/// Tables from formulas.
const THEORY: &[(&str, &str)] = embedded!("theory", ".csv": "go_back_n");

/// Published tables.
const PUBLISHED: &[(&str, &str)] = embedded!("published", ".csv":
    "chelsio_nvmf" "iown1_nvmf" "iown1_power" "iown1_step1_claims" "iown2_c1_throughput_380km"
    "iown2_d1_latency_380km" "iown2_vm_migration" "ntt_claims" "ntt_distance_throughput"
    "thesis_cpu_srq" "thesis_results" "thesis_text"
);

/// A table.
pub struct Table {
    name: String,
    /// Source of its figures.
    pub source: Source,
    /// Cells by column.
    rows: Vec<BTreeMap<String, String>>,
}

/// One of its rows.
pub struct Row<'a> {
    table: &'a Table,
    cells: &'a BTreeMap<String, String>,
}

impl Table {
    /// The table of this name.
    pub fn named(name: &str) -> Result<Self, Problem> {
        let find =
            |tables: &'static [(&str, &str)]| tables.iter().find(|(known, _)| *known == name);
        let (source, (_, text)) = find(PUBLISHED)
            .map(|found| (Source::Published, found))
            .or_else(|| find(THEORY).map(|found| (Source::Theory, found)))
            .ok_or_else(|| Problem::plain(format!("no table is called {name}")))?;
        let mut reader = csv::ReaderBuilder::new().comment(Some(b'#')).from_reader(text.as_bytes());
        let rows: Result<_, csv::Error> = reader.deserialize().collect();
        let rows = rows.map_err(|error| Problem::plain(format!("table {name}: {error}")))?;
        Ok(Table { name: name.to_owned(), source, rows })
    }

    /// Cells of its rows, by column.
    pub fn cells(&self) -> &[BTreeMap<String, String>] {
        &self.rows
    }

    /// Its rows.
    pub fn rows(&self) -> impl Iterator<Item = Row<'_>> {
        self.rows.iter().map(|cells| Row { table: self, cells })
    }
}

impl<'a> Row<'a> {
    /// A cell; empty if there is no such column.
    pub fn text(&self, column: &str) -> &'a str {
        self.cells.get(column).map_or("", String::as_str)
    }

    /// The percentage of a cell's runs that finished, if some did not: 0 of `DNF`, 50 of
    /// `DNF2of4`.
    pub fn finished_percent(&self, column: &str) -> Option<f64> {
        let word =
            self.text(column).split_whitespace().find_map(|word| word.strip_prefix("DNF"))?;
        let counts = word.split_once("of").map(|(of, all)| (of.parse::<f64>(), all.parse::<f64>()));
        Some(match counts {
            Some((Ok(unfinished), Ok(all))) => 100.0 * (1.0 - unfinished / all),
            _ => 0.0,
        })
    }

    /// A number, or the sum of several with plus signs between.
    pub fn number(&self, column: &str) -> Result<f64, Problem> {
        let text = self.text(column);
        let parts: Result<Vec<f64>, _> = text.split('+').map(|part| part.trim().parse()).collect();
        let name = &self.table.name;
        let wrong = |_| Problem::plain(format!("{name}: '{text}' in column {column} is no number"));
        Ok(parts.map_err(wrong)?.iter().sum())
    }
}
