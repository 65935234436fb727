//! What a NIC and its driver are like.

use serde::{Deserialize, Serialize};

/// A NIC's limits and what it and its host take for their work. Times are in nanoseconds of virtual
/// time.
///
/// A profile's file has all but what the NIC does about congestion, which a scenario says of its
/// hosts.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct NicProfile {
    /// What results call it.
    pub name: String,
    /// What it stands for, in a line.
    pub about: String,
    /// Rate of its port in bits on the wire per second.
    pub rate_bps: u64,
    /// WQEs of one QP that are sent and not acknowledged, at most (ConnectX:
    /// 2^LOG_MAX_OUTSTANDING_WQE).
    pub outstanding_wqes: u32,
    /// READs and atomics of one QP that await their responses, at most: 1 to 128.
    pub outstanding_reads: u8,
    /// Packets of one QP that are sent and not acknowledged, at most: 1 to 2^23.
    pub outstanding_psns: u32,
    /// As requester it asks for an acknowledgement at each message's end and at least every so many
    /// packets: 1 to 2^23; more than `outstanding_psns` count as that many.
    pub ack_request_every: u32,
    /// As responder it acknowledges at least every so many packets, asked or not.
    pub ack_every: u32,
    /// Least time between two messages that the port begins.
    pub message_ns: u64,
    /// Least time between two packets that the port sends.
    pub packet_ns: u64,
    /// From the program's call to the NIC knowing of the work request.
    pub doorbell_ns: u64,
    /// From the last response to the program being able to see the completion.
    pub completion_ns: u64,
    /// From a packet's last bit to the NIC having acted on it.
    pub responder_ns: u64,
    /// What posting one work request costs the program.
    pub post_ns: u64,
    /// What polling one completion costs the program.
    pub poll_ns: u64,
    /// Local ACK timeout: 4.096 µs x 2^this; 0 waits for ever.
    pub timeout_code: u8,
    /// Retries without progress, 0 to 7.
    pub retry_count: u8,
    /// The timer begins at `adaptive_first_ns` and doubles with each retry, whatever `timeout_code`
    /// says (ConnectX, ROCE_ACCL).
    pub adaptive_retransmission: bool,
    /// See `adaptive_retransmission`.
    pub adaptive_first_ns: u64,
    /// Least time between two packets that it takes in: 0 keeps up with any link.
    #[serde(skip)]
    pub receive_packet_ns: u64,
    /// Room for packets that wait to be taken in, in bytes on the wire; what does not fit is
    /// dropped.
    #[serde(skip)]
    pub receive_buffer_bytes: u64,
    /// Priority-based flow control: it obeys pause frames, and sends them while its receive buffer
    /// is full but for headroom.
    #[serde(skip)]
    pub pfc: bool,
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
            timeout_code: 14,
            retry_count: 7,
            adaptive_retransmission: false,
            adaptive_first_ns: 2_000_000,
            receive_packet_ns: 0,
            receive_buffer_bytes: 1 << 20,
            pfc: true,
            dcqcn: false,
        }
    }
}
