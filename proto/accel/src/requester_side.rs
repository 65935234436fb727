//! What a terminated flow does with requests from the LAN, and what it answers.

use crate::flow::{Flow, Gap, Probe, Replay, UnresolvedRead, credits_left};
use crate::lives::{REPEATED_APART, REPEATS_MAX};
use crate::policy::Duty;
use crate::shared::Shared;
use crate::store::{ENTRY_OVERHEAD, Kind};
use crate::trace::Requested;
use crate::{DropReason, FlowState};
use longhaul_node::{Frame, FrameBuf, FramePool};
use longhaul_units::{Duration, Instant, Psn};
use longhaul_wire::{NakCode, Opcode, Packet, Position, Syndrome, Verb, credit_code};

/// A gap of more PSNs than this, with nothing undelivered, is a QP that begins anew rather than
/// loss on a LAN.
pub(crate) const GAP_MAX: u64 = 4096;
/// A packet this far ahead of or behind what is expected belongs to another life of the QP.
pub(crate) const WINDOW: u64 = 1 << 22;
/// Time after which a failed flow is learnt afresh.
const FAILED_FOR: Duration = Duration::from_ms(60_000);
/// Shortest local ACK timeout that NICs are set to.
pub(crate) const ACK_TIMEOUT_MIN: Duration = Duration::from_ms(4);
/// Path MTUs that exist, in bytes.
const MTUS: [u32; 5] = [256, 512, 1024, 2048, 4096];

/// What a request packet means for the store.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Request {
    pub(crate) kind: Kind,
    /// PSNs that it takes; `None` while the path MTU of a READ is not known.
    pub(crate) span: Option<u64>,
    pub(crate) ends: bool,
    pub(crate) ack_request: bool,
    /// DMA length of a READ.
    pub(crate) read_len: u32,
}

impl Request {
    /// What learning a flow needs of it.
    pub(crate) fn requested(&self, seq: u64) -> Requested {
        Requested { seq, span: self.span, span_max: read_span_max(self.read_len), ends: self.ends }
    }

    fn of(packet: &Packet<'_>, path_mtu: Option<u32>) -> Request {
        let opcode = packet.opcode();
        let mut request = Request {
            kind: Kind::Plain,
            span: Some(1),
            ends: opcode.ends_message(),
            ack_request: packet.bth().ack_request,
            read_len: 0,
        };
        match opcode.verb() {
            Some(Verb::ReadRequest) => {
                request.kind = Kind::Response;
                request.read_len = packet.reth().map_or(0, |reth| reth.len);
                request.span = read_span(request.read_len, path_mtu);
            }
            Some(Verb::CmpSwap | Verb::FetchAdd) => request.kind = Kind::Response,
            Some(Verb::Write)
                if opcode == Opcode::RC_WRITE_ONLY
                    && packet.reth().is_some_and(|reth| reth.len == 0) =>
            {
                request.kind = Kind::EndToEnd;
            }
            _ => {}
        }
        request
    }
}

/// PSNs that a READ of `len` bytes takes; without a path MTU only what is the same for every MTU.
fn read_span(len: u32, path_mtu: Option<u32>) -> Option<u64> {
    match path_mtu {
        Some(mtu) => Some(u64::from(len.div_ceil(mtu).max(1))),
        None if len <= MTUS[0] => Some(1),
        None => None,
    }
}

/// PSNs that a READ of `len` bytes takes at most.
pub(crate) fn read_span_max(len: u32) -> u64 {
    u64::from(len.div_ceil(MTUS[0]).max(1))
}

fn is_answered_by_data(packet: &Packet<'_>) -> bool {
    matches!(packet.opcode().verb(), Some(Verb::ReadRequest | Verb::CmpSwap | Verb::FetchAdd))
}

impl Flow {
    /// What `packet` means for this flow's store.
    pub(crate) fn request_of(&self, packet: &Packet<'_>) -> Request {
        let mut request = Request::of(packet, self.path_mtu);
        if self.duty == Duty::AcknowledgeButLast && request.ends && request.kind == Kind::Plain {
            request.kind = Kind::EndToEnd;
        }
        request
    }

