//! The file of a campaign.

use crate::executor::{Side, SshHosts};
use crate::grid::{Axis, Value};
use crate::parser::PatternError;
use crate::program::{Commands, Program};
use crate::published::Published;
use crate::store::Digest;
use crate::template::TemplateError;
use longhaul_bench::{Document, Experiment, Scalar};
use longhaul_units::size_bytes;
use serde::Deserialize;
use std::collections::BTreeMap;
use std::time::Duration;
use thiserror::Error;
use toml::Spanned;

/// Longest time of a point, in seconds: a week.
const SECONDS_MAX: f64 = 604_800.0;

/// Shortest interval of samples, in milliseconds.
const SAMPLE_MS_MIN: f64 = 1.0;

/// A campaign, as its file declares it.
#[derive(Clone, Debug)]
pub struct Campaign {
    /// What it is about; its name is that of its results.
    pub experiment: Experiment,
    /// Runs of each point.
    pub repeats: u32,
    /// Seed of the order.
    pub seed: u64,
    /// Order of the runs.
    pub order: Order,
    /// Runs after a path was set up that are not recorded.
    pub warm_up: u32,
    /// Pause after each run.
    pub cool_down: Duration,
    /// Longest time of a run.
    pub limit: Duration,
    /// Further attempts at a run that fails.
    pub retries: u32,
    /// Interval at which the threads of programs are sampled, if they are.
    pub sample: Option<Duration>,
    /// Seconds for which powertop measures each run, if it does.
    pub powertop_s: Option<u32>,
    /// True if the time of clients in lab hosts is split among their verbs calls.
    pub times_calls: bool,
    /// Where the runs are.
    pub site: Site,
    /// Programs, at least one.
    pub programs: Vec<Program>,
    /// Tables beside which its results stand.
    pub published: Vec<Published>,
    /// Parameters of all results that neither a path nor a program has.
    pub(crate) labels: Vec<(String, Value)>,
    pub(crate) constants: Vec<Axis>,
    pub(crate) axes: Vec<Axis>,
    file: String,
}

/// Where the runs of a campaign are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Site {
    /// On this machine.
    Machine,
    /// In labs.
    Lab,
    /// On other hosts.
    Ssh(SshHosts),
    /// On hosts that the file leaves to its user.
    Unnamed,
}

impl Site {
    /// Texts that identify it.
    fn identity(&self) -> impl Iterator<Item = &str> {
        let (name, hosts) = match self {
            Site::Machine => ("machine", None),
            Site::Lab => ("lab", None),
            Site::Ssh(hosts) => ("ssh", Some(hosts)),
            Site::Unnamed => ("ssh", None),
        };
        std::iter::once(name).chain(hosts.into_iter().flat_map(SshHosts::identity))
    }
}

/// Order of runs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Order {
    /// By the seed.
    #[default]
    Random,
    /// As the file lists programs and values.
    Listed,
}

/// A file that is no campaign.
#[derive(Debug, Error)]
#[error("{file}:{line}: {fault}")]
pub struct FileError {
    /// Name of the file.
    pub file: String,
    /// Line, from 1.
    pub line: usize,
    /// What is wrong there.
    #[source]
    pub fault: FileFault,
}

