//! `longhaul decode`: a capture of RoCEv2 traffic, one line or one JSON object per frame.
//!
//! The file streams through a small buffer, so its size does not matter. `decode/model.rs` parses
//! frames, `decode/text.rs` formats them.

mod cm;
mod model;
mod text;

use longhaul_wire::pcap::{CaptureError, Decoder, LinkType, Record, Step};
use model::{Content, Icrc, Line};
use std::fs::File;
use std::io::{self, BufWriter, IsTerminal as _, Read, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

const EXAMPLES: &str = "\
Examples:
  longhaul decode out/demo/packets.pcap
  longhaul decode --limit 20 capture.pcapng
  longhaul decode --qp 0x11 --qp 0x12 capture.pcap
  longhaul decode --json capture.pcap | jq 'select(.aeth.nak != null)'
  tcpdump -i eth0 -w - udp port 4791 | longhaul decode -

Exit code: 0, all packets valid; 1, a wrong ICRC or a malformed packet; 2, not a capture, or one
that cannot be read to its end.";

/// Command line of `longhaul decode`.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// A pcap or pcapng file; - reads standard input
    capture: PathBuf,
    /// Print one JSON object per frame
    #[arg(long)]
    json: bool,
    /// Stop after printing this many frames
    #[arg(long, value_name = "N")]
    limit: Option<u64>,
    /// Print only packets to this queue pair, 0x11 or 17; may be repeated
    #[arg(long, value_name = "QPN", value_parser = parse_qpn)]
    qp: Vec<u32>,
}

fn parse_qpn(text: &str) -> Result<u32, String> {
    let parsed = match text.strip_prefix("0x") {
        Some(hex) => u32::from_str_radix(hex, 16),
        None => text.parse(),
    };
    match parsed {
        Ok(qpn) if qpn < 1 << 24 => Ok(qpn),
        _ => Err("a queue pair number is 0 to 0xffffff".to_owned()),
    }
}

/// Why decoding ended before the end of the capture.
#[derive(Debug, thiserror::Error)]
enum Failure {
    #[error("cannot open {0}: {1}")]
    Open(String, io::Error),
    #[error("cannot read {0}: {1}")]
    Read(String, io::Error),
    #[error("{0} is no capture: {1}{hint}", hint = hint(.1))]
    NoCapture(String, CaptureError),
    #[error("{0} is damaged: it {1}; {2} frames were read before")]
    Damaged(String, CaptureError, u64),
    #[error(
        "{0} holds frames of link type {1} instead of Ethernet; capture on one interface, not on \
         \"any\""
    )]
    LinkType(String, u16),
    #[error("cannot write: {0}")]
    Write(io::Error),
    /// The reader of the output has closed it.
    #[error("broken pipe")]
    BrokenPipe,
}

fn hint(error: &CaptureError) -> &'static str {
    match error {
        CaptureError::NoCapture([0x1f, 0x8b, ..]) => "; it is compressed: unpack it with gunzip",
        CaptureError::NoCapture([0x28, 0xb5, 0x2f, 0xfd]) => {
            "; it is compressed: unpack it with unzstd"
        }
        _ => "",
    }
}

impl Failure {
    fn write(error: io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::BrokenPipe => Failure::BrokenPipe,
            _ => Failure::Write(error),
        }
    }
}

/// Errors in the frames so far.
#[derive(Default)]
struct Tally {
    frames: u64,
    printed: u64,
    ethernet: u64,
    other_link_type: Option<u16>,
    wrong_icrc: Numbers,
    malformed: Numbers,
}

/// Number of frames, and the first of them.
#[derive(Default)]
struct Numbers {
    count: u64,
    first: Vec<u64>,
}

impl Numbers {
    const SHOWN: usize = 8;

    fn add(&mut self, frame: u64) {
        self.count += 1;
        if self.first.len() < Self::SHOWN {
            self.first.push(frame);
        }
    }

    fn describe(&self, what: &str) -> Option<String> {
        let frames: Vec<_> = self.first.iter().map(u64::to_string).collect();
        let more = if self.count as usize > Self::SHOWN { ", …" } else { "" };
        let (noun, frame) =
            if self.count == 1 { ("packet", "frame") } else { ("packets", "frames") };
        (self.count > 0)
            .then(|| format!("{} {noun} {what} ({frame} {}{more})", self.count, frames.join(", ")))
    }
}

impl Tally {
    fn report(&self) -> Option<String> {
        let parts =
            [self.wrong_icrc.describe("with a wrong ICRC"), self.malformed.describe("malformed")];
        let parts: Vec<_> = parts.into_iter().flatten().collect();
        (!parts.is_empty()).then(|| parts.join(", "))
    }
}

