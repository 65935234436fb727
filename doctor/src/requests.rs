//! One direction of requests: a requester's packets, their responses, and the path's properties
//! derived from both.

use crate::histogram::Histogram;
use crate::messages::{Messages, Operation};
use crate::recovery::{Demand, Episode, Recovery};
use crate::stalls::{Cause, Level, Silence, Stalls, threshold_ns};
use crate::trace::{Mark, Trace};
use crate::window::{Budget, Hole, Sent, Window};
use longhaul_units::Psn;
use longhaul_wire::{
    Aeth, NakCode, Opcode, Position, Syndrome, Transport, Verb, credits, rnr_timer,
};

/// A jump of more PSNs than this is a reset of the queue pair.
const JUMP_MAX: u64 = 1 << 17;
/// A duplicate within this time was captured twice, not retransmitted.
const CAPTURED_TWICE_NS: u64 = 20_000;
/// Length of the intervals over which the peak rate is measured.
pub(crate) const PEAK_INTERVAL_NS: u64 = 100_000;
/// Bytes around each frame on Ethernet: FCS, preamble and gap.
const AROUND_FRAME: u64 = 24;

/// A packet of the requester.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Request {
    pub now_ns: u64,
    pub frame: u64,
    pub opcode: Opcode,
    pub psn: Psn,
    pub payload_len: u32,
    pub frame_len: u32,
    /// From the RETH, if present and captured.
    pub dma_len: Option<u32>,
}

/// A packet of the responder.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Response {
    pub now_ns: u64,
    pub frame: u64,
    pub opcode: Opcode,
    pub psn: Psn,
    pub payload_len: u32,
    pub frame_len: u32,
    pub aeth: Option<Aeth>,
}

/// A NAK that ends the connection.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FatalNak {
    pub code: NakCode,
    pub psn: Psn,
    pub at_ns: u64,
    pub frame: u64,
    pub operation: Option<Operation>,
}

/// Plain counts of one direction of requests.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Counts {
    pub requests: u64,
    pub responses: u64,
    /// Payload bytes of requests and READ responses, without retransmissions.
    pub payload_bytes: u64,
    /// Payload bytes in the direction of the requests, without retransmissions.
    pub request_bytes: u64,
    /// Bytes on the wire of the requester's and of the responder's frames.
    pub wire_bytes: (u64, u64),
    pub acks: u64,
    pub sequence_naks: u64,
    pub rnr_naks: u64,
    pub finite_credits: u64,
    /// Retransmissions that this point had seen before.
    pub resent_packets: u64,
    pub resent_bytes: u64,
    /// Retransmitted READ responses.
    pub replayed_responses: u64,
    pub replayed_bytes: u64,
    /// READ responses that were skipped.
    pub missing_responses: u64,
    /// First seen as retransmissions: lost before the capture point.
    pub lost_before: u64,
    /// NAKed although this point had seen them: lost behind the capture point.
    pub lost_behind: u64,
    pub reordered: u64,
    /// Acknowledged but not seen.
    pub missed_by_capture: u64,
    pub captured_twice: u64,
    pub wraps: u64,
    pub restarts: u64,
    /// NAKs of packets acknowledged longer ago than any reordering lasts.
    pub naks_below_ack: u64,
    /// Acknowledge packets with a reserved syndrome, and the first of these.
    pub reserved_syndromes: u64,
    pub reserved_syndrome: u8,
    /// ACKs that complete messages, and these messages.
    pub completing_acks: u64,
    pub completed_messages: u64,
    /// Packets behind a NAKed one that were acknowledged without having been sent again.
    pub kept_packets: u64,
    pub rnr_timer_max_ns: u64,
    /// PSNs skipped by an unreliable requester.
    pub unreliable_gaps: u64,
}

/// Events since the last request packet.
#[derive(Clone, Copy, Debug, Default)]
struct Quiet {
    since_ns: Option<u64>,
    level: Level,
    progress_ns: Option<(u64, u64)>,
    drained_at_ns: Option<u64>,
}

