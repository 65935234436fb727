//! Which parameters make rows, series and panels, and in which order.

use crate::experiment::Experiment;
use crate::point::{Point, Scalar};
use crate::quantity::Quantity;
use std::collections::{BTreeMap, BTreeSet};

/// Values of the parameters that tell a series from others.
pub(crate) type Series = Vec<Option<Scalar>>;

/// How the points of an experiment are arranged.
#[derive(Clone, Debug)]
pub(crate) struct Layout {
    /// Along rows and the x axis; none where every point is a row of its own.
    pub x: Option<String>,
    /// Parameters that vary, beside x: what makes a series.
    pub varying: Vec<String>,
    /// Parameter with a plot and a table for each value.
    pub panel: Option<String>,
    /// Parameters that are the same everywhere.
    pub constant: Point,
    /// Place of each value of each parameter: numbers ascend, texts come as they first appeared.
    places: BTreeMap<String, BTreeMap<Scalar, usize>>,
    labels: BTreeMap<String, String>,
}

/// More series than this are no curves: each point is then a row of its own, and the farthest are
/// shown.
const SERIES_MAX: usize = 64;

impl Layout {
    pub fn new(experiment: &Experiment, points: &[&Point]) -> Self {
        let layout = Self::arranged(experiment, points);
        if layout.x.is_none() {
            return layout;
        }
        let mut series = BTreeSet::new();
        for point in points {
            series.insert(layout.series(point));
            if series.len() > SERIES_MAX {
                return Self::arranged(
                    &Experiment { scattered: true, ..experiment.clone() },
                    points,
                );
            }
        }
        layout
    }

    fn arranged(experiment: &Experiment, points: &[&Point]) -> Self {
        let distinct: BTreeSet<&Point> = points.iter().copied().collect();
        let x = experiment.row_parameter(&distinct);
        let mut values: BTreeMap<&str, Vec<&Scalar>> = BTreeMap::new();
        let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
        let mut seen = BTreeSet::new();
        for (key, value) in points.iter().flat_map(|point| point.iter()) {
            if seen.insert((key, value)) {
                values.entry(key).or_default().push(value);
            }
        }
        for (key, _) in distinct.iter().flat_map(|point| point.iter()) {
            *counts.entry(key).or_default() += 1;
        }
        let is_constant = |key: &str| {
            values.get(key).is_none_or(|v| v.len() == 1) && counts.get(key) == Some(&distinct.len())
        };
        let told = experiment.panel.iter().chain(&experiment.series).map(String::as_str);
        let mut varying: Vec<String> = Vec::new();
        for key in told.chain(values.keys().copied()) {
            let is_new = !varying.iter().any(|v| v == key) && Some(key) != x.as_deref();
            if is_new && values.contains_key(key) && !is_constant(key) {
                varying.push(key.to_owned());
            }
        }
        let mut constant = Point::new();
        for (key, value) in &values {
            if is_constant(key) && Some(*key) != x.as_deref() {
                constant = constant.with(key, value[0].clone());
            }
        }
        let places = values.into_iter().map(|(key, mut values)| {
            if values.iter().all(|value| value.as_number().is_some()) {
                values.sort();
            }
            let places =
                values.into_iter().enumerate().map(|(place, value)| (value.clone(), place));
            (key.to_owned(), places.collect())
        });
        let panel = experiment.panel.clone().filter(|panel| varying.contains(panel));
        Layout {
            x,
            varying,
            panel,
            constant,
            places: places.collect(),
            labels: experiment.labels.clone(),
        }
    }

    /// Place of its value of `key` among all, from 1; 0 without one.
    pub fn place(&self, key: &str, point: &Point) -> usize {
        let place = |value| self.places.get(key).and_then(|places| places.get(value));
        point.get(key).and_then(place).map_or(0, |place| place + 1)
    }

    /// What sorts points: series first, then x.
    pub fn order(&self, point: &Point) -> Vec<usize> {
        self.varying.iter().chain(&self.x).map(|key| self.place(key, point)).collect()
    }

    /// The series that `point` belongs to.
    pub fn series(&self, point: &Point) -> Series {
        self.varying.iter().map(|key| point.get(key).cloned()).collect()
    }

    /// Its place on the x axis, where the axis is one of names.
    pub fn x_place(&self, point: &Point) -> Option<usize> {
        let x = self.x.as_deref()?;
        point.get(x)?;
        Some(self.place(x, point) - 1)
    }

    /// Names on the x axis, where it is not one of numbers.
    pub fn x_names(&self) -> Option<Vec<String>> {
        let x = self.x.as_deref()?;
        let mut places: Vec<_> = self.places.get(x)?.iter().collect();
        if places.iter().all(|(value, _)| value.as_number().is_some()) {
            return None;
        }
        places.sort_by_key(|(_, place)| **place);
        Some(places.into_iter().map(|(value, _)| self.text(x, value)).collect())
    }

    /// Name of a parameter or value for people, without its unit.
    pub fn name(&self, key: &str) -> String {
        self.labels.get(key).cloned().unwrap_or_else(|| Quantity::of(key).label().to_owned())
    }

    /// Value of a parameter for people, without its name.
    pub fn text(&self, key: &str, value: &Scalar) -> String {
        let text = value.humanised(key);
        match value {
            Scalar::Text(name) => self.labels.get(name).cloned().unwrap_or(text),
            _ => text,
        }
    }

    /// Value of a parameter for people, with its name where the value alone would say nothing.
    pub fn named(&self, key: &str, value: &Scalar) -> String {
        let text = self.text(key, value);
        match value {
            Scalar::Bool(true) => self.name(key),
            Scalar::Bool(false) => format!("not {}", self.name(key)),
            Scalar::Number(_) if key == "qps" => {
                format!("{text} QP{}", if text == "1" { "" } else { "s" })
            }
            Scalar::Number(_) if text.contains(' ') => text,
            Scalar::Number(_) => format!("{} {text}", self.name(key)),
            Scalar::Text(_) => text,
        }
    }

    /// Name of a series, of the parameters that `wanted` keeps.
    pub fn series_name(&self, series: &Series, wanted: impl Fn(&str) -> bool) -> String {
        let parts = self.varying.iter().zip(series).filter(|(key, _)| wanted(key));
        let names = parts.filter_map(|(key, value)| Some(self.named(key, value.as_ref()?)));
        names.collect::<Vec<_>>().join(", ")
    }

    /// Name of a point: its series and its place on the x axis.
    pub fn place_name(&self, point: &Point) -> String {
        let series = self.series_name(&self.series(point), |_| true);
        let place = self.x.as_deref().and_then(|x| Some(self.named(x, point.get(x)?)));
        let parts = [series, place.unwrap_or_default()];
        parts.into_iter().filter(|part| !part.is_empty()).collect::<Vec<_>>().join(", ")
    }

    /// What is the same everywhere, for people.
    pub fn constants(&self) -> String {
        let named = |(key, value): (&str, &Scalar)| match value {
            Scalar::Text(_) | Scalar::Bool(_) => self.named(key, value),
            _ => format!("{} {}", self.name(key), self.text(key, value)),
        };
        self.constant.iter().map(named).collect::<Vec<_>>().join(", ")
    }
}
