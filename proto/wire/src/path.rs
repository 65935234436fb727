//! Headers below the BTH that all packets of a path share.

use crate::ROCEV2_PORT;
use std::fmt;
use std::net::IpAddr;

/// An Ethernet address.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct MacAddr(pub [u8; 6]);

impl fmt::Display for MacAddr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [a, b, c, d, e, g] = self.0;
        write!(f, "{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{g:02x}")
    }
}

impl fmt::Debug for MacAddr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// The fields below the BTH that are constant in one direction of a connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Path {
    /// Ethernet source.
    pub source_mac: MacAddr,
    /// Ethernet destination.
    pub destination_mac: MacAddr,
    /// VLAN tag control information, when tagged.
    pub vlan: Option<u16>,
    /// IP source, of the same family as the destination.
    pub source_ip: IpAddr,
    /// IP destination.
    pub destination_ip: IpAddr,
    /// DSCP and ECN.
    pub traffic_class: u8,
    /// TTL or hop limit.
    pub hop_limit: u8,
    /// IPv6 flow label, 20 bits; 0 for IPv4.
    pub flow_label: u32,
    /// UDP source port.
    pub udp_source_port: u16,
}

impl Path {
    /// The reverse path: MACs and IPs swapped, everything else equal.
    #[must_use]
    pub fn reversed(&self) -> Path {
        Path {
            source_mac: self.destination_mac,
            destination_mac: self.source_mac,
            source_ip: self.destination_ip,
            destination_ip: self.source_ip,
            ..*self
        }
    }
}

/// Fragmentation fields of an unfragmented packet's IPv4 header.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Ipv4Fragmentation {
    /// Identification, 16 bits.
    pub identification: u16,
    /// The DF flag.
    pub dont_fragment: bool,
}

/// The bytes from Ethernet to UDP of a [`Path`], ready to be copied in front of each BTH.
#[derive(Clone, Debug)]
pub struct PathTemplate {
    bytes: [u8; Self::LEN_MAX],
    len: u8,
    ip: u8,
    is_ipv6: bool,
    /// One's-complement sum of the IPv4 header with total length 0.
    checksum_base: u32,
}

impl PathTemplate {
    /// Ethernet 14, VLAN 4, IPv6 40, UDP 8.
    pub const LEN_MAX: usize = 66;

    /// Builds the headers. IPv4: DF set, identification 0. UDP checksum 0, as RoCE NICs send it.
    ///
    /// If the two addresses have different families, the source is unspecified.
    pub fn new(path: &Path) -> Self {
        let mut t = PathTemplate {
            bytes: [0; Self::LEN_MAX],
            len: 0,
            ip: 0,
            is_ipv6: false,
            checksum_base: 0,
        };
        t.push(&path.destination_mac.0);
        t.push(&path.source_mac.0);
        if let Some(tci) = path.vlan {
            t.push(&[0x81, 0x00]);
            t.push(&tci.to_be_bytes());
        }
        t.is_ipv6 = path.destination_ip.is_ipv6();
        t.push(if t.is_ipv6 { &[0x86, 0xdd] } else { &[0x08, 0x00] });
        t.ip = t.len;
        match path.destination_ip {
            IpAddr::V4(destination) => {
                let source = match path.source_ip {
                    IpAddr::V4(a) => a,
                    IpAddr::V6(_) => std::net::Ipv4Addr::UNSPECIFIED,
                };
                t.push(&[0x45, path.traffic_class, 0, 0, 0, 0, 0x40, 0, path.hop_limit, 17, 0, 0]);
                t.push(&source.octets());
                t.push(&destination.octets());
                let ip = usize::from(t.ip);
                t.checksum_base = t.bytes[ip..ip + 20]
                    .chunks_exact(2)
                    .map(|w| u32::from(u16::from_be_bytes([w[0], w[1]])))
                    .sum();
            }
            IpAddr::V6(destination) => {
                let source = match path.source_ip {
                    IpAddr::V6(a) => a,
                    IpAddr::V4(_) => std::net::Ipv6Addr::UNSPECIFIED,
                };
                let word =
                    6 << 28 | u32::from(path.traffic_class) << 20 | (path.flow_label & 0x000f_ffff);
                t.push(&word.to_be_bytes());
                t.push(&[0, 0, 17, path.hop_limit]);
                t.push(&source.octets());
                t.push(&destination.octets());
            }
        }
        t.push(&path.udp_source_port.to_be_bytes());
        t.push(&ROCEV2_PORT.to_be_bytes());
        t.push(&[0; 4]);
        t
    }

    /// The same headers with these IPv4 identification and flags; no change for IPv6.
    ///
    /// RoCE NICs count packets in the identification, or send 0; the ICRC covers it, so an exact
    /// retransmission must have the same value. Source: RFC 791, section 3.1.
    #[must_use]
    pub fn with_ipv4_fragmentation(mut self, fragmentation: Ipv4Fragmentation) -> Self {
        if !self.is_ipv6 {
            let at = usize::from(self.ip) + 4;
            let old = self.bytes[at..at + 4].chunks_exact(2);
            let old: u32 = old.map(|w| u32::from(u16::from_be_bytes([w[0], w[1]]))).sum();
            let flags = if fragmentation.dont_fragment { 0x4000 } else { 0 };
            self.bytes[at..at + 2].copy_from_slice(&fragmentation.identification.to_be_bytes());
            self.bytes[at + 2..at + 4].copy_from_slice(&u16::to_be_bytes(flags));
            self.checksum_base = self.checksum_base - old
                + u32::from(fragmentation.identification)
                + u32::from(flags);
        }
        self
    }

    /// Changes the destination Ethernet address, which the ICRC does not cover.
    pub fn set_destination_mac(&mut self, mac: MacAddr) {
        self.bytes[..6].copy_from_slice(&mac.0);
    }

    fn push(&mut self, bytes: &[u8]) {
        let at = usize::from(self.len);
        self.bytes[at..at + bytes.len()].copy_from_slice(bytes);
        self.len += bytes.len() as u8;
    }

    /// [`PathTemplate::bytes`] and what follows them in the buffer, for a copy of constant size.
    #[inline]
    pub(crate) fn buffer(&self) -> &[u8; Self::LEN_MAX] {
        &self.bytes
    }

    /// Ethernet to UDP.
    #[inline]
    pub fn bytes(&self) -> &[u8] {
        &self.bytes[..usize::from(self.len)]
    }

    #[inline]
    pub(crate) fn ip(&self) -> usize {
        usize::from(self.ip)
    }

    #[inline]
    pub(crate) fn is_ipv6(&self) -> bool {
        self.is_ipv6
    }

    #[inline]
    pub(crate) fn ipv4_checksum(&self, total_length: u16) -> u16 {
        let mut sum = self.checksum_base + u32::from(total_length);
        sum = (sum & 0xffff) + (sum >> 16);
        sum = (sum & 0xffff) + (sum >> 16);
        !(sum as u16)
    }
}
