//! Findings about the capture as a whole.

use crate::doctor::End;
use crate::findings::finding;
use crate::link::is_read;
use crate::quantity::{Bytes, Count, Percent};
use crate::report::{Capture, Confidence, Finding, Report, Severity};
use longhaul_wire::pcap::LinkType;

use Confidence::{Likely, Seen};
use Severity::{Failure, Note, Warning};

/// How to capture RoCEv2.
const HOW_TO_CAPTURE: &str = "Soft-RoCE: tcpdump -i eth0 -s 128 -w roce.pcap udp port 4791. \
     Hardware RNICs bypass the kernel: capture on the RDMA device (tcpdump -i mlx5_0 with libpcap \
     1.9 or newer, or ibdump), or mirror the switch port, both directions.";

pub(crate) fn of_capture(report: &Report, encapsulated: bool) -> Vec<Finding> {
    let capture = &report.capture;
    [
        no_roce(report, encapsulated),
        ended(capture),
        link_types(capture),
        icrc(capture),
        cut(capture),
        malformed(capture),
        untimed(capture),
        backward(capture),
        answers(capture),
        not_followed(report),
        rejected(report),
    ]
    .into_iter()
    .flatten()
    .collect()
}

fn with_advice(mut found: Finding, advice: impl Into<String>) -> Finding {
    found.advice = Some(advice.into());
    found
}

fn no_roce(report: &Report, encapsulated: bool) -> Option<Finding> {
    if report.capture.roce_packets > 0 {
        return None;
    }
    if report.capture.frames == 0 {
        let found = finding(
            "empty",
            Warning,
            Seen,
            "The capture has no packets".to_owned(),
            "0 frames".to_owned(),
        );
        return Some(with_advice(found, HOW_TO_CAPTURE));
    }
    let there: Vec<String> =
        report.other_traffic.iter().map(|o| format!("{} × {}", o.frames, o.what)).collect();
    let evidence = if there.is_empty() {
        "nothing that could be read".to_owned()
    } else {
        format!("instead: {}", there.join(", "))
    };
    let found = finding(
        "no_roce",
        Warning,
        Seen,
        "The capture has no RoCEv2 (UDP port 4791)".to_owned(),
        evidence,
    );
    let tunnel = if encapsulated {
        "There are tunnels (VXLAN, GRE), which are not looked into. "
    } else {
        ""
    };
    Some(with_advice(found, format!("{tunnel}{HOW_TO_CAPTURE}")))
}

fn ended(capture: &Capture) -> Option<Finding> {
    let read = Count(capture.frames, "frame");
    match &capture.end {
        End::Complete => None,
        End::Truncated { at_byte, missing_bytes } => {
            let what =
                "The file ends inside a record: it was cut, or is still being written".to_owned();
            let evidence = format!(
                "after {read}, at byte {at_byte}; at least {missing_bytes} bytes are missing"
            );
            Some(finding("truncated", Warning, Seen, what, evidence))
        }
        End::Damaged { at_byte, why } => {
            let what = "The file is damaged; what stands before the damage was read".to_owned();
            Some(finding(
                "damaged",
                Warning,
                Seen,
                what,
                format!("after {read}, at byte {at_byte}: {why}"),
            ))
        }
    }
}

fn link_types(capture: &Capture) -> Option<Finding> {
    let unread: Vec<_> =
        capture.link_types.iter().filter(|l| !is_read(LinkType(l.number))).collect();
    let first = unread.first()?;
    let frames: u64 = unread.iter().map(|l| l.frames).sum();
    let what = format!(
        "{} of link type {} ({}) are not read",
        Count(frames, "frame"),
        first.number,
        first.name
    );
    let evidence = "read are Ethernet, Linux cooked, raw IP and BSD loopback".to_owned();
    Some(with_advice(
        finding("link_type", Warning, Seen, what, evidence),
        "Capture on an Ethernet interface, or convert the file.",
    ))
}

