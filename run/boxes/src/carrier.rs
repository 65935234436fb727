//! The carrier of a box's ports: a port that goes down takes the opposite port down, and a box that
//! ends takes its ports down, so that LACP, BFD and routing notice at once.
//!
//! A process of its own, the guard, does both: the box drops its privileges once its ports are
//! open, forwards frames without waiting for anything here, and cannot act when it is killed. The
//! guard keeps CAP_NET_ADMIN alone, unless it runs commands for a bypass NIC, and learns of the
//! box's end from the end of the stream between them.

mod bypass;
mod devices;
mod follow;
mod guard;
mod state;

pub use bypass::Bypass;
pub(crate) use devices::Attendant;
pub(crate) use follow::Side;
pub use guard::guard;
pub use state::{CarrierCounters, CarrierState, PortCarrier, write_carrier};

use crate::claim::Claim;
use crate::element::Element;
use crate::error::Error;
use crate::journal::{self, Level};
use crate::operation::Operated;
use crate::plan::{BoxKind, Given, Pair, Plan, Process, plan};
use crate::port::PortName;
use crate::privileges::Privileges;
use bypass::Which;
use devices::Devices;
use guard::{GuardedPair, GuardedPort, Manner};
use longhaul_port::LinkState;
use nix::ifaddrs::getifaddrs;
use rustix::io::Errno;
use rustix::net::SendFlags;
use serde::{Deserialize, Serialize};
use state::PairCarrier;
use std::io::{self, BufRead, BufReader, Write};
use std::net::Shutdown;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{Builder, sleep};
use std::time::Duration;

/// Name of the subcommand that runs [`guard`].
pub const GUARD: &str = "carrier-guard";

/// Time limit of the guard's tasks at the box's start and end; longer than that of a command.
pub(crate) const PATIENCE: Duration = Duration::from_secs(7);

/// The journal's warning about a guard that ended before its box.
const GUARD_DIED: &str = "the carrier guard has ended: ports no longer follow each other, nor go \
                          down with this box; restart it";

/// What the ports of a pair do when an opposite one loses its carrier, and when the box ends.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Carrier {
    /// Go down with it
    #[default]
    Follow,
    /// Stay as they are
    Off,
}

/// The first line to the guard.
#[derive(Debug, Default, Serialize, Deserialize)]
struct Orders {
    pairs: Vec<GuardedPair>,
    bypass: Option<Bypass>,
    /// User and group that root's guard becomes.
    user: Option<(u32, u32)>,
}

/// A further line to the guard.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Order {
    /// The ports are the box's from here on; a guard that has not heard this leaves them alone. A
    /// box that gives them to another says so too: the other may be killed before it does.
    TakeCharge {
        /// The bypass NIC, if there is one, is armed already.
        is_armed: bool,
    },
    /// The box forwards.
    Armed,
    /// It still does.
    Beat,
    /// The link of a device of the box cannot be set.
    Stays { pair: usize, side: Side, port: usize, error: String },
    /// A device of the box has no carrier, or has one.
    Carrier { pair: usize, side: Side, port: usize, why_down: Option<String> },
    /// Another process has the ports now: end, and leave them as they are.
    Disarm,
}

/// A line from the guard.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum News {
    /// The ports were brought up.
    Ready,
    /// A device does not follow, because its link cannot be set.
    Stays { pair: usize, side: Side, port: usize, error: String },
    /// A port lost its carrier by itself, or found it again.
    Carrier { pair: usize, side: Side, port: usize, why_down: Option<String> },
    /// A side stays down until the other has a carrier.
    Waits { pair: usize, side: Side },
    /// A side was taken down because the other lost its carrier.
    Held { pair: usize, side: Side },
    /// It was brought up again.
    Released { pair: usize, side: Side },
    /// The ports were taken down because the box ended.
    Fallen { interfaces: Vec<String> },
    /// A command for the bypass NIC ended.
    Command { which: Which, error: Option<String> },
    /// A port could not be set.
    Failed { error: String },
}

