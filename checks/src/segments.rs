//! Proves, from captures of all segments of a path, that its accelerators behaved correctly.
//!
//! ```text
//! requester ──near LAN── near box ──near WAN── fibre ──far WAN── far box ──far LAN── responder
//! ```
//!
//! Each capture holds both directions at one port, as `longhaul accelerate --pcap-lan FILE
//! --pcap-wan FILE` records it. All are made on one machine and by one clock: a frame that leaves a
//! port is recorded before the next port records it, even in another process, so the captures are
//! merged by timestamp. A flow's requester is therefore on the side where its first packet is seen
//! first, and a box's answer follows everything that the box had seen. The requester's segment of a
//! flow is the outermost on its side, the responder's the outermost on the other; if a box is
//! missing, the outermost existing one (a recording of the fibre's port will do). Within a capture,
//! the order is that at the port: consequences of a recorded frame are recorded after it.
//!
//! A responder accepts what the standard permits: packets in PSN order without a gap, each once.
//! The same holds for packets that a box may consider stored. READ responses and answers to atomics
//! can come only from the responder.
//!
//! The checker knows only wire formats, and shares no code with the accelerator. Its memory is
//! bounded by the packets in flight and a fixed number of delivered ones per flow.

mod capture;
mod connections;
mod flow;
mod frame;
mod passage;
#[cfg(test)]
mod tests;

use capture::{Capture, Recorded};
use connections::Connections;
use flow::{Fits, Flow};
use frame::{FrameKind, Seen, Way};
use longhaul_wire::Transport;
use longhaul_wire::pcap::CaptureError;
use serde::Serialize;
use std::collections::HashMap;
use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use thiserror::Error;

/// Violations kept with their position; the others are only counted.
const VIOLATIONS_KEPT: usize = 1000;

/// A segment of the path, from the near host to the far one.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Segment {
    /// Between the near host and its box.
    NearLan,
    /// Behind the near box.
    NearWan,
    /// In front of the far box.
    FarWan,
    /// Between the far box and its host.
    FarLan,
}

impl Segment {
    /// Name for reports.
    pub const fn name(self) -> &'static str {
        match self {
            Segment::NearLan => "near LAN",
            Segment::NearWan => "near WAN",
            Segment::FarWan => "far WAN",
            Segment::FarLan => "far LAN",
        }
    }

    /// The segment on the other side of this one's box.
    const fn across(self) -> Segment {
        match self {
            Segment::NearLan => Segment::NearWan,
            Segment::NearWan => Segment::NearLan,
            Segment::FarWan => Segment::FarLan,
            Segment::FarLan => Segment::FarWan,
        }
    }
}

/// The captures of one run, pcap or pcapng; at least two, with whole frames.
#[derive(Default)]
pub struct Segments<'a> {
    /// Between the near host and its box.
    pub near_lan: Option<Box<dyn Read + 'a>>,
    /// Behind the near box.
    pub near_wan: Option<Box<dyn Read + 'a>>,
    /// In front of the far box.
    pub far_wan: Option<Box<dyn Read + 'a>>,
    /// Between the far box and its host.
    pub far_lan: Option<Box<dyn Read + 'a>>,
}

impl Segments<'static> {
    /// Opens the files near LAN, near WAN, far WAN, far LAN; `None` for those without a capture.
    ///
    /// # Errors
    /// If a file cannot be opened.
    pub fn open(files: [Option<&Path>; 4]) -> Result<Self, ProofError> {
        let mut opened = files.map(|_| None);
        for (file, opened) in files.into_iter().zip(&mut opened) {
            let Some(path) = file else { continue };
            let file =
                File::open(path).map_err(|error| ProofError::Open(path.to_owned(), error))?;
            *opened = Some(Box::new(file) as Box<dyn Read>);
        }
        let [near_lan, near_wan, far_wan, far_lan] = opened;
        Ok(Segments { near_lan, near_wan, far_wan, far_lan })
    }
}

