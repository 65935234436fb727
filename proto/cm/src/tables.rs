//! Connections by local id, by the peer's id or QPN, and by their next timer.

use crate::ConnectionId;
use crate::connection::Connection;
use crate::state::State;
use longhaul_units::{Instant, Qpn};
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

/// All connections, with the indexes used by messages, timers and the data path.
///
/// The indexes are trees, because unauthenticated peers choose the keys.
#[derive(Debug, Default)]
pub(crate) struct Tables {
    connections: BTreeMap<ConnectionId, Box<Connection>>,
    by_peer_id: BTreeMap<(IpAddr, u32), ConnectionId>,
    by_peer_qpn: BTreeMap<(IpAddr, Qpn), ConnectionId>,
    by_local_qpn: BTreeMap<Qpn, ConnectionId>,
    timers: BTreeSet<(Instant, ConnectionId)>,
    half_open: usize,
}

impl Tables {
    pub fn len(&self) -> usize {
        self.connections.len()
    }

    pub fn half_open(&self) -> usize {
        self.half_open
    }

    pub fn contains(&self, id: ConnectionId) -> bool {
        self.connections.contains_key(&id)
    }

    pub fn get(&self, id: ConnectionId) -> Option<&Connection> {
        self.connections.get(&id).map(Box::as_ref)
    }

    /// For fields that no index depends on: not the peer, the deadline or the variant of the state.
    pub fn get_mut(&mut self, id: ConnectionId) -> Option<&mut Connection> {
        self.connections.get_mut(&id).map(Box::as_mut)
    }

    pub fn iter(&self) -> impl Iterator<Item = &Connection> {
        self.connections.values().map(Box::as_ref)
    }

    pub fn by_peer_id(&self, ip: IpAddr, comm_id: u32) -> Option<&Connection> {
        self.by_peer_id.get(&(ip, comm_id)).and_then(|id| self.get(*id))
    }

    /// The live connection with the peer's QP; connections in time-wait do not count.
    pub fn by_peer_qpn(&self, ip: IpAddr, qpn: Qpn) -> Option<&Connection> {
        self.by_peer_qpn.get(&(ip, qpn)).and_then(|id| self.get(*id))
    }

    pub fn by_local_qpn(&self, qpn: Qpn) -> Option<&Connection> {
        self.by_local_qpn.get(&qpn).and_then(|id| self.get(*id))
    }

    pub fn first_timer(&self) -> Option<(Instant, ConnectionId)> {
        self.timers.first().copied()
    }

    /// Adds a connection, with index entries for its present field values.
    pub fn insert(&mut self, connection: Connection) {
        let id = connection.id;
        let (ip, comm_id, peer_qpn) =
            (connection.peer_ip, connection.peer_comm_id, connection.peer_qpn);
        let (local_qpn, deadline) = (connection.local_qpn, connection.deadline);
        self.half_open += usize::from(connection.state.is_half_open());
        self.connections.insert(id, Box::new(connection));
        if comm_id != 0 {
            self.index_peer(id, ip, comm_id, peer_qpn);
        }
        if local_qpn != Qpn::default() {
            self.by_local_qpn.insert(local_qpn, id);
        }
        if let Some(at) = deadline {
            self.timers.insert((at, id));
        }
    }

    pub fn remove(&mut self, id: ConnectionId) -> Option<Box<Connection>> {
        self.set_deadline(id, None);
        self.forget_peer(id);
        let connection = self.connections.remove(&id)?;
        if self.by_local_qpn.get(&connection.local_qpn) == Some(&id) {
            self.by_local_qpn.remove(&connection.local_qpn);
        }
        self.half_open -= usize::from(connection.state.is_half_open());
        Some(connection)
    }

    /// Replaces the state of a connection; returns the previous one.
    pub fn replace_state(&mut self, id: ConnectionId, state: State) -> Option<State> {
        let connection = self.connections.get_mut(&id)?;
        self.half_open += usize::from(state.is_half_open());
        self.half_open -= usize::from(connection.state.is_half_open());
        let is_over = matches!(state, State::Timewait { .. });
        let previous = std::mem::replace(&mut connection.state, state);
        if is_over {
            self.forget_peer_qpn(id);
        }
        Some(previous)
    }

    pub fn set_deadline(&mut self, id: ConnectionId, deadline: Option<Instant>) {
        let Some(connection) = self.connections.get_mut(&id) else { return };
        if let Some(old) = std::mem::replace(&mut connection.deadline, deadline) {
            self.timers.remove(&(old, id));
        }
        if let Some(at) = deadline {
            self.timers.insert((at, id));
        }
    }

    pub fn set_peer(&mut self, id: ConnectionId, comm_id: u32, qpn: Qpn) {
        let Some(connection) = self.connections.get_mut(&id) else { return };
        connection.peer_comm_id = comm_id;
        connection.peer_qpn = qpn;
        let ip = connection.peer_ip;
        self.index_peer(id, ip, comm_id, qpn);
    }

    pub fn set_local_qpn(&mut self, id: ConnectionId, qpn: Qpn) {
        let Some(connection) = self.connections.get_mut(&id) else { return };
        connection.local_qpn = qpn;
        if qpn != Qpn::default() {
            self.by_local_qpn.insert(qpn, id);
        }
    }

    /// Removes the index entries by which the peer's duplicate requests find this connection.
    pub fn forget_peer(&mut self, id: ConnectionId) {
        self.forget_peer_qpn(id);
        let Some(connection) = self.connections.get(&id) else { return };
        let key = (connection.peer_ip, connection.peer_comm_id);
        if self.by_peer_id.get(&key) == Some(&id) {
            self.by_peer_id.remove(&key);
        }
    }

    fn forget_peer_qpn(&mut self, id: ConnectionId) {
        let Some(connection) = self.connections.get(&id) else { return };
        let key = (connection.peer_ip, connection.peer_qpn);
        if self.by_peer_qpn.get(&key) == Some(&id) {
            self.by_peer_qpn.remove(&key);
        }
    }

    fn index_peer(&mut self, id: ConnectionId, ip: IpAddr, comm_id: u32, qpn: Qpn) {
        self.by_peer_id.insert((ip, comm_id), id);
        // QPN 0 is no connection's QP: peers that manage their QPs elsewhere send it.
        if qpn != Qpn::default() {
            self.by_peer_qpn.insert((ip, qpn), id);
        }
    }

    /// Sizes of all indexes, for consistency checks.
    #[cfg(test)]
    pub fn index_sizes(&self) -> [usize; 4] {
        [self.by_peer_id.len(), self.by_peer_qpn.len(), self.by_local_qpn.len(), self.timers.len()]
    }
}
