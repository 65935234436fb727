//! `longhaul bench rnic`: speed of the software RNIC, and the breakdown of its cost.

mod figures;
mod line;
mod outcome;
mod peer;
mod text;

use super::datapath::seconds;
use super::pinning;
use super::reporting::{Reporting, Run};
use crate::problem::Problem;
use crate::sim::Failure;
use clap::ValueEnum;
use figures::{EndFigures, Start};
use line::Line;
use longhaul_boxes::Xdp;
use longhaul_boxes::quantity::Size;
use longhaul_datapath::{End, EndError, Operation, Role, TransferConfig, resident_bytes};
use longhaul_port::{LinkState, Port};
use longhaul_rnic::Mtu;
use outcome::{Cell, Outcome};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

const EXAMPLES: &str = "\
Examples:
  longhaul bench rnic
  longhaul bench rnic --over rings,memif --size 4K,64K,1M --op write,send,read
  longhaul bench rnic --over memif --cores 0,1 --parts          what the cycles of each end go into
  longhaul bench rnic --over xdp --interfaces veth0 veth1        as root, over an existing pair
  longhaul bench rnic --over rings --seconds 600 --memory-growth-max 8M
  longhaul bench rnic --out results.jsonl && longhaul report results.jsonl

Two ends of RC queue pairs, each the device that 'longhaul exec' gives to programs, with its port
and its turns: over rings in one thread, over memif and xdp in two processes. How to read the table:
docs/rnic.md. Give the machine nothing else to do.
Exit code: 0, measured; 1, something failed, or memory grew; 2, values that make no sense.";

/// Command line of `longhaul bench rnic`.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// Between the two ends; several are separated by commas
    #[arg(
        long,
        value_enum,
        value_delimiter = ',',
        default_value = "rings,memif",
        value_name = "LINE"
    )]
    over: Vec<Over>,
    /// What requesters do; several are separated by commas
    #[arg(
        long = "op",
        value_enum,
        value_delimiter = ',',
        default_value = "write",
        value_name = "OP"
    )]
    operations: Vec<OperationName>,
    /// Length of each message; several are separated by commas
    #[arg(long, value_delimiter = ',', default_value = "64K", value_name = "SIZE")]
    size: Vec<Size>,
    /// Path MTU
    #[arg(long, value_parser = mtu, default_value = "4096", value_name = "BYTES")]
    mtu: Mtu,
    /// Queue pairs; several are separated by commas
    #[arg(long, value_delimiter = ',', default_value = "1", value_name = "N")]
    qps: Vec<u32>,
    /// Messages of a queue pair that are under way
    #[arg(long, default_value_t = 16, value_name = "N")]
    depth: u32,
    /// Frames of each ring, of 'rings' and 'memif'
    #[arg(
        long,
        default_value_t = 512,
        value_parser = clap::value_parser!(u32).range(16..=16384),
        value_name = "N"
    )]
    ring: u32,
    /// The two ends of a cable for 'xdp', the requester's first, each as in
    /// xdp:INTERFACE[,OPTION...]
    #[arg(long, num_args = 2, value_names = ["A", "B"])]
    interfaces: Vec<Xdp>,
    /// Time for which each is measured
    #[arg(long, default_value_t = 2.0, value_parser = seconds, value_name = "S")]
    seconds: f64,
    /// Messages after which it ends, if that is earlier
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    messages: Option<u64>,
    /// Time under load before it is measured
    #[arg(long, default_value_t = 0.5, value_parser = seconds, value_name = "S")]
    warm_up: f64,
    /// Measure each once more with a watch, and tell what the cycles go into
    #[arg(long)]
    parts: bool,
    /// Processors to run on: the requester's, and over memif and xdp the responder's [default: any]
    #[arg(long, value_delimiter = ',', value_name = "CPU,CPU")]
    cores: Vec<usize>,
    #[command(flatten)]
    reporting: Reporting,
    /// Be the responder of another process, by the memif socket in this folder
    #[arg(long, hide = true, value_name = "DIR")]
    serve: Option<PathBuf>,
}

/// What is between the two ends.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub enum Over {
    /// Rings in one process, whose ends take turns
    Rings,
    /// Shared memory between two processes
    Memif,
    /// AF_XDP at both ends of a cable, in two processes
    Xdp,
}

impl Over {
    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Over::Rings => "rings",
            Over::Memif => "memif",
            Over::Xdp => "xdp",
        }
    }
}

