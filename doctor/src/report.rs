//! What the doctor hands over: plain values, serialised as they stand. `docs/doctor.md` describes
//! the JSON.

use crate::connections::{Agreed, ConnectionManager};
use crate::doctor::End;
use crate::histogram::Quantiles;
use crate::others::OtherTraffic;
use serde::Serialize;
use std::net::IpAddr;

/// Everything about one capture.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// Version of this structure: grows when a field changes its meaning or goes.
    pub schema: u32,
    /// The file as such.
    pub capture: Capture,
    /// What concerns the capture as a whole.
    pub findings: Vec<Finding>,
    /// Directions of requests, the worst first.
    pub flows: Vec<Flow>,
    /// Flows that are not in `flows`, because there were more than the doctor follows.
    pub flows_not_followed: u64,
    /// Messages of the connection manager.
    pub connection_manager: ConnectionManager,
    /// What is not RoCEv2, the most frequent first.
    pub other_traffic: Vec<OtherTraffic>,
}

/// The file as such.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Capture {
    /// Frames read.
    pub frames: u64,
    /// Bytes that they had on the wire, without FCS.
    pub frame_bytes: u64,
    /// Nanoseconds since 1970 of the first frame, when the capture has times.
    pub first_unix_ns: Option<u64>,
    /// From the first to the last frame.
    pub duration_ns: u64,
    /// Frames without a time.
    pub untimed_frames: u64,
    /// Frames that the snap length cut.
    pub cut_frames: u64,
    /// Frames whose time lies before that of a frame in front of them.
    pub backward_frames: u64,
    /// Link types with the frames of each.
    pub link_types: Vec<Link>,
    /// RoCEv2 packets whose headers were read.
    pub roce_packets: u64,
    /// Frames of anything else.
    pub other_frames: u64,
    /// Packets to UDP port 4791 that are not well formed.
    pub malformed_packets: u64,
    /// The first of them.
    pub first_malformed_frame: Option<u64>,
    /// Frames that the snap length cut before anything could be told.
    pub cut_in_headers: u64,
    /// The invariant CRC.
    pub icrc: IcrcCounts,
    /// Answers whose requests are not in the capture, or could not be found.
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
    /// How many frames.
    pub frames: u64,
}

/// The invariant CRC.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize)]
pub struct IcrcCounts {
    /// Packets with the right one.
    pub right: u64,
    /// Packets with a wrong one: receivers drop them.
    pub wrong: u64,
    /// Packets that the snap length cut.
    pub not_checked: u64,
    /// The first packet with a wrong one.
    pub first_wrong_frame: Option<u64>,
    /// The value of all wrong ones, as it stands on the wire, when at least two packets have the
    /// same.
    pub constant: Option<String>,
}

/// How sure a finding is.
#[derive(Clone, Copy, PartialEq, Eq, Debug, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Confidence {
    /// The packets show it.
    Seen,
    /// The packets show its usual sign.
    Likely,
}

/// How much a finding matters.
#[derive(Clone, Copy, PartialEq, Eq, Debug, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Severity {
    /// Good to know.
    Note,
    /// Costs throughput or may.
    Warning,
    /// Something failed.
    Failure,
}

/// One conclusion.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Finding {
    /// A name that does not change: `read_limit`, `sequence_nak`.
    pub rule: &'static str,
    /// How much it matters.
    pub severity: Severity,
    /// How sure it is.
    pub confidence: Confidence,
    /// In one sentence.
    pub what: String,
    /// The numbers behind it.
    pub evidence: String,
    /// What to change, when there is something.
    pub advice: Option<String>,
    /// Share of the flow's time that it cost, 0 to 1, where that can be told.
    pub share_of_time: Option<f64>,
}

/// One side of a flow.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Side {
    /// IP address.
    pub ip: IpAddr,
    /// Queue pair; unknown where nothing was sent to it.
    pub qpn: Option<u32>,
}

