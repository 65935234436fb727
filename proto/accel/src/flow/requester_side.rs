//! Requests from the LAN, and the answers of a flow to its requester.

use super::Flow;
use super::missing::Missing;
use super::reads::{read_span, read_span_max};
use super::repetitions::APART;
use super::replay::Replay;
use super::requester::Requester;
use super::state::{Failed, Passing, Remains, State};
use crate::DropReason;
use crate::policy::Duty;
use crate::shared::AccelShared;
use crate::store::{ENTRY_OVERHEAD, RequestKind};
use crate::trace::{GAP_MAX, Requested};
use longhaul_node::{Frame, FrameBuf, FramePool};
use longhaul_units::{Duration, Instant, Psn};
use longhaul_wire::{NakCode, Opcode, Packet, Position, Syndrome, Verb};
use std::cmp::Ordering;

/// A packet this far from the expected PSN belongs to another life of the QP.
pub(crate) const WINDOW: u64 = 1 << 22;
/// Time after which a failed flow is learnt again.
const FAILED_FOR: Duration = Duration::from_ms(60_000);
/// Shortest local ACK timeout to which NICs are set.
pub(crate) const ACK_TIMEOUT_MIN: Duration = Duration::from_ms(4);

/// Properties of a request packet that the store needs.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Request {
    pub(crate) kind: RequestKind,
    /// PSNs that it takes; `None` while the path MTU of a READ is not known.
    pub(crate) span: Option<u64>,
    pub(crate) ends: bool,
    pub(crate) ack_request: bool,
    /// DMA length of a READ.
    pub(crate) read_len: u32,
}

impl Request {
    /// Properties that learning the flow needs.
    pub(crate) fn requested(&self, seq: u64) -> Requested {
        Requested { seq, span: self.span, span_max: read_span_max(self.read_len), ends: self.ends }
    }

    fn of(packet: &Packet<'_>, path_mtu: Option<u32>) -> Request {
        let opcode = packet.opcode();
        let mut request = Request {
            kind: RequestKind::Plain,
            span: Some(1),
            ends: opcode.ends_message(),
            ack_request: packet.bth().ack_request,
            read_len: 0,
        };
        match opcode.verb() {
            Some(Verb::ReadRequest) => {
                request.kind = RequestKind::Response;
                request.read_len = packet.reth().map_or(0, |reth| reth.len);
                request.span = read_span(request.read_len, path_mtu);
            }
            Some(Verb::CmpSwap | Verb::FetchAdd) => request.kind = RequestKind::Response,
            Some(Verb::Write)
                if opcode == Opcode::RC_WRITE_ONLY
                    && packet.reth().is_some_and(|reth| reth.len == 0) =>
            {
                request.kind = RequestKind::EndToEnd;
            }
            _ => {}
        }
        request
    }
}

fn is_answered_by_data(packet: &Packet<'_>) -> bool {
    matches!(packet.opcode().verb(), Some(Verb::ReadRequest | Verb::CmpSwap | Verb::FetchAdd))
}

impl Flow {
    /// Properties of `packet`, given this flow's mode and path MTU.
    pub(crate) fn request_of(&self, packet: &Packet<'_>) -> Request {
        let mut request = Request::of(packet, self.reads.path_mtu());
        if self.mode.duty() == Duty::AcknowledgeButLast
            && request.ends
            && request.kind == RequestKind::Plain
        {
            request.kind = RequestKind::EndToEnd;
        }
        request
    }

    /// Stores the request that this flow expects. Its ICRC must be right, and the flow must [only
    /// store](Flow::only_stores).
    #[inline]
    pub(crate) fn store_next(
        &mut self,
        now: Instant,
        shared: &mut AccelShared,
        frame: &Frame<'_>,
        packet: &Packet<'_>,
    ) {
        self.bookkeeping.is_used = true;
        self.reads.learn(packet, frame.payload.len());
        self.answer.learn_from_request(packet);
        let request = self.request_of(packet);
        self.requester.sent.set_next(self.store.end() + request.span.unwrap_or(1));
        self.accept(now, shared, frame, request, packet);
    }

