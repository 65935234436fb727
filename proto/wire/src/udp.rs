//! Offsets of the headers of any UDP datagram.

use crate::layout::{PROTOCOL_UDP, find_ip, u16_at};
use crate::{Layout, MacAddr, Path};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Header offsets of a UDP datagram to any port, in bytes from the destination MAC.
///
/// Used to insert bytes behind the UDP header, or to remove them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Udp {
    /// IP header.
    pub ip: usize,
    /// True for IPv6.
    pub is_ipv6: bool,
    /// UDP header.
    pub udp: usize,
}

/// Prefix of IPv4-mapped IPv6 addresses (RFC 4291, section 2.5.5.2).
const IPV4_MAPPED: u128 = 0xffff_0000_0000;

/// Returns an address as 128 bits, an IPv4 address as its IPv4-mapped IPv6 address, so that the two
/// families do not collide.
#[inline]
pub fn address_bits(address: IpAddr) -> u128 {
    match address {
        IpAddr::V4(a) => IPV4_MAPPED | u128::from(a.to_bits()),
        IpAddr::V6(a) => a.to_bits(),
    }
}

impl From<Layout> for Udp {
    #[inline]
    fn from(layout: Layout) -> Self {
        Udp { ip: layout.ip, is_ipv6: layout.is_ipv6, udp: layout.udp }
    }
}

impl Udp {
    /// Length of the UDP header in bytes.
    pub const LEN: usize = 8;

    /// Finds the headers in `head`, the leading bytes of a frame, which must contain the whole UDP
    /// header. `None`: not UDP, a fragment, or truncated.
    #[inline]
    pub fn find(head: &[u8]) -> Option<Udp> {
        let (ip, is_ipv6) = find_ip(head)?;
        let version = *head.get(ip)?;
        let (protocol_at, ip_len) = match (is_ipv6, version >> 4) {
            (true, 6) => (ip + 6, 40),
            (false, 4) if version & 0xf >= 5 && u16_at(head, ip + 6)? & 0x3fff == 0 => {
                (ip + 9, usize::from(version & 0xf) * 4)
            }
            _ => return None,
        };
        let udp = ip + ip_len;
        (*head.get(protocol_at)? == PROTOCOL_UDP && head.len() >= udp + Self::LEN).then_some(Udp {
            ip,
            is_ipv6,
            udp,
        })
    }

    #[inline]
    fn bits(&self, head: &[u8], v4_at: usize, v6_at: usize) -> u128 {
        let ip = head.get(self.ip..).unwrap_or_default();
        if self.is_ipv6 {
            ip.get(v6_at..).and_then(<[u8]>::first_chunk).map_or(0, |b| u128::from_be_bytes(*b))
        } else {
            let v4 =
                ip.get(v4_at..).and_then(<[u8]>::first_chunk).map_or(0, |b| u32::from_be_bytes(*b));
            IPV4_MAPPED | u128::from(v4)
        }
    }

    /// [`address_bits`] of the IP source, read directly, for per-packet table look-ups.
    #[inline]
    pub fn source_bits(&self, head: &[u8]) -> u128 {
        self.bits(head, 12, 8)
    }

    /// [`address_bits`] of the IP destination.
    #[inline]
    pub fn destination_bits(&self, head: &[u8]) -> u128 {
        self.bits(head, 16, 24)
    }

    /// First byte behind the UDP header.
    #[inline]
    pub fn payload(&self) -> usize {
        self.udp + Self::LEN
    }

    /// The destination port.
    #[inline]
    pub fn destination_port(&self, head: &[u8]) -> u16 {
        u16::from_be_bytes([head[self.udp + 2], head[self.udp + 3]])
    }

    /// Changes the destination port. The caller updates the UDP checksum.
    #[inline]
    pub fn set_destination_port(&self, head: &mut [u8], port: u16) {
        head[self.udp + 2..self.udp + 4].copy_from_slice(&port.to_be_bytes());
    }

    /// The UDP checksum field.
    #[inline]
    pub fn checksum(&self, head: &[u8]) -> u16 {
        u16::from_be_bytes([head[self.udp + 6], head[self.udp + 7]])
    }

    /// Changes the UDP checksum; 0: none.
    #[inline]
    pub fn set_checksum(&self, head: &mut [u8], checksum: u16) {
        head[self.udp + 6..self.udp + 8].copy_from_slice(&checksum.to_be_bytes());
    }

    /// Payload length in bytes from the UDP header; `None` if its length field is less than the
    /// header.
    #[inline]
    pub fn payload_len(&self, head: &[u8]) -> Option<usize> {
        let len = u16::from_be_bytes([head[self.udp + 4], head[self.udp + 5]]);
        usize::from(len).checked_sub(Self::LEN)
    }

