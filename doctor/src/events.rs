//! Findings about events of a flow: loss, retries, NAKs, congestion, and faults of the capture.

use crate::findings::{finding, times};
use crate::flows::Half;
use crate::quantity::{Bytes, Count, Percent, Time};
use crate::report::{Confidence, Finding, Severity};
use crate::requests::Requests;
use crate::stalls::Cause;
use longhaul_units::Duration;
use longhaul_wire::NakCode;

use Confidence::{Likely, Seen};
use Severity::{Failure, Note, Warning};

/// Minimum ratio of READ to ACK round trips for pseudo-ACKs.
const PSEUDO_ACK_FACTOR: u64 = 10;
/// Minimum packets kept behind gaps for selective repeat: fewer may be repetitions that the capture
/// lacks.
const KEPT_MIN: u64 = 8;
/// Minimum ACKs for a statement about coalescing, and minimum messages for each.
const COALESCED_MIN: u64 = 8;
const COALESCED_MESSAGES: u64 = 2;
/// Minimum READ round trip for pseudo-ACKs.
const PSEUDO_ACK_MIN_NS: u64 = 1_000_000;

/// Returns all findings except the limit. `back` is the half with the responses.
pub(crate) fn of_events(half: &Half, back: Option<&Half>) -> Vec<Finding> {
    let requests = &half.requests;
    [
        fatal(requests),
        early(half),
        timeouts(half),
        unheeded(requests),
        go_back_n(requests),
        selective_repeat(requests),
        implied(requests),
        rnr(requests),
        congestion(half, back),
        premature(requests),
        ece(half),
        reserved_syndrome(requests),
        coalesced_acks(requests),
        pseudo_ack(requests),
        nak_below_ack(requests),
        unreliable_loss(requests),
        wrong_icrc(half, back),
        incomplete(requests),
        captured_twice(requests),
        reordered(requests),
        wraps(requests),
    ]
    .into_iter()
    .flatten()
    .collect()
}

fn with_advice(mut found: Finding, advice: &str) -> Finding {
    found.advice = Some(advice.to_owned());
    found
}

fn fatal(requests: &Requests) -> Option<Finding> {
    let nak = requests.fatal?;
    let (name, advice) = match nak.code {
        NakCode::RemoteAccess => (
            "a remote access error (NAK 0x62)",
            "Check the rkey, the address range and the access flags of the responder's memory \
             region and queue pair.",
        ),
        NakCode::RemoteOperational => (
            "a remote operational error (NAK 0x63)",
            "The responder failed: look into its kernel log and asynchronous events.",
        ),
        NakCode::InvalidRequest => (
            "an invalid request (NAK 0x61)",
            "The operation is not enabled at the responder, too long for its receive, or beyond \
             its max_dest_rd_atomic.",
        ),
        NakCode::InvalidRd | NakCode::PsnSequence => {
            ("an invalid datagram (NAK 0x64)", "Reliable datagrams are obsolete.")
        }
    };
    let on = nak.operation.map_or(String::new(), |operation| format!(" to a {}", operation.name()));
    let what = format!("The responder answered{on} with {name}, which ends the connection");
    let evidence = format!(
        "frame {}, PSN {}, {} after the capture began",
        nak.frame,
        nak.psn,
        Time(nak.at_ns)
    );
    Some(with_advice(finding("fatal_nak", Failure, Seen, what, evidence), advice))
}

/// Returns the local ACK timeout code that a wait suggests: the largest whose time is at most the
/// wait.
pub(crate) fn timeout_code(waited_ns: u64) -> Option<(u8, u64)> {
    let codes =
        (1..32_u8).rev().filter_map(|code| Some((code, Duration::of_ack_timeout(code)?.as_ns())));
    {
        let mut codes = codes;
        codes.find(|&(_, ns)| ns <= waited_ns + waited_ns / 20)
    }
}

