//! Clears what NICs offer each other by enhanced connection establishment (ECE).
//!
//! A box repairs gaps by go-back-N and expects PSNs in order. Where a REQ offers vendor features,
//! such as selective repeat, the box clears the offer, and the answer in the REP: both NICs then
//! agree on the plain transport, as with a NIC of another vendor.

use crate::accelerator::{Accelerator, LAN};
use crate::config::EceMode;
use crate::flow::dscp;
use crate::key::vlan;
use crate::policy::Duty;
use crate::shared::AccelShared;
use crate::{Advice, FlowKey};
use longhaul_node::{Frame, Payload, Side, Trailer};
use longhaul_units::Qpn;
use longhaul_wire::mad::{Attribute, Ece, Mad, Message};
use longhaul_wire::{HEAD_MAX, Head, Packet, Udp};

/// A REQ or a REP without ECE, to forward in place of the received one.
pub(crate) struct Plain {
    head: Head,
    mad: Mad,
}

impl Plain {
    /// `None` if the frame must stay as it is: a UDP checksum would become wrong, and over IPv6 a
    /// receiver may require one. Over IPv4 it is left out.
    fn of(
        frame: &Frame<'_>,
        packet: &Packet<'_>,
        mut mad: Mad,
        attribute: Attribute,
    ) -> Option<Self> {
        let udp = Udp::from(packet.layout());
        let mut bytes = [0; HEAD_MAX];
        let head = bytes.get_mut(..frame.head.len())?;
        head.copy_from_slice(frame.head);
        if udp.checksum(head) != 0 {
            if packet.source_ip().is_ipv6() {
                return None;
            }
            udp.set_checksum(head, 0);
        }
        Ece::NONE.write(&mut mad, attribute);
        Some(Plain { head: Head::copy_of(head), mad })
    }

    pub(crate) fn frame(&self) -> Frame<'_> {
        Frame {
            head: self.head.bytes(),
            payload: Payload::Bytes(&self.mad),
            trailer: Trailer::Sealed { pad_len: 0 },
        }
    }
}

/// What becomes of the ECE of a connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) enum EceFate {
    /// No REQ with ECE has come.
    #[default]
    Open,
    /// The box clears it in each message.
    Cleared,
    /// It passes.
    Left,
}

impl Accelerator {
    /// Returns `frame`, a message of the connection manager with this payload, without ECE; `None`
    /// if it stays as it is.
    ///
    /// The first REQ of a connection with ECE decides; its repetitions and the REP follow, so that
    /// both ends always agree.
    pub(crate) fn without_ece(
        &mut self,
        side: Side,
        frame: &Frame<'_>,
        packet: &Packet<'_>,
        payload: &[u8],
    ) -> Option<Plain> {
        let mad = <&Mad>::try_from(payload).ok()?;
        let (_, message) = Message::read(mad).ok()?;
        let attribute = message.attribute();
        Ece::read(mad, attribute).filter(|ece| *ece != Ece::NONE)?;
        let fate = self.connections.ece_of(packet, &message)?;
        if *fate == EceFate::Cleared {
            return Plain::of(frame, packet, *mad, attribute);
        }
        let Message::Req(req) = message else { return None };
        if *fate == EceFate::Left {
            return None;
        }
        let key = key_of_requests(side, packet, req.qpn);
        let may_clear = may_clear(&self.shared, &key, packet);
        let plain = may_clear.then(|| Plain::of(frame, packet, *mad, attribute)).flatten();
        *fate = if plain.is_some() { EceFate::Cleared } else { EceFate::Left };
        if plain.is_some() {
            self.shared.counters.ece_cleared += 1;
            self.shared.give(Advice::EceCleared, &key);
        }
        plain
    }
}

/// True if the box is to clear the ECE of the connection whose requests from the LAN have `key`:
/// also while it drains, because it or its successor may accelerate the connection later.
fn may_clear(shared: &AccelShared, key: &FlowKey, packet: &Packet<'_>) -> bool {
    let config = &shared.config;
    let mode = config.policy.mode_of(key, dscp(packet));
    config.ece == EceMode::Clear && mode.duty(config.role) != Duty::Pass
}

/// Key of the requests from the LAN of the connection that a REQ on `side` asks for. The QPN of a
/// target, which has not answered yet, is 0: rules of the policy by QPN then do not apply.
fn key_of_requests(side: Side, packet: &Packet<'_>, initiator: Qpn) -> FlowKey {
    let (source, destination) = (packet.source_ip(), packet.destination_ip());
    let (requester, responder, responder_qpn) = match side {
        LAN => (source, destination, Qpn::default()),
        _ => (destination, source, initiator),
    };
    FlowKey { requester, responder, responder_qpn, vlan: vlan(packet).unwrap_or_default() }
}
