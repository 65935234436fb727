//! The guard's process.

use super::bypass::{Ended, Runner, Which};
use super::follow::{Follow, STABLE, STABLE_AT_START, Side, Step};
use super::{News, Order, Orders, PATIENCE};
use crate::claim::holder;
use crate::privileges::become_user;
use longhaul_netdev::setting::{Setting, close_inherited, set};
use longhaul_netdev::watch::{Link, Presence, Watch};
use longhaul_port::LinkState;
use nix::unistd::{Gid, Uid};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::thread::{
    CapabilitySet, CapabilitySets, capabilities, set_capabilities, set_keep_capabilities,
    set_no_new_privs,
};
use serde::{Deserialize, Serialize};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::fd::AsFd;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::thread::sleep;
use std::time::{Duration, Instant};

/// Interval at which an interface is claimed again that the guard of another box has.
const CLAIM_AGAIN: Duration = Duration::from_millis(2);
/// Maximum time for which a guard whose box has ended waits for that: longer than a box that was
/// replaced waits for its guard. A guard that waited on would outlive the start of a third box.
const CLAIM_WITHIN: Duration = PATIENCE.saturating_add(Duration::from_secs(1));

/// Maximum bytes of a line: the orders for many pairs.
const ORDER_BYTES_MAX: u64 = 1 << 20;

/// How a port is taken down.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Manner {
    /// As an interface with a cable.
    Interface,
    /// As a TAP device, whose carrier ends with the process that has it.
    Tap,
    /// Never, because others use the interface too.
    Shared,
    /// By the box, whose process has the device. The box tells of its carrier too.
    Device {
        /// The link can be set.
        follows: bool,
    },
}

/// A port whose carrier is known.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GuardedPort {
    /// The interface's or the device's.
    pub name: String,
    pub manner: Manner,
}

/// A pair's ports by side. `None`: a port without a carrier, which counts as up.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct GuardedPair {
    pub sides: [Vec<Option<GuardedPort>>; 2],
    /// The side that is down already.
    pub held: Option<Side>,
}

impl GuardedPair {
    /// True if the pair has no port to guard.
    pub fn is_empty(&self) -> bool {
        self.ports().next().is_none()
    }

    /// True if a port of this side can be taken down.
    pub fn can_hold(&self, side: Side) -> bool {
        let ports = self.sides.get(side);
        ports.is_some_and(|ports| ports.iter().flatten().any(GuardedPort::follows))
    }

    /// All ports, in the order of the pair's; none of a pair that is not guarded.
    pub fn all(&self) -> impl Iterator<Item = &Option<GuardedPort>> {
        self.sides.iter().flatten()
    }

    fn ports(&self) -> impl Iterator<Item = &GuardedPort> {
        self.sides.iter().flatten().flatten()
    }
}

impl GuardedPort {
    /// True if the port is taken down when the box ends; the carrier of a TAP device ends anyway.
    pub fn falls(&self) -> bool {
        self.manner == Manner::Interface
    }

    fn bring_up(&self, interface: &str) -> Result<(), String> {
        match self.manner {
            Manner::Interface => set(interface, Setting::Up),
            Manner::Tap => set(interface, Setting::Carrier(true)),
            Manner::Shared | Manner::Device { .. } => Ok(()),
        }
        .map_err(|error| error.to_string())
    }

    /// True if the box may take the port down.
    pub fn follows(&self) -> bool {
        !matches!(self.manner, Manner::Shared | Manner::Device { follows: false })
    }

    pub fn take_down(&self, interface: &str) -> Result<(), String> {
        match self.manner {
            Manner::Interface => set(interface, Setting::Down),
            Manner::Tap => set(interface, Setting::Carrier(false)),
            Manner::Shared | Manner::Device { .. } => Ok(()),
        }
        .map_err(|error| error.to_string())
    }
}

/// Runs the guard of the process at the other end of standard input until that ends.
///
/// # Errors
/// If that process did not start it.
pub fn guard() -> io::Result<()> {
    close_inherited();
    let ignored = Arc::new(AtomicBool::new(false));
    for signal in [SIGTERM, SIGINT, SIGHUP] {
        signal_hook::flag::register(signal, Arc::clone(&ignored))?;
    }
    let stream = UnixStream::from(io::stdin().as_fd().try_clone_to_owned()?);
    let mut orders = BufReader::new(stream.try_clone()?);
    let Some(first) = read_order(&mut orders)? else { return Ok(()) };
    let Orders { pairs, bypass, user } = serde_json::from_str(&first)?;
    let Some(is_armed) = await_charge(&mut orders)? else { return Ok(()) };
    let Some(_claims) = claim(&pairs, &stream) else { return Ok(()) };
    // The commands need what they need.
    if bypass.is_none() {
        keep_one_capability(user)?;
    }
    let mut running = Running::new(stream, pairs, bypass.map(Runner::new), is_armed)?;
    running.run(&mut orders)
}