/// Timeouts far shorter than configured, or a back-off: ConnectX's adaptive retransmission. Linux
/// rxe does not back off; its retries are early because later packets do not restart its timer.
fn early(half: &Half) -> Option<Finding> {
    let requests = &half.requests;
    let sum = requests.recovery.of(Cause::Timeout)?;
    let shortest = sum.waited.min()?;
    let configured = half.agreed.and_then(|agreed| agreed.ack_timeout_ns);
    let too_short = configured.filter(|&timeout| shortest < timeout / 4 * 3 && sum.episodes >= 2);
    let backs_off = requests.recovery.backs_off();
    let retries = Count(sum.episodes, "retry").to_string().replace("retrys", "retries");
    let tries: Vec<String> =
        requests.recovery.longest_tries.iter().map(|&ns| Time(ns).to_string()).collect();
    let evidence = format!("{retries}; the most at one packet: after {}", tries.join(", "));
    let what = match too_short {
        Some(timeout) => {
            format!(
                "It retries after {}, although its timeout was set up as {}",
                Time(shortest),
                Time(timeout)
            )
        }
        None if backs_off => "It retries at growing short intervals".to_owned(),
        None => return None,
    };
    if !backs_off && half.migreq == 0 {
        let what =
            format!("{what}: a timer that runs on from an earlier packet, as Linux rxe's does");
        let evidence =
            format!("{evidence}; MigReq is clear, as rxe leaves it and ConnectX does not");
        return Some(with_advice(
            finding("early_retry", Warning, Likely, what, evidence),
            "What is sent late in its time is sent again before it can be answered. Where that is \
             often, raise the timeout.",
        ));
    }
    let what = format!("{what}: adaptive retransmission");
    Some(with_advice(
        finding("adaptive_retransmission", Warning, Likely, what, evidence),
        "Where the round trip is long, ConnectX retries before any ACK can come, whatever timeout \
         is set. Turn it off: mlxreg -d DEVICE --reg_name ROCE_ACCL --set \
         \"roce_adp_retrans_en=0x0\".",
    ))
}

fn timeouts(half: &Half) -> Option<Finding> {
    let sum = half.requests.recovery.of(Cause::Timeout)?;
    let (least, most) = (sum.waited.min()?, sum.waited.max());
    let waited = if most - least < least / 8 {
        Time(most).to_string()
    } else {
        format!("{} to {}", Time(least), Time(most))
    };
    let what =
        format!("It sent packets again {} because no answer came in time", times(sum.episodes));
    let configured = match half.agreed {
        Some(agreed) => match agreed.ack_timeout_ns {
            Some(ns) => format!("timeout {} was set up, {}", agreed.ack_timeout_code, Time(ns)),
            None => "no timeout was set up".to_owned(),
        },
        None => timeout_code(least)
            .map_or(String::new(), |(code, ns)| format!("timeout {code} means {}", Time(ns))),
    };
    let again = Count(sum.packets, "packet");
    let evidence = format!("waited {waited}; {again} again that this point had seen; {configured}");
    let mut found = finding("timeout", Warning, Seen, what, evidence);
    found.share_of_time = share(&half.requests, Cause::Timeout);
    found.advice = Some(
        "A packet, its ACK or its NAK was lost at the end of a burst. A timeout of a few round \
         trips (4.096 µs × 2^timeout) recovers sooner; loss itself is the cause to remove."
            .to_owned(),
    );
    Some(found)
}

fn share(requests: &Requests, cause: Cause) -> Option<f64> {
    requests.stalls.of(cause).map(|tally| tally.total_ns as f64 / requests.duration_ns() as f64)
}

fn go_back_n(requests: &Requests) -> Option<Finding> {
    let counts = &requests.counts;
    if counts.sequence_naks == 0 && counts.lost_before == 0 {
        return None;
    }
    let what = format!(
        "Packets were lost {}; go-back-N sent {} ({} of payload) again that had passed here before",
        match (counts.lost_before > 0, counts.lost_behind > 0) {
            (true, true) => "before and behind the capture point",
            (true, false) => "before the capture point",
            (false, true) => "behind the capture point",
            (false, false) => "or came out of order",
        },
        Count(counts.resent_packets, "packet"),
        Bytes(counts.resent_bytes)
    );
    let payload = counts.request_bytes + counts.resent_bytes;
    let evidence = format!(
        "{}; {} lost before this point, {} behind it; {} of the payload sent was repeated",
        Count(counts.sequence_naks, "sequence NAK"),
        counts.lost_before,
        counts.lost_behind,
        Percent(counts.resent_bytes as f64 / payload.max(1) as f64)
    );
    let mut found = finding("go_back_n", Warning, Seen, what, evidence);
    found.share_of_time = share(requests, Cause::SequenceNak);
    found.advice = Some(
        "Look for drops and reordering on that side of the path: switch drop counters, PFC, ECN \
         thresholds, several paths per flow. Over distance, an accelerator repairs loss without \
         going back."
            .to_owned(),
    );
    Some(found)
}

