//! Transparent boxes: an accelerator or a fibre between two ports of this machine.
//!
//! Each pair of ports has a thread of its own. An idle one sleeps in the kernel, so that many pairs cost nothing; busy
//! ones share the processors as the scheduler sees fit, and none waits for another's frames.

mod control;
mod element;
pub mod journal;
mod pair;
mod plan;
mod port;
mod privileges;
mod prometheus;
mod status;

pub use plan::{Given, Process, Settings, by, plan, written};
pub use port::{PortName, mtu};

use crate::output;
use crate::problem::Problem;
use crate::state;
use clap::Subcommand;
use control::{Answer, Control, Place};
use element::Element;
use longhaul_host::Clock;
use pair::Running;
use plan::{Pair, Plan};
use port::BoxPort;
use privileges::Privileges;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGUSR1};
use signal_hook::iterator::Signals;
use status::{BoxStatus, PairStatus};
use std::hash::{BuildHasher, RandomState};
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::thread::sleep;
use std::time::{Duration, Instant};

#[derive(Subcommand)]
pub enum Command {
    /// Show ports, rates, stores, flows and drops with reasons
    #[command(after_help = STATUS_EXAMPLES)]
    Status(Status),
}

const STATUS_EXAMPLES: &str = "\
Examples:
  longhaul box status                      of every box that runs here
  longhaul box status accelerate --watch   each second
  longhaul box status --json
  longhaul box status --prometheus         for a scraper, by way of node_exporter's textfile collector

A box is found in the runtime directory of the user who asks, or below /run/longhaul.";

#[derive(clap::Args)]
pub struct Status {
    /// Which box [default: all]
    #[arg(conflicts_with = "control")]
    name: Option<String>,
    /// The box that was given this --control
    #[arg(long, value_name = "PATH")]
    control: Option<PathBuf>,
    /// Print everything as JSON, a list of boxes
    #[arg(long, conflicts_with = "prometheus")]
    json: bool,
    /// Print in Prometheus' text format
    #[arg(long)]
    prometheus: bool,
    /// Print it every so many seconds
    #[arg(long, value_name = "SECONDS", num_args = 0..=1, default_missing_value = "1")]
    #[arg(value_parser = clap::value_parser!(u64).range(1..))]
    watch: Option<u64>,
}

pub fn run_command(command: &Command) -> Result<ExitCode, Problem> {
    let Command::Status(args) = command;
    loop {
        let boxes = control::ask(args.name.as_deref(), args.control.as_deref())?;
        let text = match (args.json, args.prometheus) {
            (true, _) => state::to_json(&boxes)? + "\n",
            (_, true) => prometheus::exposition(&boxes),
            _ => boxes.iter().map(Answer::to_text).collect::<Vec<_>>().join("\n"),
        };
        output::print(&text)?;
        let Some(seconds) = args.watch else {
            let any = boxes.iter().any(|answer| matches!(answer, Answer::State(_)));
            return Ok(if any { ExitCode::SUCCESS } else { ExitCode::FAILURE });
        };
        sleep(Duration::from_secs(seconds));
        output::print("\n")?;
    }
}

/// A seed that nobody knows.
pub fn random_seed() -> u64 {
    RandomState::new().hash_one(std::process::id())
}