/// What is wrong with a file.
#[derive(Debug, Error)]
pub enum FileFault {
    /// Not TOML, or a key that is unknown, missing or of another type.
    #[error("{0}")]
    Syntax(String),
    /// Not a name of an experiment.
    #[error("\"{0}\" is no name: use letters, digits, '.', '_' and '-', and begin with no '.'")]
    Name(String),
    /// A number out of bounds.
    #[error("'{key}' must be from {least} to {most}")]
    Bounds {
        /// The key.
        key: &'static str,
        /// Smallest value.
        least: f64,
        /// Largest value.
        most: f64,
    },
    /// No `[[program]]`.
    #[error("no program: add a [[program]] with a 'name' and a 'client'")]
    NoProgram,
    /// Two programs of one name.
    #[error("two programs are called \"{0}\": give each its own name")]
    SameName(String),
    /// A command that cannot be split into words.
    #[error(transparent)]
    Command(#[from] TemplateError),
    /// No parser is known for a program.
    #[error(
        "the output of '{0}' is unknown: give a 'pattern', or the name of a 'parser' (perftest, \
         qperf, iperf3, fio, ingest)"
    )]
    UnknownProgram(String),
    /// A parser that does not exist.
    #[error("no parser is called \"{0}\": use perftest, qperf, iperf3, fio, ingest or a 'pattern'")]
    UnknownParser(String),
    /// Keys that are for programs of which the campaign makes the whole command.
    #[error("'{0}' is for commands with a 'pattern' or 'parser': remove it, or add one of these")]
    OfCommand(&'static str),
    /// A pattern that cannot be used.
    #[error(transparent)]
    Pattern(#[from] PatternError),
    /// A pattern and a parser.
    #[error("'pattern' and 'parser' exclude each other: remove one")]
    TwoParsers,
    /// Units without a pattern.
    #[error("'units' are those of a 'pattern''s groups: add a 'pattern', or remove them")]
    UnitsAlone,
    /// An axis without values.
    #[error("'{key}' has no values: list at least one")]
    NoValues {
        /// Name of the axis.
        key: String,
    },
    /// A value that its axis cannot have.
    #[error("'{key}' cannot be {value}: {why}")]
    Value {
        /// Name of the axis.
        key: String,
        /// The value.
        value: String,
        /// Why not.
        why: String,
    },
    /// A placeholder without an axis.
    #[error("no axis is called '{name}': add it to [axes], or write '{{{{' for a brace")]
    NoAxis {
        /// The placeholder.
        name: String,
    },
    /// An axis that changes nothing.
    #[error("nothing uses the axis '{key}': write {{{key}}} in a command, or remove it")]
    UnusedAxis {
        /// Name of the axis.
        key: String,
    },
    /// A key of `[lab]` that no lab has.
    #[error("a lab has no setting '{key}': its settings are the options of 'longhaul lab up'")]
    UnknownSetting {
        /// The key.
        key: String,
    },
    /// The executor refuses the settings of a path.
    #[error("{why}")]
    Setting {
        /// The executor's words.
        why: String,
    },
    /// `[ssh]` and `[lab]`.
    #[error("'[lab]' and '[ssh]' exclude each other: remove one")]
    TwoSites,
    /// `[ssh]` that names no hosts.
    #[error("{0}: write clients = [\"HOST\"] and servers = [\"HOST\"]")]
    Hosts(String),
    /// A name of `[reduced]` that no axis has.
    #[error("no axis is called '{0}': [reduced] replaces the values of axes")]
    NotReduced(String),
    /// A name of the command line that no axis has.
    #[error("no axis is called '{0}'")]
    NoSuchAxis(String),
    /// More runs than a campaign may have.
    #[error("{runs} runs are more than a million: use fewer values or repeats")]
    TooMany {
        /// Their number, at least.
        runs: u64,
    },
}

type Values = Spanned<Vec<toml::Value>>;
/// Options of a lab, each with a value or a list.
type LabFile = BTreeMap<Spanned<String>, toml::Value>;
type AxesFile = BTreeMap<Spanned<String>, Values>;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct CampaignFile {
    name: Spanned<String>,
    #[serde(default)]
    title: String,
    #[serde(default)]
    about: String,
    document: Option<Document>,
    repeats: Option<Spanned<u32>>,
    #[serde(default)]
    seed: u64,
    #[serde(default)]
    order: Order,
    #[serde(default)]
    warm_up: u32,
    cool_down_s: Option<Spanned<f64>>,
    limit_s: Option<Spanned<f64>>,
    retries: Option<u32>,
    sample_ms: Option<Spanned<f64>>,
    powertop_s: Option<Spanned<f64>>,
    #[serde(default)]
    times_calls: bool,
    lab: Option<LabFile>,
    ssh: Option<Spanned<SshHosts>>,
    #[serde(default)]
    labels: BTreeMap<Spanned<String>, toml::Value>,
    #[serde(default)]
    axes: AxesFile,
    #[serde(default)]
    program: Vec<Spanned<ProgramFile>>,
    #[serde(default)]
    published: Vec<Published>,
    reduced: Option<ReducedFile>,
}

/// What `[[program]]` has.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct ProgramFile {
    pub name: Spanned<String>,
    pub client: Spanned<String>,
    pub server: Option<Spanned<String>>,
    pub parser: Option<Spanned<String>>,
    pub pattern: Option<Spanned<String>>,
    #[serde(default)]
    pub units: BTreeMap<String, String>,
    pub ready: Option<Spanned<String>>,
    pub server_ends: Option<Spanned<bool>>,
    #[serde(default)]
    pub shared_server: bool,
    pub from: Option<Spanned<Side>>,
    #[serde(default)]
    axes: AxesFile,
}