/// The responder keeps what arrives behind a gap: only the missing packets are sent again.
fn selective_repeat(requests: &Requests) -> Option<Finding> {
    let counts = &requests.counts;
    let kept = counts.kept_packets;
    (kept >= KEPT_MIN && kept > counts.resent_packets).then(|| {
        let what = "The NICs repeat single packets, and the responder keeps what arrives behind a \
                    gap (selective repeat)"
            .to_owned();
        let evidence = format!(
            "{} behind a NAKed one acknowledged without having been sent again; {} sent again",
            Count(kept, "packet"),
            Count(counts.resent_packets, "packet")
        );
        with_advice(
            finding("selective_repeat", Note, Likely, what, evidence),
            "An accelerator expects PSNs in order: beside one, turn selective repeat off.",
        )
    })
}

/// Vendor features that the NICs negotiate while they connect.
fn ece(half: &Half) -> Option<Finding> {
    let agreed = half.agreed?;
    let offered = agreed.ece_offered?;
    let evidence = format!(
        "REQ: options {:#010x} of vendor {:#06x}; REP: {}",
        offered.options,
        offered.vendor_id,
        agreed.ece_agreed.map_or_else(
            || "none".to_owned(),
            |ece| format!("options {:#010x} of vendor {:#06x}", ece.options, ece.vendor_id)
        )
    );
    let what = match agreed.ece_agreed {
        Some(_) => "The NICs agreed on vendor features (ECE), such as selective repeat",
        None => "A NIC offered vendor features (ECE), and the other end took none",
    };
    let found = finding("ece", Note, Seen, what.to_owned(), evidence);
    Some(match agreed.ece_agreed {
        Some(_) => with_advice(
            found,
            "An accelerator expects PSNs in order, and clears the offer if it sees the REQ.",
        ),
        None => found,
    })
}

fn reserved_syndrome(requests: &Requests) -> Option<Finding> {
    let counts = &requests.counts;
    (counts.reserved_syndromes > 0).then(|| {
        let what = format!(
            "The responder answered with a reserved AETH syndrome, {}",
            times(counts.reserved_syndromes)
        );
        let evidence = format!("first {:#04x}", counts.reserved_syndrome);
        with_advice(
            finding("reserved_syndrome", Warning, Seen, what, evidence),
            "The standard does not define it: a vendor's extension, or a defective NIC or box. A \
             requester of another vendor does not understand it, and retries by its timer.",
        )
    })
}

/// ACKs that complete several messages each.
fn coalesced_acks(requests: &Requests) -> Option<Finding> {
    let counts = &requests.counts;
    let (acks, messages) = (counts.completing_acks, counts.completed_messages);
    (acks >= COALESCED_MIN && messages >= acks * COALESCED_MESSAGES).then(|| {
        let what = format!(
            "ACKs are coalesced: each completes {:.0} messages on average",
            messages as f64 / acks as f64
        );
        let evidence = format!("{} by {}", Count(messages, "message"), Count(acks, "ACK"));
        finding("coalesced_acks", Note, Seen, what, evidence)
    })
}

