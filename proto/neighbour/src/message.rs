//! ARP and neighbour discovery on the wire.

use longhaul_wire::MacAddr;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

const ETHERTYPE_ARP: u16 = 0x0806;
const ETHERTYPE_IPV6: u16 = 0x86dd;
const ETHERTYPE_VLAN: u16 = 0x8100;
const ICMPV6: u8 = 58;
const SOLICITATION: u8 = 135;
const ADVERTISEMENT: u8 = 136;
const OPTION_SOURCE_MAC: u8 = 1;
const OPTION_TARGET_MAC: u8 = 2;
/// Hop limit of a message that no router has forwarded.
const HOP_LIMIT: u8 = 255;
const SOLICITED: u8 = 0x40;
const OVERRIDE: u8 = 0x20;
const ARP_LEN: usize = 28;
const IPV6_LEN: usize = 40;
const VLAN_ID: u16 = 0xfff;

/// The broadcast address of Ethernet.
pub(crate) const BROADCAST: MacAddr = MacAddr([0xff; 6]);
const ALL_NODES: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1);

/// Longest frame built here: Ethernet 14, VLAN 4, IPv6 40, ICMPv6 24, option 8.
pub const FRAME_MAX: usize = 90;

/// The Ethernet address of a multicast group; `None` for other addresses.
/// Source: RFC 1112, section 6.4, and RFC 2464, section 7.
#[must_use]
pub fn multicast_mac(ip: IpAddr) -> Option<MacAddr> {
    if !ip.is_multicast() {
        return None;
    }
    Some(match ip {
        IpAddr::V4(ip) => {
            let [_, b, c, d] = ip.octets();
            MacAddr([1, 0, 0x5e, b & 0x7f, c, d])
        }
        IpAddr::V6(ip) => {
            let [.., a, b, c, d] = ip.octets();
            MacAddr([0x33, 0x33, a, b, c, d])
        }
    })
}

/// Returns whether `mac` is a valid interface address.
pub(crate) fn is_unicast(mac: MacAddr) -> bool {
    mac.0[0] & 1 == 0 && mac != MacAddr::default()
}

/// The solicited-node multicast group of `ip`. Source: RFC 4291, section 2.7.1.
pub(crate) fn solicited_node(ip: Ipv6Addr) -> Ipv6Addr {
    let [.., a, b, c] = ip.octets();
    Ipv6Addr::new(0xff02, 0, 0, 0, 0, 1, 0xff00 | u16::from(a), u16::from(b) << 8 | u16::from(c))
}

/// A frame to send.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outgoing {
    bytes: [u8; FRAME_MAX],
    len: usize,
}

