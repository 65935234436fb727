//! `longhaul bench datapath`: cost per packet and packet rate of a box.

mod results;
pub(super) mod text;

use super::reporting::Reporting;
use crate::problem::Problem;
use crate::sim::Failure;
use clap::ValueEnum;
use longhaul_boxes::number::at_least;
use longhaul_boxes::quantity::{Distance, Size, probability};
use longhaul_datapath::FLOWS_MAX;
use longhaul_measure::boxes::{self, Bench, BoxKind, Cell, Settings, SettingsError, Setup};
use longhaul_measure::pin;
use longhaul_units::BitRate;
use longhaul_wan::Parity;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::time::Duration;

const EXAMPLES: &str = "\
Examples:
  longhaul bench datapath
  longhaul bench datapath --size 512,4K --flows 1,64,10000
  longhaul bench datapath --box forward,accelerator --distance 0,1000km
  longhaul bench datapath --box paired --parity always --keys --parts
  longhaul bench datapath --over memif --box forward,accelerator --beside testpmd --cores 0,1
  longhaul bench datapath --box accelerator --size 4K --seconds 10 --flamegraph accelerator.svg
  longhaul bench datapath --seconds 600 --memory-growth-max 8M
      a long run whose memory must not grow
  longhaul bench datapath --out results.jsonl && longhaul report results.jsonl

Prebuilt WRITEs of so many QPs go through the very node that 'longhaul accelerate' or 'longhaul
emulate' runs. Over rings all runs in one thread, so that what the box takes is told from what the
load takes; over memif the box is a process of its own. How to read the table: docs/datapath.md.
Give the machine nothing else to do.
Exit code: 0, measured; 1, something failed, packets were lost, or memory grew; 2, values that make
no sense.";

/// Command line of `longhaul bench datapath`.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// Boxes to measure (comma-separated list)
    #[arg(
        long = "box",
        value_enum,
        value_delimiter = ',',
        default_value = "forward,accelerator",
        value_name = "BOX"
    )]
    kinds: Vec<BoxName>,
    /// Payload of each packet (comma-separated list)
    #[arg(long, value_delimiter = ',', default_value = "512,4K", value_name = "SIZE")]
    size: Vec<Size>,
    /// Number of QPs, served in turn (comma-separated list)
    #[arg(long, value_delimiter = ',', default_value = "64", value_name = "N")]
    flows: Vec<u32>,
    /// Distance to the responders (comma-separated list)
    #[arg(long, value_delimiter = ',', default_value = "0", value_name = "DISTANCE")]
    distance: Vec<Distance>,
    /// Measured time per row, in seconds
    #[arg(long, default_value_t = 2.0, value_parser = seconds, value_name = "S")]
    seconds: f64,
    /// Number of packets after which a measurement ends early
    #[arg(long, value_name = "N", value_parser = at_least(1))]
    packets: Option<u64>,
    /// Time under load before the measurement, in seconds
    #[arg(long, default_value_t = 0.5, value_parser = seconds, value_name = "S")]
    warm_up: f64,
    /// Connection of load and box: rings in one thread, or memif to another process
    #[arg(long, value_enum, default_value = "rings")]
    over: Over,
    /// Measure another forwarder in the same run
    #[arg(long, value_enum)]
    beside: Option<Beside>,
    /// Rate of the emulated fibre
    #[arg(long, default_value = "800G")]
    rate: BitRate,
    /// When paired boxes send parity; any value but 'off' is meant for a path with loss
    #[arg(long, value_enum, default_value = "off")]
    parity: ParityName,
    /// Loss on the path between paired boxes [default: 1e-3 with parity, otherwise none]
    #[arg(long, value_parser = probability, value_name = "P")]
    loss: Option<f64>,
    /// Encrypt between paired boxes
    #[arg(long)]
    keys: bool,
    /// Also measure paired boxes without parity and keys, and bare coding and encryption, to
    /// compare the whole with the sum of its parts
    #[arg(long)]
    parts: bool,
    /// Consecutive packets of one QP before the next QP's turn
    #[arg(long, default_value_t = 16, value_name = "N")]
    in_a_row: u32,
    /// Packets of a QP per acknowledgement request
    #[arg(long, default_value_t = 16, value_name = "N")]
    ack_every: u32,
    /// Maximum unacknowledged packets per QP [default: 128; 65536 if only responders acknowledge]
    #[arg(long, value_name = "N")]
    depth: Option<u32>,
    /// Packets per burst of the load
    #[arg(long, default_value_t = 64, value_name = "N")]
    burst: usize,
    /// Processors to run on: the load's and, over memif, the box's [default: any]
    #[arg(long, value_delimiter = ',', value_name = "CPU,CPU")]
    cores: Vec<usize>,
    #[command(flatten)]
    reporting: Reporting,
    /// Run as the box of another process, between the two sockets in this folder
    #[arg(long, hide = true, value_name = "DIR")]
    serve: Option<PathBuf>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub(super) enum BoxName {
    /// The load alone, its two ends joined
    Load,
    /// Frames forwarded from port to port: the minimum cost of a box
    Forward,
    /// 'longhaul accelerate', one box: checks, stores, acknowledges, forwards, releases
    Accelerator,
    /// 'longhaul accelerate --transport' at both ends of a path: both boxes together
    Paired,
    /// 'longhaul emulate'
    Emulator,
}

