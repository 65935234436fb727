//! Scenarios in TOML files.
//!
//! A file lists hosts, accelerators, switches and links, or has `[path]` for two hosts and a fibre;
//! and flows. Quantities have units. Errors have file and line, cause and remedy. [`EXAMPLE`]
//! explains the keys.

mod accelerator;
mod axis;
mod fields;
mod flow;
mod flow_control;
mod network;
mod nic;
mod quantity;
mod schema;
mod sealing;
mod tree;

#[cfg(test)]
mod tests;

pub use axis::Axis;

use crate::scenario::Scenario;
use fields::Fields;
use longhaul_units::Duration;
use network::Network;
use quantity::{Quantity, ValueKind};
use schema::{ACCELERATOR, NIC, TABLES, TOP, suggest};
use serde::{Deserialize, Serialize};
use std::fmt;
use tree::{Entry, Node, SourceLocation, Table, Value};

/// A file that shows every key, with comments.
pub const EXAMPLE: &str = include_str!("file/example.toml");

/// An error in a file or in a command-line override: its place, and the cause with its remedy.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{place}: {cause}")]
pub struct FileError {
    place: String,
    cause: String,
}

/// Returns the text of a file to which a scenario refers, or the reason why not.
pub type Read<'a> = dyn FnMut(&str) -> Result<String, String> + 'a;

/// A parsed scenario file, whose keys can be set before [`ScenarioFile::load`].
#[derive(Clone, Debug)]
pub struct ScenarioFile {
    document: Document,
}

/// A scenario, and the file's settings outside of it.
#[derive(Clone, Debug)]
pub struct Loaded {
    /// The network and its flows.
    pub scenario: Scenario,
    /// The link of each cable.
    pub links: Vec<LinkPlan>,
}

/// A link's settings that are not part of the cable.
#[derive(Clone, Debug)]
pub struct LinkPlan {
    /// Its name.
    pub name: String,
    /// Index of the cable's end that the file names first.
    pub first: usize,
    /// Capture file for its first end.
    pub record: Option<String>,
}

/// A key and its value in base units: bytes, metres, nanoseconds, bit/s.
#[derive(Clone, Debug, PartialEq)]
pub struct Parameter {
    /// The key with its unit, if any: `path.distance_m`, `flow.size_bytes`.
    pub key: String,
    /// Its value.
    pub value: ParameterValue,
}

/// A parameter's value.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum ParameterValue {
    /// A whole number.
    Whole(u64),
    /// Any other number.
    Real(f64),
    /// true or false.
    Flag(bool),
    /// Text.
    Text(String),
}

impl fmt::Display for ParameterValue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ParameterValue::Whole(number) => write!(f, "{number}"),
            ParameterValue::Real(number) => write!(f, "{number}"),
            ParameterValue::Flag(flag) => write!(f, "{flag}"),
            ParameterValue::Text(text) => f.write_str(text),
        }
    }
}

impl ScenarioFile {
    /// Parses a file's text; errors use `name`. Finds unknown keys and values of the wrong kind.
    ///
    /// # Errors
    /// [`FileError`], with the line.
    pub fn parse(name: &str, text: &str) -> Result<Self, FileError> {
        let document = Document { file: name.to_owned(), top: tree::parse(name, text)? };
        document.check()?;
        Ok(ScenarioFile { document })
    }

    /// The experiment's name, if the file has one.
    pub fn name(&self) -> Option<&str> {
        match &self.document.top.get("name")?.node.value {
            Value::Text(name) => Some(name),
            _ => None,
        }
    }

    /// Sets a key: `TABLE.KEY` in all tables of that kind, `TABLE.NAME.KEY` in the table of that
    /// name; `seed` and `time_max` have no table. `nic` and `accelerator` have nested keys:
    /// `host.a.nic.outstanding_wqes`.
    ///
    /// # Errors
    /// There is no such key or table, or the value has the wrong kind.
    pub fn set(&mut self, path: &str, value: &str) -> Result<Parameter, FileError> {
        let place = SourceLocation::Given(format!("{path}={value}"));
        let target = self.document.target(path).map_err(|cause| place.error(cause))?;
        let node = Node { place: place.clone(), value: Value::of_words(value) };
        let read = match target.kind {
            ValueKind::Nic => match &node.value {
                Value::Text(name) => Ok(Quantity::Text(name.clone())),
                other => Err(format!("{} is no NIC profile", other.kind())),
            },
            ValueKind::Ends | ValueKind::Accelerator => {
                Err("this is a table: set one of its keys".to_owned())
            }
            kind => kind.read(&node.value),
        };
        let parameter = parameter(path, target.kind, read.map_err(|cause| place.error(cause))?);
        self.document.apply(&target, &node);
        Ok(parameter)
    }

