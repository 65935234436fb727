//! Tracks the connection manager's messages: the connections whose protocol is read ahead for, and
//! their numbers.

use crate::Config;
use crate::command::Protocol;
use crate::initiator::Terms;
use crate::shared::{INNER, LAN};
use foldhash::fast::FixedState;
use longhaul_node::Side;
use longhaul_units::{Psn, Qpn};
use longhaul_wire::Packet;
use longhaul_wire::mad::{Mad, Message, RdmaCmHeader, Rep, Req, ServiceId, TransportService};
use std::collections::{HashMap, VecDeque};
use std::net::IpAddr;

pub(crate) type Map<K, V> = HashMap<K, V, FixedState>;

pub(crate) fn map<K, V>(seed: u64) -> Map<K, V> {
    HashMap::with_hasher(FixedState::with_seed(seed))
}

/// Key of packets between two addresses: a QPN or communication id at the receiver.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) struct Key {
    from: IpAddr,
    to: IpAddr,
    number: u32,
    vlan: u16,
}

impl Key {
    pub(crate) fn new(from: IpAddr, to: IpAddr, number: u32, vlan: u16) -> Self {
        Key { from, to, number, vlan }
    }

    /// Key of `packet`, by its destination QP. `None` behind two tags, or a tag that is not 802.1Q.
    #[inline]
    pub(crate) fn of(packet: &Packet<'_>) -> Option<Key> {
        let number = packet.dest_qp().get();
        Some(Key {
            from: packet.source_ip(),
            to: packet.destination_ip(),
            number,
            vlan: vlan(packet)?,
        })
    }
}

/// The VLAN of a frame; 0: none.
fn vlan(packet: &Packet<'_>) -> Option<u16> {
    let head = packet.head();
    match packet.layout().ip {
        14 => Some(0),
        18 if head[12..14] == [0x81, 0x00] => {
            Some(u16::from_be_bytes([head[14], head[15]]) & 0xfff)
        }
        _ => None,
    }
}

/// A connection that was requested and accepted.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Made {
    pub(crate) initiator: IpAddr,
    pub(crate) target: IpAddr,
    pub(crate) vlan: u16,
    pub(crate) terms: Terms,
    pub(crate) initiator_is_on_lan: bool,
}

impl Made {
    /// Keys of packets to the target, and to the initiator.
    pub(crate) fn keys(&self) -> [Key; 2] {
        [
            Key::new(self.initiator, self.target, self.terms.target_qpn.get(), self.vlan),
            Key::new(self.target, self.initiator, self.terms.initiator_qpn.get(), self.vlan),
        ]
    }
}

/// Result of a message of the connection manager.
#[derive(Clone, Copy, Debug)]
pub(crate) enum News {
    /// A connection begins that may be read ahead for.
    Begin(Made),
    /// A connection ends, or its QPs are reused: keys of packets to its target, and to its
    /// initiator.
    End([Key; 2]),
}

#[derive(Clone, Copy, Debug)]
struct Asked {
    side: Side,
    protocol: Protocol,
    qpn: Qpn,
    psn: Psn,
    mtu: u32,
    reads_max: u8,
    made: Option<[Key; 2]>,
}

/// Connections by initiator; a new one evicts the oldest.
pub(crate) struct Connections {
    asked: Map<Key, Asked>,
    order: VecDeque<Key>,
}

impl Connections {
    pub(crate) fn new(seed: u64) -> Self {
        Connections { asked: map(seed), order: VecDeque::new() }
    }

