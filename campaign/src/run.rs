//! Runs what a store has no result of.

use crate::executor::{Executor, Refusal, Side};
use crate::file::Campaign;
use crate::grid::{Point, Run};
use crate::pair::{Fault, Output, Pair, Ready, free_tcp_port};
use crate::parser::{NoResult, Values};
use crate::process::{Ended, Group};
use crate::program::{ADDRESS, Commands, PORT, Program, Start, TCP};
use crate::slurm::Share;
use crate::store::{Digest, Store, StoreError};
use longhaul_bench::{Record, Source, Started};
use std::io;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::sleep;
use std::time::{Duration, Instant};
use thiserror::Error;

/// Folder of what programs printed, in the directory of results.
const OUTPUT: &str = "output";
/// Interval of looks at `stop` in a pause.
const LOOK: Duration = Duration::from_millis(50);

/// Progress of a campaign.
#[derive(Debug)]
pub enum News<'a> {
    /// A run begins.
    Begins {
        /// Its point.
        point: &'a Point,
        /// Number of the repeat, from 1; 0 for a run that is not recorded.
        repeat: u32,
        /// Runs of this call that have ended.
        done: usize,
        /// Runs of this call.
        of: usize,
        /// Time that the others take, by the mean of those that have ended.
        left: Option<Duration>,
    },
    /// An attempt failed.
    Failed {
        /// Its point.
        point: &'a Point,
        /// Why.
        reason: &'a str,
        /// True if another attempt follows.
        is_tried_again: bool,
    },
    /// An executor logged something.
    Logged(&'a str),
}

/// Result of a call of [`measure`].
#[derive(Debug, Default)]
pub struct Tally {
    /// Runs with results.
    pub measured: usize,
    /// Runs that failed, with the parameters and the reason.
    pub failed: Vec<String>,
    /// True if `stop` ended it.
    pub is_interrupted: bool,
}

/// Why a campaign ended early.
#[derive(Debug, Error)]
pub enum RunError {
    /// A result cannot be stored.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The output of programs cannot be stored.
    #[error("cannot write {}: {error}", path.display())]
    Output {
        /// The file.
        path: PathBuf,
        /// The operating system's error.
        error: io::Error,
    },
}

/// Why an attempt has no result.
#[derive(Debug, Error)]
enum Failure {
    #[error(transparent)]
    Fault(#[from] Fault),
    /// The executor refuses a program: another attempt is in vain.
    #[error(transparent)]
    Program(Refusal),
    /// The executor has no path.
    #[error(transparent)]
    Path(#[from] Refusal),
    #[error("no TCP port is free on 127.0.0.1: {0}")]
    Port(io::Error),
    /// TCP would not cross the path.
    #[error("TCP between the hosts does not cross the fibre: {0}")]
    OffPath(String),
    #[error("{error}; its output: {}", file.display())]
    NoResult { error: NoResult, file: PathBuf },
}

impl Failure {
    fn is_final(&self) -> bool {
        matches!(self, Failure::Program(_) | Failure::OffPath(_))
    }
}

/// Runs what `store` has no result of in a share of `campaign`'s runs, and stores each result when
/// it ends. Setting `stop` ends it; the run in progress is not stored.
///
/// # Errors
/// A result cannot be stored; those before are on disk.
pub fn measure(
    campaign: &Campaign,
    points: &[Point],
    share: Share,
    executor: &mut dyn Executor,
    store: &mut Store,
    stop: &AtomicBool,
    news: &mut dyn FnMut(News<'_>),
) -> Result<Tally, RunError> {
    let missing = missing(campaign, points, share, store);
    store.describe(&campaign.experiment)?;
    let began = Instant::now();
    let mut tally = Tally::default();
    let mut runner = Runner { campaign, executor, store, stop, news };
    for (done, run) in missing.iter().enumerate() {
        let point = &points[run.point];
        let mean = began.elapsed().checked_div(done as u32);
        let left = mean.map(|mean| mean.saturating_mul((missing.len() - done) as u32));
        let begins = News::Begins { point, repeat: run.repeat, done, of: missing.len(), left };
        match runner.run(point, run.repeat, begins)? {
            Conclusion::Measured => tally.measured += 1,
            Conclusion::Failed(reason) => tally.failed.push(format!("{}: {reason}", point.place)),
            Conclusion::Interrupted => {
                tally.is_interrupted = true;
                break;
            }
        }
        runner.pause(campaign.cool_down);
    }
    runner.leave();
    Ok(tally)
}

/// The runs in a share of `campaign`'s that `store` has no result of, in their order.
pub fn missing(campaign: &Campaign, points: &[Point], share: Share, store: &Store) -> Vec<Run> {
    let is_missing = |run: &Run| !store.has(&points[run.point].place, run.repeat.into());
    share.select(campaign.runs(points)).filter(is_missing).collect()
}

/// How a run ended.
enum Conclusion {
    Measured,
    /// For this reason, after the last attempt.
    Failed(String),
    Interrupted,
}

struct Runner<'a> {
    campaign: &'a Campaign,
    executor: &'a mut dyn Executor,
    store: &'a mut Store,
    stop: &'a AtomicBool,
    news: &'a mut dyn FnMut(News<'_>),
}

impl Runner<'_> {
    /// Runs a point until it has a result or has failed for good, and stores that.
    fn run(
        &mut self,
        point: &Point,
        repeat: u32,
        begins: News<'_>,
    ) -> Result<Conclusion, RunError> {
        let program = &self.campaign.programs[point.program];
        (self.news)(begins);
        let mut attempt = 0;
        loop {
            let started = Started::now();
            let name = &self.campaign.experiment.name;
            let record = |command: String| {
                let mut provenance = started.provenance(None, 1);
                (provenance.command, provenance.repeat) = (command, Some(repeat));
                let record = Record::new(name, Source::Measured, point.place.clone());
                record.from_run(provenance)
            };
            let failed = |record: Record, reason: &str| {
                program.values().iter().fold(record, |record, value| record.failure(value, reason))
            };
            self.store.begin(&failed(record(String::new()), "in progress"))?;
            let (command, outcome) = self.attempt(program, point, repeat)?;
            if self.stop.load(Ordering::Relaxed) {
                return Ok(Conclusion::Interrupted);
            }
            let mut record = record(command);
            if attempt > 0 {
                record = record.note(format!("attempt {}", attempt + 1));
            }
            let failure = match outcome {
                Ok(values) => {
                    record.values = values;
                    self.store.add(&record)?;
                    return Ok(Conclusion::Measured);
                }
                Err(failure) => failure,
            };
            // The next run must not find remains of this one.
            self.leave();
            let reason = failure.to_string();
            let is_tried_again = attempt < self.campaign.retries && !failure.is_final();
            (self.news)(News::Failed { point, reason: &reason, is_tried_again });
            if !is_tried_again {
                self.store.add(&failed(record, &reason))?;
                return Ok(Conclusion::Failed(reason));
            }
            attempt += 1;
        }
    }

