//! State of one connection during set-up and release.

use crate::queue::Key;
use crate::{ConnectionId, ListenId};
use longhaul_units::{Instant, Psn, Qpn};
use longhaul_wire::mad::Mad;
use std::net::IpAddr;

/// Which side of the handshake we are.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Role {
    /// We sent the REQ.
    Active,
    /// We received it.
    Passive,
}

/// Where a connection stands. Source: IBTA, volume 1, section 12.9.
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
    /// Both ways usable.
    Established,
    /// DREQ sent, no answer yet.
    DreqSent,
    /// Over; ids and QPNs are reserved for a while.
    Timewait,
}

impl ConnectionState {
    /// Passive and not yet established: what the half-open bound counts.
    pub(crate) fn is_half_open(self) -> bool {
        matches!(
            self,
            ConnectionState::ReqReceived
                | ConnectionState::RepSent
                | ConnectionState::RepAcknowledged
        )
    }

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

/// A connection as a snapshot shows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConnectionInfo {
    /// Its id.
    pub connection: ConnectionId,
    /// Where it stands.
    pub state: ConnectionState,
    /// Which side we are.
    pub role: Role,
    /// The peer.
    pub peer_ip: IpAddr,
    /// Service of the REQ.
    pub service_id: u64,
    /// The peer's communication id; 0 until it is known.
    pub peer_comm_id: u32,
    /// Our QP; 0 until it is known.
    pub local_qpn: Qpn,
    /// The peer's QP; 0 until it is known.
    pub peer_qpn: Qpn,
    /// Repetitions of the message that waits for an answer.
    pub retries: u8,
    /// The owner destroyed it; it only finishes its duties towards the peer.
    pub orphan: bool,
}

/// One connection.
#[derive(Debug)]
pub(crate) struct Connection {
    pub id: ConnectionId,
    pub role: Role,
    pub state: ConnectionState,
    pub orphan: bool,
    /// The program has not been shown the connection request: its event is still queued.
    pub unseen: bool,
    /// Where `kept` waits in the output queue.
    pub queued: Option<Key>,
    /// Its events that have not been polled: a request or reply, the establishment, the end.
    pub events: [Option<Key>; 3],
    /// The wait for the answer begins when the queued message leaves.
    pub rearm: bool,
    pub retries: u8,
    pub retries_max: u8,
    /// When the request or reply came that the program has to decide over.
    pub came_at: Instant,
    /// Service timeout of the MRA that was sent, to be resent for a duplicate.
    pub mra_sent: Option<u8>,
    /// Code for the wait after our REP, as the peer announced.
    pub peer_timeout_code: u8,
    pub peer_ip: IpAddr,
    pub service_id: u64,
    pub listen: Option<ListenId>,
    pub peer_comm_id: u32,
    pub local_qpn: Qpn,
    pub peer_qpn: Qpn,
    /// Transaction of the REQ.
    pub transaction: u64,
    /// Path MTU of our REQ, as `ibv_mtu`.
    pub path_mtu_code: u8,
    /// The peer wanted a smaller path MTU than our first REQ had.
    pub path_mtu_lowered: bool,
    /// The PSN in the peer's REQ, to tell its repetition from another with the same ids.
    pub peer_psn: Psn,
    pub deadline: Option<Instant>,
    /// The message that is retransmitted until it is answered, or (a REJ) for each duplicate.
    pub kept: Option<Box<Mad>>,
}

impl Connection {
    /// Nothing known yet but who the peer is.
    pub(crate) fn new(
        id: ConnectionId,
        role: Role,
        state: ConnectionState,
        peer_ip: IpAddr,
    ) -> Self {
        Connection {
            id,
            role,
            state,
            orphan: false,
            unseen: false,
            queued: None,
            events: [None; 3],
            rearm: false,
            retries: 0,
            retries_max: 0,
            came_at: Instant::ZERO,
            mra_sent: None,
            peer_timeout_code: 0,
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
            kept: None,
        }
    }

    pub(crate) fn info(&self) -> ConnectionInfo {
        ConnectionInfo {
            connection: self.id,
            state: self.state,
            role: self.role,
            peer_ip: self.peer_ip,
            service_id: self.service_id,
            peer_comm_id: self.peer_comm_id,
            local_qpn: self.local_qpn,
            peer_qpn: self.peer_qpn,
            retries: self.retries,
            orphan: self.orphan,
        }
    }

    /// What its deadline waits for.
    pub(crate) fn reason(&self) -> &'static str {
        match self.state {
            ConnectionState::ReqSent | ConnectionState::ReqAcknowledged => "CM: answer to REQ",
            ConnectionState::RepReceived | ConnectionState::Established => "CM: nothing",
            ConnectionState::ReqReceived => "CM: program's decision over REQ",
            ConnectionState::RepSent | ConnectionState::RepAcknowledged => "CM: RTU",
            ConnectionState::DreqSent => "CM: answer to DREQ",
            ConnectionState::Timewait => "CM: end of time-wait",
        }
    }
}
