//! Runs a box from start to end.

use crate::carrier::{Carriers, Guard, StartedGuard};
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
use crate::replace::{Inherited, Predecessor, Queues, Successor};
use crate::service_manager;
use crate::status::{BoxStatus, PairStatus};
use longhaul_host::Clock;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGUSR1};
use signal_hook::iterator::Signals;
use std::io;
use std::net::TcpListener;
use std::sync::Arc;
use std::time::Duration;

/// The result of a box's run.
pub struct Ended {
    /// The last state, of the pairs that ended properly.
    pub summary: BoxStatus,
    /// True if the box ended without being told to, or one of its threads had died.
    pub has_failed: bool,
}

/// How a box begins.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Entry {
    /// It opens its ports.
    #[default]
    Fresh,
    /// It replaces the running box of its name, which drains before.
    Replacing {
        /// Maximum time of draining.
        drain: Duration,
    },
}

/// What a box has once it can forward.
struct Footing {
    signals: Signals,
    control: Control,
    health: Option<TcpListener>,
    claims: Vec<Claim>,
    /// By pair, core and side.
    ports: Vec<Vec<Vec<BoxPort>>>,
    /// Present if ports have a carrier to guard.
    guard: Option<StartedGuard>,
    /// Present if it replaces another process, which waits.
    successor: Option<Successor>,
}

impl Footing {
    fn find<S: BoxKind>(
        entry: Entry,
        plan: &Plan<S>,
        privileges: &Privileges,
    ) -> Result<Self, Error> {
        match entry {
            Entry::Fresh => Self::fresh(plan, privileges),
            Entry::Replacing { drain } => Self::inherited(plan, privileges, drain),
        }
    }

    /// Opens everything anew.
    fn fresh<S: BoxKind>(plan: &Plan<S>, privileges: &Privileges) -> Result<Self, Error> {
        // From here on a signal ends the box properly.
        let signals = signals()?;
        let control = Control::listen(SocketPath::decide(&plan.name, plan.control.as_deref())?)?;
        let health = plan.health.map(health::listen).transpose()?;
        let claims = plan.pairs.iter().flat_map(|pair| &pair.ports).map(Claim::of);
        let claims = claims.collect::<Result<Vec<_>, PortError>>()?;
        let ports = ports(plan, privileges, None)?;
        let guard = StartedGuard::start(plan, privileges, &[]).map_err(Error::Guard)?;
        privileges.apply()?;
        let claims = claims.into_iter().flatten().collect();
        Ok(Footing { signals, control, health, claims, ports, guard, successor: None })
    }

    /// Takes everything over from the running box, which drains for at most `drain`.
    fn inherited<S: BoxKind>(
        plan: &Plan<S>,
        privileges: &Privileges,
        drain: Duration,
    ) -> Result<Self, Error> {
        let socket_path = SocketPath::decide(&plan.name, plan.control.as_deref())?;
        let mut successor = Successor::reach(socket_path)?;
        let new_health = plan.health.filter(|address| !successor.has_health(address));
        let new_health = new_health.map(health::listen).transpose()?;
        let inherited = successor.inherit(plan, drain)?;
        let Inherited { control, health, claims, held, mut queues } = inherited;
        let health = new_health.or(health.filter(|_| plan.health.is_some()));
        let ports = ports(plan, privileges, Some(&mut queues))?;
        let guard = StartedGuard::start(plan, privileges, &held).map_err(Error::Guard)?;
        privileges.apply()?;
        // Until here a signal ends this process, and the running box continues.
        let signals = signals()?;
        Ok(Footing { signals, control, health, claims, ports, guard, successor: Some(successor) })
    }
}