impl Outgoing {
    /// From the destination's Ethernet address to the last byte.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        &self.bytes[..self.len]
    }

    fn begin(to: MacAddr, from: MacAddr, vlan: Option<u16>, ethertype: u16) -> Self {
        let mut frame = Outgoing { bytes: [0; FRAME_MAX], len: 0 };
        frame.push(&to.0);
        frame.push(&from.0);
        if let Some(vlan) = vlan {
            frame.push(&ETHERTYPE_VLAN.to_be_bytes());
            frame.push(&(vlan & VLAN_ID).to_be_bytes());
        }
        frame.push(&ethertype.to_be_bytes());
        frame
    }

    fn push(&mut self, bytes: &[u8]) {
        self.bytes[self.len..self.len + bytes.len()].copy_from_slice(bytes);
        self.len += bytes.len();
    }

    /// An ARP message to the Ethernet address `to`.
    pub fn arp(to: MacAddr, vlan: Option<u16>, arp: &Arp) -> Self {
        let mut frame = Outgoing::begin(to, arp.sender_mac, vlan, ETHERTYPE_ARP);
        frame.push(&[0, 1, 8, 0, 6, 4, 0, if arp.is_reply { 2 } else { 1 }]);
        frame.push(&arp.sender_mac.0);
        frame.push(&arp.sender_ip.octets());
        frame.push(&arp.target_mac.0);
        frame.push(&arp.target_ip.octets());
        frame
    }

    /// A neighbour solicitation for `target`, to its solicited-node group or to `to`.
    pub fn solicitation(
        from: (Ipv6Addr, MacAddr),
        target: Ipv6Addr,
        to: Option<MacAddr>,
        vlan: Option<u16>,
    ) -> Self {
        let group = solicited_node(target);
        let (to_ip, to_mac) = match to {
            Some(mac) => (target, mac),
            None => (group, multicast_mac(group.into()).unwrap_or(BROADCAST)),
        };
        let option = (!from.0.is_unspecified()).then_some((OPTION_SOURCE_MAC, from.1));
        Outgoing::discovery(from, (to_ip, to_mac), vlan, SOLICITATION, 0, target, option)
    }

    /// A neighbour advertisement of `from`, to the requester or (`None`) to all nodes.
    pub fn advertisement(
        from: (Ipv6Addr, MacAddr),
        to: Option<(Ipv6Addr, MacAddr)>,
        vlan: Option<u16>,
    ) -> Self {
        let (flags, to) = match to {
            Some(to) => (SOLICITED | OVERRIDE, to),
            None => (OVERRIDE, (ALL_NODES, multicast_mac(ALL_NODES.into()).unwrap_or(BROADCAST))),
        };
        Outgoing::discovery(
            from,
            to,
            vlan,
            ADVERTISEMENT,
            flags,
            from.0,
            Some((OPTION_TARGET_MAC, from.1)),
        )
    }

    fn discovery(
        from: (Ipv6Addr, MacAddr),
        to: (Ipv6Addr, MacAddr),
        vlan: Option<u16>,
        kind: u8,
        flags: u8,
        target: Ipv6Addr,
        option: Option<(u8, MacAddr)>,
    ) -> Self {
        let mut frame = Outgoing::begin(to.1, from.1, vlan, ETHERTYPE_IPV6);
        let payload_len = if option.is_some() { 32 } else { 24 };
        frame.push(&[0x60, 0, 0, 0, 0, payload_len, ICMPV6, HOP_LIMIT]);
        frame.push(&from.0.octets());
        frame.push(&to.0.octets());
        let icmp = frame.len;
        frame.push(&[kind, 0, 0, 0, flags, 0, 0, 0]);
        frame.push(&target.octets());
        if let Some((option, mac)) = option {
            frame.push(&[option, 1]);
            frame.push(&mac.0);
        }
        let sum = !checksum(from.0, to.0, &frame.bytes[icmp..frame.len]);
        frame.bytes[icmp + 2..icmp + 4].copy_from_slice(&sum.to_be_bytes());
        frame
    }
}

/// The one's complement sum, which is 0xffff for a valid ICMPv6 message. Source: RFC 8200, section
/// 8.1.
fn checksum(source: Ipv6Addr, destination: Ipv6Addr, message: &[u8]) -> u16 {
    let words = |bytes: &[u8]| -> u64 {
        let whole = bytes.chunks(2).map(|word| match *word {
            [high, low] => u64::from(u16::from_be_bytes([high, low])),
            [high] => u64::from(high) << 8,
            _ => 0,
        });
        whole.sum()
    };
    let mut sum = words(&source.octets()) + words(&destination.octets());
    sum += message.len() as u64 + u64::from(ICMPV6) + words(message);
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    sum as u16
}

/// An ARP message for Ethernet and IPv4.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Arp {
    /// A reply rather than a request.
    pub is_reply: bool,
    /// The sender's Ethernet address.
    pub sender_mac: MacAddr,
    /// The sender; unspecified in a probe.
    pub sender_ip: Ipv4Addr,
    /// Zero in a request.
    pub target_mac: MacAddr,
    /// The requested address, or the requester.
    pub target_ip: Ipv4Addr,
}

/// A neighbour message.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Message {
    Arp(Arp),
    /// "Who has `target`?"
    Solicitation {
        /// The requester; unspecified during duplicate address detection.
        source: Ipv6Addr,
        /// The requester's Ethernet address: from its option, or else the frame's source.
        mac: MacAddr,
        target: Ipv6Addr,
    },
    /// "I have `target`."
    Advertisement {
        target: Ipv6Addr,
        mac: Option<MacAddr>,
        overrides: bool,
    },
}

/// A malformed message.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Malformed;

fn array<const N: usize>(bytes: &[u8], at: usize) -> Result<[u8; N], Malformed> {
    bytes.get(at..at + N).and_then(|found| found.try_into().ok()).ok_or(Malformed)
}

fn u16_at(bytes: &[u8], at: usize) -> Result<u16, Malformed> {
    array(bytes, at).map(u16::from_be_bytes)
}

