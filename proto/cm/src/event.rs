//! Events that a connection manager reports to its program.

use crate::{ConnectionId, ListenId, SidrId, Transport};
use longhaul_units::{Psn, Qpn};
use longhaul_wire::mad::{
    MessageRejected, RdmaCmHeader, RejectReason, ServiceId, SidrReq, SidrStatus,
};
use std::fmt;
use std::net::IpAddr;

/// Events of a [`crate::ConnectionManager`] for its program.
///
/// "Terminal" events are the last of their connection or request: its id is unknown afterwards.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// Passive: a peer requests a connection. Answer with `accept` or `reject`.
    ConnectRequest {
        /// The listener.
        listen: ListenId,
        /// The new connection.
        connection: ConnectionId,
        /// The peer's request.
        info: Box<RequestInfo>,
    },
    /// Active: the peer accepted. Move the QP to RTR and RTS, then call `ready_to_use`, or
    /// `reject`.
    ConnectResponse {
        /// The connection.
        connection: ConnectionId,
        /// The peer's reply.
        info: Box<ReplyInfo>,
    },
    /// Passive: the peer is ready, as its RTU or its first data show.
    Established {
        /// The connection.
        connection: ConnectionId,
    },
    /// The peer rejected the handshake. Terminal.
    Rejected {
        /// The connection.
        connection: ConnectionId,
        /// The reason.
        reason: RejectReason,
        /// The rejected message.
        rejected: MessageRejected,
        /// Additional rejection information, at most 72 bytes; usually none. Its meaning depends on
        /// the reason.
        info: Box<[u8]>,
        /// 148 bytes; all zero unless the peer's program set some.
        private_data: PrivateData,
    },
    /// The handshake timed out. Terminal.
    Unreachable {
        /// The connection.
        connection: ConnectionId,
        /// The missing message or decision.
        waited: Waited,
    },
    /// The connection ended, on either side's initiative. Move the QP to the error state. The ids
    /// stay reserved until [`Event::TimewaitExit`].
    Disconnected {
        /// The connection.
        connection: ConnectionId,
        /// The cause.
        cause: DisconnectCause,
    },
    /// The ids and QPNs of an ended connection may be reused. Terminal.
    TimewaitExit {
        /// The connection.
        connection: ConnectionId,
    },
    /// Passive: a peer requests the datagram QP of a service. Answer with `sidr_accept` or
    /// `sidr_reject`.
    SidrRequest {
        /// The listener.
        listen: ListenId,
        /// The new request.
        id: SidrId,
        /// The peer's request.
        info: Box<SidrRequestInfo>,
    },
    /// Active: the peer answered. Terminal.
    SidrResponse {
        /// The request.
        id: SidrId,
        /// [`SidrStatus::Valid`]: `qpn` and `qkey` are the service's. Otherwise the peer refused.
        status: SidrStatus,
        /// QP of the service.
        qpn: Qpn,
        /// Its queue key.
        qkey: u32,
        /// 136 bytes; all zero unless the peer's program set some.
        private_data: PrivateData,
    },
    /// Active: the peer does not answer. Passive: our program did not decide in time. Terminal.
    SidrUnreachable {
        /// The request.
        id: SidrId,
        /// The missing answer or decision: `ForReply` or `ForDecision`.
        waited: Waited,
    },
}

impl Event {
    /// The connection of the event. For a request for a datagram service, its number as a
    /// [`ConnectionId`]: both kinds share one number space.
    pub fn connection(&self) -> ConnectionId {
        match *self {
            Event::ConnectRequest { connection, .. }
            | Event::ConnectResponse { connection, .. }
            | Event::Established { connection }
            | Event::Rejected { connection, .. }
            | Event::Unreachable { connection, .. }
            | Event::Disconnected { connection, .. }
            | Event::TimewaitExit { connection } => connection,
            Event::SidrRequest { id, .. }
            | Event::SidrResponse { id, .. }
            | Event::SidrUnreachable { id, .. } => ConnectionId(id.0),
        }
    }
}

/// The answer or decision that an [`Event::Unreachable`] reports as missing.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Waited {
    /// An answer to our REQ or SIDR_REQ.
    ForReply,
    /// An RTU, or data, after our REP.
    ForReadyToUse,
    /// Our own program's decision on a request.
    ForDecision,
}

impl fmt::Display for Waited {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Waited::ForReply => "no REP",
            Waited::ForReadyToUse => "no RTU and no data after the REP",
            Waited::ForDecision => "the program neither accepted nor rejected the REQ",
        })
    }
}

/// Why a connection ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum DisconnectCause {
    /// The peer sent a DREQ.
    ByPeer,
    /// The peer answered our DREQ.
    ByUs,
    /// The peer answered none of our DREQs.
    NoAnswer,
    /// The peer rejected an established connection.
    Rejected(RejectReason),
}

impl fmt::Display for DisconnectCause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            DisconnectCause::ByPeer => f.write_str("the peer sent a DREQ"),
            DisconnectCause::ByUs => f.write_str("disconnected here"),
            DisconnectCause::NoAnswer => f.write_str("the peer answered no DREQ"),
            DisconnectCause::Rejected(reason) => {
                write!(f, "the peer sent a REJ: {}", reason.text())
            }
        }
    }
}