fn signals() -> Result<Signals, Error> {
    Signals::new([SIGTERM, SIGINT, SIGHUP, SIGUSR1]).map_err(Error::Signals)
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
    entry: Entry,
    phrase: Phrase,
) -> Result<Ended, Error> {
    let has_file = process.config.is_some();
    let planner = move || plan(S::COMMAND, S::Element::SIDES, given.clone(), &process, &settings);
    let plan = planner()?;
    journal::write_as(plan.log, &plan.name);
    S::warn(&plan.pairs);
    let planner: Option<Planner<S>> = if has_file { Some(Box::new(planner)) } else { None };
    let privileges = Privileges::decide(plan.user.as_deref(), plan.keep_privileges)?;
    let prepared = plan.pairs.iter().map(prepare).collect::<Result<Vec<_>, Error>>()?;
    let clock = Clock::start();
    let footing = Footing::find(entry, &plan, &privileges)?;
    let Footing { mut signals, mut control, health, claims, ports, mut guard, mut successor } =
        footing;
    let mut running = Vec::new();
    for (at, ((pair, prepared), ports)) in plan.pairs.iter().zip(prepared).zip(ports).enumerate() {
        let Prepared { places, elements } = prepared;
        let ended = signals.handle();
        let cores = elements.into_iter().zip(ports).collect();
        let devices = guard.as_mut().and_then(|guard| guard.attendant(at));
        let when_over = move || ended.close();
        running.push(Running::prepare(pair, cores, &places, clock, devices, when_over)?);
    }
    let stream = guard.as_ref().map(StartedGuard::stream);
    successor.as_mut().map_or(Ok(()), |successor| successor.commit(stream))?;
    running.iter().for_each(Running::begin);
    successor.into_iter().for_each(Successor::conclude);
    let observers: Vec<_> = running.iter().map(Running::observer).collect();
    let attending = observers.clone();
    let guard = guard.map(|guard| guard.watch(move |pair| attending[pair].call_hook()));
    let guard = guard.transpose().map_err(Error::Guard)?;
    control.keep();
    let claimed = claims.iter().map(Claim::duplicate).collect::<io::Result<Vec<_>>>();
    let claimed = claimed.map_err(ControlError::Serve)?;
    Claim::serve(claims, &plan.name).map_err(ControlError::Thread)?;
    tell_beginning(&plan, &privileges);
    let carriers = guard.as_ref().map_or_else(Carriers::default, Guard::carriers);
    let user = privileges::user_name();
    let operation = Arc::new(Operation::new(plan, planner, user, observers, carriers));
    let operated: Arc<dyn Operated> = Arc::<Operation<S>>::clone(&operation);
    if let Some(listener) = &health {
        health::serve(listener, &operated)?;
    }
    if let Some(guard) = &guard {
        guard.serve(Arc::clone(&operated)).map_err(Error::Guard)?;
    }
    let listener = control.duplicate()?;
    let predecessor =
        Predecessor::new(Arc::clone(&operation), listener, health, claimed, signals.handle());
    let predecessor = Arc::new(predecessor);
    let serving = Arc::clone(&predecessor);
    control.serve(operated, phrase, move |stream, version| serving.serve(stream, version))?;
    if let Err(error) = service_manager::tell("READY=1") {
        journal::warn(&format!("cannot tell the service manager that this box runs: {error}"));
    }
    let asked = wait_for_end(&mut signals, &operation, phrase);
    let is_replaced = predecessor.is_replaced_at_end();
    let ended = leave(is_replaced, guard, control, running);
    let has_failed = !(asked || is_replaced) || ended.iter().any(Result::is_err);
    Ok(Ended { summary: operation.with(ended.into_iter().flatten().collect()), has_failed })
}

/// A pair before its ports are open.
struct Prepared<E> {
    places: Places,
    /// One per core.
    elements: Vec<E>,
}

fn prepare<S: BoxKind>(pair: &Pair<S>) -> Result<Prepared<S::Element>, Error> {
    let places = cores::decide(pair).map_err(|e| of_pair(pair, e))?;
    let elements = pair.settings.build(&pair.ports[1..]).map_err(|e| of_pair(pair, e.into()))?;
    Ok(Prepared { places, elements })
}

