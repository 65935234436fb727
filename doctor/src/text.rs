//! A report as text.

use crate::histogram::Quantiles;
use crate::quantity::{Bytes, Count, Percent, Rate, Time, grouped};
use crate::report::{Capture, Confidence, Finding, Flow, Pairing, Report, Severity, Side, Stall};
use crate::requests::PEAK_INTERVAL_NS;
use std::fmt::Write as _;

/// Maximum episodes in the details of a flow.
const EPISODES_LISTED: usize = 12;

/// Parts of a report to write.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Selection {
    /// Flows in the table, and with their findings in the verdict.
    pub top: usize,
    /// The flow whose details are written; `None`: the first.
    pub flow: Option<usize>,
}

/// Text of a given width; tables may be wider.
struct Page {
    text: String,
    columns: usize,
}

/// Formats `report` for a terminal of `columns`; `name` is the capture's name.
pub fn render(name: &str, report: &Report, selection: Selection, columns: usize) -> String {
    let mut out = Page { text: String::new(), columns };
    headline(&mut out, name, report);
    verdict(&mut out, report, selection);
    if report.flows.len() > 1 {
        table(&mut out, report, selection.top);
    }
    let detailed = report.flows.iter().find(|flow| flow.number == selection.flow.unwrap_or(1));
    if let Some(flow) = detailed {
        details(&mut out, flow, report);
    }
    out.text
}

/// Appends `text` in lines of the page's width: the first begins with `first`, the others are
/// indented by its width.
fn wrapped(out: &mut Page, first: &str, text: &str) {
    let (out, columns) = (&mut out.text, out.columns);
    let indent = first.chars().count();
    let mut column = indent;
    out.push_str(first);
    for (at, word) in text.split_whitespace().enumerate() {
        let len = word.chars().count();
        if at > 0 && column + 1 + len > columns {
            out.push('\n');
            out.extend(std::iter::repeat_n(' ', indent));
            column = indent;
        } else if at > 0 {
            out.push(' ');
            column += 1;
        }
        out.push_str(word);
        column += len;
    }
    out.push('\n');
}

fn line(out: &mut Page, label: &str, text: &str) {
    if !text.is_empty() {
        wrapped(out, &format!("  {label:<14}"), text);
    }
}

fn headline(out: &mut Page, name: &str, report: &Report) {
    let capture = &report.capture;
    let links: Vec<String> = capture.link_types.iter().map(|l| l.name.to_owned()).collect();
    let links = if links.is_empty() { String::new() } else { format!(", {}", links.join(" and ")) };
    let text = format!(
        "{} in {}{links}; {} of RoCEv2, {} of anything else",
        Count(capture.frames, "frame"),
        Time(capture.duration_ns),
        grouped(capture.roce_packets),
        grouped(capture.other_frames + capture.malformed_packets + capture.cut_in_headers),
    );
    wrapped(out, "", &format!("{name}: {text}"));
    let icrc = &capture.icrc;
    if capture.roce_packets > 0 {
        let checked = format!(
            "{} right, {} wrong, {} not checked",
            grouped(icrc.right),
            grouped(icrc.wrong),
            grouped(icrc.not_checked)
        );
        wrapped(out, "", &format!("ICRC: {checked}"));
    }
    let cm = &report.connection_manager;
    if cm.requests + cm.replies + cm.rejections + cm.datagram_lookups > 0 {
        let text = format!(
            "Connection manager: {}, {}, {}, {}",
            Count(cm.requests, "request"),
            Count(cm.replies, "reply").to_string().replace("replys", "replies"),
            Count(cm.disconnects, "disconnection"),
            Count(cm.rejections, "rejection"),
        );
        wrapped(out, "", &text);
    }
}

fn mark(finding: &Finding) -> &'static str {
    match finding.severity {
        Severity::Note => "·",
        Severity::Warning => "!",
        Severity::Failure => "✗",
    }
}

