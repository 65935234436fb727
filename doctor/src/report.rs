//! The doctor's report: plain values, serialised as JSON (`docs/doctor.md`).

use crate::connections::{Agreed, ConnectionManager};
use crate::doctor::End;
use crate::histogram::Quantiles;
use crate::others::OtherTraffic;
use serde::Serialize;
use std::net::IpAddr;

/// Everything about one capture.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// Version of this structure, which increases when a field changes its meaning or is removed.
    pub schema: u32,
    /// The file as such.
    pub capture: Capture,
    /// Findings about the capture as a whole.
    pub findings: Vec<Finding>,
    /// Directions of requests, the worst first.
    pub flows: Vec<Flow>,
    /// Packets of flows beyond the doctor's bound.
    pub flows_not_followed: u64,
    /// Messages of the connection manager.
    pub connection_manager: ConnectionManager,
    /// Traffic other than RoCEv2, most frequent first.
    pub other_traffic: Vec<OtherTraffic>,
}

/// The file as such.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Capture {
    /// Frames read.
    pub frames: u64,
    /// Their original lengths in bytes, without FCS.
    pub frame_bytes: u64,
    /// Time of the first frame in nanoseconds since 1970, if the capture has timestamps.
    pub first_unix_ns: Option<u64>,
    /// From the first to the last frame.
    pub duration_ns: u64,
    /// Frames without a timestamp.
    pub untimed_frames: u64,
    /// Frames truncated by the snap length.
    pub cut_frames: u64,
    /// Frames with an earlier timestamp than a previous frame.
    pub backward_frames: u64,
    /// Link types with the frames of each.
    pub link_types: Vec<Link>,
    /// RoCEv2 packets whose headers were read.
    pub roce_packets: u64,
    /// Other frames.
    pub other_frames: u64,
    /// Malformed packets to UDP port 4791.
    pub malformed_packets: u64,
    /// The first of them.
    pub first_malformed_frame: Option<u64>,
    /// Frames truncated before they could be classified.
    pub cut_in_headers: u64,
    /// The invariant CRC.
    pub icrc: IcrcCounts,
    /// Responses whose requests are not in the capture, or were not found.
    pub answers_without_requests: u64,
    /// Where reading ended.
    pub end: End,
}

/// Frames of one link type.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Link {
    /// The tcpdump project's number.
    pub number: u16,
    /// Its name.
    pub name: &'static str,
    /// Number of frames.
    pub frames: u64,
}

/// The invariant CRC.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize)]
pub struct IcrcCounts {
    /// Packets with a correct ICRC.
    pub right: u64,
    /// Packets with a wrong ICRC, which receivers drop.
    pub wrong: u64,
    /// Truncated packets.
    pub not_checked: u64,
    /// The first packet with a wrong ICRC.
    pub first_wrong_frame: Option<u64>,
    /// The common value of all wrong ICRCs in wire order, if there are at least two.
    pub constant: Option<String>,
}

/// Confidence of a finding.
#[derive(Clone, Copy, PartialEq, Eq, Debug, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Confidence {
    /// The packets prove it.
    Seen,
    /// The packets show its usual symptom.
    Likely,
}

/// Severity of a finding.
#[derive(Clone, Copy, PartialEq, Eq, Debug, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Severity {
    /// Informational.
    Note,
    /// Costs throughput, or may cost it.
    Warning,
    /// Something failed.
    Failure,
}

/// One conclusion.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Finding {
    /// A stable name: `read_limit`, `sequence_nak`.
    pub rule: &'static str,
    /// Severity.
    pub severity: Severity,
    /// Confidence.
    pub confidence: Confidence,
    /// In one sentence.
    pub what: String,
    /// The numbers behind it.
    pub evidence: String,
    /// Recommended change, if any.
    pub advice: Option<String>,
    /// Share of the flow's time that it cost, 0 to 1, if known.
    pub share_of_time: Option<f64>,
}

/// One side of a flow.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Side {
    /// IP address.
    pub ip: IpAddr,
    /// Queue pair; unknown if nothing was sent to it.
    pub qpn: Option<u32>,
}

/// How requester and responder were paired.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Pairing {
    /// By the connection manager's messages.
    ConnectionManager,
    /// By PSNs: responses match outstanding requests.
    Traffic,
    /// No responses in the capture, or none match.
    None,
}