/// Ends all pairs, and leaves their ports to the process that has replaced this one, if there is
/// one. Returns the last state of each.
fn leave<E: Element>(
    is_replaced: bool,
    guard: Option<Guard>,
    control: Control,
    running: Vec<Running<E>>,
) -> Vec<Result<PairStatus, ()>> {
    match guard {
        Some(guard) if is_replaced => guard.disarm(),
        // Frames pass until nothing more is sent here.
        Some(guard) => guard.fall(),
        None => {}
    }
    // The kernel waits for an RCU grace period in each close of a packet or AF_XDP socket, and the
    // pairs wait at the same time.
    running.iter().for_each(Running::stop);
    let ended = running.into_iter().map(Running::end).collect();
    if is_replaced {
        control.give_away();
    }
    ended
}

/// Writes to the journal what runs.
fn tell_beginning<S: BoxKind>(plan: &Plan<S>, privileges: &Privileges) {
    journal::line(&format!("{} '{}' {privileges}", S::COMMAND, plan.name));
    for pair in &plan.pairs {
        let behind: Vec<String> = pair.ports[1..].iter().map(PortName::to_string).collect();
        let text = format!("between {} and {}", pair.ports[0], behind.join(", "));
        journal::of_pair(Level::Info, &pair.name, &text);
        if let Some(text) = pair.settings.summary() {
            journal::of_pair(Level::Info, &pair.name, &text);
        }
    }
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

/// Opens the ports of all pairs, one queue of each port per core; or continues those that another
/// process handed over, as `inherited`.
fn ports<S: BoxKind>(
    plan: &Plan<S>,
    privileges: &Privileges,
    inherited: Option<&mut Queues>,
) -> Result<Vec<Vec<Vec<BoxPort>>>, Error> {
    let opened = open(plan, privileges, inherited)?;
    let join = |(pair, cores): (&Pair<S>, Vec<Vec<BoxPort>>)| {
        let failed = |error| Error::Share { pair: pair.name.clone(), error };
        cores::join(cores, cores::spread(pair, &plan.dpdk)).map_err(failed)
    };
    let mut ports = plan.pairs.iter().zip(opened).map(join).collect::<Result<Vec<_>, Error>>()?;
    // Recordings start once all ports are open.
    for (pair, cores) in plan.pairs.iter().zip(&mut ports) {
        record(plan, pair, cores, privileges)?;
    }
    Ok(ports)
}

/// Opens or continues the queues of all ports; returns them by pair, core and side.
fn open<S: BoxKind>(
    plan: &Plan<S>,
    privileges: &Privileges,
    mut inherited: Option<&mut Queues>,
) -> Result<Vec<Vec<Vec<BoxPort>>>, Error> {
    let mut opened = Vec::new();
    for (at, pair) in plan.pairs.iter().enumerate() {
        let count = pair.settings.cores().count();
        let opening = Opening { count, spread: S::SPREAD, stamps: S::STAMPS };
        let mut cores: Vec<_> = (0..count.get()).map(|_| Vec::new()).collect();
        for (side, name) in pair.ports.iter().enumerate() {
            let queues = match &mut inherited {
                Some(handed) => name.take_over_queues(side, opening, handed.take(at, side))?,
                None => name.open_queues(&plan.dpdk, side, opening)?,
            };
            if let PortName::Memif { path, is_master: true } = name {
                privileges.hand_over(path)?;
            }
            for (core, queue) in cores.iter_mut().zip(queues) {
                core.push(queue);
            }
        }
        opened.push(cores);
    }
    Ok(opened)
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

#[cfg(test)]
mod tests {
    use crate::{carrier, replace};
    use std::fs;
    use std::path::Path;
    use std::time::Duration;

    /// A box that ends waits for a successor that is in doubt, and for its guard. The same again is
    /// left to the kernel, which closes sockets one by one.
    #[test]
    fn services_may_take_twice_the_time_that_a_box_waits_at_its_end() {
        let waits = 2 * replace::READY_WITHIN + carrier::PATIENCE;
        let units = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../packaging/systemd");
        for unit in fs::read_dir(units).unwrap() {
            let path = unit.unwrap().path();
            let text = fs::read_to_string(&path).unwrap();
            let limit = text.lines().find_map(|line| line.strip_prefix("TimeoutStopSec="));
            let limit = Duration::from_secs(limit.unwrap().parse().unwrap());
            assert!(limit >= 2 * waits, "{}: {limit:?}", path.display());
        }
    }
}
