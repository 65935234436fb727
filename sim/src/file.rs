//! Scenarios in TOML files.
//!
//! A file names hosts, accelerators, switches and the links between them, or says `[path]` for two
//! hosts and a fibre; and flows. Quantities carry their units. Whatever is wrong is named with file
//! and line, its cause and its cure. The keys are explained in [`EXAMPLE`].

mod accelerator;
mod axis;
mod fields;
mod flow;
mod flow_control;
mod network;
mod nic;
mod quantity;
mod schema;
mod tree;

#[cfg(test)]
mod tests;

pub use axis::Axis;

use crate::scenario::Scenario;
use fields::Fields;
use network::Network;
use quantity::{Quantity, ValueKind};
use schema::{ACCELERATOR, NIC, TABLES, TOP, suggest};
use serde::{Deserialize, Serialize};
use std::fmt;
use tree::{Entry, Node, SourceLocation, Table, Value};

/// A file that shows every key, with comments.
pub const EXAMPLE: &str = include_str!("file/example.toml");

/// What is wrong with a file, or with what was given beside it: the place, and the cause with its
/// cure.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{place}: {cause}")]
pub struct FileError {
    place: String,
    cause: String,
}

/// Gives the text of another file that a file names, or says why not.
pub type Read<'a> = dyn FnMut(&str) -> Result<String, String> + 'a;

/// A scenario file that was read, and may be changed before a scenario is made of it.
#[derive(Clone, Debug)]
pub struct ScenarioFile {
    document: Document,
}

/// A scenario, and what the file says beside it.
#[derive(Clone, Debug)]
pub struct Loaded {
    /// What is simulated.
    pub scenario: Scenario,
    /// By cable: the link that it is.
    pub links: Vec<LinkPlan>,
}

/// What a file says of a link beside what it is like.
#[derive(Clone, Debug)]
pub struct LinkPlan {
    /// Its name.
    pub name: String,
    /// Which end of its cable is the one named first.
    pub first: usize,
    /// Where to record what passes its first end.
    pub record: Option<String>,
}

/// A key that was set, and its value in base units: bytes, metres, nanoseconds, bit/s.
#[derive(Clone, Debug, PartialEq)]
pub struct Parameter {
    /// The key, with its unit where it has one: `path.distance_m`, `flow.size_bytes`.
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
    /// Reads a file's text; `name` is what errors call it. What is unknown or of the wrong kind is
    /// found here.
    ///
    /// # Errors
    /// [`FileError`], with the line.
    pub fn parse(name: &str, text: &str) -> Result<Self, FileError> {
        let document = Document { file: name.to_owned(), top: tree::parse(name, text)? };
        document.check()?;
        Ok(ScenarioFile { document })
    }

    /// The experiment's name, where the file gives it.
    pub fn name(&self) -> Option<&str> {
        match &self.document.top.get("name")?.node.value {
            Value::Text(name) => Some(name),
            _ => None,
        }
    }

    /// Sets a key: `TABLE.KEY`, in all tables of that kind, or `TABLE.NAME.KEY`, in the one of that
    /// name; `seed` and `time_max` by themselves. `nic` and `accelerator` have keys of their own:
    /// `host.a.nic.outstanding_wqes`.
    ///
    /// # Errors
    /// When there is no such key or table, or the value is none of its kind.
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

    /// Makes the scenario. `files` gives the NIC profiles that are files.
    ///
    /// # Errors
    /// [`FileError`] says what makes no sense, where, and what would.
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
        let stations = network.into_stations(&flows)?;
        let scenario = Scenario {
            seed: settings.whole("seed").unwrap_or(1),
            stations,
            cables,
            flows,
            train_packets_max: settings.number("train_packets").unwrap_or(1),
            time_max: settings.time("time_max"),
        };
        Ok(Loaded { scenario, links })
    }

    /// What a key takes.
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

/// A file as it was read.
#[derive(Clone, Debug)]
struct Document {
    file: String,
    top: Table,
}

/// Which key of which tables is meant.
struct Target<'a> {
    table: Option<&'static str>,
    /// All tables of the kind, or the one of this name.
    name: Option<&'a str>,
    /// `nic` or `accelerator`, whose key it is.
    within: Option<&'static str>,
    key: String,
    kind: ValueKind,
}

impl Document {
    /// The file's beginning, for what is missing from it.
    fn start(&self) -> SourceLocation {
        SourceLocation::Line(self.file.clone(), 1)
    }

    /// The tables of a kind. A kind of which there may be several may be written as one.
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

    /// What is in no table.
    fn settings(&self) -> Table {
        let is_setting = |entry: &&Entry| TABLES.iter().all(|(name, ..)| *name != entry.key);
        Table { entries: self.top.entries.iter().filter(is_setting).cloned().collect() }
    }

    /// Finds keys that there are not and values of the wrong kind.
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

    /// Finds what `a.b.c` means.
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

/// Sets a key of a table in a table. A NIC's name becomes what the table starts from.
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

/// A table's name, or what results call it.
fn name_of(kind: &str, number: usize, node: &Node) -> String {
    let Value::Table(table) = &node.value else { return String::new() };
    match table.get("name").map(|entry| &entry.node.value) {
        Some(Value::Text(name)) => name.clone(),
        _ => format!("{kind}{number}"),
    }
}

/// The place of the second of two that are the same.
fn twice<T: PartialEq>(all: &[T]) -> Option<usize> {
    (0..all.len()).find(|at| all[..*at].contains(&all[*at]))
}
