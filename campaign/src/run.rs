//! Runs what a store has no result of.

use crate::environment::environment;
use crate::executor::{Cause, End, Executor, Refusal, Side};
use crate::file::Campaign;
use crate::grid::{Point, Run, Settings};
use crate::parser::{self, NoResult, Observations, Values};
use crate::process::{Ended, Group};
use crate::program::{ADDRESS, Commands, PORT, Program, Start, TCP};
use crate::programs::{Fault, Output, Programs, Ready};
use crate::sample::powertop::{self, Powertop};
use crate::sample::{Recorded, Recording};
use crate::slurm::Share;
use crate::store::{Digest, Store, StoreError};
use crate::topology::{Topology, combined};
use longhaul_bench::{PairRecord, Record, Source, Started};
use std::collections::{BTreeMap, BTreeSet};
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
    /// Runs that failed, with the parameters and the reason; one entry for all runs of a path that
    /// does not exist.
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
    /// powertop does not measure, and the campaign asks for it.
    #[error("powertop_s: {0}")]
    Powertop(#[from] Refusal),
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
    /// The executor knows why a program failed.
    #[error("{name}: {}", .cause.why)]
    Explained { name: String, cause: Cause, outputs: Vec<Ended> },
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
        match self {
            Failure::Program(_) | Failure::OffPath(_) => true,
            Failure::Explained { cause, .. } => cause.is_final,
            _ => false,
        }
    }
}

/// Runs what `store` has no result of in a share of `campaign`'s runs, and stores each result when
/// it ends. Setting `stop` ends it; the run in progress is not stored.
///
/// # Errors
/// A result cannot be stored; those before are on disk. powertop does not measure.
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
    if let (Some(_), Some(first)) = (campaign.powertop_s, missing.first()) {
        let topology = Topology::of(&points[first.point].path)?;
        powertop::check(executor, topology, stop)?;
    }
    let began = Instant::now();
    let mut tally = Tally::default();
    let versions: BTreeSet<&str> =
        campaign.programs.iter().filter_map(Program::with_version).collect();
    let versions: Vec<&str> = versions.into_iter().collect();
    let environment = &environment(if missing.is_empty() { &[] } else { &versions });
    let refused = Vec::new();
    let mut runner = Runner { campaign, executor, store, stop, news, environment, refused };
    for (done, run) in missing.iter().enumerate() {
        let point = &points[run.point];
        let mean = began.elapsed().checked_div(done as u32);
        let left = mean.map(|mean| mean.saturating_mul((missing.len() - done) as u32));
        let begins = News::Begins { point, repeat: run.repeat, done, of: missing.len(), left };
        match runner.run(point, run.repeat, begins)? {
            Conclusion::Measured => tally.measured += 1,
            Conclusion::Failed(reason) => tally.failed.push(format!("{}: {reason}", point.place)),
            Conclusion::Refused => continue,
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

/// An attempt at a run.
struct Attempt {
    /// Of the first client.
    command: String,
    outcome: Result<(Vec<PairRecord>, Observations), Failure>,
    recorded: Recorded,
}

impl Attempt {
    /// One whose programs were not started.
    fn refused(failure: Failure) -> Self {
        let recorded = Recorded::default();
        Attempt { command: String::new(), outcome: Err(failure), recorded }
    }
}

/// Adds to a record what was recorded beside its values.
fn add(recorded: Recorded, record: &mut Record) {
    let Recorded { rise, power, activity, powertop } = recorded;
    for (zone, energy_j) in rise.energy_j {
        record.values.insert(format!("energy_{zone}_ws"), energy_j);
        if rise.seconds > 0.0 {
            record.values.insert(format!("power_{zone}_w"), energy_j / rise.seconds);
        }
    }
    for (source, watts) in power.watts {
        record.values.insert(format!("power_{source}_w"), watts);
    }
    record.absent.extend(power.absent);
    if let Some(estimate) = powertop {
        record.values.extend(estimate.values);
        let why = estimate.absent.map(|why| (powertop::NAME.to_owned(), why));
        record.absent.extend(why);
    }
    if let Some(bps) = record.values.get("goodput_bps").copied().filter(|bps| *bps > 0.0) {
        let powers = record.values.iter().filter(|(name, _)| name.starts_with("power_"));
        let per_bit = powers.map(|(name, watts)| {
            let source = name.trim_start_matches("power_").trim_end_matches("_w");
            (format!("energy_per_bit_{source}_nj"), watts / bps * 1e9)
        });
        let per_bit: Vec<_> = per_bit.collect();
        record.values.extend(per_bit);
    }
    let counters = rise.counters.into_iter().map(|(name, count)| (name, count as f64));
    record.counters.extend(counters);
    record.absent.extend(rise.absent);
    let Some(activity) = activity else { return };
    let middle = activity.middle();
    record.sample_s = activity.interval_s();
    let traffic = activity.by_device();
    if traffic.is_empty() {
        let why = "no verbs device here counts port_xmit_data and port_rcv_data";
        record.absent.insert("sent_bps".to_owned(), why.to_owned());
    }
    if !traffic.keys().any(|name| name.ends_with(".send_queue_fill")) {
        let why = "no verbs device here tells how many requests are in its send queues";
        record.absent.insert("send_queue_fill".to_owned(), why.to_owned());
    }
    for (name, rates) in traffic {
        record.samples.insert(name, rates[middle.clone()].to_vec());
    }
    for (process, shares) in activity.by_process() {
        let shares = shares[middle.clone()].to_vec();
        record.samples.insert(format!("{process}.cpu_percent"), shares);
    }
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
    /// Not attempted, because its path refused an earlier run for good.
    Refused,
    Interrupted,
}

struct Runner<'a> {
    campaign: &'a Campaign,
    executor: &'a mut dyn Executor,
    store: &'a mut Store,
    stop: &'a AtomicBool,
    news: &'a mut dyn FnMut(News<'_>),
    /// Of this machine.
    environment: &'a BTreeMap<String, String>,
    /// Paths that the executor does not get, after all attempts of a run, with the reasons.
    refused: Vec<(Settings, String)>,
}

