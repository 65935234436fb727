//! Ethernet, IP and UDP headers: parses those of outgoing frames, and rebuilds those of incoming
//! packets.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use crc32fast::Hasher;

use crate::config::ROCEV2_PORT;

/// Bytes of Ethernet, IPv6 and UDP headers.
pub(crate) const HEADERS_MAX: usize = 62;
/// BTH and ICRC: the minimum packet.
pub(crate) const PACKET_BYTES_MIN: usize = 16;

const ETHERNET: usize = 14;
const IPV4: usize = 20;
const IPV6: usize = 40;
const UDP: usize = 8;
const PROTOCOL_UDP: u8 = 17;
/// IPv4 flags and fragment offset of an unfragmented packet with DF.
const DONT_FRAGMENT: [u8; 2] = [0x40, 0];
/// TTL of rebuilt headers, since the received one is unknown.
const HOP_LIMIT: u8 = 64;
/// CRC-32 of the eight bytes of ones that replace the LRH in an ICRC.
const AFTER_ONES: u32 = !0xdebb_20e3;

fn u16_at(bytes: &[u8], at: usize) -> u16 {
    u16::from_be_bytes([bytes[at], bytes[at + 1]])
}

/// Properties of an outgoing frame that the kernel needs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Outgoing {
    /// Offset of the packet (BTH to ICRC) in the frame, in bytes.
    pub(crate) packet_at: usize,
    /// Its length in bytes.
    pub(crate) packet_bytes: usize,
    pub(crate) destination: IpAddr,
    pub(crate) traffic_class: u8,
    pub(crate) hop_limit: u8,
    /// The IPv4 identification that its ICRC covers; 0 for IPv6.
    pub(crate) identification: u16,
}

/// Why a frame cannot be sent.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Refusal {
    /// It is not RoCEv2 that a UDP socket can carry.
    NotRocev2,
    /// Its IP source is not the bound address.
    ForeignSource,
    /// Its UDP source port is not 4791.
    SourcePort,
}

impl Outgoing {
    /// Parses the headers of a frame that is to be sent from `own`.
    pub(crate) fn parse(frame: &[u8], own: IpAddr) -> Result<Self, Refusal> {
        let mut ip_at = ETHERNET;
        // Skips one 802.1Q or 802.1ad tag: the machine's routes decide about tags.
        if matches!(frame.get(12..14), Some([0x81, 0x00] | [0x88, 0xa8])) {
            ip_at += 4;
        }
        let (outgoing, source) = match frame.get(ip_at - 2..ip_at) {
            Some([0x08, 0x00]) => Self::over_ipv4(frame, ip_at),
            Some([0x86, 0xdd]) => Self::over_ipv6(frame, ip_at),
            _ => None,
        }
        .ok_or(Refusal::NotRocev2)?;
        let udp = outgoing.packet_at - UDP;
        if u16_at(frame, udp + 2) != ROCEV2_PORT {
            return Err(Refusal::NotRocev2);
        }
        if source != own {
            return Err(Refusal::ForeignSource);
        }
        if u16_at(frame, udp) != ROCEV2_PORT {
            return Err(Refusal::SourcePort);
        }
        Ok(outgoing)
    }

    /// `None`: not UDP, inconsistent lengths, options, or a fragment.
    fn over_ipv4(frame: &[u8], at: usize) -> Option<(Self, IpAddr)> {
        let header: &[u8; IPV4] = frame.get(at..)?.first_chunk()?;
        let ip_bytes = usize::from(u16_at(header, 2));
        if header[0] != 0x45 || header[6..8] != DONT_FRAGMENT || header[9] != PROTOCOL_UDP {
            return None;
        }
        let address =
            |at| IpAddr::from(Ipv4Addr::from([0, 1, 2, 3].map(|i: usize| header[at + i])));
        let outgoing = Self {
            packet_at: at + IPV4 + UDP,
            packet_bytes: packet_bytes(frame, at + IPV4, ip_bytes.checked_sub(IPV4)?)?,
            destination: address(16),
            traffic_class: header[1],
            hop_limit: header[8],
            identification: u16_at(header, 4),
        };
        Some((outgoing, address(12)))
    }

