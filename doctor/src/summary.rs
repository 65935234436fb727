//! Builds the report from the counters.

use crate::connections::ConnectionManager;
use crate::doctor::Options;
use crate::events::of_events;
use crate::findings::{cause_name, of_limit};
use crate::flows::{Flows, Half};
use crate::limits::{limit, need};
use crate::messages::Operation;
use crate::others::OtherTraffic;
use crate::report::{
    Capture, Congestion, Counters, EpisodeReport, Flow, OperationSizes, Outstanding,
    RecoveryReport, RecoverySum, Report, RoundTrip, Severity, Side, Stall, WindowReport,
};
use crate::requests::Requests;
use crate::stalls::Cause;
use crate::verdict::of_capture;
use longhaul_units::Psn;
use longhaul_wire::Transport;
use std::cmp::Reverse;

/// Version of [`Report`].
const SCHEMA: u32 = 1;

pub(crate) fn report(
    capture: Capture,
    flows: Flows,
    connection_manager: ConnectionManager,
    other_traffic: Vec<OtherTraffic>,
    encapsulated: bool,
    options: Options,
) -> Report {
    let halves = &flows.halves;
    let with_requests = (0..halves.len()).filter(|&id| halves[id].requests.counts.requests > 0);
    let mut reports: Vec<Flow> = with_requests.map(|id| flow(halves, id, options)).collect();
    reports.sort_by_key(|flow| {
        let worst = flow.findings.iter().map(|f| f.severity).max().unwrap_or(Severity::Note);
        let stalled: u64 = flow.stalls.iter().map(|s| s.total_ns).sum();
        let failed = worst == Severity::Failure;
        (
            Reverse(failed),
            Reverse(flow.payload_bytes > 0),
            Reverse(worst),
            Reverse(flow.payload_bytes),
            Reverse(stalled),
        )
    });
    for (place, flow) in reports.iter_mut().enumerate() {
        flow.number = place + 1;
    }
    let mut report = Report {
        schema: SCHEMA,
        capture,
        findings: Vec::new(),
        flows: reports,
        flows_not_followed: flows.not_followed,
        connection_manager,
        other_traffic,
    };
    report.findings = of_capture(&report, encapsulated);
    report
}

fn flow(halves: &[Half], id: usize, options: Options) -> Flow {
    let half = &halves[id];
    let back = half.peer.map(|peer| &halves[peer]);
    let requests = &half.requests;
    let counts = &requests.counts;
    let limited = limit(half, options.rate);
    let need = need(half, limited.near_ns, options.rate);
    let mut findings = vec![of_limit(half, &limited, need.as_ref())];
    let limited_by = findings[0].rule;
    findings.extend(of_events(half, back));
    // Failures precede limits; otherwise the order is stable.
    findings.sort_by_key(|f| Reverse(f.severity == Severity::Failure));
    let duration_ns = requests.duration_ns();
    let per_second = |bytes: u64| bytes as f64 * 8e9 / duration_ns as f64;
    let (first, next) = requests.sequences();
    let has_psns = matches!(half.transport, Transport::Rc | Transport::Uc) && first > 0;
    Flow {
        number: 0,
        id,
        transport: transport_name(half.transport),
        requester: Side { ip: half.source, qpn: back.map(|b| b.destination_qpn.get()) },
        responder: Side { ip: half.destination, qpn: Some(half.destination_qpn.get()) },
        pairing: half.pairing,
        reverse_id: half.peer.filter(|&peer| halves[peer].requests.counts.requests > 0),
        agreed: half.agreed,
        first_frame: requests.first_frame,
        start_ns: requests.first_ns.unwrap_or(0),
        duration_ns,
        request_packets: counts.requests,
        response_packets: counts.responses,
        path_mtu: requests.messages.mtu,
        operations: operations(requests),
        unsized_messages: requests.messages.unsized_messages,
        payload_bytes: counts.payload_bytes,
        goodput_bps: per_second(counts.payload_bytes),
        wire_bps: per_second(counts.wire_bytes.0 + counts.wire_bytes.1),
        peak_bps: requests.peak_bps(),
        round_trip: RoundTrip {
            far_ack_ns: requests.rtt_ack.quantiles(),
            far_answer_ns: requests.rtt_answer.quantiles(),
            far_at_most_ns: requests.rtt_at_most.min().filter(|_| requests.rtt_min_ns().is_none()),
            near_ns: limited.near_ns,
        },
        window: WindowReport {
            messages: requests.level_messages.quantiles(),
            packets: requests.level_packets.quantiles(),
            reads: requests.level_reads.quantiles(),
            bytes_max: requests.bytes_outstanding_max,
            read_psn_delta_max: requests.read_psn_delta_max,
        },
        stalls: stalls(requests),
        recovery: recovery(requests),
        congestion: congestion(half, back),
        counters: counters(half, back),
        first_psn: has_psns.then(|| Psn::from_sequence(first).get()),
        psns: next - first,
        limited_by,
        findings,
    }
}

