//! Cost per packet and packet rate of a box.
//!
//! Prebuilt WRITEs of many QPs pass the node that runs in a real box. Over rings all of it runs in
//! one thread, so that the box's time is distinguished from the load's; over memif the box is a
//! process of its own.

mod between;
mod cell;
mod error;
mod outcome;
mod parts;
pub mod rfc2544;
mod served;
mod testpmd;

pub use cell::{BoxKind, Cell, Over, Setup};
pub use error::{Error, SettingsError};
pub use outcome::Outcome;
pub use parts::Parts;
pub use served::serve;

use crate::progress::{Pass, Progress, Tell, Work};
use longhaul_datapath::{FLOWS_MAX, LoadConfig, Measured, PAYLOAD_MAX, Plan};
use longhaul_units::Duration as Span;
use longhaul_wan::Parity;
use served::Served;
use std::io;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

/// How cells are measured.
#[derive(Clone, PartialEq, Debug)]
pub struct Settings {
    /// Settings of the boxes.
    pub setup: Setup,
    /// Connection of load and box.
    pub over: Over,
    /// Time under load before the measurement.
    pub warm_up: Duration,
    /// Measured time.
    pub lasts: Duration,
    /// Number of packets after which a measurement ends early.
    pub packets_max: Option<u64>,
    /// Consecutive packets of one QP before the next QP's turn.
    pub in_a_row: u32,
    /// Packets of a QP per acknowledgement request.
    pub ack_every: u32,
    /// Maximum unacknowledged packets per QP; `None`: 128, or 65536 if only responders acknowledge.
    pub depth: Option<u32>,
    /// Packets per burst of the load.
    pub burst: usize,
    /// Whether to measure testpmd with the same load.
    pub beside_testpmd: bool,
    /// Processor of testpmd; `None`: any.
    pub testpmd_core: Option<usize>,
    /// Whether to compare paired boxes with the sum of their parts.
    pub has_parts: bool,
}

/// Checks whether a load has such packets and so many flows.
fn check_load(payload_bytes: usize, flows: u32) -> Result<(), SettingsError> {
    if !(1..=PAYLOAD_MAX).contains(&payload_bytes) {
        return Err(SettingsError::Payload(payload_bytes));
    }
    if !(1..=FLOWS_MAX).contains(&flows) {
        return Err(SettingsError::Flows(flows));
    }
    Ok(())
}

impl Settings {
    /// Checks whether `cells` can be measured.
    ///
    /// # Errors
    /// The first contradiction.
    pub fn check(&self, cells: &[Cell]) -> Result<(), SettingsError> {
        for cell in cells {
            check_load(cell.payload_bytes, cell.flows)?;
            self.load(cell).check()?;
            if self.over == Over::Memif && cell.kind == BoxKind::Paired {
                return Err(SettingsError::PairedOverMemif);
            }
        }
        if self.beside_testpmd && self.over != Over::Memif {
            return Err(SettingsError::TestpmdOverRings);
        }
        let has_pair = cells.iter().any(|cell| cell.kind == BoxKind::Paired);
        let has_work = self.setup.is_encrypted || self.setup.parity != Parity::Off;
        if self.has_parts && !(has_pair && has_work) {
            return Err(SettingsError::NoParts);
        }
        Ok(())
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
            warm_up: self.warm_up + Duration::from_nanos(round_trip.times(4).as_ns()),
            lasts: self.lasts,
            packets_max: self.packets_max,
            ack_delay: if cell.kind.has_the_path_inside() { Span::ZERO } else { round_trip },
        }
    }
}

/// Command line of a process that calls [`serve`] for a cell, with the sockets in a folder.
pub type Launch<'a> = dyn Fn(&Cell, &Path) -> io::Result<Command> + 'a;

/// Measures cells with the same settings.
pub struct Bench<'a> {
    settings: &'a Settings,
    launch: &'a Launch<'a>,
}

impl<'a> Bench<'a> {
    /// Prepares to measure; `launch` provides the process of a box over memif.
    ///
    /// # Errors
    /// [`Error::NoTestpmd`].
    pub fn new(settings: &'a Settings, launch: &'a Launch<'a>) -> Result<Self, Error> {
        if settings.beside_testpmd {
            testpmd::check_installed()?;
        }
        Ok(Bench { settings, launch })
    }

    /// Measures a cell, which the settings allow ([`Settings::check`]).
    ///
    /// # Errors
    /// [`Error`].
    pub fn measure(&self, cell: &Cell, tell: &mut Tell<'_>) -> Result<Outcome, Error> {
        // Measure the load alone, briefly: the upper bound of this measurement.
        let (setup, over) = (&self.settings.setup, self.settings.over);
        let alone = Cell { kind: BoxKind::None, ..*cell };
        let brief = Plan {
            warm_up: Duration::from_millis(100),
            lasts: Duration::from_millis(300),
            packets_max: None,
            ack_delay: Span::ZERO,
        };
        let alone = self.over_rings(&alone, setup, &brief, Pass::LoadAlone, tell)?;
        let plan = self.settings.plan(cell);
        let (measured, box_used_ns) = match over {
            Over::Rings | Over::CopyingRings => {
                (self.over_rings(cell, setup, &plan, Pass::Cell, tell)?, None)
            }
            Over::Memif => {
                let (measured, used_ns) = self.over_memif(cell, &plan, tell)?;
                (measured, Some(used_ns))
            }
        };
        let mut outcome =
            Outcome::new(cell, setup, over, measured).with_load_alone(&alone).of_box(box_used_ns);
        if self.settings.beside_testpmd {
            outcome = outcome.beside_testpmd(&self.over_testpmd(cell, &plan, tell)?);
        }
        if self.settings.has_parts && cell.kind == BoxKind::Paired {
            let plain = Setup { parity: Parity::Off, is_encrypted: false, ..setup.clone() };
            let plain = self.over_rings(cell, &plain, &plan, Pass::Plain, tell)?;
            outcome = outcome.with_parts(&plain);
        }
        Ok(outcome)
    }

