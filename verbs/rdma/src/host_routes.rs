//! Routes and neighbours of this machine's kernel, for a port that shares its address.
//!
//! A dedicated thread sends the requests: to answer, the kernel may wait for its lock on all
//! interfaces, which a process that sets one of them up holds for seconds, and the engine's lock
//! must not be held meanwhile.
//!
//! Uses a raw netlink socket: two kinds of request do not justify a dependency of a library that is
//! loaded into every program. Source: rtnetlink(7); Linux, `include/uapi/linux/rtnetlink.h` and
//! `neighbour.h`.

use std::collections::BTreeMap;
use std::io;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::os::fd::OwnedFd;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::thread;
use std::time::{Duration, Instant};

use longhaul_rnic::Failure;
use longhaul_wire::MacAddr;
use rustix::net::netlink::SocketAddrNetlink;
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType};

use crate::engine_thread::without_signals;

/// Maximum number of waiting requests, and of waiting answers. The device repeats requests that do
/// not fit.
const WAITING_MAX: usize = 1024;
/// Interval at which the kernel is queried about a neighbour that it is resolving.
const LOOK: Duration = Duration::from_millis(1);
/// Time limit of that, longer than the device's.
const LOOK_LIMIT: Duration = Duration::from_millis(4_000);
/// Time limit for an answer of the kernel.
const ANSWER_WAIT: Duration = Duration::from_secs(1);
const NLMSG_ERROR: u16 = 2;
const RTM_NEWROUTE: u16 = 24;
const RTM_GETROUTE: u16 = 26;
const RTM_NEWNEIGH: u16 = 28;
const RTM_GETNEIGH: u16 = 30;
const NLM_F_REQUEST: u16 = 1;
const RTA_DST: u16 = 1;
const RTA_SRC: u16 = 2;
const RTA_OIF: u16 = 4;
const RTA_GATEWAY: u16 = 5;
const RTA_VIA: u16 = 18;
const NDA_DST: u16 = 1;
const NDA_LLADDR: u16 = 2;
const RTN_UNICAST: u8 = 1;
/// States in which a neighbour's address is usable: reachable, stale, delay, probe, no ARP,
/// permanent.
const NUD_VALID: u16 = 0x02 | 0x04 | 0x08 | 0x10 | 0x40 | 0x80;
/// States in which the kernel considers the address valid: reachable, no ARP, permanent.
const NUD_CONNECTED: u16 = 0x02 | 0x40 | 0x80;
/// Length of a message's header; the headers of routes and neighbours are 12 bytes each.
const HEADER: usize = 16;
const BODY: usize = 12;
/// Destination port of packets whose only purpose is to make the kernel resolve a neighbour.
/// Source: RFC 863.
const DISCARD_PORT: u16 = 9;

/// The kernel's knowledge about the route to a peer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Way {
    /// Ethernet address of the next hop; `confirmed`: recently verified.
    Known { mac: MacAddr, confirmed: bool },
    /// The kernel has no Ethernet address for the next hop at the moment.
    Unknown,
    /// There is no route over this interface.
    None(Failure),
}

/// Result for a peer: the Ethernet address for frames to it.
type Found = (IpAddr, Result<MacAddr, Failure>);

/// Non-blocking access to the kernel's routes and neighbours.
pub(crate) struct HostRoutes {
    questions: SyncSender<IpAddr>,
    answers: Receiver<Found>,
}

impl HostRoutes {
    /// For interface number `interface` with the address `ip`. Calls `told` when there is an
    /// answer.
    pub(crate) fn open(
        interface: u32,
        ip: IpAddr,
        told: impl Fn() + Send + 'static,
    ) -> io::Result<Self> {
        Self::start(Kernel::open(interface, ip)?, told)
    }

