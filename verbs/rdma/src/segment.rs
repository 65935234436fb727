//! Ports on Ethernet segments: opening them, and resolving the Ethernet addresses of peers.

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

/// Interval at which waiting requests are checked.
const LOOK: Duration = Duration::from_ms(1);
/// Time limit for an address, longer than the device's.
const LOOK_LIMIT: Duration = Duration::from_ms(4_000);
/// Interval at which the kernel is asked to verify a neighbour. It learns of changes, but does not
/// report them.
const FRESH_BY_KERNEL: Duration = Duration::from_ms(5_000);
/// Pause between two turns of a call that waits for a peer's address.
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

/// The device's configuration of its segment; `None` for lines that are not on one.
pub(crate) fn segment_of(attach: &Attach) -> Option<Segment> {
    let segment =
        |prefix_len| Segment::new(attach.mac, SegmentAddress { ip: attach.ip_addr(), prefix_len });
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

/// State of a port on a segment besides the port itself.
pub(crate) struct OnSegment {
    /// Held for the port's life: reserves its address, or keeps the kernel from refusing its
    /// packets.
    _reservation: OwnedFd,
    /// The kernel's neighbours, if the port shares the kernel's address.
    host: Option<HostRoutes>,
    /// Reports of groups, if the kernel can send them. It has a separate lock, because the kernel
    /// may wait for its lock on all interfaces.
    pub(crate) reports: Option<Arc<Mutex<Reports>>>,
}

/// Opens the TAP device `name`, which only one program can use.
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

/// Opens the interface `name`, at which each address can be used by one program. Calls `told` when
/// the kernel has answered a request.
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
            let host = HostRoutes::open(interface::index(name)?, attach.ip_addr(), told);
            let error = |source| SegmentError::Io {
                ip: attach.ip_addr(),
                operation: "asking the kernel",
                source,
            };
            OnSegment {
                _reservation: hush_kernel(attach, name)?,
                host: Some(host.map_err(error)?),
                reports: None,
            }
        }
    };
    let config = PacketConfig {
        // An own address also has its own groups, including those of IPv6 neighbour discovery,
        // which the interface does not receive by itself.
        promiscuous: network.is_some(),
        // Merged frames are split again; the machine's other programs are faster with merging.
        keep_merging: true,
        // With this machine's address the kernel handles neighbours.
        wanted: Some(Wanted {
            ip: attach.ip_addr(),
            udp_port: ROCEV2_PORT,
            neighbours: network.is_some(),
        }),
        ..PacketConfig::new(name)
    };
    Ok((Box::new(PacketPort::open(&config)?), on_segment))
}

/// Reserves an address on a line for this process, or fails if another process has it. The name is
/// local to the network namespace, and vanishes with the process.
fn reserve(attach: &Attach, line: &str) -> Result<OwnedFd, SegmentError> {
    let ip = attach.ip_addr();
    let name = UnixAddr::from_abstract_name(format!("longhaul/{line}/{ip}"));
    match name.and_then(|name| UnixListener::bind_addr(&name)) {
        Ok(listener) => Ok(listener.into()),
        Err(error) if error.kind() == io::ErrorKind::AddrInUse => {
            Err(SegmentError::InUse { ip, line: line.to_owned() })
        }
        Err(source) => Err(SegmentError::Io { ip, operation: "taking the address", source }),
    }
}

/// Takes RoCEv2's UDP port of an address of this machine. The kernel gets a copy of every packet,
/// and would otherwise send ICMP errors to peers; with the socket it discards the packets.
fn hush_kernel(attach: &Attach, line: &str) -> Result<OwnedFd, SegmentError> {
    let ip = attach.ip_addr();
    match UdpSocket::bind(SocketAddr::new(ip, ROCEV2_PORT)) {
        Ok(socket) => {
            // The kernel's minimum, because packets stay in it for ever.
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

/// A waiting request for a peer's Ethernet address.
struct Waiting {
    ip: IpAddr,
    until: Instant,
    sink: ConnectionSink,
    /// Code of the event that reports the result.
    code: u32,
}

/// State of address resolution on the segment.
#[derive(Default)]
pub(crate) struct Search {
    waiting: Vec<Waiting>,
    looked_at: Instant,
    /// Peer of the last complaint.
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
    /// Passes the device's requests to the kernel, and results to those that wait.
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
                // First, because a program that receives the result may end at once.
                self.complain_of(waiting.ip, failure);
            }
            waiting.tell(failure.map_or(0, |failure| -errno(failure)));
        }
    }

    /// Reports why a peer cannot be reached, once for several times in a row.
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
    /// Resolves the next hop to `ip`. Returns at once if it is known, which it always is on lines
    /// other than segments; otherwise asks for the address, which takes three seconds if nobody
    /// answers.
    ///
    /// # Errors
    /// [`RdmaError::Unreachable`], [`RdmaError::Forked`], and those of [`Engine::start`].
    pub fn resolve(&self, ip: IpAddr) -> Result<(), RdmaError> {
        let ip = ip.to_canonical();
        // Invalid peer addresses are refused where they are used.
        if !self.attach().is_on_segment() || ip.is_ipv4() != self.attach().ip_addr().is_ipv4() {
            return Ok(());
        }
        self.start()?;
        let mut state = self.lock()?;
        let begun = self.now();
        let mut resolution = state.rnic.resolve(begun, ip);
        loop {
            if resolution == Resolution::Asking && self.now().since(begun) >= LOOK_LIMIT {
                // For example, other entries have replaced it in the table.
                resolution = Resolution::Failed(Failure::NoAnswer);
            }
            match resolution {
                Resolution::Known(_) => {
                    // A request to verify the neighbour may be due.
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

    /// As [`Engine::resolve`], without waiting: once the address is known or `limit` has passed,
    /// `sink` gets a [`Happening::Local`] with `code`, value 0, and status 0 or a negative errno
    /// value.
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
        // Turns collect the kernel's answer.
        drop(state);
        self.hand_over();
        Ok(())
    }

    /// Cancels the requests of [`Engine::resolve_for`] whose sink has this cookie. No event of them
    /// is queued after this returns.
    ///
    /// # Errors
    /// [`RdmaError::Forked`].
    pub fn forget_resolutions(&self, cookie: u64) -> Result<(), RdmaError> {
        self.lock()?.search.waiting.retain(|waiting| waiting.sink.cookie != cookie);
        Ok(())
    }

    /// Redirects the results for the cookie of `sink` to that sink.
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

    /// Creates an address handle; waits for the peer's Ethernet address as [`Engine::resolve`]
    /// does.
    ///
    /// # Errors
    /// [`RdmaError::Verbs`], and those of [`Engine::resolve`].
    pub fn create_ah(&self, pd: PdId, address: &AddressVector) -> Result<AhId, RdmaError> {
        self.resolve(address.destination_ip)?;
        let now = self.now();
        Ok(self.with_quietly(|rnic| rnic.create_ah(now, pd, address))??)
    }
}
