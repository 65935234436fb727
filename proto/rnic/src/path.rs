//! Derives packet headers from an address vector.

use crate::{AddressVector, Config, Segment};
use longhaul_units::Qpn;
use longhaul_wire::{Ecn, MacAddr, Path};

/// TTL if an address vector leaves it at 0.
const HOP_LIMIT: u8 = 64;

/// The path of an address vector between two QPs, through the Ethernet address `hop`.
pub(crate) fn path(
    config: &Config,
    hop: MacAddr,
    address: &AddressVector,
    local: Qpn,
    remote: Qpn,
) -> Path {
    let destination_ip = address.destination_ip.to_canonical();
    let says_nothing = Ecn::of_traffic_class(address.traffic_class) == Ecn::NotCapable;
    let ecn = if config.dcqcn.is_some() && says_nothing { Ecn::ECT_0 } else { 0 };
    Path {
        source_mac: config.mac,
        destination_mac: hop,
        vlan: vlan(config),
        source_ip: config.addresses.source_for(destination_ip),
        destination_ip,
        traffic_class: address.traffic_class | ecn,
        hop_limit: if address.hop_limit == 0 { HOP_LIMIT } else { address.hop_limit },
        flow_label: if destination_ip.is_ipv6() { address.flow_label } else { 0 },
        udp_source_port: source_port(config, address.flow_label, local, remote),
    }
}

/// The VLAN of accepted packets; 0 for untagged ones.
///
/// A separate function: inlined into the test for a segment, the compiler would read the field of
/// an absent segment and discard the result, which valgrind reports.
#[inline(never)]
pub(crate) fn tag(segment: &Segment) -> u16 {
    segment.vlan.unwrap_or(0)
}

/// VLAN tag of all packets sent.
pub(crate) fn vlan(config: &Config) -> Option<u16> {
    config.segment.as_ref().and_then(|segment| segment.vlan)
}

/// UDP source port, which spreads flows over paths, the same in both directions.
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
    use std::net::IpAddr;

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
}