fn write_finding(out: &mut Page, indent: &str, finding: &Finding) {
    let sure = match finding.confidence {
        Confidence::Seen => "seen",
        Confidence::Likely => "likely",
    };
    wrapped(out, &format!("{indent}{} ", mark(finding)), &format!("{}. [{sure}]", finding.what));
    if !finding.evidence.is_empty() {
        wrapped(out, &format!("{indent}    "), &finding.evidence);
    }
    if let Some(advice) = &finding.advice {
        wrapped(out, &format!("{indent}  → "), advice);
    }
}

fn verdict(out: &mut Page, report: &Report, selection: Selection) {
    out.text.push_str("\nVERDICT\n");
    report.findings.iter().for_each(|finding| write_finding(out, "  ", finding));
    if report.flows.is_empty() && report.findings.is_empty() {
        wrapped(out, "  ", "Nothing to explain: no flow sends requests.");
    }
    let shown: Vec<&Flow> = match selection.flow {
        Some(number) => report.flows.iter().filter(|f| f.number == number).collect(),
        None => report.flows.iter().take(selection.top.min(3)).collect(),
    };
    for flow in shown {
        wrapped(out, "  ", &format!("Flow {}, {}:", flow.number, route(flow)));
        flow.findings.iter().for_each(|finding| write_finding(out, "    ", finding));
    }
}

fn side(side: &Side) -> String {
    match side.qpn {
        Some(qpn) => format!("{} QP {qpn:#x}", side.ip),
        None => side.ip.to_string(),
    }
}

fn route(flow: &Flow) -> String {
    format!("{} → {}", side(&flow.requester), side(&flow.responder))
}

fn operations(flow: &Flow) -> String {
    let operations = flow.operations.iter().map(|o| {
        let bytes = match (o.bytes.min, o.bytes.max) {
            (min, max) if min == max => format!("of {}", Bytes(min)),
            (min, max) => {
                format!("of {} to {} (median {})", Bytes(min), Bytes(max), Bytes(o.bytes.median))
            }
        };
        format!("{} {} {bytes}", grouped(o.bytes.samples), o.operation)
    });
    let mut all: Vec<String> = operations.collect();
    if flow.unsized_messages > 0 {
        all.push(format!("{} of unknown size", Count(flow.unsized_messages, "message")));
    }
    all.join(", ")
}

fn table(out: &mut Page, report: &Report, top: usize) {
    let _ = writeln!(
        out.text,
        "\nFLOWS  ({} of {}, the worst first)",
        top.min(report.flows.len()),
        report.flows.len()
    );
    let _ = writeln!(
        out.text,
        "  {:>4}  {:<50} {:>13}  limited by",
        "flow", "requester → responder", "goodput"
    );
    for flow in report.flows.iter().take(top) {
        let limit = flow.limited_by.replace('_', " ");
        let goodput =
            if is_burst(flow) { "–".to_owned() } else { Rate(flow.goodput_bps).to_string() };
        let _ =
            writeln!(out.text, "  {:>4}  {:<50} {goodput:>13}  {limit}", flow.number, route(flow));
    }
    if report.flows.len() > top {
        let _ = writeln!(out.text, "        … {} more: --top N", report.flows.len() - top);
    }
}

fn quantiles(q: &Quantiles, unit: impl Fn(u64) -> String) -> String {
    if q.min == q.max {
        return format!("{} always", unit(q.min));
    }
    format!(
        "min {}, median {}, p99 {}, max {}",
        unit(q.min),
        unit(q.median),
        unit(q.p99),
        unit(q.max)
    )
}