impl From<BoxName> for BoxKind {
    fn from(name: BoxName) -> Self {
        match name {
            BoxName::Load => BoxKind::None,
            BoxName::Forward => BoxKind::Forward,
            BoxName::Accelerator => BoxKind::Accelerator,
            BoxName::Paired => BoxKind::Paired,
            BoxName::Emulator => BoxKind::Emulator,
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub(super) enum Over {
    /// One thread; frames pass by reference
    Rings,
    /// One thread; frames are copied into and out of the rings, as by ports that must copy
    CopyingRings,
    /// Shared memory between two processes
    Memif,
}

impl From<Over> for boxes::Over {
    fn from(over: Over) -> Self {
        match over {
            Over::Rings => boxes::Over::Rings,
            Over::CopyingRings => boxes::Over::CopyingRings,
            Over::Memif => boxes::Over::Memif,
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
enum Beside {
    /// DPDK's testpmd, which swaps addresses (macswap); over memif
    Testpmd,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
enum ParityName {
    /// Never
    Off,
    /// When frames leave capacity on the path
    Adaptive,
    /// Always, at any cost
    Always,
}

impl From<ParityName> for Parity {
    fn from(name: ParityName) -> Self {
        match name {
            ParityName::Off => Parity::Off,
            ParityName::Adaptive => Parity::Adaptive,
            ParityName::Always => Parity::Always,
        }
    }
}

pub(super) fn seconds(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(seconds) if (0.001..=1e6).contains(&seconds) => Ok(seconds),
        _ => Err("not a time: write seconds from 0.001 to 1000000".to_owned()),
    }
}

/// Measures, and prints the results.
pub fn run(args: &Args) -> ExitCode {
    let done = match &args.serve {
        Some(folder) => args.serve(folder).map_err(Failure::Other),
        None => measure(args),
    };
    done.unwrap_or_else(|failure| failure.report("bench datapath"))
}

impl Args {
    /// Runs the box for another process.
    fn serve(&self, folder: &Path) -> Result<ExitCode, Problem> {
        let cells = self.cells();
        let cell = cells.first().ok_or_else(|| Problem::plain("--serve without a --box"))?;
        self.cores.first().copied().map(pin).transpose()?;
        boxes::serve(folder, cell, &self.settings().setup)?;
        Ok(ExitCode::SUCCESS)
    }

    fn settings(&self) -> Settings {
        let has_parity = self.parity != ParityName::Off;
        Settings {
            setup: Setup {
                rate: self.rate,
                parity: self.parity.into(),
                loss: self.loss.unwrap_or(if has_parity { 1e-3 } else { 0.0 }),
                is_encrypted: self.keys,
            },
            over: self.over.into(),
            warm_up: Duration::from_secs_f64(self.warm_up),
            lasts: Duration::from_secs_f64(self.seconds),
            packets_max: self.packets,
            in_a_row: self.in_a_row,
            ack_every: self.ack_every,
            depth: self.depth,
            burst: self.burst,
            beside_testpmd: self.beside == Some(Beside::Testpmd),
            testpmd_core: self.cores.get(1).copied(),
            has_parts: self.parts,
        }
    }

    /// The cells to measure, in the order of the table.
    fn cells(&self) -> Vec<Cell> {
        let mut cells = Vec::new();
        for size in &self.size {
            for &flows in &self.flows {
                for &distance in &self.distance {
                    let cell = |&kind: &BoxName| Cell {
                        kind: kind.into(),
                        payload_bytes: size.bytes() as usize,
                        flows,
                        distance,
                    };
                    cells.extend(self.kinds.iter().map(cell));
                }
            }
        }
        cells
    }

    fn check_cores(&self) -> Result<(), Failure> {
        let wanted = if self.over == Over::Memif { 2 } else { 1 };
        if !self.cores.is_empty() && self.cores.len() != wanted {
            return Err(Failure::value(format!(
                "--cores: {} given; it takes {wanted} here",
                self.cores.len()
            )));
        }
        Ok(())
    }
}

/// Command line of the process that [`Args::serve`]s a cell for this one, on a processor if given.
pub(super) fn server(
    cell: &Cell,
    folder: &Path,
    rate: BitRate,
    core: Option<usize>,
) -> io::Result<Command> {
    let Cell { kind, payload_bytes, flows, distance } = cell;
    let mut command = Command::new(std::env::current_exe()?);
    command.args(["bench", "datapath", "--serve"]).arg(folder);
    command.args(["--box", kind.name(), "--rate", &rate.to_string()]);
    command.args(["--size", &payload_bytes.to_string(), "--flows", &flows.to_string()]);
    command.args(["--distance", &format!("{}m", distance.metres())]);
    command.args(core.map(|core| format!("--cores={core}")));
    Ok(command)
}

/// Names the option to change.
pub(super) fn refusal(error: SettingsError) -> Failure {
    Failure::value(match error {
        SettingsError::Payload(bytes) => {
            format!("--size {bytes}: a packet's payload goes from 1 byte to 4 KiB")
        }
        SettingsError::Flows(flows) => format!("--flows {flows}: from 1 to {FLOWS_MAX}"),
        SettingsError::Load(error) => error.to_string(),
        SettingsError::PairedOverMemif => {
            format!("--box paired --over memif: {error}: leave --over out")
        }
        SettingsError::TestpmdOverRings => {
            "--beside testpmd: it is measured over memif: add --over memif".to_owned()
        }
        SettingsError::NoParts => {
            "--parts: it is for paired boxes with --parity always, --keys or both".to_owned()
        }
    })
}

fn measure(args: &Args) -> Result<ExitCode, Failure> {
    let (settings, cells) = (args.settings(), args.cells());
    settings.check(&cells).map_err(refusal)?;
    args.check_cores()?;
    let launch =
        |cell: &Cell, folder: &Path| server(cell, folder, args.rate, args.cores.get(1).copied());
    let bench = Bench::new(&settings, &launch).map_err(Problem::from)?;
    let core = args.cores.first().copied();
    args.reporting.measure(&cells, core, |cell, tell| bench.measure(cell, tell))
}
