//! Speed of the software RNIC, and the breakdown of its cost.
//!
//! Two ends of RC queue pairs, each the device that programs get, with its port and its turns: over
//! rings in one thread, over memif and AF_XDP in two processes.

mod cell;
mod error;
mod figures;
mod line;
mod outcome;
mod peer;

pub use cell::{Cell, Line};
pub use error::{CellError, Error};
pub use figures::EndFigures;
pub use outcome::{Cost, Outcome};

use crate::folder::Folder;
use crate::progress::{Pass, Progress, Tell, Work};
use figures::Start;
use line::{FarEnd, InOneThread};
use longhaul_datapath::{End, Role, TransferConfig, resident_bytes};
use longhaul_port::{LinkState, Port};
use std::io;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

/// Time limit for links to come up, and for messages to end.
const PATIENCE: Duration = Duration::from_secs(20);
/// Steps between two checks of the clock.
const STEPS: u32 = 64;
/// Interval of progress reports and memory samples.
const LOOK_EVERY: Duration = Duration::from_millis(200);

/// How cells are measured.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Settings {
    /// Time under load before the measurement.
    pub warm_up: Duration,
    /// Measured time.
    pub lasts: Duration,
    /// Number of messages after which a measurement ends early.
    pub messages_max: Option<u64>,
    /// Whether to run an instrumented pass too.
    pub has_parts: bool,
}

/// What a responder in another process needs to know.
#[derive(Clone, Copy, Debug)]
pub struct Responder<'a> {
    /// Parameters of the transfer, and the line.
    pub cell: &'a Cell,
    /// Whether the pass is instrumented.
    pub is_instrumented: bool,
    /// Folder of the memif socket.
    pub folder: &'a Path,
}

/// Command line of a process that calls [`serve`] for a responder.
pub type Launch<'a> = dyn Fn(&Responder<'_>) -> io::Result<Command> + 'a;

/// Runs the responder of another process until standard input ends. Orders arrive on standard
/// input, and answers leave on standard output.
///
/// # Errors
/// The port cannot be created, the end failed, or the requester's process went away.
pub fn serve(responder: &Responder<'_>) -> Result<(), Error> {
    let config = responder.cell.transfer(responder.is_instrumented);
    match &responder.cell.line {
        Line::Memif { frames } => {
            peer::serve(line::memif_slave(responder.folder, *frames)?, config)
        }
        Line::Xdp { responder, .. } => peer::serve(line::xdp(responder)?, config),
        Line::Rings { .. } => Err(Error::ServedOverRings),
    }
}

/// Measures cells with the same settings.
pub struct Bench<'a> {
    settings: Settings,
    launch: &'a Launch<'a>,
}

impl<'a> Bench<'a> {
    /// Prepares to measure; `launch` provides the process of a responder over memif and AF_XDP.
    pub fn new(settings: Settings, launch: &'a Launch<'a>) -> Self {
        Bench { settings, launch }
    }

    /// Measures a cell that passes [`Cell::check`], with a second, instrumented pass if requested.
    ///
    /// # Errors
    /// [`Error`].
    pub fn measure(&self, cell: &Cell, tell: &mut Tell<'_>) -> Result<Outcome, Error> {
        let outcome = Outcome::new(cell, self.pass(cell, Pass::Cell, tell)?);
        if !self.settings.has_parts {
            return Ok(outcome);
        }
        Ok(outcome.with_instrumented(self.pass(cell, Pass::Instrumented, tell)?))
    }

    fn pass(&self, cell: &Cell, pass: Pass, tell: &mut Tell<'_>) -> Result<[EndFigures; 2], Error> {
        let is_instrumented = pass == Pass::Instrumented;
        let config = cell.transfer(is_instrumented);
        let folder = Folder::new()?;
        let folder = folder.path();
        let start = || {
            let responder = Responder { cell, is_instrumented, folder };
            peer::Child::start((self.launch)(&responder).map_err(Error::StartResponder)?)
        };
        let mut run = Run::new(self.settings, pass, tell);
        match &cell.line {
            Line::Rings { frames } => {
                let (near, far) = line::rings(*frames)?;
                run.between(config, near, InOneThread::new(config, far)?)
            }
            Line::Memif { frames } => {
                run.between(config, line::memif_master(folder, *frames)?, start()?)
            }
            Line::Xdp { requester, .. } => run.between(config, line::xdp(requester)?, start()?),
        }
    }
}

/// One pass over a cell.
struct Run<'a, 't> {
    settings: Settings,
    pass: Pass,
    tell: &'a mut Tell<'t>,
    /// Start of the warm-up.
    began: Instant,
}

impl<'a, 't> Run<'a, 't> {
    fn new(settings: Settings, pass: Pass, tell: &'a mut Tell<'t>) -> Self {
        Run { settings, pass, tell, began: Instant::now() }
    }

