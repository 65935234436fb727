//! Parameters of a requester's connection.

use super::{PROBE_ABOVE, WINDOW_MAX};
use longhaul_units::{Duration, Psn, Qpn};
use longhaul_wire::PKEY_DEFAULT;
use longhaul_work::Mtu;

/// Parameters of a requester's connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RequesterConfig {
    /// The local QP.
    pub qpn: Qpn,
    /// The peer's QP.
    pub dest_qpn: Qpn,
    /// First PSN to send.
    pub sq_psn: Psn,
    /// Path MTU.
    pub mtu: Mtu,
    /// READs and atomics that may be outstanding.
    pub max_rd_atomic: u32,
    /// Local ACK timeout; `None` never expires.
    pub timeout: Option<Duration>,
    /// Adaptive retransmission, like ConnectX: the timer begins at this and doubles with each
    /// expiry without progress, up to `timeout`. The requester fails after `retry_cnt` times
    /// `timeout`. Sources: NVIDIA, "Adaptive Retransmission: Parameters Control";
    /// linux-rdma/perftest issue 251.
    pub adaptive_timeout: Option<Duration>,
    /// Retries without progress, 0 to 7.
    pub retry_cnt: u8,
    /// RNR retries without progress, 0 to 6; 7 never gives up.
    pub rnr_retry: u8,
    /// PSNs that may be outstanding, 1 to [`WINDOW_MAX`]; a READ may overshoot.
    pub window_packets: u32,
    /// Work requests that may be outstanding.
    pub window_messages: u32,
    /// Maximum packets between AckReqs, in addition to one at each message's end. Capped at
    /// `window_packets`: a full window without an AckReq would wait for the timer.
    pub ack_request_every: u32,
    /// Whether the packet that fills the window also has an AckReq, so that the whole window is
    /// acknowledged within a round trip. Kernel rxe sends none.
    pub ack_request_at_window_end: bool,
    /// With more packets than this outstanding, a local ACK timeout retransmits only the first and
    /// the last, and the answer shows which are missing. `u32::MAX` always retransmits everything,
    /// as NICs do.
    pub probe_above: u32,
    /// Packets that count as sent without an AckReq when the connection begins. If QPs have
    /// different values, those that start together do not all send AckReqs at once, and answers
    /// measure the delay continuously.
    pub ack_request_phase: u32,
    /// While the device's answers take longer than the local ACK timeout, a timer is extended up to
    /// this many times; the standard allows 4 (IBTA, volume 1, section 9.7.6.1.3).
    pub timeout_stretch_max: u32,
    /// Whether to obey end-to-end credits.
    pub obey_credits: bool,
    /// MigReq bit to send.
    pub migreq: bool,
    /// Partition key.
    pub pkey: u16,
}

impl Default for RequesterConfig {
    /// Configuration of an unconnected queue pair.
    fn default() -> Self {
        RequesterConfig {
            qpn: Qpn::new(0),
            dest_qpn: Qpn::new(0),
            sq_psn: Psn::new(0),
            mtu: Mtu::B1024,
            max_rd_atomic: 0,
            timeout: None,
            adaptive_timeout: None,
            retry_cnt: 0,
            rnr_retry: 0,
            window_packets: WINDOW_MAX,
            window_messages: u32::MAX,
            ack_request_every: 64,
            ack_request_at_window_end: true,
            probe_above: PROBE_ABOVE,
            ack_request_phase: 0,
            timeout_stretch_max: 1,
            obey_credits: true,
            migreq: false,
            pkey: PKEY_DEFAULT,
        }
    }
}