/// A guard that was started: a process that has its orders, and is not in charge yet.
pub struct StartedGuard {
    process: Child,
    stream: UnixStream,
    /// Time between heartbeats, if there is a bypass NIC.
    interval: Option<Duration>,
    pairs: Vec<PairCarrier>,
    devices: Vec<Option<Devices>>,
    attendants: Vec<Option<Attendant>>,
}

impl StartedGuard {
    /// Starts the guard of the pairs that have a carrier to guard. `held`: the side of each pair
    /// that another process has taken down because the other has no carrier.
    ///
    /// # Errors
    /// If the process cannot be started.
    pub fn start<S: BoxKind>(
        plan: &Plan<S>,
        privileges: &Privileges,
        held: &[Option<Side>],
    ) -> io::Result<Option<Self>> {
        let mut pairs: Vec<GuardedPair> = plan.pairs.iter().map(guarded).collect();
        for (pair, held) in pairs.iter_mut().zip(held) {
            pair.held = held.filter(|side| pair.can_hold(*side));
        }
        let user = match privileges {
            Privileges::Drop(user) => Some((user.uid.as_raw(), user.gid.as_raw())),
            Privileges::Keep | Privileges::Clear => None,
        };
        let orders = Orders { pairs, bypass: plan.bypass.clone(), user };
        if orders.bypass.is_none() && orders.pairs.iter().all(GuardedPair::is_empty) {
            return Ok(None);
        }
        let (stream, its) = UnixStream::pair()?;
        // Signals to the box's process group are not for the guard, which ends after the box.
        let process = Command::new("/proc/self/exe")
            .arg(GUARD)
            .stdin(OwnedFd::from(its))
            .stdout(Stdio::null())
            .process_group(0)
            .spawn()?;
        send(&stream, &orders)?;
        let named = |(pair, guarded): (&Pair<S>, &GuardedPair)| {
            let ports = pair.named_ports(S::Element::SIDES).zip(guarded.all());
            PairCarrier::new(pair.name.clone(), ports)
        };
        let pairs = plan.pairs.iter().zip(&orders.pairs).map(named).collect();
        let interval = orders.bypass.as_ref().map(|bypass| bypass.interval);
        let parts = orders.pairs.iter().enumerate().map(|(at, pair)| devices::devices(at, pair));
        let (devices, attendants) = parts.map(Option::unzip).unzip();
        Ok(Some(StartedGuard { process, stream, interval, pairs, devices, attendants }))
    }

    /// The stream to it, by which a box that gives its ports to this one puts it in charge.
    pub fn stream(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }

    /// What the thread that has the ports of pair number `pair` attends to, if devices are among
    /// them.
    pub fn attendant(&mut self, pair: usize) -> Option<Attendant> {
        self.attendants.get_mut(pair)?.take()
    }

    fn wait_until_ready(&self) {
        let mut lines = Lines(&self.stream);
        loop {
            match lines.next() {
                Some(News::Ready) => return,
                Some(News::Failed { error }) => journal::warn(&failed(&error)),
                Some(_) => {}
                None => return journal::warn("the carrier guard does not answer: ports stay up"),
            }
        }
    }

    /// Puts the guard in charge, waits until it has brought the ports up, and follows its news on a
    /// thread of its own. Without privileges to set them, the journal says that ports stay as they
    /// are. `wake` makes the thread of a pair, by number, attend to it.
    ///
    /// # Errors
    /// If the thread cannot be started.
    pub fn watch(self, wake: impl Fn(usize) + Send + Sync + 'static) -> io::Result<Guard> {
        send(&self.stream, &Order::TakeCharge { is_armed: false })?;
        self.stream.set_read_timeout(Some(PATIENCE))?;
        self.wait_until_ready();
        self.stream.set_read_timeout(None)?;
        let StartedGuard { process, stream, interval, pairs, devices, .. } = self;
        let states = Arc::new(Mutex::new(pairs));
        let links = Arc::new(Links { devices, wake: Box::new(wake) });
        links.begin(&stream)?;
        let (over, is_over) = channel();
        let is_ending = Arc::new(AtomicBool::new(false));
        let (news, seen, ending) =
            (stream.try_clone()?, Arc::clone(&states), Arc::clone(&is_ending));
        let set = Arc::clone(&links);
        Builder::new().name("carrier".to_string()).spawn(move || {
            watch(&news, &seen, &set);
            if !ending.load(Ordering::Relaxed) {
                journal::warn(GUARD_DIED);
            }
            // The box may have ended.
            let _ = over.send(());
        })?;
        Ok(Guard { process, stream, interval, states, links, is_ending, is_over })
    }
}

