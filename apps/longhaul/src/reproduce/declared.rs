//! Experiments declared in labs/experiments.

use crate::labs::{Table, embedded};
use crate::problem::Problem;
use longhaul_bench::{Conditions, Experiment, Point, PublishedCell, Scalar};
use longhaul_sim::file::{Axis, ParameterValue, ScenarioFile};
use serde::Deserialize;
use std::collections::BTreeMap;

/// Built-in experiments, in the order of the report.
const EXPERIMENTS: &[(&str, &str)] = embedded!("experiments", ".toml":
    "ntt-distance" "ntt-frameworks" "iown-c1" "iown-c1-disturbed" "iown-d1" "step1" "step1-reads"
    "go-back-n" "lossy-wan" "nics" "ceiling" "power" "planner-grid" "thesis-sizes" "thesis-events"
    "thesis-qps" "thesis-many-to-one" "thesis-one-to-many" "thesis-recovery"
    "iown1-nvmf" "chelsio-nvmf" "iown2-vm" "storage-writes"
);

/// Display names of scenario keys.
const LABELS: &[(&str, &str)] = &[
    ("flow.size_bytes", "message size"),
    ("flow.qps", "queue pairs"),
    ("flow.tx_depth", "tx-depth"),
    ("path.delay_ns", "one-way delay"),
    ("path.distance_m", "distance"),
    ("path.loss", "loss"),
    ("qps", "queue pairs"),
    ("rtt", "round trip"),
    ("op", "operation"),
    ("latency_ns", "latency"),
    ("requester_cpu_percent", "requester's CPU, % of a core"),
    ("responder_cpu_percent", "responder's CPU, % of a core"),
    ("read", "READ"),
    ("send", "SEND"),
    ("write", "WRITE"),
];

/// An experiment: its description and its runs.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Declared {
    /// The description and expectations.
    pub experiment: Experiment,
    /// The scenario on which all runs are based.
    #[serde(default)]
    scenario: toml::Table,
    /// The runs.
    #[serde(default, rename = "run")]
    runs: Vec<Run>,
    /// Claims of a document that need arithmetic, no simulation.
    #[serde(default, rename = "arithmetic")]
    pub arithmetic: Vec<Arithmetic>,
    /// The part for `--reduced`.
    #[serde(default)]
    reduced: Reduction,
}

/// The part of an experiment for `--reduced`.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct Reduction {
    /// Points where all of these hold; without conditions all points.
    #[serde(default, rename = "where")]
    only: Conditions,
    /// Scenario keys to set at each of them.
    #[serde(default)]
    set: BTreeMap<String, toml::Value>,
}

/// Extent of an experiment to run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Extent {
    /// The whole experiment.
    Whole,
    /// The reduced part.
    Reduced,
}

/// A set of points.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Run {
    /// Name for references by other runs.
    #[serde(default)]
    pub name: String,
    /// Parameters of its points that are only labels.
    #[serde(default)]
    point: BTreeMap<String, Scalar>,
    /// Scenario keys to set.
    #[serde(default)]
    set: BTreeMap<String, toml::Value>,
    /// Scenario keys to vary, as for `longhaul sweep`.
    #[serde(default)]
    vary: BTreeMap<String, String>,
    /// Table rows by which to vary, and with which the run is compared.
    reference: Option<Rows>,
    /// Runs by whose goodput, at equal varied values, its own is divided: values `gain_over_NAME`,
    /// and, where programs wait for events, `cpu_percent_saved_over_NAME`.
    #[serde(default)]
    pub against: Vec<String>,
    /// Keep the best of the points with equal values of these parameters, which become their only
    /// parameters.
    pub best_by: Option<Vec<String>>,
    /// Repetitions of each point, with seeds from 1 on, which are averaged.
    #[serde(default = "once")]
    repeat: u64,
    /// Do not predict.
    #[serde(default)]
    pub simulated_only: bool,
}

/// Rows of a table.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Rows {
    /// Name of the table.
    table: String,
    /// Only rows with these values in these columns.
    #[serde(default, rename = "where")]
    only: BTreeMap<String, String>,
    /// The column that varies a scenario key, the key, and the suffix of the number.
    column: Option<String>,
    key: Option<String>,
    #[serde(default)]
    unit: String,
    /// The column of figures, the name of the value, and the factor to base units.
    figure: String,
    value: String,
    #[serde(default = "one")]
    times: f64,
    /// Where runs may not finish: name of the value, in place of `value`, of cells with runs that
    /// did not. It is the percentage of runs that did.
    finished: Option<String>,
    /// Further columns of figures, and names of their values. They are compared with the run's own
    /// figure of `value`, because runs without randomness are equal.
    #[serde(default)]
    also: BTreeMap<String, String>,
    /// Rows to which a constant was fitted.
    #[serde(default)]
    fitted: Vec<f64>,
    /// Rows in which the document seems wrong, with the reason.
    #[serde(default)]
    suspect: BTreeMap<String, String>,
}

