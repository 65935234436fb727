//! Text of the findings about one flow: its limit, then its events.

use crate::flows::Half;
use crate::limits::{Limit, Limited, Need, RXE_WINDOW};
use crate::quantity::{Bytes, Count, Percent, Rate, Time, grouped};
use crate::report::{Confidence, Finding, Severity};
use crate::stalls::Cause;

pub(crate) fn finding(
    rule: &'static str,
    severity: Severity,
    confidence: Confidence,
    what: String,
    evidence: String,
) -> Finding {
    Finding { rule, severity, confidence, what, evidence, advice: None, share_of_time: None }
}

/// The limit of the flow, with the setting that would change it.
pub(crate) fn of_limit(half: &Half, limited: &Limited, need: Option<&Need>) -> Finding {
    let (rule, what, advice) = match limited.by {
        Limit::Reads(n) => reads(n, limited, need),
        Limit::QueueDepth(n) => {
            let what = format!(
                "The queue depth limits it: {} outstanding, and no more",
                Count(n.into(), "message")
            );
            (
                "queue_depth",
                what,
                need.map(|need| format!("{}{}", deeper_queue(n, need), moderation(half, n))),
            )
        }
        Limit::PsnWindow(n) => {
            let what = format!(
                "The transport's window limits it: {} outstanding, and no more",
                Count(n.into(), "packet")
            );
            ("psn_window", what, need.map(|need| wider_window(n, need)))
        }
        Limit::QueueDepthOrPsnWindow(n) => either(half, n, need),
        Limit::Bursts(n) => bursts(n),
        Limit::LineRate(bps) => ("line_rate", format!("It fills a {} line", Rate(bps)), None),
        Limit::Recovery => (
            "loss_recovery",
            "Recovery from loss takes most of its time".to_owned(),
            Some(less_loss()),
        ),
        without_figures => {
            let (rule, what, advice) = in_words(without_figures, half.has_rivals);
            (rule, what.to_owned(), advice.map(str::to_owned))
        }
    };
    let severity = match limited.by {
        Limit::LineRate(_)
        | Limit::Paced
        | Limit::TooShort
        | Limit::Sender
        | Limit::SenderIdle
        | Limit::OneAtATime
        | Limit::Unreliable => Severity::Note,
        _ => Severity::Warning,
    };
    let mut found = finding(rule, severity, Confidence::Likely, what, evidence(half, limited));
    (found.advice, found.share_of_time) = (advice, limited.share);
    found
}

/// Text of a limit without figures: rule, statement and advice.
fn in_words(limit: Limit, has_rivals: bool) -> (&'static str, &'static str, Option<&'static str>) {
    match limit {
        Limit::OneAtATime => (
            "one_at_a_time",
            "It has one message outstanding at a time: latency limits it",
            Some("Keep several messages outstanding, or move more data per message."),
        ),
        Limit::Credits => (
            "credits",
            "The responder's end-to-end credits limit it: it has too few receives posted",
            Some(
                "Post more receives at the responder, at least one round trip's worth of messages.",
            ),
        ),
        Limit::Rnr => (
            "rnr_limit",
            "A responder without receives limits it (RNR NAKs)",
            Some(
                "Post receives earlier and more of them, and lower the responder's min_rnr_timer.",
            ),
        ),
        Limit::Sender => (
            "sender",
            "The sender limits it: it pauses though what is outstanding varies and the window is \
             not full",
            None,
        ),
        Limit::SenderIdle => (
            "sender",
            "The sender limits it: it pauses with nothing outstanding here",
            Some(
                "Where the capture was taken far from the requester, the way to it and back is \
                 part of these pauses: capture near the requester to be sure. Otherwise the \
                 program has nothing to send.",
            ),
        ),
        Limit::Paced => ("paced", "It sends steadily: nothing in the capture holds it back", None),
        Limit::Unreliable => {
            ("unreliable", "An unreliable transport: no acknowledgements tell what limits it", None)
        }
        Limit::OneWay if has_rivals => (
            "ambiguous",
            "Its answers cannot be told from those of other queue pairs, which use the same PSNs \
             at the same time",
            Some("Capture the connection's set-up too, or fewer queue pairs at once."),
        ),
        Limit::OneWay => (
            "one_way",
            "Only one direction is in the capture, so that nothing can be said about what it waits \
             for",
            Some(
                "Capture both directions: with a mirror, mirror what the port receives and what it \
                 sends.",
            ),
        ),
        _ => ("too_short", "Too few messages to tell what limits it", None),
    }
}