/// Reason why captures cannot be used.
#[derive(Debug, Error)]
pub enum ProofError {
    /// A file cannot be opened.
    #[error("cannot open {path}: {error}", path = .0.display(), error = .1)]
    Open(PathBuf, #[source] io::Error),
    /// A file cannot be read.
    #[error("cannot read the capture of the {place}: {error}", place = .0.name(), error = .1)]
    Read(Segment, #[source] io::Error),
    /// Not a capture, or a damaged one.
    #[error("the capture of the {place}: {error}", place = .0.name(), error = .1)]
    Capture(Segment, #[source] CaptureError),
    /// Another kind of network, with the link type's number.
    #[error(
        "the capture of the {place} has link type {kind}; record Ethernet",
        place = .0.name(),
        kind = .1
    )]
    LinkType(Segment, u16),
    /// A truncated frame.
    #[error(
        "frame {frame} of the {place} is cut; record whole frames",
        place = .0.name(),
        frame = .1
    )]
    Cut(Segment, u64),
    /// A frame without a timestamp.
    #[error("frame {frame} of the {place} has no time", place = .0.name(), frame = .1)]
    Timeless(Segment, u64),
    /// Nothing to compare.
    #[error("captures of two segments at least are needed")]
    TooFew,
}

/// Result of the proof.
#[derive(Debug, Serialize)]
pub struct Proof {
    /// The captures, from the near host to the far one.
    pub captures: Vec<CaptureSummary>,
    /// All RC flows, in the order of their first packets; a QP with two lives is listed twice.
    pub flows: Vec<FlowProof>,
    /// Boxes with captures on both sides.
    pub boxes: Vec<Passage>,
    /// Responses that fit no flow, or more than one.
    pub responses_unpaired: u64,
    /// Requests of flows that no outermost capture shows first.
    pub requests_unplaced: u64,
    /// The first violations, at most 1000.
    pub violations: Vec<Violation>,
    /// All violations.
    pub violations_total: u64,
}

impl Proof {
    /// `true` if there was something to prove, all of it could be checked, no rule was violated,
    /// and all acknowledged packets arrived. A flow that failed with acknowledged packets in flight
    /// violates no rule, but proves nothing.
    pub fn holds(&self) -> bool {
        let looked_at_all = self.responses_unpaired == 0 && self.requests_unplaced == 0;
        let lost = |flow: &FlowProof| match flow.end {
            End::Failed { acknowledged_but_missing, .. } => acknowledged_but_missing > 0,
            _ => false,
        };
        if self.flows.iter().any(lost) {
            return false;
        }
        let has_flow = self.flows.iter().any(|flow| flow.arrived > 0);
        self.violations_total == 0 && looked_at_all && has_flow
    }
}

/// Summary of one capture.
#[derive(Debug, Serialize)]
pub struct CaptureSummary {
    /// Segment.
    pub segment: Segment,
    /// Frames in it.
    pub frames: u64,
    /// RoCEv2 packets among them.
    pub roce: u64,
    /// Time of its last frame, in nanoseconds since 1970.
    pub until_ns: u64,
}

/// Direction of a flow's requests.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Direction {
    /// From the near host.
    #[default]
    NearToFar,
    /// From the far host.
    FarToNear,
}

/// State of a flow at the end of the captures.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum End {
    /// The responder received everything.
    #[default]
    Delivered,
    /// The captures end before everything arrived.
    UnderWay {
        /// Packets sent that have not arrived.
        packets: u64,
    },
    /// The responder or a box gave up before everything arrived, or the responder closed the
    /// connection, as a program does that learns of the end through another channel.
    Failed {
        /// The message that reported it, and its position.
        reason: String,
        /// Packets acknowledged to the requester and never by the responder.
        acknowledged_but_missing: u64,
    },
    /// Acknowledged packets are missing without a report: a violation.
    Missing {
        /// Number of packets.
        packets: u64,
    },
}

