//! How closely figures have to agree, and where.

use crate::point::{Point, Scalar};
use crate::quantity::{Quantity, significant};
use crate::record::Source;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt;

/// How far a figure may lie from the reference, or on its own.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Tolerance {
    /// So many percent of the reference, up or down.
    Percent(f64),
    /// So much, in the value's own unit, up or down: half of the last printed digit means "to the
    /// printed digits".
    Absolute(f64),
    /// At least this, whatever the reference.
    AtLeast(f64),
    /// At most this, whatever the reference.
    AtMost(f64),
}

impl Tolerance {
    /// True when it asks for a reference.
    pub fn is_relative(self) -> bool {
        matches!(self, Tolerance::Percent(_) | Tolerance::Absolute(_))
    }

    /// True when `figure` meets it. Rounding of a binary fraction is no fault, but where not even
    /// that may differ: at 0 %.
    pub fn is_met(self, figure: f64, reference: f64) -> bool {
        const ROUNDING: f64 = 1e-12;
        let slack = |size: f64| size.abs() * ROUNDING;
        match self {
            Tolerance::Percent(percent) => {
                let off = (figure - reference).abs();
                off <= reference.abs() * percent / 100.0
                    + if percent > 0.0 { slack(reference) } else { 0.0 }
            }
            Tolerance::Absolute(most) => (figure - reference).abs() <= most + slack(reference),
            Tolerance::AtLeast(least) => figure >= least - slack(least),
            Tolerance::AtMost(most) => figure <= most + slack(most),
        }
    }
}

/// Who says what a value should be.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(rename_all = "snake_case")]
pub enum Basis {
    /// A document whose authors measured it or claim it. Only figures that meet these count as
    /// reproduced.
    Published,
    /// A formula, or a document's own arithmetic.
    Theory,
    /// This project: a goal, or agreement of its own parts.
    #[default]
    Own,
}

impl Basis {
    /// All, in the order of reports.
    pub const ALL: [Basis; 3] = [Basis::Published, Basis::Theory, Basis::Own];

    /// Its name, as in files.
    pub fn name(self) -> &'static str {
        match self {
            Basis::Published => "published",
            Basis::Theory => "theory",
            Basis::Own => "own",
        }
    }
}

/// What a parameter has to be.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Condition {
    /// This.
    Is(Scalar),
    /// One of these.
    OneOf(Vec<Scalar>),
    /// A number from the first to the second, both included.
    Between(f64, f64),
}

impl Condition {
    fn holds(&self, value: &Scalar) -> bool {
        match self {
            Condition::Is(wanted) => value == wanted,
            Condition::OneOf(wanted) => wanted.contains(value),
            Condition::Between(least, most) => {
                value.as_number().is_some_and(|number| (*least..=*most).contains(&number))
            }
        }
    }
}

/// Conditions on parameters by their names.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Conditions(pub BTreeMap<String, Condition>);

impl Conditions {
    /// True if every condition holds at `point`. One on a parameter that `point` lacks does not
    /// hold.
    pub fn hold_at(&self, point: &Point) -> bool {
        self.0.iter().all(|(parameter, condition)| {
            point.get(parameter).is_some_and(|value| condition.holds(value))
        })
    }

    /// True if there are none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl fmt::Display for Conditions {
    /// ` where message is 4 KiB and op is read`; empty without conditions.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, (parameter, condition)) in self.0.iter().enumerate() {
            f.write_str(if i == 0 { " where " } else { " and " })?;
            let quantity = Quantity::of(parameter);
            write!(f, "{} is ", quantity.label())?;
            match condition {
                Condition::Is(value) => f.write_str(&value.humanised(parameter))?,
                Condition::OneOf(values) => {
                    let names: Vec<_> =
                        values.iter().map(|value| value.humanised(parameter)).collect();
                    f.write_str(&names.join(" or "))?;
                }
                Condition::Between(least, most) => {
                    write!(f, "{} to {}", quantity.humanised(*least), quantity.humanised(*most))?;
                }
            }
        }
        Ok(())
    }
}

/// Published figures that nothing is expected to meet, and why.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Exemption {
    /// Names of the values.
    pub values: Vec<String>,
    /// Where, all conditions together.
    #[serde(default, rename = "where", skip_serializing_if = "Conditions::is_empty")]
    pub conditions: Conditions,
    /// Why, in a sentence.
    pub reason: String,
}

impl fmt::Display for Exemption {
    /// A sentence for people.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let values: Vec<_> =
            self.values.iter().map(|value| Quantity::of(value).label().to_owned()).collect();
        write!(f, "{}{}: {}", values.join(" and "), self.conditions, self.reason)
    }
}

/// That a value agrees with the reference, at the points where its conditions hold. A point is
/// judged by every expectation that holds there, and by none where none does.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Expectation {
    /// Name of the value.
    pub value: String,
    /// How closely.
    pub tolerance: Tolerance,
    /// Who says so.
    #[serde(default)]
    pub basis: Basis,
    /// Whose figures are judged; empty: everybody's but the reference's.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub sources: Vec<Source>,
    /// Conditions on parameters, all of which have to hold.
    #[serde(default, rename = "where", skip_serializing_if = "Conditions::is_empty")]
    pub conditions: Conditions,
}

