//! Rules of one flow: the requests of one requester, and their answers.

use super::frame::{Seen, Way};
use super::{Direction, End, Findings, FlowProof, FramePosition, Rule};
use longhaul_units::{Msn, Psn, Qpn};
use longhaul_wire::{Aeth, NakCode, Position, Syndrome, Verb, credits};
use std::collections::VecDeque;
use std::net::IpAddr;

/// First sequence number, so that PSNs before the first one have one too.
const SEQUENCE_BASE: u64 = 1 << 32;
/// Packets kept after delivery, to compare late retransmissions with.
const RETAINED: usize = 1 << 16;
/// A packet this far from the expected PSN belongs to another life of the QP.
const LIFE: u64 = 1 << 20;
/// The same while nothing is outstanding: only loss before the first capture makes a gap then.
const IDLE_LIFE: u64 = 1 << 12;
/// Maximum frames from the responder inside a box on their way to the requester.
const IN_BOX_MAX: usize = 1 << 10;
/// Valid path MTUs, in bytes.
const MTUS: [u32; 5] = [256, 512, 1024, 2048, 4096];

/// One request packet, as first sent by the requester.
struct Sent {
    first: u64,
    /// PSNs that it occupies.
    span: u64,
    content: u64,
    path: u64,
    payload_len: usize,
    /// Messages that end with this packet or an earlier one.
    messages: u64,
}

/// A READ or atomic whose responses have not reached the requester.
struct Awaited {
    first: u64,
    last: u64,
    next: u64,
}

/// The responder's answers as seen at the near side of a box.
#[derive(Default)]
struct Real {
    /// Hashes of whole frames, to recognise them behind the box.
    frames: VecDeque<u64>,
    look: Option<(bool, u64)>,
    unlimited: bool,
    /// Maximum number of messages that credits have allowed.
    limit: u64,
    any_credits: bool,
}

pub(super) struct Flow {
    way: Way,
    pub(super) direction: Direction,
    pub(super) requester_qpn: Option<Qpn>,
    /// Communication ids of its connection.
    pub(super) connection: Option<(u32, u32)>,
    mtu: Option<u32>,
    /// Next sequence number of the requester.
    next: u64,
    messages: u64,
    sent: VecDeque<Sent>,
    /// Packets removed from `sent`, and the end and message count of the last of them.
    dropped: u64,
    dropped_next: u64,
    dropped_messages: u64,
    /// DMA length of the last packet, a READ, while the path MTU, and so its PSN range, is unknown.
    unresolved: Option<u32>,
    /// Numbers of packets: arrived at the responder, acknowledged to the requester, acknowledged by
    /// the responder.
    arrived: u64,
    answered: u64,
    confirmed: u64,
    awaited: VecDeque<Awaited>,
    has_data: bool,
    msn_base: Option<Msn>,
    real: Real,
    /// MigReq of pseudo-ACKs sent before the box could learn it.
    guessed_migreq: Option<bool>,
    last_was_passed: bool,
    answered_at: Option<FramePosition>,
    failed: Option<String>,
    proof: FlowProof,
}

/// Whether a request packet fits the flow.
#[derive(PartialEq, Eq)]
pub(super) enum Fits {
    Yes,
    /// It belongs to another life of the QP.
    No,
}

impl Flow {
    pub(super) fn new(way: Way, direction: Direction, first: Psn) -> Self {
        let next = SEQUENCE_BASE + u64::from(first.get());
        Flow {
            way,
            direction,
            requester_qpn: None,
            connection: None,
            mtu: None,
            next,
            messages: 0,
            sent: VecDeque::new(),
            dropped: 0,
            dropped_next: next,
            dropped_messages: 0,
            unresolved: None,
            arrived: 0,
            answered: 0,
            confirmed: 0,
            awaited: VecDeque::new(),
            has_data: false,
            msn_base: None,
            real: Real::default(),
            guessed_migreq: None,
            last_was_passed: true,
            answered_at: None,
            failed: None,
            proof: FlowProof { first_psn: first.get(), ..FlowProof::default() },
        }
    }

    /// Applies the connection manager's information; the MSN counts from 0.
    pub(super) fn begin_connection(&mut self, ids: (u32, u32), requester: Qpn, mtu: Option<u32>) {
        (self.connection, self.requester_qpn, self.mtu) = (Some(ids), Some(requester), mtu);
        self.msn_base = Some(Msn::new(0));
    }

