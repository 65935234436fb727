//! `longhaul ingest send`.

use super::{ibverbs, replay, software};
use crate::output;
use crate::problem::Problem;
use crate::signals::stop_flag;
use longhaul_boxes::number::{at_least, within};
use longhaul_boxes::quantity::Size;
use longhaul_ingest::device::{Device, Transport};
use longhaul_ingest::sender::{Sender, SenderError, Sent, Source, Station};
use longhaul_units::BitRate;
use serde::Serialize;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::atomic::Ordering;
use std::time::Duration;

const EXAMPLES: &str = "\
Examples:
  longhaul exec --host a -- longhaul ingest send 10.77.0.2:7700 --rate 2G --windows 1000
  longhaul exec --host a -- longhaul ingest send b:7700 --subbands 122 --blocks 4 --packet-rate 700
  longhaul exec --host a -- longhaul ingest send b:7700 --jitter-us 50 --gap 1e-3
  longhaul exec --host a -- longhaul ingest send b:7700 --file observation.raw
  longhaul exec --host a -- longhaul ingest send b:7700 --replay station.pcap --port 7148

A window has SUBBANDS x BLOCKS messages; the receiver's 'slots' and 'message_bytes' must agree. Each
subband has a queue pair, and the messages of the subbands alternate exactly unless --list is above
1. Exit code: 0, all was sent; 1, something failed.";

/// Command line.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// The receiver's session address
    #[arg(value_name = "HOST:PORT")]
    to: String,
    /// Use this device of libibverbs, for example mlx5_0 [default: the software RNIC of 'longhaul
    /// exec']
    #[arg(long, value_name = "NAME")]
    device: Option<String>,
    /// Number of this sender
    #[arg(long, default_value_t = 0, value_name = "N")]
    stream: u32,
    /// Use RC queue pairs: the device retransmits
    #[arg(long)]
    rc: bool,
    /// Subbands, each with its queue pair
    #[arg(long, default_value_t = 16, value_parser = within::<u32>(1..=65536), value_name = "N")]
    subbands: u32,
    /// Messages of a subband per window
    #[arg(long, default_value_t = 16, value_parser = within::<u32>(1..=1 << 24), value_name = "N")]
    blocks: u32,
    /// Bytes of a message
    #[arg(long, default_value = "8K", conflicts_with = "samples", value_name = "SIZE")]
    message: Size,
    /// Samples of a message, with --sample-bytes
    #[arg(long, requires = "sample_bytes", value_name = "N")]
    samples: Option<u32>,
    /// Bytes of a sample
    #[arg(long, requires = "samples", value_name = "BYTES")]
    sample_bytes: Option<u32>,
    /// Payload rate of all subbands together [default: as fast as the device]
    #[arg(long, value_name = "RATE")]
    rate: Option<BitRate>,
    /// Messages per second of a subband, instead of --rate
    #[arg(long, conflicts_with = "rate", value_name = "N")]
    packet_rate: Option<f64>,
    /// Largest delay of a message behind its schedule, in microseconds
    #[arg(long, default_value_t = 0.0, value_name = "US")]
    jitter_us: f64,
    /// Probability that a message is not sent
    #[arg(long, default_value_t = 0.0, value_name = "P")]
    gap: f64,
    /// Work requests of a subband that are posted in one list
    #[arg(long, default_value_t = 1, value_parser = within::<u32>(1..=128), value_name = "N")]
    list: u32,
    /// Mark every N-th message of a subband as solicited
    #[arg(long, default_value_t = 0, value_name = "N")]
    solicit: u32,
    /// Windows to send [default: until Ctrl-C]
    #[arg(long, value_name = "N", value_parser = at_least(1))]
    windows: Option<u64>,
    /// Number of the first window [default: the receiver decides]
    #[arg(long, value_name = "N")]
    first_window: Option<u64>,
    /// Do not announce what was sent, as a hardware sender does not
    #[arg(long)]
    silent: bool,
    /// Seed of jitter and gaps
    #[arg(long, default_value_t = 1, value_name = "N")]
    seed: u64,
    /// Send the bytes of this file, again and again [default: a pattern that --verify checks]
    #[arg(long, value_name = "FILE", conflicts_with = "untouched")]
    file: Option<PathBuf>,
    /// Send the payloads of a capture's UDP packets, at the captured times or at --rate; the first
    /// one's length is that of all messages
    #[arg(long, value_name = "FILE.PCAP")]
    #[arg(conflicts_with_all = ["file", "untouched", "message", "samples", "list"])]
    replay: Option<PathBuf>,
    /// Replay only packets to this UDP port
    #[arg(long, value_name = "N", requires = "replay")]
    port: Option<u16>,
    /// Send memory as it is, so that no processor touches it
    #[arg(long)]
    untouched: bool,
    /// Print one JSON object instead of text
    #[arg(long)]
    json: bool,
}

