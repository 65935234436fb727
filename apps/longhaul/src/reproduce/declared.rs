//! Experiments as labs/experiments declares them.

use crate::problem::Problem;
use longhaul_bench::{Experiment, Point, PublishedCell, Scalar};
use longhaul_sim::file::{Axis, ParameterValue, ScenarioFile};
use serde::Deserialize;
use std::collections::BTreeMap;

macro_rules! embedded {
    ($folder:literal, $extension:literal: $($name:literal)*) => {
        &[$(($name, include_str!(concat!("../../../../labs/", $folder, "/", $name, $extension)))),*]
    };
}

/// The experiments that come with the program, in the order of the report.
const EXPERIMENTS: &[(&str, &str)] = embedded!("experiments", ".toml":
    "ntt-distance" "ntt-frameworks" "iown-c1" "iown-d1" "step1" "step1-reads" "go-back-n" "lossy-wan" "ceiling" "power" "planner-grid"
);

/// Published tables.
const TABLES: &[(&str, &str)] = embedded!("published", ".csv":
    "go_back_n" "iown1_power" "iown1_step1_claims" "iown2_c1_throughput_380km" "iown2_d1_latency_380km" "ntt_claims"
    "ntt_distance_throughput" "thesis_results"
);

/// What people call keys of a scenario.
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
    ("read", "READ"),
    ("send", "SEND"),
    ("write", "WRITE"),
];

/// An experiment: what it is about, and the runs that it consists of.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Declared {
    /// What is shown and expected.
    pub experiment: Experiment,
    /// A scenario file that all runs change something of.
    #[serde(default)]
    scenario: toml::Table,
    /// The runs.
    #[serde(default, rename = "run")]
    runs: Vec<Run>,
    /// Claims of a document that are arithmetic and no simulation.
    #[serde(default, rename = "arithmetic")]
    pub arithmetic: Vec<Arithmetic>,
}

/// Some points.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Run {
    /// What others call it.
    #[serde(default)]
    pub name: String,
    /// Parameters of its points that are names alone.
    #[serde(default)]
    point: BTreeMap<String, Scalar>,
    /// Keys of the scenario.
    #[serde(default)]
    set: BTreeMap<String, toml::Value>,
    /// Keys of the scenario that vary, as for `longhaul sweep`.
    #[serde(default)]
    vary: BTreeMap<String, String>,
    /// Published figures to vary by.
    published: Option<Rows>,
    /// The runs by whose goodput at the same values of what varies its own is divided: values `gain_over_NAME`.
    #[serde(default)]
    pub against: Vec<String>,
    /// Keep the best of the points that agree in these parameters, which are then its only ones.
    pub best_by: Option<Vec<String>>,
    /// Each point so many times, with seeds from 1 on, of which the mean counts.
    #[serde(default = "once")]
    repeat: u64,
    /// Not asked of the planner.
    #[serde(default)]
    pub simulated_only: bool,
}

/// Rows of a published table.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Rows {
    /// Which table.
    table: String,
    /// Rows in which each of these columns is this.
    #[serde(default, rename = "where")]
    only: BTreeMap<String, String>,
    /// The column that varies a key of the scenario, the key, and what is written behind the number.
    column: Option<String>,
    key: Option<String>,
    #[serde(default)]
    unit: String,
    /// The column of figures, the value that they are, and what makes them base units.
    figure: String,
    value: String,
    #[serde(default = "one")]
    times: f64,
    /// Rows that a constant was fitted on.
    #[serde(default)]
    fitted: Vec<f64>,
    /// Rows in which the document seems wrong, and why.
    #[serde(default)]
    suspect: BTreeMap<String, String>,
}

fn one() -> f64 {
    1.0
}

fn once() -> u64 {
    1
}

/// A product and quotient of a table's cells: what a claim says of them.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Arithmetic {
    /// Which table, and the column that names its rows.
    table: String,
    rows: String,
    /// The column of what is claimed, and what results call it.
    claim: String,
    value: String,
    /// Columns that are multiplied.
    product: Vec<String>,
    /// Columns that it is divided by.
    #[serde(default)]
    by: Vec<String>,
    /// The quotient is taken from 1 and given in percent.
    #[serde(default)]
    reduction_percent: bool,
}

/// A point to run.
#[derive(Clone, Debug)]
pub struct Planned {
    /// Where its figures lie.
    pub point: Point,
    /// What varies, as set: points of different runs with the same are each other's counterparts.
    pub varied: Vec<String>,
    /// The run that it is of.
    pub run: usize,
    /// The scenario with everything set.
    pub scenario: ScenarioFile,
    /// A constant was fitted here.
    pub fitted: bool,
}

/// Names of the experiments.
pub fn names() -> impl Iterator<Item = &'static str> {
    EXPERIMENTS.iter().map(|(name, _)| *name)
}

/// The experiment of this name.
pub fn named(name: &str) -> Result<Declared, Problem> {
    let Some((_, text)) = EXPERIMENTS.iter().find(|(known, _)| *known == name) else {
        let known: Vec<_> = names().collect();
        return Err(Problem::new(
            format!("no experiment is called '{name}'"),
            format!("there are {}", known.join(", ")),
        ));
    };
    toml::from_str(text).map_err(|error| Problem::plain(format!("experiment {name}: {error}")))
}

