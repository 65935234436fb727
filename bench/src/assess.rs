//! Sources held against each other, cell by cell.

mod layout;

pub(crate) use layout::{Layout, Series};

use crate::expectation::{Basis, Expectation};
use crate::experiment::Experiment;
use crate::point::Point;
use crate::quantity::Quantity;
use crate::record::{Provenance, Record, Source};
use crate::samples::Samples;
use crate::timeline::Timeline;
use serde::{Serialize, Serializer};
use std::collections::{BTreeMap, BTreeSet};

/// What one source says of one cell.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Figure {
    /// Mean of its runs.
    pub mean: f64,
    /// Least of its runs.
    pub min: f64,
    /// Most of its runs.
    pub max: f64,
    /// How many runs: seeds of a simulation, repetitions of a measurement.
    pub runs: u32,
    /// Its runs, or where single observations were recorded, those.
    #[serde(
        rename = "statistics",
        serialize_with = "statistics",
        skip_serializing_if = "is_single"
    )]
    pub samples: Samples,
    /// A constant was fitted here.
    pub fitted: bool,
    /// What its last run noted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
}

fn statistics<S: Serializer>(samples: &Samples, serializer: S) -> Result<S::Ok, S::Error> {
    samples.statistics().serialize(serializer)
}

fn is_single(samples: &Samples) -> bool {
    samples.n() == 1
}

/// Whether a figure is what was expected.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// It is.
    Within,
    /// It is not.
    Beyond,
    /// It was expected and is not there.
    Missing,
    /// Nothing was expected.
    Unjudged,
}

/// A figure against the reference.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Judgement {
    /// Distance from the reference as a fraction of it; none without a reference, or where it is
    /// zero.
    pub deviation: Option<f64>,
    /// Whether that is close enough.
    pub verdict: Verdict,
    /// Who expects it: of several expectations, the first of [`Basis::ALL`]. None where nothing is
    /// expected.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub basis: Option<Basis>,
}

/// One value at one point.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Cell {
    /// Parameters.
    pub point: Point,
    /// Name of the value.
    pub value: String,
    /// The published figure seems wrong; nothing is judged by it.
    pub suspect: bool,
    /// By source.
    pub figures: BTreeMap<Source, Figure>,
    /// Sources whose run ended in an error, with the error. They have no figure, whatever other
    /// runs gave.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub failures: BTreeMap<Source, String>,
    /// By source; the reference has one only where something is expected of it alone.
    pub judgements: BTreeMap<Source, Judgement>,
}

impl Cell {
    /// True when agreement of `source` here proves nothing, because a constant was fitted here.
    pub fn is_fitted(&self, source: Source) -> bool {
        let fitted =
            |source| self.figures.get(&source).is_some_and(|figure: &Figure| figure.fitted);
        fitted(source) || fitted(Source::Published) || fitted(Source::Theory)
    }
}

/// Judged figures.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Counts {
    /// Close enough, and nothing was fitted there.
    pub within: usize,
    /// Close enough where a constant was fitted, which proves nothing.
    pub fitted: usize,
    /// Not close enough.
    pub beyond: usize,
    /// Expected and not there.
    pub missing: usize,
}

impl Counts {
    /// All.
    pub fn judged(&self) -> usize {
        self.within + self.fitted + self.beyond + self.missing
    }

    fn add(&mut self, other: Counts) {
        self.within += other.within;
        self.fitted += other.fitted;
        self.beyond += other.beyond;
        self.missing += other.missing;
    }
}

/// How many figures are as expected.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Tally {
    /// By whoever expects it.
    #[serde(flatten)]
    pub all: Counts,
    /// What documents say.
    pub published: Counts,
    /// What formulas say.
    pub theory: Counts,
    /// Goals of our own.
    pub own: Counts,
    /// Shown, and nothing was expected.
    pub unjudged: usize,
    /// Without a figure because a run ended in an error, expected or not.
    pub failed: usize,
}

impl Tally {
    /// Of which something was expected.
    pub fn judged(&self) -> usize {
        self.all.judged()
    }

