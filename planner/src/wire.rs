//! Bytes on the wire.
//!
//! Sizes are those of IBTA volume 1 (BTH 9.2, RETH 9.3.3, AETH 9.3.5, AtomicETH 9.3.6, AtomicAckETH
//! 9.3.7, ICRC 7.8), annex A17 (RoCEv2) and IEEE 802.3 (preamble, FCS, gap).

use crate::nic::NicProfile;
use crate::path::Path;
use crate::workload::Op;
use serde::Serialize;

/// Path MTUs of RDMA, in payload bytes.
pub const MTUS: [u32; 5] = [256, 512, 1024, 2048, 4096];

/// Ethernet 14, IPv4 20, UDP 8, BTH 12.
const HEAD: f64 = 54.0;
/// ICRC 4, FCS 4, preamble and start delimiter 8, gap between frames 12.
const TAIL: f64 = 28.0;
const RETH: f64 = 16.0;
const AETH: f64 = 4.0;
const ATOMIC_ETH: f64 = 28.0;
const ATOMIC_ACK_ETH: f64 = 8.0;

/// Headers that Linux keeps free between an interface's MTU and RDMA's: GRH 40, UDP 8, BTH 12, XRC
/// 4, AtomicETH 28, ICRC 4 (`iboe_get_mtu` in include/rdma/ib_addr.h).
const RESERVED: u32 = 96;

/// The largest path MTU of RDMA that an interface's MTU allows; `None` below 352 bytes.
pub fn roce_mtu(interface_mtu: u32) -> Option<u32> {
    let room = interface_mtu.checked_sub(RESERVED)?;
    MTUS.into_iter().rev().find(|&mtu| mtu <= room)
}

/// The smallest interface MTU for a path MTU of RDMA, rounded up as is customary: 4200 for 4096.
pub fn interface_mtu(mtu: u32) -> u32 {
    (mtu + RESERVED).next_multiple_of(100)
}

/// Bytes of one message on the wire, and the time for which it occupies the port.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Message {
    /// Packets that carry its payload.
    pub packets: f64,
    /// Bytes on the wire in the direction of the payload.
    pub wire_bytes: f64,
    /// Bytes on the wire in the other direction: the acknowledgement, or the request of a READ or
    /// atomic.
    pub reverse_bytes: f64,
    /// Time on the bottleneck in ns, in the busier direction.
    pub wire_ns: f64,
    /// Time on the port in ns: the largest of [`Message::wire_ns`] and the NIC's costs for its
    /// packets and for a message.
    pub busy_ns: f64,
}

impl Message {
    /// A message of `size` bytes by `op`.
    pub fn new(path: &Path, nic: &NicProfile, op: Op, size: u64) -> Self {
        let size = size as f64;
        let packets = (size / f64::from(path.mtu)).ceil().max(1.0);
        let head = HEAD + if path.ipv6 { 20.0 } else { 0.0 } + if path.vlan { 4.0 } else { 0.0 };
        let padded = (size / 4.0).ceil() * 4.0;
        let empty = head + TAIL;
        let response_ends = if packets > 1.0 { 2.0 } else { 1.0 };
        let (extended, reverse_bytes) = match op {
            Op::Write => (RETH, empty + AETH),
            Op::Send => (0.0, empty + AETH),
            Op::Read => (response_ends * AETH, empty + RETH),
            Op::Atomic => (AETH + ATOMIC_ACK_ETH, empty + ATOMIC_ETH),
        };
        let wire_bytes = padded + packets * empty + extended;
        let wire_ns = wire_bytes.max(reverse_bytes) * 8e9 / rate_bps(path, nic);
        let busy_ns = wire_ns.max(packets * nic.packet_ns as f64).max(nic.message_ns as f64);
        Message { packets, wire_bytes, reverse_bytes, wire_ns, busy_ns }
    }
}

/// Rate of the slower of path and port.
pub(crate) fn rate_bps(path: &Path, nic: &NicProfile) -> f64 {
    path.rate_bps.min(nic.rate_bps as f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes(op: Op, size: u64) -> (f64, f64) {
        let message = Message::new(&Path::of_km(0.0, 1e11), &NicProfile::ideal(), op, size);
        (message.wire_bytes, message.reverse_bytes)
    }

    #[test]
    fn a_packet_of_4096_bytes_takes_4178_on_the_wire_without_an_extended_header() {
        // "Total frame size" of NTT's example.
        assert_eq!(bytes(Op::Send, 4096), (4178.0, 86.0));
        assert_eq!(bytes(Op::Write, 4096), (4194.0, 86.0));
        assert_eq!(bytes(Op::Read, 4096), (4182.0, 98.0));
        assert_eq!(bytes(Op::Read, 8192), (2.0 * 4182.0, 98.0));
        assert_eq!(bytes(Op::Atomic, 8), (102.0, 110.0));
        assert_eq!(bytes(Op::Send, 1).0, 86.0);
    }

    #[test]
    fn published_efficiencies_count_frames_without_fcs_and_gaps() {
        // Thesis, 2.4: 4096/(4096+78) with RETH and immediate, 4096/(4096+58) in the middle of a
        // message.
        let frame = 4096.0 + HEAD + 4.0;
        assert_eq!((4096.0 / frame * 1000.0).round(), 986.0);
        assert_eq!((4096.0 / (frame + RETH + 4.0) * 1000.0).round(), 981.0);
    }

    #[test]
    fn interface_mtus_are_those_of_the_reports() {
        assert_eq!(interface_mtu(4096), 4200);
        for (interface, roce) in
            [(1500, 1024), (4200, 4096), (4191, 2048), (9000, 4096), (576, 256)]
        {
            assert_eq!(roce_mtu(interface), Some(roce), "{interface}");
        }
        assert_eq!(roce_mtu(351), None);
        assert_eq!(roce_mtu(20), None);
    }

    #[test]
    fn ipv6_and_vlan_take_20_and_4_bytes_per_packet() {
        let path = Path { ipv6: true, vlan: true, ..Path::of_km(0.0, 1e11) };
        let message = Message::new(&path, &NicProfile::ideal(), Op::Send, 8192);
        assert_eq!(message.wire_bytes, 2.0 * (4178.0 + 24.0));
    }
}
