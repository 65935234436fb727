//! A parameter and its values in a sweep.

use super::quantity::{Quantity, ValueKind};
use super::schema::suggest;
use super::tree::Value;
use super::{FileError, ScenarioFile};

/// A key of a scenario file and its values in a sweep: `flow.size=4K..8M,x2`.
#[derive(Clone, Debug)]
pub struct Axis {
    path: String,
    kind: ValueKind,
    items: Vec<Item>,
}

#[derive(Clone, Debug)]
enum Item {
    One(String),
    Range { from: f64, to: f64, step: Step },
}

#[derive(Clone, Copy, Debug)]
enum Step {
    Times(f64),
    Plus(f64),
}

impl Item {
    /// Returns the number of values, to within one.
    fn count(&self) -> u128 {
        match self {
            Item::One(_) => 1,
            Item::Range { from, to, step } => {
                let steps = match step {
                    Step::Times(factor) => (to / from).ln() / factor.ln(),
                    Step::Plus(step) => (to - from) / step,
                };
                // The end is included even if it is not a step.
                (steps - 1e-9).ceil().max(0.0) as u128 + 1
            }
        }
    }

    fn number(&self, index: u128) -> f64 {
        match self {
            Item::One(_) => 0.0,
            Item::Range { from, to, step } => {
                let value = match step {
                    Step::Times(factor) => from * factor.powf(index as f64),
                    Step::Plus(step) => from + step * index as f64,
                };
                if index + 1 == self.count() { *to } else { value.min(*to) }
            }
        }
    }
}

impl Axis {
    /// Parses `KEY=VALUES` for a file: comma-separated values and ranges FROM..TO, each optionally
    /// followed by its step: x2 (the default) multiplies, +4K adds.
    ///
    /// # Errors
    /// The file has no such key, or a value has the wrong kind.
    pub fn parse(file: &ScenarioFile, text: &str) -> Result<Self, FileError> {
        let error = |cause: String| FileError { place: text.to_owned(), cause };
        let (path, values) = text.split_once('=').ok_or_else(|| {
            error("this names no values: write KEY=VALUES, as in flow.size=4K..8M,x2".to_owned())
        })?;
        let path = path.trim().to_owned();
        let kind = file.kind_of(&path).map_err(error)?;
        let mut items: Vec<Item> = Vec::new();
        for part in values.split(',').map(str::trim) {
            match (
                part.strip_prefix('x'),
                part.strip_prefix('+'),
                part.split_once(".."),
                items.last_mut(),
            ) {
                (Some(factor), _, _, Some(Item::Range { from, step, .. }))
                    if factor.parse::<f64>().is_ok() =>
                {
                    let factor = factor
                        .parse()
                        .ok()
                        .filter(|factor: &f64| factor.is_finite() && *factor > 1.0);
                    let factor = factor
                        .ok_or_else(|| error(format!("'{part}' does not lead upwards: x2 does")))?;
                    if *from <= 0.0 {
                        return Err(error("a range by factors begins above 0".to_owned()));
                    }
                    *step = Step::Times(factor);
                }
                (_, Some(by), _, Some(Item::Range { step, .. })) => {
                    let by = number(kind, by).map_err(error)?;
                    if by <= 0.0 {
                        return Err(error(format!("'{part}' leads nowhere")));
                    }
                    *step = Step::Plus(by);
                }
                (_, _, Some((from, to)), _) => {
                    let (from, to) =
                        (number(kind, from).map_err(error)?, number(kind, to).map_err(error)?);
                    if from > to {
                        return Err(error(format!("'{part}' runs backwards")));
                    }
                    items.push(Item::Range { from, to, step: Step::Times(2.0) });
                }
                _ => {
                    kind.read(&Value::of_words(part)).map_err(error)?;
                    items.push(Item::One(part.to_owned()));
                }
            }
        }
        let is_stuck = |item: &Item| match item {
            Item::Range { from, step: Step::Times(_), .. } => *from <= 0.0,
            _ => false,
        };
        if items.iter().any(is_stuck) {
            return Err(error("a range from 0 needs its step, as in 0..100km,+10km".to_owned()));
        }
        Ok(Axis { path, kind, items })
    }

    /// The key.
    pub fn path(&self) -> &str {
        &self.path
    }

    /// Number of values.
    pub fn count(&self) -> u128 {
        self.items.iter().map(Item::count).sum()
    }

    /// The distinct values, in the form of [`ScenarioFile::set`]: [`Axis::count`] of them, or fewer
    /// if steps are smaller than the unit.
    pub fn values(&self) -> Vec<String> {
        let mut values: Vec<String> = Vec::new();
        for item in &self.items {
            match item {
                Item::One(text) => values.push(text.clone()),
                range => values.extend(
                    (0..range.count()).map(|index| written(self.kind, range.number(index))),
                ),
            }
        }
        let mut seen = std::collections::HashSet::new();
        values.retain(|value| seen.insert(value.clone()));
        values
    }
}

/// Parses a number into the unit of its kind.
fn number(kind: ValueKind, text: &str) -> Result<f64, String> {
    match kind.read(&Value::of_words(text.trim()))? {
        Quantity::Whole(number) => Ok(number as f64),
        Quantity::Real(number) => Ok(number),
        _ => Err(format!("'{text}' is no number: a range goes from one number to another")),
    }
}

/// Formats a number as in a file.
fn written(kind: ValueKind, number: f64) -> String {
    match kind {
        // Twelve digits hide the rounding of the steps.
        ValueKind::Probability => {
            format!("{:e}", format!("{number:.11e}").parse::<f64>().unwrap_or(number))
        }
        ValueKind::Distance => format!("{}m", number.round()),
        ValueKind::Time => format!("{}ps", number.round()),
        _ => format!("{}", number.round()),
    }
}

/// Message for an unknown key.
pub(super) fn unknown<'a>(key: &str, known: impl Iterator<Item = &'a str>) -> String {
    format!("'{key}' is {}", suggest(key, known, "none of"))
}
