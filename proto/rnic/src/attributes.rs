//! Attributes of QPs, shared receive queues and paths, as verbs set and return them.

use crate::{Access, CqId, PdId, QpKind, QpState, SrqId};
use longhaul_cc::RateLimit;
use longhaul_units::{Psn, Qpn};
use longhaul_work::Mtu;
use std::net::IpAddr;

/// What a QP is created with.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct QpInit {
    /// Protection domain.
    pub pd: PdId,
    /// Transport service.
    pub kind: QpKind,
    /// Where send completions go.
    pub send_cq: CqId,
    /// Where receive completions go.
    pub recv_cq: CqId,
    /// Shared receive queue to take receives from; then there is none of its own.
    pub srq: Option<SrqId>,
    /// Send work requests that can be queued. Rounded up to a power of two.
    pub sq_depth: u32,
    /// Receive work requests that can be queued. Rounded up to a power of two; 0 with a shared
    /// receive queue.
    pub rq_depth: u32,
    /// Segments per send work request, at most [`longhaul_work::SGE_MAX`].
    pub send_sge_max: u32,
    /// Segments per receive work request, at most [`longhaul_work::SGE_MAX`].
    pub recv_sge_max: u32,
    /// Inline bytes per send work request; costs that much memory per queue entry.
    pub inline_max: u32,
    /// Every send work request is signaled.
    pub signal_all: bool,
}

impl QpInit {
    /// Completions of both queues in `cq`, `depth` work requests per queue, one segment each, no
    /// inline data, every send signaled.
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

/// What a shared receive queue is created with.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SrqInit {
    /// Protection domain.
    pub pd: PdId,
    /// Receive work requests that can be queued. Rounded up to a power of two.
    pub depth: u32,
    /// Segments per receive work request, at most [`longhaul_work::SGE_MAX`].
    pub sge_max: u32,
    /// Raise [`crate::Event::SrqLimitReached`] once, when fewer than this many are left; 0 never.
    pub limit: u32,
}

/// Where a QP's packets go.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct AddressVector {
    /// The peer, of the same family as the device's own address (an IPv4-mapped GID is an IPv4
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

/// Attributes for [`crate::Rnic::modify_qp`]; `None` leaves one as it is.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct QpAttr {
    /// State to go to; `None` keeps the state.
    pub state: Option<QpState>,
    /// State that the caller believes the QP to be in; the call is refused when it is not.
    pub current_state: Option<QpState>,
    /// Raise [`crate::QpEvent::SendQueueDrained`] when the send queue is drained.
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
    /// What the peer may do.
    pub access: Option<Access>,
    /// READs and atomics that may be outstanding to the peer.
    pub max_rd_atomic: Option<u8>,
    /// READs and atomics that the peer may have outstanding here.
    pub max_dest_rd_atomic: Option<u8>,
    /// RNR timer code, 0 to 31, see [`longhaul_wire::rnr_timer`].
    pub min_rnr_timer: Option<u8>,
    /// Local ACK timeout exponent, 0 to 31: 4.096 µs times two to this power; 0 waits for ever.
    pub timeout: Option<u8>,
    /// Retries without progress, 0 to 7.
    pub retry_cnt: Option<u8>,
    /// RNR retries, 0 to 6; 7 never gives up.
    pub rnr_retry: Option<u8>,
    /// QKey that datagrams must carry, and are sent with when a work request says so.
    pub qkey: Option<u32>,
    /// Fastest rate that the QP sends requests and READ responses at; `Some(None)` lifts the limit.
    pub rate_limit: Option<Option<RateLimit>>,
    /// 0 is the only one: PKey 0xffff.
    pub pkey_index: Option<u16>,
    /// 1 is the only one.
    pub port: Option<u8>,
}

impl QpAttr {
    /// A change of state and nothing else.
    pub fn to(state: QpState) -> Self {
        QpAttr { state: Some(state), ..QpAttr::default() }
    }

    /// From reset to initialized, of a connected QP whose peer may do `access`. Receives can be
    /// posted from then on.
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
    /// As created; depths as rounded up.
    pub init: QpInit,
    /// State.
    pub state: QpState,
    /// On the way to a drained send queue: something that has begun is not done.
    pub draining: bool,
    /// Attributes as last set, `None` when never set. PSNs are the current ones: `sq_psn` is the
    /// next to be sent, `rq_psn` the next expected.
    pub attr: QpAttr,
}