/// One direction of requests.
#[derive(Clone, Debug, Serialize)]
pub struct Flow {
    /// Position in the report, from 1.
    pub number: usize,
    /// Position in the order of the capture; the same on each reading.
    pub id: usize,
    /// `RC`, `UC`, `UD` or `other`.
    pub transport: &'static str,
    /// The requester.
    pub requester: Side,
    /// The responder.
    pub responder: Side,
    /// How the two were paired.
    pub pairing: Pairing,
    /// `id` of the flow in the other direction of this connection, if it has requests.
    pub reverse_id: Option<usize>,
    /// Parameters from the connection manager.
    pub agreed: Option<Agreed>,
    /// Number of the first frame, from 1.
    pub first_frame: u64,
    /// Time of the first frame since the start of the capture.
    pub start_ns: u64,
    /// From the first to the last packet.
    pub duration_ns: u64,
    /// Request packets, including retransmissions.
    pub request_packets: u64,
    /// Response packets.
    pub response_packets: u64,
    /// Path MTU in bytes: from the connection manager, from full packets, or from READs.
    pub path_mtu: Option<u32>,
    /// Messages by operation.
    pub operations: Vec<OperationSizes>,
    /// Messages of unknown size.
    pub unsized_messages: u64,
    /// Payload bytes of requests and READ responses, without retransmissions.
    pub payload_bytes: u64,
    /// Payload bits per second of the flow's duration.
    pub goodput_bps: f64,
    /// Bits per second of both sides' frames, with FCS, preamble and gap.
    pub wire_bps: f64,
    /// The same over the busiest 100 µs.
    pub peak_bps: f64,
    /// Times from packets to their responses.
    pub round_trip: RoundTrip,
    /// Outstanding messages and packets.
    pub window: WindowReport,
    /// Stalls by cause.
    pub stalls: Vec<Stall>,
    /// Retransmissions.
    pub recovery: RecoveryReport,
    /// ECN marks and CNPs.
    pub congestion: Congestion,
    /// Counters.
    pub counters: Counters,
    /// PSN of the first request, or of the first after the last restart.
    pub first_psn: Option<u32>,
    /// PSNs used since then.
    pub psns: u64,
    /// Rule of the finding that states the flow's limit.
    pub limited_by: &'static str,
    /// Findings, most important first.
    pub findings: Vec<Finding>,
}

/// Messages of one operation.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct OperationSizes {
    /// SEND, WRITE, READ, CMP_SWAP, FETCH_ADD.
    pub operation: &'static str,
    /// Sizes in bytes.
    pub bytes: Quantiles,
}

/// Times between packets and their responses at the capture point, in nanoseconds.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize)]
pub struct RoundTrip {
    /// From a SEND or WRITE to its ACK: capture point to responder and back.
    pub far_ack_ns: Option<Quantiles>,
    /// From a READ or atomic to its first response.
    pub far_answer_ns: Option<Quantiles>,
    /// Upper bound if only retransmitted packets were answered: the shortest time from first
    /// transmission to response.
    pub far_at_most_ns: Option<u64>,
    /// Capture point to requester and back, if the window limits the flow: minimum and maximum.
    pub near_ns: Option<(u64, u64)>,
}

/// Outstanding messages and packets at the capture point, sampled at each first transmission.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize)]
pub struct WindowReport {
    /// Messages: work requests not yet acknowledged.
    pub messages: Option<Quantiles>,
    /// PSNs from the oldest unacknowledged one to the newest.
    pub packets: Option<Quantiles>,
    /// READs and atomics, sampled at packets with some outstanding.
    pub reads: Option<Quantiles>,
    /// Maximum outstanding payload bytes of requests.
    pub bytes_max: u64,
    /// Maximum PSNs between the oldest and the newest request while only READs were outstanding: 15
    /// for 16 READs of one packet.
    pub read_psn_delta_max: Option<u64>,
}