    /// True if the IPv4 header checksum is right; IPv6 has none.
    #[inline]
    pub fn ip_checksum_is_right(&self, head: &[u8]) -> bool {
        self.is_ipv6 || head.get(self.ip..self.udp).is_some_and(ipv4_checksum_is_right)
    }

    /// True if the UDP checksum is right, or absent (0). `behind` are the bytes of the datagram
    /// that follow `head`.
    pub fn checksum_is_right(&self, head: &[u8], behind: &[&[u8]]) -> bool {
        self.checksum(head) == 0 || self.sum(head, behind) == Some(0xffff)
    }

    /// One's-complement sum of the datagram and its pseudo header.
    fn sum(&self, head: &[u8], behind: &[&[u8]]) -> Option<u16> {
        let (ip, datagram) = (head.get(self.ip..)?, head.get(self.udp..)?);
        let addresses = ip.get(if self.is_ipv6 { 8..40 } else { 12..20 })?;
        let pseudo = [addresses, &[0, PROTOCOL_UDP], datagram.get(4..6)?, datagram];
        Some(ones_complement_sum(pseudo.into_iter().chain(behind.iter().copied())))
    }

    /// Adds `by` bytes to the lengths of IP and UDP and updates the IPv4 header checksum. Returns
    /// `false`, and changes nothing, if a length would leave its 16 bits.
    ///
    /// The checksum is updated incrementally (RFC 1624, equation 3), so a wrong one stays wrong.
    /// The inverse call restores the original bytes, unless the checksum was 0xffff, which no
    /// header sum produces.
    #[inline]
    pub fn lengthen(&self, head: &mut [u8], by: i32) -> bool {
        let at_ip = self.ip + if self.is_ipv6 { 4 } else { 2 };
        let word = |at: usize| u16::from_be_bytes([head[at], head[at + 1]]);
        let longer = |len: u16| u16::try_from(i32::from(len) + by).ok();
        let (before, udp_before, checksum) = (word(at_ip), word(self.udp + 4), word(self.ip + 10));
        let (Some(ip_len), Some(udp_len)) = (longer(before), longer(udp_before)) else {
            return false;
        };
        head[at_ip..at_ip + 2].copy_from_slice(&ip_len.to_be_bytes());
        head[self.udp + 4..self.udp + 6].copy_from_slice(&udp_len.to_be_bytes());
        if !self.is_ipv6 {
            let mut sum = u32::from(!checksum) + u32::from(!before) + u32::from(ip_len);
            sum = (sum & 0xffff) + (sum >> 16);
            sum = (sum & 0xffff) + (sum >> 16);
            head[self.ip + 10..self.ip + 12].copy_from_slice(&(!sum as u16).to_be_bytes());
        }
        true
    }

    /// Sets the lengths of UDP and IP for `len` bytes of payload, and the IPv4 checksum, in headers
    /// without options whose lengths and checksum are 0, as from [`crate::PathTemplate`].
    pub fn finish_lengths(&self, head: &mut [u8], len: usize) {
        let udp_len = (len + Self::LEN) as u16;
        head[self.udp + 4..self.udp + 6].copy_from_slice(&udp_len.to_be_bytes());
        if self.is_ipv6 {
            head[self.ip + 4..self.ip + 6].copy_from_slice(&udp_len.to_be_bytes());
            return;
        }
        let total = udp_len + 20;
        head[self.ip + 2..self.ip + 4].copy_from_slice(&total.to_be_bytes());
        let words = head[self.ip..self.ip + 20].chunks_exact(2);
        let mut sum: u32 = words.map(|w| u32::from(u16::from_be_bytes([w[0], w[1]]))).sum();
        sum = (sum & 0xffff) + (sum >> 16);
        sum = (sum & 0xffff) + (sum >> 16);
        head[self.ip + 10..self.ip + 12].copy_from_slice(&(!sum as u16).to_be_bytes());
    }

