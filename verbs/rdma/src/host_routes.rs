//! Routes and neighbours of this machine's kernel, for a port that shares its address.
//!
//! A raw netlink socket: two questions and their answers do not pay for a crate in a library that is loaded into every
//! program. Source: rtnetlink(7); Linux, `include/uapi/linux/rtnetlink.h` and `neighbour.h`.

use std::io;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::os::fd::OwnedFd;

use longhaul_rnic::Failure;
use longhaul_wire::MacAddr;
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType};

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
/// States in which a neighbour's address is to be used: reachable, stale, delay, probe, no ARP, permanent.
const NUD_VALID: u16 = 0x02 | 0x04 | 0x08 | 0x10 | 0x40 | 0x80;
/// States in which the kernel takes the address for granted: reachable, no ARP, permanent.
const NUD_CONNECTED: u16 = 0x02 | 0x40 | 0x80;
/// Header of a message; a route's and a neighbour's own headers are 12 bytes each.
const HEADER: usize = 16;
const BODY: usize = 12;
/// Where packets go that are to have no effect but to make the kernel look for a neighbour. Source: RFC 863.
const DISCARD_PORT: u16 = 9;

/// What the kernel knows of the way to a peer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Way {
    /// Frames go to this Ethernet address; `confirmed`: it has been heard of lately.
    Known { mac: MacAddr, confirmed: bool },
    /// The kernel knows no Ethernet address for the next hop, yet or any more.
    Unknown,
    /// There is no way over this interface.
    None(Failure),
}

/// A socket to ask the kernel with.
pub(crate) struct HostRoutes {
    netlink: OwnedFd,
    /// Sends what makes the kernel ask for a neighbour.
    prompt: UdpSocket,
    interface: u32,
    /// Our address.
    ip: IpAddr,
}

impl HostRoutes {
    /// For the interface with number `interface`, which has the address `ip`.
    pub(crate) fn open(interface: u32, ip: IpAddr) -> io::Result<Self> {
        let flags = SocketFlags::CLOEXEC;
        let netlink = rustix::net::socket_with(AddressFamily::NETLINK, SocketType::RAW, flags, None)?;
        let prompt = UdpSocket::bind(SocketAddr::new(ip, 0))?;
        prompt.set_nonblocking(true)?;
        Ok(HostRoutes { netlink, prompt, interface, ip })
    }

    /// Makes the kernel look for the next hop to `ip`, or see whether it is still there.
    pub(crate) fn prompt(&self, ip: IpAddr) {
        // A failure shows as a neighbour that stays unknown.
        let _ = self.prompt.send_to(&[], SocketAddr::new(ip, DISCARD_PORT));
    }

    /// What the kernel knows of the way to `ip`.
    pub(crate) fn way(&self, ip: IpAddr) -> io::Result<Way> {
        let Some(hop) = self.next_hop(ip)? else { return Ok(Way::None(Failure::NoRoute)) };
        self.neighbour(hop)
    }

    fn next_hop(&self, ip: IpAddr) -> io::Result<Option<IpAddr>> {
        let bits = if ip.is_ipv4() { 32 } else { 128 };
        // Family, destination's length; source's, type of service, table, protocol, scope, type, flags.
        let mut question = Message::new(RTM_GETROUTE, [family(ip), bits, bits, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
        question.attribute(RTA_DST, &octets(ip));
        // Given an interface, the kernel would take what it has no route to for a neighbour.
        question.attribute(RTA_SRC, &octets(self.ip));
        let answer = self.ask(&question)?;
        let Some((RTM_NEWROUTE, body)) = answer.message() else { return Ok(None) };
        if body.get(7) != Some(&RTN_UNICAST) {
            return Ok(None);
        }
        let mut hop = ip;
        let mut leaves_here = true;
        for (kind, value) in attributes(body) {
            match kind {
                RTA_GATEWAY => hop = address(value).unwrap_or(hop),
                // A gateway of the other family, behind the number of its family.
                RTA_VIA => hop = value.get(2..).and_then(address).unwrap_or(hop),
                RTA_OIF => leaves_here = value == self.interface.to_ne_bytes(),
                _ => {}
            }
        }
        Ok(leaves_here.then_some(hop))
    }

    fn neighbour(&self, hop: IpAddr) -> io::Result<Way> {
        // Family, padding; interface; state, flags, type.
        let [a, b, c, d] = self.interface.to_ne_bytes();
        let mut question = Message::new(RTM_GETNEIGH, [family(hop), 0, 0, 0, a, b, c, d, 0, 0, 0, 0]);
        question.attribute(NDA_DST, &octets(hop));
        let answer = self.ask(&question)?;
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

    fn ask(&self, question: &Message) -> io::Result<Answer> {
        rustix::net::send(&self.netlink, question.bytes(), SendFlags::empty())?;
        let mut bytes = [0; 4096];
        let (len, _) = rustix::net::recv(&self.netlink, &mut bytes[..], RecvFlags::empty())?;
        Ok(Answer { bytes, len })
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

/// A question under construction.
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

    fn bytes(&self) -> &[u8] {
        &self.bytes
    }
}

struct Answer {
    bytes: [u8; 4096],
    len: usize,
}

impl Answer {
    /// The first message: its kind and what follows its header. `None` for a refusal, and for nonsense.
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
        let routes = HostRoutes::open(1, IpAddr::from([127, 0, 0, 1])).unwrap();
        assert_eq!(routes.way("2001:db8::1".parse().unwrap()).unwrap(), Way::None(Failure::NoRoute));
        assert_eq!(routes.way(IpAddr::from([127, 0, 0, 1])).unwrap(), Way::None(Failure::NoRoute), "itself");
    }
}
