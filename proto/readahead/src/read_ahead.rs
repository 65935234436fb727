//! The read-ahead node: issues READs for a target before the target asks.

use crate::config::{Config, ConfigError};
use crate::connections::{Connections, Key, Made, Map, News, map};
use crate::initiator::Initiator;
use crate::local::is_local;
use crate::shared::{ConnectionId, INNER, LAN, ReadAheadShared};
use crate::target::Target;
use crate::{ConnectionStatus, Counters};
use longhaul_node::{Deadline, Frame, Node, Side, Trailer, Transmit};
use longhaul_units::{Instant, Qpn};
use longhaul_wire::{Packet, Transport};

/// Bytes queued for a side above which back-pressure is exerted.
const QUEUE_MAX: u64 = 1 << 20;
/// Payload bytes of the frames that [`Node::intake`] counts.
const INTAKE_PAYLOAD: usize = 4096;

/// The end of a connection that is on this box's LAN.
#[derive(Debug)]
enum End {
    Initiator(Box<Initiator>),
    Target(Box<Target>),
}

#[derive(Debug)]
struct Connection {
    made: Made,
    end: End,
}

#[derive(Debug, Default)]
struct Slot {
    generation: u32,
    connection: Option<Connection>,
}

/// Direction of a packet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Toward {
    Target,
    Initiator,
}

/// READ read-ahead of one box; see the crate's documentation.
pub struct ReadAhead {
    shared: ReadAheadShared,
    connections: Connections,
    slots: Vec<Slot>,
    free: Vec<u32>,
    by_qp: Map<Key, (u32, Toward)>,
}

impl std::fmt::Debug for ReadAhead {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ReadAhead").field("counters", self.counters()).finish_non_exhaustive()
    }
}

impl ReadAhead {
    /// Creates a read-ahead without connections.
    ///
    /// # Errors
    /// If a field of `config` is out of its range.
    pub fn new(config: Config) -> Result<Self, ConfigError> {
        config.check()?;
        Ok(ReadAhead {
            connections: Connections::new(config.seed),
            slots: Vec::new(),
            free: Vec::new(),
            by_qp: map(config.seed ^ 1),
            shared: ReadAheadShared::new(config),
        })
    }

    /// Returns the configuration in force.
    pub fn config(&self) -> &Config {
        &self.shared.config
    }

    /// Returns the counters.
    pub fn counters(&self) -> &Counters {
        &self.shared.counters
    }

    /// Bytes reserved for fetched data.
    pub fn held_bytes(&self) -> u64 {
        self.shared.held_bytes
    }

    /// Stops fetching and offering to the far box, or resumes. Connections that were read ahead for
    /// keep needing both boxes.
    pub fn set_draining(&mut self, draining: bool) {
        self.shared.draining = draining;
    }