/// What `[reduced]` replaces.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ReducedFile {
    repeats: Option<Spanned<u32>>,
    warm_up: Option<u32>,
    /// The part runs in labs.
    lab: Option<LabFile>,
    #[serde(default)]
    axes: AxesFile,
}

/// Turns places of a text into lines.
struct Lines<'a> {
    file: &'a str,
    text: &'a str,
}

impl Lines<'_> {
    fn of(&self, at: usize) -> usize {
        let before = &self.text.as_bytes()[..at.min(self.text.len())];
        1 + before.iter().filter(|byte| **byte == b'\n').count()
    }

    fn error(&self, at: usize, fault: impl Into<FileFault>) -> FileError {
        FileError { file: self.file.to_owned(), line: self.of(at), fault: fault.into() }
    }

    fn number(
        &self,
        key: &'static str,
        given: Option<Spanned<f64>>,
        default: f64,
        least: f64,
    ) -> Result<f64, FileError> {
        let Some(given) = given else { return Ok(default) };
        let (most, value) = (SECONDS_MAX, *given.get_ref());
        if (least..=most).contains(&value) {
            return Ok(value);
        }
        Err(self.error(given.span().start, FileFault::Bounds { key, least, most }))
    }

    fn repeats(&self, given: Option<Spanned<u32>>, default: u32) -> Result<u32, FileError> {
        let given = given.map(|given| (given.span(), f64::from(given.into_inner())));
        match given {
            None => Ok(default),
            Some((_, repeats)) if (1.0..=1e6).contains(&repeats) => Ok(repeats as u32),
            Some((span, _)) => {
                let fault = FileFault::Bounds { key: "repeats", least: 1.0, most: 1e6 };
                Err(self.error(span.start, fault))
            }
        }
    }

    fn site(&self, is_lab: bool, ssh: Option<Spanned<SshHosts>>) -> Result<Site, FileError> {
        let Some(ssh) = ssh else { return Ok(if is_lab { Site::Lab } else { Site::Machine }) };
        let at = ssh.span().start;
        if is_lab {
            return Err(self.error(at, FileFault::TwoSites));
        }
        let hosts = ssh.into_inner();
        hosts.check().map_err(|refusal| self.error(at, FileFault::Hosts(refusal.to_string())))?;
        Ok(Site::Ssh(hosts))
    }

    /// The axes, in the order of the file.
    fn axes(&self, given: AxesFile) -> Result<Vec<Axis>, FileError> {
        let axes = given.into_iter().map(|(key, values)| {
            let (at, key, values) = (key.span().start, key.into_inner(), values.into_inner());
            if values.is_empty() {
                return Err(self.error(at, FileFault::NoValues { key }));
            }
            let values = values.iter().map(|value| self.value(at, &key, value));
            Ok((at, Axis { values: values.collect::<Result<_, _>>()?, line: self.of(at), key }))
        });
        let mut axes = axes.collect::<Result<Vec<_>, _>>()?;
        axes.sort_by_key(|(at, _)| *at);
        Ok(axes.into_iter().map(|(_, axis)| axis).collect())
    }

    fn value(&self, at: usize, key: &str, given: &toml::Value) -> Result<Value, FileError> {
        let refused = |why: String| {
            let (key, value) = (key.to_owned(), given.to_string());
            self.error(at, FileFault::Value { key, value, why })
        };
        let of = |text: String, scalar: Scalar| Value { text, scalar };
        Ok(match given {
            toml::Value::String(text) if key.ends_with("_bytes") => {
                let bytes = size_bytes(text).map_err(|error| refused(error.to_string()))?;
                of(bytes.to_string(), bytes.into())
            }
            toml::Value::String(text) => of(text.clone(), text.as_str().into()),
            toml::Value::Boolean(flag) => of(flag.to_string(), (*flag).into()),
            toml::Value::Integer(number) => of(number.to_string(), (*number as f64).into()),
            toml::Value::Float(number) if number.is_finite() => {
                of(number.to_string(), (*number).into())
            }
            _ => return Err(refused("use a text, a number, true or false".to_owned())),
        })
    }
}