/// Prints the capture. Exit code 0; 1 if an ICRC is wrong or a packet malformed; 2 if the file is
/// not a capture or cannot be read to its end.
pub fn run(args: &Args) -> ExitCode {
    let mut tally = Tally::default();
    let outcome = open(&args.capture).and_then(|(name, input)| {
        let mut out = BufWriter::with_capacity(1 << 16, io::stdout().lock());
        let outcome = decode(args, &name, input, &mut out, &mut tally);
        let flushed = out.flush().map_err(Failure::write);
        outcome.and(flushed)
    });
    if let Some(report) = tally.report() {
        eprintln!("longhaul decode: {report}");
    }
    match outcome {
        Err(Failure::BrokenPipe) | Ok(()) => match tally.report() {
            Some(_) => ExitCode::from(1),
            None => ExitCode::SUCCESS,
        },
        Err(failure) => {
            eprintln!("longhaul decode: {failure}");
            ExitCode::from(2)
        }
    }
}

/// The input and its name.
fn open(path: &Path) -> Result<(String, Box<dyn Read>), Failure> {
    if path == Path::new("-") {
        let name = "standard input".to_owned();
        if io::stdin().is_terminal() {
            let error = io::Error::other("it is a terminal; give a capture file or pipe one in");
            return Err(Failure::Read(name, error));
        }
        return Ok((name, Box::new(io::stdin().lock())));
    }
    let name = path.display().to_string();
    match File::open(path) {
        Ok(file) => Ok((name, Box::new(file))),
        Err(error) => Err(Failure::Open(name, error)),
    }
}

fn decode(
    args: &Args,
    name: &str,
    mut input: impl Read,
    out: &mut impl Write,
    tally: &mut Tally,
) -> Result<(), Failure> {
    let mut decoder = Decoder::new();
    let mut buffer = Window::new();
    let mut begun = false;
    let mut epoch_ns = None;
    while args.limit.is_none_or(|limit| tally.printed < limit) {
        let failed = |error, frames| match begun {
            true => Failure::Damaged(name.to_owned(), error, frames),
            false => Failure::NoCapture(name.to_owned(), error),
        };
        match decoder.step(buffer.bytes()).map_err(|e| failed(e, tally.frames))? {
            Step::NeedMore { bytes } => {
                // Flush before waiting for input, which may be a live capture.
                out.flush().map_err(Failure::write)?;
                if !buffer.fill(&mut input, bytes).map_err(|e| Failure::Read(name.to_owned(), e))? {
                    decoder.finish(buffer.bytes()).map_err(|e| failed(e, tally.frames))?;
                    break;
                }
            }
            Step::Skip { consumed } => {
                begun |= consumed > 0;
                buffer.consume(consumed);
            }
            Step::Packet { consumed, record } => {
                let epoch_ns = *epoch_ns.get_or_insert(record.timestamp_ns.unwrap_or(0));
                show(args, &record, epoch_ns, out, tally).map_err(Failure::write)?;
                buffer.consume(consumed);
            }
        }
    }
    match tally.other_link_type {
        Some(link_type) if tally.ethernet == 0 => {
            Err(Failure::LinkType(name.to_owned(), link_type))
        }
        _ => Ok(()),
    }
}

fn show(
    args: &Args,
    record: &Record<'_>,
    epoch_ns: u64,
    out: &mut impl Write,
    tally: &mut Tally,
) -> io::Result<()> {
    tally.frames += 1;
    let line = Line::read(tally.frames, record);
    match record.link_type {
        LinkType::ETHERNET => tally.ethernet += 1,
        LinkType(other) => tally.other_link_type = Some(other),
    }
    match &line.content {
        Content::Roce(packet) if matches!(packet.icrc, Icrc::Wrong { .. }) => {
            tally.wrong_icrc.add(line.frame)
        }
        Content::Malformed { .. } => tally.malformed.add(line.frame),
        _ => {}
    }
    if !args.qp.is_empty() {
        match &line.content {
            Content::Roce(packet) if args.qp.contains(&packet.destination_qp) => {}
            _ => return Ok(()),
        }
    }
    tally.printed += 1;
    if args.json {
        serde_json::to_writer(&mut *out, &line)?;
        out.write_all(b"\n")
    } else {
        text::write_line(out, &line, epoch_ns)
    }
}

/// Input that has been read but not consumed.
struct Window {
    bytes: Vec<u8>,
    from: usize,
    to: usize,
}

impl Window {
    const LEN: usize = 256 << 10;

    fn new() -> Self {
        Window { bytes: vec![0; Self::LEN], from: 0, to: 0 }
    }

    fn bytes(&self) -> &[u8] {
        &self.bytes[self.from..self.to]
    }

    fn consume(&mut self, bytes: usize) {
        self.from += bytes;
    }

    /// Reads until at least `wanted` bytes are available. Returns `false` at the end of the input.
    fn fill(&mut self, input: &mut impl Read, wanted: usize) -> io::Result<bool> {
        self.bytes.copy_within(self.from..self.to, 0);
        self.to -= self.from;
        self.from = 0;
        if self.bytes.len() < wanted {
            self.bytes.resize(wanted, 0);
        }
        while self.to < wanted {
            match input.read(&mut self.bytes[self.to..]) {
                Ok(0) => return Ok(false),
                Ok(read) => self.to += read,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(true)
    }
}

#[cfg(test)]
mod tests;