/// Sequence NAKs that did not end the requester's wait for its timer.
fn unheeded(requests: &Requests) -> Option<Finding> {
    let waited = &requests.recovery.of(Cause::SequenceNak)?.waited;
    let (_, timeout) = timeout_code(waited.max())?;
    let from = timeout / 10 * 9;
    let count = (waited.share_from(from) * waited.count() as f64).round() as u64;
    let is_timer = waited.max() < timeout * 2 && waited.min()? < timeout / 8 && timeout > 8_000_000;
    (is_timer && count > 0).then(|| {
        let what = format!(
            "{} went unheeded: the requester sent again only when its timer ran out",
            Count(count, "NAK")
        );
        let evidence = format!(
            "waited up to {}, near {}; other NAKs were answered after {}",
            Time(waited.max()),
            Time(timeout),
            Time(waited.min().unwrap_or(0))
        );
        with_advice(
            finding("unheeded_nak", Warning, Likely, what, evidence),
            "The NAK was lost behind the capture point, or the requester ignored it while it \
             recovered (kernel rxe does). A shorter timeout limits the damage.",
        )
    })
}

fn implied(requests: &Requests) -> Option<Finding> {
    let sum = requests.recovery.of(Cause::ImpliedNak)?;
    let counts = &requests.counts;
    let what = format!("READ or atomic answers were lost: asked for again {}", times(sum.episodes));
    let evidence = format!(
        "later answers had passed them (implied NAK); {} came again, {}",
        Count(counts.replayed_responses, "response"),
        Bytes(counts.replayed_bytes)
    );
    Some(finding("implied_nak", Warning, Seen, what, evidence))
}

fn rnr(requests: &Requests) -> Option<Finding> {
    let counts = &requests.counts;
    if counts.rnr_naks == 0 {
        return None;
    }
    let what = format!("The responder had no receive posted, {} (RNR NAK)", times(counts.rnr_naks));
    let waits = &requests.rnr_waits;
    let evidence = format!(
        "it asked to wait {}; the requester waited {} (median)",
        Time(counts.rnr_timer_max_ns),
        Time(waits.quantile(0.5))
    );
    let mut found = finding("rnr_nak", Warning, Seen, what, evidence);
    found.share_of_time = share(requests, Cause::RnrNak);
    found.advice = Some(
        "Post receives before the peer sends, and more of them; a lower min_rnr_timer at the \
              responder shortens each wait."
            .to_owned(),
    );
    Some(found)
}

fn congestion(half: &Half, back: Option<&Half>) -> Option<Finding> {
    let (marked, cnps) = (half.marked.0, back.map_or(0, |b| b.cnps));
    let answers_marked = back.map_or(0, |b| b.marked.1);
    if marked + cnps + answers_marked == 0 {
        return None;
    }
    let what = match cnps {
        0 => format!("Switches marked {} as congested", Count(marked + answers_marked, "packet")),
        n => format!("The requester was told to slow down {} (CNP)", times(n)),
    };
    let evidence = format!(
        "{} with congestion experienced, {}, {}",
        Count(marked, "request"),
        Count(answers_marked, "marked answer"),
        Count(cnps, "CNP")
    );
    let found = finding("congestion", Warning, Seen, what, evidence);
    let advice = if marked == 0 && cnps > 0 {
        "Packets are marked behind this capture point, in a queue between it and the responder, \
         so that all of them look unmarked here. Pace the sender to what the path carries behind \
         that queue, or mark later: DCQCN over a long path reacts a round trip late."
    } else {
        "A queue on the path is full: reduce the load or the senders that share it. DCQCN over a \
         long path reacts a round trip late; pace to the bottleneck's rate instead."
    };
    Some(with_advice(found, advice))
}

fn premature(requests: &Requests) -> Option<Finding> {
    let count = requests.recovery.premature;
    (count > 0).then(|| {
        let what = format!(
            "{} came too soon: the answer to the first packet was in flight",
            Count(count, "repetition")
        );
        let rtt = requests.rtt_min_ns().unwrap_or(0);
        let evidence = format!(
            "answered sooner after the repetition than half the shortest round \
                                trip, {}",
            Time(rtt)
        );
        with_advice(
            finding("premature_retry", Warning, Seen, what, evidence),
            "The timeout is shorter than the path's round trip: raise it, or turn off a ConnectX's \
             adaptive retransmission.",
        )
    })
}

