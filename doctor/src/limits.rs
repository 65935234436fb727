//! The limit of a flow, from the number in flight at which it waits, and the share of time.

use crate::flows::Half;
use crate::histogram::Histogram;
use crate::report::Pairing;
use crate::stalls::{AtLevel, Cause, Level};
use longhaul_units::BitRate;
use longhaul_wire::Transport;

/// Minimum share of waiting time with a full window, and of the flow's time spent waiting.
const FULL_SHARE: f64 = 0.6;
/// Minimum share of the flow's time for a cause to be its limit.
const MAIN_SHARE: f64 = 0.2;
/// Minimum waits at one level to be significant.
const WAITS_MIN: u64 = 3;
/// Minimum round-trip samples for a statement about their length.
const PACKETS_MIN: u64 = 8;
/// Rates of Ethernet, in Gbit/s.
const ETHERNET_GBPS: [f64; 9] = [1.0, 2.5, 10.0, 25.0, 40.0, 50.0, 100.0, 200.0, 400.0];
/// Packets in flight at which kernel rxe stops, including the one being sent.
pub(crate) const RXE_WINDOW: std::ops::RangeInclusive<u32> = 127..=130;
/// Ethernet, IP, UDP, BTH, ICRC, FCS, preamble and gap around a packet's payload, in bytes; without
/// a RETH.
const PACKET_OVERHEAD: f64 = 82.0;

/// The main limit of a flow.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) enum Limit {
    /// Messages outstanding.
    QueueDepth(u32),
    /// PSNs outstanding.
    PsnWindow(u32),
    /// Messages of one packet, with a number that either limit explains.
    QueueDepthOrPsnWindow(u32),
    /// READs and atomics outstanding.
    Reads(u32),
    /// Each message waits for the response to the previous one.
    OneAtATime,
    Credits,
    Rnr,
    /// Sequence NAKs, implied NAKs, timeouts.
    Recovery,
    /// The sender has nothing to send, or is paced.
    Sender,
    /// The same, with nothing outstanding meanwhile.
    SenderIdle,
    /// Equal bursts with nothing outstanding between them: a full window that is not visible at
    /// this capture point, or a sender that pauses.
    Bursts(u64),
    LineRate(f64),
    /// No waits and no full window.
    Paced,
    /// A transport without acknowledgements.
    Unreliable,
    /// No responses in the capture.
    OneWay,
    /// Too few packets.
    TooShort,
}

/// A limit with its evidence.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) struct Limited {
    pub by: Limit,
    /// Number of waits, their total and median.
    pub waits: u64,
    pub waited_ns: u64,
    pub median_ns: u64,
    /// Share of the flow's time; `None` if the window is full without pauses.
    pub share: Option<f64>,
    /// Round trip from the capture point to the requester: minimum and maximum.
    pub near_ns: Option<(u64, u64)>,
}

impl Limited {
    fn of(by: Limit) -> Self {
        Limited { by, waits: 0, waited_ns: 0, median_ns: 0, share: None, near_ns: None }
    }
}

/// A number in flight that is common to waits.
struct Plateau {
    at: u32,
    waits: u64,
    waited_ns: u64,
    share_of_waiting: f64,
    mid_message_waits: u64,
    only_reads: bool,
    near_ns: Option<(u64, u64)>,
}

/// Minimum level, relative to the fullest, that counts as full; and the same if only two waits were
/// seen, where the second may be smaller because requesters with completion moderation (perftest's
/// cq-mod) post less.
const FULL: f64 = 0.95;
const FULL_OF_TWO: f64 = 0.75;

fn plateau(levels: &[AtLevel], full: f64, of: impl Fn(&Level) -> u32) -> Option<Plateau> {
    let waiting = || levels.iter().filter(|l| of(&l.level) > 0);
    let total: u64 = waiting().map(|l| l.total_ns).sum();
    // A level with one or two waits may be a burst from before the capture.
    let repeated =
        waiting().filter(|l| l.count >= 2 || l.total_ns * 4 > total).map(|l| of(&l.level)).max();
    let at = repeated.or_else(|| waiting().map(|l| of(&l.level)).max())?;
    let mut found = Plateau {
        at,
        waits: 0,
        waited_ns: 0,
        share_of_waiting: 0.0,
        mid_message_waits: 0,
        only_reads: true,
        near_ns: None,
    };
    for l in waiting().filter(|l| f64::from(of(&l.level)) >= f64::from(at) * full) {
        found.waits += l.count;
        found.waited_ns += l.total_ns;
        found.mid_message_waits += if l.level.mid_message { l.count } else { 0 };
        found.only_reads &= l.level.reads == l.level.messages;
        found.near_ns = match (found.near_ns, l.near_ns) {
            (Some((a, b)), Some((c, d))) => Some((a.min(c), b.min(d))),
            (one, other) => one.or(other),
        };
    }
    found.share_of_waiting = found.waited_ns as f64 / total.max(1) as f64;
    Some(found)
}