/// One direction of requests.
#[derive(Clone, Debug, Default)]
pub(crate) struct Requests {
    pub counts: Counts,
    pub messages: Messages,
    pub stalls: Stalls,
    pub recovery: Recovery,
    pub window: Window,
    pub rtt_ack: Histogram,
    pub rtt_answer: Histogram,
    /// Upper bounds from retransmitted packets.
    pub rtt_at_most: Histogram,
    pub level_messages: Histogram,
    pub level_packets: Histogram,
    pub level_reads: Histogram,
    pub bytes_outstanding_max: u64,
    pub rnr_waits: Histogram,
    pub fatal: Option<FatalNak>,
    pub first_ns: Option<u64>,
    pub last_ns: u64,
    pub first_frame: u64,
    /// Maximum PSNs between the oldest and the newest packet while only READs were outstanding.
    pub read_psn_delta_max: Option<u64>,
    pub peak_bytes: u64,
    pub trace: Option<Box<Trace>>,
    interval: (u64, u64),
    /// The next sequence number; sequence numbers start at 2^24, so that none is below zero.
    next: u64,
    first: u64,
    acknowledged: (u64, u64),
    last_request: (u64, u64),
    quiet: Quiet,
    burst: u64,
    credit_limit: Option<u32>,
    /// The first PSN that the responder lacks, according to holes and NAKs: it discards later
    /// packets.
    gap: Option<u64>,
    /// PSNs behind the last NAKed one that were under way: go-back-N sends them again.
    behind_nak: (u64, u64),
    /// A READ or atomic that a later response has passed, and the time.
    passed: Option<(u64, u64)>,
}

impl Requests {
    /// Returns whether `psn` is outstanding.
    pub fn has_outstanding(&self, psn: Psn) -> bool {
        let Some(front) = self.window.front() else { return false };
        let sequence = psn.unwrap_near(self.next).unwrap_or(0);
        (front.sequence..self.next).contains(&sequence)
    }

    /// Returns whether `psn` is far from all of the requester's PSNs.
    pub fn is_stranger(&self, psn: Psn) -> bool {
        psn.unwrap_near(self.next).is_none_or(|s| s.abs_diff(self.next) > JUMP_MAX)
    }

    pub fn rtt_min_ns(&self) -> Option<u64> {
        match (self.rtt_ack.min(), self.rtt_answer.min()) {
            (Some(a), Some(b)) => Some(a.min(b)),
            (one, other) => one.or(other),
        }
    }

    /// Duration of the flow; at least 1 ns.
    pub fn duration_ns(&self) -> u64 {
        self.last_ns.saturating_sub(self.first_ns.unwrap_or(self.last_ns)).max(1)
    }

    pub fn request(&mut self, packet: &Request, is_paired: bool, budget: &mut Budget) {
        self.counts.wire_bytes.0 += self.seen(packet.now_ns, packet.frame, packet.frame_len);
        self.counts.requests += 1;
        let Some(operation) = Operation::of(packet.opcode) else { return };
        if packet.opcode.transport() == Transport::Ud {
            return self.datagram(packet, operation);
        }
        if self.next == 0 {
            self.next = (1 << 24) + u64::from(packet.psn.get());
            self.first = self.next;
        }
        let sequence = packet.psn.unwrap_near(self.next).unwrap_or(self.next);
        if sequence.abs_diff(self.next) > JUMP_MAX {
            self.restart(packet, budget);
            return self.new_request(packet, operation, self.next, is_paired, budget);
        }
        if sequence >= self.next {
            self.new_request(packet, operation, sequence, is_paired, budget);
        } else if packet.opcode.transport() == Transport::Rc {
            self.again(packet, operation, sequence);
        } else {
            self.counts.reordered += 1;
        }
    }

