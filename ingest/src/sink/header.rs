//! Keys about an observation that the user adds to a sink's headers.

use serde::Deserialize;
use std::collections::BTreeMap;
use thiserror::Error;

/// A value of a header.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(untagged)]
pub enum Value {
    /// An integer.
    Integer(i64),
    /// A real number.
    Real(f64),
    /// A text.
    Text(String),
}

/// Keys and values, as a TOML or JSON file states them.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(transparent)]
pub struct Header(pub BTreeMap<String, Value>);

/// Why a header is invalid.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum HeaderError {
    /// A key that headers cannot hold.
    #[error("the header's key '{key}' is invalid: 1 to {max} of A-Z, 0-9, _ and - are possible")]
    Key {
        /// The key.
        key: String,
        /// Longest one of the format.
        max: usize,
    },
    /// A value that headers cannot hold.
    #[error(
        "the header's value of {0} is invalid: numbers must be finite, and texts have at most \
         {max} printable ASCII characters, without '=' and quotes",
        max = Header::TEXT_MAX
    )]
    Value(String),
    /// A key that the sink sets itself.
    #[error("the header must not have {0}: the sink sets it")]
    Reserved(String),
    /// A number that must be an integer within limits.
    #[error("the header's {key} must be an integer from 1 to {max}")]
    Range {
        /// The key.
        key: &'static str,
        /// Largest value.
        max: u32,
    },
}

impl Header {
    /// Longest key of a FITS card.
    pub const CARD_KEY_MAX: usize = 8;
    /// Longest key of other formats.
    pub const KEY_MAX: usize = 32;
    /// Longest text, that of a FITS card.
    pub const TEXT_MAX: usize = 68;

    /// Checks keys of at most `max` characters, and values; `reserved` keys must be absent.
    ///
    /// # Errors
    /// The first fault found.
    pub fn check(&self, max: usize, reserved: &[&str]) -> Result<(), HeaderError> {
        for (key, value) in &self.0 {
            let is_key = |c: char| c.is_ascii_uppercase() || c.is_ascii_digit() || "_-".contains(c);
            if !(1..=max).contains(&key.len()) || !key.chars().all(is_key) || key == "END" {
                return Err(HeaderError::Key { key: key.clone(), max });
            }
            let is_valid = match value {
                Value::Integer(_) => true,
                Value::Real(real) => real.is_finite(),
                Value::Text(text) => {
                    let is_plain = |c: char| matches!(c, ' '..='~') && !"='\"".contains(c);
                    text.len() <= Self::TEXT_MAX && text.chars().all(is_plain)
                }
            };
            if !is_valid {
                return Err(HeaderError::Value(key.clone()));
            }
            if reserved.contains(&&**key) {
                return Err(HeaderError::Reserved(key.clone()));
            }
        }
        Ok(())
    }

    /// An integer from 1 to `max`; `or` if the key is absent.
    ///
    /// # Errors
    /// If it is another value.
    pub fn count(&self, key: &'static str, or: u32, max: u32) -> Result<u32, HeaderError> {
        match self.0.get(key) {
            None => Ok(or),
            Some(Value::Integer(value)) if (1..=i64::from(max)).contains(value) => {
                Ok(*value as u32)
            }
            Some(_) => Err(HeaderError::Range { key, max }),
        }
    }
}

/// A real number that every reader takes for one: with a point.
pub(super) fn real(value: f64) -> String {
    let text = format!("{value:?}");
    match text.split_once('e') {
        Some((mantissa, exponent)) if !mantissa.contains('.') => format!("{mantissa}.0E{exponent}"),
        _ => text.replace('e', "E"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn faults_are_named() {
        let header = |key: &str, value: Value| Header(BTreeMap::from([(key.to_owned(), value)]));
        for (header, text) in [
            (header("", Value::Integer(1)), "key '' is invalid"),
            (header("LONGER_THAN_8", Value::Integer(1)), "1 to 8 of A-Z"),
            (header("END", Value::Integer(1)), "key 'END'"),
            (header("TBIN", Value::Real(f64::NAN)), "value of TBIN"),
            (header("SRC", Value::Text("a=b".into())), "value of SRC"),
            (header("SRC", Value::Text("x".repeat(69))), "at most 68"),
            (header("PKTIDX", Value::Integer(1)), "must not have PKTIDX"),
        ] {
            let said = header.check(Header::CARD_KEY_MAX, &["PKTIDX"]).unwrap_err().to_string();
            assert!(said.contains(text), "{said}");
        }
        let header = header("NPOL", Value::Integer(4));
        assert_eq!(header.check(Header::KEY_MAX, &[]), Ok(()));
        assert_eq!(header.count("NPOL", 1, 4), Ok(4));
        assert_eq!(header.count("NBITS", 8, 16), Ok(8));
        assert!(header.count("NPOL", 1, 2).unwrap_err().to_string().contains("from 1 to 2"));
    }

    #[test]
    fn reals_have_a_point() {
        for (value, text) in [(1420.0, "1420.0"), (1e-6, "1.0E-6"), (-2.5e-9, "-2.5E-9")] {
            assert_eq!(real(value), text);
        }
    }
}
