//! Transparent boxes: an accelerator or a fibre between two ports of this machine.
//!
//! Each pair of ports has a thread of its own, or one for each of the cores that share it. An idle
//! one sleeps in the kernel, so that many pairs cost nothing; busy ones share the processors as the
//! scheduler sees fit, and none waits for another's frames.

mod control;
mod cores;
mod element;
mod http;
pub mod journal;
mod merge;
mod operation;
mod orders;
mod pair;
mod plan;
mod port;
mod privileges;
mod prometheus;
mod status;
mod top;
pub mod xdp;

pub use cores::{Cores, cores_written};
pub use orders::{DRAIN_EXAMPLES, Drain, drain};
pub use plan::{Difference, Given, Kind, Pair, Process, Settings, by, plan, written};
pub use port::{PortName, mtu};
pub use top::{Top, top};

use crate::output;
use crate::problem::Problem;
use crate::state;
use clap::Subcommand;
use control::{Answer, Control, Place};
use cores::Places;
use journal::Level;
use longhaul_host::Clock;
use operation::{Operated, Operation, Planner};
use pair::Running;
use plan::Plan;
use port::{BoxPort, Opening};
use privileges::Privileges;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGUSR1};
use signal_hook::iterator::Signals;
use status::PairStatus;
use std::hash::{BuildHasher, RandomState};
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::thread::sleep;
use std::time::Duration;

#[derive(Subcommand)]
pub enum Command {
    /// Show ports, rates, stores, flows and drops with reasons
    #[command(after_help = STATUS_EXAMPLES)]
    Status(Status),
    /// Have a box read its configuration file again
    #[command(after_help = orders::RELOAD_EXAMPLES)]
    Reload(orders::Reload),
    /// Let the flows of a box go, so that it can be ended without any connection noticing
    #[command(after_help = DRAIN_EXAMPLES)]
    Drain(Drain),
    /// Whether a box does what it is there for, and if not why
    #[command(after_help = orders::HEALTH_EXAMPLES)]
    Health(orders::Health),
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
    match command {
        Command::Status(args) => show_status(args),
        Command::Reload(args) => orders::reload(args),
        Command::Drain(args) => drain(args),
        Command::Health(args) => orders::health(args),
    }
}