    /// `true` after the first request.
    pub(super) fn has_begun(&self) -> bool {
        self.total() > 0 || self.proof.out_of_order_sent > 0
    }

    fn total(&self) -> u64 {
        self.dropped + self.sent.len() as u64
    }

    /// Oldest packet that a retransmission can be compared with.
    fn oldest(&self) -> u64 {
        self.sent.front().map_or(self.next, |sent| sent.first)
    }

    fn index_of(&self, seq: u64) -> Option<usize> {
        let index = self.sent.partition_point(|sent| sent.first + sent.span <= seq);
        self.sent.get(index).filter(|sent| sent.first <= seq).map(|_| index)
    }

    /// Packets that end at `seq` or before, and their messages; `None` if that is forgotten.
    fn covered(&self, seq: u64) -> Option<(u64, u64)> {
        if seq + 1 < self.dropped_next {
            return None;
        }
        let index = self.sent.partition_point(|sent| sent.first + sent.span <= seq + 1);
        let messages = index
            .checked_sub(1)
            .and_then(|i| self.sent.get(i))
            .map_or(self.dropped_messages, |s| s.messages);
        Some((self.dropped + index as u64, messages))
    }

    fn forget(&mut self) {
        let needed = match self.requester_qpn {
            Some(_) => self.arrived.min(self.answered).min(self.confirmed),
            None => self.arrived,
        };
        while self.sent.len() > RETAINED && self.dropped < needed {
            let Some(gone) = self.sent.pop_front() else { break };
            self.dropped += 1;
            (self.dropped_next, self.dropped_messages) = (gone.first + gone.span, gone.messages);
        }
    }

    /// `true` if an acknowledgement of `psn` can belong to this flow.
    pub(super) fn could_be_acknowledged(&self, psn: Psn) -> bool {
        let Some(seq) = psn.unwrap_near(self.next) else { return false };
        self.total() > 0 && seq + 1 >= self.dropped_next && seq < self.next
    }

    /// Handles a packet sent by the requester.
    pub(super) fn send(
        &mut self,
        place: FramePosition,
        seen: &Seen<'_>,
        findings: &mut Findings,
    ) -> Fits {
        self.learn_mtu(seen);
        let seq = seen.psn.unwrap_near(self.next).unwrap_or(0);
        if seq > self.next {
            self.resolve_by_distance(seq);
        }
        let idle = self.confirmed == self.total();
        if seq == self.next {
            self.push(seen);
        } else if seq.abs_diff(self.next) > LIFE
            || (idle && (seq > self.next + IDLE_LIFE || seq < self.oldest()))
        {
            return Fits::No;
        } else if seq > self.next {
            self.proof.out_of_order_sent += 1;
        } else {
            self.proof.sent_again += 1;
            let original = self.index_of(seq).and_then(|i| self.sent.get(i));
            if let Some(original) = original.filter(|sent| sent.first == seq)
                && original.content != seen.content
            {
                if self.arrived == self.total() {
                    return Fits::No;
                }
                findings.add(place, Rule::RetransmissionDiffers, || {
                    format!("PSN {} of {}", seen.psn, self.name())
                });
            }
        }
        Fits::Yes
    }

    fn push(&mut self, seen: &Seen<'_>) {
        let span = match (seen.opcode.verb(), seen.dma_len) {
            (Some(Verb::ReadRequest), Some(len)) => {
                let span = self.mtu.map(|mtu| u64::from(len.div_ceil(mtu).max(1)));
                self.unresolved = (span.is_none() && len > MTUS[0]).then_some(len);
                span.unwrap_or(1)
            }
            _ => 1,
        };
        self.messages += u64::from(seen.opcode.ends_message());
        if seen.wants_data() {
            self.has_data = true;
            self.proof.reads_and_atomics += 1;
            self.awaited.push_back(Awaited {
                first: self.next,
                last: self.next + span - 1,
                next: self.next,
            });
        }
        self.sent.push_back(Sent {
            first: self.next,
            span,
            content: seen.content,
            path: seen.path,
            payload_len: seen.payload.len(),
            messages: self.messages,
        });
        self.next += span;
        self.proof.sent += 1;
        self.forget();
    }

    fn learn_mtu(&mut self, seen: &Seen<'_>) {
        if matches!(seen.opcode.position(), Position::First | Position::Middle) {
            let known = MTUS.into_iter().find(|&mtu| mtu as usize == seen.payload.len());
            self.mtu = known.or(self.mtu);
            if let (Some(mtu), Some(len)) = (self.mtu, self.unresolved) {
                self.resolve(u64::from(len.div_ceil(mtu).max(1)));
            }
        }
    }