impl Message {
    /// Parses a frame. `Ok(None)`: not a neighbour message, or of another VLAN.
    pub fn parse(frame: &[u8], vlan: Option<u16>) -> Result<Option<Message>, Malformed> {
        // A frame that ends before its EtherType is not a neighbour message.
        let Ok(mut ethertype) = u16_at(frame, 12) else { return Ok(None) };
        let mut at = 14;
        let mut tag = 0;
        if ethertype == ETHERTYPE_VLAN {
            let (Ok(control), Ok(inner)) = (u16_at(frame, 14), u16_at(frame, 16)) else {
                return Ok(None);
            };
            (tag, ethertype, at) = (control & VLAN_ID, inner, 18);
        }
        if tag != vlan.unwrap_or(0) {
            return Ok(None);
        }
        let source_mac = MacAddr(array(frame, 6)?);
        match ethertype {
            ETHERTYPE_ARP => arp(&frame[at..]).map(|found| found.map(Message::Arp)),
            ETHERTYPE_IPV6 => discovery(&frame[at..], source_mac),
            _ => Ok(None),
        }
    }
}

fn arp(packet: &[u8]) -> Result<Option<Arp>, Malformed> {
    let packet: [u8; ARP_LEN] = array(packet, 0)?;
    let [0, 1, 8, 0, 6, 4, 0, operation, ..] = packet else { return Ok(None) };
    // 1 and 2 are request and reply; higher values (reverse ARP and others) are other protocols.
    if !(1..=2).contains(&operation) {
        return Ok(None);
    }
    let sender_ip = Ipv4Addr::from(array::<4>(&packet, 14)?);
    let sender_mac = MacAddr(array(&packet, 8)?);
    if !is_unicast(sender_mac) || sender_ip.is_multicast() || sender_ip.is_broadcast() {
        return Err(Malformed);
    }
    Ok(Some(Arp {
        is_reply: operation == 2,
        sender_mac,
        sender_ip,
        target_mac: MacAddr(array(&packet, 18)?),
        target_ip: Ipv4Addr::from(array::<4>(&packet, 24)?),
    }))
}

/// Source of the checks: RFC 4861, sections 7.1.1 and 7.1.2.
fn discovery(packet: &[u8], source_mac: MacAddr) -> Result<Option<Message>, Malformed> {
    let Some(header) = packet.first_chunk::<IPV6_LEN>() else { return Ok(None) };
    let is_discovery = header[6] == ICMPV6
        && packet.get(IPV6_LEN).is_some_and(|kind| [SOLICITATION, ADVERTISEMENT].contains(kind));
    if !is_discovery {
        return Ok(None);
    }
    let len = usize::from(u16::from_be_bytes([header[4], header[5]]));
    let message = packet.get(IPV6_LEN..IPV6_LEN + len).ok_or(Malformed)?;
    let source = Ipv6Addr::from(array::<16>(header, 8)?);
    let destination = Ipv6Addr::from(array::<16>(header, 24)?);
    let [kind, 0, ..] = *message else { return Err(Malformed) };
    let target = Ipv6Addr::from(array::<16>(message, 8)?);
    let is_sound = header[7] == HOP_LIMIT
        && header[0] >> 4 == 6
        && !target.is_multicast()
        && !source.is_multicast()
        && is_unicast(source_mac)
        && checksum(source, destination, message) == 0xffff;
    if !is_sound {
        return Err(Malformed);
    }
    if kind == SOLICITATION {
        let told = option(&message[24..], OPTION_SOURCE_MAC)?;
        // Duplicate address detection uses the group, and has no Ethernet address option.
        if source.is_unspecified() && (destination != solicited_node(target) || told.is_some()) {
            return Err(Malformed);
        }
        return Ok(Some(Message::Solicitation { source, mac: told.unwrap_or(source_mac), target }));
    }
    let flags = array::<1>(message, 4)?[0];
    let mac = option(&message[24..], OPTION_TARGET_MAC)?;
    if source.is_unspecified() || (destination.is_multicast() && flags & SOLICITED != 0) {
        return Err(Malformed);
    }
    Ok(Some(Message::Advertisement { target, mac, overrides: flags & OVERRIDE != 0 }))
}

/// Returns the Ethernet address in the option of the given kind, if present.
fn option(mut options: &[u8], wanted: u8) -> Result<Option<MacAddr>, Malformed> {
    let mut found = None;
    while let [kind, units, ..] = *options {
        let len = usize::from(units) * 8;
        if len == 0 || len > options.len() {
            return Err(Malformed);
        }
        if kind == wanted && len == 8 {
            found = Some(MacAddr(array(options, 2)?)).filter(|&mac| is_unicast(mac));
        }
        options = &options[len..];
    }
    if options.is_empty() { Ok(found) } else { Err(Malformed) }
}
