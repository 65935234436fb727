use foldhash::fast::FixedState;
use longhaul_units::Qpn;
use longhaul_wire::Packet;
use std::collections::HashMap;
use std::net::IpAddr;

/// Names a flow: who asks, and which QP answers.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct FlowKey {
    /// Address of the requester, on the LAN side.
    pub requester: IpAddr,
    /// Address of the responder, beyond the WAN side.
    pub responder: IpAddr,
    /// The responder's QP: destination QP of every request.
    pub responder_qpn: Qpn,
}

/// Two addresses and a QPN in a form that hashes and compares in a few instructions.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) struct WireKey {
    lan: u128,
    wan: u128,
    qpn: u32,
}

impl WireKey {
    #[inline]
    pub(crate) fn new(lan: IpAddr, wan: IpAddr, qpn: Qpn) -> Self {
        WireKey { lan: address_bits(lan), wan: address_bits(wan), qpn: qpn.get() }
    }

    /// Key of a connection: who asked for it, whom, and the asker's communication id.
    pub(crate) fn of_connection(initiator: IpAddr, target: IpAddr, comm_id: u32) -> Self {
        WireKey { lan: address_bits(initiator), wan: address_bits(target), qpn: comm_id }
    }

    /// Key of a request from the LAN: responder's QPN.
    #[inline]
    pub(crate) fn of_lan_packet(packet: &Packet<'_>) -> Self {
        WireKey::new(packet.source_ip(), packet.destination_ip(), packet.dest_qp())
    }

    /// Key of a packet from the WAN: requester's QPN.
    #[inline]
    pub(crate) fn of_wan_packet(packet: &Packet<'_>) -> Self {
        WireKey::new(packet.destination_ip(), packet.source_ip(), packet.dest_qp())
    }
}

impl FlowKey {
    pub(crate) fn wire(&self) -> WireKey {
        WireKey::new(self.requester, self.responder, self.responder_qpn)
    }

    pub(crate) fn pair(&self) -> WireKey {
        WireKey::new(self.requester, self.responder, Qpn::default())
    }
}

/// IPv4 as an IPv4-mapped IPv6 address, so that the two families cannot meet.
#[inline]
fn address_bits(address: IpAddr) -> u128 {
    match address {
        IpAddr::V4(a) => 0xffff_0000_0000 | u128::from(a.to_bits()),
        IpAddr::V6(a) => a.to_bits(),
    }
}

pub(crate) type Map<K, V> = HashMap<K, V, FixedState>;

pub(crate) fn map<K, V>(seed: u64) -> Map<K, V> {
    HashMap::with_hasher(FixedState::with_seed(seed))
}
