//! Runs one case and judges its outcome.

use super::{By, Case, Measure, Refusal, Sizes, refusals};
use crate::back_to_back::{BackToBack, SERVER_IP};
use crate::pair::{Ready, free_tcp_port};
use crate::perftest::{believable_bandwidth, believable_latency, complaint, rows};
use std::time::{Duration, Instant};

const LIMIT: Duration = Duration::from_secs(120);
/// With `-a` perftest measures the rate of its clock for each size, which takes a quarter of a
/// second.
const LIMIT_OF_ALL_SIZES: Duration = Duration::from_secs(120);

/// Outcome of a case.
pub enum Outcome {
    /// It completed; the last result line.
    Ran(Vec<f64>),
    /// perftest refused, as predicted.
    Refused(&'static Refusal),
    /// Anything else: the reason, with the output of both ends.
    Failed(String),
}

/// A case with its outcome.
pub struct Run {
    /// The case.
    pub case: Case,
    /// The server's command line.
    pub line: String,
    /// The outcome.
    pub outcome: Outcome,
    /// Duration.
    pub took: Duration,
}

/// Runs `case`.
pub fn run(case: Case) -> Run {
    let started = Instant::now();
    let port = free_tcp_port();
    let line = case.line(port);
    // perftest prints "inf" if the machine was too busy to measure the rate of its clock, which is
    // not the device's fault.
    let mut outcome = Outcome::Failed(String::new());
    for _ in 0..3 {
        let outputs = attempt(&case, &line, port);
        let clock_failed = outputs.as_ref().is_ok_and(|(_, client)| client.contains(" inf "));
        outcome = judge(&case, outputs);
        if !clock_failed {
            break;
        }
    }
    Run { case, line, outcome, took: started.elapsed() }
}

/// Output of server and client if both succeeded; otherwise everything, in one text.
fn attempt(case: &Case, line: &str, port: u16) -> Result<(String, String), String> {
    let place = BackToBack::new();
    let (address, ready) = match case.by {
        By::RdmaCm => (SERVER_IP, Ready::Attached),
        By::Tcp if case.variation.options == "-z" => (SERVER_IP, Ready::Attached),
        By::Tcp => ("127.0.0.1", Ready::Tcp(port)),
    };
    let limit = if case.variation.sizes == Sizes::All { LIMIT_OF_ALL_SIZES } else { LIMIT };
    let (server, client) = place.try_pair(line, &format!("{line} {address}"), ready, limit)?;
    Ok((server.stdout + &server.stderr, client.stdout + &client.stderr))
}

/// What perftest says when it cannot measure the frequency of its clock, as on a busy machine: it
/// then prints zeros.
const UNCALIBRATED: &str = "Correlation coefficient r^2";

fn judge(case: &Case, outputs: Result<(String, String), String>) -> Outcome {
    let refusals = refusals(case);
    match outputs {
        Err(text) => match refusals.iter().find(|refusal| text.contains(refusal.message)) {
            Some(refusal) => Outcome::Refused(refusal),
            None => Outcome::Failed(text),
        },
        Ok((_, client)) if !refusals.is_empty() => {
            Outcome::Failed(format!("it runs, and should be refused: {refusals:?}\n{client}"))
        }
        Ok((server, client)) => match result(case, &server, &client) {
            Ok(row) => Outcome::Ran(row),
            Err(why) => Outcome::Failed(format!(
                "{why}\n=== the client\n{client}\n=== the server\n{server}"
            )),
        },
    }
}

/// The last result line, if all of them are plausible.
fn result(case: &Case, server: &str, client: &str) -> Result<Vec<f64>, String> {
    for output in [server, client] {
        if let Some(line) = complaint(output) {
            return Err(format!("it complains: {line}"));
        }
    }
    // With `-H` every single time is printed first, in two columns; with `--report-both` the rows
    // of both ends are printed.
    let rows = rows(client);
    let sizes = case.sizes();
    let both = case.variation.options.contains("--report-both");
    let expected: Vec<u64> =
        if both { sizes.iter().flat_map(|&size| [size; 3]).collect() } else { sizes };
    if rows.iter().map(|row| row[0] as u64).ne(expected.iter().copied()) {
        return Err(format!("results of sizes {expected:?} were expected"));
    }
    for row in &rows {
        let iterations = case.variation.iterations * case.variation.queue_pairs;
        if !case.variation.for_a_time && row[1] as u64 != iterations {
            return Err(format!("{} iterations instead of {iterations}", row[1]));
        }
        match case.measure {
            _ if client.contains(UNCALIBRATED) => {}
            Measure::Bandwidth => believable_bandwidth(row)?,
            Measure::Latency => believable_latency(row)?,
        }
    }
    rows.into_iter().next_back().ok_or_else(|| "no results".to_owned())
}