fn one() -> f64 {
    1.0
}

fn once() -> u64 {
    1
}

/// A claim about a product and quotient of a table's cells.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Arithmetic {
    /// Name of the table, and the column with the names of its rows.
    table: String,
    rows: String,
    /// The column of the claim, and the name of its value in results.
    claim: String,
    value: String,
    /// Columns to multiply.
    product: Vec<String>,
    /// Columns by which to divide.
    #[serde(default)]
    by: Vec<String>,
    /// Convert the quotient q to (1 − q) in percent.
    #[serde(default)]
    reduction_percent: bool,
}

/// A point to run.
#[derive(Clone, Debug)]
pub struct Planned {
    /// Parameters of its records.
    pub point: Point,
    /// The varied settings, by which points of different runs correspond.
    pub varied: Vec<String>,
    /// Its run.
    pub run: usize,
    /// The scenario with everything set.
    pub scenario: ScenarioFile,
    /// A constant was fitted here.
    pub fitted: bool,
    /// Values that are copies of another, which comes first.
    pub copies: Vec<(String, String)>,
    /// The reference cells.
    cells: Vec<PublishedCell>,
}

/// Names of the experiments.
pub fn names() -> impl Iterator<Item = &'static str> {
    EXPERIMENTS.iter().map(|(name, _)| *name)
}

/// The experiment of this name, or in the file `name` if that ends in `.toml`.
pub fn named(name: &str) -> Result<Declared, Problem> {
    let parsed = |text: &str| {
        toml::from_str(text).map_err(|error: toml::de::Error| {
            let before = error.span().and_then(|span| text.get(..span.start));
            let line = before.map_or(1, |before| before.matches('\n').count() + 1);
            Problem::plain(format!("{name}:{line}: {}", error.message().trim().replace('\n', ": ")))
        })
    };
    if name.ends_with(".toml") {
        let text = std::fs::read_to_string(name);
        return parsed(
            &text.map_err(|error| Problem::plain(format!("cannot read {name}: {error}")))?,
        );
    }
    let Some((_, text)) = EXPERIMENTS.iter().find(|(known, _)| *known == name) else {
        let known: Vec<_> = names().collect();
        return Err(Problem::new(
            format!("no experiment is called '{name}'"),
            format!("there are {}, and files ending in .toml", known.join(", ")),
        ));
    };
    parsed(text)
}

impl Declared {
    /// The runs.
    pub fn runs(&self) -> &[Run] {
        &self.runs
    }

    /// Returns the points of `extent`, and the experiment with their reference cells.
    pub fn plan(&self, extent: Extent) -> Result<(Vec<Planned>, Experiment), Problem> {
        let everything = Reduction::default();
        let reduction = if extent == Extent::Reduced { &self.reduced } else { &everything };
        let mut experiment = self.experiment.clone();
        experiment.published.retain(|cell| reduction.only.hold_at(&cell.point));
        for (key, label) in LABELS {
            experiment.labels.entry((*key).to_owned()).or_insert_with(|| (*label).to_owned());
        }
        let mut points = Vec::new();
        for (number, run) in self.runs.iter().enumerate() {
            let mut of_run = vec![self.start(number, run)?];
            for (key, values) in &run.vary {
                of_run = vary(of_run, key, values)?;
            }
            if let Some(rows) = &run.reference {
                of_run = rows.apply(of_run, &experiment.name)?;
            }
            of_run.retain(|planned| reduction.only.hold_at(&planned.point));
            for planned in &mut of_run {
                for (key, value) in &reduction.set {
                    planned.scenario.set(key, &plain(value)).map_err(problem)?;
                }
                let cells = planned.cells.drain(..).map(|cell| match &run.best_by {
                    Some(keys) => PublishedCell { point: only(&cell.point, keys), ..cell },
                    None => cell,
                });
                for cell in cells {
                    if !experiment.published.contains(&cell) {
                        experiment.published.push(cell);
                    }
                }
            }
            for seed in 1..=run.repeat {
                for point in &of_run {
                    let mut point = point.clone();
                    point.scenario.set("seed", &seed.to_string()).map_err(problem)?;
                    points.push(point);
                }
            }
        }
        for claim in &self.arithmetic {
            claim.publish(&mut experiment)?;
        }
        Ok((points, experiment))
    }