    fn over_rings(
        &self,
        cell: &Cell,
        setup: &Setup,
        plan: &Plan,
        pass: Pass,
        tell: &mut Tell<'_>,
    ) -> Result<Measured, Error> {
        let copies = self.settings.over == Over::CopyingRings;
        let mut row = between::row(cell, setup, self.settings.load(cell), copies)?;
        row.pair()?;
        Ok(row.measure(plan, teller(pass, plan, tell))?)
    }

    fn over_memif(
        &self,
        cell: &Cell,
        plan: &Plan,
        tell: &mut Tell<'_>,
    ) -> Result<(Measured, u64), Error> {
        let served = Served::start(cell, self.launch)?;
        let mut row = served.row(self.settings.load(cell))?;
        row.pair()?;
        served.measure(&mut row, plan, teller(Pass::Cell, plan, tell))
    }

    fn over_testpmd(
        &self,
        cell: &Cell,
        plan: &Plan,
        tell: &mut Tell<'_>,
    ) -> Result<Measured, Error> {
        let forward = Cell { kind: BoxKind::Forward, ..*cell };
        let mut beside = testpmd::Beside::new(self.settings.testpmd_core)?;
        let mut row = beside.row(self.settings.load(&forward))?;
        row.pair()?;
        let plan = Plan { ack_delay: Span::ZERO, ..*plan };
        Ok(row.measure(&plan, teller(Pass::Testpmd, &plan, tell))?)
    }
}

/// Turns progress of a row into progress of a pass.
fn teller(
    pass: Pass,
    plan: &Plan,
    tell: &mut Tell<'_>,
) -> impl FnMut(&longhaul_datapath::Progress) -> bool {
    let whole = plan.warm_up + plan.lasts;
    move |at| {
        let (elapsed, resident_bytes) = (at.elapsed, at.resident_bytes);
        tell(&Progress { pass, elapsed, whole, work: Work::Packets(at.arrived), resident_bytes })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Figures as _;
    use longhaul_boxes::quantity::Distance;
    use longhaul_units::BitRate;

    fn settings(over: Over) -> Settings {
        let rate = BitRate::from_gbps(800).unwrap();
        Settings {
            setup: Setup { rate, parity: Parity::Off, loss: 0.0, is_encrypted: false },
            over,
            warm_up: Duration::from_millis(20),
            lasts: Duration::from_secs(20),
            packets_max: Some(20_000),
            in_a_row: 16,
            ack_every: 16,
            depth: None,
            burst: 64,
            beside_testpmd: false,
            testpmd_core: None,
            has_parts: false,
        }
    }

    fn cell(kind: BoxKind) -> Cell {
        Cell { kind, payload_bytes: 1024, flows: 20, distance: Distance::from_km(0) }
    }

    #[test]
    fn settings_that_cannot_be_measured_are_named() {
        let (rings, memif) = (settings(Over::Rings), settings(Over::Memif));
        let paired = cell(BoxKind::Paired);
        assert_eq!(rings.check(&[paired]), Ok(()));
        for (settings, cell, expected) in [
            (&rings, Cell { payload_bytes: 0, ..paired }, SettingsError::Payload(0)),
            (&rings, Cell { flows: 0, ..paired }, SettingsError::Flows(0)),
            (&memif, paired, SettingsError::PairedOverMemif),
            (
                &Settings { beside_testpmd: true, ..rings.clone() },
                paired,
                SettingsError::TestpmdOverRings,
            ),
            (&Settings { has_parts: true, ..rings.clone() }, paired, SettingsError::NoParts),
        ] {
            assert_eq!(settings.check(&[cell]), Err(expected));
        }
    }

    #[test]
    fn a_bench_measures_the_load_before_the_cell() {
        let settings = settings(Over::Rings);
        let launch = |_: &Cell, _: &Path| -> io::Result<Command> { unreachable!() };
        let bench = Bench::new(&settings, &launch).unwrap();
        let mut passes = Vec::new();
        let outcome = bench.measure(&cell(BoxKind::Forward), &mut |at| {
            passes.push(at.pass);
            true
        });
        let outcome = outcome.unwrap();
        assert!(outcome.load_alone_pps() > Some(0.0) && outcome.faults().is_empty());
        assert_eq!(passes.first(), Some(&Pass::LoadAlone));
    }

    #[test]
    fn a_callback_ends_the_measurement() {
        let settings = Settings { packets_max: None, ..settings(Over::Rings) };
        let launch = |_: &Cell, _: &Path| -> io::Result<Command> { unreachable!() };
        let bench = Bench::new(&settings, &launch).unwrap();
        let failed = bench.measure(&cell(BoxKind::Forward), &mut |_| false).unwrap_err();
        assert_eq!(failed.to_string(), "interrupted");
    }
}