/// The next line; none at the end of the box.
fn read_order(orders: &mut impl BufRead) -> io::Result<Option<String>> {
    let mut line = String::new();
    let len = orders.take(ORDER_BYTES_MAX).read_line(&mut line)?;
    Ok((len > 0).then_some(line))
}

/// Waits until the box has the ports, and returns whether its bypass NIC is armed. `None`: it ended
/// before.
fn await_charge(orders: &mut impl BufRead) -> io::Result<Option<bool>> {
    let Some(order) = read_order(orders)? else { return Ok(None) };
    match serde_json::from_str(&order)? {
        Order::TakeCharge { is_armed } => Ok(Some(is_armed)),
        _ => Err(io::Error::other("an order to a guard that is not in charge")),
    }
}

/// True if nobody sends orders any more.
fn has_ended(stream: &UnixStream) -> bool {
    let mut end = [PollFd::new(stream, PollFlags::RDHUP)];
    matches!(poll(&mut end, Some(&Timespec::default())), Ok(1..))
}

/// Becomes this user and group, and drops all capabilities but that of setting interfaces.
fn keep_one_capability(user: Option<(u32, u32)>) -> io::Result<()> {
    if let Some((user, group)) = user {
        set_keep_capabilities(true)?;
        become_user(Uid::from_raw(user), Gid::from_raw(group)).map_err(io::Error::other)?;
    }
    let permitted = capabilities(None).map(|sets| sets.permitted);
    let kept = permitted.unwrap_or(CapabilitySet::empty()) & CapabilitySet::NET_ADMIN;
    let sets =
        CapabilitySets { effective: kept, permitted: kept, inheritable: CapabilitySet::empty() };
    // Fewer can always be kept.
    let _ = set_capabilities(None, sets);
    Ok(set_no_new_privs(true)?)
}

/// Claims the interfaces: the guard of an earlier box takes them down after that box's end, and not
/// after this one's start; that of a box that is being replaced leaves them as they are. The kernel
/// ends a claim with its process. `None`: the box has ended meanwhile, and the earlier guard has
/// not.
fn claim(pairs: &[GuardedPair], stream: &UnixStream) -> Option<Vec<UnixListener>> {
    let is_in_use = |claimed: &io::Result<UnixListener>| {
        claimed.as_ref().is_err_and(|error| error.kind() == io::ErrorKind::AddrInUse)
    };
    let mut claims = Vec::new();
    let mut ended_at: Option<Instant> = None;
    let ports = pairs.iter().flat_map(GuardedPair::ports);
    for port in ports.filter(|port| !matches!(port.manner, Manner::Device { .. })) {
        let name = format!("longhaul/carrier/{}", port.name);
        let Ok(address) = SocketAddr::from_abstract_name(name) else { continue };
        let mut claimed = UnixListener::bind_addr(&address);
        if is_in_use(&claimed) && holder(&address).is_none() {
            // If it has not just ended, it is another user's, and not waited for.
            claims.extend(UnixListener::bind_addr(&address));
            continue;
        }
        while is_in_use(&claimed) {
            if has_ended(stream)
                && ended_at.get_or_insert_with(Instant::now).elapsed() > CLAIM_WITHIN
            {
                return None;
            }
            sleep(CLAIM_AGAIN);
            claimed = UnixListener::bind_addr(&address);
        }
        claims.extend(claimed);
    }
    Some(claims)
}

/// A port with its carrier.
struct Watched {
    port: GuardedPort,
    link: Link,
    source: Source,
}

/// Who tells of a carrier.
enum Source {
    Kernel { watch: Watch, index: Option<u32> },
    Box,
}

impl Watched {
    fn new(port: GuardedPort) -> io::Result<Self> {
        let source = match port.manner {
            Manner::Device { .. } => Source::Box,
            _ => Source::Kernel { watch: Watch::new(&port.name)?, index: None },
        };
        Ok(Watched { port, link: Link::new(), source })
    }