    /// Handles a request of this flow from the LAN, with a right ICRC.
    pub(crate) fn handle_request(
        &mut self,
        now: Instant,
        shared: &mut AccelShared,
        frame: &Frame<'_>,
        packet: &Packet<'_>,
    ) {
        self.bookkeeping.is_used = true;
        if !self.mode.is_final() {
            self.settle_mode(&shared.config, packet);
        }
        self.reads.learn(packet, frame.payload.len());
        if let State::Passing(Passing { remains, .. }) = self.state {
            let is_aside = matches!(remains, Remains::DeliveredTo(_));
            let may_be_taken_in = is_aside && !shared.draining && self.for_good.is_none();
            if may_be_taken_in || self.passes_another_life(packet) {
                self.restart_learning(now, shared, packet);
            }
        }
        if matches!(self.state, State::Passing(_)) {
            return self.pass_request(now, shared, frame, packet);
        }
        self.answer.learn_from_request(packet);
        if let State::Failed(Failed { since, .. }) = self.state {
            self.refuse(now, shared, packet, since);
        }
        if self.is_terminated() && self.reads.is_unresolved() {
            self.resolve_by_request(packet);
        }
        let seq = self.sequence_of(packet);
        let request = self.request_of(packet);
        if seq < self.requester.sent.next() && self.goes_back_one_way(now, shared, packet, seq) {
            self.pass_one_way(now, shared);
            return self.pass_request(now, shared, frame, packet);
        }
        self.requester.sent.set_next(seq + request.span.unwrap_or(1));
        let expected = self.store.end();
        if seq > expected && self.lives.is_acked_elsewhere(seq - 1) {
            // The requester continues behind a packet known to be delivered.
            self.release_all_below(shared, expected);
            self.restart_learning(now, shared, packet);
        }
        if self.is_terminated() && self.begins_anew(packet, seq) {
            shared.counters.flows_reset += 1;
            self.restart_learning(now, shared, packet);
            if let Some(learning) = self.state.learning_mut().filter(|_| seq < expected) {
                learning.may_go_back_from(now, expected);
            }
        }
        self.requester.sent.note_last();
        match self.state {
            State::Learning(_) => self.watch_request(now, shared, frame, packet),
            State::Terminated => self.store_request(now, shared, frame, packet, request, seq),
            State::Passing(_) => self.pass_request(now, shared, frame, packet),
            State::Failed(_) => {}
        }
    }

    /// Handles the request at `seq` of a terminated flow.
    fn store_request(
        &mut self,
        now: Instant,
        shared: &mut AccelShared,
        frame: &Frame<'_>,
        packet: &Packet<'_>,
        request: Request,
        seq: u64,
    ) {
        let Requester { hold, missing, .. } = &mut self.requester;
        if hold.drops(seq, &self.store, missing) {
            return self.drop_frame(shared, DropReason::NotReady);
        }
        let expected = self.store.end();
        if self.reads.is_unresolved() && seq >= expected {
            // A NAK brings it back once the READ is answered.
            missing.owe_nak();
            return self.drop_frame(shared, DropReason::PsnGap);
        }
        match seq.cmp(&expected) {
            Ordering::Less => self.handle_duplicate(now, shared, frame, packet, seq),
            Ordering::Equal => self.accept(now, shared, frame, request, packet),
            Ordering::Greater => self.note_gap(now, shared, seq),
        }
    }

    /// True if `packet`, of a passing flow, cannot follow the packet before it, so that the mode
    /// must be looked up again.
    fn passes_another_life(&self, packet: &Packet<'_>) -> bool {
        if self.delivers_remains() {
            // Lives are distinguished as in a terminated flow.
            return false;
        }
        let seq = packet.psn().unwrap_near(self.requester.sent.next()).unwrap_or(0);
        seq > self.requester.sent.next() + GAP_MAX || self.requester.sent.next() > seq + WINDOW
    }