    /// Handles a datagram, whose PSN is meaningless, because many queue pairs may send to one.
    fn datagram(&mut self, packet: &Request, operation: Operation) {
        self.messages.packet(operation, packet.opcode.position(), packet.payload_len, None);
        self.counts.payload_bytes += u64::from(packet.payload_len);
        self.counts.request_bytes += u64::from(packet.payload_len);
    }

    fn restart(&mut self, packet: &Request, budget: &mut Budget) {
        self.counts.restarts += 1;
        self.window.clear(budget);
        self.recovery.restart();
        self.messages.interrupted();
        (self.quiet, self.gap, self.passed) = (Quiet::default(), None, None);
        self.behind_nak = (0, 0);
        self.next = (1 << 24) + u64::from(packet.psn.get());
        self.first = self.next;
        self.acknowledged = (0, 0);
    }

    fn new_request(
        &mut self,
        packet: &Request,
        operation: Operation,
        sequence: u64,
        is_paired: bool,
        budget: &mut Budget,
    ) {
        self.close_open_read(sequence);
        if sequence > self.next {
            self.messages.interrupted();
            self.window.skipped(Hole { from: self.next, to: sequence, at_ns: packet.now_ns });
            if packet.opcode.transport() != Transport::Rc {
                self.counts.unreliable_gaps += sequence - self.next;
            }
        }
        if packet.opcode.transport() == Transport::Rc {
            self.silence_ends(packet.now_ns, packet.frame, None, true);
        }
        self.recovery.end();
        let position = packet.opcode.position();
        self.messages.packet(operation, position, packet.payload_len, packet.dma_len);
        self.burst += u64::from(packet.opcode.ends_message());
        self.counts.payload_bytes += u64::from(packet.payload_len);
        self.counts.request_bytes += u64::from(packet.payload_len);
        let awaits_answer = operation.is_answered_one_by_one();
        let span = match operation {
            Operation::Read => packet.dma_len.and_then(|len| self.messages.read_span(len)),
            _ => Some(1),
        };
        let before = self.next;
        self.next = sequence + u64::from(span.unwrap_or(1));
        if self.counts.requests > 1 {
            self.counts.wraps += ((self.next - 1) >> 24) - ((before - 1) >> 24);
        }
        if packet.opcode.transport() == Transport::Rc {
            let sent = Sent {
                sequence,
                span: span.unwrap_or(1),
                span_is_open: span.is_none(),
                payload_len: packet.payload_len,
                dma_len: packet.dma_len,
                first_ns: packet.now_ns,
                last_ns: packet.now_ns,
                was_resent: false,
                is_discarded: self.gap.is_some() || sequence > before,
                ends_message: packet.opcode.ends_message(),
                awaits_answer,
                answered: 0,
            };
            self.window.push(sent, is_paired, budget);
            self.measure_level();
        }
        self.active(packet.now_ns, sequence);
        if sequence > before && self.gap.is_none() {
            self.gap = Some(before);
        }
        let mark = if operation == Operation::Read { Mark::ReadRequest } else { Mark::Request };
        self.mark(packet.now_ns, sequence, mark);
    }

    fn measure_level(&mut self) {
        let level = self.window.level();
        self.level_messages.add(u64::from(level.messages));
        self.level_packets.add(u64::from(level.packets));
        self.bytes_outstanding_max = self.bytes_outstanding_max.max(self.window.bytes);
        if level.reads > 0 {
            self.level_reads.add(u64::from(level.reads));
            if level.reads == level.messages {
                self.read_psn_delta_max = self.read_psn_delta_max.max(self.window.psn_delta());
            }
        }
    }

    /// Sets the unknown span of a READ to all PSNs up to the next request.
    fn close_open_read(&mut self, next: u64) {
        let Some(read) = self.window.back_mut().filter(|s| s.span_is_open) else { return };
        read.span_is_open = false;
        let span = u32::try_from(next - read.sequence).unwrap_or(u32::MAX);
        if read.dma_len.is_none_or(|len| self.messages.read_took(len, span)) {
            read.span = span;
            self.next = next;
        }
    }