impl Expectation {
    /// A goal of our own for `value`, everywhere, of every source.
    pub fn new(value: &str, tolerance: Tolerance) -> Self {
        let (sources, conditions) = (Vec::new(), Conditions::default());
        Expectation { value: value.to_owned(), tolerance, basis: Basis::Own, sources, conditions }
    }

    /// That `value` lies within so many percent of the reference.
    pub fn percent(value: &str, percent: f64) -> Self {
        Self::new(value, Tolerance::Percent(percent))
    }

    /// Because `basis` says so.
    #[must_use]
    pub fn by(mut self, basis: Basis) -> Self {
        self.basis = basis;
        self
    }

    /// Of this source too; without any, of all.
    #[must_use]
    pub fn of(mut self, source: Source) -> Self {
        self.sources.push(source);
        self
    }

    /// Where `parameter` is this.
    #[must_use]
    pub fn only(mut self, parameter: &str, value: impl Into<Scalar>) -> Self {
        self.conditions.0.insert(parameter.to_owned(), Condition::Is(value.into()));
        self
    }

    /// Where `parameter` is one of these.
    #[must_use]
    pub fn one_of<T: Into<Scalar>>(
        mut self,
        parameter: &str,
        values: impl IntoIterator<Item = T>,
    ) -> Self {
        let values = values.into_iter().map(Into::into).collect();
        self.conditions.0.insert(parameter.to_owned(), Condition::OneOf(values));
        self
    }

    /// Where `parameter` is a number from `least` to `most`, both included.
    #[must_use]
    pub fn between(mut self, parameter: &str, least: f64, most: f64) -> Self {
        self.conditions.0.insert(parameter.to_owned(), Condition::Between(least, most));
        self
    }

    /// True when every condition holds at `point`.
    pub fn holds_at(&self, point: &Point) -> bool {
        self.conditions.hold_at(point)
    }

    /// True if it judges figures of `source`: the reference only by what needs none, and never what
    /// documents say.
    pub fn judges(&self, source: Source, reference: Option<Source>) -> bool {
        let is_judged =
            !source.is_given() && (Some(source) != reference || !self.tolerance.is_relative());
        is_judged && (self.sources.is_empty() || self.sources.contains(&source))
    }
}

impl fmt::Display for Expectation {
    /// A sentence for people.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let quantity = Quantity::of(&self.value);
        write!(f, "{} ", quantity.label())?;
        match self.tolerance {
            Tolerance::Percent(percent) => {
                write!(f, "within {} % of the reference", significant(percent, 4))?
            }
            Tolerance::Absolute(most) => {
                write!(f, "within {} of the reference", quantity.humanised(most))?
            }
            Tolerance::AtLeast(least) => write!(f, "at least {}", quantity.humanised(least))?,
            Tolerance::AtMost(most) => write!(f, "at most {}", quantity.humanised(most))?,
        }
        write!(f, "{}", self.conditions)?;
        for (i, source) in self.sources.iter().enumerate() {
            write!(f, "{}{}", if i == 0 { ": " } else { ", " }, source.name())?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tolerances_include_their_edge_and_nothing_beyond() {
        assert!(Tolerance::Percent(1.0).is_met(101.0, 100.0));
        assert!(Tolerance::Percent(1.0).is_met(99.0, 100.0));
        assert!(!Tolerance::Percent(1.0).is_met(101.001, 100.0));
        assert!(Tolerance::Absolute(0.05e9).is_met(2.95e9, 3.0e9));
        assert!(!Tolerance::Absolute(0.05e9).is_met(2.94e9, 3.0e9));
        assert!(
            Tolerance::AtLeast(40.0).is_met(40.0, 7.0)
                && !Tolerance::AtLeast(40.0).is_met(39.9, 7.0)
        );
        assert!(
            Tolerance::AtMost(40.0).is_met(40.0, 7.0) && !Tolerance::AtMost(40.0).is_met(40.1, 7.0)
        );
        assert!(!Tolerance::Percent(1.0).is_met(f64::NAN, 100.0));
        assert!(
            Tolerance::Percent(0.0).is_met(0.3, 0.3)
                && !Tolerance::Percent(0.0).is_met(0.1 + 0.2, 0.3)
        );
    }

    #[test]
    fn conditions_hold_where_all_of_them_do() {
        let expectation = Expectation::percent("goodput_bps", 1.0).only("op", "read").between(
            "message_bytes",
            4096.0,
            8192.0,
        );
        let point = |op: &str, bytes: u32| Point::new().with("op", op).with("message_bytes", bytes);
        assert!(
            expectation.holds_at(&point("read", 4096))
                && expectation.holds_at(&point("read", 8192))
        );
        assert!(
            !expectation.holds_at(&point("read", 8193))
                && !expectation.holds_at(&point("send", 4096))
        );
        assert!(!expectation.holds_at(&Point::new().with("op", "read")));
        let text =
            "goodput within 1 % of the reference where message is 4 KiB to 8 KiB and op is read";
        assert_eq!(expectation.to_string(), text);
    }
}
