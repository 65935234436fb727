//! The connection manager: its tables, events and timers.

use crate::connection::Connection;
use crate::output::Outgoing;
use crate::queue::Queue;
use crate::sidr::{Resolutions, SidrId, SidrState};
use crate::state::State;
use crate::tables::Tables;
use crate::{
    CallError, Config, ConnectError, ConnectionId, ConnectionInfo, Counters, Event, ListenId,
};
use longhaul_node::Deadline;
use longhaul_units::{Instant, Rng, SplitMix64};
use std::collections::BTreeMap;
use std::net::IpAddr;

/// A set of connections, driven by MADs and time. See the crate's documentation for the sequence of
/// calls.
///
/// After any call: drain [`ConnectionManager::poll_mad`] and [`ConnectionManager::poll_event`],
/// then query [`ConnectionManager::poll_timeout`].
///
/// [`Config`] bounds the connections, half-open connections, requests for datagram services,
/// listeners and waiting replies; at most four events per connection or request wait. A received
/// MAD, an expired timer and a call cost a few tree look-ups each, whatever the number of
/// connections.
#[derive(Debug)]
pub struct ConnectionManager {
    pub(crate) config: Config,
    pub(crate) tables: Tables,
    pub(crate) resolutions: Resolutions,
    pub(crate) counters: Counters,
    pub(crate) events: Queue<Event>,
    pub(crate) listeners: BTreeMap<u64, Listener>,
    pub(crate) out: Queue<Outgoing>,
    pub(crate) replies: usize,
    next_comm_id: u32,
    pub(crate) next_listen: u64,
    /// Upper half of our transaction ids.
    transaction_base: u64,
}

#[derive(Debug)]
pub(crate) struct Listener {
    pub id: ListenId,
    pub backlog: usize,
    pub undecided: usize,
}

impl ConnectionManager {
    /// A manager without listeners or connections. Fields of `config` outside their range are
    /// clamped to it.
    pub fn new(config: Config) -> Self {
        let config = config.clamped();
        let mut rng = SplitMix64::new(config.seed);
        let next_comm_id = rng.next_u64() as u32;
        let transaction_base = rng.next_u64() & 0xffff_ffff_0000_0000;
        ConnectionManager {
            config,
            tables: Tables::default(),
            resolutions: Resolutions::default(),
            counters: Counters::default(),
            events: Queue::default(),
            listeners: BTreeMap::new(),
            out: Queue::default(),
            replies: 0,
            next_comm_id,
            next_listen: 1,
            transaction_base,
        }
    }

    /// Removes and returns the next event.
    pub fn poll_event(&mut self) -> Option<Event> {
        let (key, event) = self.events.pop_front()?;
        if let Event::SidrRequest { id, .. } = event {
            if let Some(resolution) = self.resolutions.get_mut(id)
                && let SidrState::Undecided { event, .. } = &mut resolution.state
            {
                *event = None;
            }
        } else if let Some(c) = self.tables.get_mut(event.connection()) {
            if let Some(place) = c.events.iter_mut().find(|place| **place == Some(key)) {
                *place = None;
            }
            if let (State::ReqReceived { is_unseen, .. }, Event::ConnectRequest { .. }) =
                (&mut c.state, &event)
            {
                *is_unseen = false;
            }
        }
        Some(event)
    }

    /// When [`ConnectionManager::handle_timeout`] must be called next.
    pub fn poll_timeout(&self) -> Option<Deadline> {
        let connections = self.tables.first_timer().map(|(at, id)| {
            let reason = self.tables.get(id).map_or("CM", |c| c.state.reason());
            Deadline { at, reason }
        });
        Deadline::earliest(connections, self.sidr_timeout())
    }

    /// Retransmits unanswered messages, abandons those out of retries, ends time-waits.
    /// Early calls do no harm.
    pub fn handle_timeout(&mut self, now: Instant) {
        while let Some((_, id)) = self.tables.first_timer().filter(|(at, _)| *at <= now) {
            self.tables.set_deadline(id, None);
            self.expire(now, id);
        }
        while let Some((_, id)) = self.resolutions.first_timer().filter(|(at, _)| *at <= now) {
            self.resolutions.set_deadline(id, None);
            self.expire_sidr(now, id);
        }
    }

    /// One connection; `None` if the id is unknown.
    pub fn connection(&self, connection: ConnectionId) -> Option<ConnectionInfo> {
        self.known(connection).ok().map(Connection::info)
    }

    /// Every connection in id order, orphans and time-waits included.
    pub fn connections(&self) -> impl Iterator<Item = ConnectionInfo> {
        self.tables.iter().map(Connection::info)
    }

    /// Free-running counts.
    pub fn counters(&self) -> &Counters {
        &self.counters
    }

    /// The configuration in effect.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// A connection that the program has not destroyed.
    pub(crate) fn known(&self, connection: ConnectionId) -> Result<&Connection, CallError> {
        let found = self.tables.get(connection).filter(|c| !c.state.is_orphan());
        found.ok_or(CallError::Unknown)
    }

    /// A communication id that no connection and no request uses, never 0.
    pub(crate) fn fresh_id(&mut self) -> ConnectionId {
        let bits = self.config.comm_id_bits();
        let prefix = u64::from(self.config.comm_id_prefix) << bits;
        loop {
            let low = u64::from(self.next_comm_id) & ((1 << bits) - 1);
            self.next_comm_id = self.next_comm_id.wrapping_add(1);
            let id = ConnectionId((prefix | low) as u32);
            if low != 0 && !self.tables.contains(id) && !self.resolutions.contains(SidrId(id.0)) {
                return id;
            }
        }
    }

    /// Our messages of one connection share a transaction id, as in Linux.
    pub(crate) fn transaction_of(&self, id: ConnectionId) -> u64 {
        self.transaction_base | u64::from(id.0)
    }

    /// Queues an event of a connection that continues to exist.
    pub(crate) fn tell(&mut self, id: ConnectionId, event: Event) {
        let key = self.events.push_back(event);
        if let Some(c) = self.tables.get_mut(id)
            && let Some(place) = c.events.iter_mut().find(|place| place.is_none())
        {
            *place = Some(key);
        }
    }

    /// Removes the unpolled events of a connection from the queue.
    pub(crate) fn cancel_events(&mut self, id: ConnectionId) {
        let Some(c) = self.tables.get_mut(id) else { return };
        for key in std::mem::take(&mut c.events).into_iter().flatten() {
            self.events.remove(key);
        }
    }
}

/// Returns an error if the addresses are of different families.
pub(crate) fn same_family(source: IpAddr, destination: IpAddr) -> Result<(), ConnectError> {
    if source.is_ipv4() == destination.is_ipv4() {
        Ok(())
    } else {
        Err(ConnectError::Families(source, destination))
    }
}

/// Returns the length and the limit as an error if `data` is too long.
pub(crate) fn fits(data: &[u8], max: usize) -> Result<(), (usize, usize)> {
    if data.len() > max { Err((data.len(), max)) } else { Ok(()) }
}