    /// True if the port was taken down, as by the end of a box, and can be brought up.
    fn is_down(&mut self) -> bool {
        let Source::Kernel { watch, .. } = &mut self.source else { return false };
        let presence = watch.look(None);
        watch.suspect();
        self.port.falls() && matches!(presence, Some(Presence::Present { is_up: false, .. }))
    }

    fn has_carrier(&self) -> bool {
        self.link.state == LinkState::Up
    }

    /// The interface's present name, or the device's.
    fn name(&self) -> &str {
        match &self.source {
            Source::Kernel { watch, .. } => watch.interface(),
            Source::Box => &self.port.name,
        }
    }

    /// What is readable when the carrier may have changed.
    fn descriptor(&self) -> Option<&Watch> {
        match &self.source {
            Source::Kernel { watch, .. } => Some(watch),
            Source::Box => None,
        }
    }

    /// Looks at the interface, and returns whether its carrier changed.
    fn look(&mut self) -> bool {
        let before = self.has_carrier();
        let Source::Kernel { watch, index } = &mut self.source else { return false };
        watch.wake();
        let Some(presence) = watch.look(*index) else { return false };
        *index = presence.index();
        self.link.follow(watch.interface(), presence);
        self.has_carrier() != before
    }

    /// Takes what the box tells of its device, and returns whether its carrier changed.
    fn hear(&mut self, why_down: Option<String>) -> bool {
        let before = self.has_carrier();
        if matches!(self.source, Source::Box) {
            self.link = why_down.map_or_else(Link::up, Link::down);
        }
        self.has_carrier() != before
    }
}

/// A pair with the state of its carriers.
struct Followed {
    sides: [Vec<Option<Watched>>; 2],
    follow: Follow,
}

impl Followed {
    /// A pair at the start of a box. The first side stays down if it is, until the path behind the
    /// other one is likely to be whole.
    fn new(pair: GuardedPair, now: Instant) -> io::Result<Self> {
        type Ports = io::Result<Vec<Option<Watched>>>;
        let watched = |port: Option<GuardedPort>| port.map(Watched::new).transpose();
        let sides = pair.sides.map(|ports| ports.into_iter().map(watched).collect());
        let [near, behind]: [Ports; 2] = sides;
        let (mut near, behind) = (near?, behind?);
        let is_down = near.iter_mut().all(|port| port.as_mut().is_some_and(Watched::is_down));
        let follow = match pair.held {
            Some(side) => Follow::waiting(side, STABLE),
            None if is_down && !near.is_empty() => Follow::waiting(0, STABLE_AT_START),
            None => Follow::new(now),
        };
        Ok(Followed { sides: [near, behind], follow })
    }

    /// Whether a side has a carrier, as far as the other side can follow it.
    fn has_carrier(&self, side: Side) -> bool {
        let others = self.sides[1 - side].iter().flatten();
        if !others.map(|other| &other.port).any(GuardedPort::follows) {
            return true;
        }
        let mut carriers = self.sides[side].iter();
        // One of several paths is enough.
        carriers.any(|port| port.as_ref().is_none_or(Watched::has_carrier))
    }
}

struct Running {
    stream: UnixStream,
    pairs: Vec<Followed>,
    /// If there is a bypass NIC.
    commands: Option<Runner>,
    /// The box has forwarded.
    is_armed: bool,
}

impl Running {
    fn new(
        stream: UnixStream,
        pairs: Vec<GuardedPair>,
        commands: Option<Runner>,
        is_armed: bool,
    ) -> io::Result<Self> {
        let now = Instant::now();
        let followed = |pair| Followed::new(pair, now);
        let pairs = pairs.into_iter().map(followed).collect::<io::Result<_>>()?;
        Ok(Running { stream, pairs, commands, is_armed })
    }

    fn ports(&self) -> impl Iterator<Item = &Watched> {
        self.pairs.iter().flat_map(|pair| &pair.sides).flatten().flatten()
    }

    /// Tells the box. It may have ended, which the end of its stream tells.
    fn tell(&mut self, news: &News) {
        if let Ok(line) = serde_json::to_string(news) {
            let _ = self.stream.write_all(format!("{line}\n").as_bytes());
        }
    }

