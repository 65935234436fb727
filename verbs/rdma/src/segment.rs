//! Ports on Ethernet segments: opening them, and finding the Ethernet addresses of peers.

use std::io;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::os::fd::OwnedFd;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr as UnixAddr, UnixListener};
use std::sync::{Arc, Mutex};
use std::time::Duration as StdDuration;

use longhaul_netdev::{
    NetdevError, PacketConfig, PacketPort, TapConfig, TapPort, Wanted, interface,
};
use longhaul_port::Port;
use longhaul_rnic::{
    AddressVector, AhId, Failure, Neighbours, PdId, Resolution, Segment, SegmentAddress,
    SegmentAsks,
};
use longhaul_units::{Duration, Instant};
use longhaul_wire::ROCEV2_PORT;
use rustix::net::sockopt;
use thiserror::Error;

use crate::attach::{Attach, Line, Network};
use crate::connection::{ConnectionEvent, ConnectionSink, Happening};
use crate::device_state::{DeviceState, Driver};
use crate::engine::Engine;
use crate::error::RdmaError;
use crate::groups::Reports;
use crate::host_routes::HostRoutes;

/// How often requests that wait are looked at.
const LOOK: Duration = Duration::from_ms(1);
/// How long somebody waits for an address: longer than the device asks for it.
const LOOK_LIMIT: Duration = Duration::from_ms(4_000);
/// How often the kernel is asked whether a neighbour is still where it was. It hears of changes,
/// and does not tell.
const FRESH_BY_KERNEL: Duration = Duration::from_ms(5_000);
/// How long a call that waits for a peer's address sleeps between two turns.
const PAUSE: StdDuration = StdDuration::from_micros(100);