/// The devices of all pairs, and what makes their threads attend.
struct Links {
    devices: Vec<Option<Devices>>,
    wake: Box<dyn Fn(usize) + Send + Sync>,
}

impl Links {
    /// Has all links brought up, and the guard told of them.
    fn begin(&self, guard: &UnixStream) -> io::Result<()> {
        for (pair, devices) in self.devices.iter().enumerate() {
            if let Some(devices) = devices {
                devices.begin(guard.try_clone()?, || (self.wake)(pair));
            }
        }
        Ok(())
    }

    /// Sets the devices of one side of a pair, or of both.
    fn set(&self, pair: usize, side: Option<Side>, to: LinkState) {
        let Some(Some(devices)) = self.devices.get(pair) else { return };
        for error in devices.set(side, to, || (self.wake)(pair)) {
            journal::warn(&failed(&error));
        }
    }
}

/// The guard, with its news being followed. Dropped, it takes the ports down.
pub struct Guard {
    process: Child,
    stream: UnixStream,
    interval: Option<Duration>,
    states: Arc<Mutex<Vec<PairCarrier>>>,
    links: Arc<Links>,
    /// The guard's end is expected.
    is_ending: Arc<AtomicBool>,
    is_over: Receiver<()>,
}

/// The states of the carriers of all pairs.
#[derive(Clone, Default)]
pub struct Carriers(Option<Arc<Mutex<Vec<PairCarrier>>>>);

impl Guard {
    /// The carriers' states.
    pub fn carriers(&self) -> Carriers {
        Carriers(Some(Arc::clone(&self.states)))
    }

    /// Tells the guard from now on, if there is a bypass NIC, that the box forwards.
    ///
    /// # Errors
    /// If the thread cannot be started.
    pub fn serve(&self, operated: Arc<dyn Operated>) -> io::Result<()> {
        let Some(interval) = self.interval else { return Ok(()) };
        let stream = self.stream.try_clone()?;
        Builder::new().name("bypass".to_string()).spawn(move || {
            let mut order = Order::Armed;
            loop {
                if operated.stuck().is_empty() {
                    // A guard that has ended is told of elsewhere.
                    if send(&stream, &order).is_err() {
                        return;
                    }
                    order = Order::Beat;
                }
                sleep(interval);
            }
        })?;
        Ok(())
    }

    /// Ends the guard without taking the ports down: another process has them now.
    pub fn disarm(mut self) {
        self.is_ending.store(true, Ordering::Relaxed);
        // The guard may have died.
        let _ = send(&self.stream, &Order::Disarm);
        self.finish();
    }

    /// Takes the ports down, because the box ends.
    pub fn fall(mut self) {
        self.is_ending.store(true, Ordering::Relaxed);
        // The guard may have died.
        let _ = self.stream.shutdown(Shutdown::Write);
        // What the guard has said before is done first.
        self.finish();
        // A bypass NIC connects its ports.
        if self.interval.is_none() {
            for pair in 0..self.links.devices.len() {
                self.links.set(pair, None, LinkState::Down);
            }
        }
    }

    fn finish(&mut self) {
        // A guard that is stopped ends some time later.
        if self.is_over.recv_timeout(PATIENCE).is_ok() {
            let _ = self.process.wait();
        }
    }
}