    /// Derives the PSN range of a READ from the next request.
    fn resolve_by_distance(&mut self, seq: u64) {
        let (Some(len), Some(last)) = (self.unresolved, self.sent.back()) else { return };
        let span = seq - last.first;
        if MTUS.into_iter().any(|mtu| u64::from(len.div_ceil(mtu).max(1)) == span) {
            self.resolve(span);
        }
    }

    fn resolve(&mut self, span: u64) {
        self.unresolved = None;
        let Some(last) = self.sent.back_mut() else { return };
        last.span = span;
        self.next = last.first + span;
        if let Some(awaited) = self.awaited.back_mut().filter(|awaited| awaited.first == last.first)
        {
            awaited.last = self.next - 1;
        }
    }

    /// Handles a request packet that arrives at the responder.
    pub(super) fn arrive(
        &mut self,
        place: FramePosition,
        seen: &Seen<'_>,
        findings: &mut Findings,
    ) {
        let position = (self.arrived - self.dropped) as usize;
        let expected = self.sent.get(position).map_or(self.next, |sent| sent.first);
        let seq = seen.psn.unwrap_near(expected).unwrap_or(0);
        if seq > expected {
            self.proof.arrived_behind_a_gap += 1;
            return;
        }
        let original = self.index_of(seq).and_then(|i| self.sent.get(i));
        let Some(original) = original else {
            if seq == expected {
                findings
                    .add(place, Rule::NeverSent, || format!("PSN {} of {}", seen.psn, self.name()));
            } else {
                self.proof.arrived_again_unchecked += 1;
            }
            return;
        };
        if original.first == seq && original.content != seen.content {
            let rule =
                if seq == expected { Rule::ContentChanged } else { Rule::RetransmissionDiffers };
            findings.add(place, rule, || format!("PSN {} of {}", seen.psn, self.name()));
        }
        if original.path != seen.path {
            findings.add(place, Rule::HeadersChanged, || {
                format!("PSN {} of {}", seen.psn, self.name())
            });
        }
        if seq < expected {
            self.proof.arrived_again += 1;
            return;
        }
        self.proof.arrived_bytes += original.payload_len as u64;
        self.proof.arrived_messages = original.messages;
        self.arrived += 1;
        self.proof.arrived += 1;
        self.forget();
    }

    /// Handles an answer on the responder's segment: of the responder, or of a box on its behalf.
    pub(super) fn answer(
        &mut self,
        place: FramePosition,
        seen: &Seen<'_>,
        findings: &mut Findings,
    ) {
        self.learn_mtu(seen);
        let seq = seen.psn.unwrap_near(self.next).unwrap_or(0);
        let Some(aeth) = seen.aeth.filter(|_| seen.opcode.verb() == Some(Verb::Acknowledge)) else {
            // Data: everything before its request has arrived.
            let before = self
                .index_of(seq)
                .and_then(|i| self.sent.get(i))
                .map(|sent| sent.first.saturating_sub(1));
            if let Some((count, _)) = before.and_then(|seq| self.covered(seq)) {
                let answered = count + u64::from(seen.opcode.ends_message());
                self.confirmed = self.confirmed.max(answered.min(self.arrived));
            }
            return;
        };
        self.note_nak(place, aeth);
        let covered = seq.saturating_sub(u64::from(!matches!(aeth.syndrome, Syndrome::Ack { .. })));
        let Some((count, messages)) = self.covered(covered) else { return };
        if count > self.arrived || covered >= self.next {
            findings.add(place, Rule::ResponderAhead, || {
                format!("PSN {} of {}", seen.psn, self.name())
            });
            return;
        }
        if count < self.confirmed {
            return;
        }
        self.confirmed = count;
        // Kernel rxe counts a READ as soon as it arrives.
        if !self.has_data {
            self.check_msn(place, aeth.msn, messages, findings);
        }
        self.forget();
    }

    fn note_nak(&mut self, place: FramePosition, aeth: Aeth) {
        match aeth.syndrome {
            Syndrome::RnrNak { .. } => self.proof.rnr_naks += 1,
            Syndrome::Nak(NakCode::PsnSequence) => self.proof.sequence_naks += 1,
            Syndrome::Nak(code) => {
                let text =
                    || format!("NAK {code:?} on {}, frame {}", place.segment.name(), place.frame);
                self.failed.get_or_insert_with(text);
            }
            Syndrome::Ack { .. } | Syndrome::Reserved(_) => {}
        }
    }