    /// The request that this flow expects came, with a right ICRC, and the flow [only
    /// stores](Flow::only_stores).
    #[inline]
    pub(crate) fn store_next(
        &mut self,
        now: Instant,
        shared: &mut Shared,
        frame: &Frame<'_>,
        packet: &Packet<'_>,
    ) {
        self.used = true;
        self.learn_path_mtu(packet, frame.payload.len());
        self.answer.learn_from_request(packet);
        let request = self.request_of(packet);
        self.lan_next = self.store.end() + request.span.unwrap_or(1);
        self.accept(now, shared, frame, request, packet);
    }

    /// A request of this flow came from the LAN, with a right ICRC.
    pub(crate) fn handle_request(
        &mut self,
        now: Instant,
        shared: &mut Shared,
        frame: &Frame<'_>,
        packet: &Packet<'_>,
    ) {
        self.used = true;
        if !self.mode_is_final {
            self.settle_mode(&shared.config, packet);
        }
        self.learn_path_mtu(packet, frame.payload.len());
        if self.state == FlowState::Passing {
            let may_be_taken_in =
                self.aside_from.is_some() && !shared.draining && !self.told.has_alternate;
            if may_be_taken_in || self.passes_another_life(packet) {
                self.restart_learning(now, shared, packet);
            }
        }
        if self.state == FlowState::Passing {
            return self.pass_request(now, shared, frame, packet);
        }
        self.answer.learn_from_request(packet);
        if self.state == FlowState::Failed {
            self.refuse(now, shared, packet);
        }
        if self.state == FlowState::Terminated && self.unresolved_read.is_some() {
            self.resolve_by_request(packet);
        }
        let seq = self.sequence_of(packet);
        let request = self.request_of(packet);
        if seq < self.lan_next && self.goes_back_one_way(now, seq) {
            self.pass_one_way(now, shared);
            return self.pass_request(now, shared, frame, packet);
        }
        self.lan_next = seq + request.span.unwrap_or(1);
        let expected = self.store.end();
        if seq > expected && self.lives.acked_elsewhere == Some(seq - 1) {
            // It goes on behind what it knows to be delivered.
            self.release_all_below(shared, expected);
            self.restart_learning(now, shared, packet);
        }
        if self.state == FlowState::Terminated && self.begins_anew(packet, seq) {
            shared.counters.flows_reset += 1;
            self.restart_learning(now, shared, packet);
            if let Some(learning) = self.learning.as_mut().filter(|_| seq < expected) {
                learning.may_go_back_from(now, expected);
            }
        }
        self.lan_latest = self.lan_latest.max(self.lan_next);
        if self.state == FlowState::Terminated && self.makes_wait(seq) {
            return self.drop_frame(shared, DropReason::NotReady);
        }
        match self.state {
            FlowState::Learning => self.watch_request(now, shared, frame, packet),
            FlowState::Passing => self.pass_request(now, shared, frame, packet),
            FlowState::Failed => {}
            FlowState::Terminated if self.unresolved_read.is_some() && seq >= expected => {
                // Asked for again once the READ is answered.
                self.nak_owed = true;
                self.drop_frame(shared, DropReason::PsnGap);
            }
            FlowState::Terminated if seq == expected => {
                self.accept(now, shared, frame, request, packet)
            }
            FlowState::Terminated if seq > expected => self.note_gap(now, shared, seq),
            FlowState::Terminated => self.handle_duplicate(now, shared, frame, packet, seq),
        }
    }

    /// True when `packet` of a flow that passes cannot go on from the one before, so that the mode
    /// is looked up again.
    fn passes_another_life(&self, packet: &Packet<'_>) -> bool {
        if self.delivers_remains() {
            // To be told apart as one that stores is.
            return false;
        }
        let seq = packet.psn().unwrap_near(self.lan_next).unwrap_or(0);
        seq > self.lan_next + GAP_MAX || self.lan_next > seq + WINDOW
    }

