//! The values of one table, checked against the kinds of its keys.

use super::FileError;
use super::quantity::{Quantity, ValueKind};
use super::schema::{Keys, suggest};
use super::tree::{Node, SourceLocation, Table, Value};
use longhaul_units::{BitRate, Duration};

/// A table with known keys only, and values of the right kinds.
pub(super) struct Fields<'a> {
    pub place: &'a SourceLocation,
    /// Name in errors, such as `[[link]]`.
    pub what: &'a str,
    values: Vec<(&'static str, &'a SourceLocation, Quantity)>,
    compound: Vec<(&'static str, &'a Node)>,
}

impl<'a> Fields<'a> {
    /// Reads a node that must be a table.
    pub fn of(node: &'a Node, what: &'a str, keys: Keys) -> Result<Self, FileError> {
        match &node.value {
            Value::Table(table) => Fields::of_table(table, &node.place, what, keys),
            other => {
                Err(node.place.error(format!("{what} is to be a table, not {}", other.kind())))
            }
        }
    }

    /// Reads a table.
    pub fn of_table(
        table: &'a Table,
        place: &'a SourceLocation,
        what: &'a str,
        keys: Keys,
    ) -> Result<Self, FileError> {
        let mut fields = Fields { place, what, values: Vec::new(), compound: Vec::new() };
        for entry in &table.entries {
            let Some((key, kind)) = keys.iter().find(|(key, _)| *key == entry.key) else {
                let known = suggest(&entry.key, keys.iter().map(|(key, _)| *key), "none of");
                return Err(entry.place.error(format!("'{}' in {what} is {known}", entry.key)));
            };
            if matches!(kind, ValueKind::Ends | ValueKind::Nic | ValueKind::Accelerator) {
                fields.compound.push((key, &entry.node));
                continue;
            }
            let value = kind.read(&entry.node.value);
            let value =
                value.map_err(|why| entry.node.place.error(format!("{key} in {what}: {why}")))?;
            fields.values.push((key, &entry.node.place, value));
        }
        Ok(fields)
    }

    fn value(&self, key: &str) -> Option<&Quantity> {
        self.values.iter().find(|(known, ..)| *known == key).map(|(.., value)| value)
    }

    /// The place of a key's value, or of the table.
    pub fn place_of(&self, key: &str) -> &'a SourceLocation {
        let found =
            self.values.iter().find(|(known, ..)| *known == key).map(|(_, place, _)| *place);
        found.or_else(|| self.node(key).map(|node| &node.place)).unwrap_or(self.place)
    }

    /// Whether a key is there.
    pub fn has(&self, key: &str) -> bool {
        self.value(key).is_some() || self.node(key).is_some()
    }

    /// A value that is a table or a list.
    pub fn node(&self, key: &str) -> Option<&'a Node> {
        self.compound.iter().find(|(known, _)| *known == key).map(|(_, node)| *node)
    }

    /// A whole number in the unit of its kind.
    pub fn whole(&self, key: &str) -> Option<u64> {
        match self.value(key) {
            Some(Quantity::Whole(number)) => Some(*number),
            _ => None,
        }
    }

    /// A whole number whose kind limits it to 32 bits.
    pub fn number(&self, key: &str) -> Option<u32> {
        self.whole(key).map(|number| u32::try_from(number).unwrap_or(u32::MAX))
    }

    /// A number.
    pub fn real(&self, key: &str) -> Option<f64> {
        match self.value(key) {
            Some(Quantity::Real(number)) => Some(*number),
            _ => None,
        }
    }

    /// Text.
    pub fn text(&self, key: &str) -> Option<&str> {
        match self.value(key) {
            Some(Quantity::Text(text)) => Some(text),
            _ => None,
        }
    }

    /// The texts of a list.
    pub fn list(&self, key: &str) -> impl Iterator<Item = &str> {
        let texts = self.text(key).unwrap_or_default().split(',').map(str::trim);
        texts.filter(|text| !text.is_empty())
    }

    /// true or false.
    pub fn flag(&self, key: &str) -> Option<bool> {
        match self.value(key) {
            Some(Quantity::Flag(flag)) => Some(*flag),
            _ => None,
        }
    }

    /// A rate.
    pub fn rate(&self, key: &str) -> Option<BitRate> {
        self.whole(key).and_then(BitRate::from_bps)
    }

    /// A time.
    pub fn time(&self, key: &str) -> Option<Duration> {
        self.whole(key).map(Duration::from_ps)
    }

    /// An error at this key, with cause and remedy.
    pub fn error(&self, key: &str, cause: impl std::fmt::Display) -> FileError {
        self.place_of(key).error(format!("{cause}"))
    }
}
