//! Keys of flows and connections.

use foldhash::fast::FixedState;
use longhaul_units::Qpn;
use longhaul_wire::{Packet, address_bits};
use std::collections::HashMap;
use std::net::IpAddr;

/// Identifies a flow: its requester, responder and responder QP.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct FlowKey {
    /// Address of the requester, on the LAN side.
    pub requester: IpAddr,
    /// Address of the responder, beyond the WAN side.
    pub responder: IpAddr,
    /// The responder's QP: destination QP of every request.
    pub responder_qpn: Qpn,
    /// VLAN of all frames of the flow, in both directions; 0: none. The same address may belong to
    /// another host in each VLAN.
    pub vlan: u16,
}

/// VLAN of `packet`; 0: none.
///
/// `None` if answers to the packet cannot be built: it is behind two tags, or behind a tag that is
/// not 802.1Q.
#[inline]
pub(crate) fn vlan(packet: &Packet<'_>) -> Option<u16> {
    const UNTAGGED: usize = 14;
    const TAGGED: usize = 18;
    const TAG_TYPE: [u8; 2] = [0x81, 0x00];
    let head = packet.head();
    match packet.layout().ip {
        UNTAGGED => Some(0),
        TAGGED if head[12..14] == TAG_TYPE => {
            Some(u16::from_be_bytes([head[14], head[15]]) & 0xfff)
        }
        _ => None,
    }
}

/// Two addresses, their VLAN and a QPN, in a form that hashes and compares in a few instructions.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) struct WireKey {
    lan: u128,
    wan: u128,
    /// The VLAN above the QPN.
    number: u64,
}

impl WireKey {
    #[inline]
    fn new(lan: u128, wan: u128, vlan: u16, number: u32) -> Self {
        WireKey { lan, wan, number: u64::from(vlan) << 32 | u64::from(number) }
    }

    /// Key of a connection: initiator, target and the initiator's communication id.
    pub(crate) fn of_connection(
        initiator: IpAddr,
        target: IpAddr,
        vlan: u16,
        comm_id: u32,
    ) -> Self {
        WireKey::new(address_bits(initiator), address_bits(target), vlan, comm_id)
    }

    /// Key of a request from the LAN, with the responder's QPN.
    #[inline]
    pub(crate) fn of_lan_packet(packet: &Packet<'_>) -> Self {
        let vlan = vlan(packet).unwrap_or_default();
        WireKey::new(packet.source_bits(), packet.destination_bits(), vlan, packet.dest_qp().get())
    }

    /// Key of a packet from the WAN, with the requester's QPN.
    #[inline]
    pub(crate) fn of_wan_packet(packet: &Packet<'_>) -> Self {
        let vlan = vlan(packet).unwrap_or_default();
        WireKey::new(packet.destination_bits(), packet.source_bits(), vlan, packet.dest_qp().get())
    }

    /// Key of a packet from the WAN to an unknown requester: addresses only.
    pub(crate) fn of_wan_pair(packet: &Packet<'_>) -> Self {
        let vlan = vlan(packet).unwrap_or_default();
        WireKey::new(packet.destination_bits(), packet.source_bits(), vlan, 0)
    }
}

impl FlowKey {
    #[inline]
    pub(crate) fn wire(&self) -> WireKey {
        self.to_requester(self.responder_qpn)
    }

    /// Key of packets to the flow's requester.
    #[inline]
    pub(crate) fn to_requester(self, qpn: Qpn) -> WireKey {
        WireKey::new(
            address_bits(self.requester),
            address_bits(self.responder),
            self.vlan,
            qpn.get(),
        )
    }

    /// The same key with the requester's and the responder's address on another path.
    pub(crate) fn on_path(self, [requester, responder]: [IpAddr; 2]) -> FlowKey {
        FlowKey { requester, responder, ..self }
    }

    pub(crate) fn pair(&self) -> WireKey {
        self.to_requester(Qpn::default())
    }
}

pub(crate) type Map<K, V> = HashMap<K, V, FixedState>;

pub(crate) fn map<K, V>(seed: u64) -> Map<K, V> {
    HashMap::with_hasher(FixedState::with_seed(seed))
}
