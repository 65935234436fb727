//! Keys of streams.

use foldhash::fast::FixedState;
use longhaul_units::Qpn;
use longhaul_wire::{Packet, Path, Transport, address_bits};
use std::collections::HashMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Key of a stream; the frames of a stream are delivered in order.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct StreamKey {
    /// VLAN of the frames; 0 if untagged.
    pub vlan: u16,
    /// Source address.
    pub source: IpAddr,
    /// Destination address.
    pub destination: IpAddr,
    /// Destination QP: its requests and responses keep their order.
    pub qpn: Qpn,
}

/// Pacing of a frame's sender.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Clocking {
    /// Paced by its peer's responses: RC with its CNPs, and MADs.
    Acks,
    /// Unpaced: UC and UD.
    None,
}

/// A [`StreamKey`] as integers, for hashing.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) struct WireKey {
    source: u128,
    destination: u128,
    qpn_vlan: u64,
}

/// An address beyond the WAN.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) struct AddressKey {
    address: u128,
    vlan: u16,
}

impl WireKey {
    #[inline]
    pub(crate) fn of(key: &StreamKey) -> Self {
        WireKey {
            source: address_bits(key.source),
            destination: address_bits(key.destination),
            qpn_vlan: u64::from(key.qpn.get()) << 16 | u64::from(key.vlan),
        }
    }
}

impl StreamKey {
    /// Stream of a packet to be tunnelled, and the pacing of its sender. `None` if the packet
    /// passes through, as multicast does.
    #[inline]
    pub(crate) fn of(packet: &Packet<'_>) -> Option<(StreamKey, Clocking)> {
        let qpn = packet.dest_qp();
        let destination = packet.destination_ip();
        let clocking = match packet.opcode().transport() {
            // NICs send few CNPs, and the packets of one stream share a queue.
            Transport::Rc | Transport::Cnp => Clocking::Acks,
            Transport::Uc => Clocking::None,
            Transport::Ud if qpn == Qpn::GSI => Clocking::Acks,
            Transport::Ud if qpn.get() == 0 || is_multicast(destination) => return None,
            Transport::Ud => Clocking::None,
            Transport::Other => return None,
        };
        let vlan = vlan(packet.head(), packet.layout().ip)?;
        Some((StreamKey { vlan, source: packet.source_ip(), destination, qpn }, clocking))
    }
}

/// No single box serves these addresses.
fn is_multicast(address: IpAddr) -> bool {
    address.is_multicast() || address == IpAddr::V4(Ipv4Addr::BROADCAST)
}

/// VLAN of a frame whose IP header is at `ip`; 0 if untagged. `None`: two tags, or one of another
/// type.
#[inline]
fn vlan(head: &[u8], ip: usize) -> Option<u16> {
    match ip {
        14 => Some(0),
        18 if head[12..14] == [0x81, 0x00] => Some(u16::from_be_bytes([head[14] & 0xf, head[15]])),
        _ => None,
    }
}

impl AddressKey {
    pub(crate) fn new(address: IpAddr, vlan: u16) -> Self {
        AddressKey { address: address_bits(address), vlan }
    }

    pub(crate) fn address(&self) -> IpAddr {
        let address = Ipv6Addr::from_bits(self.address);
        address.to_ipv4_mapped().map_or(IpAddr::V6(address), IpAddr::V4)
    }

    /// Destination address of frames along `path`.
    pub(crate) fn destination(path: &Path) -> Self {
        AddressKey::new(path.destination_ip, path.vlan.unwrap_or_default() & 0xfff)
    }
}

pub(crate) type Map<K, V> = HashMap<K, V, FixedState>;

pub(crate) fn map<K, V>(seed: u64) -> Map<K, V> {
    HashMap::with_hasher(FixedState::with_seed(seed))
}
