//! Profiles of a NIC and its driver.

use serde::{Deserialize, Serialize};

/// A NIC's limits, and the time costs of the NIC and its host, in nanoseconds of virtual time.
///
/// A profile's file has all fields except those for flow and congestion control, which a scenario
/// sets for its hosts.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct NicProfile {
    /// Name in results.
    pub name: String,
    /// One-line description.
    pub about: String,
    /// Rate of its port in bits on the wire per second.
    pub rate_bps: u64,
    /// Maximum unacknowledged WQEs of one QP (ConnectX: 2^LOG_MAX_OUTSTANDING_WQE).
    pub outstanding_wqes: u32,
    /// Maximum outstanding READs and atomics of one QP: 1 to 128.
    pub outstanding_reads: u8,
    /// Maximum unacknowledged packets of one QP: 1 to 2^23.
    pub outstanding_psns: u32,
    /// Packets between acknowledgement requests of the requester, which also requests one at each
    /// message's end: 1 to 2^23, capped at `outstanding_psns`.
    pub ack_request_every: u32,
    /// Packets between acknowledgements that the responder sends unrequested.
    pub ack_every: u32,
    /// Minimum time between the starts of two messages at the port.
    pub message_ns: u64,
    /// Minimum time between two packets at the port.
    pub packet_ns: u64,
    /// Time from the program's call until the NIC has the work request.
    pub doorbell_ns: u64,
    /// Time from the last response until the program can see the completion.
    pub completion_ns: u64,
    /// Time from a packet's last bit until the NIC has processed it.
    pub responder_ns: u64,
    /// The program's time to post one work request.
    pub post_ns: u64,
    /// The program's time to poll one completion.
    pub poll_ns: u64,
    /// The requester's time to ring a doorbell, once per posted list.
    pub list_ns: u64,
    /// Processor time of a completion event: the call that returns it, its acknowledgement, and
    /// the request for the next.
    pub event_ns: u64,
    /// Time from an event until the thread that waits for it runs, which is not processor time.
    pub wakeup_ns: u64,
    /// Additional processor time of an event whose thread runs after another thread of its program.
    pub switch_ns: u64,
    /// The program's time, per QP of a shared receive queue and per message, to find the message's
    /// QP, in picoseconds.
    pub search_ps: u64,
    /// Minimum time between two messages that take a receive of a shared receive queue.
    pub srq_message_ns: u64,
    /// Local ACK timeout: 4.096 µs x 2^`timeout_code`; 0: none.
    pub timeout_code: u8,
    /// Maximum retries without progress, 0 to 7.
    pub retry_count: u8,
    /// The timer starts at `adaptive_first_ns` and doubles with each retry, up to `timeout_code`'s;
    /// the QP fails after `retry_count` times that (ConnectX, ROCE_ACCL).
    pub adaptive_retransmission: bool,
    /// See `adaptive_retransmission`.
    pub adaptive_first_ns: u64,
    /// Minimum time between two received packets; 0: line rate.
    #[serde(skip)]
    pub receive_packet_ns: u64,
    /// Size of the receive buffer, in bytes on the wire; packets beyond it are dropped.
    #[serde(skip)]
    pub receive_buffer_bytes: u64,
    /// Priority-based flow control: the NIC obeys pause frames, and sends them while only headroom
    /// is left in its receive buffer.
    #[serde(skip)]
    pub pfc: bool,
    /// Receives of the queue that all QPs of the host share; 0: each QP has its own.
    #[serde(skip)]
    pub srq_depth: u32,
    /// Limit of transmission in bits on the wire per second, as ETS shapes a traffic class; 0:
    /// none.
    #[serde(skip)]
    pub egress_rate_bps: u64,
    /// DCQCN: packets are ECN-capable, marked ones are answered by CNPs, and CNPs slow their QP.
    #[serde(skip)]
    pub dcqcn: bool,
}

impl Default for NicProfile {
    /// A NIC at 100 Gbit/s without limits and costs.
    fn default() -> Self {
        NicProfile {
            name: "ideal".to_owned(),
            about: "no limits and no costs beyond the protocol's".to_owned(),
            rate_bps: 100_000_000_000,
            outstanding_wqes: u32::MAX,
            outstanding_reads: 128,
            outstanding_psns: 1 << 23,
            ack_request_every: 64,
            ack_every: 64,
            message_ns: 0,
            packet_ns: 0,
            doorbell_ns: 0,
            completion_ns: 0,
            responder_ns: 0,
            post_ns: 0,
            poll_ns: 0,
            list_ns: 0,
            event_ns: 0,
            wakeup_ns: 0,
            switch_ns: 0,
            search_ps: 0,
            srq_message_ns: 0,
            timeout_code: 14,
            retry_count: 7,
            adaptive_retransmission: false,
            adaptive_first_ns: 2_000_000,
            receive_packet_ns: 0,
            receive_buffer_bytes: 1 << 20,
            pfc: true,
            srq_depth: 0,
            egress_rate_bps: 0,
            dcqcn: false,
        }
    }
}