    /// Forwards a request unacknowledged.
    fn pass_request(
        &mut self,
        now: Instant,
        shared: &mut AccelShared,
        frame: &Frame<'_>,
        packet: &Packet<'_>,
    ) {
        let seq = packet.psn().unwrap_near(self.requester.sent.next()).unwrap_or(0);
        let request = self.request_of(packet);
        self.note_passing(seq);
        self.requester.sent.set_next(seq + request.span.unwrap_or(1));
        self.requester.sent.note_last();
        self.trace(now, shared, seq, &request);
        self.counters.passed_packets += 1;
        shared.counters.passed += 1;
        shared.pass_to_wan(frame);
    }

    /// Handles a request that goes back. A requester goes back to its first packet without an
    /// answer: if that lies behind a repeated READ, the READ's responses have arrived. Returns
    /// `true` if responses take another path.
    #[cold]
    fn goes_back_one_way(
        &mut self,
        now: Instant,
        shared: &mut AccelShared,
        packet: &Packet<'_>,
        seq: u64,
    ) -> bool {
        self.count_retry(now, shared, packet, seq);
        self.requester.replay.take_if(|replay| replay.ends_before(seq));
        self.shows_one_way(now, seq)
    }

    /// Counts a retry that goes back to `seq`, for advice. Repeated READs and atomics are counted
    /// where it shows whether their answers can have come.
    fn count_retry(
        &mut self,
        now: Instant,
        shared: &mut AccelShared,
        packet: &Packet<'_>,
        seq: u64,
    ) {
        let is_acknowledged = seq < self.requester.acks.to();
        let is_early = (self.store.frontier().0..self.store.end()).contains(&seq);
        if self.is_terminated() && !is_answered_by_data(packet) && (is_acknowledged || is_early) {
            shared.give(self.requester.retries.count(now, is_acknowledged), &self.key);
        }
    }

    /// True if `seq` may come from another life of the requester, and learning it again loses
    /// nothing.
    fn begins_anew(&self, packet: &Packet<'_>, seq: u64) -> bool {
        let expected = self.store.end();
        if seq == expected
            || !self.store.is_empty()
            || (self.requester.missing.is_full() && self.may_be_sent(seq))
        {
            return false;
        }
        if seq < expected {
            // Everything is delivered, so that the responder can answer any requester itself.
            return !self.started || !is_answered_by_data(packet) || !self.may_be_sent(seq);
        }
        self.requester.missing.is_revealed_by(seq)
            || self.lives.is_repeated(seq)
            || !self.may_be_sent(seq)
    }

    /// PSNs from the last stored packet, a READ, to `packet`.
    fn distance_from_last(&self, packet: &Packet<'_>) -> Option<u64> {
        let last = self.store.end() - 1;
        packet.psn().unwrap_near(last).and_then(|seq| seq.checked_sub(last))
    }

    /// Resolves the last READ, if a request behind it shows its range.
    fn resolve_by_request(&mut self, packet: &Packet<'_>) {
        let distance = self.distance_from_last(packet);
        if let Some(span) = distance.and_then(|at| self.reads.resolve_by_request(at)) {
            self.store.resolve_span(span);
        }
    }

    /// Learns the path MTU from a READ response, and from it the range of the unresolved READ.
    pub(crate) fn resolve_by_response(&mut self, packet: &Packet<'_>, payload_len: usize) {
        self.reads.learn(packet, payload_len);
        if !self.reads.is_unresolved() {
            return;
        }
        // Earlier READs are answered before it, and no packet behind it was sent.
        let Some(distance) = self.distance_from_last(packet) else { return };
        let is_last = matches!(packet.opcode().position(), Position::Only | Position::Last);
        let ends_at = is_last.then_some(distance + 1);
        if let Some(span) = self.reads.resolve_by_response(ends_at) {
            self.store.resolve_span(span);
        }
    }

