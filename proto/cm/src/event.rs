//! Events that a connection manager reports to its program.

use crate::{ConnectionId, ListenId, SidrId, Transport};
use longhaul_units::{Psn, Qpn};
use longhaul_wire::mad::{
    MessageRejected, RdmaCmHeader, RejectReason, ServiceId, SidrReq, SidrStatus,
};
use std::net::IpAddr;

/// What a [`crate::ConnectionManager`] tells its owner.
///
/// "Terminal" events are the last of their connection or request: its id is unknown afterwards.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// Passive: somebody wants a connection. Answer with `accept` or `reject`.
    ConnectRequest {
        /// Who is asked.
        listen: ListenId,
        /// The new connection.
        connection: ConnectionId,
        /// What is asked for.
        info: Box<RequestInfo>,
    },
    /// Active: the peer accepted. Move the QP to RTR and RTS, then call `ready_to_use`, or
    /// `reject`.
    ConnectResponse {
        /// The connection.
        connection: ConnectionId,
        /// What the peer offers.
        info: Box<ReplyInfo>,
    },
    /// Passive: the peer is ready, told by its RTU or by its first data.
    Established {
        /// The connection.
        connection: ConnectionId,
    },
    /// The handshake was refused by the peer. Terminal.
    Rejected {
        /// The connection.
        connection: ConnectionId,
        /// Why.
        reason: RejectReason,
        /// What was refused.
        rejected: MessageRejected,
        /// Additional rejection information, at most 72 bytes; usually none. What it means depends
        /// on the reason.
        info: Box<[u8]>,
        /// 148 bytes; all zero unless the peer's program gave some.
        private_data: PrivateData,
    },
    /// The handshake got no answer in time. Terminal.
    Unreachable {
        /// The connection.
        connection: ConnectionId,
        /// What was waited for.
        waited: Waited,
    },
    /// The connection ended, whoever began it. Move the QP to the error state. Its ids stay
    /// reserved until [`Event::TimewaitExit`].
    Disconnected {
        /// The connection.
        connection: ConnectionId,
        /// How.
        cause: DisconnectCause,
    },
    /// The ids and QPNs of an ended connection may be used again. Terminal.
    TimewaitExit {
        /// The connection.
        connection: ConnectionId,
    },
    /// Passive: somebody wants the datagram QP of a service. Answer with `sidr_accept` or
    /// `sidr_reject`.
    SidrRequest {
        /// Who is asked.
        listen: ListenId,
        /// The new request.
        id: SidrId,
        /// What is asked for.
        info: Box<SidrRequestInfo>,
    },
    /// Active: the peer answered. Terminal.
    SidrResponse {
        /// The request.
        id: SidrId,
        /// [`SidrStatus::Valid`]: `qpn` and `qkey` are the service's. Otherwise it was refused.
        status: SidrStatus,
        /// QP of the service.
        qpn: Qpn,
        /// Its queue key.
        qkey: u32,
        /// 136 bytes; all zero unless the peer's program gave some.
        private_data: PrivateData,
    },
    /// Active: the peer does not answer. Passive: our program did not in time. Terminal.
    SidrUnreachable {
        /// The request.
        id: SidrId,
        /// What was waited for: `ForReply` or `ForDecision`.
        waited: Waited,
    },
}

impl Event {
    /// The connection that the event is about; where that is a request for a datagram service, its
    /// number: the two kinds share one space of numbers.
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

/// What [`Event::Unreachable`] waited for in vain.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Waited {
    /// An answer to our REQ or SIDR_REQ.
    ForReply,
    /// An RTU, or data, after our REP.
    ForReadyToUse,
    /// Our own program's decision over a request.
    ForDecision,
}

/// How a connection ended.
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

/// A REQ, as the passive side sees it.
///
/// "Ours" and "peer's" are from the reader's view: `responder_resources` is what we are asked to
/// serve.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RequestInfo {
    /// Where the peer is.
    pub peer_ip: IpAddr,
    /// The address that the peer asked for: ours.
    pub local_ip: IpAddr,
    /// The service.
    pub service_id: u64,
    /// Kind of the peer's QP, and of the one wanted. Reject where the program's is another.
    pub transport: Transport,
    /// Peer's QP (our `dest_qpn`).
    pub peer_qpn: Qpn,
    /// First PSN that we are to send (our `sq_psn`).
    pub peer_psn: Psn,
    /// READs and atomics at once that the peer wants to have outstanding (limit of our
    /// `max_dest_rd_atomic`).
    pub responder_resources: u8,
    /// READs and atomics at once that the peer serves (limit of our `max_rd_atomic`).
    pub initiator_depth: u8,
    /// The peer observes end-to-end credits.
    pub flow_control: bool,
    /// Retries on timeouts and sequence errors to use, 0 to 7.
    pub retry_count: u8,
    /// RNR retries to do, 0 to 7; 7 for ever.
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
    /// Addresses and source port that the RDMA connection manager put in front of the program's
    /// data; `None` with other service ids, or when it is malformed.
    pub fn header(&self) -> Option<RdmaCmHeader> {
        header(self.service_id, &self.private_data)
    }

    /// The program's own private data: 56 bytes behind the header, 92 with service ids that have
    /// none.
    pub fn user_data(&self) -> &[u8] {
        user_data(self.service_id, &self.private_data)
    }
}

/// A SIDR_REQ, as the passive side sees it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SidrRequestInfo {
    /// Where the peer is.
    pub peer_ip: IpAddr,
    /// The service; its low 16 bits are our port in the port spaces of the RDMA connection manager.
    pub service_id: u64,
    /// Partition key.
    pub pkey: u16,
    /// All 216 bytes.
    pub private_data: PrivateData,
}

impl SidrRequestInfo {
    /// Addresses and source port that the RDMA connection manager put in front of the program's
    /// data; `None` with other service ids, or when it is malformed.
    pub fn header(&self) -> Option<RdmaCmHeader> {
        header(self.service_id, &self.private_data)
    }

    /// The program's own private data: 180 bytes behind the header, 216 with service ids that have
    /// none.
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
    /// Where the peer is.
    pub peer_ip: IpAddr,
    /// Peer's QP (our `dest_qpn`).
    pub peer_qpn: Qpn,
    /// First PSN that we are to send (our `sq_psn`).
    pub peer_psn: Psn,
    /// READs and atomics at once that the peer wants to have outstanding (limit of our
    /// `max_dest_rd_atomic`).
    pub responder_resources: u8,
    /// READs and atomics at once that the peer serves (limit of our `max_rd_atomic`).
    pub initiator_depth: u8,
    /// Path MTU, as `ibv_mtu`: what we asked for, or the smaller one that the peer wanted.
    pub path_mtu_code: u8,
    /// The peer's delay before an ACK: 4.096 µs times 2^code.
    pub ack_delay_code: u8,
    /// The peer observes end-to-end credits.
    pub flow_control: bool,
    /// RNR retries to do, 0 to 7; 7 for ever.
    pub rnr_retry_count: u8,
    /// The peer's QP has a shared receive queue.
    pub srq: bool,
    /// Peer's adapter.
    pub ca_guid: u64,
    /// All 196 bytes: the program's.
    pub private_data: PrivateData,
}

/// A copy of a message's private data, at most 216 bytes.
///
/// The wire carries no length: the whole field of the message is here, zeros included.
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