/// A REQ, as the passive side sees it.
///
/// "Ours" and "peer's" are from the reader's view: `responder_resources` is our limit as a server.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RequestInfo {
    /// Address of the peer.
    pub peer_ip: IpAddr,
    /// The address that the peer requested: ours.
    pub local_ip: IpAddr,
    /// The service.
    pub service_id: u64,
    /// Transport of the peer's QP, and of the one requested. Reject if the program's differs.
    pub transport: Transport,
    /// Peer's QP (our `dest_qpn`).
    pub peer_qpn: Qpn,
    /// First PSN of our requests (our `sq_psn`).
    pub peer_psn: Psn,
    /// READs and atomics that the peer wants to have outstanding (limit of our
    /// `max_dest_rd_atomic`).
    pub responder_resources: u8,
    /// READs and atomics that the peer serves at once (limit of our `max_rd_atomic`).
    pub initiator_depth: u8,
    /// The peer obeys end-to-end credits.
    pub flow_control: bool,
    /// Retries on timeouts and sequence errors to use, 0 to 7.
    pub retry_count: u8,
    /// RNR retries to use, 0 to 7; 7 means unlimited.
    pub rnr_retry_count: u8,
    /// Path MTU, as `ibv_mtu`; 1 to 5.
    pub path_mtu_code: u8,
    /// Local ACK timeout to use: 4.096 µs times 2^code.
    pub local_ack_timeout: u8,
    /// The peer's QP has a shared receive queue.
    pub srq: bool,
    /// Partition key.
    pub pkey: u16,
    /// DSCP and ECN that the peer wants.
    pub traffic_class: u8,
    /// TTL that the peer wants.
    pub hop_limit: u8,
    /// 20 bits.
    pub flow_label: u32,
    /// Peer's adapter.
    pub ca_guid: u64,
    /// All 92 bytes.
    pub private_data: PrivateData,
}

impl RequestInfo {
    /// Addresses and source port, from the header that the RDMA connection manager puts before the
    /// program's data; `None` for other service ids, or if it is malformed.
    pub fn header(&self) -> Option<RdmaCmHeader> {
        header(self.service_id, &self.private_data)
    }

    /// The program's own private data: 56 bytes behind the header, or all 92 for service ids
    /// without one.
    pub fn user_data(&self) -> &[u8] {
        user_data(self.service_id, &self.private_data)
    }
}

/// A SIDR_REQ, as the passive side sees it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SidrRequestInfo {
    /// Address of the peer.
    pub peer_ip: IpAddr,
    /// The service; its low 16 bits are our port in the port spaces of the RDMA connection manager.
    pub service_id: u64,
    /// Partition key.
    pub pkey: u16,
    /// All 216 bytes.
    pub private_data: PrivateData,
}

impl SidrRequestInfo {
    /// Addresses and source port, from the header that the RDMA connection manager puts before the
    /// program's data; `None` for other service ids, or if it is malformed.
    pub fn header(&self) -> Option<RdmaCmHeader> {
        header(self.service_id, &self.private_data)
    }

    /// The program's own private data: 180 bytes behind the header, or all 216 for service ids
    /// without one.
    pub fn user_data(&self) -> &[u8] {
        user_data(self.service_id, &self.private_data)
    }
}

fn header(service_id: u64, private_data: &PrivateData) -> Option<RdmaCmHeader> {
    if !ServiceId::has_header(service_id) {
        return None;
    }
    RdmaCmHeader::read(private_data.as_slice())
}

fn user_data(service_id: u64, private_data: &PrivateData) -> &[u8] {
    let all = private_data.as_slice();
    if ServiceId::has_header(service_id) { &all[RdmaCmHeader::LEN.min(all.len())..] } else { all }
}

/// A REP, as the active side sees it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ReplyInfo {
    /// Address of the peer.
    pub peer_ip: IpAddr,
    /// Peer's QP (our `dest_qpn`).
    pub peer_qpn: Qpn,
    /// First PSN of our requests (our `sq_psn`).
    pub peer_psn: Psn,
    /// READs and atomics that the peer wants to have outstanding (limit of our
    /// `max_dest_rd_atomic`).
    pub responder_resources: u8,
    /// READs and atomics that the peer serves at once (limit of our `max_rd_atomic`).
    pub initiator_depth: u8,
    /// Path MTU, as `ibv_mtu`: the one that we requested, or the smaller one that the peer wanted.
    pub path_mtu_code: u8,
    /// The peer's ACK delay: 4.096 µs times 2^code.
    pub ack_delay_code: u8,
    /// The peer obeys end-to-end credits.
    pub flow_control: bool,
    /// RNR retries to use, 0 to 7; 7 means unlimited.
    pub rnr_retry_count: u8,
    /// The peer's QP has a shared receive queue.
    pub srq: bool,
    /// Peer's adapter.
    pub ca_guid: u64,
    /// All 196 bytes, which are the program's.
    pub private_data: PrivateData,
}

/// A copy of a message's private data, at most 216 bytes.
///
/// The wire carries no length, so this is the whole field of the message, trailing zeros included.
#[derive(Clone, Copy)]
pub struct PrivateData {
    len: u8,
    bytes: [u8; Self::LEN_MAX],
}

impl PrivateData {
    const LEN_MAX: usize = SidrReq::PRIVATE_LEN;

    /// Keeps the first 216 bytes.
    pub(crate) fn new(data: &[u8]) -> Self {
        let len = data.len().min(Self::LEN_MAX);
        let mut bytes = [0; Self::LEN_MAX];
        bytes[..len].copy_from_slice(&data[..len]);
        PrivateData { len: len as u8, bytes }
    }

    /// The bytes.
    pub fn as_slice(&self) -> &[u8] {
        &self.bytes[..usize::from(self.len)]
    }
}

impl PartialEq for PrivateData {
    fn eq(&self, other: &Self) -> bool {
        self.as_slice() == other.as_slice()
    }
}

impl Eq for PrivateData {}

impl std::fmt::Debug for PrivateData {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let used = self.as_slice().iter().rposition(|&b| b != 0).map_or(0, |last| last + 1);
        write!(f, "{} bytes, then zeros to {}: {:02x?}", used, self.len, &self.bytes[..used])
    }
}
