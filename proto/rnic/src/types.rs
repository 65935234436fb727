use longhaul_node::{Gather, Payload};
use longhaul_rc::Mtu;
use longhaul_units::{BitRate, LKey, Psn, Qpn, RKey};
use longhaul_wire::MacAddr;
use std::net::IpAddr;

/// Registered memory: addresses are those that [`crate::Rnic::reg_mr`] was given (a process's virtual
/// addresses, usually). The device has held every access against the bounds and permissions of a region before
/// it calls; only inline data is read from wherever the caller of `post_send` says.
pub trait Memory: Gather {
    /// Copies `payload` to `address`.
    fn scatter(&mut self, address: u64, payload: &Payload<'_>);
}

/// A device's parameters. All queues are bounded by what is given here or at creation.
#[derive(Clone, Debug)]
pub struct Config {
    /// The port's Ethernet address.
    pub mac: MacAddr,
    /// The port's IP address; GID 0 and 1 derive from it.
    pub ip: IpAddr,
    /// Largest path MTU that a QP may be given.
    pub path_mtu_max: Mtu,
    /// Rate that frames leave at, counted with [`longhaul_cc::wire_bytes`]; `None` sends as fast as there is room.
    pub port_rate: Option<BitRate>,
    /// Bytes that may leave back to back ahead of the rate.
    pub port_burst_bytes: u64,
    /// First QPN to hand out, at least 2.
    pub qpn_first: u32,
    /// How many QPNs there are, which bounds the number of QPs. Numbers are reused as late as possible.
    pub qpn_count: u32,
    /// MAC addresses of peers; who is not here has 02:00 followed by the last four bytes of the IP address.
    pub neighbours: Vec<(IpAddr, MacAddr)>,
    /// Seed of what the device draws: the connection manager's numbers, unless its own configuration has a seed.
    pub seed: u64,
    /// MRs that can exist at once, at most 2^23.
    pub mr_count_max: u32,
    /// CQs that can exist at once.
    pub cq_count_max: u32,
    /// PDs that can exist at once.
    pub pd_count_max: u32,
    /// Entries of the largest CQ.
    pub cq_depth_max: u32,
    /// Entries of the largest send or receive queue.
    pub wq_depth_max: u32,
    /// Largest inline size in bytes.
    pub inline_max: u32,
    /// Largest number of outstanding READs, either way.
    pub rd_atomic_max: u8,
    /// PSNs that a requester keeps outstanding at most; 2^23 is what the protocol allows.
    pub window_packets: u32,
    /// Work requests that a requester keeps outstanding at most, to mimic a ConnectX's `LOG_MAX_OUTSTANDING_WQE`.
    pub window_messages: u32,
    /// A requester asks for an ACK at least this often, in packets, besides each message's end.
    pub ack_request_every: u32,
    /// A responder acknowledges at least this often, in packets, whether asked or not.
    pub ack_every: u32,
    /// Report the receive queue's depth as end-to-end credits; otherwise "no limit" (code 31), as kernel rxe does.
    pub report_credits: bool,
    /// Obey the peer's end-to-end credits.
    pub obey_credits: bool,
    /// MigReq bit of what is sent; ConnectX sends 1, kernel rxe 0.
    pub migreq: bool,
    /// The connection manager's parameters.
    pub cm: longhaul_cm::Config,
}

impl Config {
    /// The values for a host `ip` behind `mac`, with everything else at its usual value.
    pub fn new(mac: MacAddr, ip: IpAddr) -> Self {
        Config {
            mac,
            ip,
            path_mtu_max: Mtu::B4096,
            port_rate: None,
            port_burst_bytes: 32 * 1024,
            qpn_first: 0x11,
            qpn_count: 65_536,
            neighbours: Vec::new(),
            seed: 0,
            mr_count_max: 1 << 20,
            cq_count_max: 65_536,
            pd_count_max: 32_768,
            cq_depth_max: 1 << 22,
            wq_depth_max: 1 << 17,
            inline_max: 1024,
            rd_atomic_max: 128,
            window_packets: 1 << 23,
            window_messages: u32::MAX,
            ack_request_every: 64,
            ack_every: 64,
            report_credits: false,
            obey_credits: true,
            migreq: true,
            cm: longhaul_cm::Config::default(),
        }
    }
}

/// A protection domain.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct PdId(pub u32);

/// A completion queue.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct CqId(pub u32);

/// What a region or a QP may be used for. The bits are those of `enum ibv_access_flags`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Access(pub u32);

impl Access {
    /// Local reads only.
    pub const LOCAL_READ: Access = Access(0);
    /// Receives and READs may write here.
    pub const LOCAL_WRITE: Access = Access(1);
    /// The peer may WRITE; needs `LOCAL_WRITE` in a region.
    pub const REMOTE_WRITE: Access = Access(2);
    /// The peer may READ.
    pub const REMOTE_READ: Access = Access(4);
    /// The peer may do atomics; needs `LOCAL_WRITE` in a region.
    pub const REMOTE_ATOMIC: Access = Access(8);
    /// All of the above.
    pub const ALL: Access = Access(15);