    /// Measures a requester at `port` with a responder in this thread or elsewhere.
    fn between<P: Port, F: FarEnd>(
        &mut self,
        config: TransferConfig,
        port: P,
        mut far: F,
    ) -> Result<[EndFigures; 2], Error> {
        let mut near = End::new(Role::Requester, config, port)?;
        near.connect(&far.introduce(&near.introduction())?)?;
        let deadline = Instant::now() + PATIENCE;
        while near.service()? == LinkState::Down {
            far.step()?;
            if Instant::now() >= deadline {
                return Err(Error::NoPeer);
            }
        }
        let Settings { warm_up, lasts, messages_max, .. } = self.settings;
        self.began = Instant::now();
        self.work(&mut near, &mut far, warm_up, None)?;
        far.begin()?;
        let start = Start::of(&mut near);
        let messages_max = messages_max.map(|more| near.counters().messages + more);
        let most = self.work(&mut near, &mut far, lasts, messages_max)?;
        let near_figures = start.until_now(&near, most);
        let far_figures = far.end()?;
        near.stop();
        let deadline = Instant::now() + PATIENCE;
        while !near.is_quiet() {
            near.step()?;
            far.step()?;
            if Instant::now() >= deadline {
                return Err(Error::Unfinished);
            }
        }
        Ok([near_figures, far_figures])
    }

    /// Runs both ends for a time; returns the peak memory meanwhile.
    fn work<P: Port, F: FarEnd>(
        &mut self,
        near: &mut End<P>,
        far: &mut F,
        lasts: Duration,
        messages_max: Option<u64>,
    ) -> Result<u64, Error> {
        let deadline = Instant::now() + lasts;
        let (mut look_at, mut most) = (Instant::now() + LOOK_EVERY, 0);
        loop {
            for _ in 0..STEPS {
                let is_busy = near.step()? | far.step()?;
                if !is_busy {
                    std::thread::yield_now();
                }
            }
            let (now, messages) = (Instant::now(), near.counters().messages);
            if now >= look_at {
                look_at = now + LOOK_EVERY;
                most = resident_bytes().max(most);
                if !self.goes_on(now, messages, most) {
                    return Err(Error::Interrupted);
                }
            }
            if now >= deadline || messages_max.is_some_and(|most| messages >= most) {
                return Ok(most);
            }
        }
    }

    fn goes_on(&mut self, now: Instant, messages: u64, resident_bytes: u64) -> bool {
        (self.tell)(&Progress {
            pass: self.pass,
            elapsed: now - self.began,
            whole: self.settings.warm_up + self.settings.lasts,
            work: Work::Messages(messages),
            resident_bytes,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use longhaul_datapath::Operation;
    use longhaul_rnic::Mtu;

    fn cell() -> Cell {
        Cell {
            line: Line::Rings { frames: 64 },
            operation: Operation::Write,
            message_bytes: 8192,
            mtu: Mtu::B4096,
            qps: 2,
            depth: 4,
        }
    }

    fn settings(messages_max: Option<u64>) -> Settings {
        let [warm_up, lasts] = [10, 20_000].map(Duration::from_millis);
        Settings { warm_up, lasts, messages_max, has_parts: true }
    }

    #[test]
    fn both_ends_are_measured_in_one_thread() {
        let launch = |_: &Responder<'_>| -> io::Result<Command> { unreachable!() };
        let bench = Bench::new(settings(Some(200)), &launch);
        let outcome = bench.measure(&cell(), &mut |_| true).unwrap();
        assert!(outcome.goodput_bps() > 0.0 && outcome.is_instrumented());
    }

    #[test]
    fn a_callback_ends_the_measurement() {
        let launch = |_: &Responder<'_>| -> io::Result<Command> { unreachable!() };
        let failed = Bench::new(settings(None), &launch).measure(&cell(), &mut |_| false);
        assert!(matches!(failed, Err(Error::Interrupted)));
    }

    #[test]
    fn a_responder_that_cannot_start_is_told() {
        let launch = |_: &Responder<'_>| Err(io::Error::from(io::ErrorKind::NotFound));
        let cell = Cell { line: Line::Memif { frames: 64 }, ..cell() };
        let failed = Bench::new(settings(None), &launch).measure(&cell, &mut |_| true).unwrap_err();
        assert_eq!(failed.to_string(), "cannot start the responder: entity not found");
        let folder = Path::new("/");
        let over_rings = Responder { cell: &self::cell(), is_instrumented: false, folder };
        assert!(matches!(serve(&over_rings), Err(Error::ServedOverRings)));
    }

    #[test]
    fn a_responder_that_ends_early_is_told_by_its_status() {
        let launch = |_: &Responder<'_>| {
            let mut command = Command::new("sh");
            command.args(["-c", "exit 3"]);
            Ok(command)
        };
        let cell = Cell { line: Line::Memif { frames: 64 }, ..cell() };
        let failed = Bench::new(settings(None), &launch).measure(&cell, &mut |_| true).unwrap_err();
        assert_eq!(failed.to_string(), "the responder ended early: exit status: 3");
    }
}
