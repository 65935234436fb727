//! Watches the connection manager's messages in both directions: who connects with which QPNs and PSNs, and when a
//! connection ends.

use crate::FlowKey;
use crate::Learnt;
use crate::accelerator::LAN;
use crate::flow::{Beginning, dscp};
use crate::key::{Map, WireKey, map, vlan};
use longhaul_node::Side;
use longhaul_units::{Psn, Qpn};
use longhaul_wire::Packet;
use longhaul_wire::mad::{Mad, Message, Rep, Req, TransportService};

/// What a message of the connection manager asks of the accelerator. The message itself is passed on, unless held.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Action {
    /// Nothing.
    Pass,
    /// A connection is being established: its flow starts from these numbers.
    Begin(FlowKey, Beginning),
    /// The LAN side disconnects: the message waits until this flow's store is delivered.
    Hold(FlowKey),
    /// The connection is over.
    End(FlowKey),
}

#[derive(Clone, Copy, Debug)]
struct Connection {
    /// Place in the ring of all connections.
    place: usize,
    initiator_on_lan: bool,
    qpn: Qpn,
    /// First PSN that the target is to send.
    psn: Psn,
    path_mtu: Option<u32>,
    migreq: bool,
    /// The target's answer, and the flow that follows from both.
    answered: Option<(Qpn, Psn, FlowKey)>,
}

/// Connections by who asked; the oldest make room for new ones.
pub(crate) struct Connections {
    known: Map<WireKey, Connection>,
    ring: Vec<Option<WireKey>>,
    next: usize,
    max: usize,
}

impl Connections {
    pub(crate) fn new(max: u32, seed: u64) -> Self {
        Connections { known: map(seed ^ 3), ring: Vec::new(), next: 0, max: max as usize }
    }

    /// A packet for QP1 with a right ICRC came in by `side`.
    pub(crate) fn handle(&mut self, side: Side, packet: &Packet<'_>, payload: &[u8]) -> Action {
        let Ok(mad) = <&Mad>::try_from(payload) else { return Action::Pass };
        let Ok((_, message)) = Message::read(mad) else { return Action::Pass };
        let (source, destination) = (packet.source_ip(), packet.destination_ip());
        let vlan = vlan(packet).unwrap_or_default();
        match message {
            Message::Req(req) => {
                let key = WireKey::of_connection(source, destination, vlan, req.local_comm_id);
                self.note_req(side, packet, key, &req);
                Action::Pass
            }
            Message::Rep(rep) => {
                let key = WireKey::of_connection(destination, source, vlan, rep.remote_comm_id);
                self.note_rep(side, packet, key, &rep)
            }
            Message::Rej(rej) => {
                self.remove(packet, rej.local_comm_id, rej.remote_comm_id);
                Action::Pass
            }
            Message::Dreq(dreq) if side == LAN => {
                let key = self.find(packet, dreq.local_comm_id, dreq.remote_comm_id);
                key.and_then(|key| self.known.get(&key)?.answered)
                    .map_or(Action::Pass, |(_, _, flow)| Action::Hold(flow))
            }
            Message::Drep(drep) => self
                .remove(packet, drep.local_comm_id, drep.remote_comm_id)
                .and_then(|connection| connection.answered)
                .map_or(Action::Pass, |(_, _, flow)| Action::End(flow)),
            _ => Action::Pass,
        }
    }

    fn note_req(&mut self, side: Side, packet: &Packet<'_>, key: WireKey, req: &Req<'_>) {
        if req.transport != TransportService::Rc {
            return;
        }
        if self.known.get(&key).is_some_and(|known| known.qpn == req.qpn && known.psn == req.starting_psn) {
            return;
        }
        let place = match self.known.get(&key) {
            Some(known) => known.place,
            None => self.take_place(key),
        };
        let connection = Connection {
            place,
            initiator_on_lan: side == LAN,
            qpn: req.qpn,
            psn: req.starting_psn,
            path_mtu: mtu_bytes(req.path_mtu),
            migreq: packet.bth().migreq,
            answered: None,
        };
        self.known.insert(key, connection);
    }

    fn take_place(&mut self, key: WireKey) -> usize {
        if self.ring.len() < self.max {
            self.ring.push(Some(key));
            return self.ring.len() - 1;
        }
        let place = self.next;
        self.next = (self.next + 1) % self.max;
        if let Some(oldest) = self.ring[place].replace(key) {
            self.known.remove(&oldest);
        }
        place
    }

    fn note_rep(&mut self, side: Side, packet: &Packet<'_>, key: WireKey, rep: &Rep<'_>) -> Action {
        let Some(connection) = self.known.get_mut(&key) else { return Action::Pass };
        if connection.initiator_on_lan == (side == LAN) {
            // An answer from the side that asked: no flow crosses here.
            return Action::Pass;
        }
        let repeated = |(qpn, psn, _)| qpn == rep.qpn && psn == rep.starting_psn;
        if connection.answered.is_some_and(repeated) {
            return Action::Pass;
        }
        let (initiator, target) = (packet.destination_ip(), packet.source_ip());
        let (requester, responder, requester_qpn, responder_qpn, psn, migreq) = if connection.initiator_on_lan
        {
            (initiator, target, connection.qpn, rep.qpn, rep.starting_psn, packet.bth().migreq)
        } else {
            (target, initiator, rep.qpn, connection.qpn, connection.psn, connection.migreq)
        };
        let flow = FlowKey { requester, responder, responder_qpn, vlan: vlan(packet).unwrap_or_default() };
        connection.answered = Some((rep.qpn, rep.starting_psn, flow));
        let beginning = Beginning {
            learnt: Learnt::ConnectionManager,
            requester_qpn: Some(requester_qpn),
            psn,
            path_mtu: connection.path_mtu,
            migreq,
            dscp: dscp(packet),
        };
        Action::Begin(flow, beginning)
    }

    /// The connection that a message names by its sender's and its receiver's id; either may have asked for it.
    fn find(&self, packet: &Packet<'_>, local_id: u32, remote_id: u32) -> Option<WireKey> {
        let (source, destination) = (packet.source_ip(), packet.destination_ip());
        let vlan = vlan(packet).unwrap_or_default();
        [
            WireKey::of_connection(source, destination, vlan, local_id),
            WireKey::of_connection(destination, source, vlan, remote_id),
        ]
        .into_iter()
        .find(|key| self.known.contains_key(key))
    }

    fn remove(&mut self, packet: &Packet<'_>, local_id: u32, remote_id: u32) -> Option<Connection> {
        let key = self.find(packet, local_id, remote_id)?;
        let connection = self.known.remove(&key)?;
        if let Some(place) = self.ring.get_mut(connection.place) {
            *place = None;
        }
        Some(connection)
    }
}

/// Bytes of an MTU code, 1 to 5.
fn mtu_bytes(code: u8) -> Option<u32> {
    (1..=5).contains(&code).then(|| 128 << code)
}
