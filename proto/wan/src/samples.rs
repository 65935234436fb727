//! Sample routes for the tests of several modules.

use longhaul_wire::{MacAddr, Path};

/// Addresses of the frames from one host to another.
pub(crate) fn route(ips: [&str; 2], vlan: Option<u16>) -> Path {
    let [source_ip, destination_ip] = ips.map(|ip| ip.parse().unwrap());
    Path {
        source_mac: MacAddr([2, 0, 0, 0, 0, 1]),
        destination_mac: MacAddr([2, 0, 0, 0, 0, 2]),
        vlan,
        source_ip,
        destination_ip,
        traffic_class: 0,
        hop_limit: 64,
        flow_label: 0,
        udp_source_port: 0xc123,
    }
}