    /// A request of a flow whose mode is to pass it.
    fn pass_request(
        &mut self,
        now: Instant,
        shared: &mut Shared,
        frame: &Frame<'_>,
        packet: &Packet<'_>,
    ) {
        let seq = packet.psn().unwrap_near(self.lan_next).unwrap_or(0);
        let request = self.request_of(packet);
        self.note_passing(seq);
        self.lan_next = seq + request.span.unwrap_or(1);
        self.lan_latest = self.lan_latest.max(self.lan_next);
        self.trace(now, shared, seq, &request);
        self.counters.passed_packets += 1;
        shared.counters.passed += 1;
        shared.pass_to_wan(frame);
    }

    /// A requester that goes back begins with the first packet that it misses an answer to. If that
    /// lies behind a repeated READ, the READ's answers have come. True when they come another way.
    #[cold]
    fn goes_back_one_way(&mut self, now: Instant, seq: u64) -> bool {
        if self.replay.is_some_and(|replay| replay.last < seq) {
            self.replay = None;
        }
        self.shows_one_way(now, seq)
    }

    /// First and middle packets of a message are as long as the path MTU.
    pub(crate) fn learn_path_mtu(&mut self, packet: &Packet<'_>, payload_len: usize) {
        if matches!(packet.opcode().position(), Position::First | Position::Middle) {
            self.set_path_mtu(payload_len);
        }
    }

    pub(crate) fn set_path_mtu(&mut self, bytes: usize) {
        let known = MTUS.into_iter().find(|&mtu| mtu as usize == bytes);
        self.path_mtu = known.or(self.path_mtu);
    }

    /// True when `seq` may come from another life of the requester, and nothing is lost by learning
    /// it afresh.
    fn begins_anew(&self, packet: &Packet<'_>, seq: u64) -> bool {
        let expected = self.store.end();
        if seq == expected
            || !self.store.is_empty()
            || (self.store_was_full && self.may_be_sent(seq))
        {
            return false;
        }
        if seq < expected {
            // With everything delivered the responder itself can answer, whoever asks.
            return !self.started || !is_answered_by_data(packet) || !self.may_be_sent(seq);
        }
        self.gap.is_some_and(|gap| gap.revealed_by == seq)
            || self.lives.repeated.is_some_and(|repeated| repeated.seq == seq)
            || !self.may_be_sent(seq)
    }

    /// While a READ's length in PSNs is unknown, the next request shows it, or one that shows the
    /// path MTU. Those behind the next are not looked at: they may lie where another MTU has the
    /// next.
    fn resolve_by_request(&mut self, packet: &Packet<'_>) {
        let Some(UnresolvedRead { len, for_long }) = self.unresolved_read else { return };
        // The stored READ counts as one PSN until then.
        let first = self.store.end() - 1;
        let Some(distance) = packet.psn().unwrap_near(first).and_then(|seq| seq.checked_sub(first))
        else {
            return;
        };
        let is_fitting = |mtu: &u32| read_span(len, Some(*mtu)) == Some(distance);
        // Where it is not the MTU that was told, the LAN may have lost requests: the response
        // tells.
        let may_tell = !for_long && self.told.path_mtu.is_none_or(|told| is_fitting(&told));
        let by_distance = Some(distance).filter(|_| may_tell && MTUS.iter().any(is_fitting));
        if let Some(span) = self.path_mtu.and_then(|mtu| read_span(len, Some(mtu))).or(by_distance)
        {
            self.store.resolve_span(span);
            self.unresolved_read = None;
        }
        if let Some(read) = &mut self.unresolved_read {
            read.for_long |= distance > 0;
        }
    }