impl Carriers {
    /// The state of a pair's carriers, if they are guarded.
    pub fn of(&self, pair: &str) -> Option<CarrierState> {
        let states = self.0.as_ref()?.lock().unwrap_or_else(PoisonError::into_inner);
        states.iter().find(|of| of.name == pair)?.state()
    }

    /// The side of each pair that is down because the other has no carrier.
    pub fn held(&self) -> Vec<Option<Side>> {
        let Some(states) = &self.0 else { return Vec::new() };
        let states = states.lock().unwrap_or_else(PoisonError::into_inner);
        states.iter().map(PairCarrier::held).collect()
    }
}

/// Sends a line, whole, from any thread.
fn send(mut stream: &UnixStream, told: &impl Serialize) -> io::Result<()> {
    stream.write_all(line(told)?.as_bytes())
}

/// Sends an order, unless that would block.
fn send_at_once(guard: &UnixStream, order: &Order) -> io::Result<()> {
    // So short that the kernel takes all of it or nothing.
    let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
    match rustix::net::send(guard, line(order)?.as_bytes(), flags) {
        // Elsewhere it is told that the guard has ended.
        Ok(_) | Err(Errno::PIPE) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

/// Puts the guard of another box, at the other end of `stream`, in charge of this one's ports.
pub(crate) fn put_in_charge(stream: OwnedFd) {
    // The other box does so too, unless it is killed.
    let _ = send_at_once(&UnixStream::from(stream), &Order::TakeCharge { is_armed: true });
}

fn line(told: &impl Serialize) -> io::Result<String> {
    Ok(format!("{}\n", serde_json::to_string(told)?))
}

/// The guard's lines. `None`: it has ended, or does not answer in time.
struct Lines<'a>(&'a UnixStream);

impl Iterator for Lines<'_> {
    type Item = News;

    fn next(&mut self) -> Option<News> {
        // By the byte, so that nothing is read ahead of who reads next; news are few.
        let mut line = String::new();
        BufReader::with_capacity(1, self.0).read_line(&mut line).ok()?;
        serde_json::from_str(&line).ok()
    }
}

/// Follows the guard's news until it ends.
fn watch(stream: &UnixStream, states: &Mutex<Vec<PairCarrier>>, links: &Links) {
    let mut failing = Vec::new();
    for news in Lines(stream) {
        if let News::Command { which, error } = news {
            tell_of_command(&mut failing, which, error);
            continue;
        }
        let set = match news {
            News::Held { pair, side } => Some((pair, side, LinkState::Down)),
            News::Released { pair, side } => Some((pair, side, LinkState::Up)),
            _ => None,
        };
        tell(&mut states.lock().unwrap_or_else(PoisonError::into_inner), news);
        if let Some((pair, side, to)) = set {
            links.set(pair, Some(side), to);
        }
    }
}

/// Counts what happened, and writes it to the journal.
fn tell(pairs: &mut [PairCarrier], news: News) {
    match news {
        News::Ready | News::Command { .. } => {}
        News::Failed { error } => journal::warn(&failed(&error)),
        News::Stays { pair, side, port, error } => {
            if let Some(of) = pairs.get_mut(pair) {
                of.stays(side, port);
            }
            journal::warn(&failed(&error));
        }
        News::Fallen { interfaces } if interfaces.is_empty() => {}
        News::Fallen { interfaces } => {
            journal::line(&format!("{} taken down: the box ends", interfaces.join(", ")));
        }
        News::Carrier { pair, side, port, why_down } => {
            if let Some(of) = pairs.get_mut(pair) {
                of.carrier(side, port, why_down);
            }
        }
        News::Waits { pair, side } => {
            if let Some((name, text)) = pairs.get_mut(pair).map(|of| of.wait(side)) {
                journal::of_pair(Level::Info, &name, &text);
            }
        }
        News::Held { pair, side } => {
            if let Some((name, text)) = pairs.get_mut(pair).map(|of| of.hold(side)) {
                journal::of_pair(Level::Warning, &name, &text);
            }
        }
        News::Released { pair, side } => {
            if let Some((name, text)) = pairs.get_mut(pair).map(|of| of.release(side)) {
                journal::of_pair(Level::Info, &name, &text);
            }
        }
    }
}

