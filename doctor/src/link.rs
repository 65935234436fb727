//! From a captured frame to the IP packet in it, for the link types that RoCEv2 is captured on.

use longhaul_wire::pcap::LinkType;

/// Maximum header bytes examined: the longest RoCEv2 header stack.
pub(crate) const HEAD_LEN: usize = 128;

const NULL: LinkType = LinkType(0);
const RAW_OLD: LinkType = LinkType(12);
const RAW_OPENBSD: LinkType = LinkType(14);
const RAW: LinkType = LinkType(101);
const LOOP: LinkType = LinkType(108);
const LINUX_SLL: LinkType = LinkType(113);
const IPV4: LinkType = LinkType(228);
const IPV6: LinkType = LinkType(229);
const LINUX_SLL2: LinkType = LinkType(276);

pub(crate) const ETHERTYPE_IPV4: u16 = 0x0800;
pub(crate) const ETHERTYPE_IPV6: u16 = 0x86dd;

/// Content behind the link header.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Carried {
    /// An Ethernet frame.
    Ethernet,
    /// A network packet of this Ethernet type, `at` bytes into the frame.
    Network { ethertype: u16, at: usize },
    /// Shorter than the link's header.
    Short,
    /// An unsupported link type.
    Unknown,
}

pub(crate) fn carried(link_type: LinkType, data: &[u8]) -> Carried {
    let big = |at: usize| data.get(at..at + 2).map(|b| u16::from_be_bytes([b[0], b[1]]));
    let network = |ethertype: Option<u16>, at: usize| match ethertype {
        Some(ethertype) => Carried::Network { ethertype, at },
        None => Carried::Short,
    };
    match link_type {
        LinkType::ETHERNET => Carried::Ethernet,
        LINUX_SLL => network(big(14), 16),
        LINUX_SLL2 => network(big(0).filter(|_| data.len() >= 20), 20),
        RAW | RAW_OLD | RAW_OPENBSD | IPV4 | IPV6 => network(version_of(data), 0),
        NULL | LOOP => network(data.get(4..).and_then(version_of), 4),
        _ => Carried::Unknown,
    }
}

/// Returns whether the link type is supported.
pub(crate) fn is_read(link_type: LinkType) -> bool {
    carried(link_type, &[]) != Carried::Unknown
}

/// Returns the EtherType for an IP header's version.
fn version_of(packet: &[u8]) -> Option<u16> {
    packet.first().map(|byte| match byte >> 4 {
        4 => ETHERTYPE_IPV4,
        6 => ETHERTYPE_IPV6,
        _ => 0,
    })
}

/// Returns the name of a common link type.
pub fn link_type_name(link_type: LinkType) -> &'static str {
    match link_type {
        NULL | LOOP => "BSD loopback",
        LinkType::ETHERNET => "Ethernet",
        LinkType(6) => "Token Ring",
        LinkType(9) => "PPP",
        LinkType(10) => "FDDI",
        RAW | RAW_OLD | RAW_OPENBSD | IPV4 | IPV6 => "raw IP",
        LinkType(105) => "802.11 (Wi-Fi)",
        LINUX_SLL => "Linux cooked, version 1",
        LinkType(127) => "802.11 with radiotap (Wi-Fi)",
        LinkType(147..=162) => "private use",
        LinkType(197) => "Endace ERF",
        LinkType(220 | 189) => "USB",
        LinkType(227) => "SocketCAN",
        LinkType(242) => "IP over InfiniBand",
        LinkType(247) => "InfiniBand",
        LinkType(249) => "USBPcap",
        LinkType(253) => "Netlink",
        LINUX_SLL2 => "Linux cooked, version 2",
        _ => "a link type without a name here",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_link_types_header_is_skipped() {
        let mut sll = [0_u8; 40];
        sll[14..16].copy_from_slice(&[0x08, 0x00]);
        assert_eq!(carried(LINUX_SLL, &sll), Carried::Network { ethertype: 0x0800, at: 16 });
        let mut sll2 = [0_u8; 40];
        sll2[..2].copy_from_slice(&[0x86, 0xdd]);
        assert_eq!(carried(LINUX_SLL2, &sll2), Carried::Network { ethertype: 0x86dd, at: 20 });
        assert_eq!(carried(RAW, &[0x60; 40]), Carried::Network { ethertype: 0x86dd, at: 0 });
        assert_eq!(
            carried(NULL, &[2, 0, 0, 0, 0x45]),
            Carried::Network { ethertype: 0x0800, at: 4 }
        );
        assert_eq!(carried(LinkType(105), &sll), Carried::Unknown);
    }

    #[test]
    fn a_frame_shorter_than_the_header_is_said_to_be_so() {
        for (link_type, len) in [(LINUX_SLL, 15), (LINUX_SLL2, 19), (RAW, 0), (NULL, 4)] {
            assert_eq!(carried(link_type, &[0; 19][..len]), Carried::Short);
        }
    }
}