    /// The common settings of all points of `run`.
    fn start(&self, number: usize, run: &Run) -> Result<Planned, Problem> {
        let text = toml::to_string(&self.scenario).map_err(|e| Problem::plain(e.to_string()))?;
        let mut scenario = ScenarioFile::parse(&self.experiment.name, &text).map_err(problem)?;
        for (key, value) in &run.set {
            scenario.set(key, &plain(value)).map_err(problem)?;
        }
        let point = run
            .point
            .iter()
            .fold(Point::new(), |point, (key, value)| point.with(key, value.clone()));
        Ok(Planned {
            point,
            varied: Vec::new(),
            run: number,
            scenario,
            fitted: false,
            copies: Vec::new(),
            cells: Vec::new(),
        })
    }
}

/// Combines each point with each value of another key.
fn vary(points: Vec<Planned>, key: &str, values: &str) -> Result<Vec<Planned>, Problem> {
    let mut varied = Vec::new();
    for point in points {
        let axis = Axis::parse(&point.scenario, &format!("{key}={values}")).map_err(problem)?;
        for value in axis.values() {
            varied.push(point.with(key, &value)?);
        }
    }
    Ok(varied)
}

impl Planned {
    fn with(&self, key: &str, value: &str) -> Result<Planned, Problem> {
        let mut planned = self.clone();
        let parameter = planned.scenario.set(key, value).map_err(problem)?;
        let scalar = match parameter.value {
            ParameterValue::Whole(number) => Scalar::from(number),
            ParameterValue::Real(number) => Scalar::from(number),
            ParameterValue::Flag(flag) => Scalar::from(flag),
            ParameterValue::Text(text) => Scalar::from(text),
        };
        planned.varied.push(format!("{}={scalar}", parameter.key));
        planned.point = planned.point.with(&parameter.key, scalar);
        Ok(planned)
    }
}

impl Rows {
    /// Combines each point with each row, as its reference.
    fn apply(&self, points: Vec<Planned>, experiment: &str) -> Result<Vec<Planned>, Problem> {
        let table = Table::named(&self.table)?;
        let mut all = Vec::new();
        for row in
            table.rows().filter(|row| self.only.iter().all(|(column, is)| row.text(column) == is))
        {
            let x = self.column.as_ref().map(|column| row.text(column));
            for point in &points {
                let mut planned = match (&self.key, x) {
                    (Some(key), Some(x)) => point.with(key, &format!("{x}{}", self.unit))?,
                    _ => point.clone(),
                };
                let number = x.and_then(|x| x.parse::<f64>().ok());
                planned.fitted = match number {
                    Some(number) => self.fitted.contains(&number),
                    None => !self.fitted.is_empty(),
                };
                let first = (&self.figure, &self.value);
                for (column, value) in std::iter::once(first).chain(&self.also) {
                    let (value, figure) = match (&self.finished, row.finished_percent(column)) {
                        (Some(finished), Some(percent)) => (finished, percent),
                        _ => (value, row.number(column)? * self.times),
                    };
                    let cell = PublishedCell {
                        source: table.source,
                        ..PublishedCell::new(planned.point.clone(), value, figure)
                    };
                    planned.cells.push(match x.and_then(|x| self.suspect.get(x)) {
                        Some(why) => cell.suspect(why),
                        None => cell,
                    });
                }
                let copies = self.also.values().map(|value| (self.value.clone(), value.clone()));
                planned.copies = copies.collect();
                all.push(planned);
            }
        }
        if all.is_empty() {
            return Err(Problem::plain(format!("{experiment}: no row of {} fits", self.table)));
        }
        Ok(all)
    }
}

impl Arithmetic {
    /// Returns for each row its name, the claimed figure, and the computed one.
    fn rows(&self) -> Result<Vec<(Point, f64, f64)>, Problem> {
        let table = Table::named(&self.table)?;
        let mut rows = Vec::new();
        for row in table.rows() {
            let times = |columns: &[String]| {
                columns.iter().try_fold(1.0, |product, column| {
                    row.number(column).map(|number| product * number)
                })
            };
            let quotient = times(&self.product)? / times(&self.by)?;
            let result = if self.reduction_percent { 100.0 * (1.0 - quotient) } else { quotient };
            let point = Point::new().with(&self.rows, row.text(&self.rows));
            rows.push((point, row.number(&self.claim)?, result));
        }
        Ok(rows)
    }

    fn publish(&self, experiment: &mut Experiment) -> Result<(), Problem> {
        for (point, claimed, _) in self.rows()? {
            experiment.published.push(PublishedCell::new(point, &self.value, claimed));
        }
        Ok(())
    }

