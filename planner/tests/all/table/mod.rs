//! Published tables.

use std::collections::BTreeMap;

pub struct Table(Vec<Row>);

pub struct Row(BTreeMap<String, String>);

impl Table {
    pub fn read(name: &str) -> Self {
        let path = format!("{}/../labs/published/{name}.csv", env!("CARGO_MANIFEST_DIR"));
        let mut reader = csv::ReaderBuilder::new().comment(Some(b'#')).from_path(&path).unwrap();
        Table(
            reader
                .deserialize()
                .map(|row| Row(row.unwrap_or_else(|e| panic!("{path}: {e}"))))
                .collect(),
        )
    }

    pub fn rows(&self) -> impl Iterator<Item = &Row> {
        self.0.iter()
    }

    pub fn row(&self, column: &str, is: &str) -> &Row {
        self.rows().find(|row| row.text(column) == Some(is)).unwrap_or_else(|| panic!("no {is}"))
    }

    pub fn value(&self, column: &str, is: &str) -> f64 {
        self.row(column, is).number("value").unwrap_or_else(|| panic!("no value of {is}"))
    }
}

impl Row {
    pub fn text(&self, column: &str) -> Option<&str> {
        self.0.get(column).map(String::as_str)
    }

    pub fn number(&self, column: &str) -> Option<f64> {
        self.text(column)?.parse().ok()
    }
}