    /// Builds the scenario. `files` reads NIC profiles.
    ///
    /// # Errors
    /// [`FileError`], with place and remedy.
    pub fn load(&self, files: &mut Read<'_>) -> Result<Loaded, FileError> {
        let document = &self.document;
        let top = document.settings();
        let start = document.start();
        let settings = Fields::of_table(&top, &start, "the file", TOP)?;
        let network = Network::read(document, files)?;
        let nodes = document.tables("flow");
        if nodes.is_empty() {
            let cause = "no [[flow]]: nothing would happen; add one, as in [[flow]] op = \"write\"";
            return Err(document.start().error(cause));
        }
        let flows = flow::read(nodes, &network)?;
        let (cables, links) = (network.cables.clone(), network.links.clone());
        let seed = settings.whole("seed").unwrap_or(1);
        let stations = network.into_stations(&flows, seed)?;
        let scenario = Scenario {
            seed,
            stations,
            cables,
            flows,
            train_packets_max: settings.number("train_packets").unwrap_or(1),
            time_max: settings.time("time_max"),
            warmup: settings.time("warmup").unwrap_or(Duration::ZERO),
        };
        Ok(Loaded { scenario, links })
    }

    /// Returns the kind of a key's value.
    fn kind_of(&self, path: &str) -> Result<ValueKind, String> {
        self.document.target(path).map(|target| target.kind)
    }
}

fn parameter(path: &str, kind: ValueKind, value: Quantity) -> Parameter {
    let unit = kind.unit();
    let key = if path.ends_with(unit) { path.to_owned() } else { format!("{path}{unit}") };
    let value = match (kind, value) {
        (ValueKind::Time, Quantity::Whole(ps)) if !ps.is_multiple_of(1000) => {
            ParameterValue::Real(ps as f64 / 1e3)
        }
        (ValueKind::Time, Quantity::Whole(ps)) => ParameterValue::Whole(ps / 1000),
        (_, Quantity::Whole(number)) => ParameterValue::Whole(number),
        (_, Quantity::Real(number)) => ParameterValue::Real(number),
        (_, Quantity::Flag(flag)) => ParameterValue::Flag(flag),
        (_, Quantity::Text(text)) => ParameterValue::Text(text),
    };
    Parameter { key, value }
}

/// A parsed file.
#[derive(Clone, Debug)]
struct Document {
    file: String,
    top: Table,
}

/// The key and tables to which a path refers.
struct Target<'a> {
    table: Option<&'static str>,
    /// `None`: all tables of the kind.
    name: Option<&'a str>,
    /// `nic` or `accelerator`, for a nested key.
    within: Option<&'static str>,
    key: String,
    kind: ValueKind,
}

impl Document {
    /// The start of the file, as the place of missing keys.
    fn start(&self) -> SourceLocation {
        SourceLocation::Line(self.file.clone(), 1)
    }

    /// The tables of a kind. An array of tables may be written as a single table.
    fn tables(&self, kind: &str) -> &[Node] {
        match self.top.get(kind).map(|entry| &entry.node) {
            Some(Node { value: Value::List(items), .. }) => items,
            Some(node) => std::slice::from_ref(node),
            None => &[],
        }
    }

    fn path(&self) -> Option<&Node> {
        self.tables("path").first()
    }

    /// Keys outside of tables.
    fn settings(&self) -> Table {
        let is_setting = |entry: &&Entry| TABLES.iter().all(|(name, ..)| *name != entry.key);
        Table { entries: self.top.entries.iter().filter(is_setting).cloned().collect() }
    }

    /// Checks for unknown keys and values of the wrong kind.
    fn check(&self) -> Result<(), FileError> {
        let known = || TABLES.iter().map(|(name, ..)| *name).chain(TOP.iter().map(|(key, _)| *key));
        for entry in &self.top.entries {
            if !known().any(|key| key == entry.key) {
                let cause =
                    format!("'{}' is {}", entry.key, suggest(&entry.key, known(), "none of"));
                return Err(entry.place.error(cause));
            }
        }
        Fields::of_table(&self.settings(), &self.start(), "the file", TOP)?;
        for (name, keys, is_many) in TABLES {
            let what = if *is_many { format!("[[{name}]]") } else { format!("[{name}]") };
            if !is_many
                && let Some(Node { place, value: Value::List(_) }) =
                    self.top.get(name).map(|e| &e.node)
            {
                return Err(place.error(format!(
                    "there is one [{name}] at most: write it with single brackets"
                )));
            }
            for node in self.tables(name) {
                let fields = Fields::of(node, &what, keys)?;
                if let Some(inner) = fields.node("accelerator") {
                    let inner = Fields::of(inner, "[path.accelerator]", ACCELERATOR)?;
                    if inner.has("name") {
                        return Err(inner.error(
                            "name",
                            "[path] names its boxes near and far: take 'name' out",
                        ));
                    }
                }
            }
        }
        Ok(())
    }

