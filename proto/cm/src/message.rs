//! The messages that the manager sends, built from a connection's state.

use crate::connection::Connection;
use crate::sidr::PeerRequest;
use crate::{Accept, Config, ConnectRequest, SidrRequest, Transport};
use longhaul_units::Qpn;
use longhaul_wire::PKEY_DEFAULT;
use longhaul_wire::mad::{
    Attribute, Drep, Dreq, Header, MAD_LEN, Mad, Message, MessageRejected, Mra, Rej, RejectReason,
    Rep, Req, ReqPath, Rtu, SidrRep, SidrReq, SidrStatus, TransportService, gid_of_ip,
};

/// LID field of a path that has no LIDs.
const LID_PERMISSIVE: u16 = 0xffff;

pub(crate) fn build(transaction_id: u64, message: &Message<'_>) -> Box<Mad> {
    let mut mad = Box::new([0; MAD_LEN]);
    message.write(&Header::new(transaction_id), &mut mad);
    mad
}

/// The attribute of `mad`.
pub(crate) fn attribute(mad: &Mad) -> Option<Attribute> {
    Header::read(mad).ok().map(|(_, attribute)| attribute)
}

pub(crate) fn req(
    config: &Config,
    comm_id: u32,
    transaction: u64,
    r: &ConnectRequest<'_>,
) -> Box<Mad> {
    let primary = ReqPath {
        local_lid: LID_PERMISSIVE,
        remote_lid: LID_PERMISSIVE,
        local_gid: gid_of_ip(r.source_ip),
        remote_gid: gid_of_ip(r.destination_ip),
        flow_label: r.flow_label,
        packet_rate: 0,
        traffic_class: r.traffic_class,
        hop_limit: r.hop_limit,
        service_level: 0,
        subnet_local: false,
        ack_timeout: r.local_ack_timeout.min(31),
    };
    let message = Req {
        local_comm_id: comm_id,
        service_id: r.service_id,
        ca_guid: config.ca_guid,
        qkey: 0,
        qpn: r.local_qpn,
        responder_resources: r.responder_resources,
        initiator_depth: r.initiator_depth,
        remote_response_timeout: config.response_timeout_code,
        transport: match r.transport {
            Transport::Rc => TransportService::Rc,
            Transport::Uc => TransportService::Uc,
        },
        flow_control: r.flow_control,
        starting_psn: r.starting_psn,
        local_response_timeout: config.response_timeout_code,
        retry_count: r.retry_count.min(7),
        pkey: PKEY_DEFAULT,
        path_mtu: r.path_mtu_code.min(15),
        rdc_exists: false,
        rnr_retry_count: r.rnr_retry_count.min(7),
        max_cm_retries: config.retries_max,
        srq: r.srq,
        primary,
        alternate: ReqPath::default(),
        sap_supported: false,
        private_data: r.private_data,
    };
    build(transaction, &Message::Req(message))
}

pub(crate) fn rep(config: &Config, c: &Connection, a: &Accept<'_>) -> Box<Mad> {
    let message = Rep {
        local_comm_id: c.id.0,
        remote_comm_id: c.peer_comm_id,
        qkey: 0,
        qpn: a.local_qpn,
        ee_context: 0,
        starting_psn: a.starting_psn,
        responder_resources: a.responder_resources,
        initiator_depth: a.initiator_depth,
        target_ack_delay: config.ack_delay_code,
        failover_accepted: 0,
        flow_control: a.flow_control,
        rnr_retry_count: a.rnr_retry_count.min(7),
        srq: a.srq,
        ca_guid: config.ca_guid,
        private_data: a.private_data,
    };
    build(c.transaction, &Message::Rep(message))
}

pub(crate) fn rtu(c: &Connection) -> Box<Mad> {
    let message = Rtu { local_comm_id: c.id.0, remote_comm_id: c.peer_comm_id, private_data: &[] };
    build(c.transaction, &Message::Rtu(message))
}

/// `transaction` is a new one: a DREQ begins its own transaction.
pub(crate) fn dreq(c: &Connection, transaction: u64) -> Box<Mad> {
    let message = Dreq {
        local_comm_id: c.id.0,
        remote_comm_id: c.peer_comm_id,
        remote_qpn: c.peer_qpn,
        private_data: &[],
    };
    build(transaction, &Message::Dreq(message))
}

/// Answers a DREQ with its own ids; also valid for unknown connections.
pub(crate) fn drep(header: &Header, dreq: &Dreq<'_>) -> Box<Mad> {
    let message = Drep {
        local_comm_id: dreq.remote_comm_id,
        remote_comm_id: dreq.local_comm_id,
        private_data: &[],
    };
    build(header.transaction_id, &Message::Drep(message))
}

pub(crate) fn mra(c: &Connection, received: MessageRejected, service_timeout: u8) -> Box<Mad> {
    let message = Mra {
        local_comm_id: c.id.0,
        remote_comm_id: c.peer_comm_id,
        received,
        service_timeout,
        private_data: &[],
    };
    build(c.transaction, &Message::Mra(message))
}