    /// What `basis` expects.
    pub fn of(&self, basis: Basis) -> Counts {
        match basis {
            Basis::Published => self.published,
            Basis::Theory => self.theory,
            Basis::Own => self.own,
        }
    }

    fn count(&mut self, basis: Basis, counts: Counts) {
        self.all.add(counts);
        match basis {
            Basis::Published => self.published.add(counts),
            Basis::Theory => self.theory.add(counts),
            Basis::Own => self.own.add(counts),
        }
    }

    pub(crate) fn add(&mut self, other: Tally) {
        for basis in Basis::ALL {
            self.count(basis, other.of(basis));
        }
        self.unjudged += other.unjudged;
        self.failed += other.failed;
    }
}

/// Runs of one source that have the same program, seed, machine and threads.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct Runs {
    pub source: Source,
    pub records: usize,
    pub wall_s: f64,
    /// What the first of them says.
    pub first: Option<Provenance>,
    pub commands: BTreeSet<String>,
    pub seeds: BTreeSet<u64>,
    pub latest: String,
}

/// An experiment with everything that is known of it.
#[derive(Clone, Debug)]
pub struct Assessment {
    experiment: Experiment,
    reference: Option<Source>,
    sources: Vec<Source>,
    cells: Vec<Cell>,
    runs: Vec<Runs>,
    layout: Layout,
    constant_values: BTreeMap<String, f64>,
    timelines: Vec<Timeline>,
}

/// Beginnings of values' names that are shown first where an experiment has no order of its own.
const LEADING: [&str; 2] = ["goodput", "latency"];

/// Values that are the same in every cell of an experiment that does not name its values. Goodput
/// is none of them: a constant goodput is a result.
fn constant_values(experiment: &Experiment, cells: &[Cell]) -> BTreeMap<String, f64> {
    if !experiment.values.is_empty() {
        return BTreeMap::new();
    }
    let mut by_value: BTreeMap<&str, Vec<&Cell>> = BTreeMap::new();
    for cell in cells {
        by_value.entry(&cell.value).or_default().push(cell);
    }
    let points = by_value.values().map(Vec::len).max().unwrap_or(0);
    let constant = by_value.into_iter().filter_map(|(value, cells)| {
        let mut figures = cells.iter().flat_map(|cell| cell.figures.values());
        let first = figures.next()?;
        let is_plain = |cell: &&Cell| {
            cell.failures.is_empty() && cell.judgements.values().all(|j| j.basis.is_none())
        };
        let is_same = |figure: &Figure| {
            figure.mean == first.mean && figure.note.is_none() && figure.min == figure.max
        };
        let is_constant = points > 1
            && cells.len() == points
            && !value.starts_with(LEADING[0])
            && is_same(first)
            && figures.all(is_same)
            && cells.iter().all(is_plain);
        is_constant.then(|| (value.to_owned(), first.mean))
    });
    constant.collect()
}

/// What all sources say of one cell.
#[derive(Debug, Default)]
struct Gathered {
    figures: BTreeMap<Source, Figure>,
    failures: BTreeMap<Source, String>,
}