impl Campaign {
    /// Parses `text`, the content of `file`; `is_reduced` applies its `[reduced]`.
    ///
    /// # Errors
    /// The first fault, with its line.
    pub fn parse(file: &str, text: &str, is_reduced: bool) -> Result<Self, FileError> {
        let lines = Lines { file, text };
        let given: CampaignFile = toml::from_str(text).map_err(|error| {
            let at = error.span().map_or(0, |span| span.start);
            let words = error.message().lines().collect::<Vec<_>>().join(", ");
            lines.error(at, FileFault::Syntax(words))
        })?;
        let name = given.name.get_ref();
        if !Experiment::is_name(name) {
            let fault = FileFault::Name(name.clone());
            return Err(lines.error(given.name.span().start, fault));
        }
        let mut experiment = Experiment::new(name, &given.title);
        experiment.about = given.about;
        experiment.document = given.document;
        let mut site = lines.site(given.lab.is_some(), given.ssh)?;
        if site == Site::Machine && given.reduced.as_ref().is_some_and(|part| part.lab.is_some()) {
            site = Site::Unnamed;
        }
        let labels = given.labels.into_iter().map(|(key, value)| {
            let value = lines.value(key.span().start, key.get_ref(), &value)?;
            Ok((key.into_inner(), value))
        });
        let mut campaign = Campaign {
            experiment,
            repeats: lines.repeats(given.repeats, 5)?,
            seed: given.seed,
            order: given.order,
            warm_up: given.warm_up,
            cool_down: Duration::from_secs_f64(lines.number(
                "cool_down_s",
                given.cool_down_s,
                0.0,
                0.0,
            )?),
            limit: Duration::from_secs_f64(lines.number("limit_s", given.limit_s, 60.0, 0.1)?),
            retries: given.retries.unwrap_or(1),
            sample: match given.sample_ms {
                None => None,
                given => Some(Duration::from_secs_f64(
                    lines.number("sample_ms", given, 0.0, SAMPLE_MS_MIN)? / 1e3,
                )),
            },
            powertop_s: match given.powertop_s {
                None => None,
                given => Some(lines.number("powertop_s", given, 0.0, 1.0)? as u32),
            },
            times_calls: given.times_calls,
            site,
            programs: Vec::new(),
            published: given.published,
            labels: labels.collect::<Result<_, _>>()?,
            constants: lines.axes(constants(given.lab.unwrap_or_default()))?,
            axes: lines.axes(given.axes)?,
            file: file.to_owned(),
        };
        for program in given.program {
            campaign.add(&lines, program)?;
        }
        if campaign.programs.is_empty() {
            return Err(lines.error(text.len(), FileFault::NoProgram));
        }
        if let (true, Some(reduced)) = (is_reduced, given.reduced) {
            campaign.reduce(&lines, reduced)?;
        }
        Ok(campaign)
    }

    fn add(&mut self, lines: &Lines<'_>, given: Spanned<ProgramFile>) -> Result<(), FileError> {
        let mut given = given.into_inner();
        let axes = lines.axes(std::mem::take(&mut given.axes))?;
        let (at, name) = (given.name.span().start, given.name.get_ref());
        if !Experiment::is_name(name) {
            return Err(lines.error(at, FileFault::Name(name.clone())));
        }
        if self.programs.iter().any(|known| known.name == *name) {
            return Err(lines.error(at, FileFault::SameName(name.clone())));
        }
        let line = lines.of(given.client.span().start);
        let commands = Commands::of(&given).map_err(|(at, fault)| lines.error(at, fault))?;
        self.programs.push(Program { name: name.clone(), line, axes, commands });
        Ok(())
    }

