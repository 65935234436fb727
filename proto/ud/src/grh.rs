//! The 40 bytes before every received datagram.

use longhaul_wire::{Packet, ipv4_checksum_is_right};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Bytes of a receive that hold the sender's IP header, before the datagram.
pub const GRH_LEN: usize = 40;

/// Length of an IPv4 header without options, which is at the end of the area.
const IPV4_LEN: usize = 20;
const PROTOCOL_UDP: u8 = 17;

/// The area of a packet: its IPv6 header, or 20 zero bytes and its IPv4 header without options.
///
/// Source: IBTA, RoCEv2 annex (A17), which leaves the 20 bytes undefined. They are cleared, as in
/// the kernel's rxe, so that the area's first four bits distinguish the two.
pub(crate) fn area(packet: &Packet<'_>) -> [u8; GRH_LEN] {
    let mut area = [0; GRH_LEN];
    let layout = packet.layout();
    let ip = &packet.head()[layout.ip..];
    if layout.is_ipv6 {
        area.copy_from_slice(&ip[..GRH_LEN]);
    } else {
        area[GRH_LEN - IPV4_LEN..].copy_from_slice(&ip[..IPV4_LEN]);
    }
    area
}

/// Source and path of a datagram, from the first 40 bytes of its receive.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NetworkHeader {
    /// IP source: the address to answer.
    pub source: IpAddr,
    /// IP destination: the receiver's address, or that of a multicast group.
    pub destination: IpAddr,
    /// DSCP and ECN.
    pub traffic_class: u8,
    /// TTL or hop limit on arrival.
    pub hop_limit: u8,
    /// IPv6 flow label, 20 bits; 0 for IPv4.
    pub flow_label: u32,
}

impl NetworkHeader {
    /// Parses the area that a [`crate::Responder`] wrote.
    ///
    /// The area is in the program's memory and may have changed: `None` if it is neither an IPv6
    /// nor an IPv4 header that carries UDP, or the IPv4 checksum is wrong. It is parsed as IPv6 if
    /// its first four bits say so. Programs that must tolerate undefined bytes before an IPv4
    /// header test for IPv4 first, and then a sender that can choose its IPv6 address could
    /// impersonate any IPv4 host.
    pub fn read(area: &[u8; GRH_LEN]) -> Option<NetworkHeader> {
        let word =
            |at: usize| u32::from_be_bytes([area[at], area[at + 1], area[at + 2], area[at + 3]]);
        let v6 = |at: usize| {
            let mut octets = [0; 16];
            octets.copy_from_slice(&area[at..at + 16]);
            IpAddr::V6(Ipv6Addr::from(octets))
        };
        let v4 = |at: usize| IpAddr::V4(Ipv4Addr::from(word(at)));
        if area[0] >> 4 == 6 {
            return (area[6] == PROTOCOL_UDP).then(|| NetworkHeader {
                source: v6(8),
                destination: v6(24),
                traffic_class: (word(0) >> 20) as u8,
                hop_limit: area[7],
                flow_label: word(0) & 0x000f_ffff,
            });
        }
        let ip = GRH_LEN - IPV4_LEN;
        // Options would extend beyond the end, and the checksum covers them.
        let is_ours =
            area[ip] == 0x45 && area[ip + 9] == PROTOCOL_UDP && ipv4_checksum_is_right(&area[ip..]);
        is_ours.then(|| NetworkHeader {
            source: v4(ip + 12),
            destination: v4(ip + 16),
            traffic_class: area[ip + 1],
            hop_limit: area[ip + 8],
            flow_label: 0,
        })
    }
}
