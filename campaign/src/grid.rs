//! The grid of a campaign: axes, points, and the order of runs.

use crate::executor::Executor;
use crate::file::{Campaign, FileError, FileFault, Order};
use crate::program::Program;
use longhaul_bench::{Point as Place, Scalar};
use longhaul_units::{Rng, SplitMix64};

/// Largest number of runs of a campaign.
const RUNS_MAX: u64 = 1_000_000;

/// A value of an axis.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Value {
    /// As commands have it.
    pub text: String,
    /// As results have it.
    pub scalar: Scalar,
}

/// A parameter with the values that a campaign measures.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Axis {
    /// Its name: a placeholder of commands, a setting of the executor's paths, or both.
    pub key: String,
    /// Its values, at least one.
    pub values: Vec<Value>,
    /// Line of the file, from 1.
    pub line: usize,
}

/// Values by name, in the order of the file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Settings(Vec<(String, Value)>);

impl Settings {
    /// The value of `key`.
    pub fn get(&self, key: &str) -> Option<&Value> {
        self.0.iter().find(|(known, _)| known == key).map(|(_, value)| value)
    }

    /// Names and values.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &Value)> {
        self.0.iter().map(|(key, value)| (key.as_str(), value))
    }
}

impl FromIterator<(String, Value)> for Settings {
    fn from_iter<T: IntoIterator<Item = (String, Value)>>(pairs: T) -> Self {
        Settings(pairs.into_iter().collect())
    }
}

/// A point of the grid.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Point {
    /// Index of its program.
    pub program: usize,
    /// Settings of its path.
    pub path: Settings,
    /// Values of the placeholders of its commands.
    pub settings: Settings,
    /// Parameters of its results.
    pub place: Place,
}

/// A run of a point.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Run {
    /// Index of the point.
    pub point: usize,
    /// Number of the repeat, from 1.
    pub repeat: u32,
}

impl Campaign {
    /// All distinct points, program by program, the last axis fastest. A program has points along
    /// the axes of its commands and of the executor's paths only.
    ///
    /// # Errors
    /// An axis that nothing uses, a setting that the executor refuses, or too many points.
    pub fn points(&self, executor: &dyn Executor) -> Result<Vec<Point>, FileError> {
        self.check_axes(executor)?;
        let mut points: Vec<Point> = Vec::new();
        for (index, program) in self.programs.iter().enumerate() {
            let axes = self.axes_of(program, executor);
            let counts = axes.iter().map(|axis| axis.values.len() as u64);
            let count = counts.fold(u64::from(self.repeats), u64::saturating_mul);
            if count > RUNS_MAX {
                return Err(self.error(program.line, FileFault::TooMany { runs: count }));
            }
            let count = axes.iter().map(|axis| axis.values.len()).product();
            for number in 0..count {
                let settings = choice(&axes, number);
                points.push(self.point(index, program, settings, executor)?);
            }
        }
        Ok(points)
    }

    fn point(
        &self,
        index: usize,
        program: &Program,
        settings: Settings,
        executor: &dyn Executor,
    ) -> Result<Point, FileError> {
        let of_path = settings.iter().filter(|(key, _)| executor.takes(key));
        let path: Settings = of_path.map(|(key, value)| (key.to_owned(), value.clone())).collect();
        let parameters = executor.parameters(&path).map_err(|refusal| {
            let why = refusal.to_string();
            self.error(self.line_of(&path, &why), FileFault::Setting { why })
        })?;
        let others = settings.iter().filter(|(key, _)| !executor.takes(key));
        let mut place = Place::new().with("program", program.name.as_str());
        for (key, value) in &self.labels {
            place = place.with(key, value.scalar.clone());
        }
        for (key, value) in parameters.iter() {
            place = place.with(key, value.clone());
        }
        for (key, value) in others {
            place = place.with(key, value.scalar.clone());
        }
        Ok(Point { program: index, path, settings, place })
    }

    /// The line of the setting that `why` names, or else of the first.
    fn line_of(&self, path: &Settings, why: &str) -> usize {
        let axes = || self.constants.iter().chain(self.all_axes());
        let named = axes().find(|axis| {
            let option = axis.key.replace('_', "-");
            let names = [format!("--{option}"), format!("'{}'", axis.key)];
            path.get(&axis.key).is_some() && names.iter().any(|name| why.contains(name))
        });
        named.or_else(|| axes().find(|axis| path.get(&axis.key).is_some())).map_or(1, |a| a.line)
    }

