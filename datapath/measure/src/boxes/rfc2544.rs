//! Tests of boxes with the methods of RFC 2544: throughput, latency, frame loss rate, back-to-back
//! frames, system recovery and reset.
//!
//! Throughput is searched as in RFC 9971. The frames are WRITEs of [`crate::boxes`]' load.

mod outcome;
pub mod search;

pub use outcome::{Absent, Latency, Outcome};

use super::cell::{BoxKind, Over, Setup};
use super::served::Served;
use super::{Error, Launch, SettingsError, between, check_load};
use crate::progress::{Pass, Progress, Tell, Work};
use longhaul_boxes::PortName;
use longhaul_boxes::quantity::{Distance, Size};
use longhaul_datapath::{Load, LoadConfig, Row, Trial, TrialPlan, resident_bytes};
use longhaul_port::Port;
use longhaul_units::{BitRate, Duration as Span};
use search::{Bounds, Goal, GoalResult, TrialResult};
use std::fmt;
use std::time::Duration;

/// Preamble, start delimiter and inter-frame gap of Ethernet, in bytes.
const GAP_BYTES: u64 = 20;
/// Frame check sequence, which no port shows, in bytes.
const FCS_BYTES: u64 = 4;
/// Lowest load that is tried, in frames per second.
const LOAD_MIN: f64 = 100.0;
/// Load in frames per second that no thread can offer.
const BEYOND_ANY_LOAD: f64 = 1e9;
/// Duration of a trial in which the box is restarted.
const RESET_LASTS: Duration = Duration::from_secs(3);
/// Load of the frame loss rate's trials, in tenths of the maximum: RFC 2544, 26.3.
const LOSS_RATE_TENTHS: std::ops::RangeInclusive<u32> = 1..=10;
/// Overload before the system recovers, and load meanwhile, as shares of the throughput: RFC 2544,
/// 26.5.
const OVERLOAD: f64 = 1.1;
const RELIEF: f64 = 0.5;

/// A test of RFC 2544.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Test {
    /// Highest load without loss, or within a loss ratio (26.1).
    Throughput,
    /// Delay at the throughput (26.2).
    Latency,
    /// Loss at shares of the maximum load (26.3).
    FrameLossRate,
    /// Longest burst without loss (26.4).
    BackToBack,
    /// Time until the last loss after an overload (26.5).
    Recovery,
    /// Time without frames when the box is killed and started again (26.6).
    Reset,
}

impl Test {
    /// All of them, in the order in which they run.
    pub const ALL: [Test; 6] = [
        Test::Throughput,
        Test::Latency,
        Test::FrameLossRate,
        Test::BackToBack,
        Test::Recovery,
        Test::Reset,
    ];
}

/// The device under test.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Device {
    /// A box of this program.
    Box(BoxKind),
    /// Whatever connects two ports of this machine.
    Ports {
        /// Port at which frames are offered.
        near: PortName,
        /// Port at which they arrive.
        far: PortName,
    },
}

impl Device {
    /// Its name in tables and results.
    pub fn name(&self) -> &'static str {
        match self {
            Device::Box(kind) => kind.name(),
            Device::Ports { .. } => "ports",
        }
    }
}

/// Parameters of one row of the table.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Cell {
    /// What is tested.
    pub device: Device,
    /// Payload of each frame, in bytes.
    pub payload_bytes: usize,
    /// Number of QPs.
    pub flows: u32,
    /// Distance to the responders.
    pub distance: Distance,
}

impl fmt::Display for Cell {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Cell { device, payload_bytes, flows, distance } = self;
        let size = Size::from_bytes(*payload_bytes as u64);
        write!(f, "{} {size}, {flows} QPs, {distance}", device.name())
    }
}

/// How cells are tested.
#[derive(Clone, PartialEq, Debug)]
pub struct Settings {
    /// Settings of the boxes.
    pub setup: Setup,
    /// Connection of load and box; ports have their own.
    pub over: Over,
    /// Tests to run; throughput always runs, because the others need it.
    pub tests: Vec<Test>,
    /// Goal of the throughput search.
    pub goal: Goal,
    /// Rate of the medium, which bounds the load; `None`: the load without a box bounds it.
    pub line_rate: Option<BitRate>,
    /// Times that bursts, recovery and reset are repeated.
    pub repeats: u32,
    /// Time without arrivals after which outstanding frames count as lost, beyond the path's RTT.
    pub residual_wait: Duration,
}