fn evidence(half: &Half, limited: &Limited) -> String {
    let levels = &half.requests.level_messages;
    if let (Some(share), true) = (limited.share, limited.waits > 0) {
        return format!(
            "waited {}, {} each time, {} in all, {} of the time",
            times(limited.waits),
            Time(limited.median_ns),
            Time(limited.waited_ns),
            Percent(share)
        );
    }
    let rate = half.requests.counts.wire_bytes.0.max(half.requests.counts.wire_bytes.1) as f64
        * 8e9
        / half.requests.duration_ns() as f64;
    match limited.by {
        Limit::LineRate(_) | Limit::Paced => {
            format!(
                "{} on the wire, at most {} outstanding",
                Rate(rate),
                Count(levels.max(), "message")
            )
        }
        Limit::TooShort | Limit::OneWay | Limit::Unreliable => {
            format!(
                "{}, {}",
                Count(half.requests.counts.requests, "request packet"),
                Count(half.requests.counts.responses, "answer")
            )
        }
        _ => format!("at {} of all packets sent", Percent(levels.share_from(levels.max()))),
    }
}

pub(crate) fn times(count: u64) -> String {
    match count {
        1 => "once".to_owned(),
        2 => "twice".to_owned(),
        n => format!("{} times", grouped(n)),
    }
}

/// Round trip above which an accelerator makes up for a short queue: 10 km of fibre, in ns.
const DISTANT_RTT_NS: u64 = 100_000;

/// "100 Gbit/s with a round trip of 10 ms need 125 MiB in flight".
fn takes(need: &Need) -> String {
    let guessed = if need.rate_is_given { "" } else { " (guessed; give --rate)" };
    format!(
        "{}{guessed} with a round trip of {} need {} in flight",
        Rate(need.rate_bps),
        Time(need.rtt_ns),
        Bytes(need.bytes as u64)
    )
}

fn reads(n: u32, limited: &Limited, need: Option<&Need>) -> (&'static str, String, Option<String>) {
    let what = format!(
        "The limit on outstanding READs holds it back: {} READ {} outstanding, waited {}, {}",
        n,
        if n == 1 { "request" } else { "requests" },
        Time(limited.median_ns),
        times(limited.waits)
    );
    let advice = need.map(|need| {
        let each = (need.bytes / f64::from(n)).ceil() as u64;
        let qps = need.messages.div_ceil(u64::from(n).max(1));
        format!(
            "{}: READs of {} instead of {}, or {} with {n} READs each. Raise max_rd_atomic and the \
             peer's max_dest_rd_atomic (perftest -o) where they are below 16, the limit of \
             ConnectX; or let the other side WRITE.",
            takes(need),
            Bytes(each),
            Bytes(need.message_bytes),
            Count(qps, "queue pair"),
        )
    });
    ("read_limit", what, advice)
}

fn deeper_queue(n: u32, need: &Need) -> String {
    if need.messages <= u64::from(n) {
        return format!(
            "{}: {n} messages should do; the rate seen may be bound elsewhere.",
            takes(need)
        );
    }
    let nic = if need.messages > 128 {
        " On ConnectX that also needs LOG_MAX_OUTSTANDING_WQE (mlxconfig) of at least its \
         logarithm."
    } else {
        ""
    };
    let many = if need.messages > 16_384 {
        " No queue pair goes that deep: use several, larger messages, or an accelerator near the \
         sender."
    } else if need.rtt_ns >= DISTANT_RTT_NS {
        " With an accelerator near the sender the depth may stay as it is."
    } else {
        ""
    };
    format!(
        "{}: a queue depth of {} (ib_write_bw -t {}), which should give {}.{nic}{many}",
        takes(need),
        grouped(need.messages),
        need.messages.next_power_of_two(),
        Rate(need.goodput_bps)
    )
}