const fn transport_name(transport: Transport) -> &'static str {
    match transport {
        Transport::Rc => "RC",
        Transport::Uc => "UC",
        Transport::Ud => "UD",
        Transport::Cnp | Transport::Other => "other",
    }
}

fn operations(requests: &Requests) -> Vec<OperationSizes> {
    let of = |operation: Operation| {
        let bytes = requests.messages.of(operation)?.quantiles()?;
        Some(OperationSizes { operation: operation.name(), bytes })
    };
    Operation::ALL.into_iter().filter_map(of).collect()
}

fn stalls(requests: &Requests) -> Vec<Stall> {
    let stall = |cause: Cause| {
        let tally = requests.stalls.of(cause)?;
        let typical = tally.levels.iter().max_by_key(|at| at.total_ns).map(|at| Outstanding {
            messages: at.level.messages,
            packets: at.level.packets,
            reads: at.level.reads,
        });
        Some(Stall {
            cause: cause_name(cause),
            count: tally.count,
            total_ns: tally.total_ns,
            share_of_time: tally.total_ns as f64 / requests.duration_ns() as f64,
            length_ns: tally.lengths.quantiles()?,
            typical: typical.unwrap_or_default(),
            longest_frame: tally.longest_frame,
        })
    };
    let mut stalls: Vec<Stall> = Cause::ALL.into_iter().filter_map(stall).collect();
    stalls.sort_by_key(|stall| Reverse(stall.total_ns));
    stalls
}

fn recovery(requests: &Requests) -> RecoveryReport {
    let causes = requests.recovery.sums().filter_map(|(cause, sum)| {
        Some(RecoverySum {
            cause: cause_name(cause),
            episodes: sum.episodes,
            packets: sum.packets,
            bytes: sum.bytes,
            waited_ns: sum.waited.quantiles()?,
        })
    });
    let episodes = requests.recovery.episodes.iter().map(|episode| EpisodeReport {
        cause: cause_name(episode.cause),
        frame: episode.frame,
        at_ns: episode.at_ns,
        waited_ns: episode.waited_ns,
        from_psn: episode.from.get(),
        packets: episode.packets,
        bytes: episode.bytes,
        was_acknowledged: episode.was_acknowledged,
    });
    RecoveryReport {
        causes: causes.collect(),
        episodes: episodes.collect(),
        longest_tries_ns: requests.recovery.longest_tries.clone(),
    }
}

fn congestion(half: &Half, back: Option<&Half>) -> Congestion {
    Congestion {
        requests_marked: half.marked.0,
        responses_marked: back.map_or(0, |b| b.marked.1),
        cnps_to_requester: back.map_or(0, |b| b.cnps),
        cnps_to_responder: half.cnps,
        ecn_capable: half.ecn_capable > 0,
    }
}

fn counters(half: &Half, back: Option<&Half>) -> Counters {
    let counts = &half.requests.counts;
    Counters {
        acks: counts.acks,
        sequence_naks: counts.sequence_naks,
        rnr_naks: counts.rnr_naks,
        resent_packets: counts.resent_packets,
        resent_bytes: counts.resent_bytes,
        replayed_responses: counts.replayed_responses,
        replayed_bytes: counts.replayed_bytes,
        missing_responses: counts.missing_responses,
        reserved_syndromes: counts.reserved_syndromes,
        kept_packets: counts.kept_packets,
        lost_before_capture_point: counts.lost_before,
        lost_behind_capture_point: counts.lost_behind,
        reordered: counts.reordered,
        missed_by_capture: counts.missed_by_capture,
        captured_twice: counts.captured_twice,
        psn_wraps: counts.wraps,
        restarts: counts.restarts,
        unreliable_gaps: counts.unreliable_gaps,
        wrong_icrc: half.wrong_icrc + back.map_or(0, |b| b.wrong_icrc),
    }
}