    fn start(kernel: Kernel, told: impl Fn() + Send + 'static) -> io::Result<Self> {
        let (questions, asked) = sync_channel(WAITING_MAX);
        let (answer, answers) = sync_channel(WAITING_MAX);
        let mut search = Search { kernel, open: BTreeMap::new(), answer };
        let spawned = without_signals(|| {
            let thread =
                thread::Builder::new().name("longhaul-routes".to_owned()).stack_size(256 * 1024);
            thread.spawn(move || search.run(&asked, &told))
        });
        spawned.map(|_| HostRoutes { questions, answers })
    }

    /// Starts a search for the route to `ip`.
    pub(crate) fn ask(&self, ip: IpAddr) {
        // If the queue is full, the device asks again.
        let _ = self.questions.try_send(ip);
    }

    /// The next result.
    pub(crate) fn answer(&self) -> Option<Found> {
        self.answers.try_recv().ok()
    }
}

/// State of the thread.
struct Search {
    kernel: Kernel,
    /// Peers that the kernel is resolving, with their deadlines.
    open: BTreeMap<IpAddr, Instant>,
    answer: SyncSender<Found>,
}

/// The requester is gone.
struct Over;

impl Search {
    /// Runs until the requester is gone.
    fn run(&mut self, asked: &Receiver<IpAddr>, told: &impl Fn()) {
        let mut looked_at = Instant::now();
        loop {
            let asked = match self.open.is_empty() {
                true => asked.recv().map_err(|_| RecvTimeoutError::Disconnected),
                false => asked.recv_timeout(LOOK),
            };
            let answered = match asked {
                Ok(ip) => self.begin(ip),
                Err(RecvTimeoutError::Timeout) => Ok(false),
                Err(RecvTimeoutError::Disconnected) => return,
            };
            let Ok(mut answered) = answered else { return };
            if looked_at.elapsed() >= LOOK {
                let Ok(any) = self.look() else { return };
                answered |= any;
                looked_at = Instant::now();
            }
            if answered {
                told();
            }
        }
    }

    fn begin(&mut self, ip: IpAddr) -> Result<bool, Over> {
        let way = self.kernel.way(ip);
        // A neighbour that was not recently confirmed is verified too.
        if !matches!(way, Ok(Way::Known { confirmed: true, .. })) {
            self.kernel.prompt(ip);
        }
        self.open.insert(ip, Instant::now() + LOOK_LIMIT);
        self.take(ip, way)
    }

    /// Queries the kernel about all open peers.
    fn look(&mut self) -> Result<bool, Over> {
        let now = Instant::now();
        // The device asks again by itself, and then gives up; the kernel may have an answer until
        // it does.
        self.open.retain(|_, until| now < *until);
        let mut answered = false;
        for ip in self.open.keys().copied().collect::<Vec<_>>() {
            let way = self.kernel.way(ip);
            answered |= self.take(ip, way)?;
        }
        Ok(answered)
    }

    /// Passes an answer on, and returns whether it was final.
    fn take(&mut self, ip: IpAddr, way: io::Result<Way>) -> Result<bool, Over> {
        let found = match way {
            Ok(Way::Known { mac, .. }) => Ok(mac),
            Ok(Way::None(failure)) => Err(failure),
            Ok(Way::Unknown) | Err(_) => return Ok(false),
        };
        self.open.remove(&ip);
        self.answer.send((ip, found)).map(|()| true).map_err(|_| Over)
    }
}

/// Sockets for requests to the kernel.
struct Kernel {
    netlink: Netlink,
    /// Sends the packets that make the kernel resolve a neighbour.
    prompt: UdpSocket,
    interface: u32,
    /// Address of this port.
    ip: IpAddr,
}

impl Kernel {
    fn open(interface: u32, ip: IpAddr) -> io::Result<Self> {
        let prompt = UdpSocket::bind(SocketAddr::new(ip, 0))?;
        prompt.set_nonblocking(true)?;
        Ok(Kernel { netlink: Netlink::open()?, prompt, interface, ip })
    }