/// Determines the limit of the requests on `half`.
pub(crate) fn limit(half: &Half, rate: Option<BitRate>) -> Limited {
    let requests = &half.requests;
    if half.transport != Transport::Rc {
        return Limited::of(Limit::Unreliable);
    }
    if half.pairing == Pairing::None {
        return Limited::of(Limit::OneWay);
    }
    let duration = requests.duration_ns() as f64;
    let sum = |causes: &[Cause]| -> (u64, u64) {
        let tallies = causes.iter().filter_map(|&cause| requests.stalls.of(cause));
        tallies.fold((0, 0), |(count, ns), t| (count + t.count, ns + t.total_ns))
    };
    let summed = |by: Limit, (waits, waited_ns): (u64, u64)| Limited {
        by,
        waits,
        waited_ns,
        median_ns: waited_ns / waits.max(1),
        share: Some(waited_ns as f64 / duration),
        near_ns: None,
    };
    let mut candidates = vec![
        summed(Limit::Recovery, sum(&[Cause::SequenceNak, Cause::ImpliedNak, Cause::Timeout])),
        summed(Limit::Rnr, sum(&[Cause::RnrNak])),
    ];
    let share = |l: &Limited| l.share.unwrap_or(0.0);
    if requests.counts.requests < PACKETS_MIN || requests.messages.count() < WAITS_MIN {
        let trouble = candidates.into_iter().find(|l| share(l) > 0.5 && l.waits >= WAITS_MIN);
        return trouble.unwrap_or(Limited::of(Limit::TooShort));
    }
    let waits = sum(&[Cause::Waited, Cause::Drained]);
    let full = full_window(half, duration);
    match full {
        Some(full) => {
            candidates.push(full);
            let (waits, ns) = sum(&[Cause::Waited, Cause::Drained, Cause::Unprompted]);
            let rest = (waits.saturating_sub(full.waits), ns.saturating_sub(full.waited_ns));
            candidates.push(summed(Limit::Sender, rest));
        }
        None => {
            let (unprompted, ns) = sum(&[Cause::Unprompted]);
            candidates.push(summed(bursts(half), (waits.0 + unprompted, waits.1 + ns)));
        }
    }
    let most = candidates.into_iter().max_by(|a, b| share(a).total_cmp(&share(b)));
    match most.filter(|most| share(most) >= MAIN_SHARE) {
        Some(most) => most,
        None => steady(half, rate),
    }
}

/// Waits with a full window: the same level each time.
fn full_window(half: &Half, duration: f64) -> Option<Limited> {
    let stalls = &half.requests.stalls;
    let tallies =
        || [Cause::Waited, Cause::Drained].into_iter().filter_map(|cause| stalls.of(cause));
    let levels: Vec<AtLevel> = tallies().flat_map(|tally| tally.levels.iter().copied()).collect();
    let (waits, out_of_credits) =
        tallies().fold((0, 0), |(w, c), t| (w + t.count, c + t.out_of_credits));
    let full = if waits < WAITS_MIN { FULL_OF_TWO } else { FULL };
    let messages = plateau(&levels, full, |l| l.messages)?;
    let packets = plateau(&levels, full, |l| l.packets)?;
    let enough = |p: &Plateau| p.waits >= WAITS_MIN || (p.waits == 2 && p.at >= 16);
    let holds = |p: &Plateau| enough(p) && p.share_of_waiting >= FULL_SHARE;
    let one_packet_each = packets.at.abs_diff(messages.at) <= messages.at / 16;
    let drained_ns: u64 = tallies().map(|t| t.drained_ns).sum();
    if drained_ns * 2 > tallies().map(|t| t.total_ns).sum() {
        // It pauses with nothing outstanding, which no window visible here causes.
        return None;
    }
    let (by, plateau) = if out_of_credits >= WAITS_MIN && out_of_credits * 2 > waits {
        (Limit::Credits, messages)
    } else if holds(&messages) && messages.only_reads {
        let by = if messages.at == 1 { Limit::OneAtATime } else { Limit::Reads(messages.at) };
        (by, messages)
    } else if holds(&packets) && packets.mid_message_waits * 2 > packets.waits {
        // A queue of messages does not stop in the middle of a message.
        (Limit::PsnWindow(packets.at), packets)
    } else if holds(&messages) {
        let by = match messages.at {
            1 => Limit::OneAtATime,
            n if one_packet_each && RXE_WINDOW.contains(&n) => Limit::QueueDepthOrPsnWindow(n),
            n => Limit::QueueDepth(n),
        };
        (by, messages)
    } else if holds(&packets) {
        (Limit::PsnWindow(packets.at), packets)
    } else {
        return None;
    };
    let median = |cause| stalls.of(cause).map_or(0, |t| t.lengths.quantile(0.5));
    Some(Limited {
        by,
        waits: plateau.waits,
        waited_ns: plateau.waited_ns,
        median_ns: median(Cause::Waited).max(median(Cause::Drained)),
        share: Some(plateau.waited_ns as f64 / duration),
        near_ns: plateau.near_ns.filter(|_| by != Limit::OneAtATime),
    })
}