impl Assessment {
    /// Holds `records` against each other and against the published cells of `experiment`. Records
    /// of other experiments are left out. Of simulations with one seed, predictions and published
    /// figures at one point, the last counts; simulations with several seeds and measurements are
    /// averaged.
    pub fn new(experiment: &Experiment, records: &[Record]) -> Self {
        let mut all: Vec<Record> = experiment.published_records().collect();
        all.extend(records.iter().filter(|r| r.experiment == experiment.name).cloned());
        let gathered = gather(&all);
        let points: Vec<&Point> = all.iter().map(|record| &record.point).collect();
        let layout = Layout::new(experiment, &points);
        let of = |cell: &Gathered| {
            [cell.figures.keys().copied().collect(), cell.failures.keys().copied().collect()]
        };
        let present: BTreeSet<Source> =
            gathered.values().flat_map(of).flat_map(|sources: Vec<Source>| sources).collect();
        let preferred = [Source::Published, Source::Theory, Source::Measured, Source::Simulated];
        // Simulations alone are what is judged, not what others are held against.
        let serves = |source: &Source| {
            present.contains(source) && (*source != Source::Simulated || present.len() > 1)
        };
        let reference = experiment.reference.or_else(|| preferred.into_iter().find(serves));
        let judge = Judge { experiment, reference, present: &present };
        let mut cells: Vec<Cell> =
            gathered.into_iter().map(|((value, point), of)| judge.cell(value, point, of)).collect();
        let shown = &experiment.values;
        cells.retain(|cell| shown.is_empty() || shown.contains(&cell.value));
        let place = |cell: &Cell| match shown.iter().position(|value| *value == cell.value) {
            Some(place) => place,
            None => {
                LEADING.iter().position(|name| cell.value.starts_with(name)).unwrap_or(usize::MAX)
            }
        };
        cells.sort_by_cached_key(|cell| {
            (place(cell), cell.value.clone(), layout.order(&cell.point))
        });
        let constant_values = constant_values(experiment, &cells);
        let sources = Source::ALL.into_iter().filter(|source| present.contains(source)).collect();
        Assessment {
            experiment: experiment.clone(),
            reference,
            sources,
            cells,
            runs: runs(&all),
            layout,
            constant_values,
            timelines: Timeline::of(&all),
        }
    }

    /// Series over time of single runs.
    pub(crate) fn timelines(&self) -> &[Timeline] {
        &self.timelines
    }

    /// What it is about.
    pub fn experiment(&self) -> &Experiment {
        &self.experiment
    }

    /// What the others are held against.
    pub fn reference(&self) -> Option<Source> {
        self.reference
    }

    /// Who has figures, in the order of columns.
    pub fn sources(&self) -> &[Source] {
        &self.sources
    }

    /// Cells: by value, then series, then row.
    pub fn cells(&self) -> &[Cell] {
        &self.cells
    }

    /// How many figures are as expected.
    pub fn tally(&self) -> Tally {
        let mut tally = Tally::default();
        for cell in &self.cells {
            tally.failed += cell.failures.len();
            for (source, judgement) in &cell.judgements {
                let Some(basis) = judgement.basis else {
                    tally.unjudged += usize::from(cell.figures.contains_key(source));
                    continue;
                };
                let (mut counts, one) = (Counts::default(), 1);
                match judgement.verdict {
                    Verdict::Within if cell.is_fitted(*source) => counts.fitted = one,
                    Verdict::Within => counts.within = one,
                    Verdict::Beyond => counts.beyond = one,
                    Verdict::Missing => counts.missing = one,
                    Verdict::Unjudged => {}
                }
                tally.count(basis, counts);
            }
        }
        tally
    }

    /// True when nothing is off or missing. Something that was expected of nobody who is there is
    /// off too.
    pub fn is_met(&self) -> bool {
        let tally = self.tally();
        let expects = !self.experiment.expectations.is_empty();
        tally.all.beyond == 0 && tally.all.missing == 0 && (!expects || tally.judged() > 0)
    }

    /// The judged figure that lies farthest from its reference.
    pub fn worst(&self) -> Option<(&Cell, Source, f64)> {
        let all = self.cells.iter().flat_map(|cell| {
            let judged = cell.judgements.iter().filter(|(_, j)| j.verdict != Verdict::Unjudged);
            judged.filter_map(move |(source, j)| Some((cell, *source, j.deviation?)))
        });
        all.max_by(|a, b| a.2.abs().total_cmp(&b.2.abs()))
    }

    pub(crate) fn runs(&self) -> &[Runs] {
        &self.runs
    }

    pub(crate) fn layout(&self) -> &Layout {
        &self.layout
    }

    /// Names of values, in the order in which they are shown, less those that are the same
    /// everywhere.
    pub(crate) fn values(&self) -> Vec<&str> {
        let mut values: Vec<&str> = self.cells.iter().map(|cell| cell.value.as_str()).collect();
        values.dedup();
        values.retain(|value| !self.constant_values.contains_key(*value));
        values
    }

