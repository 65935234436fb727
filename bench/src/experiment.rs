//! What a set of records is about.

use crate::expectation::{Exemption, Expectation};
use crate::point::{Point, Scalar};
use crate::record::{Record, Source};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};

/// Where published figures stand.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Document {
    /// Title, author, date.
    pub title: String,
    /// Table, figure or section.
    pub place: String,
}

/// A figure that others are held against: a document's, or a formula's.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PublishedCell {
    /// Published, or theory.
    #[serde(default = "published", skip_serializing_if = "is_published")]
    pub source: Source,
    /// Parameters.
    pub point: Point,
    /// Figures by name.
    pub values: BTreeMap<String, f64>,
    /// What is to be said of it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
    /// The document itself seems wrong here: shown, and nothing is judged by it. The note says why.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub suspect: bool,
    /// A constant was fitted on it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub fitted: bool,
}

fn published() -> Source {
    Source::Published
}

fn is_published(source: &Source) -> bool {
    *source == Source::Published
}

impl PublishedCell {
    /// One figure.
    pub fn new(point: Point, value: &str, figure: f64) -> Self {
        let values = BTreeMap::from([(value.to_owned(), figure)]);
        PublishedCell {
            source: Source::Published,
            point,
            values,
            note: None,
            suspect: false,
            fitted: false,
        }
    }

    /// As one that seems wrong.
    #[must_use]
    pub fn suspect(mut self, why: impl Into<String>) -> Self {
        self.suspect = true;
        self.note = Some(why.into());
        self
    }
}

/// Something that no document says.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Assumption {
    /// What it is: "start-up of a READ".
    pub what: String,
    /// Its value with unit, as text: "17 µs".
    pub value: String,
    /// Where it comes from, or why it was chosen.
    pub source: String,
    /// Cells that it was fitted on, in words; none when it was not fitted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fitted_on: Option<String>,
}

/// What a set of records is about, how it is shown and what is expected of it.
///
/// Everything but the name may be left at its default; what is missing is found from the records.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Experiment {
    /// As in the records: letters, digits, `.`, `_` and `-`; at most 100.
    pub name: String,
    /// For people, one line.
    pub title: String,
    /// What it shows, in a few sentences.
    pub about: String,
    /// Where the published figures stand.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub document: Option<Document>,
    /// Published figures.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub published: Vec<PublishedCell>,
    /// Parameter along the rows of tables and the x axis of plots. Without it, the number with most
    /// values; where [`Experiment::scattered`], none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub x: Option<String>,
    /// Points over many parameters: tables list the worst, and the plot shows deviations.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub scattered: bool,
    /// Parameters that tell series apart, in this order. Others that vary follow.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub series: Vec<String>,
    /// Parameter with a plot for each of its values.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub panel: Option<String>,
    /// Values to show, in this order; without any, all.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub values: Vec<String>,
    /// Names for people of parameters, values, and of parameters' texts: `goodput_bps` → `goodput`,
    /// `read` → `READ`.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
    /// What the others are held against; without it, the first that there is of published, theory,
    /// measured, simulated.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reference: Option<Source>,
    /// How closely.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub expectations: Vec<Expectation>,
    /// Published figures that nothing is expected to meet.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub exemptions: Vec<Exemption>,
    /// What no document says.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub assumptions: Vec<Assumption>,
    /// What is to be said of the outcome, a paragraph each.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub remarks: Vec<String>,
}

impl Experiment {
    /// With a name and a title.
    pub fn new(name: &str, title: &str) -> Self {
        Experiment { name: name.to_owned(), title: title.to_owned(), ..Self::default() }
    }

    /// The name for people of a parameter, a value or a parameter's text.
    pub fn label<'a>(&'a self, key: &'a str) -> Option<&'a str> {
        self.labels.get(key).map(String::as_str)
    }

    /// True for names that can be a file's and an anchor's.
    pub fn is_name(name: &str) -> bool {
        let good = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-');
        (1..=100).contains(&name.len()) && name.chars().all(good) && !name.starts_with('.')
    }

    /// Its published cells as records.
    pub fn published_records(&self) -> impl Iterator<Item = Record> + '_ {
        self.published.iter().map(|cell| Record {
            values: cell.values.clone(),
            note: cell.note.clone(),
            fitted: cell.fitted,
            ..Record::new(&self.name, cell.source, cell.point.clone())
        })
    }

    /// The document seems wrong at `point`.
    pub(crate) fn is_suspect(&self, point: &Point, value: &str) -> bool {
        let at = |cell: &PublishedCell| {
            cell.suspect && cell.point == *point && cell.values.contains_key(value)
        };
        self.published.iter().any(at)
    }

    /// The parameter along the rows: as told, or the number with most values.
    pub(crate) fn row_parameter(&self, points: &BTreeSet<&Point>) -> Option<String> {
        if self.scattered || self.x.is_some() {
            return self.x.clone().filter(|_| !self.scattered);
        }
        let mut values: BTreeMap<&str, BTreeSet<&Scalar>> = BTreeMap::new();
        for (key, value) in points.iter().flat_map(|point| point.iter()) {
            values.entry(key).or_default().insert(value);
        }
        let told =
            |key: &str| self.series.iter().any(|s| s == key) || self.panel.as_deref() == Some(key);
        let numbers = values.iter().filter(|(key, values)| {
            !told(key) && values.iter().all(|value| value.as_number().is_some())
        });
        // Of equals the first.
        let most = numbers.rev().max_by_key(|(_, values)| values.len());
        most.or_else(|| values.iter().find(|(key, _)| !told(key))).map(|(key, _)| (*key).to_owned())
    }
}