    fn accept(
        &mut self,
        now: Instant,
        shared: &mut AccelShared,
        frame: &Frame<'_>,
        request: Request,
        packet: &Packet<'_>,
    ) {
        let span = request.span.unwrap_or(1);
        if !self.has_room(shared, frame.payload.len(), span) {
            return self.refuse_for_room(now, shared, frame);
        }
        if !shared.may_hold(frame) {
            return;
        }
        if self.store.is_empty() {
            self.responder.retransmission.note_heard(now);
        }
        self.requester.allowance.note_busy(now);
        if !self.started {
            self.started = true;
            self.lives.begin(packet.udp_source_port());
        }
        self.requester.missing = Missing::default();
        self.lives.note_accepted();
        self.requester.hold.note_accepted();
        if request.span.is_none() {
            self.reads.note_unresolved(request.read_len);
        }
        self.store.wake(&mut shared.spare);
        // Both arms push, so that a lent frame is assembled in place: a move in other pieces than
        // it was written in would defeat store-to-load forwarding.
        let bytes = match FrameBuf::lent_whole(frame) {
            Some(held) => {
                self.store.push(held, span, request.kind, request.ends, request.ack_request)
            }
            None => {
                let held = shared.pool.hold(frame);
                self.store.push(held, span, request.kind, request.ends, request.ack_request)
            }
        };
        shared.shares.add(self.tenant, bytes);
        self.count_stored(shared, frame.payload.len());
        if request.kind != RequestKind::Response {
            let (end, every) = (self.store.end(), shared.config.ack_every);
            self.requester.acks.note_stored(now, end, request.ack_request, every);
        }
        self.advance_frontier(now, shared);
        let Requester { hold, missing, .. } = &mut self.requester;
        hold.note_stored(&self.store, missing);
    }

    #[cold]
    fn refuse_for_room(&mut self, now: Instant, shared: &mut AccelShared, frame: &Frame<'_>) {
        if self.was_never_answered() {
            self.pass_one_way(now, shared);
            self.counters.passed_packets += 1;
            shared.counters.passed += 1;
            return shared.pass_to_wan(frame);
        }
        self.requester.sent.note_last();
        self.requester.missing.note_full(now);
        let Requester { hold, missing, .. } = &mut self.requester;
        hold.note_refused(now, &self.store, missing);
        shared.shares.count_refused(self.tenant);
        self.drop_frame(shared, DropReason::StoreFull);
    }

    #[inline]
    pub(crate) fn count_stored(&mut self, shared: &mut AccelShared, payload_len: usize) {
        self.counters.stored_packets += 1;
        self.counters.stored_payload_bytes += payload_len as u64;
        shared.counters.stored_packets += 1;
        shared.counters.stored_payload_bytes += payload_len as u64;
    }

    pub(crate) fn has_room(&self, shared: &AccelShared, payload_len: usize, span: u64) -> bool {
        let bytes = (FramePool::footprint(payload_len) + ENTRY_OVERHEAD) as u64;
        self.store.bytes() + bytes <= shared.config.flow_bytes_max
            // The stores of other flows never stop this one completely.
            && shared.shares.has_room(&shared.config, self.tenant, bytes, self.store.is_empty())
            && (self.store.psns() + span <= u64::from(shared.config.flow_psns_max)
                // The longest READ fits at least when it is alone.
                || (self.store.is_empty() && span <= 1 << 23))
    }

    /// Advances the frontier as far as the flow's allowance permits.
    ///
    /// While pseudo-ACKs are withheld, [`Config::ack_hold_max`](crate::Config::ack_hold_max) bounds
    /// the time between two advances of the frontier: deliveries that release too little for an
    /// advance do not restart it.
    pub(crate) fn advance_frontier(&mut self, now: Instant, shared: &AccelShared) {
        let config = &shared.config;
        let high = shared.shares.flow_high(config, self.tenant, config.flow_high());
        let before = self.store.frontier().0;
        let is_withheld = if shared.draining {
            self.store.owes_delivery()
        } else {
            self.store.advance_frontier(high.min(self.requester.allowance.bytes(config)))
        };
        if !is_withheld {
            self.requester.allowance.stop_withholding();
        } else if self.requester.allowance.withheld_until().is_none()
            || self.store.frontier().0 > before
        {
            let until = now + self.ack_hold(shared);
            self.requester.allowance.withhold(until);
        }
    }

