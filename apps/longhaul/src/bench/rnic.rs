//! `longhaul bench rnic`: speed of the software RNIC, and the breakdown of its cost.

mod results;
mod text;

use super::datapath::seconds;
use super::reporting::Reporting;
use crate::problem::Problem;
use crate::sim::Failure;
use clap::ValueEnum;
use longhaul_boxes::Xdp;
use longhaul_boxes::number::{at_least, within};
use longhaul_boxes::quantity::Size;
use longhaul_datapath::{MEMORY_MAX, Operation, QPS_MAX, TransferError};
use longhaul_measure::pin;
use longhaul_measure::rnic::{self, Bench, Cell, CellError, Line, Responder, Settings};
use longhaul_rnic::Mtu;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::time::Duration;

const EXAMPLES: &str = "\
Examples:
  longhaul bench rnic
  longhaul bench rnic --over rings,memif --size 4K,64K,1M --op write,send,read
  longhaul bench rnic --over memif --cores 0,1 --parts          a cycle breakdown of each end
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
    /// Connections of the two ends (comma-separated list)
    #[arg(
        long,
        value_enum,
        value_delimiter = ',',
        default_value = "rings,memif",
        value_name = "LINE"
    )]
    over: Vec<Over>,
    /// Operations of the requester (comma-separated list)
    #[arg(
        long = "op",
        value_enum,
        value_delimiter = ',',
        default_value = "write",
        value_name = "OP"
    )]
    operations: Vec<OperationName>,
    /// Message lengths (comma-separated list)
    #[arg(long, value_delimiter = ',', default_value = "64K", value_name = "SIZE")]
    size: Vec<Size>,
    /// Path MTU
    #[arg(long, value_parser = mtu, default_value = "4096", value_name = "BYTES")]
    mtu: Mtu,
    /// Numbers of queue pairs (comma-separated list)
    #[arg(long, value_delimiter = ',', default_value = "1", value_name = "N")]
    qps: Vec<u32>,
    /// Messages in flight per queue pair
    #[arg(long, default_value_t = 16, value_name = "N")]
    depth: u32,
    /// Frames per ring, for 'rings' and 'memif'
    #[arg(
        long,
        default_value_t = 512,
        value_parser = within::<u32>(16..=16384),
        value_name = "N"
    )]
    ring: u32,
    /// Both ends of a cable for 'xdp', the requester's first, each as in xdp:INTERFACE[,OPTION...]
    #[arg(long, num_args = 2, value_names = ["A", "B"])]
    interfaces: Vec<Xdp>,
    /// Measured time per row, in seconds
    #[arg(long, default_value_t = 2.0, value_parser = seconds, value_name = "S")]
    seconds: f64,
    /// Number of messages after which a measurement ends early
    #[arg(long, value_name = "N", value_parser = at_least(1))]
    messages: Option<u64>,
    /// Time under load before the measurement, in seconds
    #[arg(long, default_value_t = 0.5, value_parser = seconds, value_name = "S")]
    warm_up: f64,
    /// Also run an instrumented pass, and print a cycle breakdown
    #[arg(long)]
    parts: bool,
    /// Processors to run on: the requester's and, over memif and xdp, the responder's [default:
    /// any]
    #[arg(long, value_delimiter = ',', value_name = "CPU,CPU")]
    cores: Vec<usize>,
    #[command(flatten)]
    reporting: Reporting,
    /// Run as the responder of another process, over the memif socket in this folder
    #[arg(long, hide = true, value_name = "DIR")]
    serve: Option<PathBuf>,
}

/// Connection of the two ends.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
enum Over {
    /// Rings in one process, whose ends take turns
    Rings,
    /// Shared memory between two processes
    Memif,
    /// AF_XDP at both ends of a cable, two processes
    Xdp,
}

/// Operation of the requester.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
enum OperationName {
    /// RDMA WRITE
    Write,
    /// SEND
    Send,
    /// RDMA READ; the responder sends
    Read,
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
        Some(folder) => args.serve(folder),
        None => measure(args),
    };
    done.unwrap_or_else(|failure| failure.report("bench rnic"))
}

impl Args {
    /// Runs the responder for another process.
    fn serve(&self, folder: &Path) -> Result<ExitCode, Failure> {
        let cells = self.cells()?;
        self.cores.first().copied().map(pin).transpose().map_err(Problem::from)?;
        let cell = cells.first().ok_or_else(|| Problem::plain("nothing to serve"))?;
        let responder = Responder { cell, is_instrumented: self.parts, folder };
        rnic::serve(&responder).map_err(Problem::from)?;
        Ok(ExitCode::SUCCESS)
    }