/// Checks and counts of one flow.
#[derive(Clone, Debug, Default, Serialize)]
pub struct FlowProof {
    /// IP address of the requester.
    pub requester: String,
    /// IP address of the responder.
    pub responder: String,
    /// VLAN, 0 without one.
    pub vlan: u16,
    /// Destination QP of requests.
    pub responder_qpn: u32,
    /// Destination QP of answers, once known.
    pub requester_qpn: Option<u32>,
    /// Direction of the requests.
    pub direction: Direction,
    /// Whether PSN and MSN are known from the connection manager; otherwise they count from the
    /// first ones seen.
    pub by_connection_manager: bool,
    /// PSN of the first request.
    pub first_psn: u32,
    /// Request packets that the requester sent in order, each counted once.
    pub sent: u64,
    /// READ and atomic requests among them.
    pub reads_and_atomics: u64,
    /// Packets that the requester retransmitted.
    pub sent_again: u64,
    /// Packets behind a gap on the requester's segment.
    pub out_of_order_sent: u64,
    /// Packets that arrived at the responder in order and unchanged, each counted once.
    pub arrived: u64,
    /// Their payload, in bytes.
    pub arrived_bytes: u64,
    /// Messages completed by them.
    pub arrived_messages: u64,
    /// Copies that arrived later and were identical.
    pub arrived_again: u64,
    /// Copies that arrived too late to be compared: the responder had acknowledged them long
    /// before.
    pub arrived_again_unchecked: u64,
    /// Packets that arrived behind a gap, so that the responder dropped them.
    pub arrived_behind_a_gap: u64,
    /// Packets acknowledged to the requester.
    pub acknowledged: u64,
    /// Packets acknowledged by the responder itself.
    pub confirmed: u64,
    /// ACKs and NAKs to the requester that its box generated.
    pub pseudo_acks: u64,
    /// ACKs and NAKs to the requester that its box forwarded.
    pub acks_passed: u64,
    /// ACKs from the responder that were reordered on the path.
    pub acks_reordered: u64,
    /// Whether MigReq of the first pseudo-ACKs differed from the responder's. That is no violation,
    /// because the box could not have known it.
    pub migreq_guessed_wrong: bool,
    /// MSNs compared with the count of messages.
    pub msns_checked: u64,
    /// RNR NAKs of the responder.
    pub rnr_naks: u64,
    /// Sequence NAKs of the responder.
    pub sequence_naks: u64,
    /// State at the end.
    pub end: End,
}

/// Frames other than RoCEv2 that passed a box.
#[derive(Debug, Serialize)]
pub struct Passage {
    /// Segments on its two sides.
    pub between: [Segment; 2],
    /// Frames that left, unchanged except for congestion marks, by the side of their entry.
    pub carried: [u64; 2],
    /// Frames that entered in the last second of the captures and have not left.
    pub under_way: u64,
}

/// The rules.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Rule {
    /// An ACK covers a packet not yet seen on its sender's segment, or a gap.
    AckedUnseen,
    /// A packet was acknowledged and never reached the responder.
    AckedNeverArrived,
    /// A pseudo-ACK covers a READ or atomic without its responses.
    AckPassesRead,
    /// An ACK covers less than an earlier one.
    AckWentBack,
    /// A box sent a READ response or atomic ACK that it had not received.
    ResponseMadeUp,
    /// The requester never sent the responder's next packet.
    NeverSent,
    /// Payload, BTH, RETH or immediate data differ from those sent.
    ContentChanged,
    /// Addresses, ports or other headers differ from those sent.
    HeadersChanged,
    /// A retransmission differs from the original.
    RetransmissionDiffers,
    /// The responder acknowledges a packet not seen on its segment.
    ResponderAhead,
    /// The MSN differs from the number of messages completed at the PSN.
    MsnWrong,
    /// A syndrome that is reserved, or does not exist in RC.
    SyndromeIllegal,
    /// Credits beyond those of the responder.
    CreditsInvented,
    /// MigReq of a pseudo-ACK differs from the responder's, which the box had seen.
    MigReqDiffers,
    /// Addresses, ports or other headers of a pseudo-ACK differ from the responder's.
    AnswerHeadersDiffer,
    /// The ICRC is wrong.
    IcrcWrong,
    /// A wrong UDP checksum: hosts drop the packet.
    UdpChecksumWrong,
    /// A frame other than RoCEv2 was lost, changed or made up. A congestion mark is no change.
    OtherLost,
    /// A frame other than RoCEv2 was overtaken by a later one of its flow: of the same hosts and,
    /// if both are TCP or UDP, the same ports.
    OtherReordered,
}