    /// Makes the kernel resolve the next hop to `ip`, or verify it.
    fn prompt(&self, ip: IpAddr) {
        // A failure shows as a neighbour that stays unknown.
        let _ = self.prompt.send_to(&[], SocketAddr::new(ip, DISCARD_PORT));
    }

    /// The kernel's knowledge about the route to `ip`.
    fn way(&mut self, ip: IpAddr) -> io::Result<Way> {
        let Some(hop) = self.next_hop(ip)? else { return Ok(Way::None(Failure::NoRoute)) };
        self.neighbour(hop)
    }

    fn next_hop(&mut self, ip: IpAddr) -> io::Result<Option<IpAddr>> {
        let bits = if ip.is_ipv4() { 32 } else { 128 };
        // Family, destination's length; source's, type of service, table, protocol, scope, type,
        // flags.
        let mut question =
            Message::new(RTM_GETROUTE, [family(ip), bits, bits, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
        question.attribute(RTA_DST, &octets(ip));
        // With an interface in the request, the kernel would treat unroutable addresses as
        // neighbours.
        question.attribute(RTA_SRC, &octets(self.ip));
        let answer = self.netlink.ask(question)?;
        let Some((RTM_NEWROUTE, body)) = answer.message() else { return Ok(None) };
        if body.get(7) != Some(&RTN_UNICAST) {
            return Ok(None);
        }
        let mut hop = ip;
        let mut leaves_here = true;
        for (kind, value) in attributes(body) {
            match kind {
                RTA_GATEWAY => hop = address(value).unwrap_or(hop),
                // A gateway of the other address family, preceded by the family's number.
                RTA_VIA => hop = value.get(2..).and_then(address).unwrap_or(hop),
                RTA_OIF => leaves_here = value == self.interface.to_ne_bytes(),
                _ => {}
            }
        }
        Ok(leaves_here.then_some(hop))
    }

    fn neighbour(&mut self, hop: IpAddr) -> io::Result<Way> {
        // Family, padding; interface; state, flags, type.
        let [a, b, c, d] = self.interface.to_ne_bytes();
        let mut question =
            Message::new(RTM_GETNEIGH, [family(hop), 0, 0, 0, a, b, c, d, 0, 0, 0, 0]);
        question.attribute(NDA_DST, &octets(hop));
        let answer = self.netlink.ask(question)?;
        let Some((RTM_NEWNEIGH, body)) = answer.message() else { return Ok(Way::Unknown) };
        let state = body.get(8..10).map_or(0, |state| u16::from_ne_bytes([state[0], state[1]]));
        let mac = attributes(body).find(|(kind, _)| *kind == NDA_LLADDR);
        let mac = mac.and_then(|(_, value)| <[u8; 6]>::try_from(value).ok());
        Ok(match mac {
            Some(mac) if state & NUD_VALID != 0 => {
                Way::Known { mac: MacAddr(mac), confirmed: state & NUD_CONNECTED != 0 }
            }
            _ => Way::Unknown,
        })
    }
}

/// A routing netlink socket.
struct Netlink {
    socket: OwnedFd,
    /// Sequence number of the last request.
    sequence: u32,
}

impl Netlink {
    fn open() -> io::Result<Self> {
        let socket = rustix::net::socket_with(
            AddressFamily::NETLINK,
            SocketType::RAW,
            SocketFlags::CLOEXEC,
            None,
        )?;
        // From here on only the kernel can send to it.
        rustix::net::connect(&socket, &SocketAddrNetlink::new(0, 0))?;
        Self::new(socket)
    }

    fn new(socket: OwnedFd) -> io::Result<Self> {
        set_socket_timeout(&socket, Timeout::Recv, Some(ANSWER_WAIT))?;
        Ok(Netlink { socket, sequence: 0 })
    }

    /// The answer to `question`, within twice [`ANSWER_WAIT`].
    fn ask(&mut self, mut question: Message) -> io::Result<Answer> {
        self.sequence = self.sequence.wrapping_add(1);
        rustix::net::send(&self.socket, question.numbered(self.sequence), SendFlags::empty())?;
        let begun = Instant::now();
        while begun.elapsed() < ANSWER_WAIT {
            let mut bytes = [0; 4096];
            let (len, _) = rustix::net::recv(&self.socket, &mut bytes[..], RecvFlags::empty())?;
            let answer = Answer { bytes, len };
            // Skips answers to earlier requests that timed out.
            if answer.sequence() == Some(self.sequence) {
                return Ok(answer);
            }
        }
        Err(io::ErrorKind::TimedOut.into())
    }
}

fn family(ip: IpAddr) -> u8 {
    (if ip.is_ipv4() { libc::AF_INET } else { libc::AF_INET6 }) as u8
}

fn octets(ip: IpAddr) -> Vec<u8> {
    match ip {
        IpAddr::V4(ip) => ip.octets().to_vec(),
        IpAddr::V6(ip) => ip.octets().to_vec(),
    }
}

fn address(bytes: &[u8]) -> Option<IpAddr> {
    let v4 = || <[u8; 4]>::try_from(bytes).ok().map(IpAddr::from);
    v4().or_else(|| <[u8; 16]>::try_from(bytes).ok().map(IpAddr::from))
}

/// A request under construction.
struct Message {
    bytes: Vec<u8>,
}

impl Message {
    fn new(kind: u16, body: [u8; BODY]) -> Self {
        let mut bytes = vec![0; HEADER];
        bytes[4..6].copy_from_slice(&kind.to_ne_bytes());
        bytes[6..8].copy_from_slice(&NLM_F_REQUEST.to_ne_bytes());
        bytes.extend_from_slice(&body);
        Message { bytes }
    }

    fn attribute(&mut self, kind: u16, value: &[u8]) {
        self.bytes.extend_from_slice(&(4 + value.len() as u16).to_ne_bytes());
        self.bytes.extend_from_slice(&kind.to_ne_bytes());
        self.bytes.extend_from_slice(value);
        self.bytes.resize(self.bytes.len().next_multiple_of(4), 0);
        let len = self.bytes.len() as u32;
        self.bytes[..4].copy_from_slice(&len.to_ne_bytes());
    }

    fn numbered(&mut self, sequence: u32) -> &[u8] {
        self.bytes[8..12].copy_from_slice(&sequence.to_ne_bytes());
        &self.bytes
    }
}

struct Answer {
    bytes: [u8; 4096],
    len: usize,
}

impl Answer {
    /// Sequence number of the answered request.
    fn sequence(&self) -> Option<u32> {
        Some(u32::from_ne_bytes(*self.bytes.get(..self.len)?.get(8..)?.first_chunk()?))
    }

    /// The first message: its type and the bytes behind its header. `None` for an error, and for
    /// malformed data.
    fn message(&self) -> Option<(u16, &[u8])> {
        let bytes = self.bytes.get(..self.len)?;
        let header = bytes.first_chunk::<HEADER>()?;
        let len = u32::from_ne_bytes([header[0], header[1], header[2], header[3]]) as usize;
        let kind = u16::from_ne_bytes([header[4], header[5]]);
        let body = bytes.get(HEADER..len)?;
        (kind != NLMSG_ERROR).then_some((kind, body))
    }
}

/// The attributes behind a message's own header.
fn attributes(body: &[u8]) -> impl Iterator<Item = (u16, &[u8])> {
    let mut rest = body.get(BODY..).unwrap_or_default();
    std::iter::from_fn(move || {
        let [a, b, c, d, ..] = *rest else { return None };
        let (len, kind) = (usize::from(u16::from_ne_bytes([a, b])), u16::from_ne_bytes([c, d]));
        let value = rest.get(4..len)?;
        rest = rest.get(len.next_multiple_of(4)..).unwrap_or_default();
        Some((kind, value))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attributes_that_lie_about_their_length_end_the_list() {
        let mut body = vec![0; BODY];
        body.extend_from_slice(&[8, 0, 1, 0, 1, 2, 3, 4]);
        body.extend_from_slice(&[200, 0, 2, 0, 1]);
        let found: Vec<_> = attributes(&body).collect();
        assert_eq!(found, [(1, &[1, 2, 3, 4][..])]);
        assert_eq!(attributes(&[0; 5]).count(), 0);
        let mut short = vec![0; BODY];
        short.extend_from_slice(&[3, 0, 1, 0]);
        assert_eq!(attributes(&short).count(), 0, "shorter than its own header");
    }

    #[test]
    fn what_is_not_behind_an_interface_has_no_way_over_it() {
        let mut kernel = Kernel::open(1, IpAddr::from([127, 0, 0, 1])).unwrap();
        assert_eq!(
            kernel.way("2001:db8::1".parse().unwrap()).unwrap(),
            Way::None(Failure::NoRoute)
        );
        assert_eq!(
            kernel.way(IpAddr::from([127, 0, 0, 1])).unwrap(),
            Way::None(Failure::NoRoute),
            "itself"
        );
    }

    /// A socket whose other end plays the kernel.
    fn netlink() -> (Netlink, OwnedFd) {
        let (socket, kernel) = rustix::net::socketpair(
            AddressFamily::UNIX,
            SocketType::SEQPACKET,
            SocketFlags::CLOEXEC,
            None,
        )
        .unwrap();
        (Netlink::new(socket).unwrap(), kernel)
    }

    #[test]
    fn an_answer_to_another_question_is_not_taken_for_one() {
        let (mut netlink, kernel) = netlink();
        let say = |kind: u16, sequence: u32| {
            let mut message = Message::new(kind, [kind as u8; BODY]);
            message.attribute(RTA_DST, &[]);
            let bytes = message.numbered(sequence);
            rustix::net::send(&kernel, bytes, SendFlags::empty()).unwrap();
        };
        rustix::net::send(&kernel, &[1; 7], SendFlags::empty()).unwrap();
        say(RTM_NEWROUTE, 0);
        say(RTM_NEWNEIGH, 1);
        let question = || Message::new(RTM_GETNEIGH, [0; BODY]);
        let answer = netlink.ask(question()).unwrap();
        assert_eq!(answer.message().map(|(kind, body)| (kind, body[0])), Some((RTM_NEWNEIGH, 28)));
        say(RTM_NEWNEIGH, 1);
        say(RTM_NEWROUTE, 2);
        let answer = netlink.ask(question()).unwrap();
        assert_eq!(answer.message().map(|(kind, _)| kind), Some(RTM_NEWROUTE));
    }

    #[test]
    fn a_kernel_that_does_not_answer_holds_nobody_up() {
        let (mut silent, kernel) = netlink();
        assert!(silent.ask(Message::new(RTM_GETNEIGH, [0; BODY])).is_err(), "the wait has an end");
        let ip = IpAddr::from([127, 0, 0, 1]);
        let kernel_asked = Kernel { netlink: silent, ..Kernel::open(1, ip).unwrap() };
        let routes = HostRoutes::start(kernel_asked, || {}).unwrap();
        for _ in 0..2 * WAITING_MAX {
            routes.ask(ip);
        }
        assert!(routes.answer().is_none());
        drop(kernel);
    }

    #[test]
    fn who_asks_is_told_when_there_is_an_answer() {
        let ip = IpAddr::from([127, 0, 0, 1]);
        let (tell, told) = sync_channel(1);
        let routes = HostRoutes::open(1, ip, move || tell.send(()).unwrap_or(())).unwrap();
        let elsewhere = "2001:db8::1".parse().unwrap();
        routes.ask(elsewhere);
        told.recv_timeout(Duration::from_secs(20)).unwrap();
        assert_eq!(routes.answer(), Some((elsewhere, Err(Failure::NoRoute))));
    }
}