    /// Handles a packet with an earlier sequence number.
    fn again(&mut self, packet: &Request, operation: Operation, sequence: u64) {
        let now = packet.now_ns;
        if (sequence, true)
            == (self.last_request.0, now.saturating_sub(self.last_request.1) < CAPTURED_TWICE_NS)
        {
            self.counts.captured_twice += 1;
            return;
        }
        let hole = self.window.fill(sequence);
        let rtt_min = self.rtt_min_ns();
        if let Some(hole) = hole {
            self.counts.payload_bytes += u64::from(packet.payload_len);
            self.counts.request_bytes += u64::from(packet.payload_len);
            let soon = now.saturating_sub(hole.at_ns) < rtt_min.unwrap_or(CAPTURED_TWICE_NS) / 2;
            if soon && !self.recovery.has_demand() && !self.recovery.is_recovering() {
                self.counts.reordered += 1;
                self.gap = self.gap.filter(|&gap| gap != sequence);
                return self.mark(now, sequence, Mark::Request);
            }
            self.counts.lost_before += 1;
            if packet.opcode.ends_message() {
                self.messages.unsized_messages += 1;
            }
        } else {
            self.counts.resent_packets += 1;
            self.counts.resent_bytes += u64::from(packet.payload_len);
        }
        let progress = self.quiet.progress_ns.map_or(0, |(_, last)| last);
        let waited = now.saturating_sub(self.quiet.since_ns.unwrap_or(now).max(progress));
        let cause = self.recovery.cause_of(sequence, waited, rtt_min);
        self.silence_ends(now, packet.frame, Some(cause.unwrap_or(Cause::Unprompted)), true);
        if let Some(cause) = cause {
            let episode = Episode {
                cause,
                at_ns: now,
                frame: packet.frame,
                waited_ns: waited,
                from: packet.psn,
                packets: 0,
                bytes: 0,
                was_acknowledged: sequence < self.acknowledged.0,
            };
            self.recovery.begin(episode, sequence);
        }
        let bytes = u64::from(packet.payload_len);
        self.recovery.resent(sequence, hole.is_none().then_some(bytes));
        if self.gap == Some(sequence) {
            self.gap = None;
        }
        let is_discarded = self.gap.is_some();
        if let Some(sent) = self.window.find(sequence) {
            (sent.was_resent, sent.last_ns, sent.is_discarded) = (true, now, is_discarded);
            self.passed = self.passed.filter(|&(passed, _)| passed != sent.sequence);
            if operation == Operation::Read {
                sent.answered = sent.answered.min((sequence - sent.sequence) as u32);
            }
        }
        self.active(now, sequence);
        self.mark(now, sequence, Mark::Again);
    }

    pub fn response(&mut self, packet: &Response, budget: &mut Budget) {
        self.counts.wire_bytes.1 += self.seen(packet.now_ns, packet.frame, packet.frame_len);
        self.counts.responses += 1;
        if self.next == 0 {
            return;
        }
        let Some(sequence) = packet.psn.unwrap_near(self.next) else { return };
        if sequence.abs_diff(self.next) > JUMP_MAX {
            return;
        }
        if let Some(aeth) = packet.aeth
            && let Syndrome::Ack { credit_code } = aeth.syndrome
        {
            self.credit_limit = credits(credit_code);
            self.counts.finite_credits += u64::from(self.credit_limit.is_some());
        }
        match packet.opcode.verb() {
            Some(Verb::ReadResponse) => self.read_response(packet, sequence, budget),
            Some(Verb::AtomicAcknowledge) => {
                self.mark(packet.now_ns, sequence, Mark::Ack);
                self.sample(sequence, packet.now_ns, true);
                self.window.answered(sequence);
                self.acknowledge(sequence + 1, packet.now_ns, budget);
            }
            _ => self.acknowledgement(packet, sequence, budget),
        }
    }