    fn run(&mut self, orders: &mut BufReader<UnixStream>) -> io::Result<()> {
        // A box that has ended meanwhile needs no ports.
        let pairs = if has_ended(&self.stream) { 0 } else { self.pairs.len() };
        for pair in 0..pairs {
            let held = self.pairs[pair].follow.held();
            for side in (0..2).filter(|side| held != Some(*side)) {
                let failed = self.set_side(pair, side, GuardedPort::bring_up);
                failed.iter().for_each(|news| self.tell(news));
            }
        }
        self.tell(&News::Ready);
        for pair in 0..self.pairs.len() {
            if let Some(side) = self.pairs[pair].follow.held() {
                self.tell(&News::Waits { pair, side });
            }
        }
        loop {
            self.look();
            // Several may have come at once.
            if orders.buffer().is_empty() && !self.wait()? {
                continue;
            }
            // An error is the end of the stream.
            let order = read_order(orders).unwrap_or_default();
            match order.map(|order| serde_json::from_str(&order)) {
                Some(Ok(Order::Disarm)) => return Ok(()),
                // From both boxes.
                Some(Ok(Order::TakeCharge { is_armed })) => self.is_armed |= is_armed,
                Some(Ok(Order::Armed)) => {
                    self.is_armed = true;
                    self.command(Which::Armed);
                }
                Some(Ok(Order::Beat)) => self.command(Which::Heartbeat),
                Some(Ok(Order::Stays { pair, side, port, error })) => {
                    self.stays(pair, side, port, error);
                }
                Some(Ok(Order::Carrier { pair, side, port, why_down })) => {
                    self.hear(pair, side, port, why_down);
                }
                // The end, or not this program's box any more.
                Some(Err(_)) | None => {
                    self.end();
                    return Ok(());
                }
            }
        }
    }

    fn port(&mut self, pair: usize, side: Side, port: usize) -> Option<&mut Watched> {
        self.pairs.get_mut(pair)?.sides.get_mut(side)?.get_mut(port)?.as_mut()
    }

    /// Leaves a device of the box alone from now on.
    fn stays(&mut self, pair: usize, side: Side, port: usize, error: String) {
        let Some(watched) = self.port(pair, side, port) else { return };
        if let Manner::Device { follows } = &mut watched.port.manner {
            *follows = false;
            self.tell(&News::Stays { pair, side, port, error });
        }
    }

    /// Takes what the box tells of a device.
    fn hear(&mut self, pair: usize, side: Side, port: usize, why_down: Option<String>) {
        let held = self.pairs.get(pair).and_then(|followed| followed.follow.held());
        let Some(watched) = self.port(pair, side, port) else { return };
        if watched.hear(why_down.clone()) && held != Some(side) {
            self.tell(&News::Carrier { pair, side, port, why_down });
        }
    }

    fn command(&mut self, which: Which) {
        let failed = self.commands.as_mut().and_then(|commands| commands.start(which));
        self.tell_of_command(failed);
    }

    fn tell_of_command(&mut self, ended: Option<Ended>) {
        if let Some((which, ended)) = ended {
            self.tell(&News::Command { which, error: ended.err() });
        }
    }