/// What requesters do.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub enum OperationName {
    /// RDMA WRITE
    Write,
    /// SEND
    Send,
    /// RDMA READ; the responder sends
    Read,
}

impl OperationName {
    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            OperationName::Write => "write",
            OperationName::Send => "send",
            OperationName::Read => "read",
        }
    }
}

impl From<OperationName> for Operation {
    fn from(name: OperationName) -> Self {
        match name {
            OperationName::Write => Operation::Write,
            OperationName::Send => Operation::Send,
            OperationName::Read => Operation::Read,
        }
    }
}

fn mtu(text: &str) -> Result<Mtu, String> {
    let bytes: u32 = text.parse().map_err(|_| "write 256, 512, 1024, 2048 or 4096".to_owned())?;
    let found = (1..=5).filter_map(Mtu::from_code).find(|mtu| mtu.bytes() == bytes);
    found.ok_or_else(|| "no path MTU: 256, 512, 1024, 2048 and 4096 are".to_owned())
}

/// Measures, and prints the results.
pub fn run(args: &Args) -> ExitCode {
    let done = match &args.serve {
        Some(folder) => args.serve(folder.clone()),
        None => measure(args),
    };
    done.unwrap_or_else(|failure| failure.report("bench rnic"))
}

impl Args {
    /// Runs the responder for another process.
    fn serve(&self, folder: PathBuf) -> Result<ExitCode, Failure> {
        self.check()?;
        if let Some(&core) = self.cores.first() {
            pinning::pin(core)?;
        }
        let cells = self.cells();
        let cell = cells.first().ok_or_else(|| Problem::plain("nothing to serve"))?;
        let config = cell.transfer(self.parts);
        match self.line(cell.over, folder) {
            Line::Memif { folder, ring } => peer::serve(line::memif_slave(&folder, ring)?, config),
            Line::Xdp { responder, .. } => peer::serve(line::xdp(&responder)?, config),
            Line::Rings { .. } => {
                Err(Problem::plain("--serve: over rings there is one process").into())
            }
        }
    }

    fn line(&self, over: Over, folder: PathBuf) -> Line {
        match (over, self.interfaces.as_slice()) {
            (Over::Rings, _) => Line::Rings { frames: self.ring },
            (Over::Xdp, [requester, responder]) => {
                Line::Xdp { requester: requester.clone(), responder: responder.clone() }
            }
            (Over::Memif | Over::Xdp, _) => Line::Memif { folder, ring: self.ring },
        }
    }

    /// The cells to measure, in the order of the table.
    fn cells(&self) -> Vec<Cell> {
        let mut cells = Vec::new();
        for &over in &self.over {
            for &operation in &self.operations {
                for size in &self.size {
                    for &qps in &self.qps {
                        let message_bytes = u32::try_from(size.bytes()).unwrap_or(u32::MAX);
                        let (mtu, depth) = (self.mtu, self.depth);
                        cells.push(Cell { over, operation, message_bytes, mtu, qps, depth });
                    }
                }
            }
        }
        cells
    }

    fn check(&self) -> Result<(), Failure> {
        for cell in self.cells() {
            cell.transfer(false).check().map_err(Failure::value)?;
            if cell.over == Over::Xdp && self.interfaces.is_empty() {
                let why = "--over xdp: name both ends of a cable: --interfaces A B";
                return Err(Failure::value(why));
            }
        }
        if !self.ring.is_power_of_two() {
            return Err(Failure::value(format!("--ring {}: write a power of two", self.ring)));
        }
        let wanted = if self.over.iter().all(|over| *over == Over::Rings) { 1 } else { 2 };
        if !self.cores.is_empty() && self.cores.len() != wanted && self.serve.is_none() {
            let given = self.cores.len();
            return Err(Failure::value(format!("--cores: {given} given; it takes {wanted} here")));
        }
        Ok(())
    }
}

fn measure(args: &Args) -> Result<ExitCode, Failure> {
    args.check()?;
    args.reporting.measure(&args.cells(), args.cores.first().copied(), |run, cell, place| {
        Bench { args, run }.whole(cell, place)
    })
}

/// Time limit for links to come up, and for messages to end.
const PATIENCE: Duration = Duration::from_secs(20);
/// Steps between two checks of the clock.
const STEPS: u32 = 64;
/// Interval of progress reports and memory samples.
const LOOK_EVERY: Duration = Duration::from_millis(200);