    /// Returns the results by point: the value's name and the figure.
    pub fn results(&self) -> Result<Vec<(Point, &str, f64)>, Problem> {
        let rows = self.rows()?;
        Ok(rows
            .into_iter()
            .map(|(point, _, result)| (point, self.value.as_str(), result))
            .collect())
    }
}

/// Restricts a point to these parameters.
pub fn only(point: &Point, keys: &[String]) -> Point {
    let kept = point.iter().filter(|(key, _)| keys.iter().any(|wanted| wanted == key));
    kept.fold(Point::new(), |point, (key, value)| point.with(key, value.clone()))
}

/// Formats a TOML value as on a command line.
fn plain(value: &toml::Value) -> String {
    match value {
        toml::Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}

fn problem(error: longhaul_sim::file::FileError) -> Problem {
    Problem::plain(error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;
    use longhaul_bench::{Basis, Source, Tolerance};

    fn all(extent: Extent) -> impl Iterator<Item = (Vec<Planned>, Experiment)> {
        names().map(move |name| {
            named(name).and_then(|declared| declared.plan(extent)).expect("a plan")
        })
    }

    #[test]
    fn every_figure_of_a_document_is_expected_or_left_out_for_a_reason() {
        for (_, experiment) in all(Extent::Whole) {
            for cell in experiment.published.iter().filter(|cell| !cell.suspect) {
                for value in cell.values.keys() {
                    let expected = experiment.expectations.iter().any(|expectation| {
                        expectation.value == *value
                            && expectation.holds_at(&cell.point)
                            && expectation.tolerance.is_relative()
                    });
                    let mut exempt = experiment.exemptions.iter();
                    let exempt = exempt
                        .any(|it| it.values.contains(value) && it.conditions.hold_at(&cell.point));
                    assert!(expected != exempt, "{}: {value} at {}", experiment.name, cell.point);
                }
            }
        }
    }

    #[test]
    fn what_is_to_be_near_a_figure_has_one_from_whoever_is_named() {
        for (_, experiment) in all(Extent::Whole) {
            let relative = experiment.expectations.iter().filter(|it| it.tolerance.is_relative());
            for expectation in relative.filter(|it| it.basis != Basis::Own) {
                let mut cells = experiment.published.iter();
                let has_one = cells.any(|cell| {
                    let is_said =
                        cell.source == Source::Published || expectation.basis == Basis::Theory;
                    is_said
                        && cell.values.contains_key(&expectation.value)
                        && expectation.holds_at(&cell.point)
                });
                assert!(has_one, "{}: {expectation}", experiment.name);
            }
        }
    }

    #[test]
    fn a_reduced_experiment_is_a_part_of_the_whole_in_which_something_is_judged() {
        for ((few, reduced), (many, whole)) in all(Extent::Reduced).zip(all(Extent::Whole)) {
            let name = &whole.name;
            assert!(
                few.len() <= many.len() && few.len() <= 150,
                "{name}: {} of {}",
                few.len(),
                many.len()
            );
            assert!(reduced.published.iter().all(|cell| whole.published.contains(cell)), "{name}");
            let is_judged = |point: &Point| whole.expectations.iter().any(|it| it.holds_at(point));
            let mut points = few.iter().map(|planned| &planned.point);
            let mut cells = reduced.published.iter().map(|cell| &cell.point);
            assert!(points.any(is_judged) || cells.any(is_judged), "{name}");
        }
    }

    #[test]
    fn runs_that_did_not_finish_are_a_percentage() {
        let table = Table::named("iown2_vm_migration").expect("a table");
        let row = table.rows().nth(3).expect("a row");
        let percent = |stress| row.finished_percent(&format!("stress_{stress}"));
        assert_eq!([0, 20, 40, 60].map(percent), [None, None, Some(50.0), Some(0.0)]);
    }

    #[test]
    fn a_gain_that_a_document_claims_is_its_figure() {
        let claims = Table::named("ntt_claims").expect("a table");
        let claim =
            claims.rows().find(|row| row.text("claim") == "accelerator_gain_512B").expect("a row");
        let frameworks = named("ntt-frameworks").expect("an experiment").experiment;
        let cell = frameworks.published.first().expect("a cell");
        assert_eq!(cell.values["gain_over_standard"], claim.number("value").expect("a number"));
        let expectation = &frameworks.expectations[0];
        assert!(
            expectation.holds_at(&cell.point)
                && matches!(expectation.tolerance, Tolerance::Percent(_))
        );
    }
}