    /// The length of a READ response's first packet shows the path MTU, and with it the range of a
    /// stored READ.
    pub(crate) fn resolve_by_response(&mut self, packet: &Packet<'_>, payload_len: usize) {
        let position = packet.opcode().position();
        if matches!(position, Position::First | Position::Middle) {
            self.set_path_mtu(payload_len);
        }
        let Some(UnresolvedRead { len, .. }) = self.unresolved_read else { return };
        // The unresolved READ is the last packet stored; earlier ones are answered before it.
        let first = self.store.end() - 1;
        let Some(distance) = packet.psn().unwrap_near(first).and_then(|seq| seq.checked_sub(first))
        else {
            return;
        };
        // Nothing behind it was sent.
        let ends_it = matches!(position, Position::Only | Position::Last);
        let fits = |span: &u64| MTUS.iter().any(|&mtu| read_span(len, Some(mtu)) == Some(*span));
        let span = if ends_it { Some(distance + 1) } else { read_span(len, self.path_mtu) };
        if let Some(span) = span.filter(fits) {
            self.store.resolve_span(span);
            self.unresolved_read = None;
        }
    }

    fn accept(
        &mut self,
        now: Instant,
        shared: &mut Shared,
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
            self.alive_at = now;
        }
        self.allowance.note_busy(now);
        if !self.started {
            self.started = true;
            self.lives.request_port = packet.udp_source_port();
        }
        self.gap = None;
        self.lives.repeated = None;
        self.nak_owed = false;
        self.store_was_full = false;
        self.hold.note_accepted();
        if request.span.is_none() {
            self.unresolved_read = Some(UnresolvedRead { len: request.read_len, for_long: false });
        }
        self.store.wake(&mut shared.spare);
        // Twice the same, so that what a port lends is put together where it stays: moved in other
        // pieces than it was stored in, it would wait for all stores before it.
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
        if request.kind != Kind::Response {
            self.since_ack += 1;
            if request.ack_request || self.since_ack >= shared.config.ack_every {
                self.wanted_to = self.store.end();
                if self.wish.is_none_or(|(to, _)| to <= self.acked_to) {
                    self.wish = Some((self.wanted_to, now));
                }
            }
        }
        self.advance_frontier(now, shared);
        self.note_stored_while_not_ready();
    }

    #[cold]
    fn refuse_for_room(&mut self, now: Instant, shared: &mut Shared, frame: &Frame<'_>) {
        if self.was_never_answered() {
            self.pass_one_way(now, shared);
            self.counters.passed_packets += 1;
            shared.counters.passed += 1;
            return shared.pass_to_wan(frame);
        }
        self.lan_latest = self.lan_latest.max(self.lan_next);
        self.store_was_full = true;
        self.refused_at = Some(now);
        self.note_refused(now, self.store.end());
        shared.shares.count_refused(self.tenant);
        self.drop_frame(shared, DropReason::StoreFull);
    }

    #[inline]
    pub(crate) fn count_stored(&mut self, shared: &mut Shared, payload_len: usize) {
        self.counters.stored_packets += 1;
        self.counters.stored_payload_bytes += payload_len as u64;
        shared.counters.stored_packets += 1;
        shared.counters.stored_payload_bytes += payload_len as u64;
    }

    pub(crate) fn has_room(&self, shared: &Shared, payload_len: usize, span: u64) -> bool {
        let bytes = (FramePool::footprint(payload_len) + ENTRY_OVERHEAD) as u64;
        self.store.bytes() + bytes <= shared.config.flow_bytes_max
            // Other flows' stores do not stop this one altogether.
            && shared.shares.has_room(&shared.config, self.tenant, bytes, self.store.is_empty())
            && (self.store.psns() + span <= u64::from(shared.config.flow_psns_max)
                // The longest READ of all fits at least when it is alone.
                || (self.store.is_empty() && span <= 1 << 23))
    }

    /// Lets pseudo-ACKs follow the store, unless the responder is too far behind.
    ///
    /// While they are withheld, [`Config::ack_hold_max`](crate::Config::ack_hold_max) bounds the
    /// time between two advances of the frontier: deliveries that free too little for the next
    /// advance do not restart it.
    pub(crate) fn advance_frontier(&mut self, now: Instant, shared: &Shared) {
        let config = &shared.config;
        let high = shared.shares.flow_high(config, self.tenant, config.flow_high());
        let before = self.store.frontier().0;
        let is_withheld = if shared.draining {
            self.store.owes_delivery()
        } else {
            self.store.advance_frontier(high.min(self.allowance.bytes(config)))
        };
        if !is_withheld {
            self.withheld_until = None;
        } else if self.withheld_until.is_none() || self.store.frontier().0 > before {
            self.withheld_until = Some(now + self.ack_hold(shared));
        }
    }

    /// One sequence NAK per gap; and one more if the requester seems not to have got it.
    fn note_gap(&mut self, now: Instant, shared: &mut Shared, seq: u64) {
        if self.store_was_full {
            // The NAK comes when there is room.
            self.drop_frame(shared, DropReason::StoreFull);
            return;
        }
        match self.gap {
            Some(gap) if gap.revealed_by == seq => self.nak_owed = true,
            Some(_) => {}
            None => {
                self.gap = Some(Gap { revealed_by: seq });
                self.nak_owed = true;
                shared.counters.out_of_sequence += 1;
            }
        }
        self.note_repeated(now, seq);
        self.drop_frame(shared, DropReason::PsnGap);
    }

    fn handle_duplicate(
        &mut self,
        now: Instant,
        shared: &mut Shared,
        frame: &Frame<'_>,
        packet: &Packet<'_>,
        seq: u64,
    ) {
        if is_answered_by_data(packet) {
            self.handle_repeated_request(now, shared, frame, packet, seq);
            return;
        }
        if seq >= self.store.frontier().0 {
            self.ask_for_requester(now);
        } else if seq < self.acked_to && self.replay.is_none() {
            self.note_repeated(now, seq);
        }
        self.ack_again = true;
        shared.counters.duplicate_request += 1;
        self.drop_frame(shared, DropReason::Duplicate);
    }

    /// The requester repeats what only the responder can answer: its timer has ended, and so has
    /// the patience of this box, which without it would be the requester's.
    fn ask_for_requester(&mut self, now: Instant) {
        let asked_at = match self.probe {
            Probe::Due | Probe::Answered(_) => return,
            Probe::Sent(at) => at,
            Probe::None => self.timer_base,
        };
        let overdue = now.since(asked_at)
            >= self.rtt.smoothed().map_or(ACK_TIMEOUT_MIN, |rtt| rtt.max(REPEATED_APART));
        if overdue && self.store.is_outstanding() && self.rnr_until.is_none() {
            self.probe = Probe::Due;
        }
    }

    /// A READ or atomic that came before. It goes through when its original is not about to be
    /// answered.
    fn handle_repeated_request(
        &mut self,
        now: Instant,
        shared: &mut Shared,
        frame: &Frame<'_>,
        packet: &Packet<'_>,
        seq: u64,
    ) {
        self.ask_for_requester(now);
        let patience = match self.rtt.smoothed() {
            Some(_) => self.rtt.patience(&shared.config),
            None => ACK_TIMEOUT_MIN,
        };
        let overdue = |sent_at: Instant| now.since(sent_at) >= patience;
        let span = self.request_of(packet).span.unwrap_or(1);
        let last = seq + span - 1;
        let resolved = self.unresolved_read.is_none();
        if let Some(awaited) = self.store.awaited_at(seq).copied() {
            let asks_again = seq < awaited.next;
            let lost = awaited.recover_at.is_some() || asks_again;
            let fits = !resolved || awaited.last == last;
            if !fits || !awaited.sent_at.is_some_and(|at| lost || overdue(at)) {
                self.drop_frame(shared, DropReason::ReadInFlight);
                return;
            }
            let Some(held) = shared.hold(frame) else { return };
            self.store.replace_request(seq, held.clone());
            self.store.count_request_sent(seq, now);
            self.resent_at = now;
            if asks_again {
                self.note_replay(now, seq, last);
            }
            shared.queue_to_wan(held);
        } else {
            if self.replay.is_some_and(|r| (r.first..=r.last).contains(&seq) && !overdue(r.at)) {
                self.drop_frame(shared, DropReason::ReadInFlight);
                return;
            }
            self.note_replay(now, seq, last);
            shared.pass_to_wan(frame);
        }
        shared.counters.reads_replayed += 1;
    }

    /// Responses from `first` to `last` have passed, and are asked for again: until they have come
    /// again, an ACK for anything behind them would tell the requester that they are lost.
    fn note_replay(&mut self, now: Instant, first: u64, last: u64) {
        let first = self.replay.map_or(first, |replay| replay.first.min(first));
        let last = self.replay.map_or(last, |replay| replay.last.max(last));
        self.replay = Some(Replay { first, last, at: now });
    }

    /// A request of a failed flow.
    fn refuse(&mut self, now: Instant, shared: &mut Shared, packet: &Packet<'_>) {
        let seq = self.sequence_of(packet);
        self.note_repeated(now, seq);
        let is_another_life = !self.may_be_sent(seq)
            || self.lives.repeated.is_some_and(|repeated| repeated.times >= REPEATS_MAX)
            || self.comes_by_another_port(packet);
        if is_another_life || now.since(self.failed_at) >= FAILED_FOR {
            shared.counters.flows_reset += 1;
            self.restart_learning(now, shared, packet);
            return;
        }
        self.fatal_owed = true;
        self.drop_frame(shared, DropReason::FlowFailed);
    }

    /// Sends what [`Flow::owes_requester`] says, as one packet.
    pub(crate) fn answer_requester(
        &mut self,
        now: Instant,
        shared: &mut Shared,
        send: impl FnOnce(&Frame<'_>),
    ) {
        let Some(requester) = self.requester_qpn else { return };
        let (frontier, messages) = self.store.frontier();
        let nak = self.nak_is_due();
        let waits = !nak && self.owes_wait();
        let (psn, syndrome, messages) = if self.fatal_owed {
            (self.acked_to, Syndrome::Nak(self.fatal_code), self.acked_messages)
        } else if nak {
            (frontier, Syndrome::Nak(NakCode::PsnSequence), messages)
        } else if waits {
            (frontier, self.take_wait(now, shared), messages)
        } else {
            (frontier.wrapping_sub(1), self.acknowledgement(messages), messages)
        };
        let msn = self.msn_after(messages);
        if !self.answer.send(requester, Psn::from_sequence(psn), syndrome, msn, send) {
            return;
        }
        if self.fatal_owed {
            self.fatal_owed = false;
            self.counters.fatal_naks += 1;
            shared.counters.fatal_naks += 1;
            return;
        }
        if nak {
            self.nak_owed = false;
            self.counters.sequence_naks += 1;
            shared.counters.sequence_naks += 1;
        } else if !waits {
            self.counters.pseudo_acks += 1;
            shared.counters.pseudo_acks += 1;
            self.measure_ack_delay(now, shared, frontier);
        }
        self.acked_to = self.acked_to.max(frontier);
        self.acked_messages = self.acked_messages.max(messages);
        self.ack_again = false;
        self.since_ack = 0;
    }

    /// A pseudo-ACK for everything below `frontier` has left.
    fn measure_ack_delay(&mut self, now: Instant, shared: &mut Shared, frontier: u64) {
        let Some((_, since)) = self.wish.take_if(|(to, _)| *to <= frontier) else { return };
        let delay = now.since(since);
        let smoothed =
            self.ack_delay.map(|before| before.times(7).divided_by(8) + delay.divided_by(8));
        self.ack_delay = Some(smoothed.unwrap_or(delay));
        self.counters.ack_delays += 1;
        self.counters.ack_delay_ns += delay.as_ns();
        shared.counters.ack_delays += 1;
        shared.counters.ack_delay_ns += delay.as_ns();
    }

    /// Credits are what the responder's limit leaves; a pseudo-ACK promises no more than the
    /// responder did.
    fn acknowledgement(&self, messages: u64) -> Syndrome {
        match self.credit_limit {
            None => Syndrome::ACK_UNLIMITED,
            Some(limit) => {
                Syndrome::Ack { credit_code: credit_code(credits_left(limit, messages)) }
            }
        }
    }
}
