//! Congestion marks in the IP header, RFC 3168, for nodes that queue and mark frames.
//!
//! A mark does not change the ICRC, which excludes the ToS and the traffic class. Source: IBTA,
//! RoCEv2 annex (A17), section 17.9.2.

use crate::layout::find_ip;

/// The ECN field: the low 2 bits of the IPv4 ToS or of the IPv6 traffic class.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Ecn {
    /// The sender does not react to marks.
    NotCapable,
    /// The sender reacts to marks, and the packet is unmarked: ECT(0) or ECT(1).
    Capable,
    /// Marked: congestion experienced.
    Congested,
}

impl Ecn {
    const CE: u8 = 3;
    /// Value that a sender sets if it reacts to marks: ECT(0).
    pub const ECT_0: u8 = 2;

    /// Extracts the field from a ToS or traffic class.
    #[inline]
    pub const fn of_traffic_class(traffic_class: u8) -> Self {
        match traffic_class & Self::CE {
            0 => Ecn::NotCapable,
            Self::CE => Ecn::Congested,
            _ => Ecn::Capable,
        }
    }

    /// Returns the field of `head`, the leading bytes of a frame; `None` if it is not an IP packet.
    #[inline]
    pub fn of(head: &[u8]) -> Option<Ecn> {
        let (ip, is_ipv6) = find_ip(head)?;
        let byte = *head.get(ip + 1)?;
        Some(Ecn::of_traffic_class(if is_ipv6 { byte >> 4 } else { byte }))
    }

    /// Marks an [`Ecn::Capable`] packet and updates the IPv4 header checksum. Returns `false` for
    /// any other frame, which is unchanged.
    pub fn mark(head: &mut [u8]) -> bool {
        if Ecn::of(head) != Some(Ecn::Capable) {
            return false;
        }
        let Some((ip, is_ipv6)) = find_ip(head) else { return false };
        if is_ipv6 {
            head[ip + 1] |= Self::CE << 4;
            return true;
        }
        let Some(header) = head.get_mut(ip..ip + 12) else { return false };
        let word = |at: usize| u32::from(u16::from_be_bytes([header[at], header[at + 1]]));
        let (old, checksum) = (word(0), word(10));
        header[1] |= Self::CE;
        let new = old | u32::from(Self::CE);
        // HC' = ~(~HC + ~m + m'): RFC 1624, equation 3.
        let mut sum = (!checksum & 0xffff) + (!old & 0xffff) + new;
        sum = (sum & 0xffff) + (sum >> 16);
        sum = (sum & 0xffff) + (sum >> 16);
        header[10..12].copy_from_slice(&(!sum as u16).to_be_bytes());
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Bth, Head, MacAddr, Opcode, Path, PathTemplate};
    use longhaul_units::{Psn, Qpn};
    use std::net::IpAddr;

    fn head(ips: [&str; 2], vlan: Option<u16>, traffic_class: u8) -> Head {
        let [source_ip, destination_ip] = ips.map(|ip| ip.parse::<IpAddr>().unwrap());
        let template = PathTemplate::new(&Path {
            source_mac: MacAddr([2, 0, 0, 0, 0, 1]),
            destination_mac: MacAddr([2, 0, 0, 0, 0, 2]),
            vlan,
            source_ip,
            destination_ip,
            traffic_class,
            hop_limit: 64,
            flow_label: 0x12345,
            udp_source_port: 0xc123,
        });
        let mut head =
            Head::begin(&template, &Bth::new(Opcode::RC_SEND_ONLY, Qpn::new(5), Psn::new(9)));
        head.finish(&template, 8);
        head
    }

    const IPV4: [&str; 2] = ["10.77.0.1", "10.77.0.2"];
    const IPV6: [&str; 2] = ["fe80::1", "fe80::2"];

    #[test]
    fn a_mark_makes_the_frame_that_a_sender_of_that_class_would_have_built() {
        for ips in [IPV4, IPV6] {
            for vlan in [None, Some(7)] {
                for class in 0..=255_u8 {
                    let before = head(ips, vlan, class);
                    let mut marked = before.bytes().to_vec();
                    let is_capable = matches!(class & 3, 1 | 2);
                    assert_eq!(Ecn::mark(&mut marked), is_capable, "{class:#x}");
                    let expected = if is_capable { head(ips, vlan, class | 3) } else { before };
                    assert_eq!(marked, expected.bytes(), "{class:#x} {ips:?}");
                }
            }
        }
    }

    #[test]
    fn the_field_is_read_from_both_families() {
        for ips in [IPV4, IPV6] {
            for (class, ecn) in [
                (0x68, Ecn::NotCapable),
                (0x69, Ecn::Capable),
                (0x6a, Ecn::Capable),
                (0x6b, Ecn::Congested),
            ] {
                assert_eq!(Ecn::of(head(ips, None, class).bytes()), Some(ecn));
            }
        }
    }

    #[test]
    fn frames_cut_short_and_others_stay_as_they_are() {
        let whole = head(IPV4, None, 2);
        for len in 0..26 {
            let mut cut = whole.bytes()[..len].to_vec();
            let before = cut.clone();
            assert!(!Ecn::mark(&mut cut), "{len}");
            assert_eq!(cut, before, "{len}");
        }
        let mut arp = [0; 42];
        arp[12..14].copy_from_slice(&[0x08, 0x06]);
        assert!(!Ecn::mark(&mut arp));
        assert_eq!(Ecn::of(&arp), None);
    }
}