    /// Owes one sequence NAK per gap, and another if the requester seems to have missed it.
    fn note_gap(&mut self, now: Instant, shared: &mut AccelShared, seq: u64) {
        if self.requester.missing.is_full() {
            // The NAK is sent when there is room.
            self.drop_frame(shared, DropReason::StoreFull);
            return;
        }
        if self.requester.missing.note_gap(seq) {
            self.counters.out_of_sequence += 1;
            shared.counters.out_of_sequence += 1;
            shared.give(self.counters.advice_on_gap(), &self.key);
        }
        self.lives.note_repeated(now, seq);
        self.drop_frame(shared, DropReason::PsnGap);
    }

    fn handle_duplicate(
        &mut self,
        now: Instant,
        shared: &mut AccelShared,
        frame: &Frame<'_>,
        packet: &Packet<'_>,
        seq: u64,
    ) {
        if is_answered_by_data(packet) {
            self.handle_repeated_request(now, shared, frame, packet, seq);
            return;
        }
        if seq >= self.store.frontier().0 {
            self.requester.hold.takes_return(seq);
            self.ask_for_requester(now);
        } else if seq < self.requester.acks.to() && self.requester.replay.is_none() {
            self.lives.note_repeated(now, seq);
        }
        self.requester.acks.repeat();
        shared.counters.duplicate_request += 1;
        self.drop_frame(shared, DropReason::Duplicate);
    }

    /// Probes the responder, because the requester repeats a packet that only the responder can
    /// acknowledge. Its timer has expired, and without the box it would retransmit.
    fn ask_for_requester(&mut self, now: Instant) {
        let smoothed = self.responder.retransmission.rtt().smoothed();
        let patience = smoothed.map_or(ACK_TIMEOUT_MIN, |rtt| rtt.max(APART));
        self.responder.retransmission.ask(now, patience, &self.store);
    }

    /// Handles a repeated READ or atomic. It is forwarded unless the answer to its original is
    /// about to come.
    fn handle_repeated_request(
        &mut self,
        now: Instant,
        shared: &mut AccelShared,
        frame: &Frame<'_>,
        packet: &Packet<'_>,
        seq: u64,
    ) {
        self.ask_for_requester(now);
        let patience = match self.responder.retransmission.rtt().smoothed() {
            Some(_) => self.responder.retransmission.rtt().patience(&shared.config),
            None => ACK_TIMEOUT_MIN,
        };
        let overdue = |sent_at: Instant| now.since(sent_at) >= patience;
        let span = self.request_of(packet).span.unwrap_or(1);
        let last = seq + span - 1;
        let resolved = !self.reads.is_unresolved();
        if let Some(awaited) = self.store.awaited_at(seq).copied() {
            let asks_again = seq < awaited.next;
            let replayed_at = self.requester.replay.map(|replay| replay.at());
            let lost = awaited.recover_at.is_some()
                || asks_again
                || self.store.is_overtaken(seq)
                || replayed_at > awaited.sent_at;
            let fits = !resolved || awaited.last == last;
            if !fits || !awaited.sent_at.is_some_and(|at| lost || overdue(at)) {
                if fits && !lost {
                    shared.give(self.requester.retries.count(now, false), &self.key);
                }
                self.drop_frame(shared, DropReason::ReadInFlight);
                return;
            }
            let Some(held) = shared.hold(frame) else { return };
            self.store.replace_request(seq, held.clone());
            self.store.count_request_sent(seq, now);
            self.responder.retransmission.note_resent(now);
            if asks_again {
                self.requester.replay = Some(Replay::new(self.requester.replay, now, seq, last));
            }
            shared.queue_to_wan(held);
        } else {
            if self.requester.replay.is_some_and(|it| it.contains(seq) && !overdue(it.at())) {
                self.drop_frame(shared, DropReason::ReadInFlight);
                return;
            }
            self.requester.replay = Some(Replay::new(self.requester.replay, now, seq, last));
            shared.pass_to_wan(frame);
        }
        shared.counters.reads_replayed += 1;
    }