    /// Addresses and markings of the datagram, as [`crate::Packet::path`].
    pub fn path(&self, head: &[u8]) -> Path {
        let mac = |at: usize| {
            let mut mac = MacAddr::default();
            mac.0.copy_from_slice(&head[at..at + 6]);
            mac
        };
        let ip = self.ip;
        let address = |v4_at: usize, v6_at: usize| {
            if self.is_ipv6 {
                let mut bytes = [0; 16];
                bytes.copy_from_slice(&head[ip + v6_at..ip + v6_at + 16]);
                IpAddr::V6(Ipv6Addr::from(bytes))
            } else {
                let mut bytes = [0; 4];
                bytes.copy_from_slice(&head[ip + v4_at..ip + v4_at + 4]);
                IpAddr::V4(Ipv4Addr::from(bytes))
            }
        };
        let flow_label = u32::from_be_bytes([0, head[ip + 1] & 0xf, head[ip + 2], head[ip + 3]]);
        Path {
            source_mac: mac(6),
            destination_mac: mac(0),
            vlan: (ip >= 18).then(|| u16::from_be_bytes([head[ip - 4], head[ip - 3]])),
            source_ip: address(12, 8),
            destination_ip: address(16, 24),
            traffic_class: if self.is_ipv6 {
                head[ip] << 4 | head[ip + 1] >> 4
            } else {
                head[ip + 1]
            },
            hop_limit: head[ip + if self.is_ipv6 { 7 } else { 8 }],
            flow_label: if self.is_ipv6 { flow_label } else { 0 },
            udp_source_port: u16::from_be_bytes([head[self.udp], head[self.udp + 1]]),
        }
    }
}

/// True if the one's-complement sum of an IPv4 header, options included, is all ones (RFC 791,
/// section 3.1). The sum does not depend on the byte order, and its words may be wider (RFC 1071,
/// section 2).
#[inline]
pub fn ipv4_checksum_is_right(header: &[u8]) -> bool {
    let words =
        header.chunks_exact(4).map(|w| u64::from(u32::from_ne_bytes([w[0], w[1], w[2], w[3]])));
    let sum: u64 = words.sum();
    let sum = (sum & 0xffff_ffff) + (sum >> 32);
    let sum = (sum & 0xffff) + (sum >> 16 & 0xffff) + (sum >> 32);
    (sum & 0xffff) + (sum >> 16) == 0xffff
}

