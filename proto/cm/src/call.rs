//! Arguments of the connection manager's calls, and the errors that they return.

use crate::ConnectionState;
use longhaul_units::{Psn, Qpn};
use std::net::IpAddr;
use thiserror::Error;

/// Transport of a connection.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum Transport {
    /// Reliable connection.
    #[default]
    Rc,
    /// Unreliable connection.
    Uc,
}

/// Arguments of [`crate::ConnectionManager::connect`]: the fields of a REQ that the program
/// chooses.
#[derive(Clone, Copy, Debug)]
pub struct ConnectRequest<'a> {
    /// Address of the peer.
    pub destination_ip: IpAddr,
    /// Our address, of the same family.
    pub source_ip: IpAddr,
    /// The service, usually [`crate::ServiceId::tcp`].
    pub service_id: u64,
    /// Transport of our QP, and of the one requested.
    pub transport: Transport,
    /// Our QP, in state INIT or later.
    pub local_qpn: Qpn,
    /// First PSN of the peer's requests (our `rq_psn`).
    pub starting_psn: Psn,
    /// READs and atomics that we serve at once (our `max_dest_rd_atomic`).
    pub responder_resources: u8,
    /// READs and atomics that we want to have outstanding (our `max_rd_atomic`).
    pub initiator_depth: u8,
    /// We obey end-to-end credits.
    pub flow_control: bool,
    /// Retries on timeouts and sequence errors that both sides use, 0 to 7.
    pub retry_count: u8,
    /// RNR retries for the peer, 0 to 7; 7 means unlimited.
    pub rnr_retry_count: u8,
    /// Path MTU, as `ibv_mtu`: 1 for 256 bytes to 5 for 4096, and at most
    /// [`crate::Config::path_mtu_code_max`]. The peer may want a smaller one;
    /// [`crate::ReplyInfo::path_mtu_code`] is the result.
    pub path_mtu_code: u8,
    /// Local ACK timeout for the peer: 4.096 µs times 2^code, 0 to 31.
    pub local_ack_timeout: u8,
    /// Our QP has a shared receive queue.
    pub srq: bool,
    /// DSCP and ECN.
    pub traffic_class: u8,
    /// TTL.
    pub hop_limit: u8,
    /// 20 bits; 0 where unused.
    pub flow_label: u32,
    /// At most 92 bytes. In the port spaces of the RDMA connection manager it begins with an
    /// [`crate::RdmaCmHeader`]: [`crate::RdmaCmHeader::with_user_data`] builds both.
    pub private_data: &'a [u8],
}

/// Arguments of [`crate::ConnectionManager::accept`]: the fields of a REP that the program chooses.
#[derive(Clone, Copy, Debug)]
pub struct Accept<'a> {
    /// Our QP, in state RTR or RTS.
    pub local_qpn: Qpn,
    /// First PSN of the peer's requests (our `rq_psn`).
    pub starting_psn: Psn,
    /// READs and atomics that we serve at once.
    pub responder_resources: u8,
    /// READs and atomics that we want to have outstanding.
    pub initiator_depth: u8,
    /// We obey end-to-end credits.
    pub flow_control: bool,
    /// RNR retries for the peer, 0 to 7; 7 means unlimited.
    pub rnr_retry_count: u8,
    /// Our QP has a shared receive queue.
    pub srq: bool,
    /// At most 196 bytes.
    pub private_data: &'a [u8],
}

/// Arguments of [`crate::ConnectionManager::sidr_request`], which requests the datagram QP of a
/// service.
#[derive(Clone, Copy, Debug)]
pub struct SidrRequest<'a> {
    /// Address of the peer.
    pub destination_ip: IpAddr,
    /// Our address, of the same family.
    pub source_ip: IpAddr,
    /// The service, usually [`crate::ServiceId::udp`] or [`crate::ServiceId::ipoib`].
    pub service_id: u64,
    /// At most 216 bytes. In the port spaces of the RDMA connection manager it begins with an
    /// [`crate::RdmaCmHeader`]: [`crate::RdmaCmHeader::with_sidr_user_data`] builds both.
    pub private_data: &'a [u8],
}

/// Why a listener was not opened.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
pub enum ListenError {
    /// The service has a listener already (`EADDRINUSE`).
    #[error("service {0:#018x} has a listener already")]
    InUse(u64),
    /// [`crate::Config::listeners_max`] is reached (`ENOMEM`).
    #[error("{0} listeners are open, which is the limit")]
    TooMany(usize),
}

/// Why a request for a connection or a datagram service failed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
pub enum ConnectError {
    /// [`crate::Config::connections_max`] or [`crate::Config::sidr_max`] is reached (`ENOMEM`).
    #[error("{0} connections or requests are open or remembered, which is the limit")]
    TooMany(usize),
    /// More private data than the message holds (`EINVAL`).
    #[error("{len} bytes of private data; the message holds {max}")]
    PrivateData {
        /// Bytes given.
        len: usize,
        /// Bytes that fit.
        max: usize,
    },
    /// Source and destination are of different families (`EINVAL`).
    #[error("addresses {0} and {1} are of different families")]
    Families(IpAddr, IpAddr),
}

/// Why a call on a connection failed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
pub enum CallError {
    /// No such connection: destroyed, or ended by a terminal event (`EINVAL`).
    #[error("no such connection")]
    Unknown,
    /// Not possible in this state (`EINVAL`).
    #[error("not possible in state {0:?}")]
    State(ConnectionState),
    /// Not an unanswered request of the peer for a datagram service (`EINVAL`).
    #[error("not a request that waits for our answer")]
    NotAsked,
    /// More additional rejection information than the message holds (`EINVAL`).
    #[error("{len} bytes of rejection information; the message holds {max}")]
    Information {
        /// Bytes given.
        len: usize,
        /// Bytes that fit.
        max: usize,
    },
    /// More private data than the message holds (`EINVAL`).
    #[error("{len} bytes of private data; the message holds {max}")]
    PrivateData {
        /// Bytes given.
        len: usize,
        /// Bytes that fit.
        max: usize,
    },
}