fn icrc(capture: &Capture) -> Option<Finding> {
    let icrc = &capture.icrc;
    let first = icrc.first_wrong_frame?;
    let what = format!("{} with a wrong ICRC: receivers drop them", Count(icrc.wrong, "packet"));
    let evidence = format!("first in frame {first}; {} right", icrc.right);
    let (confidence, advice) = match &icrc.constant {
        Some(value) if icrc.right == 0 => (
            Likely,
            format!(
                "All carry {value}: the sender puts a constant where the ICRC belongs, and talks \
                 to no standard NIC."
            ),
        ),
        _ if icrc.right == 0 => (
            Likely,
            "None is right: a stack that computes it wrongly, or a box that rewrites addresses \
             without it."
                .to_owned(),
        ),
        _ => (
            Seen,
            "Some are right: bits flip on the path, or a box rewrites some packets.".to_owned(),
        ),
    };
    Some(with_advice(finding("wrong_icrc", Failure, confidence, what, evidence), advice))
}

fn cut(capture: &Capture) -> Option<Finding> {
    (capture.cut_frames > 0).then(|| {
        let what = format!(
            "The snap length cut {}: their ICRC is not checked",
            Count(capture.cut_frames, "frame")
        );
        let evidence = match capture.cut_in_headers {
            0 => "their headers are all there".to_owned(),
            n => format!("{} ended inside their headers and tell nothing", Count(n, "frame")),
        };
        let severity = if capture.cut_in_headers > 0 { Warning } else { Note };
        let found = finding("snap_length", severity, Seen, what, evidence);
        if capture.cut_in_headers > 0 {
            with_advice(found, "Capture at least 128 bytes: tcpdump -s 128.")
        } else {
            found
        }
    })
}

fn malformed(capture: &Capture) -> Option<Finding> {
    let first = capture.first_malformed_frame?;
    let what = format!(
        "{} to UDP port 4791 are not well formed",
        Count(capture.malformed_packets, "packet")
    );
    Some(finding(
        "malformed",
        Warning,
        Seen,
        what,
        format!("first in frame {first}; longhaul decode shows them"),
    ))
}

fn untimed(capture: &Capture) -> Option<Finding> {
    (capture.untimed_frames > 0).then(|| {
        let what = format!(
            "{} have no time: nothing is said about their delays",
            Count(capture.untimed_frames, "frame")
        );
        finding("untimed", Warning, Seen, what, "pcapng's simple packet blocks".to_owned())
    })
}

fn backward(capture: &Capture) -> Option<Finding> {
    (capture.backward_frames > 0).then(|| {
        let share = capture.backward_frames as f64 / capture.frames.max(1) as f64;
        let what = format!("Times go back at {}", Count(capture.backward_frames, "frame"));
        let evidence = format!("{} of the frames; round trips are that uncertain", Percent(share));
        let found = finding("times_go_back", Note, Seen, what, evidence);
        with_advice(found, "Sort the file (reordercap), or capture both directions with one clock.")
    })
}

fn answers(capture: &Capture) -> Option<Finding> {
    let count = capture.answers_without_requests;
    (count > 0).then(|| {
        let what = format!("{} belong to no request in the capture", Count(count, "answer"));
        let evidence =
            "the capture began later, lacks a direction, or several queue pairs fit equally"
                .to_owned();
        finding("answers_without_requests", Note, Seen, what, evidence)
    })
}

fn not_followed(report: &Report) -> Option<Finding> {
    (report.flows_not_followed > 0).then(|| {
        let what = format!(
            "{} belong to more flows than are followed",
            Count(report.flows_not_followed, "packet")
        );
        let evidence = format!(
            "{} in {}",
            Count(report.capture.frames, "frame"),
            Bytes(report.capture.frame_bytes)
        );
        with_advice(
            finding("too_many_flows", Warning, Seen, what, evidence),
            "Split the capture by address: tcpdump -r IN -w OUT host ADDRESS.",
        )
    })
}

fn rejected(report: &Report) -> Option<Finding> {
    let first = report.connection_manager.rejected.first()?;
    let what = format!(
        "{} refused a connection of {}: {}",
        first.source, first.destination, first.meaning
    );
    let evidence = format!(
        "{}; first in frame {}",
        Count(report.connection_manager.rejections, "rejection"),
        first.frame
    );
    Some(finding("rejected", Failure, Seen, what, evidence))
}