    fn acknowledgement(&mut self, packet: &Response, sequence: u64, budget: &mut Budget) {
        let now = packet.now_ns;
        let Some(aeth) = packet.aeth else {
            // The AETH is truncated: most likely an acknowledgement.
            return self.acknowledge(sequence + 1, now, budget);
        };
        match aeth.syndrome {
            Syndrome::Ack { .. } => {
                self.counts.acks += 1;
                self.mark(now, sequence, Mark::Ack);
                self.sample(sequence, now, false);
                let before = self.window.level().messages;
                self.acknowledge(sequence + 1, now, budget);
                let completed = before.saturating_sub(self.window.level().messages);
                self.counts.completing_acks += u64::from(completed > 0);
                self.counts.completed_messages += u64::from(completed);
                if sequence + 1 > self.acknowledged.0 {
                    self.acknowledged = (sequence + 1, now);
                }
            }
            Syndrome::RnrNak { timer_code } => {
                self.counts.rnr_naks += 1;
                self.mark(now, sequence, Mark::Nak);
                self.acknowledge(sequence, now, budget);
                let timer_ns = rnr_timer(timer_code).as_ns();
                self.counts.rnr_timer_max_ns = self.counts.rnr_timer_max_ns.max(timer_ns);
                self.recovery.demanded(Demand { cause: Cause::RnrNak, sequence, at_ns: now });
            }
            Syndrome::Nak(NakCode::PsnSequence) => {
                self.counts.sequence_naks += 1;
                self.mark(now, sequence, Mark::Nak);
                let (acknowledged, at) = self.acknowledged;
                if sequence < acknowledged
                    && now.saturating_sub(at) > self.rtt_min_ns().unwrap_or(0)
                {
                    self.counts.naks_below_ack += 1;
                }
                self.acknowledge(sequence, now, budget);
                self.counts.lost_behind +=
                    u64::from(self.window.find(sequence).is_some_and(|s| !s.is_discarded));
                self.gap = Some(sequence);
                self.behind_nak = (sequence + 1, self.next);
                self.recovery.demanded(Demand { cause: Cause::SequenceNak, sequence, at_ns: now });
            }
            Syndrome::Nak(code) => {
                self.mark(now, sequence, Mark::Nak);
                let operation = self.window.find(sequence).map(|s| s.awaits_answer);
                let operation = operation.and_then(|is_read| is_read.then_some(Operation::Read));
                let fatal =
                    FatalNak { code, psn: packet.psn, at_ns: now, frame: packet.frame, operation };
                self.fatal.get_or_insert(fatal);
                self.acknowledge(sequence, now, budget);
            }
            Syndrome::Reserved(byte) => {
                if self.counts.reserved_syndromes == 0 {
                    self.counts.reserved_syndrome = byte;
                }
                self.counts.reserved_syndromes += 1;
            }
        }
    }