/// A frame that violates a rule.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Violation {
    /// Segment of the capture.
    pub segment: Segment,
    /// Number of the frame in that capture, from 1.
    pub frame: u64,
    /// Violated rule.
    pub rule: Rule,
    /// Details.
    pub detail: String,
}

/// A frame of a capture.
#[derive(Clone, Copy, Debug)]
struct FramePosition {
    segment: Segment,
    frame: u64,
    time_ns: u64,
}

#[derive(Default)]
struct Findings {
    kept: Vec<Violation>,
    total: u64,
}

impl Findings {
    fn add(&mut self, place: FramePosition, rule: Rule, detail: impl FnOnce() -> String) {
        self.total += 1;
        if self.kept.len() < VIOLATIONS_KEPT {
            let FramePosition { segment, frame, .. } = place;
            self.kept.push(Violation { segment, frame, rule, detail: detail() });
        }
    }
}

/// Reads the captures and checks them.
///
/// # Errors
/// If a capture cannot be read completely, contains truncated frames, or there are fewer than two.
pub fn prove(segments: Segments<'_>) -> Result<Proof, ProofError> {
    let Segments { near_lan, near_wan, far_wan, far_lan } = segments;
    let given = [
        (Segment::NearLan, near_lan),
        (Segment::NearWan, near_wan),
        (Segment::FarWan, far_wan),
        (Segment::FarLan, far_lan),
    ];
    let given = given.into_iter().filter_map(|(segment, source)| Some((segment, source?)));
    let mut captures = given
        .map(|(segment, source)| Capture::new(segment, source))
        .collect::<Result<Vec<_>, _>>()?;
    let (Some(first), Some(last)) = (captures.first(), captures.last()) else {
        return Err(ProofError::TooFew);
    };
    if first.segment == last.segment {
        return Err(ProofError::TooFew);
    }
    let mut checker = Checker::new(captures.iter().map(|capture| capture.segment).collect());
    loop {
        let waiting = captures.iter().enumerate();
        let times = waiting.filter_map(|(at, capture)| Some((capture.next.as_ref()?.time_ns, at)));
        let Some((_, at)) = times.min() else { break };
        if let Some(recorded) = &captures[at].next {
            checker.see(at, recorded);
        }
        captures[at].advance()?;
    }
    Ok(checker.finish(&captures))
}

struct Checker {
    /// Segments with captures, from the near host to the far one.
    present: Vec<Segment>,
    roce: Vec<u64>,
    flows: HashMap<Way, usize>,
    /// All flows in the order of their beginnings; `None` once finished.
    all: Vec<Option<Flow>>,
    finished: Vec<(usize, FlowProof)>,
    /// Flows by the destination of their responses.
    requesters: HashMap<Way, usize>,
    connections: Connections,
    boxes: Vec<passage::Box>,
    unpaired: u64,
    unplaced: u64,
    findings: Findings,
}

impl Checker {
    fn new(present: Vec<Segment>) -> Self {
        let pairs = [[Segment::NearLan, Segment::NearWan], [Segment::FarWan, Segment::FarLan]];
        let boxes = pairs.into_iter().filter(|ends| ends.iter().all(|end| present.contains(end)));
        Checker {
            roce: vec![0; present.len()],
            boxes: boxes.map(passage::Box::new).collect(),
            present,
            flows: HashMap::new(),
            all: Vec::new(),
            finished: Vec::new(),
            requesters: HashMap::new(),
            connections: Connections::default(),
            unpaired: 0,
            unplaced: 0,
            findings: Findings::default(),
        }
    }