fn show_status(args: &Status) -> Result<ExitCode, Problem> {
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

/// Runs a box until it is told to stop. `planner` makes its plan from its command line and, if it
/// `has_file`, from that, now and whenever it is to read that again.
pub fn run<S: Kind>(
    has_file: bool,
    planner: impl Fn() -> Result<Plan<S>, Problem> + Send + Sync + 'static,
) -> Result<ExitCode, Problem> {
    let plan = planner()?;
    journal::write_as(plan.log, &plan.name);
    S::warn(&plan.pairs);
    let planner: Option<Planner<S>> = if has_file { Some(Box::new(planner)) } else { None };
    let privileges = Privileges::decide(plan.user.as_deref(), plan.keep_privileges)?;
    let places = plan.pairs.iter().map(|pair| cores::decide(pair).map_err(|e| of_pair(pair, &e)));
    let places = places.collect::<Result<Vec<Places>, Problem>>()?;
    let build =
        |pair: &Pair<S>| pair.settings.build(&pair.ports[1..]).map_err(|e| of_pair(pair, &e));
    let elements = plan.pairs.iter().map(build);
    let elements = elements.collect::<Result<Vec<Vec<S::Element>>, Problem>>()?;
    // From here on a signal ends the box in order.
    let mut signals = Signals::new([SIGTERM, SIGINT, SIGHUP, SIGUSR1])
        .map_err(|e| Problem::plain(format!("cannot handle signals: {e}")))?;
    let control = Control::listen(Place::decide(&plan.name, plan.control.as_deref())?)?;
    let health = plan.health.map(http::listen).transpose()?;
    let ports = ports(&plan, &privileges)?;
    privileges.apply()?;
    let clock = Clock::start();
    let mut running = Vec::new();
    for (((pair, elements), ports), places) in
        plan.pairs.iter().zip(elements).zip(ports).zip(&places)
    {
        let ended = signals.handle();
        let cores = elements.into_iter().zip(ports).collect();
        running.push(Running::start(pair, cores, places, clock, move || ended.close())?);
    }
    journal::line(&format!("{} '{}' {privileges}", S::COMMAND, plan.name));
    for pair in &plan.pairs {
        let behind: Vec<String> = pair.ports[1..].iter().map(PortName::to_string).collect();
        let text = format!("between {} and {}", pair.ports[0], behind.join(", "));
        journal::of_pair(Level::Info, &pair.name, &text);
        if let Some(text) = pair.settings.summary() {
            journal::of_pair(Level::Info, &pair.name, &text);
        }
    }
    let observers = running.iter().map(Running::observer).collect();
    let operation = Arc::new(Operation::new(plan, planner, privileges::user_name(), observers));
    let operated: Arc<dyn Operated> = Arc::<Operation<S>>::clone(&operation);
    control.serve(Arc::clone(&operated))?;
    if let Some(listener) = health {
        http::serve(listener, &operated)?;
    }
    let asked = wait_for_end(&mut signals, &operation);
    let ended: Vec<Result<PairStatus, ()>> = running.into_iter().map(Running::end).collect();
    let failed = !asked || ended.iter().any(Result::is_err);
    let summary = operation.with(ended.into_iter().flatten().collect());
    output::print(&summary.to_text())?;
    Ok(if failed { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

/// Waits until the box is to end. False: nobody asked for it, a pair's thread has died.
fn wait_for_end<S: Kind>(signals: &mut Signals, operation: &Operation<S>) -> bool {
    for signal in signals.forever() {
        match signal {
            SIGUSR1 => {
                if let Some(status) = operation.status() {
                    journal::state(&status);
                }
            }
            SIGHUP if operation.has_file() => {
                if let Err(problem) = operation.reload() {
                    journal::warn(&format!("cannot go by the configuration: {problem}"));
                }
            }
            _ => {
                journal::line("told to end");
                return true;
            }
        }
    }
    false
}

/// Opens the ports of all pairs: of each pair, for each of its cores, a queue of each port.
fn ports<S: Kind>(
    plan: &Plan<S>,
    privileges: &Privileges,
) -> Result<Vec<Vec<Vec<BoxPort>>>, Problem> {
    let open = |pair: &Pair<S>| -> Result<Vec<Vec<BoxPort>>, Problem> {
        let opening =
            Opening { count: pair.settings.cores().count(), spread: S::SPREAD, stamps: S::STAMPS };
        let count = opening.count;
        let mut cores: Vec<Vec<BoxPort>> = (0..count.get()).map(|_| Vec::new()).collect();
        for (side, name) in pair.ports.iter().enumerate() {
            let queues = name.open_queues(&plan.dpdk, side, opening)?;
            if let PortName::Memif { path, is_master: true } = name {
                privileges.hand_over(path)?;
            }
            for (core, queue) in cores.iter_mut().zip(queues) {
                core.push(queue);
            }
        }
        let failed = |e| Problem::plain(format!("pair {}: cannot share its ports: {e}", pair.name));
        cores::join(cores, cores::spread(pair, &plan.dpdk)).map_err(failed)
    };
    let mut ports = plan.pairs.iter().map(open).collect::<Result<Vec<_>, Problem>>()?;
    // Not before it is known that there is something to record.
    for (pair, cores) in plan.pairs.iter().zip(&mut ports) {
        record(plan, pair, cores, privileges)?;
    }
    Ok(ports)
}

/// Has the ports of a pair recorded as it says: what all cores do at one goes to one file.
fn record<S: Kind>(
    plan: &Plan<S>,
    pair: &Pair<S>,
    cores: &mut [Vec<BoxPort>],
    privileges: &Privileges,
) -> Result<(), Problem> {
    for (side, path) in pair.pcaps.iter().enumerate() {
        let Some(path) = path else { continue };
        let queues = cores.iter_mut().map(|ports| ports.remove(side)).collect();
        let recorded = BoxPort::recorded(queues, path, plan.pcap_frames, privileges)?;
        for (ports, queue) in cores.iter_mut().zip(recorded) {
            ports.insert(side, queue);
        }
    }
    Ok(())
}

fn of_pair<S>(pair: &Pair<S>, problem: &Problem) -> Problem {
    Problem::plain(format!("pair {}: {problem}", pair.name))
}