/// Pauses without a full window: a slow sender, or a window that is not visible at this capture
/// point.
fn bursts(half: &Half) -> Limit {
    let bursts = &half.requests.stalls.bursts;
    let usual = bursts.quantile(0.5);
    let equal = bursts.share_from(usual) - bursts.share_from(usual + 1);
    let drained = half.requests.stalls.of(Cause::Drained).map_or(0, |t| t.drained_ns);
    let waited = half.requests.stalls.of(Cause::Waited).map_or(0, |t| t.total_ns);
    match bursts.count() >= 8 && usual > 1 && equal > FULL_SHARE {
        _ if drained <= waited => Limit::Sender,
        true => Limit::Bursts(usual),
        false => Limit::SenderIdle,
    }
}

/// A flow that hardly pauses.
fn steady(half: &Half, rate: Option<BitRate>) -> Limited {
    let requests = &half.requests;
    let bytes = requests.counts.wire_bytes.0.max(requests.counts.wire_bytes.1);
    let gbps = bytes as f64 * 8.0 / requests.duration_ns() as f64;
    let rates = rate.map_or(ETHERNET_GBPS.to_vec(), |rate| vec![rate.as_gbps()]);
    if let Some(line) = rates.into_iter().find(|line| (0.93..1.02).contains(&(gbps / line))) {
        return Limited::of(Limit::LineRate(line * 1e9));
    }
    let flat = |h: &Histogram| {
        h.max() > 1 && h.count() > 4 * h.max() && h.share_from(h.max()) > FULL_SHARE
    };
    if flat(&requests.level_reads)
        && requests.level_reads.count() * 2 > requests.level_messages.count()
    {
        return Limited::of(Limit::Reads(requests.level_reads.max() as u32));
    }
    let (messages, packets) =
        (requests.level_messages.max() as u32, requests.level_packets.max() as u32);
    let by = match (flat(&requests.level_messages), flat(&requests.level_packets)) {
        (true, true) if RXE_WINDOW.contains(&packets) && messages == packets => {
            Limit::QueueDepthOrPsnWindow(messages)
        }
        (true, _) => Limit::QueueDepth(messages),
        (false, true) => Limit::PsnWindow(packets),
        (false, false) => Limit::Paced,
    };
    Limited::of(by)
}

/// Requirements to fill a path of a given rate and round trip.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) struct Need {
    pub rate_bps: f64,
    /// The rate was given, not derived from the capture.
    pub rate_is_given: bool,
    pub rtt_ns: u64,
    pub bytes: f64,
    pub messages: u64,
    pub packets: u64,
    /// The rate less headers, in bit/s.
    pub goodput_bps: f64,
    pub message_bytes: u64,
}

/// `None` if the round trip or the message size is unknown.
pub(crate) fn need(
    half: &Half,
    near_ns: Option<(u64, u64)>,
    rate: Option<BitRate>,
) -> Option<Need> {
    let requests = &half.requests;
    let far = [&requests.rtt_ack, &requests.rtt_answer].into_iter().filter(|h| h.count() > 0);
    let far = far.map(|h| h.quantile(0.5)).max()?;
    let rtt_ns = far + near_ns.map_or(0, |(least, _)| least);
    let message_bytes = requests.messages.typical_size().filter(|&size| size > 0)?;
    let mtu = f64::from(requests.messages.mtu.unwrap_or(4096));
    let packets = (message_bytes as f64 / mtu).ceil().max(1.0);
    let wire = message_bytes as f64 + packets * PACKET_OVERHEAD;
    let peak = requests.peak_bps() / 1e9;
    let guessed = ETHERNET_GBPS.into_iter().find(|&gbps| gbps >= peak * 0.98).unwrap_or(peak);
    let rate_bps = rate.map_or(guessed * 1e9, |rate| rate.as_bps() as f64);
    let bytes = rate_bps / 8.0 * rtt_ns as f64 / 1e9;
    let messages = (bytes / wire).ceil().max(1.0);
    Some(Need {
        rate_bps,
        rate_is_given: rate.is_some(),
        rtt_ns,
        bytes,
        messages: messages as u64,
        packets: (messages * packets) as u64,
        goodput_bps: rate_bps * message_bytes as f64 / wire,
        message_bytes,
    })
}