/// Runs a box until it is told to stop. `build` makes what is between the ports of a pair.
pub fn run<S, E: Element>(
    command: &'static str,
    plan: Plan<S>,
    build: impl Fn(&S) -> Result<E, Problem>,
) -> Result<ExitCode, Problem> {
    let privileges = Privileges::decide(plan.user.as_deref(), plan.keep_privileges)?;
    let elements = plan.pairs.iter().map(|pair| build(&pair.settings).map_err(|e| of_pair(pair, &e)));
    let elements = elements.collect::<Result<Vec<E>, Problem>>()?;
    // From here on a signal ends the box in order.
    let mut signals = Signals::new([SIGTERM, SIGINT, SIGHUP, SIGUSR1])
        .map_err(|e| Problem::plain(format!("cannot handle signals: {e}")))?;
    let control = Control::listen(Place::decide(&plan.name, plan.control.as_deref())?)?;
    let ports = plan.pairs.iter().map(|pair| open(pair, &privileges));
    let ports = ports.collect::<Result<Vec<[BoxPort; 2]>, Problem>>()?;
    // Not before it is known that there is something to record.
    let ports = plan.pairs.iter().zip(ports);
    let ports = ports.map(|(pair, ports)| record(pair, ports, plan.pcap_frames, &privileges));
    let ports = ports.collect::<Result<Vec<[BoxPort; 2]>, Problem>>()?;
    privileges.apply()?;
    let clock = Clock::start();
    let mut running = Vec::new();
    for ((pair, element), ports) in plan.pairs.iter().zip(elements).zip(ports) {
        let ended = signals.handle();
        running.push(Running::start(pair, element, ports, clock, move || ended.close())?);
    }
    let observer = Arc::new(Observer {
        command,
        name: plan.name.clone(),
        user: privileges::user_name(),
        started: Instant::now(),
        pairs: running.iter().map(Running::observer).collect(),
    });
    control.serve(Arc::clone(&observer))?;
    journal::line(&format!("{command} '{}' {privileges}", plan.name));
    for pair in &plan.pairs {
        journal::line(&format!("pair {}: between {} and {}", pair.name, pair.ports[0], pair.ports[1]));
    }
    let asked = wait_for_end(&mut signals, &observer);
    let ended: Vec<Result<PairStatus, ()>> = running.into_iter().map(Running::end).collect();
    let failed = !asked || ended.iter().any(Result::is_err);
    let summary = observer.with(ended.into_iter().flatten().collect());
    output::print(&summary.to_text())?;
    Ok(if failed { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

/// Waits until the box is to end. False: nobody asked for it, a pair's thread has died.
fn wait_for_end<E: Element>(signals: &mut Signals, observer: &Observer<E>) -> bool {
    for signal in signals.forever() {
        if signal != SIGUSR1 {
            journal::line("told to end");
            return true;
        }
        for line in
            observer.status().iter().flat_map(|s| s.to_text().lines().map(str::to_owned).collect::<Vec<_>>())
        {
            journal::line(&line);
        }
    }
    false
}

fn of_pair<S>(pair: &Pair<S>, problem: &Problem) -> Problem {
    Problem::plain(format!("pair {}: {problem}", pair.name))
}

fn open<S>(pair: &Pair<S>, privileges: &Privileges) -> Result<[BoxPort; 2], Problem> {
    let one = |side: usize| {
        let port = pair.ports[side].open()?;
        if let PortName::Memif { path, is_master: true } = &pair.ports[side] {
            privileges.hand_over(path)?;
        }
        Ok(port)
    };
    Ok([one(0)?, one(1)?])
}

fn record<S>(
    pair: &Pair<S>,
    ports: [BoxPort; 2],
    frames: u64,
    privileges: &Privileges,
) -> Result<[BoxPort; 2], Problem> {
    let one = |port: BoxPort, path: &Option<PathBuf>| match path {
        Some(path) => port.recorded(path, frames, privileges),
        None => Ok(port),
    };
    let [first, second] = ports;
    Ok([one(first, &pair.pcaps[0])?, one(second, &pair.pcaps[1])?])
}

/// Sees a running box from any thread.
struct Observer<E> {
    command: &'static str,
    name: String,
    user: String,
    started: Instant,
    pairs: Vec<pair::Observer<E>>,
}

impl<E: Element> Observer<E> {
    /// `None` once a pair has stopped.
    fn status(&self) -> Option<BoxStatus> {
        let pairs = self.pairs.iter().map(pair::Observer::status).collect::<Option<Vec<PairStatus>>>()?;
        Some(self.with(pairs))
    }

    fn with(&self, pairs: Vec<PairStatus>) -> BoxStatus {
        BoxStatus {
            name: self.name.clone(),
            command: self.command.to_string(),
            pid: std::process::id(),
            user: self.user.clone(),
            uptime_s: self.started.elapsed().as_secs_f64(),
            pairs,
        }
    }
}
