//! Detects RDMA in cleartext, and decides which of it may cross the WAN.

use longhaul_node::Frame;
use longhaul_wire::{Prefix, ROCEV2_PORT};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// RDMA that may cross the WAN unsealed, in both directions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Cleartext {
    /// RDMA from and to these addresses beyond the WAN; none if the list is empty.
    Of(Vec<Prefix>),
    /// All RDMA. Traffic that no far box with a key serves passes in cleartext, and so does traffic
    /// for which an attacker makes the transport give up by dropping sealed datagrams.
    Any,
}

/// The addresses of an RDMA frame. `None` where they are absent or cannot be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Ends {
    pub(crate) source: Option<IpAddr>,
    pub(crate) destination: Option<IpAddr>,
}

const UNKNOWN: Ends = Ends { source: None, destination: None };

impl Cleartext {
    /// `true` for a frame that may cross: without RDMA, or with RDMA that is allowed.
    pub(crate) fn allows(&self, frame: &Frame<'_>, is_outbound: bool) -> bool {
        let Cleartext::Of(prefixes) = self else { return true };
        let Some(ends) = find(frame) else { return true };
        let beyond = if is_outbound { ends.destination } else { ends.source };
        beyond.is_some_and(|address| prefixes.iter().any(|prefix| prefix.contains(address)))
    }
}

const ETHERTYPE_IPV4: u16 = 0x0800;
const ETHERTYPE_IPV6: u16 = 0x86dd;
/// RoCE version 1, without IP.
const ETHERTYPE_ROCE: u16 = 0x8915;
/// 802.1Q, 802.1ad, and their proprietary predecessors.
const ETHERTYPES_OF_TAGS: [u16; 4] = [0x8100, 0x88a8, 0x9100, 0x9200];

const UDP: u8 = 17;
/// IPv6 extension headers, whose length field counts units of 8 bytes beyond the first 8.
const HOP_BY_HOP: u8 = 0;
const ROUTING: u8 = 43;
const FRAGMENT: u8 = 44;
const AUTHENTICATION: u8 = 51;
const DESTINATION_OPTIONS: u8 = 60;
const MOBILITY: u8 = 135;
const HOST_IDENTITY: u8 = 139;
const SHIM6: u8 = 140;

/// The contiguous headers of a frame.
struct Headers<'a> {
    bytes: &'a [u8],
}

impl Headers<'_> {
    fn u8(&self, at: usize) -> Option<u8> {
        self.bytes.get(at).copied()
    }

    fn u16(&self, at: usize) -> Option<u16> {
        let bytes = self.bytes.get(at..at + 2)?;
        Some(u16::from_be_bytes([bytes[0], bytes[1]]))
    }

    /// EtherType behind any number of tags, and the offset of its header.
    fn protocol(&self) -> Option<(u16, usize)> {
        let mut at = 12;
        while ETHERTYPES_OF_TAGS.contains(&self.u16(at)?) {
            at += 4;
        }
        Some((self.u16(at)?, at + 2))
    }

    /// Whether the IPv4 packet at `ip` is RDMA, by a port in its first fragment.
    fn is_rdma_over_ipv4(&self, ip: usize) -> Option<bool> {
        let is_first = self.u16(ip + 6)? & 0x1fff == 0;
        if !is_first || self.u8(ip + 9)? != UDP {
            return Some(false);
        }
        Some(self.u16(ip + usize::from(self.u8(ip)? & 0xf) * 4 + 2)? == ROCEV2_PORT)
    }

    /// Whether the IPv6 packet at `ip` is RDMA, behind any number of extension headers.
    fn is_rdma_over_ipv6(&self, ip: usize) -> Option<bool> {
        let (mut next, mut at) = (self.u8(ip + 6)?, ip + 40);
        loop {
            let units = match next {
                UDP => return Some(self.u16(at + 2)? == ROCEV2_PORT),
                FRAGMENT if self.u16(at + 2)? & 0xfff8 != 0 => return Some(false),
                FRAGMENT => 8,
                AUTHENTICATION => (usize::from(self.u8(at + 1)?) + 2) * 4,
                HOP_BY_HOP | ROUTING | DESTINATION_OPTIONS | MOBILITY | HOST_IDENTITY | SHIM6 => {
                    (usize::from(self.u8(at + 1)?) + 1) * 8
                }
                _ => return Some(false),
            };
            next = self.u8(at)?;
            at += units;
        }
    }

    fn ipv4(&self, at: usize) -> Option<IpAddr> {
        let bytes: [u8; 4] = self.bytes.get(at..)?.first_chunk().copied()?;
        Some(Ipv4Addr::from(bytes).into())
    }

    fn ipv6(&self, at: usize) -> Option<IpAddr> {
        let bytes: [u8; 16] = self.bytes.get(at..)?.first_chunk().copied()?;
        Some(Ipv6Addr::from(bytes).into())
    }
}