/// The measurement of a cell.
struct Bench<'a> {
    args: &'a Args,
    run: &'a mut Run,
}

impl Bench<'_> {
    /// Measures a cell, with a second, instrumented run if requested.
    fn whole(&mut self, cell: &Cell, place: &str) -> Result<Outcome, Failure> {
        let mut outcome = self.one(cell, false, place)?;
        if self.args.parts {
            outcome.watched = Some(self.one(cell, true, &format!("{place}, watched"))?.ends);
        }
        Ok(outcome)
    }

    fn one(&mut self, cell: &Cell, is_watched: bool, place: &str) -> Result<Outcome, Failure> {
        let config = cell.transfer(is_watched);
        let sockets = super::datapath::served::Sockets::new()?;
        let ends = match self.args.line(cell.over, sockets.folder().to_owned()) {
            Line::Rings { frames } => {
                let (near, far) = line::rings(frames)?;
                let far = line::InOneThread::new(config, far)?;
                self.between(config, near, far, place)?
            }
            Line::Memif { folder, ring } => {
                let near = line::memif_master(&folder, ring)?;
                let far = peer::Child::start(self.args, cell, is_watched, &folder)?;
                self.between(config, near, far, place)?
            }
            Line::Xdp { requester, .. } => {
                let near = line::xdp(&requester)?;
                let far = peer::Child::start(self.args, cell, is_watched, sockets.folder())?;
                self.between(config, near, far, place)?
            }
        };
        Ok(Outcome::new(*cell, ends, &self.run.machine))
    }

    /// Measures a requester at `port` with a responder in this thread or elsewhere.
    fn between<P: Port, F: line::FarEnd>(
        &mut self,
        config: TransferConfig,
        port: P,
        mut far: F,
        place: &str,
    ) -> Result<[EndFigures; 2], Failure> {
        let mut near = End::new(Role::Requester, config, port).map_err(failure)?;
        near.connect(&far.introduce(&near.introduction())?).map_err(failure)?;
        let deadline = Instant::now() + PATIENCE;
        while near.service().map_err(failure)? == LinkState::Down {
            far.step()?;
            if Instant::now() >= deadline {
                return Err(Problem::plain("nobody came to the other end within 20 s").into());
            }
        }
        let [warm_up, lasts] = [self.args.warm_up, self.args.seconds].map(Duration::from_secs_f64);
        let whole = (Instant::now(), warm_up + lasts, place);
        self.work(&mut near, &mut far, warm_up, None, whole)?;
        far.begin()?;
        let start = Start::of(&mut near);
        let messages_max = self.args.messages.map(|more| near.counters().messages + more);
        let most = self.work(&mut near, &mut far, lasts, messages_max, whole)?;
        let near_figures = start.until_now(&near, most);
        let far_figures = far.end()?;
        near.stop();
        let deadline = Instant::now() + PATIENCE;
        while !near.is_quiet() {
            near.step().map_err(failure)?;
            far.step()?;
            if Instant::now() >= deadline {
                return Err(Problem::plain("messages did not end within 20 s").into());
            }
        }
        Ok([near_figures, far_figures])
    }

    /// Runs both ends for a time; returns the peak memory meanwhile.
    fn work<P: Port, F: line::FarEnd>(
        &mut self,
        near: &mut End<P>,
        far: &mut F,
        lasts: Duration,
        messages_max: Option<u64>,
        (began, whole, place): (Instant, Duration, &str),
    ) -> Result<u64, Failure> {
        let deadline = Instant::now() + lasts;
        let (mut look_at, mut most) = (Instant::now() + LOOK_EVERY, 0);
        loop {
            for _ in 0..STEPS {
                let is_busy = near.step().map_err(failure)? | far.step()?;
                if !is_busy {
                    std::thread::yield_now();
                }
            }
            let now = Instant::now();
            if now >= look_at {
                look_at = now + LOOK_EVERY;
                most = resident_bytes().max(most);
                let thousands = near.counters().messages as f64 / 1e3;
                let done = format_args!("{thousands:.0} thousand messages");
                if !self.run.goes_on(place, [now - began, whole], done, most) {
                    return Err(Problem::plain("interrupted").into());
                }
            }
            if now >= deadline || messages_max.is_some_and(|most| near.counters().messages >= most)
            {
                return Ok(most);
            }
        }
    }
}

fn failure(error: EndError) -> Failure {
    Failure::Other(Problem::plain(error.to_string()))
}