/// ACKs far sooner than READ responses: a node before the responder acknowledges.
fn pseudo_ack(requests: &Requests) -> Option<Finding> {
    let (ack, answer) = (&requests.rtt_ack, &requests.rtt_answer);
    let fastest = answer.min()?;
    let usual = ack.quantile(0.5);
    let is_far = fastest >= PSEUDO_ACK_MIN_NS && fastest > usual.saturating_mul(PSEUDO_ACK_FACTOR);
    (ack.count() >= 8 && answer.count() >= 8 && is_far).then(|| {
        let what = "ACKs come from somebody nearer than the responder (an accelerator)".to_owned();
        let evidence = format!(
            "ACKs after {} (median), READs and atomics after {} at the least",
            Time(usual),
            Time(fastest)
        );
        finding("pseudo_ack", Note, Likely, what, evidence)
    })
}

fn nak_below_ack(requests: &Requests) -> Option<Finding> {
    let count = requests.counts.naks_below_ack;
    (count > 0).then(|| {
        let what = format!("A packet was acknowledged and later found missing, {}", times(count));
        let evidence =
            "a sequence NAK for a PSN below an ACK that had passed more than a round trip before"
                .to_owned();
        with_advice(
            finding("acknowledged_then_missing", Failure, Seen, what, evidence),
            "One responder never does that: two parties acknowledge, or the responder is broken.",
        )
    })
}

fn unreliable_loss(requests: &Requests) -> Option<Finding> {
    let count = requests.counts.unreliable_gaps;
    (count > 0).then(|| {
        let what = format!("{} of an unreliable connection are missing", Count(count, "packet"));
        finding(
            "unreliable_loss",
            Warning,
            Seen,
            what,
            "PSNs that were skipped; UC does not repeat them".to_owned(),
        )
    })
}

fn wrong_icrc(half: &Half, back: Option<&Half>) -> Option<Finding> {
    let count = half.wrong_icrc + back.map_or(0, |b| b.wrong_icrc);
    (count > 0).then(|| {
        let what =
            format!("{} with a wrong ICRC, which the receiver drops", Count(count, "packet"));
        let evidence =
            format!("{} of requests, {} of answers", half.wrong_icrc, count - half.wrong_icrc);
        finding("wrong_icrc", Warning, Seen, what, evidence)
    })
}

fn incomplete(requests: &Requests) -> Option<Finding> {
    let counts = &requests.counts;
    (counts.missed_by_capture > 0).then(|| {
        let what = format!(
            "The capture lacks {} that the responder acknowledged",
            Count(counts.missed_by_capture, "packet")
        );
        let share =
            counts.missed_by_capture as f64 / (counts.missed_by_capture + counts.requests) as f64;
        let evidence =
            format!("{} of the requests; sizes and the window are lower bounds", Percent(share));
        with_advice(
            finding("incomplete_capture", Warning, Seen, what, evidence),
            "Capture fewer bytes (tcpdump -s 128) with a larger buffer (-B 65536), and mind \
             \"packets dropped by kernel\".",
        )
    })
}

fn captured_twice(requests: &Requests) -> Option<Finding> {
    let count = requests.counts.captured_twice;
    (count > requests.counts.requests / 50).then(|| {
        let what = format!("{} were captured twice", Count(count, "packet"));
        let evidence = "the same PSN again within 20 µs".to_owned();
        with_advice(
            finding("captured_twice", Note, Likely, what, evidence),
            "Capture on one interface and not on \"any\", or mirror one direction of one port.",
        )
    })
}

fn reordered(requests: &Requests) -> Option<Finding> {
    let count = requests.counts.reordered;
    (count > 0).then(|| {
        let what = format!("{} came out of order", Count(count, "packet"));
        finding(
            "reordered",
            Warning,
            Seen,
            what,
            "late, without having been asked for again".to_owned(),
        )
    })
}

fn wraps(requests: &Requests) -> Option<Finding> {
    let count = requests.counts.wraps;
    (count > 0).then(|| {
        let what = format!("The PSN passed 2^24 {}", times(count));
        finding("psn_wrap", Note, Seen, what, "packets stayed in sequence".to_owned())
    })
}