fn details(out: &mut Page, flow: &Flow, report: &Report) {
    let _ = writeln!(out.text, "\nFLOW {}  {}", flow.number, route(flow));
    let paired = match flow.pairing {
        Pairing::ConnectionManager => "set up by the connection manager",
        Pairing::Traffic => "directions paired by their PSNs",
        Pairing::None => "no answers found",
    };
    let mtu = flow.path_mtu.map_or(String::new(), |mtu| format!(", path MTU {mtu}"));
    line(out, "connection", &format!("{}, {paired}{mtu}{}", flow.transport, reverse(flow, report)));
    line(out, "operations", &operations(flow));
    let payload = format!("{} of payload in {}", Bytes(flow.payload_bytes), Time(flow.duration_ns));
    let rates = if is_burst(flow) {
        ", too short for a rate".to_owned()
    } else {
        format!(
            ": goodput {}; {} on the wire, busiest 100 µs {}",
            Rate(flow.goodput_bps),
            Rate(flow.wire_bps),
            Rate(flow.peak_bps)
        )
    };
    line(out, "throughput", &(payload + &rates));
    round_trip(out, flow);
    window(out, flow);
    line(out, "stalls", &flow.stalls.iter().map(stall).collect::<Vec<_>>().join("; "));
    agreed(out, flow);
    counters(out, flow, &report.capture);
    episodes(out, flow);
}

/// `true` if the flow is shorter than the interval of its peak rate. Its duration excludes the
/// first packet's transmission, so its rates would exceed the link's.
fn is_burst(flow: &Flow) -> bool {
    flow.duration_ns < PEAK_INTERVAL_NS
}

fn reverse(flow: &Flow, report: &Report) -> String {
    let other = flow.reverse_id.and_then(|id| report.flows.iter().find(|f| f.id == id));
    other.map_or(String::new(), |other| format!("; the other direction is flow {}", other.number))
}

fn round_trip(out: &mut Page, flow: &Flow) {
    let time = |ns| Time(ns).to_string();
    if let Some(q) = &flow.round_trip.far_ack_ns {
        line(
            out,
            "round trip",
            &format!("capture point → responder → back, ACKs: {}", quantiles(q, time)),
        );
    }
    if let Some(q) = &flow.round_trip.far_answer_ns {
        let label = if flow.round_trip.far_ack_ns.is_none() { "round trip" } else { "" };
        line(
            out,
            label,
            &format!("capture point → responder → back, READ answers: {}", quantiles(q, time)),
        );
    }
    if let Some(ns) = flow.round_trip.far_at_most_ns {
        line(
            out,
            "round trip",
            &format!("only packets sent again were answered: at most {}", Time(ns)),
        );
    }
    if let Some((least, most)) = flow.round_trip.near_ns {
        let text = format!(
            "capture point → requester → back: {} to {} (from ACK to the next request)",
            Time(least),
            Time(most)
        );
        line(out, "", &text);
    }
}

fn window(out: &mut Page, flow: &Flow) {
    let number = |n: u64| grouped(n);
    let window = &flow.window;
    if let Some(q) = &window.messages {
        line(out, "outstanding", &format!("messages: {}", quantiles(q, number)));
    }
    if let Some(q) = &window.packets {
        line(
            out,
            "",
            &format!(
                "PSNs: {}; at most {} of payload",
                quantiles(q, number),
                Bytes(window.bytes_max)
            ),
        );
    }
    if let Some(q) = &window.reads {
        let delta = window
            .read_psn_delta_max
            .map_or(String::new(), |delta| format!("; PSN delta at most {delta}"));
        line(out, "", &format!("READs and atomics: {}{delta}", quantiles(q, number)));
    }
}

fn stall(stall: &Stall) -> String {
    let at = stall.typical;
    let with = if at.reads > 0 && at.reads == at.messages {
        format!("with {} outstanding", Count(at.reads.into(), "READ"))
    } else {
        format!(
            "with {} ({}) outstanding",
            Count(at.messages.into(), "message"),
            Count(at.packets.into(), "packet")
        )
    };
    let why = match stall.cause {
        "waited" => format!("{with}, until answers came"),
        "drained" if at.messages == 0 => "with nothing outstanding".to_owned(),
        "drained" => format!("{with}, until all was answered"),
        "unprompted" => format!("{with}, nothing in the capture before it"),
        cause => format!("before sending again ({})", cause_in_words(cause)),
    };
    let Quantiles { median, max, .. } = stall.length_ns;
    format!(
        "{} × {} (max {}, frame {}) {why}: {}, {} of the time",
        grouped(stall.count),
        Time(median),
        Time(max),
        stall.longest_frame,
        Time(stall.total_ns),
        Percent(stall.share_of_time)
    )
}