    /// Replaces values by those of `[reduced]`.
    fn reduce(&mut self, lines: &Lines<'_>, reduced: ReducedFile) -> Result<(), FileError> {
        if let Some(lab) = reduced.lab {
            self.site = Site::Lab;
            self.constants = lines.axes(constants(lab))?;
        }
        self.repeats = lines.repeats(reduced.repeats, self.repeats)?;
        self.warm_up = reduced.warm_up.unwrap_or(self.warm_up);
        let places: Vec<(usize, String)> =
            reduced.axes.keys().map(|key| (key.span().start, key.get_ref().clone())).collect();
        for axis in lines.axes(reduced.axes)? {
            if !self.replace(&axis.key, &axis.values) {
                let at = places.iter().find(|(_, key)| *key == axis.key).map_or(0, |(at, _)| *at);
                return Err(lines.error(at, FileFault::NotReduced(axis.key)));
            }
        }
        Ok(())
    }

    /// Replaces the values of an axis. Returns false if there is none of this name.
    fn replace(&mut self, key: &str, values: &[Value]) -> bool {
        let of_all = self.axes.iter_mut().chain(&mut self.constants);
        let own = self.programs.iter_mut().flat_map(|program| &mut program.axes);
        let mut is_known = false;
        for known in of_all.chain(own).filter(|known| known.key == key) {
            known.values = values.to_vec();
            is_known = true;
        }
        is_known
    }

    /// Gives an axis other values, separated by commas.
    ///
    /// # Errors
    /// There is no such axis, or a value that it cannot have.
    pub fn set(&mut self, key: &str, values: &str) -> Result<(), FileFault> {
        let values = values.split(',').map(|text| parse_value(key, text));
        let values = values.collect::<Result<Vec<_>, _>>()?;
        if self.replace(key, &values) { Ok(()) } else { Err(FileFault::NoSuchAxis(key.to_owned())) }
    }

    /// Adds a parameter to all results, or replaces it.
    ///
    /// # Errors
    /// A value that it cannot have.
    pub fn label(&mut self, key: &str, value: &str) -> Result<(), FileFault> {
        let value = parse_value(key, value)?;
        self.labels.retain(|(known, _)| known != key);
        self.labels.push((key.to_owned(), value));
        Ok(())
    }

    pub(crate) fn error(&self, line: usize, fault: FileFault) -> FileError {
        FileError { file: self.file.clone(), line, fault }
    }

    /// Identifies what a finished run depends on besides its point: the commands and parsers. Axes,
    /// repeats and limits may change while a campaign is measured.
    pub fn digest(&self) -> String {
        let mut digest = Digest::new();
        self.site.identity().for_each(|text| digest.take(text));
        for program in &self.programs {
            digest.take(&program.name);
            program.commands.identity().for_each(|text| digest.take(text));
        }
        digest.finish()
    }
}

/// Options of a lab as axes.
fn constants(lab: LabFile) -> AxesFile {
    let axis = |(key, value): (Spanned<String>, toml::Value)| {
        let values = match value {
            toml::Value::Array(values) => values,
            value => vec![value],
        };
        let span = key.span();
        (key, Spanned::new(span, values))
    };
    lab.into_iter().map(axis).collect()
}

/// The value that a text of the command line is.
fn parse_value(key: &str, text: &str) -> Result<Value, FileFault> {
    let text = text.trim();
    let given = match (text.parse::<i64>(), text.parse::<f64>(), text.parse::<bool>()) {
        (Ok(number), ..) => toml::Value::Integer(number),
        (_, Ok(number), _) => toml::Value::Float(number),
        (.., Ok(flag)) => toml::Value::Boolean(flag),
        _ => toml::Value::String(text.to_owned()),
    };
    Lines { file: "", text: "" }.value(0, key, &given).map_err(|error| error.fault)
}

#[cfg(test)]
mod tests;