    /// True when every bit of `other` is set.
    pub const fn contains(self, other: Access) -> bool {
        self.0 & other.0 == other.0
    }

    /// Both together.
    #[must_use]
    pub const fn and(self, other: Access) -> Access {
        Access(self.0 | other.0)
    }
}

impl std::ops::BitOr for Access {
    type Output = Access;
    fn bitor(self, other: Access) -> Access {
        self.and(other)
    }
}

/// The keys of a region. Keys carry a generation, so that those of a deregistered region fail.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct MrKeys {
    /// For local work requests, and for [`crate::Rnic::dereg_mr`].
    pub lkey: LKey,
    /// For the peer.
    pub rkey: RKey,
}

/// Transport service of a QP.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum QpKind {
    /// Reliable connected.
    Rc,
    /// Unreliable connected; not supported by this device.
    Uc,
    /// Unreliable datagram; not supported by this device.
    Ud,
}

/// State of a QP. Numbers are those of `enum ibv_qp_state`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(u8)]
pub enum QpState {
    /// Just created.
    Reset = 0,
    /// Receives can be posted.
    Init = 1,
    /// Ready to receive.
    ReadyToReceive = 2,
    /// Ready to send.
    ReadyToSend = 3,
    /// The send queue drains: what has begun is finished, nothing further begins.
    SendQueueDrained = 4,
    /// Failed or told to stop: everything posted is flushed.
    Error = 6,
}

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
    /// Send work requests that can be queued. Rounded up to a power of two.
    pub sq_depth: u32,
    /// Receive work requests that can be queued. Rounded up to a power of two.
    pub rq_depth: u32,
    /// Segments per send work request, at most [`longhaul_rc::SGE_MAX`].
    pub send_sge_max: u32,
    /// Segments per receive work request, at most [`longhaul_rc::SGE_MAX`].
    pub recv_sge_max: u32,
    /// Inline bytes per send work request; costs that much memory per queue entry.
    pub inline_max: u32,
    /// Every send work request is signaled.
    pub signal_all: bool,
}

/// Where a QP's packets go.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct AddressVector {
    /// The peer, of the same family as the device's own address (an IPv4-mapped GID is an IPv4 address here).
    pub destination_ip: IpAddr,
    /// TTL or hop limit, 1 to 255.
    pub hop_limit: u8,
    /// DSCP and ECN.
    pub traffic_class: u8,
    /// 20 bits; 0 derives the UDP source port from the two QPNs.
    pub flow_label: u32,
}

/// Attributes for [`crate::Rnic::modify_qp`]; `None` leaves one as it is.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct QpAttr {
    /// State to go to; `None` keeps the state.
    pub state: Option<QpState>,
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
    /// READs that may be outstanding to the peer.
    pub max_rd_atomic: Option<u8>,
    /// READs that the peer may have outstanding here.
    pub max_dest_rd_atomic: Option<u8>,
    /// RNR timer code, 0 to 31, see [`longhaul_wire::rnr_timer`].
    pub min_rnr_timer: Option<u8>,
    /// Local ACK timeout exponent, 0 to 31: 4.096 µs times two to this power; 0 waits for ever.
    pub timeout: Option<u8>,
    /// Retries without progress, 0 to 7.
    pub retry_cnt: Option<u8>,
    /// RNR retries, 0 to 6; 7 never gives up.
    pub rnr_retry: Option<u8>,
    /// 0 is the only one: PKey 0xffff.
    pub pkey_index: Option<u16>,
    /// 1 is the only one.
    pub port: Option<u8>,
}

/// All there is to know about a QP's configuration.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct QpInfo {
    /// The QP.
    pub qpn: Qpn,
    /// As created; depths as rounded up.
    pub init: QpInit,
    /// State.
    pub state: QpState,
    /// Attributes as last set, `None` when never set. PSNs are the current ones: `sq_psn` is the next to be
    /// sent, `rq_psn` the next expected.
    pub attr: QpAttr,
}

/// Something that happened without being polled for.
#[derive(Clone, Debug, PartialEq)]
#[expect(clippy::large_enum_variant, reason = "events are rare, and taken one at a time")]
pub enum Event {
    /// A CQ that was armed has a completion; it is disarmed.
    CompletionReady(CqId),
    /// A CQ overran: completions were lost.
    CqError(CqId),
    /// Something happened to a QP.
    Qp {
        /// Which.
        qpn: Qpn,
        /// What.
        kind: QpEvent,
    },
    /// The connection manager has something to say.
    Cm(longhaul_cm::Event),
}

/// Asynchronous events of a QP. The names follow `enum ibv_event_type`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum QpEvent {
    /// The QP went to error for a reason that no completion tells.
    Fatal,
    /// The peer sent a request that was answered with "invalid request".
    RequestError,
    /// The peer sent a request that was answered with "remote access error".
    AccessError,
    /// The first packet arrived before the state was ready to send.
    CommunicationEstablished,
    /// The send queue is drained.
    SendQueueDrained,
}
