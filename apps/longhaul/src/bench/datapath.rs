//! `longhaul bench datapath`: cost per packet and packet rate of a box.

mod boxes;
mod outcome;
mod parts;
pub(super) mod served;
mod testpmd;
pub(super) mod text;

use super::reporting::{Reporting, Run};
use crate::problem::Problem;
use crate::sim::Failure;
use boxes::{BoxKind, Cell, Setup};
use clap::ValueEnum;
use longhaul_boxes::quantity::{Distance, Size, probability};
use longhaul_datapath::{FLOWS_MAX, LoadConfig, PAYLOAD_MAX, Plan};
use longhaul_units::{BitRate, Duration as Span};
use longhaul_wan::Parity;
use outcome::Outcome;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
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
    /// What is measured; several are separated by commas
    #[arg(
        long = "box",
        value_enum,
        value_delimiter = ',',
        default_value = "forward,accelerator",
        value_name = "BOX"
    )]
    kinds: Vec<BoxKind>,
    /// Payload of each packet; several are separated by commas
    #[arg(long, value_delimiter = ',', default_value = "512,4K", value_name = "SIZE")]
    size: Vec<Size>,
    /// QPs that take turns; several are separated by commas
    #[arg(long, value_delimiter = ',', default_value = "64", value_name = "N")]
    flows: Vec<u32>,
    /// How far away responders are; several are separated by commas
    #[arg(long, value_delimiter = ',', default_value = "0", value_name = "DISTANCE")]
    distance: Vec<Distance>,
    /// Time for which each is measured
    #[arg(long, default_value_t = 2.0, value_parser = seconds, value_name = "S")]
    seconds: f64,
    /// Packets after which it ends, if that is earlier
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    packets: Option<u64>,
    /// Time under load before it is measured
    #[arg(long, default_value_t = 0.5, value_parser = seconds, value_name = "S")]
    warm_up: f64,
    /// Between load and box: rings in one thread, or memif to a process of its own
    #[arg(long, value_enum, default_value = "rings")]
    over: Over,
    /// Measure another forwarder in the same run
    #[arg(long, value_enum)]
    beside: Option<Beside>,
    /// Rate of an emulated fibre
    #[arg(long, default_value = "800G")]
    rate: BitRate,
    /// When a paired box sends parity; more than 'off' wants a path that loses
    #[arg(long, value_enum, default_value = "off")]
    parity: ParityName,
    /// What the path between paired boxes loses [default: 1e-3 with parity, otherwise nothing]
    #[arg(long, value_parser = probability, value_name = "P")]
    loss: Option<f64>,
    /// Encrypt between paired boxes
    #[arg(long)]
    keys: bool,
    /// Measure paired boxes without parity and keys too, and bare coding and encryption: is the
    /// whole more than their sum?
    #[arg(long)]
    parts: bool,
    /// Packets of a QP before it is the next one's turn
    #[arg(long, default_value_t = 16, value_name = "N")]
    in_a_row: u32,
    /// Packets of a QP to one that asks for an acknowledgement
    #[arg(long, default_value_t = 16, value_name = "N")]
    ack_every: u32,
    /// Packets of a QP that may be unacknowledged [default: 128; 65536 where responders alone
    /// acknowledge]
    #[arg(long, value_name = "N")]
    depth: Option<u32>,
    /// Packets that leave the load at once
    #[arg(long, default_value_t = 64, value_name = "N")]
    burst: usize,
    /// Processors to run on: the load's, and over memif the box's [default: any]
    #[arg(long, value_delimiter = ',', value_name = "CPU,CPU")]
    cores: Vec<usize>,
    #[command(flatten)]
    reporting: Reporting,
    /// Be the box of another process, between the two sockets in this folder
    #[arg(long, hide = true, value_name = "DIR")]
    serve: Option<PathBuf>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