/// Writes to the journal that a command fails, once, and that it works again.
fn tell_of_command(failing: &mut Vec<Which>, which: Which, error: Option<String>) {
    let failed = failing.contains(&which);
    match error {
        Some(error) if !failed => {
            failing.push(which);
            journal::warn(&format!("the bypass NIC's command '{which}' failed: {error}"));
        }
        None if failed => {
            failing.retain(|one| *one != which);
            journal::line(&format!("the bypass NIC's command '{which}' works again"));
        }
        None if which != Which::Heartbeat => {
            journal::line(&format!("the bypass NIC's command '{which}' was run"));
        }
        _ => {}
    }
}

fn failed(error: &str) -> String {
    format!(
        "a port does not follow the carrier of the opposite one: {error}; or set carrier = 'off'"
    )
}

/// Takes the ports of a box down that does not run, as its guard would have. Leaves those that
/// another box has, and all if there is a bypass NIC. Returns the interfaces, and the errors of the
/// others.
///
/// # Errors
/// If the plan cannot be made.
pub fn down<S: BoxKind>(
    given: Given,
    process: &Process,
    settings: &S,
) -> Result<(Vec<String>, Vec<String>), Error> {
    let plan = plan(S::COMMAND, S::Element::SIDES, given, process, settings)?;
    let (mut down, mut failed) = (Vec::new(), Vec::new());
    let pairs = if plan.bypass.is_some() { &[] } else { &plan.pairs[..] };
    for pair in pairs {
        let claims = pair.ports.iter().map(Claim::of).collect::<Vec<_>>();
        for (port, claim) in guarded(pair).all().zip(&claims) {
            let Some(port) = port.as_ref().filter(|port| port.falls()) else { continue };
            let set = match claim {
                Err(in_use) => Err(in_use.to_string()),
                Ok(_) => port.take_down(&port.name),
            };
            match set {
                Ok(()) => down.push(port.name.clone()),
                Err(error) => failed.push(error),
            }
        }
    }
    Ok((down, failed))
}

/// What the guard guards of a pair: nothing if the setting says so, or if the kernel forwards what
/// the box does not, and so carries on without it.
fn guarded<S: BoxKind>(pair: &Pair<S>) -> GuardedPair {
    let is_beside_kernel =
        |port: &PortName| matches!(port, PortName::Xdp(xdp) if !xdp.takes_everything());
    if pair.settings.carrier() == Carrier::Off || pair.ports.iter().any(is_beside_kernel) {
        return GuardedPair::default();
    }
    let guarded = |port: &PortName| {
        let name = port.interface().map_or_else(|| port.to_string(), str::to_string);
        let manner = match port {
            PortName::Interface(_) | PortName::Xdp(_) if has_address(&name) => Manner::Shared,
            PortName::Interface(_) | PortName::Xdp(_) => Manner::Interface,
            PortName::Tap(_) => Manner::Tap,
            PortName::Ethernet { .. } => Manner::Shared,
            PortName::Dpdk { .. } => Manner::Device { follows: true },
            PortName::Memif { .. } => return None,
        };
        Some(GuardedPort { name, manner })
    };
    let (near, behind) = pair.ports.split_at(pair.ports.len().min(1));
    let sides = [near, behind].map(|ports| ports.iter().map(guarded).collect());
    GuardedPair { sides, held: None }
}

/// True if an interface has an IP address of this machine that is not link-local: its
/// administrator may be logged in through it.
fn has_address(interface: &str) -> bool {
    let Ok(addresses) = getifaddrs() else { return false };
    let mut own = addresses.filter(|one| one.interface_name == interface);
    own.any(|one| {
        one.address.is_some_and(|address| {
            let is_v4 = address.as_sockaddr_in().is_some();
            let v6 = address.as_sockaddr_in6();
            is_v4 || v6.is_some_and(|v6| !v6.ip().is_unicast_link_local())
        })
    })
}