fn cause_in_words(cause: &str) -> &'static str {
    match cause {
        "sequence_nak" => "sequence NAK",
        "rnr_nak" => "RNR NAK",
        "implied_nak" => "implied NAK",
        "timeout" => "timeout",
        _ => "cause not in the capture",
    }
}

fn agreed(out: &mut Page, flow: &Flow) {
    let Some(agreed) = &flow.agreed else { return };
    let timeout = match agreed.ack_timeout_ns {
        Some(ns) => format!("timeout {} ({})", agreed.ack_timeout_code, Time(ns)),
        None => "no timeout".to_owned(),
    };
    let text = format!(
        "{timeout}, {}, RNR retries {}, READs {} and {}",
        Count(agreed.retry_count.into(), "retry").to_string().replace("retrys", "retries"),
        if agreed.rnr_retry_count == 7 {
            "for ever".to_owned()
        } else {
            agreed.rnr_retry_count.to_string()
        },
        agreed.active_reads,
        agreed.passive_reads
    );
    line(out, "set up with", &text);
}

fn counters(out: &mut Page, flow: &Flow, capture: &Capture) {
    let c = &flow.counters;
    let listed = [
        (c.acks, if c.acks == 1 { "ACK" } else { "ACKs" }),
        (c.sequence_naks, if c.sequence_naks == 1 { "sequence NAK" } else { "sequence NAKs" }),
        (c.rnr_naks, if c.rnr_naks == 1 { "RNR NAK" } else { "RNR NAKs" }),
        (c.resent_packets, "requests again"),
        (c.replayed_responses, "responses again"),
        (c.missing_responses, "responses skipped"),
        (c.lost_before_capture_point, "lost before this point"),
        (c.lost_behind_capture_point, "lost behind it"),
        (c.reordered, "reordered"),
        (c.missed_by_capture, "missed by the capture"),
        (c.unreliable_gaps, "skipped by the requester"),
        (c.psn_wraps, "PSN wraps"),
        (flow.congestion.requests_marked, "requests marked CE"),
        (flow.congestion.responses_marked, "answers marked CE"),
        (flow.congestion.cnps_to_requester, "CNPs to the requester"),
        (flow.congestion.cnps_to_responder, "CNPs to the responder"),
    ];
    let shown = listed.iter().filter(|(count, _)| *count > 0);
    let texts: Vec<String> =
        shown.map(|(count, what)| format!("{} {what}", grouped(*count))).collect();
    let packets = format!(
        "{} requests, {} answers",
        grouped(flow.request_packets),
        grouped(flow.response_packets)
    );
    let start = format!("from frame {} at {}", flow.first_frame, Time(flow.start_ns));
    line(out, "packets", &[packets, start].into_iter().chain(texts).collect::<Vec<_>>().join(", "));
    if capture.untimed_frames == capture.frames {
        line(out, "", "the capture has no times");
    }
}

fn episodes(out: &mut Page, flow: &Flow) {
    let all = &flow.recovery.episodes;
    for (at, episode) in all.iter().take(EPISODES_LISTED).enumerate() {
        let acknowledged = if episode.was_acknowledged { ", acknowledged here before" } else { "" };
        let text = format!(
            "{} frame {}: PSN {} after {} ({}), {} and {} repeated{acknowledged}",
            Time(episode.at_ns),
            episode.frame,
            episode.from_psn,
            Time(episode.waited_ns),
            cause_in_words(episode.cause),
            Count(episode.packets, "packet"),
            Bytes(episode.bytes)
        );
        line(out, if at == 0 { "sent again" } else { "" }, &text);
    }
    let sum: u64 = flow.recovery.causes.iter().map(|c| c.episodes).sum();
    let more = sum.saturating_sub(all.len().min(EPISODES_LISTED) as u64);
    if more > 0 {
        line(out, "", &format!("… and {} more (--json has the first 256)", Count(more, "episode")));
    }
}