    fn read_response(&mut self, packet: &Response, sequence: u64, budget: &mut Budget) {
        let position = packet.opcode.position();
        if matches!(position, Position::First | Position::Middle) {
            self.messages.full_packet(packet.payload_len);
        }
        let (now, bytes) = (packet.now_ns, u64::from(packet.payload_len));
        let mtu = self.messages.mtu;
        let next = &mut self.next;
        if let Some(read) =
            self.window.back_mut().filter(|r| r.span_is_open && r.sequence <= sequence)
        {
            let so_far = (sequence - read.sequence) as u32 + 1;
            let ends = matches!(position, Position::Last | Position::Only);
            let whole = mtu.zip(read.dma_len).map(|(mtu, len)| len.div_ceil(mtu)).filter(|_| !ends);
            read.span = whole.unwrap_or(so_far).max(so_far).max(read.span);
            read.span_is_open = whole.is_none() && !ends;
            *next = (*next).max(read.end());
        }
        self.silence_ends(now, packet.frame, None, false);
        self.mark(now, sequence, Mark::ReadResponse);
        let Some(read) = self.window.find(sequence).filter(|s| s.awaits_answer) else {
            self.counts.replayed_responses += 1;
            self.counts.replayed_bytes += bytes;
            return;
        };
        let (start, end) = (read.sequence, read.end());
        let offset = (sequence - start) as u32;
        if offset < read.answered {
            self.counts.replayed_responses += 1;
            self.counts.replayed_bytes += bytes;
        } else {
            self.counts.missing_responses += u64::from(offset - read.answered);
            self.counts.payload_bytes += bytes;
            read.answered = offset + 1;
        }
        if offset == 0 {
            self.sample(start, now, true);
        }
        self.acknowledge(start, now, budget);
        if sequence + 1 >= end || matches!(position, Position::Last | Position::Only) {
            self.window.answered(start);
            self.acknowledge(end, now, budget);
        }
        let drained_at_ns = self.window.is_empty().then_some(now);
        self.quiet = Quiet {
            since_ns: Some(now),
            level: self.window.level(),
            progress_ns: None,
            drained_at_ns,
        };
    }

    /// Samples the round trip if `sequence` was sent once.
    fn sample(&mut self, sequence: u64, now: u64, is_answer: bool) {
        let rtt_min = self.rtt_min_ns();
        let Some(sent) = self.window.find(sequence) else { return };
        if !is_answer && sent.awaits_answer {
            return;
        }
        if sent.was_resent {
            let (first, last) =
                (now.saturating_sub(sent.first_ns), now.saturating_sub(sent.last_ns));
            self.rtt_at_most.add(first);
            self.recovery.premature += u64::from(rtt_min.is_some_and(|rtt| last < rtt / 2));
        } else {
            let rtt = now.saturating_sub(sent.first_ns);
            if is_answer { self.rtt_answer.add(rtt) } else { self.rtt_ack.add(rtt) }
        }
    }

    /// Acknowledges everything below `to`, except READs and atomics with incomplete responses.
    fn acknowledge(&mut self, to: u64, now: u64, budget: &mut Budget) {
        if to > self.next {
            self.counts.missed_by_capture += to - self.next;
            self.messages.interrupted();
            self.next = to;
        }
        let mut popped = false;
        while let Some(front) = self.window.front().copied() {
            if front.end() > to {
                break;
            }
            if front.awaits_answer {
                if !self.was_passed_over(&front, to) {
                    self.pass(&front, now);
                    break;
                }
                self.counts.missing_responses += 1;
            }
            let is_behind_nak = (self.behind_nak.0..self.behind_nak.1).contains(&front.sequence);
            self.counts.kept_packets += u64::from(is_behind_nak && !front.was_resent);
            self.window.pop(budget);
            popped = true;
        }
        self.counts.missed_by_capture +=
            self.window.take_holes_below(self.window.front().map_or(to, |f| f.sequence.min(to)));
        self.gap = self.gap.filter(|&gap| gap >= to);
        if popped {
            let done = self.window.front().map_or(to, |f| f.sequence);
            self.recovery.progressed(done);
            self.progress(now);
        }
    }

    /// Handles an implied NAK: a response passes an outstanding READ or atomic.
    fn pass(&mut self, read: &Sent, now: u64) {
        if self.passed.is_some_and(|(sequence, _)| sequence == read.sequence)
            || self.recovery.has_demand()
        {
            return;
        }
        self.passed = Some((read.sequence, now));
        let sequence = read.sequence + u64::from(read.answered);
        self.recovery.demanded(Demand { cause: Cause::ImpliedNak, sequence, at_ns: now });
    }