    /// One attempt at a run: the client's command, and the values. The output is on disk.
    fn attempt(
        &mut self,
        program: &Program,
        point: &Point,
        repeat: u32,
    ) -> Result<(String, Result<Values, Failure>), RunError> {
        let is_new = match self.executor.enter(&point.path) {
            Ok(is_new) => is_new,
            Err(refusal) => return Ok((String::new(), Err(refusal.into()))),
        };
        if is_new {
            self.warm_up(program, point);
        }
        let commands = &program.commands;
        let (command, ran) = match self.pair(commands, point) {
            Ok((command, pair)) => (command, pair.run(self.stop).map_err(Failure::from)),
            Err(failure) => return Ok((String::new(), Err(failure))),
        };
        let ended: Vec<&Ended> = match &ran {
            Ok(Output { client, server }) => [client].into_iter().chain(server).collect(),
            Err(Failure::Fault(fault)) => fault.outputs().iter().collect(),
            Err(_) => Vec::new(),
        };
        let file = self.keep(point, repeat, &ended)?;
        let values = ran.and_then(|output| {
            let read = commands.parser.read(&output, commands.from);
            read.map_err(|error| Failure::NoResult { error, file })
        });
        Ok((command, values))
    }

    /// Runs a point without recording it. Whatever fails here is recorded by the runs that count.
    fn warm_up(&mut self, program: &Program, point: &Point) {
        for _ in 0..self.campaign.warm_up {
            if let Ok((_, pair)) = self.pair(&program.commands, point) {
                let _ = pair.run(self.stop);
            }
        }
    }

    /// The client's command line, and both programs.
    fn pair(&self, commands: &Commands, point: &Point) -> Result<(String, Pair), Failure> {
        let addresses = self.executor.addresses()?;
        if let (true, Some(why)) = (commands.is_tcp, addresses.off_path) {
            return Err(Failure::OffPath(why));
        }
        let port = free_tcp_port().map_err(Failure::Port)?;
        let [rdma, tcp, port_text] =
            [addresses.rdma.to_string(), addresses.tcp.to_string(), port.to_string()];
        let value = |name: &str| match name {
            ADDRESS => Some(rdma.as_str()),
            TCP => Some(tcp.as_str()),
            PORT => Some(port_text.as_str()),
            _ => point.settings.get(name).map(|value| value.text.as_str()),
        };
        let make = |side: Side, words: &[String]| {
            let command = self.executor.command(side, words).map_err(Failure::Program)?;
            let name = words.first().map_or("", String::as_str);
            Ok::<_, Failure>((format!("the {}, {name}", side.name()), command))
        };
        let server = match &commands.server {
            None => None,
            Some(server) => {
                let (name, command) = make(Side::Server, &server.fill(value))?;
                let ready = match &commands.start {
                    Start::Listens => Ready::Listens(port),
                    Start::Asleep => Ready::Asleep,
                    Start::Says(text) => Ready::Says(text.clone()),
                };
                Some((name, command, ready))
            }
        };
        let words = commands.client.fill(value);
        let client = make(Side::Client, &words)?;
        let (server_ends, limit) = (commands.server_ends, self.campaign.limit);
        let pair = Pair { server, client, server_ends, limit, group: Group::Own };
        Ok((words.join(" "), pair))
    }

    /// Writes what programs printed. Returns the file.
    fn keep(&self, point: &Point, repeat: u32, ended: &[&Ended]) -> Result<PathBuf, RunError> {
        let directory = self.store.directory().join(OUTPUT);
        let mut digest = Digest::new();
        point.place.iter().for_each(|(key, value)| digest.take(&format!("{key}={value}")));
        let path = directory.join(format!("{}-{repeat}.txt", digest.finish()));
        let mut text = format!("{}\n", point.place);
        for program in ended {
            text += &format!("\n--- {program}");
        }
        std::fs::create_dir_all(&directory)
            .and_then(|()| std::fs::write(&path, text))
            .map_err(|error| RunError::Output { path: path.clone(), error })?;
        Ok(path)
    }

    fn leave(&mut self) {
        if let Some(log) = self.executor.leave() {
            (self.news)(News::Logged(&log));
        }
    }

    fn pause(&self, time: Duration) {
        let end = Instant::now() + time;
        while !self.stop.load(Ordering::Relaxed) {
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return;
            }
            sleep(left.min(LOOK));
        }
    }
}

#[cfg(test)]
mod tests;