    /// `None`: UDP does not follow the IPv6 header, or inconsistent lengths.
    fn over_ipv6(frame: &[u8], at: usize) -> Option<(Self, IpAddr)> {
        let header: &[u8; IPV6] = frame.get(at..)?.first_chunk()?;
        if header[0] >> 4 != 6 || header[6] != PROTOCOL_UDP {
            return None;
        }
        let address = |at| {
            let mut octets = [0; 16];
            octets.copy_from_slice(&header[at..at + 16]);
            IpAddr::from(Ipv6Addr::from(octets))
        };
        let outgoing = Self {
            packet_at: at + IPV6 + UDP,
            packet_bytes: packet_bytes(frame, at + IPV6, usize::from(u16_at(header, 4)))?,
            destination: address(24),
            traffic_class: (u16_at(header, 0) >> 4) as u8,
            hop_limit: header[7],
            identification: 0,
        };
        Some((outgoing, address(8)))
    }
}

/// Length of the packet behind the UDP header at `udp`, if IP, UDP and the frame agree on it.
fn packet_bytes(frame: &[u8], udp: usize, ip_payload_bytes: usize) -> Option<usize> {
    let header = frame.get(udp..udp + UDP)?;
    let packet_bytes = ip_payload_bytes.checked_sub(UDP)?;
    let agree =
        usize::from(u16_at(header, 4)) == ip_payload_bytes && udp + ip_payload_bytes <= frame.len();
    (agree && packet_bytes >= PACKET_BYTES_MIN).then_some(packet_bytes)
}

/// Headers of frames from one source, except the fields that differ between packets.
pub(crate) struct Incoming {
    bytes: [u8; HEADERS_MAX],
    /// The same IPv4 and UDP headers, with ones in the fields that the ICRC masks.
    masked: [u8; IPV4 + UDP],
    len: usize,
    /// One's-complement sum of the IPv4 header without length and identification.
    checksum_base: u32,
}

impl Incoming {
    /// Headers of packets from `source`, UDP port `source_port`, to `own`, UDP port 4791. The
    /// addresses must be of one family. MAC addresses are 02:00 and the last four bytes of the IP
    /// address, as devices assume.
    pub(crate) fn new(source: IpAddr, source_port: u16, own: IpAddr, traffic_class: u8) -> Self {
        let mut this = Self {
            bytes: [0; HEADERS_MAX],
            masked: [0; IPV4 + UDP],
            len: ETHERNET + UDP + if own.is_ipv4() { IPV4 } else { IPV6 },
            checksum_base: 0,
        };
        this.bytes[..6].copy_from_slice(&mac(own));
        this.bytes[6..12].copy_from_slice(&mac(source));
        match (source, own) {
            (IpAddr::V4(source), IpAddr::V4(own)) => {
                this.bytes[12..14].copy_from_slice(&[0x08, 0x00]);
                let ip = &mut this.bytes[ETHERNET..ETHERNET + IPV4];
                let [df, offset] = DONT_FRAGMENT;
                ip[..10].copy_from_slice(&[
                    0x45,
                    traffic_class,
                    0,
                    0,
                    0,
                    0,
                    df,
                    offset,
                    HOP_LIMIT,
                    PROTOCOL_UDP,
                ]);
                ip[12..16].copy_from_slice(&source.octets());
                ip[16..20].copy_from_slice(&own.octets());
                this.checksum_base =
                    ip.chunks_exact(2).map(|word| u32::from(u16_at(word, 0))).sum();
            }
            (IpAddr::V6(source), IpAddr::V6(own)) => {
                this.bytes[12..14].copy_from_slice(&[0x86, 0xdd]);
                let ip = &mut this.bytes[ETHERNET..ETHERNET + IPV6];
                ip[0] = 0x60 | traffic_class >> 4;
                ip[1] = traffic_class << 4;
                ip[6..8].copy_from_slice(&[PROTOCOL_UDP, HOP_LIMIT]);
                ip[8..24].copy_from_slice(&source.octets());
                ip[24..40].copy_from_slice(&own.octets());
            }
            _ => unreachable!("a socket has one address family"),
        }
        let udp = this.len - UDP;
        this.bytes[udp..udp + 2].copy_from_slice(&source_port.to_be_bytes());
        this.bytes[udp + 2..udp + 4].copy_from_slice(&ROCEV2_PORT.to_be_bytes());
        if own.is_ipv4() {
            this.masked.copy_from_slice(&this.bytes[ETHERNET..ETHERNET + IPV4 + UDP]);
            // ToS, TTL, header checksum, UDP checksum.
            for at in [1, 8, 10, 11, 26, 27] {
                this.masked[at] = 0xff;
            }
        }
        this
    }