    /// Waits for a change of an interface, a deadline, or an order; returns whether there is one.
    fn wait(&self) -> io::Result<bool> {
        let watches = self.ports().filter_map(Watched::descriptor);
        let watches = watches.map(|watch| PollFd::new(watch, PollFlags::IN));
        let order = PollFd::new(&self.stream, PollFlags::IN);
        let command = self.commands.as_ref().and_then(Runner::descriptor);
        let command = command.map(|ended| PollFd::from_borrowed_fd(ended, PollFlags::IN));
        let mut polled: Vec<PollFd<'_>> =
            std::iter::once(order).chain(watches).chain(command).collect();
        let follow = self.pairs.iter().filter_map(|pair| pair.follow.deadline());
        let deadline = follow.chain(self.commands.as_ref().and_then(Runner::deadline)).min();
        let timeout = deadline.map(|at| at.saturating_duration_since(Instant::now()));
        // A duration of days at most.
        let timeout = timeout.and_then(|time| Timespec::try_from(time).ok());
        match poll(&mut polled, timeout.as_ref()) {
            Ok(_) => Ok(!polled[0].revents().is_empty()),
            Err(rustix::io::Errno::INTR) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }

    fn look(&mut self) {
        for pair in 0..self.pairs.len() {
            self.look_at(pair);
        }
        let ended = self.commands.as_mut().and_then(Runner::look);
        self.tell_of_command(ended);
    }

    /// Looks at all ports of a pair, and does what follows from that.
    fn look_at(&mut self, pair: usize) {
        let followed = &mut self.pairs[pair];
        let held = followed.follow.held();
        let mut news = Vec::new();
        for (side, ports) in followed.sides.iter_mut().enumerate() {
            for (port, watched) in ports.iter_mut().enumerate() {
                let Some(watched) = watched else { continue };
                if watched.look() && held != Some(side) {
                    let why_down = watched.link.reason().map(str::to_string);
                    news.push(News::Carrier { pair, side, port, why_down });
                }
            }
        }
        let carriers = [0, 1].map(|side| followed.has_carrier(side));
        let step = followed.follow.look(Instant::now(), carriers);
        // Told first, so that no status shows the port down without the reason.
        news.extend(match step {
            Some(Step::Hold(side)) => Some(News::Held { pair, side }),
            _ => None,
        });
        news.iter().for_each(|news| self.tell(news));
        let (failed, then) = match step {
            Some(Step::Hold(side)) => (self.set_side(pair, side, GuardedPort::take_down), None),
            Some(Step::Release(side)) => {
                let failed = self.set_side(pair, side, GuardedPort::bring_up);
                (failed, Some(News::Released { pair, side }))
            }
            None => return,
        };
        failed.iter().chain(&then).for_each(|news| self.tell(news));
    }

    /// Sets the ports of a side, and returns what failed.
    fn set_side(
        &self,
        pair: usize,
        side: Side,
        set: fn(&GuardedPort, &str) -> Result<(), String>,
    ) -> Vec<News> {
        let ports = self.pairs[pair].sides[side].iter().flatten();
        let failed = ports.filter_map(|of| set(&of.port, of.name()).err());
        failed.map(|error| News::Failed { error }).collect()
    }

    /// Takes the ports down, or opens the bypass, because the box has ended.
    fn end(&mut self) {
        if let Some(commands) = &mut self.commands {
            let ended = if self.is_armed { commands.open() } else { None };
            return self.tell_of_command(ended);
        }
        let mut interfaces = Vec::new();
        for watched in self.ports().filter(|of| of.port.falls()) {
            let interface = watched.name();
            if watched.port.take_down(interface).is_ok() {
                interfaces.push(interface.to_string());
            }
        }
        self.tell(&News::Fallen { interfaces });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::carrier::{line, send};
    use std::thread;

    /// Whether a guard in charge opened the bypass NIC after these orders, and the end of the
    /// stream.
    fn opens_after(is_armed: bool, orders: &[Order]) -> bool {
        let name = format!("longhaul-opened-{}-{:x}", std::process::id(), crate::random_seed());
        let opened = std::env::temp_dir().join(name);
        let commands = format!("armed = 'true'\nopen = 'touch {}'", opened.display());
        let commands = Runner::new(toml::from_str(&commands).unwrap());
        let (ours, its) = UnixStream::pair().unwrap();
        let mut news = BufReader::new(ours.try_clone().unwrap());
        let mut line = String::new();
        let guard = thread::spawn(move || {
            let mut orders = BufReader::new(its.try_clone().unwrap());
            let mut running = Running::new(its, Vec::new(), Some(commands), is_armed).unwrap();
            running.run(&mut orders).unwrap();
        });
        news.read_line(&mut line).unwrap();
        assert_eq!(serde_json::from_str::<News>(&line).unwrap(), News::Ready);
        for order in orders {
            send(&ours, order).unwrap();
        }
        drop((ours, news));
        guard.join().unwrap();
        std::fs::remove_file(&opened).is_ok()
    }

    #[test]
    fn the_end_of_a_box_is_acted_upon_unless_the_guard_was_disarmed() {
        assert!(!opens_after(false, &[]), "the NIC was never armed");
        assert!(opens_after(false, &[Order::Armed, Order::Beat, Order::Beat]));
        assert!(!opens_after(false, &[Order::Armed, Order::Disarm]));
        // By the box that was replaced.
        assert!(opens_after(true, &[]));
        assert!(opens_after(false, &[Order::TakeCharge { is_armed: true }]));
        assert!(!opens_after(true, &[Order::TakeCharge { is_armed: false }, Order::Disarm]));
    }

    /// The guard of a box that failed to take over leaves the ports alone.
    #[test]
    fn a_guard_acts_only_once_it_is_in_charge() {
        let says = |orders: &[Order]| {
            let lines: String = orders.iter().map(|order| line(order).unwrap()).collect();
            await_charge(&mut lines.as_bytes())
        };
        assert_eq!(says(&[]).unwrap(), None);
        for is_armed in [false, true] {
            assert_eq!(says(&[Order::TakeCharge { is_armed }]).unwrap(), Some(is_armed));
        }
        assert!(says(&[Order::Disarm]).is_err());
    }

    #[test]
    fn a_side_follows_only_what_can_be_taken_down() {
        let port = |manner| Some(GuardedPort { name: "nothere0".to_string(), manner });
        let follows = |near: Option<GuardedPort>, behind: Option<GuardedPort>| {
            let pair = GuardedPair { sides: [vec![near], vec![behind]], held: None };
            let (stream, _box) = UnixStream::pair().unwrap();
            let running = Running::new(stream, vec![pair], None, false).unwrap();
            [0, 1].map(|side| !running.pairs[0].has_carrier(side))
        };
        let plain = || port(Manner::Interface);
        assert_eq!(follows(plain(), port(Manner::Tap)), [true, true]);
        assert_eq!(follows(plain(), None), [false, false]);
        assert_eq!(follows(plain(), port(Manner::Shared)), [false, true]);
        let device = |follows| port(Manner::Device { follows });
        assert_eq!(follows(device(true), device(false)), [false, true]);
        assert_eq!(follows(device(true), plain()), [true, true]);
    }

    /// What the guard of a pair of devices tells after each order.
    #[test]
    fn devices_follow_what_the_box_tells_of_them() {
        let device = |name: &str| {
            let manner = Manner::Device { follows: true };
            Some(GuardedPort { name: name.to_string(), manner })
        };
        let sides = [vec![device("dpdk:a")], vec![device("dpdk:b")]];
        let pair = GuardedPair { sides, held: None };
        let (ours, its) = UnixStream::pair().unwrap();
        let guard = thread::spawn(move || {
            let mut orders = BufReader::new(its.try_clone().unwrap());
            Running::new(its, vec![pair], None, false).unwrap().run(&mut orders).unwrap();
        });
        let news = BufReader::new(ours.try_clone().unwrap());
        let mut news = news.lines().map(|line| serde_json::from_str::<News>(&line.unwrap()));
        let mut next = || news.next().unwrap().unwrap();
        let why = |text: &str| Some(text.to_string());
        let carrier = |side, why_down| Order::Carrier { pair: 0, side, port: 0, why_down };
        let lost = |side, why_down| News::Carrier { pair: 0, side, port: 0, why_down };
        assert_eq!(next(), News::Ready);
        // At once, as if they had waited; and about ports that are not there.
        let strange = Order::Carrier { pair: 3, side: 1, port: 0, why_down: None };
        let strange_side = Order::Carrier { pair: 0, side: 9, port: 9, why_down: None };
        let orders = [strange, strange_side, carrier(0, None), carrier(1, None)];
        let lines: String = orders.iter().map(|order| line(order).unwrap()).collect();
        (&ours).write_all(lines.as_bytes()).unwrap();
        assert_eq!([next(), next()], [lost(0, None), lost(1, None)]);
        for (side, other) in [(0, 1), (1, 0)] {
            send(&ours, &carrier(side, why("no light"))).unwrap();
            assert_eq!(next(), lost(side, why("no light")));
            assert_eq!(next(), News::Held { pair: 0, side: other });
            // What the box has taken down is no loss.
            send(&ours, &carrier(other, why("taken down"))).unwrap();
            send(&ours, &carrier(side, None)).unwrap();
            assert_eq!(next(), lost(side, None));
            assert_eq!(next(), News::Released { pair: 0, side: other });
            send(&ours, &carrier(other, None)).unwrap();
            assert_eq!(next(), lost(other, None));
        }
        // One that turns out to stay up need not be taken down.
        let stays = || (0, 1, 0, "no such command".to_string());
        let (pair, side, port, error) = stays();
        send(&ours, &Order::Stays { pair, side, port, error }).unwrap();
        let (pair, side, port, error) = stays();
        assert_eq!(next(), News::Stays { pair, side, port, error });
        send(&ours, &carrier(0, why("no light"))).unwrap();
        assert_eq!(next(), lost(0, why("no light")));
        send(&ours, &carrier(1, why("no light"))).unwrap();
        assert_eq!(next(), lost(1, why("no light")));
        assert_eq!(next(), News::Held { pair: 0, side: 0 });
        send(&ours, &Order::Disarm).unwrap();
        guard.join().unwrap();
    }
}