impl Settings {
    /// Checks whether `cells` can be tested.
    ///
    /// # Errors
    /// The first contradiction.
    pub fn check(&self, cells: &[Cell]) -> Result<(), SettingsError> {
        for cell in cells {
            check_load(cell.payload_bytes, cell.flows)?;
            if self.over == Over::Memif && cell.device == Device::Box(BoxKind::Paired) {
                return Err(SettingsError::PairedOverMemif);
            }
        }
        Ok(())
    }

    fn load(&self, cell: &Cell) -> LoadConfig {
        let round_trip = round_trip(cell);
        let has_path = matches!(&cell.device, Device::Box(kind) if kind.has_the_path_inside());
        let ack_delay = match &cell.device {
            Device::Box(_) if !has_path => round_trip,
            _ => Span::ZERO,
        };
        // Acknowledgements never bound the load; PSNs of flows stay distinguishable.
        let depth = ((1 << 24) / cell.flows / 2).clamp(16, 1 << 16);
        LoadConfig { flows: cell.flows, depth, ack_delay, ..LoadConfig::new(cell.payload_bytes) }
    }

    /// Frames at a load in frames per second for a duration.
    fn plan(&self, cell: &Cell, load: f64, lasts: Duration) -> TrialPlan {
        let frames = ((load * lasts.as_secs_f64()) as u64).max(1);
        let path = Duration::from_nanos(round_trip(cell).as_ns());
        let residual_wait = self.residual_wait + path;
        TrialPlan { frames, frames_per_s: Some(load), residual_wait }
    }
}

fn round_trip(cell: &Cell) -> Span {
    Span::of_fibre_m(cell.distance.metres()).times(2)
}

/// Tests cells with the same settings.
pub struct Bench<'a> {
    settings: &'a Settings,
    launch: &'a Launch<'a>,
}

impl<'a> Bench<'a> {
    /// Prepares to test; `launch` provides the process of a box over memif.
    pub fn new(settings: &'a Settings, launch: &'a Launch<'a>) -> Self {
        Bench { settings, launch }
    }

    /// Tests a cell, which the settings allow ([`Settings::check`]).
    ///
    /// # Errors
    /// [`Error`].
    pub fn measure(&self, cell: &Cell, tell: &mut Tell<'_>) -> Result<Outcome, Error> {
        let over = self.settings.over;
        match &cell.device {
            Device::Ports { near, far } => {
                let load = Load::new(self.settings.load(cell))?;
                let row = Row::new(load, near.open()?, far.open()?, Vec::new());
                let mut outcome = Bed { bench: self, cell, row, trials: 0, tell }.measure()?;
                outcome.resets = Err(Absent::NotOurs);
                Ok(outcome)
            }
            Device::Box(kind) if over == Over::Memif => {
                let served = Served::start(&of_box(cell, *kind), self.launch)?;
                let row = served.row(self.settings.load(cell))?;
                let mut outcome = Bed { bench: self, cell, row, trials: 0, tell }.measure()?;
                outcome.resets = self.resets(cell, *kind, &outcome.found, tell)?;
                Ok(outcome)
            }
            Device::Box(kind) => {
                let copies = over == Over::CopyingRings;
                let load = self.settings.load(cell);
                let row = between::row(&of_box(cell, *kind), &self.settings.setup, load, copies)?;
                let mut outcome = Bed { bench: self, cell, row, trials: 0, tell }.measure()?;
                outcome.resets = Err(Absent::NoProcess);
                Ok(outcome)
            }
        }
    }