/// Rejects a message of a connection. With reason timeout it carries our adapter's GUID, by which
/// Linux finds the connection. `said`: rejection information and private data.
pub(crate) fn rej(
    config: &Config,
    c: &Connection,
    rejected: MessageRejected,
    reason: RejectReason,
    (info, private_data): (&[u8], &[u8]),
) -> Box<Mad> {
    let guid = config.ca_guid.to_be_bytes();
    let info: &[u8] = if reason == RejectReason::TIMEOUT { &guid } else { info };
    let message = Rej {
        // The sender of a rejected REQ never got an id of ours.
        local_comm_id: if rejected == MessageRejected::Req { 0 } else { c.id.0 },
        remote_comm_id: c.peer_comm_id,
        rejected,
        reason,
        info_len: info.len() as u8,
        info,
        private_data,
    };
    build(c.transaction, &Message::Rej(message))
}

/// Rejects a message that belongs to no connection of ours.
pub(crate) fn rej_unknown(
    header: &Header,
    local_comm_id: u32,
    remote_comm_id: u32,
    rejected: MessageRejected,
    reason: RejectReason,
) -> Box<Mad> {
    let message = Rej {
        local_comm_id,
        remote_comm_id,
        rejected,
        reason,
        info_len: 0,
        info: &[],
        private_data: &[],
    };
    build(header.transaction_id, &Message::Rej(message))
}

/// Rejects a REQ for its path MTU. Carries the largest one that we accept, as `ibv_mtu`.
pub(crate) fn rej_path_mtu(
    header: &Header,
    remote_comm_id: u32,
    path_mtu_code_max: u8,
) -> Box<Mad> {
    let message = Rej {
        local_comm_id: 0,
        remote_comm_id,
        rejected: MessageRejected::Req,
        reason: RejectReason::INVALID_PATH_MTU,
        info_len: 1,
        info: &[path_mtu_code_max],
        private_data: &[],
    };
    build(header.transaction_id, &Message::Rej(message))
}

/// The largest path MTU in a REJ of a REQ for its path MTU, as `ibv_mtu`.
pub(crate) fn path_mtu_wanted(rej: &Rej<'_>) -> Option<u8> {
    let is_about_it = rej.reason == RejectReason::INVALID_PATH_MTU
        && rej.rejected == MessageRejected::Req
        && rej.info_len > 0;
    rej.info.first().copied().filter(|code| is_about_it && (1..=5).contains(code))
}

/// The same REQ with another path MTU; `None` if `kept` is no REQ.
pub(crate) fn req_with_path_mtu(kept: &Mad, path_mtu: u8) -> Option<Box<Mad>> {
    match Message::read(kept) {
        Ok((header, Message::Req(req))) => {
            Some(build(header.transaction_id, &Message::Req(Req { path_mtu, ..req })))
        }
        _ => None,
    }
}

/// The kept REJ, addressed to a peer that retransmits its REQ and does not know our id yet.
pub(crate) fn rej_of_req(kept: &Mad) -> Option<Box<Mad>> {
    match Message::read(kept) {
        Ok((header, Message::Rej(rej))) => {
            let rej = Rej { local_comm_id: 0, rejected: MessageRejected::Req, ..rej };
            Some(build(header.transaction_id, &Message::Rej(rej)))
        }
        _ => None,
    }
}

pub(crate) fn sidr_req(id: u32, transaction: u64, r: &SidrRequest<'_>) -> Box<Mad> {
    let message = SidrReq {
        request_id: id,
        pkey: PKEY_DEFAULT,
        service_id: r.service_id,
        private_data: r.private_data,
    };
    build(transaction, &Message::SidrReq(message))
}

/// Answer to a request for a datagram service.
#[derive(Clone, Copy)]
pub(crate) struct SidrAnswer<'a> {
    pub status: SidrStatus,
    pub qpn: Qpn,
    pub qkey: u32,
    pub private_data: &'a [u8],
}

impl<'a> SidrAnswer<'a> {
    pub fn refusal(status: SidrStatus, private_data: &'a [u8]) -> Self {
        SidrAnswer { status, qpn: Qpn::default(), qkey: 0, private_data }
    }
}

pub(crate) fn sidr_rep(asked: &PeerRequest, answer: SidrAnswer<'_>) -> Box<Mad> {
    build(
        asked.transaction,
        &Message::SidrRep(answer_to(asked.request_id, asked.service_id, answer)),
    )
}

/// Answers a request that is not kept.
pub(crate) fn sidr_rep_unknown(header: &Header, r: &SidrReq<'_>, status: SidrStatus) -> Box<Mad> {
    let answer = SidrAnswer::refusal(status, &[]);
    build(header.transaction_id, &Message::SidrRep(answer_to(r.request_id, r.service_id, answer)))
}

fn answer_to(request_id: u32, service_id: u64, answer: SidrAnswer<'_>) -> SidrRep<'_> {
    let SidrAnswer { status, qpn, qkey, private_data } = answer;
    SidrRep { request_id, status, info_len: 0, qpn, service_id, qkey, info: &[], private_data }
}
