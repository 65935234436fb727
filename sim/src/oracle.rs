//! Checks a box from outside for forbidden behaviour.

use crate::pfc::PausedPorts;
use longhaul_node::{Deadline, Frame, Node, Side, Transmit};
use longhaul_units::{BitRate, Instant, Psn, Qpn};
use longhaul_wan_box::WanBox;
use longhaul_wire::{Packet, Syndrome, Transport, Verb};
use std::collections::{BTreeMap, HashMap};
use std::net::IpAddr;

const LAN: Side = 0;
/// Added to a first PSN, so that sequence numbers can be unwrapped below it.
const SEQUENCE_BASE: u64 = 1 << 24;

/// One direction of requests of a connection, as agreed by its programs.
#[derive(Clone, Copy, Debug)]
pub struct Connection {
    /// The requester.
    pub requester: (IpAddr, Qpn),
    /// The responder.
    pub responder: (IpAddr, Qpn),
    /// PSN of the first request.
    pub first_psn: Psn,
    /// Path MTU in bytes.
    pub mtu_bytes: u32,
}

/// A monitored box: an ACK that it sends to its LAN must cover only packets that have arrived from
/// there without a gap.
pub struct Watched {
    node: WanBox,
    ports: PausedPorts,
    /// Arrivals of each responder.
    arrived: HashMap<(IpAddr, Qpn), Arrived>,
    /// The responder of each requester.
    responders: HashMap<(IpAddr, Qpn), (IpAddr, Qpn)>,
    violations: Violations,
}

struct Arrived {
    /// All lower sequence numbers have arrived.
    next: u64,
    /// Ranges that arrived ahead: first sequence number to the one behind the last.
    ahead: BTreeMap<u64, u64>,
    mtu_bytes: u32,
}

impl Arrived {
    /// Records the arrival of requests `first..end`.
    #[inline]
    fn note(&mut self, first: u64, end: u64) {
        if first > self.next {
            self.ahead.insert(first, end);
            return;
        }
        self.next = self.next.max(end);
        while let Some(entry) = self.ahead.first_entry().filter(|entry| *entry.key() <= self.next) {
            self.next = self.next.max(entry.remove());
        }
    }
}

#[derive(Default)]
struct Violations {
    count: u64,
    first: Option<String>,
}

impl Watched {
    /// Monitors `node`, whose sides have links of these rates.
    pub fn new(node: WanBox, rates: Vec<Option<BitRate>>) -> Self {
        Watched {
            node,
            ports: PausedPorts::new(rates),
            arrived: HashMap::new(),
            responders: HashMap::new(),
            violations: Violations::default(),
        }
    }

    /// Monitors requests of a connection, if they arrive from the LAN.
    pub fn expect(&mut self, connection: &Connection) {
        let &Connection { requester, responder, first_psn, mtu_bytes } = connection;
        let next = SEQUENCE_BASE + u64::from(first_psn.get());
        self.arrived.insert(responder, Arrived { next, ahead: BTreeMap::new(), mtu_bytes });
        self.responders.insert(requester, responder);
    }

    /// The box.
    pub fn node(&self) -> &WanBox {
        &self.node
    }

    /// The first violation.
    pub fn violation(&self) -> Option<String> {
        let Violations { count, first } = &self.violations;
        first.as_ref().map(|first| format!("{first}; {count} such in all"))
    }

    /// Records a frame from the LAN.
    #[inline]
    fn note(&mut self, frame: &Frame<'_>) {
        let Ok(Some(packet)) = Packet::parse(frame.head) else { return };
        let bth = packet.bth();
        if bth.opcode.transport() != Transport::Rc
            || !bth.opcode.is_request()
            || !frame.icrc_is_right()
        {
            return;
        }
        let Some(arrived) = self.arrived.get_mut(&(packet.destination_ip(), bth.dest_qp)) else {
            return;
        };
        let Some(first) = bth.psn.unwrap_near(arrived.next) else { return };
        let packets = match packet.reth() {
            Some(reth) if bth.opcode.verb() == Some(Verb::ReadRequest) => {
                u64::from(reth.len.div_ceil(arrived.mtu_bytes).max(1))
            }
            _ => 1,
        };
        arrived.note(first, first + packets);
    }
}

/// Checks frames that leave towards the LAN.
struct Watch<'a> {
    out: &'a mut dyn Transmit,
    arrived: &'a HashMap<(IpAddr, Qpn), Arrived>,
    responders: &'a HashMap<(IpAddr, Qpn), (IpAddr, Qpn)>,
    violations: &'a mut Violations,
    ports: &'a PausedPorts,
    now: Instant,
}

impl Watch<'_> {
    fn check(&mut self, frame: &Frame<'_>) -> Option<()> {
        let packet = Packet::parse(frame.head).ok()??;
        let bth = packet.bth();
        let aeth = packet.aeth().filter(|_| bth.opcode.verb() == Some(Verb::Acknowledge))?;
        let Syndrome::Ack { .. } = aeth.syndrome else { return None };
        if !frame.icrc_is_right() {
            return None;
        }
        let requester = (packet.destination_ip(), bth.dest_qp);
        let next = self.arrived.get(self.responders.get(&requester)?)?.next;
        if bth.psn.unwrap_near(next).is_none_or(|acknowledged| acknowledged >= next) {
            self.violations.count += 1;
            self.violations.first.get_or_insert_with(|| {
                format!(
                    "at {:?} PSN {} of QP {:#x} was acknowledged before it arrived",
                    self.now,
                    bth.psn.get(),
                    bth.dest_qp.get()
                )
            });
        }
        None
    }
}

impl Transmit for Watch<'_> {
    #[inline]
    fn room(&mut self, side: Side) -> usize {
        if self.ports.holds(side) { 0 } else { self.out.room(side) }
    }

    #[inline]
    fn transmit(&mut self, side: Side, frame: &Frame<'_>) {
        if side == LAN {
            self.check(frame);
        }
        self.out.transmit(side, frame);
    }
}

impl Node for Watched {
    #[inline]
    fn handle_frame(&mut self, now: Instant, side: Side, frame: &Frame<'_>) {
        if side == LAN {
            self.note(frame);
        }
        self.ports.hear(now, side, frame.head);
        self.node.handle_frame(now, side, frame);
    }

    #[inline]
    fn handle_timeout(&mut self, now: Instant) {
        self.node.handle_timeout(now);
    }

    #[inline]
    fn poll_transmit(&mut self, now: Instant, out: &mut dyn Transmit) {
        let Watched { node, ports, arrived, responders, violations } = self;
        ports.pass(now);
        node.poll_transmit(now, &mut Watch { out, arrived, responders, violations, ports, now });
    }

    #[inline]
    fn poll_timeout(&self) -> Option<Deadline> {
        Deadline::earliest(self.node.poll_timeout(), self.ports.deadline())
    }
}
