//! All flows of a capture: packets to one queue pair from one address are a half, two halves a
//! connection.
//!
//! A half tracks the requests in its direction; the responses in its direction belong to the other
//! half's requests.

use crate::connections::{Agreed, Connected};
use crate::frame::{Icrc, RocePacket};
use crate::report::Pairing;
use crate::requests::{Request, Requests, Response};
use crate::window::Budget;
use foldhash::fast::FixedState;
use longhaul_units::Qpn;
use longhaul_wire::{Ecn, Opcode, Transport};
use std::collections::HashMap;
use std::net::IpAddr;

/// Maximum candidate halves for a response.
const CANDIDATES_MAX: usize = 256;

/// Packets from one address to one queue pair.
#[derive(Clone, Debug)]
pub(crate) struct Half {
    pub source: IpAddr,
    pub destination: IpAddr,
    pub destination_qpn: Qpn,
    pub transport: Transport,
    pub peer: Option<usize>,
    pub pairing: Pairing,
    pub agreed: Option<Agreed>,
    pub requests: Requests,
    pub packets: u64,
    /// Packets with congestion experienced: requests and responses.
    pub marked: (u64, u64),
    pub ecn_capable: u64,
    pub cnps: u64,
    pub wrong_icrc: u64,
    /// Packets with the MigReq bit, which hardware sets and kernel rxe does not.
    pub migreq: u64,
    /// Responses without a matching request.
    pub unmatched: u64,
    /// Responses matched this and other halves equally.
    pub has_rivals: bool,
    udp_source_port: u16,
    /// Halves to whose requests the responses on this half may belong; `None` before the first
    /// response.
    candidates: Option<Vec<usize>>,
    strangers: u64,
}

type Key = (IpAddr, IpAddr, Qpn);

/// All flows of a capture.
#[derive(Debug)]
pub(crate) struct Flows {
    pub halves: Vec<Half>,
    pub not_followed: u64,
    by_key: HashMap<Key, usize, FixedState>,
    by_path: HashMap<(IpAddr, IpAddr), Vec<usize>, FixedState>,
    last: (Option<Key>, usize),
    halves_max: usize,
    budget: Budget,
    /// The half to trace, and its trace until that half appears.
    pub traced: Option<(usize, Box<crate::trace::Trace>)>,
}

impl Flows {
    pub fn new(halves_max: usize, packets_max: usize, seed: u64) -> Self {
        Flows {
            halves: Vec::new(),
            not_followed: 0,
            by_key: HashMap::with_hasher(FixedState::with_seed(seed)),
            by_path: HashMap::with_hasher(FixedState::with_seed(seed)),
            last: (None, 0),
            halves_max,
            budget: Budget { left: packets_max },
            traced: None,
        }
    }

    fn create(&mut self, key: Key, transport: Transport) -> Option<usize> {
        if self.halves.len() == self.halves_max {
            self.not_followed += 1;
            return None;
        }
        let id = self.halves.len();
        let (source, destination, destination_qpn) = key;
        let mut requests = Requests::default();
        if let Some((_, trace)) = self.traced.take_if(|(traced, _)| *traced == id) {
            requests.trace = Some(trace);
        }
        self.halves.push(Half {
            source,
            destination,
            destination_qpn,
            transport,
            peer: None,
            pairing: Pairing::None,
            agreed: None,
            requests,
            packets: 0,
            marked: (0, 0),
            ecn_capable: 0,
            cnps: 0,
            wrong_icrc: 0,
            migreq: 0,
            unmatched: 0,
            has_rivals: false,
            udp_source_port: 0,
            candidates: None,
            strangers: 0,
        });
        self.by_key.insert(key, id);
        self.by_path.entry((source, destination)).or_default().push(id);
        self.last = (None, 0);
        Some(id)
    }

    fn find_or_create(&mut self, key: Key, transport: Transport) -> Option<usize> {
        if self.last.0 == Some(key) {
            return Some(self.last.1);
        }
        let id = match self.by_key.get(&key) {
            Some(&id) => id,
            None => self.create(key, transport)?,
        };
        self.last = (Some(key), id);
        Some(id)
    }

    /// Handles a new connection, which restarts its queue pairs.
    pub fn connected(&mut self, connected: &Connected) {
        let agreed = connected.agreed;
        let (active, passive) = (connected.active, connected.passive);
        let there = (active, passive, Qpn::new(agreed.passive_qpn));
        let back = (passive, active, Qpn::new(agreed.active_qpn));
        let known = |key: &Key| self.by_key.get(key).map(|&id| &self.halves[id]);
        if known(&there).is_some_and(|half| half.agreed == Some(agreed)) {
            return; // A repeated REP.
        }
        let (Some(a), Some(b)) =
            (self.create(there, Transport::Rc), self.create(back, Transport::Rc))
        else {
            return;
        };
        for (id, peer) in [(a, b), (b, a)] {
            let half = &mut self.halves[id];
            (half.peer, half.pairing, half.agreed) =
                (Some(peer), Pairing::ConnectionManager, Some(agreed));
            half.requests.messages.mtu = agreed.path_mtu;
        }
    }