/// Why a port on a segment could not be opened.
#[derive(Debug, Error)]
pub(crate) enum SegmentError {
    #[error(transparent)]
    Netdev(#[from] NetdevError),
    #[error("{ip} on {line} is in use by another program of this machine")]
    InUse { ip: IpAddr, line: String },
    #[error("{ip}: {operation}: {source}")]
    Io { ip: IpAddr, operation: &'static str, source: io::Error },
}

/// What the device is told of its segment; `None` for lines that are on none.
pub(crate) fn segment_of(attach: &Attach) -> Option<Segment> {
    let segment =
        |prefix_len| Segment::new(attach.mac, SegmentAddress { ip: attach.ip, prefix_len });
    match &attach.line {
        Line::Tap { network, .. } | Line::Interface { network: Some(network), .. } => {
            Some(Segment {
                gateways: network.gateway.into_iter().collect(),
                vlan: network.vlan,
                ..segment(network.prefix_len)
            })
        }
        Line::Interface { network: None, .. } => {
            Some(Segment { asks: SegmentAsks::Owner, fresh: FRESH_BY_KERNEL, ..segment(u8::MAX) })
        }
        Line::Memif { .. } | Line::Udp { .. } => None,
    }
}

/// What a port on a segment keeps besides itself.
pub(crate) struct OnSegment {
    /// Held for the port's life: what keeps its address from others, and the kernel from refusing
    /// its packets.
    _reservation: OwnedFd,
    /// Where the kernel knows the neighbours.
    host: Option<HostRoutes>,
    /// Where the kernel can say which groups are wanted here. With a lock of its own, because the
    /// kernel may wait for its lock on all interfaces.
    pub(crate) reports: Option<Arc<Mutex<Reports>>>,
}

/// Opens the TAP device `name`, which one program can have.
pub(crate) fn open_tap(
    attach: &Attach,
    name: &str,
) -> Result<(Box<dyn Port>, OnSegment), SegmentError> {
    let port = TapPort::open(&TapConfig::new(name))?;
    Ok((
        Box::new(port),
        OnSegment { _reservation: reserve(attach, name)?, host: None, reports: None },
    ))
}

/// Opens the interface `name`, where each address can be had by one program. `told` is called when
/// the kernel has answered a question.
pub(crate) fn open_interface(
    attach: &Attach,
    name: &str,
    network: Option<Network>,
    told: impl Fn() + Send + 'static,
) -> Result<(Box<dyn Port>, OnSegment), SegmentError> {
    let on_segment = match network {
        Some(network) => {
            // The kernel would report outside the VLAN.
            let reports = match network.vlan {
                None => Some(Arc::new(Mutex::new(Reports::new(interface::index(name)?)))),
                Some(_) => None,
            };
            OnSegment { _reservation: reserve(attach, name)?, host: None, reports }
        }
        None => {
            let host = HostRoutes::open(interface::index(name)?, attach.ip, told);
            let error =
                |source| SegmentError::Io { ip: attach.ip, operation: "asking the kernel", source };
            OnSegment {
                _reservation: hush_kernel(attach, name)?,
                host: Some(host.map_err(error)?),
                reports: None,
            }
        }
    };
    let config = PacketConfig {
        // An address of its own has groups of its own too, IPv6's questions among them, which the
        // interface does not take for anybody by itself.
        promiscuous: network.is_some(),
        // What the interface has merged is split again; others of this machine are faster with it.
        keep_merging: true,
        // With this machine's own address the kernel deals with neighbours.
        wanted: Some(Wanted {
            ip: attach.ip,
            udp_port: ROCEV2_PORT,
            neighbours: network.is_some(),
        }),
        ..PacketConfig::new(name)
    };
    Ok((Box::new(PacketPort::open(&config)?), on_segment))
}

/// Takes an address on a line for this process, or finds that another one has it. The name vanishes
/// with the process, and is the network namespace's.
fn reserve(attach: &Attach, line: &str) -> Result<OwnedFd, SegmentError> {
    let ip = attach.ip;
    let name = UnixAddr::from_abstract_name(format!("longhaul/{line}/{ip}"));
    match name.and_then(|name| UnixListener::bind_addr(&name)) {
        Ok(listener) => Ok(listener.into()),
        Err(error) if error.kind() == io::ErrorKind::AddrInUse => {
            Err(SegmentError::InUse { ip, line: line.to_owned() })
        }
        Err(source) => Err(SegmentError::Io { ip, operation: "taking the address", source }),
    }
}

/// Takes RoCEv2's port of an address of this machine. The kernel gets a copy of every packet, and
/// would tell peers that nobody is there; it throws them away instead.
fn hush_kernel(attach: &Attach, line: &str) -> Result<OwnedFd, SegmentError> {
    let ip = attach.ip;
    match UdpSocket::bind(SocketAddr::new(ip, ROCEV2_PORT)) {
        Ok(socket) => {
            // As few as the kernel allows are to wait there for ever.
            let _ = sockopt::set_socket_recv_buffer_size(&socket, 1);
            Ok(socket.into())
        }
        Err(error) if error.kind() == io::ErrorKind::AddrInUse => {
            let line = format!(
                "UDP port {ROCEV2_PORT} of {line} (the kernel's own RoCE takes it when rxe is \
                 loaded)"
            );
            Err(SegmentError::InUse { ip, line })
        }
        Err(source) => Err(SegmentError::Io { ip, operation: "taking UDP port 4791", source }),
    }
}

/// Something that waits for a peer's Ethernet address.
struct Waiting {
    ip: IpAddr,
    until: Instant,
    sink: ConnectionSink,
    /// Of the event that tells.
    code: u32,
}

/// What goes on on the segment.
#[derive(Default)]
pub(crate) struct Search {
    waiting: Vec<Waiting>,
    looked_at: Instant,
    /// Whom the last complaint was about.
    complained_of: Option<IpAddr>,
    told_of_conflict: bool,
}

impl Waiting {
    fn tell(&self, status: i32) {
        let what = Happening::Local { code: self.code, status, value: 0 };
        self.sink.queue.push(ConnectionEvent { cookie: self.sink.cookie, what });
    }
}

fn errno(failure: Failure) -> i32 {
    RdmaError::Unreachable { ip: IpAddr::from([0; 4]), failure }.errno()
}

impl DeviceState {
    /// Asks the kernel where the device wants to know, and tells whoever waits.
    pub(crate) fn look_after_segment(&mut self, now: Instant) {
        let Self { rnic, search, on_segment, .. } = self;
        if let Some(host) = on_segment.as_ref().and_then(|on_segment| on_segment.host.as_ref()) {
            while let Some(ip) = rnic.neighbours_mut().and_then(Neighbours::poll_question) {
                host.ask(ip);
            }
            while let Some((ip, found)) = host.answer() {
                if let Some(neighbours) = rnic.neighbours_mut() {
                    neighbours.answer(now, ip, found);
                }
                rnic.follow_neighbours();
                search.looked_at = Instant::ZERO;
            }
        }
        if now.since(search.looked_at) < LOOK {
            return;
        }
        search.looked_at = now;
        self.tell_waiting(now);
        self.tell_of_conflict();
    }

    fn tell_waiting(&mut self, now: Instant) {
        let mut index = 0;
        while let Some(waiting) = self.search.waiting.get(index) {
            let failure = match self.rnic.resolution(waiting.ip) {
                Resolution::Known(_) => None,
                Resolution::Asking if now < waiting.until => {
                    index += 1;
                    continue;
                }
                Resolution::Asking => Some(Failure::NoAnswer),
                Resolution::Failed(failure) => Some(failure),
            };
            let waiting = self.search.waiting.remove(index);
            if let Some(failure) = failure {
                // First, because a program that has been told may end at once.
                self.complain_of(waiting.ip, failure);
            }
            waiting.tell(failure.map_or(0, |failure| -errno(failure)));
        }
    }

    /// Says why a peer cannot be reached; once for several times in a row.
    fn complain_of(&mut self, ip: IpAddr, failure: Failure) {
        if self.search.complained_of.replace(ip) != Some(ip) {
            eprintln!("longhaul: {ip} cannot be reached: {}", failure.reason());
        }
    }

    fn tell_of_conflict(&mut self) {
        if !self.search.told_of_conflict
            && let Some((ip, mac)) = self.rnic.neighbours().and_then(Neighbours::conflict)
        {
            self.search.told_of_conflict = true;
            eprintln!(
                "longhaul: {ip} is in use by {mac} on the same segment; choose another address"
            );
        }
    }
}

impl Engine {
    /// Finds out where frames to `ip` go first. At once where that is known, which on lines other
    /// than segments it always is; otherwise whoever has the address is asked, which takes three
    /// seconds when nobody answers.
    ///
    /// # Errors
    /// [`RdmaError::Unreachable`], [`RdmaError::Forked`], and those of [`Engine::start`].
    pub fn resolve(&self, ip: IpAddr) -> Result<(), RdmaError> {
        let ip = ip.to_canonical();
        // What is no address of a peer is refused by whoever uses it.
        if !self.attach().is_on_segment() || ip.is_ipv4() != self.attach().ip.is_ipv4() {
            return Ok(());
        }
        self.start()?;
        let mut state = self.lock()?;
        let begun = self.now();
        let mut resolution = state.rnic.resolve(begun, ip);
        loop {
            if resolution == Resolution::Asking && self.now().since(begun) >= LOOK_LIMIT {
                // Others have taken its place in the table, for instance.
                resolution = Resolution::Failed(Failure::NoAnswer);
            }
            match resolution {
                Resolution::Known(_) => {
                    // A question may wait, whether the neighbour is still there.
                    state.send(self.now());
                    self.rouse_thread(&state);
                    return Ok(());
                }
                Resolution::Failed(failure) => {
                    state.complain_of(ip, failure);
                    return Err(RdmaError::Unreachable { ip, failure });
                }
                Resolution::Asking => {}
            }
            state.turn(self.now(), Driver::Program);
            resolution = state.rnic.resolution(ip);
            if resolution == Resolution::Asking {
                self.rouse_thread(&state);
                drop(state);
                std::thread::sleep(PAUSE);
                state = self.lock()?;
            }
        }
    }

    /// The same, without waiting: `sink` gets a [`Happening::Local`] with `code` and value 0, with
    /// status 0 or a negative errno value, when it is known or `limit` has passed.
    ///
    /// # Errors
    /// [`RdmaError::Forked`], and those of [`Engine::start`].
    pub fn resolve_for(
        &self,
        ip: IpAddr,
        limit: Option<StdDuration>,
        sink: ConnectionSink,
        code: u32,
    ) -> Result<(), RdmaError> {
        let waiting = Waiting { ip, until: Instant::ZERO, sink, code };
        if !self.attach().is_on_segment() {
            waiting.tell(0);
            return Ok(());
        }
        self.start()?;
        let mut state = self.lock()?;
        let now = self.now();
        state.rnic.resolve(now, ip);
        let limit = limit.map_or(LOOK_LIMIT, |limit| Duration::from_us(limit.as_micros() as u64));
        state.search.waiting.push(Waiting { until: now + limit.min(LOOK_LIMIT), ..waiting });
        state.tell_waiting(now);
        state.send(now);
        self.rouse_thread(&state);
        // The kernel's answer is looked for by turns.
        drop(state);
        self.hand_over();
        Ok(())
    }

    /// Forgets what [`Engine::resolve_for`] was called for with a sink of this cookie. No event of
    /// it is queued after this returns.
    ///
    /// # Errors
    /// [`RdmaError::Forked`].
    pub fn forget_resolutions(&self, cookie: u64) -> Result<(), RdmaError> {
        self.lock()?.search.waiting.retain(|waiting| waiting.sink.cookie != cookie);
        Ok(())
    }

    /// Sends what is still to be told with the cookie of `sink` to that sink.
    ///
    /// # Errors
    /// [`RdmaError::Forked`].
    pub fn adopt_resolutions(&self, sink: &ConnectionSink) -> Result<(), RdmaError> {
        let mut state = self.lock()?;
        for waiting in state.search.waiting.iter_mut().filter(|w| w.sink.cookie == sink.cookie) {
            waiting.sink = sink.clone();
        }
        Ok(())
    }

    /// Makes an address handle; waits for the peer's Ethernet address as [`Engine::resolve`] does.
    ///
    /// # Errors
    /// [`RdmaError::Verbs`], and those of [`Engine::resolve`].
    pub fn create_ah(&self, pd: PdId, address: &AddressVector) -> Result<AhId, RdmaError> {
        self.resolve(address.destination_ip)?;
        let now = self.now();
        Ok(self.with_quietly(|rnic| rnic.create_ah(now, pd, address))??)
    }
}