    /// Handles a request of a flow that has failed at `since`.
    fn refuse(
        &mut self,
        now: Instant,
        shared: &mut AccelShared,
        packet: &Packet<'_>,
        since: Instant,
    ) {
        let seq = self.sequence_of(packet);
        self.lives.note_repeated(now, seq);
        let is_another_life = !self.may_be_sent(seq)
            || self.lives.is_repeated_in_vain()
            || self.comes_by_another_port(packet);
        if is_another_life || now.since(since) >= FAILED_FOR {
            shared.counters.flows_reset += 1;
            self.restart_learning(now, shared, packet);
            return;
        }
        self.state.owe_fatal_nak();
        self.drop_frame(shared, DropReason::FlowFailed);
    }

    /// Sends the packet that [`Flow::owes_requester`] demands.
    pub(crate) fn answer_requester(
        &mut self,
        now: Instant,
        shared: &mut AccelShared,
        send: impl FnOnce(&Frame<'_>),
    ) {
        let Some(requester) = self.requester_qpn else { return };
        if let State::Failed(failed) = &mut self.state {
            let acks = &self.requester.acks;
            let (psn, nak) = (Psn::from_sequence(acks.to()), Syndrome::Nak(failed.code));
            let msn = self.msn_base.plus(acks.messages() as u32);
            if self.answer.send(requester, psn, nak, msn, send) {
                failed.nak_is_owed = false;
                self.counters.fatal_naks += 1;
                shared.counters.fatal_naks += 1;
            }
            return;
        }
        let (frontier, messages) = self.store.frontier();
        let nak = self.nak_is_due();
        let waits = !nak && self.owes_wait();
        let (psn, completed, syndrome) = if nak {
            (frontier, messages, Syndrome::Nak(NakCode::PsnSequence))
        } else if waits {
            (frontier, messages, self.take_wait(now, shared))
        } else {
            let (end, completed) = self.store.ack_end();
            if end <= self.requester.acks.begins_at() {
                // Only READs and atomics, which their responses answer.
                self.requester.acks.note_sent(frontier, messages);
                return;
            }
            (end.wrapping_sub(1), completed, self.responder.credits.syndrome(completed))
        };
        let msn = self.msn_after(completed);
        if !self.answer.send(requester, Psn::from_sequence(psn), syndrome, msn, send) {
            return;
        }
        if nak {
            self.requester.missing.note_nak_sent();
            self.requester.silence.note_nak_sent(now);
            self.counters.sequence_naks += 1;
            shared.counters.sequence_naks += 1;
        } else if !waits {
            self.counters.pseudo_acks += 1;
            shared.counters.pseudo_acks += 1;
            self.measure_ack_delay(now, shared, frontier);
        }
        if nak || waits {
            self.requester.retries.note_nak();
        }
        self.requester.acks.note_sent(frontier, messages);
    }

    /// Returns the syndrome of the RNR NAK that is owed.
    fn take_wait(&mut self, now: Instant, shared: &mut AccelShared) -> Syndrome {
        let round_trip = self.responder.retransmission.rtt().smoothed().unwrap_or_default();
        shared.counters.rnr_naks += 1;
        self.requester.hold.take(now, &shared.config, round_trip, &self.store)
    }

    /// Measures the delay of a pseudo-ACK, just sent, for everything below `frontier`.
    fn measure_ack_delay(&mut self, now: Instant, shared: &mut AccelShared, frontier: u64) {
        let Some(delay) = self.requester.acks.measure_delay(now, frontier) else { return };
        self.counters.ack_delays += 1;
        self.counters.ack_delay_ns += delay.as_ns();
        shared.counters.ack_delays += 1;
        shared.counters.ack_delay_ns += delay.as_ns();
    }
}
