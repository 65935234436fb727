//! Runs a box from start to end.

use crate::claim::Claim;
use crate::control::{Control, ControlError, Phrase, SocketPath};
use crate::cores::{self, Places};
use crate::element::Element;
use crate::error::Error;
use crate::health;
use crate::journal::{self, Level};
use crate::operation::{Operated, Operation, Planner};
use crate::pair::Running;
use crate::plan::{BoxKind, Given, Pair, Plan, Process, plan};
use crate::port::{BoxPort, Opening, PortError, PortName};
use crate::privileges::{self, Privileges};
use crate::status::{BoxStatus, PairStatus};
use longhaul_host::Clock;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGUSR1};
use signal_hook::iterator::Signals;
use std::sync::Arc;

/// The result of a box's run.
pub struct Ended {
    /// The last state, of the pairs that ended properly.
    pub summary: BoxStatus,
    /// True if the box ended without being told to, or one of its threads had died.
    pub has_failed: bool,
}

/// Runs a box until it is told to stop, with these ports and settings and those of the file of
/// `process`. `phrase` turns later errors into messages.
///
/// # Errors
/// If the box cannot be started.
pub fn run<S: BoxKind>(
    given: Given,
    process: Process,
    settings: S,
    phrase: Phrase,
) -> Result<Ended, Error> {
    let has_file = process.config.is_some();
    let planner = move || plan(S::COMMAND, S::Element::SIDES, given.clone(), &process, &settings);
    let plan = planner()?;
    journal::write_as(plan.log, &plan.name);
    S::warn(&plan.pairs);
    let planner: Option<Planner<S>> = if has_file { Some(Box::new(planner)) } else { None };
    let privileges = Privileges::decide(plan.user.as_deref(), plan.keep_privileges)?;
    let places = plan.pairs.iter().map(|pair| cores::decide(pair).map_err(|e| of_pair(pair, e)));
    let places = places.collect::<Result<Vec<Places>, Error>>()?;
    let build =
        |pair: &Pair<S>| pair.settings.build(&pair.ports[1..]).map_err(|e| of_pair(pair, e.into()));
    let elements = plan.pairs.iter().map(build);
    let elements = elements.collect::<Result<Vec<Vec<S::Element>>, Error>>()?;
    // From here on a signal ends the box properly.
    let mut signals = Signals::new([SIGTERM, SIGINT, SIGHUP, SIGUSR1]).map_err(Error::Signals)?;
    let control = Control::listen(SocketPath::decide(&plan.name, plan.control.as_deref())?)?;
    let health = plan.health.map(health::listen).transpose()?;
    let claims = plan.pairs.iter().flat_map(|pair| &pair.ports).map(Claim::of);
    let claims = claims.collect::<Result<Vec<_>, PortError>>()?;
    let ports = ports(&plan, &privileges)?;
    privileges.apply()?;
    let claims = claims.into_iter().flatten().collect();
    Claim::serve(claims, &plan.name).map_err(ControlError::Thread)?;
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
    control.serve(Arc::clone(&operated), phrase)?;
    if let Some(listener) = health {
        health::serve(&listener, &operated)?;
    }
    let asked = wait_for_end(&mut signals, &operation, phrase);
    let ended: Vec<Result<PairStatus, ()>> = running.into_iter().map(Running::end).collect();
    let has_failed = !asked || ended.iter().any(Result::is_err);
    Ok(Ended { summary: operation.with(ended.into_iter().flatten().collect()), has_failed })
}

/// Waits until the box is told to end. Returns `false` if a thread of a pair has died instead.
fn wait_for_end<S: BoxKind>(
    signals: &mut Signals,
    operation: &Operation<S>,
    phrase: Phrase,
) -> bool {
    for signal in signals.forever() {
        match signal {
            SIGUSR1 => {
                if let Some(status) = operation.status() {
                    journal::state(&status);
                }
            }
            SIGHUP if operation.has_file() => {
                if let Err(error) = operation.reload() {
                    let why = phrase(&error);
                    journal::warn(&format!("cannot apply the configuration: {why}"));
                }
            }
            _ => {
                journal::line("ending on a signal");
                return true;
            }
        }
    }
    false
}

/// Opens the ports of all pairs: one queue of each port per core.
fn ports<S: BoxKind>(
    plan: &Plan<S>,
    privileges: &Privileges,
) -> Result<Vec<Vec<Vec<BoxPort>>>, Error> {
    let open = |pair: &Pair<S>| -> Result<Vec<Vec<BoxPort>>, Error> {
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
        let failed = |error| Error::Share { pair: pair.name.clone(), error };
        cores::join(cores, cores::spread(pair, &plan.dpdk)).map_err(failed)
    };
    let mut ports = plan.pairs.iter().map(open).collect::<Result<Vec<_>, Error>>()?;
    // Recordings start once all ports are open.
    for (pair, cores) in plan.pairs.iter().zip(&mut ports) {
        record(plan, pair, cores, privileges)?;
    }
    Ok(ports)
}

/// Records the ports of a pair as its settings say. All cores of a port record to one file.
fn record<S: BoxKind>(
    plan: &Plan<S>,
    pair: &Pair<S>,
    cores: &mut [Vec<BoxPort>],
    privileges: &Privileges,
) -> Result<(), Error> {
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

fn of_pair<S>(pair: &Pair<S>, error: Error) -> Error {
    Error::OfPair { pair: pair.name.clone(), error: Box::new(error) }
}