    fn check_msn(
        &mut self,
        place: FramePosition,
        msn: Msn,
        messages: u64,
        findings: &mut Findings,
    ) {
        let after = |base: Msn| base.plus((messages & 0xff_ffff) as u32);
        match self.msn_base {
            None => self.msn_base = Some(Msn::new(msn.get().wrapping_sub(messages as u32))),
            Some(base) if after(base) != msn => findings.add(place, Rule::MsnWrong, || {
                format!("MSN {msn} where {} is right, {}", after(base), self.name())
            }),
            Some(_) => self.proof.msns_checked += 1,
        }
    }

    /// Handles an answer of the responder that arrives at the requester's box.
    pub(super) fn note_real(&mut self, seen: &Seen<'_>) {
        if self.real.frames.len() == IN_BOX_MAX {
            self.real.frames.pop_front();
        }
        self.real.frames.push_back(seen.whole);
        if let Some(guessed) = self.guessed_migreq.take() {
            self.proof.migreq_guessed_wrong = guessed != seen.migreq;
        }
        self.real.look = Some((seen.migreq, seen.path));
        let Some(Aeth { syndrome: Syndrome::Ack { credit_code }, .. }) = seen.aeth else { return };
        let seq = seen.psn.unwrap_near(self.next).unwrap_or(0);
        let Some((_, messages)) = self.covered(seq) else { return };
        self.real.any_credits = true;
        match credits(credit_code) {
            None => self.real.unlimited = true,
            Some(credits) => self.real.limit = self.real.limit.max(messages + u64::from(credits)),
        }
    }

    /// Handles an answer that arrives at the requester. `has_box`: perhaps from a box.
    pub(super) fn be_answered(
        &mut self,
        place: FramePosition,
        seen: &Seen<'_>,
        has_box: bool,
        findings: &mut Findings,
    ) {
        self.learn_mtu(seen);
        let was_real = self.real.frames.iter().position(|&whole| whole == seen.whole);
        if let Some(at) = was_real {
            // The box keeps their order; the answers before this one were absorbed.
            self.real.frames.drain(..=at);
        }
        let passed = was_real.is_some() || !has_box;
        match seen.aeth {
            Some(aeth) if seen.opcode.verb() == Some(Verb::Acknowledge) => {
                self.be_acknowledged(place, seen, aeth, passed, findings);
            }
            _ => self.take_data(place, seen, passed, findings),
        }
        self.forget();
    }

    fn take_data(
        &mut self,
        place: FramePosition,
        seen: &Seen<'_>,
        passed: bool,
        findings: &mut Findings,
    ) {
        if !passed {
            findings.add(place, Rule::ResponseMadeUp, || {
                format!("PSN {} of {}", seen.psn, self.name())
            });
        }
        let seq = seen.psn.unwrap_near(self.next).unwrap_or(0);
        self.last_was_passed = true;
        let Some(front) = self.awaited.front_mut().filter(|awaited| awaited.next == seq) else {
            return;
        };
        front.next += 1;
        let (first, is_last) = (front.first, seq == front.last);
        if is_last {
            self.awaited.pop_front();
        }
        if let Some((count, _)) = self.covered(first.saturating_sub(1)) {
            self.advance_answered(place, count + u64::from(is_last));
        }
    }

    fn advance_answered(&mut self, place: FramePosition, count: u64) {
        if count > self.answered {
            self.answered = count;
            self.answered_at = Some(place);
        }
    }