    /// Handles a packet for QP1 with a valid ICRC, received on `side`.
    pub(crate) fn handle(
        &mut self,
        config: &Config,
        side: Side,
        packet: &Packet<'_>,
        payload: &[u8],
    ) -> Option<News> {
        let mad = <&Mad>::try_from(payload).ok()?;
        let (_, message) = Message::read(mad).ok()?;
        let (source, destination, vlan) =
            (packet.source_ip(), packet.destination_ip(), vlan(packet)?);
        match message {
            Message::Req(req) => {
                let key = Key::new(source, destination, req.local_comm_id, vlan);
                self.note_req(config, side, key, &req);
                None
            }
            Message::Rep(rep) => {
                let key = Key::new(destination, source, rep.remote_comm_id, vlan);
                self.note_rep(side, key, &rep)
            }
            Message::Rej(rej) => {
                self.end(source, destination, vlan, [rej.local_comm_id, rej.remote_comm_id])
            }
            Message::Drep(drep) => {
                self.end(source, destination, vlan, [drep.local_comm_id, drep.remote_comm_id])
            }
            _ => None,
        }
    }

    fn note_req(&mut self, config: &Config, side: Side, key: Key, req: &Req<'_>) {
        let known = self.asked.get(&key);
        if known.is_some_and(|known| known.qpn == req.qpn && known.psn == req.starting_psn) {
            return;
        }
        let Some(protocol) = spoken(config, req) else {
            self.asked.remove(&key);
            return;
        };
        let Some(mtu) = mtu_bytes(req.path_mtu) else { return };
        if self.asked.len() >= config.connections_max as usize && !self.asked.contains_key(&key) {
            self.make_room();
        }
        let asked = Asked {
            side,
            protocol,
            qpn: req.qpn,
            psn: req.starting_psn,
            mtu,
            reads_max: req.responder_resources,
            made: None,
        };
        if self.asked.insert(key, asked).is_none() {
            self.order.push_back(key);
        }
        if self.order.len() > 2 * config.connections_max as usize {
            let asked = &self.asked;
            self.order.retain(|key| asked.contains_key(key));
        }
    }

    fn make_room(&mut self) {
        while let Some(oldest) = self.order.pop_front() {
            if self.asked.remove(&oldest).is_some() {
                return;
            }
        }
    }

    fn note_rep(&mut self, side: Side, key: Key, rep: &Rep<'_>) -> Option<News> {
        let asked = self.asked.get_mut(&key)?;
        let crosses = matches!((asked.side, side), (LAN, INNER) | (INNER, LAN));
        if !crosses || asked.made.is_some() {
            return None;
        }
        let made = Made {
            initiator: key.from,
            target: key.to,
            vlan: key.vlan,
            initiator_is_on_lan: asked.side == LAN,
            terms: Terms {
                protocol: asked.protocol,
                initiator_qpn: asked.qpn,
                target_qpn: rep.qpn,
                initiator_psn: rep.starting_psn,
                target_psn: asked.psn,
                mtu: asked.mtu,
                reads_max: usize::from(asked.reads_max.min(rep.initiator_depth)),
            },
        };
        asked.made = Some(made.keys());
        Some(News::Begin(made))
    }

    /// Ends the connection with its sender's and its receiver's id; either may be the initiator.
    fn end(
        &mut self,
        source: IpAddr,
        destination: IpAddr,
        vlan: u16,
        ids: [u32; 2],
    ) -> Option<News> {
        let keys = [
            Key::new(source, destination, ids[0], vlan),
            Key::new(destination, source, ids[1], vlan),
        ];
        let asked = keys.iter().find_map(|key| self.asked.remove(key))?;
        asked.made.map(News::End)
    }
}

/// The protocol of a connection request, by its port and private data.
fn spoken(config: &Config, req: &Req<'_>) -> Option<Protocol> {
    if req.transport != TransportService::Rc {
        return None;
    }
    let (space, port) = ServiceId::parts(req.service_id)?;
    let said = req.private_data.get(RdmaCmHeader::LEN..)?;
    RdmaCmHeader::read(req.private_data).filter(|_| space == ServiceId::TCP)?;
    let found =
        config.protocols.iter().find(|(protocol, at)| *at == port && protocol.is_spoken(said));
    found.map(|(protocol, _)| *protocol)
}

/// Bytes of an MTU code (1 to 5).
fn mtu_bytes(code: u8) -> Option<u32> {
    (1..=5).contains(&code).then(|| 128 << code)
}