/// How requester and responder were found to belong together.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Pairing {
    /// By the connection manager's messages.
    ConnectionManager,
    /// By PSNs: answers fit what was outstanding.
    Traffic,
    /// No answers are in the capture, or they fit nothing.
    None,
}

/// One direction of requests.
#[derive(Clone, Debug, Serialize)]
pub struct Flow {
    /// Its place in the report, from 1.
    pub number: usize,
    /// Its place in the order of the capture; the same each time the capture is read.
    pub id: usize,
    /// `RC`, `UC`, `UD` or `other`.
    pub transport: &'static str,
    /// Who sends requests.
    pub requester: Side,
    /// Who answers.
    pub responder: Side,
    /// How the two were found to belong together.
    pub pairing: Pairing,
    /// `id` of the flow in the other direction of this connection, when it has requests too.
    pub reverse_id: Option<usize>,
    /// What the connection manager agreed on.
    pub agreed: Option<Agreed>,
    /// Number of the first frame, from 1.
    pub first_frame: u64,
    /// First frame's time after the beginning of the capture.
    pub start_ns: u64,
    /// From the first to the last packet.
    pub duration_ns: u64,
    /// Request packets, repeated ones included.
    pub request_packets: u64,
    /// Answers.
    pub response_packets: u64,
    /// Path MTU in bytes: from the connection manager, from full packets, or from READs.
    pub path_mtu: Option<u32>,
    /// Messages by operation.
    pub operations: Vec<OperationSizes>,
    /// Messages whose size the capture does not show.
    pub unsized_messages: u64,
    /// Payload of requests and READ responses, each once.
    pub payload_bytes: u64,
    /// That per second of the flow's duration.
    pub goodput_bps: f64,
    /// Frames of both sides with FCS, preamble and gap, per second.
    pub wire_bps: f64,
    /// The same over the busiest 100 µs.
    pub peak_bps: f64,
    /// Times from packets to their answers.
    pub round_trip: RoundTrip,
    /// What was outstanding.
    pub window: WindowReport,
    /// Silences that count, by cause.
    pub stalls: Vec<Stall>,
    /// Packets sent again.
    pub recovery: RecoveryReport,
    /// Marks and notifications.
    pub congestion: Congestion,
    /// What the counters say.
    pub counters: Counters,
    /// PSN of the first request; of the first after the last restart, when there were some.
    pub first_psn: Option<u32>,
    /// PSNs that the flow took since then.
    pub psns: u64,
    /// Rule of the finding that says what limits the flow.
    pub limited_by: &'static str,
    /// Conclusions, the most important first.
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

/// Times between packets and their answers, as the capture point sees them: nanoseconds.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize)]
pub struct RoundTrip {
    /// From a SEND or WRITE to its ACK: capture point to responder and back.
    pub far_ack_ns: Option<Quantiles>,
    /// From a READ or atomic to its first answer.
    pub far_answer_ns: Option<Quantiles>,
    /// Only packets that were sent again were answered: the shortest time from first sending to
    /// answer.
    pub far_at_most_ns: Option<u64>,
    /// Capture point to requester and back, when the window limits the flow: at least and at most.
    pub near_ns: Option<(u64, u64)>,
}

/// What was outstanding at the capture point whenever a packet was sent for the first time.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize)]
pub struct WindowReport {
    /// Messages: work requests not yet acknowledged.
    pub messages: Option<Quantiles>,
    /// PSNs from the oldest unacknowledged one to the newest.
    pub packets: Option<Quantiles>,
    /// READs and atomics, at packets that left some outstanding.
    pub reads: Option<Quantiles>,
    /// Most payload in requests.
    pub bytes_max: u64,
    /// Most PSNs between the oldest and the newest request while only READs were outstanding: 15
    /// for 16 READs of one packet.
    pub read_psn_delta_max: Option<u64>,
}

/// All silences of one cause.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Stall {
    /// `waited`, `drained`, `unprompted`, `sequence_nak`, `rnr_nak`, `implied_nak`, `timeout`.
    pub cause: &'static str,
    /// How often.
    pub count: u64,
    /// Sum.
    pub total_ns: u64,
    /// Share of the flow's duration, 0 to 1.
    pub share_of_time: f64,
    /// Lengths.
    pub length_ns: Quantiles,
    /// Messages outstanding during most of that time, PSNs, and READs.
    pub typical: Outstanding,
    /// The frame that ended the longest one.
    pub longest_frame: u64,
}

