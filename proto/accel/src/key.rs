//! Keys by which flows and connections are found.

use foldhash::fast::FixedState;
use longhaul_units::Qpn;
use longhaul_wire::{Packet, address_bits};
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
    /// VLAN that all frames of the flow are in, both ways; 0: none. Addresses may mean others in
    /// each.
    pub vlan: u16,
}

/// The VLAN that `packet` is in; 0: none.
///
/// `None` for a packet that answers cannot be built for: behind two tags, or a tag that is not of
/// 802.1Q.
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

/// Two addresses, their VLAN and a QPN in a form that hashes and compares in a few instructions.
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

    /// Key of a connection: who asked for it, whom, and the asker's communication id.
    pub(crate) fn of_connection(
        initiator: IpAddr,
        target: IpAddr,
        vlan: u16,
        comm_id: u32,
    ) -> Self {
        WireKey::new(address_bits(initiator), address_bits(target), vlan, comm_id)
    }

    /// Key of a request from the LAN: responder's QPN.
    #[inline]
    pub(crate) fn of_lan_packet(packet: &Packet<'_>) -> Self {
        let vlan = vlan(packet).unwrap_or_default();
        WireKey::new(packet.source_bits(), packet.destination_bits(), vlan, packet.dest_qp().get())
    }

    /// Key of a packet from the WAN: requester's QPN.
    #[inline]
    pub(crate) fn of_wan_packet(packet: &Packet<'_>) -> Self {
        let vlan = vlan(packet).unwrap_or_default();
        WireKey::new(packet.destination_bits(), packet.source_bits(), vlan, packet.dest_qp().get())
    }

    /// Key of a packet from the WAN whose requester is not known: addresses alone.
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

    /// Key of what goes to the flow's requester.
    #[inline]
    pub(crate) fn to_requester(self, qpn: Qpn) -> WireKey {
        WireKey::new(
            address_bits(self.requester),
            address_bits(self.responder),
            self.vlan,
            qpn.get(),
        )
    }

    /// The same between the requester's and the responder's address on another path.
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