    /// Command line of the process that [`Args::serve`]s a responder for this one.
    fn server(&self, responder: &Responder<'_>) -> io::Result<Command> {
        let Responder { cell, is_instrumented, folder } = responder;
        let mut command = Command::new(std::env::current_exe()?);
        command.args(["bench", "rnic", "--serve"]).arg(folder);
        command.args(["--over", cell.line.name(), "--op", cell.operation.name()]);
        let (size, mtu) = (cell.message_bytes.to_string(), cell.mtu.bytes().to_string());
        command.args(["--size", &size, "--mtu", &mtu]);
        command.args(["--qps", &cell.qps.to_string(), "--depth", &cell.depth.to_string()]);
        command.args(["--ring", &self.ring.to_string()]);
        if let Line::Xdp { requester, responder } = &cell.line {
            let bare =
                |interface: &Xdp| interface.to_string().trim_start_matches("xdp:").to_owned();
            command.args(["--interfaces", &bare(requester), &bare(responder)]);
        }
        if *is_instrumented {
            command.arg("--parts");
        }
        command.args(self.cores.get(1).map(|core| format!("--cores={core}")));
        Ok(command)
    }

    fn settings(&self) -> Settings {
        Settings {
            warm_up: Duration::from_secs_f64(self.warm_up),
            lasts: Duration::from_secs_f64(self.seconds),
            messages_max: self.messages,
            has_parts: self.parts,
        }
    }

    fn line(&self, over: Over) -> Result<Line, Failure> {
        match (over, self.interfaces.as_slice()) {
            (Over::Rings, _) => Ok(Line::Rings { frames: self.ring }),
            (Over::Memif, _) => Ok(Line::Memif { frames: self.ring }),
            (Over::Xdp, [requester, responder]) => {
                Ok(Line::Xdp { requester: requester.clone(), responder: responder.clone() })
            }
            (Over::Xdp, _) => {
                let why = "--over xdp: name both ends of a cable: --interfaces A B";
                Err(Failure::value(why))
            }
        }
    }

    /// The cells to measure, in the order of the table.
    fn cells(&self) -> Result<Vec<Cell>, Failure> {
        let mut cells = Vec::new();
        for &over in &self.over {
            for &operation in &self.operations {
                for size in &self.size {
                    for &qps in &self.qps {
                        let cell = Cell {
                            line: self.line(over)?,
                            operation: operation.into(),
                            message_bytes: u32::try_from(size.bytes()).unwrap_or(u32::MAX),
                            mtu: self.mtu,
                            qps,
                            depth: self.depth,
                        };
                        cell.check().map_err(refusal)?;
                        cells.push(cell);
                    }
                }
            }
        }
        Ok(cells)
    }

    fn check_cores(&self) -> Result<(), Failure> {
        let wanted = if self.over.iter().all(|over| *over == Over::Rings) { 1 } else { 2 };
        if !self.cores.is_empty() && self.cores.len() != wanted {
            let given = self.cores.len();
            return Err(Failure::value(format!("--cores: {given} given; it takes {wanted} here")));
        }
        Ok(())
    }
}

/// Names the option to change.
fn refusal(error: CellError) -> Failure {
    let error = match error {
        CellError::Transfer(error) => error,
        CellError::Ring(frames) => {
            return Failure::value(format!("--ring {frames}: write a power of two"));
        }
    };
    Failure::value(match error {
        TransferError::QueuePairs(qps) => format!("--qps {qps}: from 1 to {QPS_MAX}"),
        TransferError::Depth { depth, max } => {
            format!("--depth {depth}: from 1 to {max} with this --op")
        }
        TransferError::NoBytes => "--size 0: a message has at least 1 byte".to_owned(),
        TransferError::Memory { message_bytes, qps } => format!(
            "--size {} --qps {qps}: a buffer for each queue pair takes more than {} in all",
            Size::from_bytes(message_bytes.into()),
            Size::from_bytes(MEMORY_MAX)
        ),
    })
}

fn measure(args: &Args) -> Result<ExitCode, Failure> {
    let cells = args.cells()?;
    args.check_cores()?;
    let launch = |responder: &Responder<'_>| args.server(responder);
    let bench = Bench::new(args.settings(), &launch);
    let core = args.cores.first().copied();
    args.reporting.measure(&cells, core, |cell, tell| bench.measure(cell, tell))
}