/// One's-complement sum of the pieces in a row (RFC 1071).
fn ones_complement_sum<'a>(pieces: impl Iterator<Item = &'a [u8]>) -> u16 {
    let fold = |sum: u64| {
        let sum = (sum & 0xffff_ffff) + (sum >> 32);
        let sum = (sum & 0xffff) + (sum >> 16 & 0xffff) + (sum >> 32);
        let sum = (sum & 0xffff) + (sum >> 16);
        ((sum & 0xffff) + (sum >> 16)) as u16
    };
    let (mut sum, mut is_odd) = (0, false);
    for piece in pieces {
        let words = piece.chunks_exact(2);
        let last = words.remainder().first().map_or(0, |byte| u64::from(*byte) << 8);
        let words = words.map(|word| u64::from(u16::from_be_bytes([word[0], word[1]])));
        let of_piece = fold(words.sum::<u64>() + last);
        // The sum of bytes at odd offsets is that of the same bytes at even ones, swapped.
        sum += u64::from(if is_odd { of_piece.swap_bytes() } else { of_piece });
        is_odd ^= piece.len() % 2 == 1;
    }
    fold(sum)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Bth, Head, Opcode, Packet, PathTemplate};
    use longhaul_units::{Psn, Qpn};

    fn head(ips: [&str; 2], vlan: Option<u16>, payload_len: usize) -> Head {
        let [source_ip, destination_ip] = ips.map(|ip| ip.parse::<IpAddr>().unwrap());
        let template = PathTemplate::new(&Path {
            source_mac: MacAddr([2, 0, 0, 0, 0, 1]),
            destination_mac: MacAddr([2, 0, 0, 0, 0, 2]),
            vlan,
            source_ip,
            destination_ip,
            traffic_class: 0x6a,
            hop_limit: 61,
            flow_label: if source_ip.is_ipv6() { 0x12345 } else { 0 },
            udp_source_port: 0xc123,
        });
        let mut head =
            Head::begin(&template, &Bth::new(Opcode::RC_SEND_ONLY, Qpn::new(5), Psn::new(9)));
        head.finish(&template, payload_len);
        head
    }

    const KINDS: [([&str; 2], Option<u16>); 4] = [
        (["10.77.0.1", "10.77.0.2"], None),
        (["10.77.0.1", "10.77.0.2"], Some(7)),
        (["fe80::1", "fe80::2"], None),
        (["fe80::1", "fe80::2"], Some(7)),
    ];

    #[test]
    fn a_longer_datagram_is_the_one_that_a_sender_of_more_would_have_built() {
        for (ips, vlan) in KINDS {
            for by in [24, 400, 3000] {
                let (before, after) = (head(ips, vlan, 1000), head(ips, vlan, 1000 + by));
                let mut bytes = before.bytes().to_vec();
                let udp = Udp::find(&bytes).unwrap();
                assert!(udp.lengthen(&mut bytes, by as i32));
                assert_eq!(bytes, after.bytes());
                assert!(udp.lengthen(&mut bytes, -(by as i32)));
                assert_eq!(bytes, before.bytes());
            }
        }
    }

    #[test]
    fn a_length_that_does_not_fit_changes_nothing() {
        for (ips, vlan) in KINDS {
            let before = head(ips, vlan, 1000);
            let mut bytes = before.bytes().to_vec();
            let udp = Udp::find(&bytes).unwrap();
            assert!(!udp.lengthen(&mut bytes, 65_000));
            assert!(!udp.lengthen(&mut bytes, -2000));
            assert_eq!(bytes, before.bytes());
        }
    }

    #[test]
    fn addresses_are_those_of_the_packet() {
        for (ips, vlan) in KINDS {
            let head = head(ips, vlan, 8);
            let packet = Packet::parse(head.bytes()).unwrap().unwrap();
            let udp = Udp::find(head.bytes()).unwrap();
            assert_eq!(udp, Udp::from(packet.layout()));
            let path = udp.path(head.bytes());
            assert_eq!(path, packet.path());
            assert_eq!((path.vlan, path.hop_limit, path.traffic_class), (vlan, 61, 0x6a));
        }
    }

    #[test]
    fn every_bit_of_an_ipv4_header_is_under_its_checksum() {
        for (ips, vlan) in KINDS {
            let mut bytes = head(ips, vlan, 1000).bytes().to_vec();
            let udp = Udp::find(&bytes).unwrap();
            assert!(udp.ip_checksum_is_right(&bytes));
            for bit in udp.ip * 8..udp.udp * 8 {
                bytes[bit / 8] ^= 1 << (bit % 8);
                assert_eq!(udp.ip_checksum_is_right(&bytes), udp.is_ipv6, "{bit}");
                bytes[bit / 8] ^= 1 << (bit % 8);
            }
        }
    }

    /// The checksum of a datagram by RFC 768, over its bytes in one piece.
    fn udp_checksum(udp: &Udp, datagram: &[u8]) -> u16 {
        let addresses = if udp.is_ipv6 { 8..40 } else { 12..20 };
        let mut bytes = datagram[udp.ip..][addresses].to_vec();
        bytes.extend([0, 17]);
        bytes.extend(&datagram[udp.udp + 4..udp.udp + 6]);
        bytes.extend(&datagram[udp.udp..]);
        bytes.extend(vec![0; bytes.len() % 2]);
        let words = bytes.chunks(2).map(|word| u32::from(word[0]) << 8 | u32::from(word[1]));
        let sum = words.fold(0, |sum, word| (sum + word) % 0xffff);
        !(sum as u16)
    }

    #[test]
    fn every_bit_of_a_datagram_is_under_its_checksum_however_it_is_cut() {
        let behind: Vec<u8> = (0..64).map(|n: u8| n.wrapping_mul(37)).collect();
        for (ips, vlan) in KINDS {
            let mut bytes = head(ips, vlan, behind.len() - 4).bytes().to_vec();
            let udp = Udp::find(&bytes).unwrap();
            let head_len = bytes.len();
            bytes.extend(&behind);
            assert!(udp.checksum_is_right(&bytes[..head_len], &[&behind]), "there is none");
            let checksum = udp_checksum(&udp, &bytes);
            udp.set_checksum(&mut bytes, checksum);
            for cuts in [[0, 0], [1, 2], [7, 7], [13, 40], [64, 64]] {
                let is_right = |bytes: &[u8]| {
                    let (head, behind) = bytes.split_at(head_len);
                    let pieces =
                        [&behind[..cuts[0]], &behind[cuts[0]..cuts[1]], &behind[cuts[1]..]];
                    udp.checksum_is_right(head, &pieces)
                };
                assert!(is_right(&bytes), "{cuts:?}");
                for bit in udp.udp * 8..bytes.len() * 8 {
                    bytes[bit / 8] ^= 1 << (bit % 8);
                    assert!(!is_right(&bytes), "{cuts:?}, {bit}");
                    bytes[bit / 8] ^= 1 << (bit % 8);
                }
            }
        }
    }

    #[test]
    fn fragments_and_stumps_are_no_datagrams() {
        let whole = head(KINDS[1].0, KINDS[1].1, 8);
        for len in 0..whole.bytes().len() {
            assert_eq!(Udp::find(&whole.bytes()[..len]).is_some(), len >= 46, "{len}");
        }
        let mut fragment = whole.bytes().to_vec();
        fragment[18 + 6] |= 0x20;
        assert_eq!(Udp::find(&fragment), None);
    }
}