impl Declared {
    /// The runs.
    pub fn runs(&self) -> &[Run] {
        &self.runs
    }

    /// All points, and the experiment with its published cells.
    pub fn plan(&self) -> Result<(Vec<Planned>, Experiment), Problem> {
        let mut experiment = self.experiment.clone();
        for (key, label) in LABELS {
            experiment.labels.entry((*key).to_owned()).or_insert_with(|| (*label).to_owned());
        }
        let mut points = Vec::new();
        for (number, run) in self.runs.iter().enumerate() {
            let text = toml::to_string(&self.scenario).map_err(|e| Problem::plain(e.to_string()))?;
            let mut base = ScenarioFile::parse(&experiment.name, &text).map_err(problem)?;
            for (key, value) in &run.set {
                base.set(key, &plain(value)).map_err(problem)?;
            }
            let own =
                run.point.iter().fold(Point::new(), |point, (key, value)| point.with(key, value.clone()));
            let start =
                Planned { point: own, varied: Vec::new(), run: number, scenario: base, fitted: false };
            let mut of_run = vec![start];
            for (key, values) in &run.vary {
                of_run = vary(of_run, key, values)?;
            }
            if let Some(rows) = &run.published {
                of_run = rows.apply(of_run, run.best_by.as_deref(), &mut experiment)?;
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
}

/// Each point with each value of one more key.
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
    /// Each point with each row, whose figures become published cells.
    fn apply(
        &self,
        points: Vec<Planned>,
        best_by: Option<&[String]>,
        experiment: &mut Experiment,
    ) -> Result<Vec<Planned>, Problem> {
        let table = Table::named(&self.table)?;
        let mut all = Vec::new();
        for row in table.rows().filter(|row| self.only.iter().all(|(column, is)| row.text(column) == is)) {
            let figure = row.number(&self.figure)?;
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
                let at = best_by.map_or_else(|| planned.point.clone(), |keys| only(&planned.point, keys));
                let cell = PublishedCell::new(at, &self.value, figure * self.times);
                let suspect = x.and_then(|x| self.suspect.get(x));
                let cell = match suspect {
                    Some(why) => cell.suspect(why),
                    None => cell,
                };
                if !experiment.published.contains(&cell) {
                    experiment.published.push(cell);
                }
                all.push(planned);
            }
        }
        if all.is_empty() {
            let table = &self.table;
            return Err(Problem::plain(format!("{}: no row of {table} fits", experiment.name)));
        }
        Ok(all)
    }
}

impl Arithmetic {
    /// By row: its name, what is claimed, and what the other cells make of it.
    fn rows(&self) -> Result<Vec<(Point, f64, f64)>, Problem> {
        let table = Table::named(&self.table)?;
        let mut rows = Vec::new();
        for row in table.rows() {
            let times = |columns: &[String]| {
                columns.iter().try_fold(1.0, |product, column| Ok(product * row.number(column)?))
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

    /// What comes out, by point: the value's name and the figure.
    pub fn results(&self) -> Result<Vec<(Point, &str, f64)>, Problem> {
        let rows = self.rows()?;
        Ok(rows.into_iter().map(|(point, _, result)| (point, self.value.as_str(), result)).collect())
    }
}

/// A point with these parameters alone.
pub fn only(point: &Point, keys: &[String]) -> Point {
    let kept = point.iter().filter(|(key, _)| keys.iter().any(|wanted| wanted == key));
    kept.fold(Point::new(), |point, (key, value)| point.with(key, value.clone()))
}

/// A value of TOML as it is written at a command line.
fn plain(value: &toml::Value) -> String {
    match value {
        toml::Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}

fn problem(error: longhaul_sim::file::FileError) -> Problem {
    Problem::plain(error.to_string())
}

/// A published table.
struct Table {
    name: String,
    /// Cells by column.
    rows: Vec<BTreeMap<String, String>>,
}

/// One of its rows.
struct Row<'a> {
    table: &'a Table,
    cells: &'a BTreeMap<String, String>,
}

impl Table {
    fn named(name: &str) -> Result<Self, Problem> {
        let found = TABLES.iter().find(|(known, _)| *known == name);
        let (_, text) =
            found.ok_or_else(|| Problem::plain(format!("no published table is called {name}")))?;
        let mut reader = csv::ReaderBuilder::new().comment(Some(b'#')).from_reader(text.as_bytes());
        let rows: Result<_, csv::Error> = reader.deserialize().collect();
        let rows = rows.map_err(|error| Problem::plain(format!("table {name}: {error}")))?;
        Ok(Table { name: name.to_owned(), rows })
    }

    fn rows(&self) -> impl Iterator<Item = Row<'_>> {
        self.rows.iter().map(|cells| Row { table: self, cells })
    }
}

impl<'a> Row<'a> {
    /// A cell; nothing where there is no such column.
    fn text(&self, column: &str) -> &'a str {
        self.cells.get(column).map_or("", String::as_str)
    }

    /// A number, or the sum of several with plus signs between.
    fn number(&self, column: &str) -> Result<f64, Problem> {
        let text = self.text(column);
        let parts: Result<Vec<f64>, _> = text.split('+').map(|part| part.trim().parse()).collect();
        let name = &self.table.name;
        let wrong = |_| Problem::plain(format!("{name}: '{text}' in column {column} is no number"));
        Ok(parts.map_err(wrong)?.iter().sum())
    }
}
