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

/// Seconds that a program spent in its verbs calls, as `in_CALL_s`, from the line that ends a
/// trace: `longhaul: NAME: of 3.275 s since its first verb, 51.5 % poll_cq (1518454 calls), …`.
/// Empty without a trace.
pub(crate) fn in_calls(errors: &str) -> Values {
    let split = errors.lines().find_map(|line| {
        let (begin, shares) = line.split_once(" s since its first verb, ")?;
        let seconds: f64 = begin.rsplit(' ').next()?.parse().ok()?;
        Some((seconds, shares))
    });
    let Some((seconds, shares)) = split else { return Values::new() };
    let share = |text: &str| {
        let (percent, call) = text.split_once(" % ")?;
        let call = call.split(' ').next()?.trim_start_matches('_');
        Some((format!("in_{call}_s"), percent.trim().parse::<f64>().ok()? / 100.0 * seconds))
    };
    shares.split(", ").filter_map(share).collect()
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_end_of_a_trace_tells_the_seconds_in_each_call() {
        let errors = "warning: x\nlonghaul: ib_write_bw: of 4.000 s since its first verb, 50.0 % \
                      poll_cq (1518454 calls), 2.5 % post_send (37304 calls)\n";
        let expected = [("in_poll_cq_s".to_owned(), 2.0), ("in_post_send_s".to_owned(), 0.1)];
        assert_eq!(in_calls(errors), expected.into());
        assert_eq!(in_calls("longhaul: of x s since its first verb, 1 % y"), Values::new());
        assert_eq!(in_calls(""), Values::new());
    }
}