/// The programs of a run.
struct Meeting {
    /// Command line of the first client.
    command: String,
    /// Words of all programs.
    words: Vec<Vec<String>>,
    programs: Programs,
    pairs: Vec<PairOf>,
}

/// A client and its server.
struct PairOf {
    /// Host of the client.
    client: Option<String>,
    /// Host of the server.
    server: Option<String>,
    /// Index of the server.
    index: Option<usize>,
}

/// Where the programs of a pair run, and its number if there are several.
struct Ends {
    client: End,
    server: End,
    pair: Option<usize>,
}

/// The words of a pair's programs.
struct Words {
    client: Vec<String>,
    server: Option<Vec<String>>,
}

/// Reads the results of each pair.
fn read(
    commands: &Commands,
    pairs: Vec<PairOf>,
    output: &Output,
) -> Result<Vec<PairRecord>, NoResult> {
    let of_pair = |(pair, client): (PairOf, &Ended)| {
        let server = pair.index.and_then(|index| output.servers.get(index));
        let values = commands.parser.read(client, server, commands.from)?;
        let (client, server) = (pair.client.unwrap_or_default(), pair.server.unwrap_or_default());
        Ok(PairRecord { client, server, values })
    };
    pairs.into_iter().zip(&output.clients).map(of_pair).collect()
}