    fn be_acknowledged(
        &mut self,
        place: FramePosition,
        seen: &Seen<'_>,
        aeth: Aeth,
        passed: bool,
        findings: &mut Findings,
    ) {
        let what = || format!("PSN {} of {}", seen.psn, self.name());
        let seq = seen.psn.unwrap_near(self.next).unwrap_or(0);
        let is_ack = match aeth.syndrome {
            Syndrome::Ack { .. } => true,
            Syndrome::Reserved(_) | Syndrome::Nak(NakCode::InvalidRd) => {
                return findings.add(place, Rule::SyndromeIllegal, what);
            }
            Syndrome::RnrNak { .. } | Syndrome::Nak(_) => false,
        };
        let covered = seq.saturating_sub(u64::from(!is_ack));
        if covered >= self.next {
            return findings.add(place, Rule::AckedUnseen, what);
        }
        if !passed && self.awaited.front().is_some_and(|awaited| awaited.first <= covered) {
            findings.add(place, Rule::AckPassesRead, what);
        }
        let found = self.covered(covered).filter(|(count, _)| *count >= self.answered);
        let Some((count, messages)) = found else {
            if passed && self.last_was_passed {
                self.proof.acks_reordered += 1;
            } else {
                findings.add(place, Rule::AckWentBack, what);
            }
            return;
        };
        self.last_was_passed = passed;
        self.note_failure(place, aeth);
        self.advance_answered(place, count);
        if !passed || !self.has_data {
            self.check_msn(place, aeth.msn, messages, findings);
        }
        if passed {
            self.proof.acks_passed += 1;
        } else {
            self.proof.pseudo_acks += 1;
            self.check_pseudo(place, seen, aeth, messages, findings);
        }
    }

    fn note_failure(&mut self, place: FramePosition, aeth: Aeth) {
        if matches!(aeth.syndrome, Syndrome::Nak(code) if code != NakCode::PsnSequence) {
            self.note_nak(place, aeth);
        }
    }

    /// Checks that a pseudo-ACK looks like the responder's ACKs and promises no more.
    fn check_pseudo(
        &mut self,
        place: FramePosition,
        seen: &Seen<'_>,
        aeth: Aeth,
        messages: u64,
        findings: &mut Findings,
    ) {
        match self.real.look {
            Some((migreq, path)) => {
                if migreq != seen.migreq {
                    findings.add(place, Rule::MigReqDiffers, || self.name());
                }
                if path != seen.path {
                    findings.add(place, Rule::AnswerHeadersDiffer, || self.name());
                }
            }
            None => self.guessed_migreq = Some(seen.migreq),
        }
        let Syndrome::Ack { credit_code } = aeth.syndrome else { return };
        if !self.real.any_credits || self.real.unlimited {
            return;
        }
        let promised = credits(credit_code).map(|credits| messages + u64::from(credits));
        if promised.is_none_or(|promised| promised > self.real.limit) {
            findings.add(place, Rule::CreditsInvented, || {
                format!(
                    "code {credit_code} where the responder allows {} messages, {}",
                    self.real.limit,
                    self.name()
                )
            });
        }
    }

    fn name(&self) -> String {
        let Way { source, destination, qpn, .. } = self.way;
        format!("{source} to {destination}, QP {qpn}")
    }

    /// Handles a DREQ of the responder for the connection `ids`.
    pub(super) fn be_closed(&mut self, place: FramePosition, responder: IpAddr, ids: (u32, u32)) {
        let ours = self.connection == Some(ids) || self.connection == Some((ids.1, ids.0));
        if ours
            && self.way.destination == responder
            && self.failed.is_none()
            && self.arrived < self.total()
        {
            let text =
                format!("the responder closed it, {}, frame {}", place.segment.name(), place.frame);
            self.failed = Some(text);
        }
    }

    /// Ends the flow: the capture of the responder's segment ends at `until_ns`, or the QP has a
    /// new life.
    pub(super) fn finish(mut self, until_ns: u64, findings: &mut Findings) -> FlowProof {
        let missing = self.total() - self.arrived;
        let promised = self.answered.saturating_sub(self.arrived);
        self.proof.end = match (self.failed.take(), self.answered_at) {
            (Some(reason), _) => {
                // Packets that arrived may have been refused.
                let acknowledged_but_missing = self.answered.saturating_sub(self.confirmed);
                End::Failed { reason, acknowledged_but_missing }
            }
            (_, Some(place)) if promised > 0 && place.time_ns <= until_ns => {
                findings.add(place, Rule::AckedNeverArrived, || {
                    format!("{promised} packets of {}", self.name())
                });
                End::Missing { packets: promised }
            }
            _ if missing > 0 => End::UnderWay { packets: missing },
            _ => End::Delivered,
        };
        FlowProof {
            requester: self.way.source.to_string(),
            responder: self.way.destination.to_string(),
            vlan: self.way.vlan,
            responder_qpn: self.way.qpn.get(),
            requester_qpn: self.requester_qpn.map(Qpn::get),
            direction: self.direction,
            by_connection_manager: self.connection.is_some(),
            acknowledged: self.answered,
            confirmed: self.confirmed,
            ..self.proof
        }
    }
}
