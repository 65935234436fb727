//! From an address to the headers in front of each packet.

use crate::{AddressVector, Config};
use longhaul_units::Qpn;
use longhaul_wire::{Ecn, MacAddr, Path};
use std::net::IpAddr;

/// TTL when an address vector leaves it at 0.
const HOP_LIMIT: u8 = 64;

/// The path that an address vector describes, between two QPs.
pub(crate) fn path(config: &Config, address: &AddressVector, local: Qpn, remote: Qpn) -> Path {
    let destination_ip = address.destination_ip.to_canonical();
    let says_nothing = Ecn::of_traffic_class(address.traffic_class) == Ecn::NotCapable;
    let ecn = if config.dcqcn.is_some() && says_nothing { Ecn::ECT_0 } else { 0 };
    Path {
        source_mac: config.mac,
        destination_mac: neighbour(config, destination_ip),
        vlan: None,
        source_ip: config.ip,
        destination_ip,
        traffic_class: address.traffic_class | ecn,
        hop_limit: if address.hop_limit == 0 { HOP_LIMIT } else { address.hop_limit },
        flow_label: if destination_ip.is_ipv6() { address.flow_label } else { 0 },
        udp_source_port: source_port(config, address.flow_label, local, remote),
    }
}

/// The MAC address of `ip`: that of the multicast group, else as configured, else 02:00 and the last four bytes of
/// the address. Source for groups: RFC 1112, section 6.4, and RFC 2464, section 7.
pub(crate) fn neighbour(config: &Config, ip: IpAddr) -> MacAddr {
    let last_four = match ip {
        IpAddr::V4(ip) => ip.octets(),
        IpAddr::V6(ip) => {
            let [.., a, b, c, d] = ip.octets();
            [a, b, c, d]
        }
    };
    let [a, b, c, d] = last_four;
    if ip.is_multicast() {
        return if ip.is_ipv4() {
            MacAddr([1, 0, 0x5e, b & 0x7f, c, d])
        } else {
            MacAddr([0x33, 0x33, a, b, c, d])
        };
    }
    if let Some((_, mac)) = config.neighbours.iter().find(|(known, _)| known.to_canonical() == ip) {
        return *mac;
    }
    MacAddr([2, 0, a, b, c, d])
}

/// The UDP source port that spreads flows over paths, the same in both directions.
///
/// Source: Linux, `rdma_flow_label_to_udp_sport` and `rdma_calc_flow_label`.
pub(crate) fn source_port(config: &Config, flow_label: u32, local: Qpn, remote: Qpn) -> u16 {
    if let Some(port) = config.udp_source_port {
        return port;
    }
    let label = if flow_label != 0 {
        flow_label & 0xf_ffff
    } else {
        let mut v = u64::from(local.get()) * u64::from(remote.get());
        v ^= v >> 20;
        v ^= v >> 40;
        (v & 0xf_ffff) as u32
    };
    0xc000 | ((label & 0x3fff) ^ (label >> 14)) as u16
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config() -> Config {
        Config::new(MacAddr::default(), IpAddr::from([10, 77, 0, 1]))
    }

    #[test]
    fn source_ports_are_alike_in_both_directions() {
        let (a, b) = (Qpn::new(0x1234), Qpn::new(0xabcdef));
        assert_eq!(source_port(&config(), 0, a, b), source_port(&config(), 0, b, a));
        assert!(source_port(&config(), 0, a, b) >= 0xc000);
        assert_eq!(source_port(&config(), 0x4001, a, b), 0xc000);
    }

    #[test]
    fn unknown_neighbours_follow_their_address() {
        assert_eq!(neighbour(&config(), IpAddr::from([10, 77, 0, 2])), MacAddr([2, 0, 10, 77, 0, 2]));
    }

    #[test]
    fn groups_have_the_addresses_of_the_standards() {
        let v4 = neighbour(&config(), IpAddr::from([239, 255, 1, 2]));
        assert_eq!(v4, MacAddr([1, 0, 0x5e, 0x7f, 1, 2]));
        let v6 = neighbour(&config(), "ff0e::abcd:12".parse().unwrap());
        assert_eq!(v6, MacAddr([0x33, 0x33, 0xab, 0xcd, 0, 0x12]));
    }
}
