//! Runs points on the cores of this machine, one thread per point.

use super::grid::{Grid, Point};
use crate::problem::Problem;
use crate::sim::{Failure, Interrupt, Opened, Progress, record, time_left};
use longhaul_bench::{Record, Started};
use longhaul_campaign::{Store, StoreError};
use longhaul_sim::Simulation;
use longhaul_sim::file::Loaded;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::time::Duration;

/// Poll interval of Ctrl-C and progress.
const LOOK: Duration = Duration::from_millis(100);

/// Result of a sweep.
#[derive(Default)]
pub struct Tally {
    /// Points with results in the file.
    pub finished: usize,
    /// Points that could not be simulated, with reasons.
    pub failed: Vec<String>,
    /// Points whose results violate the protocol.
    pub violations: usize,
}

/// A point that has ended.
type Ended = Result<Record, String>;

/// Runs `points`, `jobs` at a time, and stores each result when it ends.
///
/// # Errors
/// Writing to the store failed; its earlier results are intact.
pub fn run(
    opened: &Opened,
    grid: &Grid,
    points: &[Point],
    jobs: usize,
    store: &mut Store,
    interrupt: &Interrupt,
    progress: &mut Progress,
) -> Result<Tally, Failure> {
    let (next, stop) = (AtomicUsize::new(0), AtomicBool::new(false));
    let (sender, receiver) = mpsc::channel::<Ended>();
    std::thread::scope(|scope| {
        let (next, stop) = (&next, &stop);
        for _ in 0..jobs {
            let sender = sender.clone();
            scope.spawn(move || {
                while let Some(point) = points.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let Some(ended) = simulate(opened, grid, point, stop) else { return };
                    if sender.send(ended).is_err() {
                        return;
                    }
                }
            });
        }
        drop(sender);
        let tally = keep(&receiver, points.len(), store, progress, || {
            stop.fetch_or(interrupt.came(), Ordering::Relaxed);
        });
        // In any case, end the threads too.
        stop.store(true, Ordering::Relaxed);
        tally
    })
}

/// Stores results as points end.
fn keep(
    receiver: &Receiver<Ended>,
    planned: usize,
    store: &mut Store,
    progress: &mut Progress,
    look: impl Fn(),
) -> Result<Tally, Failure> {
    let mut tally = Tally::default();
    loop {
        look();
        match receiver.recv_timeout(LOOK) {
            Ok(Ok(record)) => {
                store.add(&record).map_err(|error| lost(&error, &tally, store))?;
                tally.finished += 1;
                tally.violations +=
                    usize::from(record.values.get("violations").is_some_and(|count| *count > 0.0));
            }
            Ok(Err(why)) => tally.failed.push(why),
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return Ok(tally),
        }
        if progress.is_due() {
            let done = tally.finished + tally.failed.len();
            let seconds = progress.elapsed().as_secs_f64();
            let rest = match done {
                0 => String::new(),
                _ => {
                    format!(", {} left", time_left(seconds * (planned - done) as f64 / done as f64))
                }
            };
            progress.show(&format!("{done} of {planned} points{rest}"));
        }
    }
}

fn lost(error: &StoreError, tally: &Tally, store: &Store) -> Failure {
    let cause = format!(
        "{error}; the {} points finished before are complete in {}",
        tally.finished,
        store.path().display()
    );
    Failure::Other(Problem::new(cause, "free some space and repeat the command"))
}

fn simulate(opened: &Opened, grid: &Grid, point: &Point, stop: &AtomicBool) -> Option<Ended> {
    let place = &point.place;
    let started = Started::now();
    let ran = catch_unwind(AssertUnwindSafe(|| {
        let (Loaded { scenario, .. }, parameters) =
            grid.load(opened, point).map_err(|e| e.to_string())?;
        let simulation =
            Simulation::new(scenario.clone(), |_, _| None).map_err(|e| e.to_string())?;
        Ok((simulation.run(1, |_| !stop.load(Ordering::Relaxed)), scenario, parameters))
    }));
    let (outcome, scenario, parameters) = match ran {
        Ok(Ok(done)) => done,
        Ok(Err::<_, String>(why)) => return Some(Err(format!("{place}: {why}"))),
        Err(_) => return Some(Err(format!("{place}: the simulator failed; please report this"))),
    };
    // Probably interrupted: a partial run is not a result.
    if stop.load(Ordering::Relaxed) && outcome.unfinished.is_some() {
        return None;
    }
    let provenance = started.provenance(Some(point.seed), 1);
    Some(Ok(record(&opened.experiment, &parameters, &scenario, &outcome, provenance)))
}