    /// Times without frames around a restart of the box, at half of the throughput.
    fn resets(
        &self,
        cell: &Cell,
        kind: BoxKind,
        found: &GoalResult,
        tell: &mut Tell<'_>,
    ) -> Result<Result<Vec<Duration>, Absent>, Error> {
        if !self.settings.tests.contains(&Test::Reset) {
            return Ok(Err(Absent::NotAsked));
        }
        let GoalResult::Regular(bounds) = found else { return Ok(Err(Absent::NoThroughput)) };
        let load = bounds.lower * RELIEF;
        let of_box = of_box(cell, kind);
        let mut resets = Vec::new();
        for number in 0..u64::from(self.settings.repeats) {
            // A box that is killed ends its flows: each repeat has its own.
            let mut served = Served::start(&of_box, self.launch)?;
            let mut row = served.row(self.settings.load(cell))?;
            row.pair()?;
            let (mut is_reset, mut failed) = (false, None);
            let plan = self.settings.plan(cell, load, RESET_LASTS);
            let trial = row.trial(&plan, |elapsed| {
                if !is_reset && elapsed > RESET_LASTS / 3 {
                    is_reset = true;
                    failed = served.restart(&of_box, self.launch).err();
                }
                failed.is_none() && progress(tell, Pass::Reset, number, elapsed, RESET_LASTS)
            });
            if let Some(failed) = failed {
                return Err(failed);
            }
            let trial = trial?;
            let silent = trial.elapsed.saturating_sub(trial.last_arrival.unwrap_or_default());
            if silent > trial.longest_gap {
                return Ok(Err(Absent::NoFrames(RESET_LASTS)));
            }
            resets.push(trial.longest_gap);
        }
        Ok(Ok(resets))
    }
}

fn of_box(cell: &Cell, kind: BoxKind) -> super::Cell {
    let Cell { payload_bytes, flows, distance, .. } = *cell;
    super::Cell { kind, payload_bytes, flows, distance }
}

/// A device under test with the load around it.
struct Bed<'a, 't, P> {
    bench: &'a Bench<'a>,
    cell: &'a Cell,
    row: Row<P>,
    trials: u64,
    tell: &'a mut Tell<'t>,
}

impl<P: Port> Bed<'_, '_, P> {
    fn measure(mut self) -> Result<Outcome, Error> {
        let settings = self.bench.settings;
        let start_bytes = resident_bytes();
        self.row.pair()?;
        let frame_bytes = self.row.load().frame_len() as u64 + FCS_BYTES;
        let max_load = self.max_load(frame_bytes)?;
        let goal = settings.goal;
        let found = search::search(&goal, [LOAD_MIN.min(max_load), max_load], |load, lasts| {
            let trial = self.trial_for(load, lasts, Pass::Throughput)?;
            let forwarding_rate = trial.forwarding_rate();
            Ok::<_, Error>(TrialResult { loss_ratio: trial.loss_ratio(), forwarding_rate })
        })?;
        let mut outcome =
            Outcome::new(self.cell.clone(), settings, frame_bytes, max_load, found, self.trials);
        if let GoalResult::Regular(bounds) = found {
            self.at_throughput(&bounds, &mut outcome)?;
        }
        if self.wants(Test::FrameLossRate) {
            outcome.loss_rates = self.loss_rates(max_load)?;
        }
        if self.wants(Test::BackToBack) {
            outcome.bursts = self.bursts(max_load)?;
        }
        outcome.memory_growth = resident_bytes().saturating_sub(start_bytes);
        Ok(outcome)
    }

    fn wants(&self, test: Test) -> bool {
        self.bench.settings.tests.contains(&test)
    }

    fn at_throughput(&mut self, bounds: &Bounds, outcome: &mut Outcome) -> Result<(), Error> {
        let settings = self.bench.settings;
        if self.wants(Test::Latency) {
            let trial = self.trial_for(bounds.lower, settings.goal.final_trial, Pass::Latency)?;
            outcome.latency = Latency::of(&trial);
        }
        if self.wants(Test::Recovery) {
            let mut recoveries = Vec::new();
            for _ in 0..settings.repeats {
                let lasts = settings.goal.final_trial;
                self.trial_unpaired(bounds.lower * OVERLOAD, lasts, Pass::Recovery)?;
                let relief = self.trial_unpaired(bounds.lower * RELIEF, lasts, Pass::Recovery)?;
                recoveries.push(relief.last_loss.unwrap_or(Duration::ZERO));
                self.row.pair()?;
            }
            outcome.recoveries = Ok(recoveries);
        }
        Ok(())
    }

