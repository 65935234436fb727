//! Tracks connections from the connection manager's messages in both directions: their QPNs and
//! PSNs, and their end.

use crate::FlowKey;
use crate::Learnt;
use crate::accelerator::LAN;
use crate::ece::EceFate;
use crate::flow::{Beginning, dscp};
use crate::key::{Map, WireKey, map, vlan};
use longhaul_node::Side;
use longhaul_units::{Psn, Qpn};
use longhaul_wire::Packet;
use longhaul_wire::mad::{Mad, Message, Opaque, Rep, Req, ReqPath, TransportService, ip_of_gid};
use std::net::IpAddr;

/// Failover status of a REP that accepts the alternate path.
const FAILOVER_ACCEPTED: u8 = 0;
/// Offsets in a LAP of the alternate GIDs of its sender and of its receiver, behind the ids.
const LAP_GIDS: [usize; 2] = [16, 32];

/// Action of the accelerator on a message of the connection manager. The message is forwarded
/// unless it is held.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Action {
    /// Nothing.
    Pass,
    /// A connection is being established: its flow begins with these numbers.
    Begin(FlowKey, Beginning),
    /// The LAN side disconnects: the message waits until this flow's store is delivered.
    Hold(FlowKey),
    /// The connection is to get the alternate path that `Beginning` holds.
    Alternate(FlowKey, Beginning),
    /// The connection is over.
    End(FlowKey, Beginning),
}

#[derive(Clone, Copy, Debug)]
struct Connection {
    /// Position in the ring of all connections.
    place: usize,
    initiator_on_lan: bool,
    qpn: Qpn,
    /// First PSN of the target's requests.
    psn: Psn,
    path_mtu: Option<u32>,
    /// The initiator's and the target's address on the alternate path.
    alternate: Option<[IpAddr; 2]>,
    migreq: bool,
    ece: EceFate,
    /// The target's answer, and the resulting flow.
    answered: Option<(Qpn, Psn, FlowKey, Beginning)>,
}

/// Connections by initiator; a new one evicts the oldest.
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

    /// Handles a packet for QP1 with a valid ICRC, received on `side`.
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
                    .map_or(Action::Pass, |(_, _, flow, _)| Action::Hold(flow))
            }
            Message::Drep(drep) => self
                .remove(packet, drep.local_comm_id, drep.remote_comm_id)
                .and_then(|connection| connection.answered)
                .map_or(Action::Pass, |(_, _, flow, beginning)| Action::End(flow, beginning)),
            Message::Lap(lap) => self.note_lap(side, packet, &lap),
            _ => Action::Pass,
        }
    }

    /// What becomes of the ECE of the connection that a REQ or REP belongs to, if it is known.
    pub(crate) fn ece_of(
        &mut self,
        packet: &Packet<'_>,
        message: &Message<'_>,
    ) -> Option<&mut EceFate> {
        let (source, destination) = (packet.source_ip(), packet.destination_ip());
        let vlan = vlan(packet).unwrap_or_default();
        let key = match message {
            Message::Req(req) => {
                WireKey::of_connection(source, destination, vlan, req.local_comm_id)
            }
            Message::Rep(rep) => {
                WireKey::of_connection(destination, source, vlan, rep.remote_comm_id)
            }
            _ => return None,
        };
        self.known.get_mut(&key).map(|connection| &mut connection.ece)
    }

    fn note_req(&mut self, side: Side, packet: &Packet<'_>, key: WireKey, req: &Req<'_>) {
        if req.transport != TransportService::Rc {
            return;
        }
        if self
            .known
            .get(&key)
            .is_some_and(|known| known.qpn == req.qpn && known.psn == req.starting_psn)
        {
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
            alternate: alternate(&req.alternate),
            migreq: packet.bth().migreq,
            ece: EceFate::Open,
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
            // An answer from the side that asked: no flow crosses this box.
            return Action::Pass;
        }
        let repeated = |(qpn, psn, ..): (Qpn, Psn, _, _)| qpn == rep.qpn && psn == rep.starting_psn;
        if connection.answered.is_some_and(repeated) {
            return Action::Pass;
        }
        let (initiator, target) = (packet.destination_ip(), packet.source_ip());
        let (requester, responder, requester_qpn, responder_qpn, psn, migreq) =
            if connection.initiator_on_lan {
                (initiator, target, connection.qpn, rep.qpn, rep.starting_psn, packet.bth().migreq)
            } else {
                (target, initiator, rep.qpn, connection.qpn, connection.psn, connection.migreq)
            };
        let flow =
            FlowKey { requester, responder, responder_qpn, vlan: vlan(packet).unwrap_or_default() };
        let alternate = connection.alternate.filter(|_| rep.failover_accepted == FAILOVER_ACCEPTED);
        let in_order = |[initiator, target]: [IpAddr; 2]| match connection.initiator_on_lan {
            true => [initiator, target],
            false => [target, initiator],
        };
        let beginning = Beginning {
            learnt: Learnt::ConnectionManager,
            requester_qpn: Some(requester_qpn),
            psn,
            path_mtu: connection.path_mtu,
            alternate: alternate.map(in_order),
            migreq,
            dscp: dscp(packet),
        };
        connection.answered = Some((rep.qpn, rep.starting_psn, flow, beginning));
        Action::Begin(flow, beginning)
    }

    /// Handles a LAP: an established connection is to get an alternate path.
    fn note_lap(&mut self, side: Side, packet: &Packet<'_>, lap: &Opaque<'_>) -> Action {
        let key = self.find(packet, lap.local_comm_id, lap.remote_comm_id);
        let known = key.and_then(|key| self.known.get_mut(&key)?.answered.as_mut());
        let Some((_, _, flow, beginning)) = known else { return Action::Pass };
        let [sender, receiver] = LAP_GIDS.map(|at| {
            let gid = lap.rest.get(at..).and_then(|rest| rest.first_chunk());
            gid.map_or(IpAddr::from([0; 4]), |gid| ip_of_gid(*gid))
        });
        let alternate = Some(if side == LAN { [sender, receiver] } else { [receiver, sender] });
        if beginning.alternate == alternate {
            return Action::Pass;
        }
        beginning.alternate = alternate;
        Action::Alternate(*flow, *beginning)
    }

    /// Returns the connection with its sender's and its receiver's id; either may be the initiator.
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

/// True for a REP.
pub(crate) fn is_rep(payload: &[u8]) -> bool {
    let message = <&Mad>::try_from(payload).ok().and_then(|mad| Message::read(mad).ok());
    matches!(message, Some((_, Message::Rep(_))))
}

/// Returns the sender's and the receiver's address on an alternate path, `None` if there is none.
fn alternate(path: &ReqPath) -> Option<[IpAddr; 2]> {
    let is_none = path.local_lid == 0
        && path.remote_lid == 0
        && path.local_gid == [0; 16]
        && path.remote_gid == [0; 16];
    (!is_none).then(|| [path.local_gid, path.remote_gid].map(ip_of_gid))
}

/// Bytes of an MTU code (1 to 5).
fn mtu_bytes(code: u8) -> Option<u32> {
    (1..=5).contains(&code).then(|| 128 << code)
}