/// A filling of the window.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize)]
pub struct Outstanding {
    /// Messages.
    pub messages: u32,
    /// PSNs.
    pub packets: u32,
    /// READs and atomics.
    pub reads: u32,
}

/// Packets sent again.
#[derive(Clone, PartialEq, Debug, Default, Serialize)]
pub struct RecoveryReport {
    /// Sums by cause.
    pub causes: Vec<RecoverySum>,
    /// The first 256 episodes.
    pub episodes: Vec<EpisodeReport>,
    /// Waits before consecutive tries at one packet, where there were most.
    pub longest_tries_ns: Vec<u64>,
}

/// Sums over the episodes of one cause.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct RecoverySum {
    /// As in [`Stall::cause`].
    pub cause: &'static str,
    /// Runs of packets sent again.
    pub episodes: u64,
    /// Packets that the capture point had seen before.
    pub packets: u64,
    /// Their payload.
    pub bytes: u64,
    /// From the last packet or progress to the first repetition.
    pub waited_ns: Quantiles,
}

/// One run of packets sent again.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct EpisodeReport {
    /// As in [`Stall::cause`].
    pub cause: &'static str,
    /// Frame of the first packet.
    pub frame: u64,
    /// Its time after the beginning of the capture.
    pub at_ns: u64,
    /// From the last packet or progress to then.
    pub waited_ns: u64,
    /// First PSN.
    pub from_psn: u32,
    /// Packets that the capture point had seen before.
    pub packets: u64,
    /// Their payload.
    pub bytes: u64,
    /// The first had been acknowledged at the capture point: that ACK was lost behind it.
    pub was_acknowledged: bool,
}

/// Marks and notifications.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize)]
pub struct Congestion {
    /// Requests whose IP header says congestion experienced.
    pub requests_marked: u64,
    /// Answers that say so.
    pub responses_marked: u64,
    /// Congestion notifications to the requester.
    pub cnps_to_requester: u64,
    /// Congestion notifications to the responder.
    pub cnps_to_responder: u64,
    /// The requester's packets say that they may be marked.
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
    /// Request packets again that the capture point had seen before, and their payload.
    pub resent_packets: u64,
    /// Payload of those.
    pub resent_bytes: u64,
    /// READ responses again.
    pub replayed_responses: u64,
    /// Payload of those.
    pub replayed_bytes: u64,
    /// READ responses that were skipped.
    pub missing_responses: u64,
    /// Packets seen for the first time when they were sent again: lost before the capture point.
    pub lost_before_capture_point: u64,
    /// Packets that the responder asked for again although the capture point had seen them.
    pub lost_behind_capture_point: u64,
    /// Packets that came late, without having been asked for.
    pub reordered: u64,
    /// Packets acknowledged without having been seen: the capture is incomplete.
    pub missed_by_capture: u64,
    /// Packets seen twice at once: two interfaces, or both ways through a bridge.
    pub captured_twice: u64,
    /// Times that the PSN passed 2^24.
    pub psn_wraps: u64,
    /// Jumps of the PSN that a new connection with old numbers explains.
    pub restarts: u64,
    /// PSNs that a UC requester skipped.
    pub unreliable_gaps: u64,
    /// Packets with a wrong ICRC, requests and answers.
    pub wrong_icrc: u64,
}
