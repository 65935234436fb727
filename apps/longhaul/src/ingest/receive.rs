//! `longhaul ingest receive`.

use super::presence::{Presence, Table};
use super::summary::{Summary, live};
use super::{health, ibverbs, software};
use crate::output;
use crate::problem::Problem;
use crate::signals::stop_flag;
use longhaul_bench::Report;
use longhaul_boxes::number::{at_least, within};
use longhaul_boxes::quantity::Size;
use longhaul_ingest::chunk::Chunk;
use longhaul_ingest::layout::Shape;
use longhaul_ingest::pattern;
use longhaul_ingest::receiver::Receiver;
use longhaul_ingest::ring::Fate;
use longhaul_ingest::session::{self, ToHardware};
use longhaul_ingest::settings::{Settings, Wait};
use longhaul_ingest::sink::{Dada, Discard, Guppi, Hdf5, Header, Raw, Sink, SinkError};
use serde::Deserialize;
use serde::de::{DeserializeOwned, IntoDeserializer};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::str::FromStr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

const EXAMPLES: &str = "\
Examples:
  longhaul exec --host b -- longhaul ingest receive --verify
  longhaul ingest receive --example > station.toml
  longhaul exec --host b -- longhaul ingest receive --config station.toml --sink raw:/data
  longhaul exec --host b -- longhaul ingest receive --sink guppi:/data --header observation.toml
  longhaul exec --host b -- longhaul ingest receive --until-idle --report presence.html
  longhaul ingest receive --device mlx5_0 --config station.toml --static receiver.json
  longhaul exec --host b -- longhaul ingest receive --seconds 10 --json
  longhaul exec --host b -- longhaul ingest receive --health 127.0.0.1

It ends after --windows or --seconds, or with Ctrl-C: windows that are incomplete then are delivered
with what they have. A second Ctrl-C ends it at once. Exit code: 0, it ended as asked; 1, something
failed, --verify found damage, or the sink failed. What the figures mean: docs/ingest.md.";

/// A commented settings file.
pub const EXAMPLE: &str = include_str!("example.toml");

/// Longest wait for the sink after the end.
const SINK_WITHIN: Duration = Duration::from_secs(10);
/// Time between two looks at what has changed.
const TICK: Duration = Duration::from_millis(50);

/// Command line.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// A settings file, TOML or JSON
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Print a commented example of a settings file
    #[arg(long, exclusive = true)]
    example: bool,
    /// TCP address for sessions
    #[arg(long, value_name = "ADDRESS:PORT")]
    listen: Option<SocketAddr>,
    /// Number of streams
    #[arg(long, value_name = "N")]
    streams: Option<u32>,
    /// Messages of a stream per window
    #[arg(long, value_name = "N")]
    slots: Option<u32>,
    /// Bytes of a message
    #[arg(long, value_name = "SIZE")]
    message: Option<Size>,
    /// Regions of a ring, a power of two
    #[arg(long, value_name = "N")]
    regions: Option<u32>,
    /// How completion threads wait: events, solicited (only for messages that senders mark), or
    /// poll (the highest rate, a whole processor each)
    #[arg(long, value_name = "HOW", value_parser = wait)]
    wait: Option<Wait>,
    /// Destination of the chunks: discard, raw:DIR, guppi:DIR, dada:DIR or hdf5:FILE
    #[arg(long, value_name = "SINK", default_value = "discard")]
    sink: SinkName,
    /// A TOML or JSON file of keys about the observation, for the sink's headers
    #[arg(long, value_name = "FILE")]
    header: Option<PathBuf>,
    /// Use this device of libibverbs, for example mlx5_0 [default: the software RNIC of 'longhaul
    /// exec']
    #[arg(long, value_name = "NAME")]
    device: Option<String>,
    /// Write what the configuration's senders without a session need: QPNs, PSNs, GID, MAC, keys
    /// and addresses, as JSON
    #[arg(long = "static", value_name = "FILE", requires = "config")]
    static_file: Option<PathBuf>,
    /// Serve GET /healthz, /readyz, /metrics and /state over plain HTTP at this address, without
    /// authentication: use a loopback or management address [default port: 9187]
    #[arg(long, value_name = "ADDRESS[:PORT]")]
    health: Option<longhaul_health::Address>,
    /// Write an HTML report with a heat map of presence by station and time
    #[arg(long, value_name = "FILE.html")]
    report: Option<PathBuf>,
    /// Check the bytes of each message against the senders' pattern
    #[arg(long)]
    verify: bool,
    /// End after this number of windows
    #[arg(long, value_name = "N", value_parser = at_least(1))]
    windows: Option<u64>,
    /// End after this time, in seconds
    #[arg(long, value_name = "S", value_parser = within::<u64>(1..=1_000_000_000))]
    seconds: Option<u64>,
    /// End when the last of the senders has ended
    #[arg(long)]
    until_idle: bool,
    /// Print one JSON object instead of text
    #[arg(long)]
    json: bool,
}