    /// Resolves a path `a.b.c`.
    fn target<'a>(&self, path: &'a str) -> Result<Target<'a>, String> {
        let parts: Vec<&str> = path.split('.').collect();
        if let [key] = parts[..] {
            let known = || TOP.iter().map(|(key, _)| *key);
            let kind = schema::kind(TOP, key).ok_or_else(|| {
                let tables = TABLES.iter().map(|(name, ..)| *name).collect::<Vec<_>>().join(", ");
                format!("{}; or a key of {tables}, as in flow.size", axis::unknown(key, known()))
            })?;
            return Ok(Target { table: None, name: None, within: None, key: key.to_owned(), kind });
        }
        let found = TABLES.iter().find(|(name, ..)| *name == parts[0]);
        let (table, keys, is_many) =
            found.ok_or_else(|| axis::unknown(parts[0], TABLES.iter().map(|(name, ..)| *name)))?;
        let nodes = self.tables(table);
        if nodes.is_empty() {
            let there: Vec<&str> = TABLES
                .iter()
                .map(|(name, ..)| *name)
                .filter(|name| !self.tables(name).is_empty())
                .collect();
            return Err(format!("{} has no {table}; it has {}", self.file, there.join(", ")));
        }
        let mut rest = &parts[1..];
        let mut name = None;
        if *is_many && schema::kind(keys, rest[0]).is_none() && rest.len() > 1 {
            let names: Vec<String> =
                (1..).zip(nodes).map(|(number, node)| name_of(table, number, node)).collect();
            if !names.iter().any(|known| known == rest[0]) {
                let known = axis::unknown(rest[0], names.iter().map(String::as_str));
                return Err(format!("no {table} is called so: {known}"));
            }
            name = Some(rest[0]);
            rest = &rest[1..];
        }
        let (within, keys, key) = match rest {
            [key] => (None, *keys, *key),
            ["nic", key] if schema::kind(keys, "nic").is_some() => (Some("nic"), NIC, *key),
            ["accelerator", key] if schema::kind(keys, "accelerator").is_some() => {
                (Some("accelerator"), ACCELERATOR, *key)
            }
            [key, ..] => return Err(format!("'{key}' has no keys of its own")),
            [] => return Err(format!("'{path}' names no key")),
        };
        let kind = schema::kind(keys, key);
        let kind = kind.ok_or_else(|| axis::unknown(key, keys.iter().map(|(key, _)| *key)))?;
        Ok(Target { table: Some(table), name, within, key: key.to_owned(), kind })
    }

    fn apply(&mut self, target: &Target<'_>, value: &Node) {
        let Some(kind) = target.table else {
            self.top.set(&target.key, value.clone());
            return;
        };
        let entry = self.top.entries.iter_mut().find(|entry| entry.key == kind);
        let nodes = match entry.map(|entry| &mut entry.node) {
            Some(Node { value: Value::List(items), .. }) => &mut items[..],
            Some(node) => std::slice::from_mut(node),
            None => &mut [],
        };
        for (number, node) in (1..).zip(nodes) {
            if target.name.is_some_and(|name| name_of(kind, number, node) != name) {
                continue;
            }
            let Value::Table(table) = &mut node.value else { continue };
            match target.within {
                None => table.set(&target.key, value.clone()),
                Some(within) => set_within(table, within, &target.key, value),
            }
        }
    }
}

/// Sets a key of a nested table. A NIC's name becomes the table's `profile`.
fn set_within(table: &mut Table, within: &str, key: &str, value: &Node) {
    let mut inner = match table.get(within).map(|entry| &entry.node.value) {
        Some(Value::Table(inner)) => inner.clone(),
        Some(Value::Text(profile)) => {
            let node = Node { place: value.place.clone(), value: Value::Text(profile.clone()) };
            Table {
                entries: vec![Entry { key: "profile".into(), place: value.place.clone(), node }],
            }
        }
        _ => Table::default(),
    };
    inner.set(key, value.clone());
    table.set(within, Node { place: value.place.clone(), value: Value::Table(inner) });
}

/// A table's name, or its default name in results.
fn name_of(kind: &str, number: usize, node: &Node) -> String {
    let Value::Table(table) = &node.value else { return String::new() };
    match table.get("name").map(|entry| &entry.node.value) {
        Some(Value::Text(name)) => name.clone(),
        _ => format!("{kind}{number}"),
    }
}

/// Returns the index of the first duplicate.
fn twice<T: PartialEq>(all: &[T]) -> Option<usize> {
    (0..all.len()).find(|at| all[..*at].contains(&all[*at]))
}