    fn see(&mut self, at: usize, recorded: &Recorded) {
        let place = FramePosition {
            segment: self.present[at],
            frame: recorded.number,
            time_ns: recorded.time_ns,
        };
        let seen = match FrameKind::of(&recorded.bytes) {
            FrameKind::Roce(seen) => seen,
            FrameKind::Other(frame) => {
                for one in &mut self.boxes {
                    one.see(place, frame, &mut self.findings);
                }
                return;
            }
        };
        self.roce[at] += 1;
        if !seen.icrc_is_right {
            // No host accepts it.
            return self.findings.add(place, Rule::IcrcWrong, || format!("{:?}", seen.opcode));
        }
        if !seen.udp_checksum_is_right {
            return self.findings.add(place, Rule::UdpChecksumWrong, || {
                format!("{:?}, PSN {}", seen.opcode, seen.psn)
            });
        }
        if let Some(mad) = seen.mad() {
            self.see_end_of_connection(place, seen.way, mad);
            for begun in self.connections.see(seen.way, mad).into_iter().flatten() {
                self.begin_connection(place, begun);
            }
        } else if seen.opcode.transport() == Transport::Rc && seen.opcode.is_request() {
            self.see_request(at, place, &seen);
        } else if seen.opcode.transport() == Transport::Rc && seen.opcode.is_response() {
            self.see_response(place, &seen);
        }
    }

    fn see_end_of_connection(
        &mut self,
        place: FramePosition,
        way: Way,
        mad: &longhaul_wire::mad::Mad,
    ) {
        let Some(ids) = Connections::ended(mad) else { return };
        for slot in self.flows.values() {
            let Some(flow) = self.all[*slot].as_ref() else { continue };
            let (_, responder) = self.ends(flow.direction);
            if place.segment == responder
                && let Some(flow) = self.all[*slot].as_mut()
            {
                flow.be_closed(place, way.source, ids);
            }
        }
    }

    fn direction_from(&self, at: usize) -> Option<Direction> {
        match at {
            0 => Some(Direction::NearToFar),
            at if at + 1 == self.present.len() => Some(Direction::FarToNear),
            _ => None,
        }
    }

    /// Segments of requester and responder.
    fn ends(&self, direction: Direction) -> (Segment, Segment) {
        let (near, far) = (self.present[0], self.present[self.present.len() - 1]);
        match direction {
            Direction::NearToFar => (near, far),
            Direction::FarToNear => (far, near),
        }
    }

    fn begin_connection(&mut self, place: FramePosition, begun: connections::Begun) {
        let known = self.flows.get(&begun.requests).and_then(|&slot| self.all[slot].as_ref());
        if known.is_some_and(|flow| flow.connection == Some(begun.ids)) {
            return;
        }
        // The first request determines the direction.
        let slot = self.begin(place, begun.requests, Direction::NearToFar, begun.first_psn);
        if let Some(flow) = &mut self.all[slot] {
            flow.begin_connection(begun.ids, begun.requester, begun.mtu);
        }
        self.requesters.insert(begun.responses(), slot);
    }

    fn begin(
        &mut self,
        place: FramePosition,
        way: Way,
        direction: Direction,
        first: longhaul_units::Psn,
    ) -> usize {
        let slot = self.all.len();
        self.all.push(Some(Flow::new(way, direction, first)));
        if let Some(old) = self.flows.insert(way, slot) {
            self.end(old, place.time_ns);
        }
        slot
    }

    fn end(&mut self, slot: usize, until_ns: u64) {
        if let Some(flow) = self.all[slot].take() {
            self.requesters.retain(|_, of| *of != slot);
            self.finished.push((slot, flow.finish(until_ns, &mut self.findings)));
        }
    }