    /// Number of bytes before the packet.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    pub(crate) fn is_ipv4(&self) -> bool {
        self.len == ETHERNET + IPV4 + UDP
    }

    /// Writes the headers into the first [`Incoming::len`] bytes of `frame`; the packet must
    /// follow.
    pub(crate) fn write(&self, frame: &mut [u8], identification: u16) {
        let udp_bytes = (frame.len() - self.len + UDP) as u16;
        let udp = self.len - UDP;
        frame[..self.len].copy_from_slice(&self.bytes[..self.len]);
        frame[udp + 4..udp + 6].copy_from_slice(&udp_bytes.to_be_bytes());
        let ip = &mut frame[ETHERNET..];
        if self.is_ipv4() {
            let ip_bytes = udp_bytes + IPV4 as u16;
            ip[2..4].copy_from_slice(&ip_bytes.to_be_bytes());
            ip[4..6].copy_from_slice(&identification.to_be_bytes());
            let sum = self.checksum_base + u32::from(ip_bytes) + u32::from(identification);
            let sum = (sum & 0xffff) + (sum >> 16);
            let sum = (sum & 0xffff) + (sum >> 16);
            ip[10..12].copy_from_slice(&(!(sum as u16)).to_be_bytes());
        } else {
            ip[4..6].copy_from_slice(&udp_bytes.to_be_bytes());
        }
    }

    /// Difference (exclusive or) of the ICRC at the end of `frame` from that of an IPv4 packet with
    /// this identification. Overwrites the headers with scratch data.
    pub(crate) fn icrc_difference(&self, frame: &mut [u8], identification: u16) -> u32 {
        let udp_bytes = (frame.len() - self.len + UDP) as u16;
        let (covered, icrc) =
            frame[ETHERNET..].split_last_chunk_mut::<4>().expect("a packet has an ICRC");
        covered[..IPV4 + UDP].copy_from_slice(&self.masked);
        covered[2..4].copy_from_slice(&(udp_bytes + IPV4 as u16).to_be_bytes());
        covered[4..6].copy_from_slice(&identification.to_be_bytes());
        covered[IPV4 + 4..IPV4 + 6].copy_from_slice(&udp_bytes.to_be_bytes());
        // FECN, BECN and the reserved bits, masked in place so that the CRC covers contiguous
        // memory.
        let masked_at = IPV4 + UDP + 4;
        let congestion = std::mem::replace(&mut covered[masked_at], 0xff);
        let mut crc = Hasher::new_with_initial(AFTER_ONES);
        crc.update(covered);
        covered[masked_at] = congestion;
        crc.finalize() ^ u32::from_le_bytes(*icrc)
    }
}

fn mac(ip: IpAddr) -> [u8; 6] {
    let [a, b, c, d] = match ip {
        IpAddr::V4(ip) => ip.octets(),
        IpAddr::V6(ip) => {
            let [.., a, b, c, d] = ip.octets();
            [a, b, c, d]
        }
    };
    [2, 0, a, b, c, d]
}
