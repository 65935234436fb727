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
    /// Local ACK timeout; `None` waits for ever.
    pub timeout: Option<Duration>,
    /// As ConnectX with adaptive retransmission: the timer begins at this and doubles with each
    /// retry without progress, whatever `timeout` says. Source: behaviour reported in
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
    /// Ask for an ACK at least this often, in packets, besides each message's end. More than
    /// `window_packets` counts as that many: a full window that nobody was asked to acknowledge
    /// would wait for the timer.
    pub ack_request_every: u32,
    /// Ask for an ACK with the packet that fills the window as well, so that all of it comes back
    /// in a round trip. Kernel rxe does not.
    pub ack_request_at_window_end: bool,
    /// With more packets than this outstanding, a local ACK timeout retransmits the first and the
    /// last alone, and the answer tells what is missing. `u32::MAX` always retransmits everything,
    /// as NICs do.
    pub probe_above: u32,
    /// Packets that count as sent without an AckReq when the connection begins. Where it differs
    /// from QP to QP, those that begin together do not all ask at once, and answers tell at any
    /// time how long they take.
    pub ack_request_phase: u32,
    /// While the device's answers take longer than the local ACK timeout, a timer waits for up to
    /// this many times that: 4 is what the standard allows (IBTA, volume 1, section 9.7.6.1.3).
    pub timeout_stretch_max: u32,
    /// Obey end-to-end credits.
    pub obey_credits: bool,
    /// MigReq bit to send.
    pub migreq: bool,
    /// Partition key.
    pub pkey: u16,
}

impl Default for RequesterConfig {
    /// That of a queue pair which is not connected.
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