    fn see_request(&mut self, at: usize, place: FramePosition, seen: &Seen<'_>) {
        let from = self.direction_from(at);
        let known = self.flows.get(&seen.way).copied();
        let unused =
            known.and_then(|slot| self.all[slot].as_mut()).filter(|flow| !flow.has_begun());
        match (from, known, unused) {
            (Some(from), Some(_), Some(flow)) => flow.direction = from,
            (Some(from), None, _) => {
                self.begin(place, seen.way, from, seen.psn);
            }
            (Some(_), Some(_), None) => {}
            (None, Some(_), None) => return,
            (None, ..) => {
                self.unplaced += 1;
                return;
            }
        }
        let Some(&slot) = self.flows.get(&seen.way) else { return };
        let Some(flow) = &mut self.all[slot] else { return };
        let direction = flow.direction;
        let (requester, responder) = self.ends(direction);
        let Some(flow) = &mut self.all[slot] else { return };
        if place.segment == responder {
            flow.arrive(place, seen, &mut self.findings);
        } else if place.segment == requester
            && flow.send(place, seen, &mut self.findings) == Fits::No
        {
            let slot = self.begin(place, seen.way, direction, seen.psn);
            if let Some(flow) = &mut self.all[slot] {
                flow.send(place, seen, &mut self.findings);
            }
        }
    }

    fn see_response(&mut self, place: FramePosition, seen: &Seen<'_>) {
        let paired = self.requesters.get(&seen.way).copied().or_else(|| self.pair(seen));
        let Some(flow) = paired.and_then(|slot| self.all[slot].as_mut()) else {
            self.unpaired += 1;
            return;
        };
        let direction = flow.direction;
        let (requester, responder) = self.ends(direction);
        let across = requester.across();
        let has_box = self.present.contains(&across);
        let Some(flow) = paired.and_then(|slot| self.all[slot].as_mut()) else { return };
        if place.segment == responder {
            flow.answer(place, seen, &mut self.findings);
        }
        if place.segment == across {
            flow.note_real(seen);
        }
        if place.segment == requester {
            flow.be_answered(place, seen, has_box, &mut self.findings);
        }
    }

    /// The only flow without a known requester QP that the response fits.
    fn pair(&mut self, seen: &Seen<'_>) -> Option<usize> {
        let between = |way: &Way| {
            (way.source, way.destination, way.vlan)
                == (seen.way.destination, seen.way.source, seen.way.vlan)
        };
        let fits = |slot: usize| {
            let flow = self.all[slot].as_ref();
            flow.is_some_and(|flow| {
                flow.requester_qpn.is_none() && flow.could_be_acknowledged(seen.psn)
            })
        };
        let mut fitting = self.flows.iter().filter(|(way, slot)| between(way) && fits(**slot));
        let (slot, another) = (*fitting.next()?.1, fitting.next());
        if another.is_some() {
            return None;
        }
        if let Some(flow) = &mut self.all[slot] {
            flow.requester_qpn = Some(seen.way.qpn);
        }
        self.requesters.insert(seen.way, slot);
        Some(slot)
    }

    fn finish(mut self, captures: &[Capture<'_>]) -> Proof {
        let until = |segment: Segment| {
            captures.iter().find(|capture| capture.segment == segment).map_or(0, Capture::time_ns)
        };
        for slot in 0..self.all.len() {
            if let Some(flow) = self.all[slot].as_ref().filter(|flow| flow.has_begun()) {
                let (_, responder) = self.ends(flow.direction);
                self.end(slot, until(responder));
            }
        }
        let mut boxes = Vec::new();
        for one in self.boxes {
            let until = until(one.ends[0]).max(until(one.ends[1]));
            boxes.push(one.finish(until, &mut self.findings));
        }
        self.finished.sort_by_key(|(slot, _)| *slot);
        let flows = self.finished.into_iter().map(|(_, flow)| flow);
        let summary = |(capture, roce): (&Capture<'_>, u64)| CaptureSummary {
            segment: capture.segment,
            frames: capture.frames(),
            roce,
            until_ns: capture.time_ns(),
        };
        Proof {
            captures: captures.iter().zip(self.roce).map(summary).collect(),
            flows: flows.filter(|flow| flow.sent > 0 || flow.arrived > 0).collect(),
            boxes,
            responses_unpaired: self.unpaired,
            requests_unplaced: self.unplaced,
            violations: self.findings.kept,
            violations_total: self.findings.total,
        }
    }
}