/// All stalls of one cause.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Stall {
    /// `waited`, `drained`, `unprompted`, `sequence_nak`, `rnr_nak`, `implied_nak`, `timeout`.
    pub cause: &'static str,
    /// Number of stalls.
    pub count: u64,
    /// Total length in ns.
    pub total_ns: u64,
    /// Share of the flow's duration, 0 to 1.
    pub share_of_time: f64,
    /// Distribution of lengths in ns.
    pub length_ns: Quantiles,
    /// Outstanding messages, PSNs and READs during most of that time.
    pub typical: Outstanding,
    /// The frame that ended the longest stall.
    pub longest_frame: u64,
}

/// Numbers outstanding.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize)]
pub struct Outstanding {
    /// Messages.
    pub messages: u32,
    /// PSNs.
    pub packets: u32,
    /// READs and atomics.
    pub reads: u32,
}

/// Retransmissions.
#[derive(Clone, PartialEq, Debug, Default, Serialize)]
pub struct RecoveryReport {
    /// Sums by cause.
    pub causes: Vec<RecoverySum>,
    /// The first 256 episodes.
    pub episodes: Vec<EpisodeReport>,
    /// Waits before consecutive tries of one packet, for the longest series.
    pub longest_tries_ns: Vec<u64>,
}

/// Sums over the episodes of one cause.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct RecoverySum {
    /// As in [`Stall::cause`].
    pub cause: &'static str,
    /// Runs of retransmissions.
    pub episodes: u64,
    /// Packets that the capture point had seen before.
    pub packets: u64,
    /// Their payload bytes.
    pub bytes: u64,
    /// Time from the last packet or progress to the first retransmission.
    pub waited_ns: Quantiles,
}

/// One run of retransmissions.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct EpisodeReport {
    /// As in [`Stall::cause`].
    pub cause: &'static str,
    /// Frame of the first packet.
    pub frame: u64,
    /// Its time since the start of the capture.
    pub at_ns: u64,
    /// Time since the last packet or progress.
    pub waited_ns: u64,
    /// First PSN.
    pub from_psn: u32,
    /// Packets that the capture point had seen before.
    pub packets: u64,
    /// Their payload bytes.
    pub bytes: u64,
    /// The first packet had been acknowledged at the capture point, so that ACK was lost behind it.
    pub was_acknowledged: bool,
}

/// ECN marks and CNPs.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize)]
pub struct Congestion {
    /// Requests marked congestion experienced.
    pub requests_marked: u64,
    /// Responses marked congestion experienced.
    pub responses_marked: u64,
    /// Congestion notifications to the requester.
    pub cnps_to_requester: u64,
    /// Congestion notifications to the responder.
    pub cnps_to_responder: u64,
    /// The requester's packets are ECN-capable.
    pub ecn_capable: bool,
}

/// Plain counts of a flow.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize)]
pub struct Counters {
    /// ACKs.
    pub acks: u64,
    /// NAKs with code 0x60.
    pub sequence_naks: u64,
    /// RNR NAKs.
    pub rnr_naks: u64,
    /// Retransmitted request packets that the capture point had seen before.
    pub resent_packets: u64,
    /// Payload bytes of those.
    pub resent_bytes: u64,
    /// Retransmitted READ responses.
    pub replayed_responses: u64,
    /// Payload bytes of those.
    pub replayed_bytes: u64,
    /// READ responses that were skipped.
    pub missing_responses: u64,
    /// Acknowledge packets with a reserved syndrome.
    pub reserved_syndromes: u64,
    /// Packets behind a NAKed one that were acknowledged without having been sent again.
    pub kept_packets: u64,
    /// Packets first seen as retransmissions: lost before the capture point.
    pub lost_before_capture_point: u64,
    /// Packets that the responder NAKed although the capture point had seen them.
    pub lost_behind_capture_point: u64,
    /// Packets that arrived late without being retransmitted.
    pub reordered: u64,
    /// Packets acknowledged but not seen: the capture is incomplete.
    pub missed_by_capture: u64,
    /// Packets captured twice: on two interfaces, or on both sides of a bridge.
    pub captured_twice: u64,
    /// Wraps of the PSN at 2^24.
    pub psn_wraps: u64,
    /// Jumps of the PSN explained by a new connection with the same QPNs.
    pub restarts: u64,
    /// PSNs that a UC requester skipped.
    pub unreliable_gaps: u64,
    /// Requests and responses with a wrong ICRC.
    pub wrong_icrc: u64,
}
