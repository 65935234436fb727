//! Configuration of the RNIC, from how the process attaches.

use crate::attach::{Attach, Line};
use crate::groups::takes_groups;
use crate::segment::segment_of;
use crate::slot::Slot;
use longhaul_cc::dcqcn::Dcqcn;
use longhaul_eswitch::COMM_ID_SLOT_SHIFT;
use longhaul_rnic::{Config, Mtu};
use longhaul_udp::{UdpConfig, obtainable_receive_buffer, window_packets};
use longhaul_units::{BitRate, Duration, Rng, SplitMix64};
use longhaul_wire::ROCEV2_PORT;

/// Time that a process may wait to be scheduled without a loss of port rate.
const TURN_WAIT: Duration = Duration::from_ms(2);
/// Line rate that congestion control assumes for an unpaced port.
const RATE_PRESUMED: BitRate = match BitRate::from_gbps(100) {
    Some(rate) => rate,
    None => unreachable!(),
};

/// Configuration of the connection manager. It retransmits earlier than kernels do, because the
/// longest path has a round trip of 0.2 s. The slot distinguishes it from the host's other
/// processes. It refuses requests for services without a listener; the host collects the refusals
/// of all its processes.
fn connection_manager(
    attach: &Attach,
    slot: &Slot,
    path_mtu_max: Mtu,
    seed: u64,
) -> longhaul_cm::Config {
    longhaul_cm::Config {
        ca_guid: attach.guid(),
        response_timeout_code: 17,
        packet_lifetime_code: 16,
        retries_max: 7,
        path_mtu_code_max: path_mtu_max.code(),
        comm_id_prefix: slot.number(),
        comm_id_prefix_bits: (u32::BITS - COMM_ID_SLOT_SHIFT) as u8,
        seed,
        ..longhaul_cm::Config::default()
    }
}

/// Configuration of the RNIC of a device that attaches to `slot` as `attach` says.
pub(super) fn rnic_config(attach: &Attach, slot: &Slot) -> Config {
    let path_mtu_max = Mtu::from_code(attach.path_mtu.ilog2() as u8 - 7).unwrap_or(Mtu::B4096);
    let seed = u64::from(std::process::id()) ^ longhaul_seed();
    let qpns = slot.qpns();
    // Peers that still hold connections of an earlier process must not mistake this one for it.
    let skipped_qpns = (SplitMix64::new(seed).next_u64() % (qpns.len() as u64 / 2)) as u32;
    let defaults = Config::new(attach.mac, attach.addresses);
    Config {
        window_packets: udp_window(attach, path_mtu_max).unwrap_or(defaults.window_packets),
        path_mtu_max,
        port_rate: attach.rate,
        // Bytes that the port could have sent while this process waited to be scheduled.
        port_burst_bytes: attach.rate.map_or(0, |rate| rate.bytes_in(TURN_WAIT)),
        qpn_first: qpns.start + skipped_qpns,
        qpn_count: qpns.len() as u32 - skipped_qpns,
        rd_atomic_max: attach.read_depth,
        multicast_group_max: if takes_groups(attach) { defaults.multicast_group_max } else { 0 },
        seed,
        cm: connection_manager(attach, slot, path_mtu_max, seed),
        dcqcn: attach
            .dcqcn
            .then(|| Dcqcn::nvidia(attach.rate.unwrap_or(RATE_PRESUMED)).ok())
            .flatten(),
        segment: segment_of(attach),
        // A socket sends from the port to which it is bound.
        udp_source_port: matches!(attach.line, Line::Udp { .. }).then_some(ROCEV2_PORT),
        ..defaults
    }
}

/// Maximum number of packets that a queue pair may have in flight over sockets: the capacity of
/// this side's receive buffer, which the peer's is assumed to equal; `None` for other lines. A full
/// buffer drops packets, hundreds at a time.
fn udp_window(attach: &Attach, path_mtu_max: Mtu) -> Option<u32> {
    let Line::Udp { .. } = attach.line else { return None };
    let wanted = UdpConfig::new(&attach.host, attach.ip_addr()).receive_buffer_bytes;
    let granted = obtainable_receive_buffer(wanted).ok()?;
    Some(window_packets(granted, path_mtu_max.bytes() as usize))
}

/// A seed that differs between runs, so that PSNs and communication ids do not repeat.
fn longhaul_seed() -> u64 {
    std::time::SystemTime::now()
        .duration_since(std::time::UNIX_EPOCH)
        .map_or(0, |since| since.as_nanos() as u64)
}
