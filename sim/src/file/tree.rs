//! A TOML document in which every value has its place.

use super::FileError;
use toml::de::{DeTable, DeValue};

/// Place of a value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum SourceLocation {
    /// A line of a file: its name, and the number from 1.
    Line(String, usize),
    /// An override outside the file, as given.
    Given(String),
}

impl SourceLocation {
    /// Returns an error at this place.
    pub fn error(&self, cause: impl Into<String>) -> FileError {
        let place = match self {
            SourceLocation::Line(file, line) => format!("{file}:{line}"),
            SourceLocation::Given(text) => text.clone(),
        };
        FileError { place, cause: cause.into() }
    }
}

/// A value and its place.
#[derive(Clone, Debug)]
pub(super) struct Node {
    pub place: SourceLocation,
    pub value: Value,
}

/// A TOML value.
#[derive(Clone, Debug)]
pub(super) enum Value {
    Text(String),
    Whole(u64),
    Real(f64),
    Flag(bool),
    List(Vec<Node>),
    Table(Table),
    /// Values that no key accepts: negative numbers, dates.
    Other(String),
}

/// Keys and values.
#[derive(Clone, Debug, Default)]
pub(super) struct Table {
    pub entries: Vec<Entry>,
}

/// A key, its place, and its value.
#[derive(Clone, Debug)]
pub(super) struct Entry {
    pub key: String,
    pub place: SourceLocation,
    pub node: Node,
}

impl Value {
    /// Its kind, for an error message.
    pub fn kind(&self) -> String {
        match self {
            Value::Text(text) => format!("the text \"{text}\""),
            Value::Whole(number) => format!("{number}"),
            Value::Real(number) => format!("{number}"),
            Value::Flag(flag) => format!("{flag}"),
            Value::List(_) => "a list".into(),
            Value::Table(_) => "a table".into(),
            Value::Other(text) => text.clone(),
        }
    }

    /// Parses unquoted text: a number or flag if it looks like one, otherwise text.
    pub fn of_words(text: &str) -> Self {
        if let Ok(number) = text.parse() {
            return Value::Whole(number);
        }
        match text {
            "true" => Value::Flag(true),
            "false" => Value::Flag(false),
            _ => match text.parse::<f64>() {
                Ok(number) if number.is_finite() => Value::Real(number),
                _ => Value::Text(text.to_owned()),
            },
        }
    }
}

impl Table {
    /// A key's entry.
    pub fn get(&self, key: &str) -> Option<&Entry> {
        self.entries.iter().find(|entry| entry.key == key)
    }

    /// Sets a key, replacing any previous value.
    pub fn set(&mut self, key: &str, node: Node) {
        match self.entries.iter_mut().find(|entry| entry.key == key) {
            Some(entry) => (entry.place, entry.node) = (node.place.clone(), node),
            None => {
                self.entries.push(Entry { key: key.to_owned(), place: node.place.clone(), node })
            }
        }
    }
}

/// Reads a document.
pub(super) fn parse(file: &str, text: &str) -> Result<Table, FileError> {
    let lines = Lines { file, text };
    let document = DeTable::parse(text).map_err(|error| {
        let at = error.span().map_or(0, |span| span.start);
        lines.place(at).error(error.message().lines().collect::<Vec<_>>().join(", "))
    })?;
    Ok(table(&lines, document.into_inner()))
}

struct Lines<'a> {
    file: &'a str,
    text: &'a str,
}

impl Lines<'_> {
    fn place(&self, at: usize) -> SourceLocation {
        let before = &self.text.as_bytes()[..at.min(self.text.len())];
        SourceLocation::Line(
            self.file.to_owned(),
            1 + before.iter().filter(|byte| **byte == b'\n').count(),
        )
    }
}

fn table(lines: &Lines<'_>, from: DeTable<'_>) -> Table {
    let mut entries: Vec<(usize, Entry)> = Vec::new();
    for (key, value) in from {
        let at = key.span().start;
        let node = Node {
            place: lines.place(value.span().start),
            value: convert(lines, value.into_inner()),
        };
        let entry = Entry { key: key.into_inner().into_owned(), place: lines.place(at), node };
        entries.push((at, entry));
    }
    // Sort by place, so that errors are reported in file order.
    entries.sort_by_key(|(at, _)| *at);
    Table { entries: entries.into_iter().map(|(_, entry)| entry).collect() }
}

fn convert(lines: &Lines<'_>, from: DeValue<'_>) -> Value {
    match from {
        DeValue::String(text) => Value::Text(text.into_owned()),
        DeValue::Integer(number) => match u64::from_str_radix(number.as_str(), number.radix()) {
            Ok(value) => Value::Whole(value),
            Err(_) => Value::Other(number.to_string()),
        },
        DeValue::Float(number) => match number.as_str().parse::<f64>() {
            Ok(value) if value.is_finite() => Value::Real(value),
            _ => Value::Other(number.to_string()),
        },
        DeValue::Boolean(flag) => Value::Flag(flag),
        DeValue::Datetime(time) => Value::Other(time.to_string()),
        DeValue::Array(items) => Value::List(
            items
                .into_iter()
                .map(|item| Node {
                    place: lines.place(item.span().start),
                    value: convert(lines, item.into_inner()),
                })
                .collect(),
        ),
        DeValue::Table(inner) => Value::Table(table(lines, inner)),
    }
}