    /// The axes of all programs and of each.
    fn all_axes(&self) -> impl Iterator<Item = &Axis> {
        self.axes.iter().chain(self.programs.iter().flat_map(|program| &program.axes))
    }

    /// The axes along which a program has points: its own replace the file's, and these the
    /// constants.
    fn axes_of<'a>(&'a self, program: &'a Program, executor: &dyn Executor) -> Vec<&'a Axis> {
        let find = |axes: &'a [Axis], key: &str| axes.iter().find(|axis| axis.key == key);
        let all = self.constants.iter().chain(&self.axes).chain(&program.axes);
        let mut axes: Vec<&Axis> = Vec::new();
        for axis in all.filter(|axis| program.uses(&axis.key) || executor.takes(&axis.key)) {
            if find_by_key(&axes, &axis.key).is_none() {
                let of_all = find(&program.axes, &axis.key).or_else(|| find(&self.axes, &axis.key));
                axes.push(of_all.unwrap_or(axis));
            }
        }
        axes
    }

    /// Fails for an axis that is no placeholder and no setting, and for a placeholder that is no
    /// axis.
    fn check_axes(&self, executor: &dyn Executor) -> Result<(), FileError> {
        if let Some(axis) = self.constants.iter().find(|axis| !executor.takes(&axis.key)) {
            let fault = FileFault::UnknownSetting { key: axis.key.clone() };
            return Err(self.error(axis.line, fault));
        }
        let unused = |axis: &Axis, programs: &[&Program]| {
            !executor.takes(&axis.key) && programs.iter().all(|program| !program.uses(&axis.key))
        };
        let all: Vec<&Program> = self.programs.iter().collect();
        let of_all = self.axes.iter().filter(|axis| unused(axis, &all));
        let own = self
            .programs
            .iter()
            .flat_map(|program| program.axes.iter().filter(move |axis| unused(axis, &[program])));
        if let Some(axis) = of_all.chain(own).next() {
            return Err(self.error(axis.line, FileFault::UnusedAxis { key: axis.key.clone() }));
        }
        for program in &self.programs {
            let axes = self.axes_of(program, executor);
            let mut names = program.placeholders();
            if let Some(name) = names.find(|name| find_by_key(&axes, name).is_none()) {
                let fault = FileFault::NoAxis { name: name.to_owned() };
                return Err(self.error(program.line, fault));
            }
        }
        Ok(())
    }

    /// All runs, in the order in which they are made: one round per repeat, so that a drift of the
    /// machine meets all points alike. Runs of one path follow each other.
    pub fn runs(&self, points: &[Point]) -> Vec<Run> {
        let mut paths: Vec<(&Settings, Vec<usize>)> = Vec::new();
        for (index, point) in points.iter().enumerate() {
            match paths.iter_mut().find(|(path, _)| **path == point.path) {
                Some((_, members)) => members.push(index),
                None => paths.push((&point.path, vec![index])),
            }
        }
        let mut runs = Vec::new();
        let mut rng = SplitMix64::new(self.seed);
        for repeat in 1..=self.repeats {
            if self.order == Order::Random {
                shuffle(&mut paths, &mut rng);
            }
            for (_, members) in &mut paths {
                if self.order == Order::Random {
                    shuffle(members, &mut rng);
                }
                runs.extend(members.iter().map(|&point| Run { point, repeat }));
            }
        }
        runs
    }
}

fn find_by_key<'a>(axes: &[&'a Axis], key: &str) -> Option<&'a Axis> {
    axes.iter().find(|axis| axis.key == key).copied()
}

/// The `number`th combination, the last axis fastest.
fn choice(axes: &[&Axis], mut number: usize) -> Settings {
    let mut settings: Vec<(String, Value)> = Vec::new();
    for axis in axes.iter().rev() {
        settings.push((axis.key.clone(), axis.values[number % axis.values.len()].clone()));
        number /= axis.values.len();
    }
    settings.into_iter().rev().collect()
}

/// Shuffles as Fisher and Yates do.
fn shuffle<T>(items: &mut [T], rng: &mut SplitMix64) {
    for last in (1..items.len()).rev() {
        items.swap(last, rng.below(last as u64 + 1) as usize);
    }
}

#[cfg(test)]
mod tests;