    /// The highest load: the medium's, or what the load does without a box.
    fn max_load(&mut self, frame_bytes: u64) -> Result<f64, Error> {
        let settings = self.bench.settings;
        if let Some(rate) = settings.line_rate {
            return Ok(rate.as_bps() as f64 / ((frame_bytes + GAP_BYTES) * 8) as f64);
        }
        let wire = of_box(self.cell, BoxKind::None);
        let load = LoadConfig { ack_delay: Span::ZERO, ..settings.load(self.cell) };
        let mut row = between::row(&wire, &settings.setup, load, false)?;
        row.pair()?;
        let lasts = settings.goal.initial_trial;
        let plan = settings.plan(self.cell, BEYOND_ANY_LOAD, lasts);
        let tell = &mut *self.tell;
        let trial =
            row.trial(&plan, |elapsed| progress(tell, Pass::LoadAlone, 0, elapsed, lasts))?;
        Ok(trial.forwarding_rate().max(LOAD_MIN))
    }

    /// A trial over flows without gaps.
    fn trial_for(&mut self, load: f64, lasts: Duration, pass: Pass) -> Result<Trial, Error> {
        self.row.pair()?;
        self.trial_unpaired(load, lasts, pass)
    }

    fn trial_unpaired(&mut self, load: f64, lasts: Duration, pass: Pass) -> Result<Trial, Error> {
        let plan = self.bench.settings.plan(self.cell, load, lasts);
        self.trial(&plan, lasts, pass)
    }

    fn trial(&mut self, plan: &TrialPlan, lasts: Duration, pass: Pass) -> Result<Trial, Error> {
        let (tell, trials) = (&mut *self.tell, self.trials);
        self.trials += 1;
        Ok(self.row.trial(plan, |elapsed| progress(tell, pass, trials, elapsed, lasts))?)
    }

    /// Load in frames per second and loss ratio, from the maximum load down to the second load in
    /// a row without loss.
    fn loss_rates(&mut self, max_load: f64) -> Result<Vec<(f64, f64)>, Error> {
        let lasts = self.bench.settings.goal.final_trial;
        let mut rates: Vec<(f64, f64)> = Vec::new();
        for tenths in LOSS_RATE_TENTHS.rev() {
            let load = max_load * f64::from(tenths) / 10.0;
            let trial = self.trial_for(load, lasts, Pass::FrameLossRate)?;
            rates.push((load, trial.loss_ratio()));
            if rates.len() >= 2 && rates.iter().rev().take(2).all(|(_, loss)| *loss == 0.0) {
                break;
            }
        }
        Ok(rates)
    }

    /// Longest bursts without loss, in frames.
    fn bursts(&mut self, max_load: f64) -> Result<Result<Vec<u64>, Absent>, Error> {
        let is_box = matches!(self.cell.device, Device::Box(_));
        if is_box && self.bench.settings.over != Over::Memif {
            return Ok(Err(Absent::TakesTurns));
        }
        let lasts = self.bench.settings.goal.final_trial;
        let longest = ((max_load * lasts.as_secs_f64()) as u64).max(1);
        let mut bursts = Vec::new();
        for _ in 0..self.bench.settings.repeats {
            let (mut low, mut high) = (0, longest + 1);
            // Within 1 %; the longest burst first.
            let mut frames = longest;
            while high - low > 1 + high / 100 {
                self.row.pair()?;
                let plan = self.bench.settings.plan(self.cell, max_load, lasts);
                let plan = TrialPlan { frames, frames_per_s: None, ..plan };
                let trial = self.trial(&plan, lasts, Pass::BackToBack)?;
                if trial.received >= frames {
                    low = frames
                } else {
                    high = frames
                }
                frames = low.midpoint(high);
            }
            bursts.push(low);
        }
        Ok(Ok(bursts))
    }
}