/// Result for programs.
#[derive(Serialize)]
struct Summary {
    windows: u64,
    messages: u64,
    unsent: u64,
    bytes: u64,
    completed_bytes: u64,
    elapsed_s: f64,
    /// Rate of `completed_bytes`.
    rate_bps: f64,
    behind_s: f64,
    present: Option<u64>,
    missing: Option<u64>,
}

/// Runs the sender.
pub fn run(args: &Args) -> Result<ExitCode, Problem> {
    let station = station(args)?;
    let sent = match &args.device {
        Some(name) => send(&ibverbs(name)?, args, station)?,
        None => send(&software()?, args, station)?,
    };
    output::print(&if args.json { output::to_json(&summary(&sent))? + "\n" } else { text(&sent) })?;
    Ok(ExitCode::SUCCESS)
}

fn send<D: Device>(device: &D, args: &Args, station: Station) -> Result<Sent, Problem> {
    let stop = stop_flag()?;
    let sender = Sender::connect(device, &args.to, station).map_err(|e| problem(&e))?;
    eprintln!("longhaul: sending to {} from window {}", args.to, sender.first_window());
    let mut printed = Duration::ZERO;
    let mut before = Sent::default();
    let print = |sent: &Sent| {
        if sent.elapsed >= printed + Duration::from_secs(1) {
            let bits = (sent.completed_bytes - before.completed_bytes) as f64 * 8.0;
            let rate = bits / (sent.elapsed - before.elapsed).as_secs_f64() / 1e9;
            eprintln!("{rate:7.3} Gbit/s  window {}", sent.windows);
            (printed, before) = (sent.elapsed, *sent);
        }
    };
    let sent = sender.run(&stop, print).map_err(|error| problem(&error))?;
    if stop.load(Ordering::Relaxed) {
        eprintln!("longhaul: interrupted");
    }
    Ok(sent)
}

fn problem(error: &SenderError) -> Problem {
    match error {
        SenderError::Connect { .. } => {
            Problem::new(error.to_string(), "start 'longhaul ingest receive' there first")
        }
        _ => Problem::plain(error.to_string()),
    }
}

fn station(args: &Args) -> Result<Station, Problem> {
    let bytes = match (args.samples, args.sample_bytes) {
        (Some(samples), Some(each)) => u64::from(samples) * u64::from(each),
        _ => args.message.bytes(),
    };
    let recorded = args.replay.as_ref().map(|path| replay::read(path, args.port)).transpose()?;
    let message_bytes = match &recorded {
        Some((_, bytes)) => *bytes,
        None => u32::try_from(bytes).map_err(|_| Problem::plain("a message has at most 4 GiB"))?,
    };
    let of_packets = args
        .packet_rate
        .map(|rate| rate * f64::from(args.subbands) * f64::from(message_bytes) * 8.0);
    let source = match (recorded, &args.file) {
        (Some((recording, _)), _) => Source::Recorded(recording),
        (None, Some(path)) => {
            Source::Bytes(std::fs::read(path).map_err(|e| Problem::io("read", path, &e))?)
        }
        (None, None) if args.untouched => Source::Unchanged,
        (None, None) => Source::Pattern,
    };
    if !(0.0..=60e6).contains(&args.jitter_us) {
        return Err(Problem::plain("the jitter must be from 0 to 60,000,000 microseconds"));
    }
    Ok(Station {
        stream: args.stream,
        transport: if args.rc { Transport::Rc } else { Transport::Uc },
        subbands: args.subbands,
        blocks: args.blocks,
        message_bytes,
        rate: args.rate.map(|rate| rate.as_bps() as f64).or(of_packets),
        jitter: Duration::from_secs_f64(args.jitter_us / 1e6),
        gap: args.gap,
        list: args.list,
        solicit: args.solicit,
        windows: args.windows,
        first_window: args.first_window,
        announce: !args.silent,
        seed: args.seed,
        source,
    })
}

fn summary(sent: &Sent) -> Summary {
    Summary {
        windows: sent.windows,
        messages: sent.messages,
        unsent: sent.unsent,
        bytes: sent.bytes,
        completed_bytes: sent.completed_bytes,
        elapsed_s: sent.elapsed.as_secs_f64(),
        rate_bps: sent.rate(),
        behind_s: sent.behind.as_secs_f64(),
        present: sent.received.map(|(present, _)| present),
        missing: sent.received.map(|(_, missing)| missing),
    }
}

fn text(sent: &Sent) -> String {
    let mut text = format!(
        "{} messages of {} windows sent in {:.1} s: {:.3} Gbit/s; {} left out\n",
        sent.messages,
        sent.windows,
        sent.elapsed.as_secs_f64(),
        sent.rate() / 1e9,
        sent.unsent
    );
    match sent.received {
        Some((present, missing)) => {
            text +=
                &format!("  the receiver has {present} of this stream, {missing} are missing\n");
        }
        None => text += "  the receiver did not say what arrived\n",
    }
    text
}