enum Over {
    /// In one thread; frames pass by reference
    Rings,
    /// In one thread; frames are copied into rings and out of them, as by ports that have to
    CopyingRings,
    /// Shared memory between processes
    Memif,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
enum Beside {
    /// DPDK's, which swaps addresses (macswap); over memif
    Testpmd,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
enum ParityName {
    /// Never
    Off,
    /// When frames leave the path room
    Adaptive,
    /// Whatever it costs
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
        served::serve(folder, cell, &self.setup(), self.cores.first().copied())
    }

    fn setup(&self) -> Setup {
        let has_parity = self.parity != ParityName::Off;
        Setup {
            rate: self.rate,
            parity: self.parity.into(),
            loss: self.loss.unwrap_or(if has_parity { 1e-3 } else { 0.0 }),
            is_encrypted: self.keys,
            copies: self.over == Over::CopyingRings,
        }
    }

    /// The cells to measure, in the order of the table.
    fn cells(&self) -> Vec<Cell> {
        let mut cells = Vec::new();
        for size in &self.size {
            for &flows in &self.flows {
                for &distance in &self.distance {
                    let cell = |&kind: &BoxKind| Cell {
                        kind,
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

    fn load(&self, cell: &Cell) -> LoadConfig {
        let depth = if cell.kind.acknowledges_early() { 128 } else { 1 << 16 };
        // A box without back-pressure drops frames when full: a ring holds more than this.
        let in_flight = match (self.over, cell.kind.pushes_back()) {
            (Over::Memif, false) => served::RING_FRAMES * 3 / 4,
            _ => u64::MAX,
        };
        LoadConfig {
            flows: cell.flows,
            in_a_row: self.in_a_row,
            payload_bytes: cell.payload_bytes,
            ack_every: self.ack_every,
            depth: self.depth.unwrap_or(depth),
            in_flight,
            burst: self.burst,
            ack_delay: Span::ZERO,
        }
    }

    fn plan(&self, cell: &Cell) -> Plan {
        let round_trip = Span::of_fibre_m(cell.distance.metres()).times(2);
        Plan {
            // Steady state begins once the path is full and its acknowledgements return.
            warm_up: Duration::from_secs_f64(self.warm_up)
                + Duration::from_nanos(round_trip.times(4).as_ns()),
            lasts: Duration::from_secs_f64(self.seconds),
            packets_max: self.packets,
            ack_delay: if cell.kind.has_the_path_inside() { Span::ZERO } else { round_trip },
        }
    }

    fn check(&self) -> Result<(), Failure> {
        for cell in self.cells() {
            if !(1..=PAYLOAD_MAX).contains(&cell.payload_bytes) {
                let why = format!(
                    "--size {}: a packet's payload goes from 1 byte to 4 KiB",
                    cell.payload_bytes
                );
                return Err(Failure::value(why));
            }
            if !(1..=FLOWS_MAX).contains(&cell.flows) {
                return Err(Failure::value(format!(
                    "--flows {}: from 1 to {FLOWS_MAX}",
                    cell.flows
                )));
            }
            self.load(&cell).check().map_err(Failure::value)?;
            if self.over == Over::Memif && cell.kind == BoxKind::Paired {
                let why = "--box paired --over memif: two boxes in a row are measured over rings: \
                           leave --over out";
                return Err(Failure::value(why));
            }
        }
        if self.beside.is_some() && self.over != Over::Memif {
            return Err(Failure::value(
                "--beside testpmd: it is measured over memif: add --over memif",
            ));
        }
        if self.parts
            && !(self.kinds.contains(&BoxKind::Paired)
                && (self.keys || self.parity != ParityName::Off))
        {
            return Err(Failure::value(
                "--parts: it is for paired boxes with --parity always, --keys or both",
            ));
        }
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

fn measure(args: &Args) -> Result<ExitCode, Failure> {
    args.check()?;
    let setup = args.setup();
    if args.beside.is_some() {
        testpmd::check_installed()?;
    }
    args.reporting.measure(&args.cells(), args.cores.first().copied(), |run, cell, place| {
        Bench { args, setup: &setup, run }.one(cell, place)
    })
}

/// The measurement of a cell.
struct Bench<'a> {
    args: &'a Args,
    setup: &'a Setup,
    run: &'a mut Run,
}

impl Bench<'_> {
    fn one(&mut self, cell: &Cell, place: &str) -> Result<Outcome, Failure> {
        // Measure the load alone, briefly: the upper bound of this measurement.
        let alone = Cell { kind: BoxKind::None, ..*cell };
        let brief =
            Plan { lasts: Duration::from_millis(300), packets_max: None, ..self.args.plan(&alone) };
        let brief = Plan { warm_up: Duration::from_millis(100), ack_delay: Span::ZERO, ..brief };
        let alone = self.over_rings(&alone, self.setup, &brief, &format!("{place}, load alone"))?;
        let plan = self.args.plan(cell);
        let mut outcome = match self.args.over {
            Over::Rings | Over::CopyingRings => {
                Outcome::new(cell, self.setup, self.over_rings(cell, self.setup, &plan, place)?)
            }
            Over::Memif => self.over_memif(cell, &plan, place)?,
        };
        outcome.load_alone_pps = Some(alone.packets_per_s());
        outcome.load_alone_counts = alone.counts.map(|counts| (counts, alone.counters.arrived));
        if self.args.beside == Some(Beside::Testpmd) {
            outcome.testpmd_pps = Some(self.beside_testpmd(cell, &plan, place)?);
        }
        if self.args.parts && cell.kind == BoxKind::Paired {
            outcome.parts = Some(self.parts(cell, &plan, &outcome, place)?);
        }
        Ok(outcome)
    }

    fn over_rings(
        &mut self,
        cell: &Cell,
        setup: &Setup,
        plan: &Plan,
        place: &str,
    ) -> Result<longhaul_datapath::Measured, Failure> {
        let mut row = boxes::row(cell, setup, self.args.load(cell))?;
        row.pair().map_err(failure)?;
        row.measure(plan, self.teller(plan, place)).map_err(failure)
    }

    fn over_memif(&mut self, cell: &Cell, plan: &Plan, place: &str) -> Result<Outcome, Failure> {
        let served = served::Served::start(self.args.cores.get(1).copied(), cell, self.setup)?;
        let mut row = served.row(self.args.load(cell))?;
        row.pair().map_err(failure)?;
        let (measured, used_ns) = served.measure(&mut row, plan, self.teller(plan, place))?;
        Ok(Outcome { box_used_ns: Some(used_ns), ..Outcome::new(cell, self.setup, measured) })
    }

    fn beside_testpmd(&mut self, cell: &Cell, plan: &Plan, place: &str) -> Result<f64, Failure> {
        let forward = Cell { kind: BoxKind::Forward, ..*cell };
        let mut beside = testpmd::Beside::new(self.args.cores.get(1).copied())?;
        let mut row = beside.row(self.args.load(&forward))?;
        row.pair().map_err(failure)?;
        let plan = Plan { ack_delay: Span::ZERO, ..*plan };
        let measured = row
            .measure(&plan, self.teller(&plan, &format!("{place}, testpmd")))
            .map_err(failure)?;
        Ok(measured.packets_per_s())
    }

    fn parts(
        &mut self,
        cell: &Cell,
        plan: &Plan,
        whole: &Outcome,
        place: &str,
    ) -> Result<parts::Parts, Failure> {
        let plain = Setup { parity: Parity::Off, is_encrypted: false, ..self.setup.clone() };
        let plain = self.over_rings(cell, &plain, plan, &format!("{place}, plain"))?;
        Ok(parts::Parts::measure(whole, &plain, self.setup))
    }

    fn teller<'t>(
        &'t mut self,
        plan: &Plan,
        place: &'t str,
    ) -> impl FnMut(&longhaul_datapath::Progress) -> bool + use<'t> {
        let (run, whole) = (&mut *self.run, plan.warm_up + plan.lasts);
        move |at| {
            let millions = at.arrived as f64 / 1e6;
            let done = format_args!("{millions:.1} M packets");
            run.goes_on(place, [at.elapsed, whole], done, at.resident_bytes)
        }
    }
}

fn failure(failure: longhaul_datapath::Failure) -> Failure {
    Failure::Other(Problem::plain(failure.to_string()))
}