    /// The response is missing in the capture, but the requester has it: its later packets are
    /// acknowledged.
    fn was_passed_over(&mut self, read: &Sent, to: u64) -> bool {
        let Some((_, at)) = self.passed.filter(|&(sequence, _)| sequence == read.sequence) else {
            return false;
        };
        self.window.find(to - 1).is_some_and(|s| s.first_ns > at && !s.was_resent)
    }

    fn progress(&mut self, now: u64) {
        self.quiet.progress_ns =
            Some((self.quiet.progress_ns.map_or(now, |(first, _)| first), now));
        if self.window.is_empty() {
            self.quiet.drained_at_ns.get_or_insert(now);
        }
    }

    /// Returns the frame's bytes on the wire.
    fn seen(&mut self, now: u64, frame: u64, frame_len: u32) -> u64 {
        if self.first_ns.is_none() {
            (self.first_ns, self.first_frame) = (Some(now), frame);
        }
        self.last_ns = self.last_ns.max(now);
        let bytes = u64::from(frame_len) + AROUND_FRAME;
        let interval = now / PEAK_INTERVAL_NS;
        if interval != self.interval.0 {
            self.interval = (interval, 0);
        }
        self.interval.1 += bytes;
        self.peak_bytes = self.peak_bytes.max(self.interval.1);
        bytes
    }

    /// The highest rate on the wire over 100 µs, both directions of this flow together, in bit/s.
    pub fn peak_bps(&self) -> f64 {
        self.peak_bytes as f64 * 8e9 / PEAK_INTERVAL_NS as f64
    }

    /// `again`: cause, if a retransmission ends the silence.
    fn silence_ends(&mut self, now: u64, frame: u64, again: Option<Cause>, by_request: bool) {
        let Some(since) = self.quiet.since_ns else { return };
        let length = now.saturating_sub(since);
        let rtt = self.rtt_min_ns().or(self.rtt_at_most.min());
        let is_recovery = !matches!(again, None | Some(Cause::Unprompted));
        if length < threshold_ns(rtt.filter(|_| !is_recovery).or(is_recovery.then_some(0))) {
            return;
        }
        let quiet = self.quiet;
        let answers_a_read = !by_request && quiet.level.reads > 0;
        let cause = match again {
            Some(cause) => cause,
            None if quiet.drained_at_ns.is_some() => Cause::Drained,
            None if quiet.progress_ns.is_some() || answers_a_read => Cause::Waited,
            None => Cause::Unprompted,
        };
        if let (Cause::RnrNak, Some(at)) = (cause, self.recovery.demanded_at_ns()) {
            self.rnr_waits.add(now.saturating_sub(at));
        }
        let limit = self.credit_limit;
        self.stalls.add(&Silence {
            cause,
            start_ns: since,
            end_ns: now,
            frame,
            level: quiet.level,
            progress_ns: quiet.progress_ns,
            drained_at_ns: quiet.drained_at_ns,
            out_of_credits: limit.is_some_and(|credits| quiet.level.messages >= credits.max(1)),
            ended_by_request: by_request,
        });
        if self.burst > 0 && matches!(cause, Cause::Waited | Cause::Drained) {
            self.stalls.bursts.add(self.burst);
            self.burst = 0;
        }
    }

    fn active(&mut self, now: u64, sequence: u64) {
        self.last_request = (sequence, now);
        self.quiet = Quiet { since_ns: Some(now), level: self.window.level(), ..Quiet::default() };
    }

    pub fn mark(&mut self, now: u64, sequence: u64, mark: Mark) {
        if let Some(trace) = &mut self.trace {
            trace.add(now, sequence, mark);
        }
    }

    /// Handles a congestion notification to the requester.
    pub fn notified(&mut self, now: u64) {
        self.mark(now, self.next, Mark::Cnp);
    }

    /// Handles the end of the capture.
    pub fn finish(&mut self) {
        self.recovery.end();
    }

    /// Returns the first sequence number since the queue pair's last reset, and the next one.
    pub fn sequences(&self) -> (u64, u64) {
        (self.first, self.next)
    }
}