    /// Parameters and values that are the same everywhere, for people.
    pub(crate) fn constants(&self) -> String {
        let value = |(key, figure): (&String, &f64)| {
            format!("{} {}", self.layout.name(key), Quantity::of(key).humanised(*figure))
        };
        let values = self.constant_values.iter().map(value);
        let parts: Vec<String> = [self.layout.constants()].into_iter().chain(values).collect();
        parts.into_iter().filter(|part| !part.is_empty()).collect::<Vec<_>>().join(", ")
    }

    /// What made the figures, and when, in one line.
    pub(crate) fn origin(&self) -> String {
        let of = |runs: &Runs| {
            let by = runs.first.as_ref().map(|first| format!(" by longhaul {}", first.longhaul));
            let at = runs.latest.split('T').next().filter(|day| !day.is_empty());
            let at = at.map(|day| format!(", {day}")).unwrap_or_default();
            format!("{}{}{at}", runs.source.name(), by.unwrap_or_default())
        };
        let experiment = &self.experiment;
        let title = if experiment.title.is_empty() { &experiment.name } else { &experiment.title };
        let parts: Vec<String> = self.runs.iter().map(of).collect();
        format!("{title} · {}", parts.join("; "))
    }
}

struct Judge<'a> {
    experiment: &'a Experiment,
    reference: Option<Source>,
    present: &'a BTreeSet<Source>,
}

impl Judge<'_> {
    fn cell(&self, value: String, point: Point, of: Gathered) -> Cell {
        let Gathered { figures, failures } = of;
        let suspect = self.experiment.is_suspect(&point, &value);
        let is_of =
            |expectation: &&Expectation| expectation.value == value && expectation.holds_at(&point);
        let expectations: Vec<&Expectation> =
            self.experiment.expectations.iter().filter(is_of).collect();
        let against =
            self.reference.and_then(|source| figures.get(&source)).map(|figure| figure.mean);
        // What should be held against a run that ended in an error is owed, not excused.
        let is_reference_owed = self.reference.is_some_and(|source| failures.contains_key(&source));
        let has_reference = (against.is_some() || is_reference_owed) && !suspect;
        let mut judgements = BTreeMap::new();
        for source in Source::ALL {
            let expected = expectations.iter().copied().filter(|expectation| {
                expectation.judges(source, self.reference)
                    && (has_reference || !expectation.tolerance.is_relative())
            });
            let expected: Vec<&Expectation> = expected.collect();
            let basis = expected.iter().map(|expectation| expectation.basis).min();
            let is_shown = figures.contains_key(&source) && Some(source) != self.reference;
            // Expected of everybody means everybody who has figures at all.
            let is_elsewhere =
                !self.present.contains(&source) && expected.iter().all(|e| e.sources.is_empty());
            if basis.is_none() && !is_shown || is_elsewhere {
                continue;
            }
            let is_owed = is_reference_owed && expected.iter().any(|e| e.tolerance.is_relative());
            let is_met =
                |figure, e: &&Expectation| e.tolerance.is_met(figure, against.unwrap_or(f64::NAN));
            let verdict = match figures.get(&source).map(|figure| figure.mean) {
                _ if basis.is_none() => Verdict::Unjudged,
                None => Verdict::Missing,
                Some(_) if is_owed => Verdict::Missing,
                Some(figure) if expected.iter().all(|e| is_met(figure, e)) => Verdict::Within,
                Some(_) => Verdict::Beyond,
            };
            let figure = figures.get(&source).map(|figure| figure.mean);
            let deviation =
                figure.zip(against).and_then(|(figure, against)| deviation(figure, against));
            let deviation = deviation.filter(|_| Some(source) != self.reference);
            judgements.insert(source, Judgement { deviation, verdict, basis });
        }
        Cell { point, value, suspect, figures, failures, judgements }
    }
}

/// Distance from `reference` as a fraction of it.
pub(crate) fn deviation(figure: f64, reference: f64) -> Option<f64> {
    match reference {
        _ if figure == reference => Some(0.0),
        0.0 => None,
        _ => Some((figure - reference) / reference.abs()),
    }
}

