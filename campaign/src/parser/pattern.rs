//! Results by a regular expression with named groups.

use super::unit::unit;
use super::{NoResult, Values};
use regex::Regex;
use std::collections::BTreeMap;
use thiserror::Error;

/// End of the name of a group that captures the unit of another.
const UNIT: &str = "_unit";

/// A regular expression whose named groups are results.
#[derive(Clone, Debug)]
pub struct Pattern {
    expression: Regex,
    units: BTreeMap<String, String>,
}

/// Why a pattern cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum PatternError {
    /// Not a regular expression.
    #[error("not a regular expression: {0}")]
    Syntax(String),
    /// No named group.
    #[error("the pattern has no named group: write the result as (?<goodput_bps>[0-9.]+)")]
    NoGroup,
    /// A unit of a group that does not exist.
    #[error("'units' names '{0}', and the pattern has no such group: rename one of them")]
    NoSuchGroup(String),
    /// An unknown unit.
    #[error(
        "the unit '{0}' is unknown: use for example 'us', 'Gbit/s', 'MB/s', 'MiB/s', '/s', 'KiB' \
         or '%'"
    )]
    Unit(String),
}

impl Pattern {
    /// The pattern `text`, whose groups have these units. A group without a unit names it by its
    /// end, as results do.
    ///
    /// # Errors
    /// Not a regular expression, no named group, or an unknown unit.
    pub fn new(text: &str, units: &BTreeMap<String, String>) -> Result<Self, PatternError> {
        let expression = Regex::new(text).map_err(|error| {
            let words: Vec<_> = error.to_string().lines().map(|l| l.trim().to_owned()).collect();
            PatternError::Syntax(words.last().cloned().unwrap_or_default())
        })?;
        let groups: Vec<&str> = expression.capture_names().flatten().collect();
        if groups.iter().all(|group| group.ends_with(UNIT)) {
            return Err(PatternError::NoGroup);
        }
        if let Some(name) = units.keys().find(|name| !groups.contains(&name.as_str())) {
            return Err(PatternError::NoSuchGroup(name.clone()));
        }
        if let Some(text) = units.values().find(|text| unit(text).is_none()) {
            return Err(PatternError::Unit(text.clone()));
        }
        Ok(Pattern { expression, units: units.clone() })
    }

    /// Texts that identify it.
    pub(crate) fn identity(&self) -> impl Iterator<Item = &str> {
        let units = self.units.iter().flat_map(|(group, unit)| [group.as_str(), unit.as_str()]);
        std::iter::once(self.expression.as_str()).chain(units)
    }

    /// Names of the results whose unit the output does not decide.
    pub(crate) fn names(&self) -> Vec<String> {
        let groups: Vec<&str> = self.groups().collect();
        let has_unit = |group: &str| {
            self.expression
                .capture_names()
                .flatten()
                .any(|name| name.strip_suffix(UNIT) == Some(group))
        };
        groups
            .into_iter()
            .map(|group| match self.units.get(group).and_then(|text| unit(text)) {
                Some(unit) => format!("{group}{}", unit.suffix),
                // The likeliest.
                None if has_unit(group) => format!("{group}_bps"),
                None => group.to_owned(),
            })
            .collect()
    }

    fn groups(&self) -> impl Iterator<Item = &str> {
        self.expression.capture_names().flatten().filter(|name| !name.ends_with(UNIT))
    }

    /// The groups of the last match.
    pub(crate) fn read(&self, text: &str) -> Result<Values, NoResult> {
        let found = self.expression.captures_iter(text).last().ok_or_else(|| {
            NoResult::new(format!("the pattern '{}' matches nothing", self.expression.as_str()))
        })?;
        let mut values = Values::new();
        for group in self.groups() {
            let Some(word) = found.name(group) else { continue };
            let figure: f64 = word.as_str().replace(',', "").parse().map_err(|_| {
                NoResult::new(format!("the group '{group}' matches '{}', no number", word.as_str()))
            })?;
            let written = found.name(&format!("{group}{UNIT}")).map(|word| word.as_str());
            let named = written.or(self.units.get(group).map(String::as_str));
            let (suffix, factor) = match named {
                None => ("", 1.0),
                Some(text) => {
                    let unit = unit(text).ok_or_else(|| {
                        NoResult::new(format!(
                            "the unit '{text}' of the group '{group}' is unknown"
                        ))
                    })?;
                    (unit.suffix, unit.factor)
                }
            };
            values.insert(format!("{group}{suffix}"), figure * factor);
        }
        Ok(values)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pattern(text: &str, units: &[(&str, &str)]) -> Result<Pattern, PatternError> {
        let units = units.iter().map(|(a, b)| ((*a).to_owned(), (*b).to_owned())).collect();
        Pattern::new(text, &units)
    }

    #[test]
    fn groups_are_results_with_units() {
        let found = pattern(r"rate (?<goodput>[\d.]+), (?<latency_us>\d+)", &[("goodput", "MB/s")]);
        let found = found.unwrap();
        assert_eq!(found.names(), ["goodput_bps", "latency_us"]);
        let values = found.read("rate 1.0, 5\nrate 2.5, 7\n").unwrap();
        assert_eq!((values["goodput_bps"], values["latency_us"]), (2e7, 7.0), "the last match");
        let captured = pattern(r"(?<bw>[\d.]+) (?<bw_unit>\S+)", &[]).unwrap();
        assert_eq!(captured.read("9.5 Gbits/sec").unwrap()["bw_bps"], 9.5e9);
        let refused = captured.read("9.5 apples").unwrap_err();
        assert!(refused.0.contains("the unit 'apples'"), "{refused}");
    }

    #[test]
    fn what_matches_nothing_or_no_number_says_so() {
        let found = pattern("x=(?<x>.*)", &[]).unwrap();
        assert!(found.read("y=1").unwrap_err().0.contains("matches nothing"));
        assert!(found.read("x=many").unwrap_err().0.contains("'many', no number"));
    }

    #[test]
    fn patterns_that_cannot_be_used_are_refused() {
        assert!(matches!(pattern("(", &[]), Err(PatternError::Syntax(_))));
        assert_eq!(pattern("(a)", &[]).unwrap_err(), PatternError::NoGroup);
        let no_such = pattern("(?<a>1)", &[("b", "us")]).unwrap_err();
        assert_eq!(no_such, PatternError::NoSuchGroup("b".into()));
        let unit = pattern("(?<a>1)", &[("a", "apples")]).unwrap_err();
        assert_eq!(unit, PatternError::Unit("apples".into()));
    }
}
