//! Where a result lies: parameters and their values.

use crate::quantity::Quantity;
use serde::{Deserialize, Serialize, Serializer};
use std::cmp::Ordering;
use std::collections::BTreeMap;
use std::fmt;

/// Value of a parameter.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Scalar {
    /// Yes or no.
    Bool(bool),
    /// A number: a double, so integers are exact up to 2^53.
    Number(#[serde(serialize_with = "number")] f64),
    /// A name.
    Text(String),
}

/// Whole numbers without a fraction, as people write them.
fn number<S: Serializer>(value: &f64, serializer: S) -> Result<S::Ok, S::Error> {
    const EXACT: f64 = (1_u64 << 53) as f64;
    if value.fract() == 0.0 && value.abs() < EXACT {
        serializer.serialize_i64(*value as i64)
    } else {
        serializer.serialize_f64(*value)
    }
}

impl Scalar {
    /// The number that it is, if it is one.
    pub fn as_number(&self) -> Option<f64> {
        match self {
            Scalar::Number(number) => Some(*number),
            _ => None,
        }
    }

    /// As people read it, where `key` names the unit: 4096 of `message_bytes` is `4 KiB`.
    pub fn humanised(&self, key: &str) -> String {
        match self {
            Scalar::Number(number) => Quantity::of(key).humanised(*number),
            other => other.to_string(),
        }
    }

    fn rank(&self) -> u8 {
        match self {
            Scalar::Bool(_) => 0,
            Scalar::Number(_) => 1,
            Scalar::Text(_) => 2,
        }
    }
}

impl Ord for Scalar {
    fn cmp(&self, other: &Self) -> Ordering {
        match (self, other) {
            (Scalar::Bool(a), Scalar::Bool(b)) => a.cmp(b),
            // Minus zero is zero.
            (Scalar::Number(a), Scalar::Number(b)) => (a + 0.0).total_cmp(&(b + 0.0)),
            (Scalar::Text(a), Scalar::Text(b)) => a.cmp(b),
            _ => self.rank().cmp(&other.rank()),
        }
    }
}

impl PartialOrd for Scalar {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Scalar {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for Scalar {}

impl fmt::Display for Scalar {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Scalar::Bool(true) => f.write_str("yes"),
            Scalar::Bool(false) => f.write_str("no"),
            Scalar::Number(number) => write!(f, "{number}"),
            Scalar::Text(text) => f.write_str(text),
        }
    }
}

impl From<bool> for Scalar {
    fn from(value: bool) -> Self {
        Scalar::Bool(value)
    }
}

impl From<&str> for Scalar {
    fn from(value: &str) -> Self {
        Scalar::Text(value.to_owned())
    }
}

impl From<String> for Scalar {
    fn from(value: String) -> Self {
        Scalar::Text(value)
    }
}

impl From<f64> for Scalar {
    fn from(value: f64) -> Self {
        Scalar::Number(value)
    }
}

impl From<i32> for Scalar {
    fn from(value: i32) -> Self {
        Scalar::Number(value.into())
    }
}

impl From<u32> for Scalar {
    fn from(value: u32) -> Self {
        Scalar::Number(value.into())
    }
}

impl From<u64> for Scalar {
    fn from(value: u64) -> Self {
        Scalar::Number(value as f64)
    }
}

/// Parameters of a result, by name. Names end in their unit: `message_bytes`, `distance_km`; see
/// [`Quantity::of`].
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Point(BTreeMap<String, Scalar>);

impl Point {
    /// Without parameters.
    pub fn new() -> Self {
        Self::default()
    }

    /// With one more, or another value for one that is there.
    #[must_use]
    pub fn with(mut self, parameter: &str, value: impl Into<Scalar>) -> Self {
        self.0.insert(parameter.to_owned(), value.into());
        self
    }

    /// Value of `parameter`.
    pub fn get(&self, parameter: &str) -> Option<&Scalar> {
        self.0.get(parameter)
    }

    /// Parameters in alphabetical order.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &Scalar)> {
        self.0.iter().map(|(key, value)| (key.as_str(), value))
    }
}

impl fmt::Display for Point {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, (key, value)) in self.iter().enumerate() {
            let between = if i > 0 { ", " } else { "" };
            write!(f, "{between}{}", named(key, value))?;
        }
        Ok(())
    }
}

/// `message 4 KiB`, `16 QPs`, `op read`: the parameter's name and value.
pub(crate) fn named(key: &str, value: &Scalar) -> String {
    format!("{} {}", Quantity::of(key).label(), value.humanised(key))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn points_are_equal_whatever_order_they_were_made_in() {
        let a = Point::new().with("op", "read").with("message_bytes", 4096);
        let b = Point::new().with("message_bytes", 4096.0).with("op", "read");
        assert_eq!(a, b);
        assert_eq!(a.to_string(), "message 4 KiB, op read");
        assert_ne!(a, b.with("op", "write"));
    }

    #[test]
    fn whole_numbers_are_written_without_a_fraction_and_read_back() {
        let point = Point::new().with("a", 4096).with("b", 0.25).with("c", true).with("d", "x");
        let json = serde_json::to_string(&point).unwrap();
        assert_eq!(json, r#"{"a":4096,"b":0.25,"c":true,"d":"x"}"#);
        assert_eq!(serde_json::from_str::<Point>(&json).unwrap(), point);
    }
}
