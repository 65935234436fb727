//! Readers of what programs print.

mod fio;
mod ingest;
pub mod iperf3;
mod pattern;
pub mod perftest;
mod qperf;
mod unit;

pub use pattern::{Pattern, PatternError};

use crate::executor::Side;
use crate::process::Ended;
use crate::template::Template;
use std::collections::BTreeMap;
use thiserror::Error;

/// Results by name, which ends in their unit.
pub type Values = BTreeMap<String, f64>;

/// Single observations by name, which ends in their unit.
pub type Observations = BTreeMap<String, Vec<f64>>;

/// Why there are no results.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{0}")]
pub struct NoResult(pub String);

impl NoResult {
    pub(crate) fn new(why: impl Into<String>) -> Self {
        NoResult(why.into())
    }
}

/// How the output of a program is read.
#[derive(Clone, Debug)]
pub enum Parser {
    /// perftest's table.
    Perftest,
    /// qperf's `name = value unit`.
    Qperf,
    /// The JSON of iperf3.
    Iperf3,
    /// The JSON of fio, which 'longhaul storage host' prints too.
    Fio,
    /// The JSON of both sides of 'longhaul ingest'.
    Ingest,
    /// A regular expression.
    Pattern(Pattern),
}

impl Parser {
    /// The parser of this name.
    pub fn named(name: &str) -> Option<Self> {
        Some(match name {
            "perftest" => Parser::Perftest,
            "qperf" => Parser::Qperf,
            "iperf3" => Parser::Iperf3,
            "fio" => Parser::Fio,
            "ingest" => Parser::Ingest,
            _ => return None,
        })
    }

    /// Texts that identify it.
    pub(crate) fn identity(&self) -> impl Iterator<Item = &str> {
        let pattern = match self {
            Parser::Pattern(pattern) => Some(pattern),
            _ => None,
        };
        let name = match self {
            Parser::Perftest => "perftest",
            Parser::Qperf => "qperf",
            Parser::Iperf3 => "iperf3",
            Parser::Fio => "fio",
            Parser::Ingest => "ingest",
            Parser::Pattern(_) => "pattern",
        };
        std::iter::once(name).chain(pattern.into_iter().flat_map(Pattern::identity))
    }

    /// Names of the values that `client` always has, the most important first.
    pub(crate) fn owed(&self, client: &Template) -> Vec<String> {
        let is_of = |end: &str| client.word(0).is_some_and(|word| word.ends_with(end));
        let is_latency = match self {
            Parser::Perftest => is_of("_lat"),
            Parser::Qperf => client.text().contains("_lat"),
            _ => false,
        };
        match self {
            Parser::Pattern(pattern) => pattern.names(),
            _ if is_latency => vec!["latency_mean_ns".to_owned()],
            Parser::Fio => vec!["goodput_bps".to_owned(), "total_iops".to_owned()],
            Parser::Ingest => vec!["goodput_bps".to_owned(), "present_percent".to_owned()],
            Parser::Perftest | Parser::Qperf | Parser::Iperf3 => vec!["goodput_bps".to_owned()],
        }
    }

    /// Reads the single observations of a client and its server: latencies of perftest's messages
    /// (`-U`, `-H`), and rates of iperf3's intervals.
    pub fn observations(&self, client: &Ended, server: Option<&Ended>, from: Side) -> Observations {
        let ended = of_side(client, server, from);
        let (name, figures) = match self {
            Parser::Perftest => ("latency_ns", perftest::latencies(&ended.stdout)),
            Parser::Iperf3 => ("interval_goodput_bps", iperf3::intervals(&ended.stdout)),
            _ => return Observations::new(),
        };
        let is_some = !figures.is_empty();
        is_some.then(|| (name.to_owned(), figures)).into_iter().collect()
    }

    /// Reads the results of a client and its server from the output of one side.
    ///
    /// # Errors
    /// What the output lacks.
    pub fn read(
        &self,
        client: &Ended,
        server: Option<&Ended>,
        from: Side,
    ) -> Result<Values, NoResult> {
        let ended = of_side(client, server, from);
        match self {
            Parser::Perftest => perftest::read(&ended.stdout),
            Parser::Qperf => qperf::read(&ended.stdout),
            Parser::Iperf3 => iperf3::read(&ended.stdout),
            Parser::Fio => fio::read(&ended.stdout),
            Parser::Ingest => ingest::read(&client.stdout, &ended.stdout),
            Parser::Pattern(pattern) => {
                pattern.read(&format!("{}\n{}", ended.stdout, ended.stderr))
            }
        }
    }
}

/// The program whose output has the results.
fn of_side<'a>(client: &'a Ended, server: Option<&'a Ended>, from: Side) -> &'a Ended {
    match (from, server) {
        (Side::Server, Some(server)) => server,
        _ => client,
    }
}

/// Parses JSON that a program printed, perhaps after other lines.
fn json<T: serde::de::DeserializeOwned>(text: &str, program: &str) -> Result<T, NoResult> {
    let from = text.find('{').unwrap_or(0);
    serde_json::from_str(&text[from..])
        .map_err(|error| NoResult::new(format!("{program} printed no result ({error})")))
}
