//! The state of one connection.

use crate::queue::Key;
use crate::state::State;
use crate::{ConnectionId, ListenId};
use longhaul_units::{Instant, Psn, Qpn};
use std::net::IpAddr;

/// Which side of the handshake we are.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Role {
    /// We sent the REQ.
    Active,
    /// We received it.
    Passive,
}

/// State of a connection. Source: IBTA, volume 1, section 12.9.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub enum ConnectionState {
    /// Active: REQ sent, no answer yet.
    ReqSent,
    /// Active: the peer extended our timeout (MRA) before its answer.
    ReqAcknowledged,
    /// Active: REP received, our owner has not called `ready_to_use` yet.
    RepReceived,
    /// Passive: REQ received, our owner has neither accepted nor rejected yet.
    ReqReceived,
    /// Passive: REP sent, neither RTU nor data yet.
    RepSent,
    /// Passive: the peer extended our timeout (MRA) before its RTU.
    RepAcknowledged,
    /// Both directions are usable.
    Established,
    /// DREQ sent, no answer yet.
    DreqSent,
    /// Ended; ids and QPNs are reserved for a while.
    Timewait,
}

impl ConnectionState {
    /// Name for traces and status displays.
    pub const fn name(self) -> &'static str {
        match self {
            ConnectionState::ReqSent => "REQ sent",
            ConnectionState::ReqAcknowledged => "REQ acknowledged",
            ConnectionState::RepReceived => "REP received",
            ConnectionState::ReqReceived => "REQ received",
            ConnectionState::RepSent => "REP sent",
            ConnectionState::RepAcknowledged => "REP acknowledged",
            ConnectionState::Established => "established",
            ConnectionState::DreqSent => "DREQ sent",
            ConnectionState::Timewait => "time-wait",
        }
    }
}

/// Snapshot of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConnectionInfo {
    /// Its id.
    pub connection: ConnectionId,
    /// Its state.
    pub state: ConnectionState,
    /// Which side we are.
    pub role: Role,
    /// The peer.
    pub peer_ip: IpAddr,
    /// Service of the REQ.
    pub service_id: u64,
    /// The peer's communication id; 0 while unknown.
    pub peer_comm_id: u32,
    /// Our QP; 0 while unknown.
    pub local_qpn: Qpn,
    /// The peer's QP; 0 while unknown.
    pub peer_qpn: Qpn,
    /// Retransmissions of the unanswered message.
    pub retries: u8,
    /// The program destroyed it; only its duties towards the peer remain.
    pub orphan: bool,
}

/// One connection.
#[derive(Debug)]
pub(crate) struct Connection {
    pub id: ConnectionId,
    pub role: Role,
    pub state: State,
    /// Its unpolled events: a request or reply, the establishment, the end.
    pub events: [Option<Key>; 3],
    /// Service timeout of our MRA, which is repeated for a duplicate.
    pub mra_sent: Option<u8>,
    /// Timeout code of our REP, as announced by the peer.
    pub peer_timeout_code: u8,
    /// Retries of our REP, as announced by the peer.
    pub peer_retries_max: u8,
    pub peer_ip: IpAddr,
    pub service_id: u64,
    pub listen: Option<ListenId>,
    pub peer_comm_id: u32,
    pub local_qpn: Qpn,
    pub peer_qpn: Qpn,
    /// Transaction id of the REQ.
    pub transaction: u64,
    /// Path MTU of our REQ, as `ibv_mtu`.
    pub path_mtu_code: u8,
    /// The peer wanted a smaller path MTU than our first REQ had.
    pub path_mtu_lowered: bool,
    /// The PSN in the peer's REQ, which distinguishes a duplicate from another REQ with the same
    /// ids.
    pub peer_psn: Psn,
    pub deadline: Option<Instant>,
}

impl Connection {
    /// A connection of which only the peer's address is known.
    pub(crate) fn new(id: ConnectionId, role: Role, state: State, peer_ip: IpAddr) -> Self {
        Connection {
            id,
            role,
            state,
            events: [None; 3],
            mra_sent: None,
            peer_timeout_code: 0,
            peer_retries_max: 0,
            peer_ip,
            service_id: 0,
            listen: None,
            peer_comm_id: 0,
            local_qpn: Qpn::default(),
            peer_qpn: Qpn::default(),
            transaction: 0,
            path_mtu_code: 0,
            path_mtu_lowered: false,
            peer_psn: Psn::default(),
            deadline: None,
        }
    }

    pub(crate) fn info(&self) -> ConnectionInfo {
        ConnectionInfo {
            connection: self.id,
            state: self.state.name(),
            role: self.role,
            peer_ip: self.peer_ip,
            service_id: self.service_id,
            peer_comm_id: self.peer_comm_id,
            local_qpn: self.local_qpn,
            peer_qpn: self.peer_qpn,
            retries: self.state.unanswered().map_or(0, |unanswered| unanswered.retries),
            orphan: self.state.is_orphan(),
        }
    }
}
