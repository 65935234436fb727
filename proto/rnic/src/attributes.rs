//! Attributes of QPs, shared receive queues and paths, as verbs set and return them.

use crate::{Access, CqId, PdId, QpKind, QpState, SrqId};
use longhaul_cc::RateLimit;
use longhaul_units::{Psn, Qpn};
use longhaul_work::Mtu;
use std::net::IpAddr;

/// Creation attributes of a QP.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct QpInit {
    /// Protection domain.
    pub pd: PdId,
    /// Transport service.
    pub kind: QpKind,
    /// CQ of send completions.
    pub send_cq: CqId,
    /// CQ of receive completions.
    pub recv_cq: CqId,
    /// Shared receive queue, which replaces the QP's own.
    pub srq: Option<SrqId>,
    /// Maximum queued send work requests. Rounded up to a power of two.
    pub sq_depth: u32,
    /// Maximum queued receive work requests. Rounded up to a power of two; 0 with a shared receive
    /// queue.
    pub rq_depth: u32,
    /// Segments per send work request, at most [`longhaul_work::SGE_MAX`].
    pub send_sge_max: u32,
    /// Segments per receive work request, at most [`longhaul_work::SGE_MAX`].
    pub recv_sge_max: u32,
    /// Inline bytes per send work request; costs that much memory per queue entry.
    pub inline_max: u32,
    /// Whether every send work request is signaled.
    pub signal_all: bool,
}

impl QpInit {
    /// A QP with both queues completing in `cq`, `depth` work requests per queue, one segment each,
    /// no inline data, every send signaled.
    pub fn new(kind: QpKind, pd: PdId, cq: CqId, depth: u32) -> Self {
        QpInit {
            pd,
            kind,
            send_cq: cq,
            recv_cq: cq,
            srq: None,
            sq_depth: depth,
            rq_depth: depth,
            send_sge_max: 1,
            recv_sge_max: 1,
            inline_max: 0,
            signal_all: true,
        }
    }
}

/// Creation attributes of a shared receive queue.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SrqInit {
    /// Protection domain.
    pub pd: PdId,
    /// Maximum queued receive work requests. Rounded up to a power of two.
    pub depth: u32,
    /// Segments per receive work request, at most [`longhaul_work::SGE_MAX`].
    pub sge_max: u32,
    /// Raise [`crate::Event::SrqLimitReached`] once, if fewer than this many are left; 0: never.
    pub limit: u32,
}

/// Path of a QP's packets.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct AddressVector {
    /// The peer's address, of the same family as the device's own (an IPv4-mapped GID is an IPv4
    /// address here).
    pub destination_ip: IpAddr,
    /// TTL or hop limit, 1 to 255.
    pub hop_limit: u8,
    /// DSCP and ECN.
    pub traffic_class: u8,
    /// 20 bits; 0 derives the UDP source port from the two QPNs.
    pub flow_label: u32,
}

impl AddressVector {
    /// To `ip`, with a hop limit of 64, traffic class 0 and no flow label.
    pub fn to(ip: IpAddr) -> Self {
        AddressVector { destination_ip: ip, hop_limit: 64, traffic_class: 0, flow_label: 0 }
    }
}

/// Attributes for [`crate::Rnic::modify_qp`]; `None` leaves an attribute unchanged.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct QpAttr {
    /// New state; `None` keeps the state.
    pub state: Option<QpState>,
    /// State that the caller expects; otherwise the call is refused.
    pub current_state: Option<QpState>,
    /// Raise [`crate::QpEvent::SendQueueDrained`] once the send queue is drained.
    pub drain_event: Option<bool>,
    /// Path MTU.
    pub path_mtu: Option<Mtu>,
    /// The peer's address.
    pub address: Option<AddressVector>,
    /// The peer's QP.
    pub dest_qpn: Option<Qpn>,
    /// First PSN to expect.
    pub rq_psn: Option<Psn>,
    /// First PSN to send.
    pub sq_psn: Option<Psn>,
    /// Operations permitted to the peer.
    pub access: Option<Access>,
    /// READs and atomics that may be outstanding to the peer.
    pub max_rd_atomic: Option<u8>,
    /// READs and atomics that the peer may have outstanding here.
    pub max_dest_rd_atomic: Option<u8>,
    /// RNR timer code, 0 to 31, see [`longhaul_wire::rnr_timer`].
    pub min_rnr_timer: Option<u8>,
    /// Local ACK timeout exponent, 0 to 31: 4.096 µs times two to this power; 0 never expires.
    pub timeout: Option<u8>,
    /// Retries without progress, 0 to 7.
    pub retry_cnt: Option<u8>,
    /// RNR retries, 0 to 6; 7 never gives up.
    pub rnr_retry: Option<u8>,
    /// QKey that received datagrams must carry, and that is sent if the work request says so.
    pub qkey: Option<u32>,
    /// Maximum rate of the QP's requests and READ responses; `Some(None)` lifts the limit.
    pub rate_limit: Option<Option<RateLimit>>,
    /// Only 0 is valid: PKey 0xffff.
    pub pkey_index: Option<u16>,
    /// Only 1 is valid.
    pub port: Option<u8>,
}

impl QpAttr {
    /// A change of state only.
    pub fn to(state: QpState) -> Self {
        QpAttr { state: Some(state), ..QpAttr::default() }
    }

    /// From reset to initialized, of a connected QP that permits `access` to its peer. Receives can
    /// then be posted.
    pub fn initialize(access: Access) -> Self {
        let access = Some(access);
        QpAttr { pkey_index: Some(0), port: Some(1), access, ..QpAttr::to(QpState::Init) }
    }

    /// From reset to initialized, of a datagram QP.
    pub fn initialize_datagrams(qkey: u32) -> Self {
        let qkey = Some(qkey);
        QpAttr { pkey_index: Some(0), port: Some(1), qkey, ..QpAttr::to(QpState::Init) }
    }
}

/// Configuration and state of a QP.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct QpInfo {
    /// The QP.
    pub qpn: Qpn,
    /// Creation attributes, with depths as rounded up.
    pub init: QpInit,
    /// State.
    pub state: QpState,
    /// The send queue is draining: messages that were begun are not finished.
    pub draining: bool,
    /// Attributes as last set, `None` if never set. PSNs are the current ones: `sq_psn` is the next
    /// to be sent, `rq_psn` the next expected.
    pub attr: QpAttr,
}