/// Reports progress of a trial.
fn progress(
    tell: &mut Tell<'_>,
    pass: Pass,
    trials: u64,
    elapsed: Duration,
    whole: Duration,
) -> bool {
    let work = Work::Trials(trials);
    tell(&Progress { pass, elapsed, whole, work, resident_bytes: resident_bytes() })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Figures as _, Machine};
    use longhaul_wan::Parity;
    use std::io;
    use std::path::Path;
    use std::process::Command;

    fn settings() -> Settings {
        Settings {
            setup: Setup {
                rate: BitRate::from_gbps(800).unwrap(),
                parity: Parity::Off,
                loss: 0.0,
                is_encrypted: false,
            },
            over: Over::Rings,
            tests: Test::ALL.to_vec(),
            goal: Goal {
                loss_ratio: 0.0,
                exceed_ratio: 0.5,
                final_trial: Duration::from_millis(20),
                initial_trial: Duration::from_millis(5),
                duration_sum: Duration::from_millis(40),
                width: 0.1,
            },
            line_rate: Some(BitRate::from_bps(20_000_000).unwrap()),
            repeats: 1,
            residual_wait: Duration::from_millis(20),
        }
    }

    fn cell(kind: BoxKind) -> Cell {
        let device = Device::Box(kind);
        Cell { device, payload_bytes: 512, flows: 8, distance: Distance::from_km(0) }
    }

    fn never(_: &super::super::Cell, _: &Path) -> io::Result<Command> {
        unreachable!("no test over memif")
    }

    #[test]
    fn a_box_within_its_capacity_has_the_mediums_rate_as_its_throughput() {
        let settings = settings();
        let launch = never;
        let bench = Bench::new(&settings, &launch);
        let outcome = bench.measure(&cell(BoxKind::Accelerator), &mut |_| true).unwrap();
        assert_eq!(outcome.frame_bytes, 14 + 20 + 8 + 12 + 16 + 512 + 4 + 4);
        let of_medium = 20e6 / (8.0 * (outcome.frame_bytes + 20) as f64);
        assert!((outcome.max_load / of_medium - 1.0).abs() < 1e-9);
        let values = outcome.values(&Machine::with_ticks_per_s(1e9));
        assert!(values.values().all(|value| value.is_finite()), "{values:?}");
        // A busy machine may cost trials, but not a tenth of a percent of a core.
        assert!(values["throughput_frames_per_s"] <= of_medium * (1.0 + 1e-9), "{values:?}");
        let named: Vec<_> = outcome.absent().into_iter().map(|(name, _)| name).collect();
        assert!(named.contains(&"reset") && named.contains(&"back-to-back frames"), "{named:?}");
        assert!(!values.contains_key("reset_s") && !values.contains_key("back_to_back_frames"));
    }

    #[test]
    fn a_fibre_slower_than_the_load_loses_what_exceeds_its_rate() {
        let mut settings = settings();
        // Beyond what the fibre's queue takes meanwhile.
        settings.setup.rate = BitRate::from_bps(400_000_000).unwrap();
        settings.line_rate = Some(BitRate::from_gbps(2).unwrap());
        settings.goal.final_trial = Duration::from_millis(200);
        settings.goal.duration_sum = Duration::from_millis(200);
        settings.tests = vec![Test::FrameLossRate];
        let launch = never;
        let outcome = Bench::new(&settings, &launch)
            .measure(&cell(BoxKind::Emulator), &mut |_| true)
            .unwrap();
        let (load, loss) = outcome.loss_rates[0];
        assert!((load - outcome.max_load).abs() < 1e-6 && loss > 0.3, "{outcome:?}");
        let GoalResult::Regular(bounds) = outcome.found else { panic!("{outcome:?}") };
        assert!(bounds.lower < 0.7 * outcome.max_load, "{outcome:?}");
    }

    #[test]
    fn what_cannot_be_tested_is_refused() {
        let memif = Settings { over: Over::Memif, ..settings() };
        let paired = cell(BoxKind::Paired);
        assert_eq!(memif.check(&[paired]), Err(SettingsError::PairedOverMemif));
        let long = Cell { payload_bytes: 4097, ..cell(BoxKind::Forward) };
        assert_eq!(settings().check(&[long]), Err(SettingsError::Payload(4097)));
    }
}
