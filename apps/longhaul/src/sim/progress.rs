//! Progress of long work, and Ctrl-C.

use crate::problem::Problem;
use longhaul_sim::{Progress as At, Scenario, Until};
use signal_hook::consts::{SIGINT, SIGTERM};
use std::io::{IsTerminal as _, Write as _};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Interval of progress lines on a terminal, and elsewhere.
const ON_TERMINAL: Duration = Duration::from_millis(200);
const ELSEWHERE: Duration = Duration::from_secs(10);

/// Set by Ctrl-C. A second Ctrl-C ends the process at once.
#[derive(Clone, Debug)]
pub struct Interrupt(Arc<AtomicBool>);

impl Interrupt {
    /// Installs the handler.
    pub fn listen() -> Result<Self, Problem> {
        let flag = Arc::new(AtomicBool::new(false));
        let failed = |e| Problem::plain(format!("cannot listen to signals: {e}"));
        for signal in [SIGINT, SIGTERM] {
            // In this order, so that the first signal arms the shutdown by the second.
            signal_hook::flag::register_conditional_shutdown(
                signal,
                super::INTERRUPTED.into(),
                flag.clone(),
            )
            .map_err(failed)?;
            signal_hook::flag::register(signal, flag.clone()).map_err(failed)?;
        }
        Ok(Interrupt(flag))
    }

    /// The flag that Ctrl-C sets.
    pub fn flag(&self) -> &AtomicBool {
        &self.0
    }

    /// Whether Ctrl-C was pressed.
    pub fn came(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

/// A progress line on standard error.
pub struct Progress {
    since: Instant,
    due: Instant,
    is_terminal: bool,
    is_shown: bool,
}

impl Progress {
    /// Starts the clock.
    pub fn new() -> Self {
        let now = Instant::now();
        let is_terminal = std::io::stderr().is_terminal();
        let first = if is_terminal { ON_TERMINAL } else { ELSEWHERE };
        Progress { since: now, due: now + first, is_terminal, is_shown: false }
    }

    /// Whether the next line is due.
    pub fn is_due(&self) -> bool {
        Instant::now() >= self.due
    }

    /// Time since the start.
    pub fn elapsed(&self) -> Duration {
        self.since.elapsed()
    }

    /// Replaces the line.
    pub fn show(&mut self, line: &str) {
        if self.is_terminal {
            eprint!("\r{line}\x1b[K");
            // Failing to write a progress line is not an error.
            let _ = std::io::stderr().flush();
        } else {
            eprintln!("{line}");
        }
        self.is_shown = true;
        self.due = Instant::now() + if self.is_terminal { ON_TERMINAL } else { ELSEWHERE };
    }

    /// Removes the line.
    pub fn done(&mut self) {
        if self.is_terminal && self.is_shown {
            eprint!("\r\x1b[K");
            let _ = std::io::stderr().flush();
        }
        self.is_shown = false;
    }

    /// Shows a simulation's progress, when due.
    pub fn of_run(&mut self, scenario: &Scenario, at: &At) {
        if !self.is_due() {
            return;
        }
        let seconds = self.elapsed().as_secs_f64();
        let rate = at.events as f64 / seconds / 1e6;
        let now_ms = at.now.as_ns() as f64 / 1e6;
        let done = fraction(scenario, at);
        let rest = match done {
            Some(done) if done > 0.0 => {
                format!(
                    ", {:.0} %, {} left",
                    done * 100.0,
                    time_left(seconds * (1.0 - done) / done)
                )
            }
            _ => String::new(),
        };
        self.show(&format!("{now_ms:.1} ms of virtual time, {rate:.1} million events/s{rest}"));
    }
}

/// The completed fraction: of messages if all flows have a count, of time if all end by time.
fn fraction(scenario: &Scenario, at: &At) -> Option<f64> {
    let ends = scenario.flows.iter().map(|flow| match flow.test.until() {
        Until::Elapsed(time) => Some((flow.starts_at + time).as_ns()),
        Until::Iterations(_) => None,
    });
    let by_time = ends.collect::<Option<Vec<u64>>>().and_then(|ends| ends.into_iter().max());
    let planned: u64 = scenario.flows.iter().map(messages).sum();
    match by_time {
        Some(end) => Some((at.now.as_ns() as f64 / end as f64).min(1.0)),
        None if planned > 0 => Some((at.messages as f64 / planned as f64).min(1.0)),
        None => None,
    }
}

fn messages(flow: &longhaul_sim::Flow) -> u64 {
    match flow.test.until() {
        Until::Iterations(count) => count.saturating_mul(flow.qps.into()),
        Until::Elapsed(_) => 0,
    }
}

/// `12 s`, `3 min`, `2.5 h`.
pub fn time_left(seconds: f64) -> String {
    match seconds {
        s if s < 120.0 => format!("{:.0} s", s.ceil()),
        s if s < 7200.0 => format!("{:.0} min", s / 60.0),
        s => format!("{:.1} h", s / 3600.0),
    }
}