/// A first burst that is larger than the later ones.
fn moderation(half: &Half, n: u32) -> String {
    let bursts = &half.requests.stalls.bursts;
    let (usual, most) =
        (bursts.quantile(0.4), half.requests.level_messages.max().max(u64::from(n)));
    match usual > 1 && usual * 20 < most * 19 && usual * 2 > most {
        true => format!(
            " It sends {usual} at a time though {most} fit: it learns of completions in groups of \
             that size (perftest -Q)."
        ),
        false => String::new(),
    }
}

fn wider_window(n: u32, need: &Need) -> String {
    if need.packets <= u64::from(n) {
        return format!("{}: {n} packets should do.", takes(need));
    }
    let rxe = if RXE_WINDOW.contains(&n) {
        "Linux rxe stops at 129 packets whatever the queue depth is. "
    } else {
        ""
    };
    format!(
        "{rxe}{}, which are {}: {}.",
        takes(need),
        Count(need.packets, "packet"),
        past_window(n, need)
    )
}

/// Advice to get more in flight than a window of `n` packets.
fn past_window(n: u32, need: &Need) -> String {
    let larger =
        if need.packets == need.messages { "larger messages" } else { "a larger path MTU" };
    format!(
        "use {}, {larger}, or an accelerator near the sender; that should give {}",
        Count(need.packets.div_ceil(n.max(1).into()), "queue pair"),
        Rate(need.goodput_bps)
    )
}

fn either(half: &Half, n: u32, need: Option<&Need>) -> (&'static str, String, Option<String>) {
    let what = format!(
        "The window limits it: {n} messages of one packet each outstanding, and no more; the queue \
         depth (128 is perftest's default) or Linux rxe's window of 129 packets"
    );
    let is_hardware = half.requests.counts.requests > 0 && half.migreq * 2 > half.packets;
    let advice = need.map(|need| {
        let hint = if is_hardware {
            "MigReq is set, as hardware does: likely the queue depth. "
        } else {
            ""
        };
        let rxe = match is_hardware || need.packets <= u64::from(n) {
            true => String::new(),
            false => format!(
                " Where the requester is rxe, no queue depth helps: {}.",
                past_window(n, need)
            ),
        };
        format!("{hint}{}{}{rxe}", deeper_queue(n, need), moderation(half, n))
    });
    ("window", what, advice)
}

fn bursts(n: u64) -> (&'static str, String, Option<String>) {
    let what = format!(
        "It sends bursts of {} and pauses with nothing outstanding here",
        Count(n, "message")
    );
    let advice = format!(
        "If this was captured near the responder, the requester's window of about {n} messages \
         explains it, and the pauses are the path's round trip; capture near the requester to be \
         sure. Otherwise the sender pauses by itself."
    );
    ("bursts", what, Some(advice))
}

fn less_loss() -> String {
    "Find where packets are dropped; make the path lossless (PFC on the LAN, ECN with DCQCN) or \
     put an accelerator near the sender, which repairs loss from its store."
        .to_owned()
}

/// Names of causes in the report.
pub(crate) const fn cause_name(cause: Cause) -> &'static str {
    match cause {
        Cause::Waited => "waited",
        Cause::Drained => "drained",
        Cause::Unprompted => "unprompted",
        Cause::SequenceNak => "sequence_nak",
        Cause::RnrNak => "rnr_nak",
        Cause::ImpliedNak => "implied_nak",
        Cause::Timeout => "timeout",
    }
}