    pub fn packet(&mut self, packet: &RocePacket<'_>, now_ns: u64, frame: u64, frame_len: u32) {
        let bth = &packet.bth;
        let opcode = bth.opcode;
        let key = (packet.source, packet.destination, bth.dest_qp);
        let Some(id) = self.find_or_create(key, opcode.transport()) else { return };
        let half = &mut self.halves[id];
        half.packets += 1;
        half.udp_source_port = packet.udp_source_port;
        half.migreq += u64::from(bth.migreq);
        half.wrong_icrc += u64::from(matches!(packet.icrc, Icrc::Wrong(_)));
        half.ecn_capable += u64::from(packet.ecn != Ecn::NotCapable);
        if packet.ecn == Ecn::Congested {
            let marked = if opcode.is_response() { &mut half.marked.1 } else { &mut half.marked.0 };
            *marked += 1;
        }
        if opcode == Opcode::CNP {
            half.cnps += 1;
            if let Some(peer) = half.peer {
                self.halves[peer].requests.notified(now_ns);
            }
            return;
        }
        if matches!(half.transport, Transport::Cnp | Transport::Other)
            || half.requests.counts.requests == 0
        {
            half.transport = opcode.transport();
        }
        if opcode.is_request() {
            let request = Request {
                now_ns,
                frame,
                opcode,
                psn: bth.psn,
                payload_len: packet.payload_len,
                frame_len,
                dma_len: packet.reth.map(|r| r.len),
            };
            let is_paired = half.peer.is_some();
            half.requests.request(&request, is_paired, &mut self.budget);
        } else if opcode.is_response() {
            let response = Response {
                now_ns,
                frame,
                opcode,
                psn: bth.psn,
                payload_len: packet.payload_len,
                frame_len,
                aeth: packet.aeth,
            };
            self.response(id, &response);
        }
    }

    fn response(&mut self, id: usize, response: &Response) {
        let Some(peer) = self.halves[id].peer.or_else(|| self.pair(id, response)) else {
            self.halves[id].unmatched += 1;
            return;
        };
        if self.halves[id].pairing == Pairing::Traffic
            && self.halves[peer].requests.is_stranger(response.psn)
        {
            return self.doubt(id, peer);
        }
        self.halves[peer].requests.response(response, &mut self.budget);
    }

    /// Counts mismatched responses; several revoke the pairing.
    fn doubt(&mut self, id: usize, peer: usize) {
        let half = &mut self.halves[id];
        half.strangers += 1;
        half.unmatched += 1;
        if half.strangers * 2 > half.packets.min(16) {
            for id in [id, peer] {
                let half = &mut self.halves[id];
                (half.peer, half.pairing, half.strangers, half.candidates) =
                    (None, Pairing::None, 0, None);
            }
        }
    }

    /// Pairs the responses on half `id` with the only half in the other direction whose outstanding
    /// PSNs have matched all responses so far.
    fn pair(&mut self, id: usize, response: &Response) -> Option<usize> {
        let half = &self.halves[id];
        let fits = |&other: &usize| {
            let candidate = &self.halves[other];
            other != id
                && candidate.peer.is_none()
                && candidate.requests.has_outstanding(response.psn)
        };
        let fitting: Vec<usize> = match &half.candidates {
            Some(candidates) => candidates.iter().copied().filter(fits).collect(),
            None => {
                let there = self.by_path.get(&(half.destination, half.source))?;
                there.iter().copied().filter(fits).take(CANDIDATES_MAX).collect()
            }
        };
        // The kernel derives both directions' source ports from the same two queue pair numbers.
        let same_port =
            |&&other: &&usize| self.halves[other].udp_source_port == half.udp_source_port;
        let mut alike = fitting.iter().filter(same_port);
        let by_port = alike.next().copied().filter(|_| alike.next().is_none());
        let chosen = if fitting.len() > 1 {
            by_port.map_or(fitting.clone(), |one| vec![one])
        } else {
            fitting
        };
        match chosen[..] {
            [] => {
                self.halves[id].candidates = None;
                None
            }
            [other] => {
                for (id, peer) in [(id, other), (other, id)] {
                    let half = &mut self.halves[id];
                    (half.peer, half.pairing, half.candidates) =
                        (Some(peer), Pairing::Traffic, None);
                }
                Some(other)
            }
            _ => {
                for &rival in &chosen {
                    self.halves[rival].has_rivals = true;
                }
                self.halves[id].candidates = Some(chosen);
                None
            }
        }
    }
}
