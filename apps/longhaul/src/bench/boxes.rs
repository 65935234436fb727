//! `longhaul bench box`: tests of a box with the methods of RFC 2544.

mod results;
mod text;

use super::datapath::{BoxName, Over, refusal, seconds, server};
use super::reporting::Reporting;
use crate::problem::Problem;
use crate::sim::Failure;
use clap::ValueEnum;
use longhaul_boxes::PortName;
use longhaul_boxes::number::within;
use longhaul_boxes::quantity::{Distance, Size, probability};
use longhaul_measure::boxes::rfc2544::search::Goal;
use longhaul_measure::boxes::rfc2544::{Bench, Cell, Device, Settings, Test};
use longhaul_measure::boxes::{self, Setup};
use longhaul_units::BitRate;
use longhaul_wan::Parity;
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

/// Share of the final trial duration that the first, short trials of a search last.
const INITIAL_SHARE: u32 = 4;

const EXAMPLES: &str = "\
Examples:
  longhaul bench box
  longhaul bench box --over memif --cores 0,1
  longhaul bench box --over memif --box accelerator --size 64,512,1K,4K --trial-seconds 60
  longhaul bench box --box emulator --rate 10G --distance 100km --line-rate 10G
  longhaul bench box --tests throughput --loss-ratio 0.005
  longhaul bench box --near eth1 --far eth2 --line-rate 25G
      any device between two ports
  longhaul bench box --out results.jsonl && longhaul report results.jsonl

The methods are RFC 2544's, with the throughput search of RFC 9971 (MLRsearch); the frames are
RoCEv2 WRITEs. No conformance to either is claimed. What differs, and how to read the table:
docs/box-tests.md. Give the machine nothing else to do.
Exit code: 0, tested; 1, something failed, or a box loses frames at any load; 2, values that make no
sense.";

/// Command line of `longhaul bench box`.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// Boxes to test (comma-separated list)
    #[arg(
        long = "box",
        value_enum,
        value_delimiter = ',',
        default_value = "forward,accelerator",
        value_name = "BOX"
    )]
    kinds: Vec<BoxName>,
    /// Test what connects this port to --far, instead of a box of this program
    #[arg(long, value_name = "PORT", requires = "far", conflicts_with_all = ["kinds", "over"])]
    near: Option<PortName>,
    /// Port at which the frames from --near arrive
    #[arg(long, value_name = "PORT", requires = "near")]
    far: Option<PortName>,
    /// Tests to run (comma-separated list) [default: all]
    #[arg(long, value_enum, value_delimiter = ',', value_name = "TEST")]
    tests: Vec<TestName>,
    /// Payload of each frame (comma-separated list)
    #[arg(long, value_delimiter = ',', default_value = "64,512,4K", value_name = "SIZE")]
    size: Vec<Size>,
    /// Number of QPs, served in turn
    #[arg(long, default_value_t = 64, value_name = "N")]
    flows: u32,
    /// Distance to the responders (comma-separated list)
    #[arg(long, value_delimiter = ',', default_value = "0", value_name = "DISTANCE")]
    distance: Vec<Distance>,
    /// Connection of load and box: rings in one thread, or memif to another process
    #[arg(long, value_enum, default_value = "rings")]
    over: Over,
    /// Rate of the emulated fibre
    #[arg(long, default_value = "800G")]
    rate: BitRate,
    /// Rate of the medium, the maximum load [default: what the load reaches without a box]
    #[arg(long, value_name = "RATE")]
    line_rate: Option<BitRate>,
    /// Goal Loss Ratio of the throughput search; RFC 2544's throughput has 0
    #[arg(long, default_value_t = 0.0, value_parser = probability, value_name = "P")]
    loss_ratio: f64,
    /// Goal Exceed Ratio: share of trials at a load that may exceed the loss ratio
    #[arg(long, default_value_t = 0.5, value_parser = probability, value_name = "P")]
    exceed_ratio: f64,
    /// Goal Width: relative distance of the search's bounds
    #[arg(long, default_value_t = 0.02, value_parser = width, value_name = "P")]
    width: f64,
    /// Goal Final Trial Duration in seconds; RFC 2544 has 60
    #[arg(long, default_value_t = 0.5, value_parser = seconds, value_name = "S")]
    trial_seconds: f64,
    /// Full-length trials at each load of the search
    #[arg(long, default_value_t = 3, value_parser = within::<u32>(1..=100), value_name = "N")]
    trials: u32,
    /// Repeats of back-to-back frames, recovery and reset
    #[arg(long, default_value_t = 3, value_parser = within::<u32>(1..=1000), value_name = "N")]
    repeats: u32,
    /// Time without arrivals after which frames count as lost, in seconds; RFC 2544 has 2
    #[arg(long, default_value_t = 0.1, value_parser = seconds, value_name = "S")]
    residual_wait: f64,
    /// Processors to run on: the load's and, over memif, the box's [default: any]
    #[arg(long, value_delimiter = ',', value_name = "CPU,CPU")]
    cores: Vec<usize>,
    #[command(flatten)]
    reporting: Reporting,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