    /// A snapshot of each connection whose protocol is read ahead for.
    pub fn connections(&self) -> impl Iterator<Item = ConnectionStatus> + '_ {
        self.slots.iter().filter_map(|slot| slot.connection.as_ref()).map(|connection| {
            let Made { initiator, target, terms, initiator_is_on_lan, .. } = connection.made;
            let (is_ready, under_way, held_bytes, shift) = match &connection.end {
                End::Initiator(end) => (end.is_ready(), end.fetching(), 0, end.shift()),
                End::Target(end) => {
                    (end.is_ready(), end.answering(), end.holdings.bytes(), end.shift())
                }
            };
            ConnectionStatus {
                protocol: terms.protocol,
                initiator,
                initiator_qpn: terms.initiator_qpn,
                target,
                target_qpn: terms.target_qpn,
                initiator_is_on_lan,
                is_ready,
                under_way,
                held_bytes,
                shift,
            }
        })
    }

    fn handle_management(&mut self, side: Side, frame: &Frame<'_>, packet: &Packet<'_>) {
        if let Some(payload) = frame.payload.as_bytes().filter(|_| frame.is_intact()) {
            match self.connections.handle(&self.shared.config, side, packet, payload) {
                Some(News::Begin(made)) => self.begin(made),
                Some(News::End(keys)) => keys.iter().for_each(|key| self.end(key)),
                None => {}
            }
        }
        self.shared.pass(1 - side, frame);
    }

    fn begin(&mut self, made: Made) {
        for key in made.keys() {
            // A reused QP has ended its previous connection.
            self.end(&key);
        }
        if made.terms.reads_max == 0 {
            return;
        }
        let slot = match self.free.pop() {
            Some(slot) => slot,
            None if self.slots.len() < self.shared.config.connections_max as usize => {
                self.slots.push(Slot::default());
                (self.slots.len() - 1) as u32
            }
            None => {
                self.shared.counters.connections_refused += 1;
                return;
            }
        };
        let id = ConnectionId { slot, generation: self.slots[slot as usize].generation };
        let ranges_max = self.shared.config.ranges_max;
        let end = if made.initiator_is_on_lan {
            End::Initiator(Box::new(Initiator::new(id, made.terms, ranges_max)))
        } else {
            End::Target(Box::new(Target::new(id, made.terms, ranges_max)))
        };
        self.slots[slot as usize].connection = Some(Connection { made, end });
        let [to_target, to_initiator] = made.keys();
        self.by_qp.insert(to_target, (slot, Toward::Target));
        self.by_qp.insert(to_initiator, (slot, Toward::Initiator));
    }

    fn end(&mut self, key: &Key) {
        let Some(&(number, _)) = self.by_qp.get(key) else { return };
        let slot = &mut self.slots[number as usize];
        slot.generation = slot.generation.wrapping_add(1);
        self.free.push(number);
        let Some(mut connection) = slot.connection.take() else { return };
        for key in connection.made.keys() {
            self.by_qp.remove(&key);
        }
        if let End::Target(end) = &mut connection.end {
            end.clear(&mut self.shared);
        }
    }

    fn handle_reliable(
        &mut self,
        now: Instant,
        side: Side,
        frame: &Frame<'_>,
        packet: &Packet<'_>,
    ) {
        let found = Key::of(packet).and_then(|key| self.by_qp.get(&key).copied());
        let Some((slot, toward)) = found else {
            return self.pass_unknown(side, frame, packet);
        };
        let Some(connection) = &mut self.slots[slot as usize].connection else { return };
        let shared = &mut self.shared;
        let is_request = packet.opcode().is_request();
        let is_response = packet.opcode().is_response();
        match (&mut connection.end, toward, side) {
            (End::Initiator(end), Toward::Target, LAN) if is_request => {
                end.handle_command(now, shared, frame, packet);
            }
            (End::Initiator(end), Toward::Target, LAN) if is_response => {
                end.handle_response(now, shared, frame, packet);
            }
            (End::Initiator(end), Toward::Initiator, INNER) if is_request => {
                end.handle_request(now, shared, frame, packet);
            }
            (End::Target(end), Toward::Target, INNER) if is_request => {
                end.handle_command(shared, frame, packet);
            }
            (End::Target(end), Toward::Target, INNER) if is_response => {
                end.handle_response(shared, frame, packet);
            }
            (End::Target(end), Toward::Target, INNER) if is_local(packet) => {
                end.handle_local(now, shared, frame, packet);
            }
            (End::Target(end), Toward::Initiator, LAN) if is_request => {
                end.handle_request(now, shared, frame, packet);
            }
            _ => self.pass_unknown(side, frame, packet),
        }
    }

    /// Drops packets between boxes without a connection, and forwards all other packets.
    fn pass_unknown(&mut self, side: Side, frame: &Frame<'_>, packet: &Packet<'_>) {
        if is_local(packet) {
            self.shared.counters.stray += 1;
        } else {
            self.shared.pass(1 - side, frame);
        }
    }

    fn current(&mut self, id: ConnectionId) -> Option<(&mut End, &mut ReadAheadShared)> {
        let slot =
            self.slots.get_mut(id.slot as usize).filter(|slot| slot.generation == id.generation)?;
        slot.connection.as_mut().map(|connection| (&mut connection.end, &mut self.shared))
    }

    /// Sends the queue of `side`. Returns `true` if there is room for more.
    fn send_queued(&mut self, side: Side, out: &mut dyn Transmit, room: &mut usize) -> bool {
        while *room > 0 {
            let Some(frame) = self.shared.queues[side].pop() else { return true };
            out.transmit_held(side, &frame);
            *room -= 1;
        }
        false
    }
}

impl Node for ReadAhead {
    fn handle_frame(&mut self, now: Instant, side: Side, frame: &Frame<'_>) {
        if !self.shared.config.protocols.is_empty()
            && let Ok(Some(packet)) = Packet::parse(frame.head)
            && frame.trailer != Trailer::None
        {
            match packet.opcode().transport() {
                Transport::Rc => return self.handle_reliable(now, side, frame, &packet),
                Transport::Ud if packet.dest_qp() == Qpn::GSI => {
                    return self.handle_management(side, frame, &packet);
                }
                _ => {}
            }
        }
        self.shared.pass(1 - side, frame);
    }

    fn handle_timeout(&mut self, now: Instant) {
        while let Some((id, first)) = self.shared.retries.pop_due(now) {
            if let Some((End::Initiator(end), shared)) = self.current(id) {
                end.handle_alarm(now, shared, first);
            }
        }
        while let Some((id, serial)) = self.shared.expiries.pop_due(now) {
            if let Some((End::Target(end), shared)) = self.current(id) {
                end.handle_expiry(shared, serial);
            }
        }
        while let Some((id, number)) = self.shared.parked.pop_due(now) {
            if let Some((End::Target(end), shared)) = self.current(id) {
                end.handle_parked(now, shared, number);
            }
        }
    }

    fn poll_transmit(&mut self, _now: Instant, out: &mut dyn Transmit) {
        let mut room = out.room(INNER);
        self.send_queued(INNER, out, &mut room);
        let mut room = out.room(LAN);
        // Answers follow the frames queued before them, and the frames that they release follow the
        // answers.
        while self.send_queued(LAN, out, &mut room) {
            let Some(id) = self.shared.answering.pop_front() else { return };
            if let Some((End::Target(end), shared)) = self.current(id) {
                room -= end.send_answers(shared, out, room);
            }
        }
    }

    fn poll_timeout(&self) -> Option<Deadline> {
        let deadline = |at: Option<Instant>, reason| at.map(|at| Deadline { at, reason });
        let fetched = Deadline::earliest(
            deadline(self.shared.retries.next_at(), "READ ahead"),
            deadline(self.shared.expiries.next_at(), "data read ahead"),
        );
        let parked = deadline(self.shared.parked.next_at(), "a READ before its announcement");
        Deadline::earliest(fetched, parked)
    }

    fn intake(&self, side: Side) -> usize {
        self.shared.queues[1 - side].room(INTAKE_PAYLOAD, QUEUE_MAX)
    }
}