/// Destination of the chunks.
#[derive(Clone, Debug, PartialEq, Eq)]
enum SinkName {
    Discard,
    Raw(PathBuf),
    Guppi(PathBuf),
    Dada(PathBuf),
    Hdf5(PathBuf),
}

impl FromStr for SinkName {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text.split_once(':') {
            None if text == "discard" => Ok(SinkName::Discard),
            Some(("raw", dir)) if !dir.is_empty() => Ok(SinkName::Raw(dir.into())),
            Some(("guppi", dir)) if !dir.is_empty() => Ok(SinkName::Guppi(dir.into())),
            Some(("dada", dir)) if !dir.is_empty() => Ok(SinkName::Dada(dir.into())),
            Some(("hdf5", file)) if !file.is_empty() => Ok(SinkName::Hdf5(file.into())),
            _ => Err("a sink is discard, raw:DIR, guppi:DIR, dada:DIR or hdf5:FILE"),
        }
    }
}

impl SinkName {
    fn open(&self, header: Header, shape: Shape) -> Result<Box<dyn Sink>, SinkError> {
        let directory = |dir: &Path| std::fs::create_dir_all(dir).map_err(SinkError::at(dir));
        Ok(match self {
            SinkName::Discard => Box::new(Discard),
            SinkName::Raw(dir) => {
                directory(dir)?;
                Box::new(Raw::create(dir)?)
            }
            SinkName::Guppi(dir) => {
                directory(dir)?;
                Box::new(Guppi::create(dir, header, shape)?)
            }
            SinkName::Dada(dir) => {
                directory(dir)?;
                Box::new(Dada::create(dir, header, shape)?)
            }
            SinkName::Hdf5(file) => Box::new(Hdf5::create(file, &header, shape)?),
        })
    }
}

/// Counts of the thread that takes chunks.
pub struct Taken {
    /// Whether messages are checked against their senders' pattern.
    verifies: bool,
    windows: AtomicU64,
    damaged: AtomicU64,
    /// Messages overwritten while their chunk was held.
    pub overwritten: AtomicU64,
    /// Windows that the sink did not take.
    pub unwritten: AtomicU64,
    presence: Mutex<Presence>,
    failure: Mutex<Option<String>>,
    /// No chunk will come any more: what is queued is the rest.
    is_last: AtomicBool,
}

impl Taken {
    /// Nothing yet, of a receiver of this number of streams that verifies or not.
    pub fn new(streams: u32, verifies: bool) -> Self {
        Taken {
            verifies,
            windows: AtomicU64::new(0),
            damaged: AtomicU64::new(0),
            overwritten: AtomicU64::new(0),
            unwritten: AtomicU64::new(0),
            presence: Mutex::new(Presence::new(streams)),
            failure: Mutex::default(),
            is_last: AtomicBool::new(false),
        }
    }