/// What each source says of each value at each point.
fn gather(records: &[Record]) -> BTreeMap<(String, Point), Gathered> {
    // What is repeated and what is replaced: runs are told apart by this.
    let run = |index: usize, record: &Record| match record.source {
        Source::Measured => index as u64,
        Source::Simulated => record.seed().unwrap_or(0),
        Source::Published | Source::Theory | Source::Predicted => 0,
    };
    type Runs<'a> = BTreeMap<u64, (Result<f64, &'a str>, &'a Record)>;
    let mut all: BTreeMap<(String, Point), BTreeMap<Source, Runs>> = BTreeMap::new();
    for (index, record) in records.iter().enumerate() {
        let figures = record.values.iter().map(|(value, figure)| (value, Ok(*figure)));
        let means = record.samples.iter().filter_map(|(value, samples)| {
            let is_new = !record.values.contains_key(value);
            Samples::new(samples.iter().copied())
                .filter(|_| is_new)
                .map(|all| (value, Ok(all.mean())))
        });
        let failures = record.failed.iter().map(|(value, why)| (value, Err(why.as_str())));
        for (value, figure) in figures.chain(means).chain(failures) {
            let cell = all.entry((value.clone(), record.point.clone())).or_default();
            cell.entry(record.source).or_default().insert(run(index, record), (figure, record));
        }
    }
    let figure = |value: &str, runs: &Runs| {
        let figures = Samples::new(runs.values().filter_map(|(figure, _)| figure.ok()))?;
        let of_runs = runs.values().filter_map(|(_, record)| record.samples.get(value));
        Some(Figure {
            mean: figures.mean(),
            min: figures.min(),
            max: figures.max(),
            runs: runs.len() as u32,
            samples: Samples::new(of_runs.flatten().copied()).unwrap_or(figures),
            fitted: runs.values().any(|(_, record)| record.fitted),
            note: runs.values().rev().find_map(|(_, record)| record.note.clone()),
        })
    };
    let mut cells = BTreeMap::new();
    for (cell, sources) in all {
        let mut gathered = Gathered::default();
        for (source, runs) in sources {
            let mut failures = runs.values().filter_map(|(figure, _)| figure.err());
            match failures.next() {
                None => {
                    gathered.figures.extend(figure(&cell.0, &runs).map(|figure| (source, figure)))
                }
                Some(why) if runs.len() == 1 => {
                    drop(gathered.failures.insert(source, why.to_owned()))
                }
                Some(why) => {
                    let failed = format!("{} of {} runs: {why}", 1 + failures.count(), runs.len());
                    gathered.failures.insert(source, failed);
                }
            }
        }
        cells.insert(cell, gathered);
    }
    cells
}

fn runs(records: &[Record]) -> Vec<Runs> {
    let mut all: Vec<Runs> = Vec::new();
    for record in records {
        let same = |runs: &&mut Runs| {
            let key = |p: &Option<Provenance>| {
                p.as_ref().map(|p| (p.longhaul.clone(), p.host.clone(), p.threads))
            };
            runs.source == record.source && key(&runs.first) == key(&record.provenance)
        };
        let runs = match all.iter_mut().find(same) {
            Some(runs) => runs,
            None => {
                all.push(Runs {
                    source: record.source,
                    records: 0,
                    wall_s: 0.0,
                    first: record.provenance.clone(),
                    commands: BTreeSet::new(),
                    seeds: BTreeSet::new(),
                    latest: String::new(),
                });
                let last = all.len() - 1;
                &mut all[last]
            }
        };
        runs.records += 1;
        if let Some(provenance) = &record.provenance {
            runs.wall_s += provenance.wall_s;
            runs.seeds.extend(provenance.seed);
            runs.commands.insert(provenance.command.clone());
            if provenance.started_at > runs.latest {
                runs.latest.clone_from(&provenance.started_at);
            }
        }
    }
    all.sort_by_key(|runs| runs.source);
    all
}

#[cfg(test)]
mod tests;