/// Reads the single observations of all pairs.
fn observations(commands: &Commands, pairs: &[PairOf], output: &Output) -> Observations {
    let mut all = Observations::new();
    for (pair, client) in pairs.iter().zip(&output.clients) {
        let server = pair.index.and_then(|index| output.servers.get(index));
        for (name, figures) in commands.parser.observations(client, server, commands.from) {
            all.entry(name).or_default().extend(figures);
        }
    }
    all
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
        let known = self.refused.iter().find(|(path, _)| *path == point.path);
        let known = known.map(|(_, reason)| reason.clone());
        if known.is_none() {
            (self.news)(begins);
        }
        let mut attempt = 0;
        loop {
            let started = Started::now();
            let (name, environment) = (&self.campaign.experiment.name, self.environment);
            let record = |command: String| {
                let mut provenance = started.provenance(None, 1);
                (provenance.command, provenance.repeat) = (command, Some(repeat));
                provenance.environment.clone_from(environment);
                let record = Record::new(name, Source::Measured, point.place.clone());
                record.from_run(provenance)
            };
            let failed = |record: Record, reason: &str| {
                program.values().iter().fold(record, |record, value| record.failure(value, reason))
            };
            if let Some(reason) = &known {
                self.store.add(&failed(record(String::new()), reason))?;
                return Ok(Conclusion::Refused);
            }
            self.store.begin(&failed(record(String::new()), "in progress"))?;
            let Attempt { command, outcome, recorded } = self.attempt(program, point, repeat)?;
            if self.stop.load(Ordering::Relaxed) {
                return Ok(Conclusion::Interrupted);
            }
            let mut record = record(command);
            if attempt > 0 {
                record = record.note(format!("attempt {}", attempt + 1));
            }
            let failure = match outcome {
                Ok((pairs, observations)) => {
                    let values: Vec<Values> =
                        pairs.iter().map(|pair| pair.values.clone()).collect();
                    (record.values, record.samples) = (combined(&values), observations);
                    add(recorded, &mut record);
                    if pairs.len() > 1 {
                        record.pairs = pairs;
                    }
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
                if matches!(failure, Failure::Path(_)) {
                    self.refused.push((point.path.clone(), reason.clone()));
                }
                self.store.add(&failed(record, &reason))?;
                return Ok(Conclusion::Failed(reason));
            }
            attempt += 1;
        }
    }

    /// One attempt at a run. The output of the programs is on disk.
    fn attempt(
        &mut self,
        program: &Program,
        point: &Point,
        repeat: u32,
    ) -> Result<Attempt, RunError> {
        let is_new = match self.executor.enter(&point.path) {
            Ok(is_new) => is_new,
            Err(refusal) => return Ok(Attempt::refused(refusal.into())),
        };
        if is_new {
            self.warm_up(program, point);
        }
        let meeting = match self.meeting(&program.commands, point) {
            Ok(meeting) => meeting,
            Err(failure) => return Ok(Attempt::refused(failure)),
        };
        let Meeting { command, words, programs, pairs } = meeting;
        let powertop = match self.powertop(point) {
            Ok(powertop) => powertop,
            Err(refusal) => return Ok(Attempt::refused(Failure::Program(refusal))),
        };
        let recording = Recording::begin(self.campaign.sample, self.executor.devices());
        let ran = programs.run(self.stop).map_err(|fault| self.explained(fault));
        let mut recorded = recording.end();
        recorded.powertop = powertop.map(|powertop| powertop.end(&words, self.stop));
        let ended: Vec<&Ended> = match &ran {
            Ok(Output { clients, servers }) => clients.iter().chain(servers).collect(),
            Err(Failure::Fault(fault)) => fault.outputs().iter().collect(),
            Err(Failure::Explained { outputs, .. }) => outputs.iter().collect(),
            Err(_) => Vec::new(),
        };
        let file = self.keep(point, repeat, &ended)?;
        if let Some(activity) = &recorded.activity {
            let has_traffic = !activity.by_device().is_empty();
            let of_devices = has_traffic.then(|| ("devices.csv", activity.csv_of_devices()));
            for (end, csv) in [("csv", activity.csv())].into_iter().chain(of_devices) {
                let path = file.with_extension(end);
                std::fs::write(&path, csv).map_err(|error| RunError::Output { path, error })?;
            }
        }
        let outcome = ran.and_then(|output| {
            let observations = observations(&program.commands, &pairs, &output);
            let read = read(&program.commands, pairs, &output);
            let mut pairs = read.map_err(|error| Failure::NoResult { error, file })?;
            if self.campaign.times_calls {
                for (pair, client) in pairs.iter_mut().zip(&output.clients) {
                    pair.values.extend(parser::in_calls(&client.stderr));
                }
            }
            Ok((pairs, observations))
        });
        Ok(Attempt { command, outcome, recorded })
    }

    /// powertop for a run, if the campaign asks for it.
    fn powertop(&self, point: &Point) -> Result<Option<Powertop>, Refusal> {
        let Some(seconds) = self.campaign.powertop_s else { return Ok(None) };
        Powertop::start(self.executor, Topology::of(&point.path)?, seconds).map(Some)
    }

    /// The failure, as the executor explains it.
    fn explained(&self, fault: Fault) -> Failure {
        let (Fault::Failed { ended, .. }
        | Fault::Hung { ended, .. }
        | Fault::NotReady { ended, .. }) = &fault
        else {
            return fault.into();
        };
        let mut others = fault.outputs().iter();
        // What ended a program's partner may also be the cause.
        let explained = [&**ended].into_iter().chain(&mut others);
        let explained =
            explained.filter_map(|one| Some((one.name.clone(), self.executor.explain(one)?)));
        match explained.collect::<Vec<_>>().into_iter().next() {
            Some((name, cause)) => {
                Failure::Explained { name, cause, outputs: fault.outputs().to_vec() }
            }
            None => fault.into(),
        }
    }

    /// Runs a point without recording it. Whatever fails here is recorded by the runs that count.
    fn warm_up(&mut self, program: &Program, point: &Point) {
        for _ in 0..self.campaign.warm_up {
            if let Ok(meeting) = self.meeting(&program.commands, point) {
                let _ = meeting.programs.run(self.stop);
            }
        }
    }

    /// The programs of a point.
    fn meeting(&self, commands: &Commands, point: &Point) -> Result<Meeting, Failure> {
        let topology = Topology::of(&point.path)?;
        let mut meeting = Meeting {
            command: String::new(),
            words: Vec::new(),
            programs: Programs {
                servers: Vec::new(),
                clients: Vec::new(),
                server_ends: commands.server_ends,
                limit: self.campaign.limit,
                group: Group::Own,
            },
            pairs: Vec::new(),
        };
        // Port and index of each server that several clients share.
        let mut shared: BTreeMap<usize, (u16, usize)> = BTreeMap::new();
        for number in 0..topology.pairs() {
            let (client, server) = topology.pair(number);
            let known = shared.get(&server).copied().filter(|_| commands.shared_server);
            let port = match known {
                Some((port, _)) => port,
                None => self.executor.port().map_err(Failure::Port)?,
            };
            let words = self.words(commands, point, server, port)?;
            let place = Ends {
                client: End { side: Side::Client, number: client },
                server: End { side: Side::Server, number: server },
                pair: (topology.pairs() > 1).then_some(number),
            };
            let index = match (known, words.server) {
                (Some((_, index)), _) => Some(index),
                (None, None) => None,
                (None, Some(words)) => {
                    let ready = match &commands.start {
                        Start::Listens => Ready::Listens(port),
                        Start::Asleep => Ready::Asleep,
                        Start::Says(text) => Ready::Says(text.clone()),
                    };
                    let name = self.name(place.server, place.pair, &words);
                    meeting.words.push(words.clone());
                    let served = self.executor.serve(place.server, name, &words, ready);
                    meeting.programs.servers.push(served.map_err(Failure::Program)?);
                    let index = meeting.programs.servers.len() - 1;
                    shared.insert(server, (port, index));
                    Some(index)
                }
            };
            let name = self.name(place.client, place.pair, &words.client);
            let client = self.executor.launch(place.client, name, &words.client);
            meeting.programs.clients.push(client.map_err(Failure::Program)?);
            if meeting.command.is_empty() {
                meeting.command = words.client.join(" ");
            }
            meeting.words.push(words.client);
            meeting.pairs.push(PairOf {
                client: self.executor.host(place.client),
                server: self.executor.host(place.server),
                index,
            });
        }
        Ok(meeting)
    }

    /// The name of a program for errors.
    fn name(&self, end: End, pair: Option<usize>, words: &[String]) -> String {
        let word = words.first().map_or("", String::as_str);
        let number = pair.map_or_else(String::new, |pair| format!(" {}", pair + 1));
        let host = self.executor.host(end).filter(|_| pair.is_some() || self.executor.is_remote());
        let host = host.map_or_else(String::new, |host| format!(" on {host}"));
        format!("the {}{number}{host}, {word}", end.side.name())
    }

    /// The words of both programs.
    fn words(
        &self,
        commands: &Commands,
        point: &Point,
        server: usize,
        port: u16,
    ) -> Result<Words, Failure> {
        let addresses = self.executor.addresses(server)?;
        if let (true, Some(why)) = (commands.is_tcp, addresses.off_path) {
            return Err(Failure::OffPath(why));
        }
        let port = port.to_string();
        let value = |name: &str| match name {
            ADDRESS => Some(addresses.rdma.as_str()),
            TCP => Some(addresses.tcp.as_str()),
            PORT => Some(port.as_str()),
            _ => point.settings.get(name).map(|value| value.text.as_str()),
        };
        Ok(Words {
            client: commands.client.fill(value),
            server: commands.server.as_ref().map(|server| server.fill(value)),
        })
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