/// Addresses of a frame that is RDMA, or of which too little is visible to rule it out: a host may
/// accept it.
pub(crate) fn find(frame: &Frame<'_>) -> Option<Ends> {
    let headers = Headers { bytes: frame.head };
    let is_short = frame.head.len() < frame.len();
    // Headers that extend beyond the visible bytes occur only in an attempt to hide something.
    let unseen = || is_short.then_some(UNKNOWN);
    let Some((protocol, ip)) = headers.protocol() else { return unseen() };
    let (is_rdma, ends) = match protocol {
        ETHERTYPE_ROCE => return Some(UNKNOWN),
        ETHERTYPE_IPV4 => {
            let ends = Ends { source: headers.ipv4(ip + 12), destination: headers.ipv4(ip + 16) };
            (headers.is_rdma_over_ipv4(ip), ends)
        }
        ETHERTYPE_IPV6 => {
            let ends = Ends { source: headers.ipv6(ip + 8), destination: headers.ipv6(ip + 24) };
            (headers.is_rdma_over_ipv6(ip), ends)
        }
        _ => return None,
    };
    match is_rdma {
        Some(is_rdma) => is_rdma.then_some(ends),
        None => unseen(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const IPV4: [u8; 20] = [0x45, 0, 0, 40, 0, 0, 0, 0, 64, UDP, 0, 0, 10, 0, 0, 1, 10, 0, 1, 1];
    const PORTS: [u8; 8] = [0xc0, 0, 0x12, 0xb7, 0, 20, 0, 0];

    fn frame_of(parts: &[&[u8]]) -> Vec<u8> {
        [&[2; 12][..], &parts.concat(), &[0; 12]].concat()
    }

    fn ipv6(next: u8) -> Vec<u8> {
        let mut header = vec![0x60, 0, 0, 0, 0, 40, next, 64];
        header.extend("fd00::1".parse::<Ipv6Addr>().unwrap().octets());
        header.extend("fd00::2".parse::<Ipv6Addr>().unwrap().octets());
        header
    }

    fn is_found(bytes: &[u8]) -> bool {
        find(&Frame::opaque(bytes)).is_some()
    }

    #[test]
    fn it_is_found_behind_tags_options_and_headers_of_ipv6() {
        let v4: &[u8] = &[8, 0];
        let v6: &[u8] = &[0x86, 0xdd];
        let tag: &[u8] = &[0x81, 0, 0, 7];
        let mut options = IPV4.to_vec();
        options[0] = 0x47;
        options.extend([1; 8]);
        let mut first = IPV4;
        first[6] = 0x20;
        let hop = [DESTINATION_OPTIONS, 0, 1, 4, 0, 0, 0, 0];
        let destination = [FRAGMENT, 1, 1, 12, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
        let fragment = [UDP, 0, 0, 1, 0, 0, 0, 9];
        for bytes in [
            frame_of(&[v4, &IPV4, &PORTS]),
            frame_of(&[tag, v4, &IPV4, &PORTS]),
            frame_of(&[&[0x88, 0xa8, 0, 9], tag, tag, tag, v4, &IPV4, &PORTS]),
            frame_of(&[v4, &options, &PORTS]),
            frame_of(&[v4, &first, &PORTS]),
            frame_of(&[v6, &ipv6(UDP), &PORTS]),
            frame_of(&[v6, &ipv6(HOP_BY_HOP), &hop, &destination, &fragment, &PORTS]),
            frame_of(&[&[0x89, 0x15]]),
            // No real frame has so many tags, and the last of them is not visible.
            frame_of(&[&[0x81, 0, 0, 7].repeat(60), v4, &IPV4, &PORTS]),
            frame_of(&[v6, &ipv6(DESTINATION_OPTIONS), &[UDP, 20], &[0; 166], &PORTS]),
        ] {
            assert!(is_found(&bytes), "{bytes:x?}");
        }
    }

    #[test]
    fn other_traffic_is_not_taken_for_it() {
        let mut other = PORTS;
        other[3] = 0xb8;
        let mut tcp = IPV4;
        tcp[9] = 6;
        let mut later = IPV4;
        later[7] = 1;
        let fragment = [UDP, 0, 0, 8, 0, 0, 0, 9];
        for bytes in [
            frame_of(&[&[8, 0], &IPV4, &other]),
            frame_of(&[&[8, 0], &tcp, &PORTS]),
            frame_of(&[&[8, 0], &later, &PORTS]),
            frame_of(&[&[0x86, 0xdd], &ipv6(58), &PORTS]),
            frame_of(&[&[0x86, 0xdd], &ipv6(FRAGMENT), &fragment, &PORTS]),
            frame_of(&[&[8, 6], &[7; 46]]),
            frame_of(&[&[8, 0], &[0x45, 0]])[..20].to_vec(),
            vec![9; 14],
            vec![1],
        ] {
            assert!(!is_found(&bytes), "{bytes:x?}");
        }
    }

    #[test]
    fn prefixes_are_those_beyond_the_wan() {
        let bytes = frame_of(&[&[8, 0], &IPV4, &PORTS]);
        let frame = Frame::opaque(&bytes);
        let of = |prefix: &str| Cleartext::Of(vec![prefix.parse().unwrap()]);
        let far = of("10.0.1.0/24");
        assert!(far.allows(&frame, true) && !far.allows(&frame, false));
        let near = of("10.0.0.0/24");
        assert!(near.allows(&frame, false) && !near.allows(&frame, true));
        assert!(Cleartext::Any.allows(&frame, true) && !Cleartext::Of(vec![]).allows(&frame, true));
        // Version 1 has no addresses that a prefix could allow.
        let roce = frame_of(&[&[0x89, 0x15]]);
        assert!(!of("0.0.0.0/0").allows(&Frame::opaque(&roce), true));
    }
}