enum TestName {
    /// Highest load without loss; always runs
    Throughput,
    /// Delay at the throughput
    Latency,
    /// Loss at 100 %, 90 % and so on of the maximum load
    LossRate,
    /// Longest burst without loss; not over rings
    BackToBack,
    /// Time from the end of an overload to the last loss
    Recovery,
    /// Time without frames when the box is killed and started; over memif
    Reset,
}

impl From<TestName> for Test {
    fn from(name: TestName) -> Self {
        match name {
            TestName::Throughput => Test::Throughput,
            TestName::Latency => Test::Latency,
            TestName::LossRate => Test::FrameLossRate,
            TestName::BackToBack => Test::BackToBack,
            TestName::Recovery => Test::Recovery,
            TestName::Reset => Test::Reset,
        }
    }
}

fn width(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(width) if (0.0001..=0.5).contains(&width) => Ok(width),
        _ => Err("not a width: write a number from 0.0001 to 0.5".to_owned()),
    }
}

impl Args {
    fn settings(&self) -> Settings {
        let final_trial = Duration::from_secs_f64(self.trial_seconds);
        let asked = self.tests.iter().copied().map(Test::from);
        Settings {
            setup: Setup { rate: self.rate, parity: Parity::Off, loss: 0.0, is_encrypted: false },
            over: self.over.into(),
            tests: if self.tests.is_empty() { Test::ALL.to_vec() } else { asked.collect() },
            goal: Goal {
                loss_ratio: self.loss_ratio,
                exceed_ratio: self.exceed_ratio,
                final_trial,
                initial_trial: final_trial / INITIAL_SHARE,
                duration_sum: final_trial * self.trials,
                width: self.width,
            },
            line_rate: self.line_rate,
            repeats: self.repeats,
            residual_wait: Duration::from_secs_f64(self.residual_wait),
        }
    }

    fn devices(&self) -> Vec<Device> {
        match (&self.near, &self.far) {
            (Some(near), Some(far)) => {
                vec![Device::Ports { near: near.clone(), far: far.clone() }]
            }
            _ => self.kinds.iter().map(|&kind| Device::Box(kind.into())).collect(),
        }
    }

    /// The cells to test, in the order of the table.
    fn cells(&self) -> Vec<Cell> {
        let mut cells = Vec::new();
        for size in &self.size {
            for &distance in &self.distance {
                cells.extend(self.devices().into_iter().map(|device| Cell {
                    device,
                    payload_bytes: size.bytes() as usize,
                    flows: self.flows,
                    distance,
                }));
            }
        }
        cells
    }
}

/// Tests, and prints the results.
pub fn run(args: &Args) -> ExitCode {
    measure(args).unwrap_or_else(|failure| failure.report("bench box"))
}

fn measure(args: &Args) -> Result<ExitCode, Failure> {
    let (settings, cells) = (args.settings(), args.cells());
    settings.check(&cells).map_err(refusal)?;
    if let Some(near) = args.near.as_ref().filter(|near| args.far.as_ref() == Some(near)) {
        return Err(Failure::value(format!("--near and --far are both {near}")));
    }
    let launch = |cell: &boxes::Cell, folder: &Path| {
        server(cell, folder, args.rate, args.cores.get(1).copied())
    };
    let bench = Bench::new(&settings, &launch);
    let core = args.cores.first().copied();
    args.reporting
        .measure(&cells, core, |cell, tell| bench.measure(cell, tell).map_err(Problem::from))
}