    fn presence(&self) -> MutexGuard<'_, Presence> {
        self.presence.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Why the sink failed, if it has.
    pub fn failure(&self) -> Option<String> {
        self.failure.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Messages with other bytes than their sender's pattern; `None` without --verify.
    pub fn damaged(&self) -> Option<u64> {
        self.verifies.then(|| self.damaged.load(Ordering::Relaxed))
    }

    fn fail(&self, text: String) {
        *self.failure.lock().unwrap_or_else(PoisonError::into_inner) = Some(text);
    }
}

/// Runs the receiver.
pub fn run(args: &Args) -> Result<ExitCode, Problem> {
    if args.example {
        output::print(EXAMPLE)?;
        return Ok(ExitCode::SUCCESS);
    }
    let settings = settings(args)?;
    let plain = |error: &dyn std::fmt::Display| Problem::plain(error.to_string());
    let header = match &args.header {
        Some(path) => read(path, "keys and values, one a line: OBSFREQ = 1420.0")?,
        None => Header::default(),
    };
    let shape = settings.shape();
    shape.check().map_err(|error| plain(&error))?;
    let sink = args.sink.open(header, shape).map_err(|error| plain(&error))?;
    let health = args.health.map(health::listen).transpose()?;
    let stop = stop_flag()?;
    let receiver = match &args.device {
        Some(name) => Receiver::start(ibverbs(name)?, settings),
        None => Receiver::start(software()?, settings),
    }
    .map_err(|error| plain(&error))?;
    if let Some(path) = &args.static_file {
        write_static(path, &receiver)?;
    }
    eprintln!("longhaul: receiving; senders connect to {}", receiver.address());
    let begun = Instant::now();
    let taken = Arc::new(Taken::new(shape.streams, args.verify));
    let receiver = Arc::new(receiver);
    if let Some(listener) = health {
        health::serve(&listener, &receiver, &taken)?;
    }
    let taker = {
        let (receiver, taken) = (Arc::clone(&receiver), Arc::clone(&taken));
        std::thread::spawn(move || take_all(&receiver, sink, &taken))
    };
    watch(args, &receiver, &taken, &stop, begun);
    let (elapsed, has_failed) = (begun.elapsed(), receiver.has_stopped());
    receiver.stop();
    print_notices(&receiver);
    let statistics = receiver.statistics();
    taken.is_last.store(true, Ordering::Relaxed);
    let limit = Instant::now() + SINK_WITHIN;
    while !taker.is_finished() && Instant::now() < limit {
        std::thread::sleep(TICK);
    }
    if !taker.is_finished() {
        let text = format!("the sink takes no data for {} s", SINK_WITHIN.as_secs());
        eprintln!("longhaul: {text}: what it has not taken is lost");
        taken.fail(text);
    }
    let code = finish(args, Summary::of(&statistics, elapsed), &taken)?;
    Ok(if has_failed { ExitCode::FAILURE } else { code })
}

fn finish(args: &Args, summary: Summary, taken: &Taken) -> Result<ExitCode, Problem> {
    let presence = taken.presence().table();
    if let Some(path) = &args.report {
        report(path, &presence, &summary)?;
    }
    let summary = Summary { presence: Some(presence), ..summary.with(taken) };
    output::print(&if args.json { output::to_json(&summary)? + "\n" } else { summary.text() })?;
    let is_well = summary.sink_failure.is_none() && summary.damaged.unwrap_or(0) == 0;
    Ok(if is_well { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Writes the file for senders without a session.
fn write_static(path: &Path, receiver: &Receiver) -> Result<(), Problem> {
    let streams = receiver.static_streams();
    if streams.is_empty() {
        let cure = "give it [[senders]], as 'longhaul ingest receive --example' shows";
        return Err(Problem::new("the configuration has no senders for --static", cure));
    }
    let line = session::to_line(&ToHardware::Static(streams.to_vec()))
        .map_err(|error| Problem::plain(error.to_string()))?;
    std::fs::write(path, line).map_err(|error| Problem::io("write", path, &error))
}

/// Writes the report of presence.
fn report(path: &Path, presence: &Table, summary: &Summary) -> Result<(), Problem> {
    let outcome = summary.text();
    let mut report = Report::new("Longhaul: ingest");
    for line in outcome.lines() {
        report = report.notice(line.trim());
    }
    let note = format!("{:.1} s; uncoloured where no window was delivered", summary.elapsed_s);
    if let Some(map) = presence.map(note) {
        report = report.heat_map(map);
    }
    report.write_html(path).map_err(|error| Problem::plain(error.to_string()))
}

fn settings(args: &Args) -> Result<Settings, Problem> {
    let mut settings = match &args.config {
        Some(path) => read(path, "'longhaul ingest receive --example' prints a valid file")?,
        None => Settings::default(),
    };
    let Args { listen, streams, slots, message, regions, wait, .. } = args;
    if let Some(listen) = listen {
        settings.listen = *listen;
    }
    settings.streams = streams.unwrap_or(settings.streams);
    settings.slots = slots.unwrap_or(settings.slots);
    settings.regions = regions.unwrap_or(settings.regions);
    settings.wait = wait.unwrap_or(settings.wait);
    if args.until_idle && !settings.senders.is_empty() {
        let cause = "senders without a session never end, so --until-idle would not";
        return Err(Problem::new(cause, "use --windows or --seconds"));
    }
    if let Some(message) = message {
        settings.message_bytes = u32::try_from(message.bytes())
            .map_err(|_| Problem::plain("a message has at most 4 GiB"))?;
    }
    Ok(settings)
}

fn wait(text: &str) -> Result<Wait, serde::de::value::Error> {
    Wait::deserialize(text.into_deserializer())
}

/// Reads a TOML or JSON file; `cure` says what a valid one has.
fn read<T: DeserializeOwned>(path: &Path, cure: &str) -> Result<T, Problem> {
    let text = std::fs::read_to_string(path).map_err(|e| Problem::io("read", path, &e))?;
    let is_json = path.extension().is_some_and(|extension| extension == "json");
    let parsed = if is_json {
        serde_json::from_str(&text).map_err(|error| error.to_string())
    } else {
        toml::from_str(&text).map_err(|error| error.to_string())
    };
    parsed.map_err(|error| {
        let cause = error.trim_end().replace('\n', " ");
        Problem::new(format!("{}: {cause}", path.display()), cure)
    })
}

/// Prints what happens until the end.
fn watch(args: &Args, receiver: &Receiver, taken: &Taken, stop: &AtomicBool, begun: Instant) {
    let (mut printed, mut before) = (Instant::now(), receiver.statistics());
    let mut had_senders = false;
    while !stop.load(Ordering::Relaxed) {
        std::thread::sleep(TICK);
        print_notices(receiver);
        let now = receiver.statistics();
        had_senders |= now.sessions > 0 || now.counts.arrivals > 0;
        if printed.elapsed() >= Duration::from_secs(1) {
            eprint!("{}", live(&before, &now, printed.elapsed()));
            (printed, before) = (Instant::now(), now.clone());
        }
        let is_over = receiver.has_stopped()
            || args.seconds.is_some_and(|s| begun.elapsed() >= Duration::from_secs(s))
            || args.windows.is_some_and(|n| taken.windows.load(Ordering::Relaxed) >= n)
            || (args.until_idle && had_senders && now.sessions == 0);
        if is_over {
            return;
        }
    }
}

fn print_notices(receiver: &Receiver) {
    for notice in receiver.notices() {
        eprintln!("longhaul: {notice}");
    }
}

/// Takes chunks until the last.
fn take_all(receiver: &Receiver, mut sink: Box<dyn Sink>, taken: &Taken) {
    let mut message = Vec::new();
    let mut is_well = true;
    loop {
        let is_last = taken.is_last.load(Ordering::Relaxed);
        let Some(chunk) = receiver.next(TICK) else {
            if is_last {
                break;
            }
            continue;
        };
        if taken.verifies {
            let damaged = damaged(&chunk, &mut message);
            taken.damaged.fetch_add(damaged, Ordering::Relaxed);
        }
        if is_well && let Err(error) = sink.take(&chunk) {
            is_well = false;
            eprintln!("longhaul: {error}; receiving goes on, and the data is counted only");
            taken.fail(error.to_string());
        }
        taken.presence().add(&chunk);
        taken.unwritten.fetch_add(u64::from(!is_well), Ordering::Relaxed);
        taken.overwritten.fetch_add(chunk.release(), Ordering::Relaxed);
        taken.windows.fetch_add(1, Ordering::Relaxed);
    }
    if is_well && let Err(error) = sink.finish() {
        taken.fail(error.to_string());
    }
}

/// Messages that are present and have other bytes than their sender's pattern.
fn damaged(chunk: &Chunk, message: &mut Vec<u8>) -> u64 {
    let shape = chunk.shape();
    message.resize(shape.message_bytes as usize, 0);
    let mut damaged = 0;
    for (index, fate) in (0_u32..).zip(chunk.fates()) {
        if *fate == Fate::Present {
            chunk.read(index as usize, message);
            let stream = chunk.stream_id() + index / shape.slots;
            let slot = index % shape.slots;
            damaged += u64::from(!pattern::matches(message, stream, chunk.chunk_id(), slot));
        }
    }
    damaged
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_example_is_the_default_and_says_every_key() {
        let settings: Settings = toml::from_str(EXAMPLE).expect("valid");
        assert_eq!(settings, Settings::default());
        let keys = serde_json::to_value(&settings).unwrap();
        for key in keys.as_object().unwrap().keys() {
            assert!(
                EXAMPLE.contains(&format!("{key} = ")) || EXAMPLE.contains(&format!("[{key}]"))
            );
        }
    }

    #[test]
    fn sinks_have_names() {
        assert_eq!("raw:/x".parse(), Ok(SinkName::Raw("/x".into())));
        assert!("raw:".parse::<SinkName>().is_err() && "tape".parse::<SinkName>().is_err());
    }
}
