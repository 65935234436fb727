//! The connection of a target on this box's LAN: the box answers the target's READs with data that
//! the far box has fetched.
//!
//! READs answered here have numbers at the NIC, but not on the path. Responses leave in the order
//! of the NIC's numbers: an acknowledgement of anything behind a READ waits until the READ is
//! answered, and the answer waits until everything before the READ is acknowledged, because it
//! implies that.

use crate::command::Range;
use crate::held::Holdings;
use crate::initiator::{Terms, first_number};
use crate::local::{Change, Local, VERSION, changed, has_offer, path_of, with_offer};
use crate::numbering::{Numbering, PathNumber};
use crate::shared::{ConnectionId, INNER, LAN, ReadAheadShared, is_read, packets, span};
use longhaul_node::{Frame, FrameBuf, Payload, Trailer, Transmit};
use longhaul_units::{Duration, Instant, Msn, Psn};
use longhaul_wire::{
    Aeth, Bth, Head, NakCode, Opcode, Packet, Path, PathTemplate, Position, Reth, Syndrome, Verb,
};
use std::collections::VecDeque;

/// Most answers that wait, or may be requested again.
const ANSWERS_MAX: usize = 512;
/// Most responses that wait behind an answer.
const BEHIND_MAX: usize = 256;
/// How long a READ waits for its announcement while nothing is fetched for its connection. Targets
/// READ further ahead of the arriving data than the far box fetches, and a READ that passes to the
/// initiator delays all that follow by an RTT.
const PARKED_FOR: Duration = Duration::from_ms(20);
/// Most requests that wait so.
const PARKED_MAX: usize = 256;

/// A READ that this box answers.
#[derive(Clone, Copy, Debug)]
struct Answer {
    first: u64,
    end: u64,
    /// The path's number behind it.
    path: u64,
    /// First number of this run of responses, and the next one.
    run: u64,
    next: u64,
    /// The held range with its data, and the offset of the first byte.
    serial: u64,
    at: u32,
    range: Range,
    /// Messages up to it that the path does not count.
    extras: u64,
    /// READs and atomics that the NIC had begun, this one included.
    reads: u64,
}

impl Answer {
    fn is_done(&self) -> bool {
        self.next == self.end
    }

    /// Range of the held data for the response with number `next`.
    fn bytes(&self, mtu: u32) -> [usize; 2] {
        let from = (self.next - self.first) as usize * mtu as usize;
        let to = (from + mtu as usize).min(self.range.len as usize);
        [self.at as usize + from, self.at as usize + to]
    }
}

/// A READ or atomic forwarded to the initiator: the path numbers of its missing responses.
#[derive(Clone, Copy, Debug)]
struct Passed {
    next: u64,
    end: u64,
}

/// Kind of a response for the target's NIC.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Response {
    Ack,
    Nak,
    /// Data with the next expected number, and other data.
    NextData,
    Data,
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Target {
    id: ConnectionId,
    terms: Terms,
    numbering: Numbering,
    pub(crate) holdings: Holdings,
    /// The far box reads ahead: requests carry the mark.
    is_marking: bool,
    /// Number of the NIC's next request.
    next: u64,
    /// End of the NIC's forwarded requests, those behind a gap included: below it the translation
    /// of numbers is fixed.
    top: u64,
    /// On the path: everything before it is acknowledged, with the MSN of that ACK.
    acked: u64,
    msn: Msn,
    credits: Syndrome,
    answers: VecDeque<Answer>,
    /// Responses behind the first unfinished answer, with the NIC's numbers.
    behind: VecDeque<(u64, FrameBuf)>,
    /// READs and atomics that the NIC has begun.
    reads: u64,
    /// Forwarded READs and atomics with missing responses.
    passed: VecDeque<Passed>,
    /// Requests of the NIC from number `next` on, and when they arrived: a READ that waits for its
    /// announcement, and what follows it.
    parked: VecDeque<(Instant, FrameBuf)>,
    /// When the far box last announced or sent data, which it does in the order of commands.
    fetched_at: Instant,
    /// The parked request whose alarm was set again.
    parked_again: Option<u64>,
    /// The far box offered to read ahead with the last command.
    is_offered: bool,
    to_nic: Option<(Path, Bth)>,
    is_queued: bool,
    has_failed: bool,
}

impl Target {
    pub(crate) fn new(id: ConnectionId, terms: Terms, ranges_max: u32) -> Self {
        let start = first_number(terms.target_psn);
        Target {
            id,
            terms,
            numbering: Numbering::new(start, ranges_max as usize),
            holdings: Holdings::default(),
            is_marking: false,
            next: start,
            top: start,
            acked: start,
            msn: Msn::new(0),
            credits: Syndrome::ACK_UNLIMITED,
            answers: VecDeque::new(),
            behind: VecDeque::new(),
            reads: 0,
            passed: VecDeque::new(),
            parked: VecDeque::new(),
            fetched_at: Instant::ZERO,
            parked_again: None,
            is_offered: false,
            to_nic: None,
            is_queued: false,
            has_failed: false,
        }
    }

    pub(crate) fn is_ready(&self) -> bool {
        self.is_marking && !self.has_failed
    }

    pub(crate) fn answering(&self) -> usize {
        self.answers.iter().filter(|answer| !answer.is_done()).count()
    }

    pub(crate) fn shift(&self) -> u64 {
        match self.numbering.to_path(self.next) {
            PathNumber::Known(path) => self.next - path,
            PathNumber::Extra { .. } | PathNumber::Gone => 0,
        }
    }

    /// Handles a request of the initiator, from the far box.
    pub(crate) fn handle_command(
        &mut self,
        shared: &mut ReadAheadShared,
        frame: &Frame<'_>,
        packet: &Packet<'_>,
    ) {
        if has_offer(packet) {
            shared.counters.connections += u64::from(!self.is_marking);
            self.is_marking = true;
            let plain = with_offer(&mut shared.pool, frame, packet, false);
            shared.send(LAN, plain);
        } else {
            shared.pass(LAN, frame);
        }
        if !frame.is_intact() {
            return;
        }
        self.is_offered = has_offer(packet);
        self.to_nic = Some((path_of(packet), packet.bth()));
        let begins = matches!(packet.opcode().position(), Position::First | Position::Only);
        if packet.opcode().verb() == Some(Verb::Send) && begins {
            let command =
                frame.payload.as_bytes().and_then(|payload| self.terms.protocol.command(payload));
            self.holdings.note_passed(shared, packet.psn(), command.as_ref());
        }
    }

    /// Handles the far box's packet about a fetch.
    pub(crate) fn handle_local(
        &mut self,
        now: Instant,
        shared: &mut ReadAheadShared,
        frame: &Frame<'_>,
        packet: &Packet<'_>,
    ) {
        let local = frame.is_intact().then(|| Local::read(packet, &frame.payload)).flatten();
        let Some((number, local)) = local.filter(|_| self.is_ready()) else {
            shared.counters.stray += 1;
            return;
        };
        self.fetched_at = now;
        match local {
            Local::Announce(announcement) => {
                if let Some(serial) = self.holdings.announce(shared, number, announcement) {
                    let at = now + shared.held_for();
                    shared.expiries.set(at, self.id, serial);
                }
                self.unpark(now, shared);
            }
            Local::Data { index } => {
                let taken = self.holdings.extend(number, index, self.terms.mtu, &frame.payload);
                shared.counters.stray += u64::from(!taken);
            }
            Local::Cancel => self.holdings.cancel(shared, number),
        }
        self.go_on(shared);
    }

    /// Ends a held range whose time has expired.
    pub(crate) fn handle_expiry(&mut self, shared: &mut ReadAheadShared, serial: u64) {
        self.holdings.expire(shared, serial);
        while let Some(index) = self.answers.iter().position(|a| a.serial == serial && a.is_done())
        {
            self.answers.remove(index);
            self.holdings.release(shared, serial);
        }
        self.go_on(shared);
    }

    /// Handles a request of the target, from its NIC.
    pub(crate) fn handle_request(
        &mut self,
        now: Instant,
        shared: &mut ReadAheadShared,
        frame: &Frame<'_>,
        packet: &Packet<'_>,
    ) {
        if !self.is_marking {
            let number = packet.psn().unwrap_near(self.next);
            if let Some(number) = number.filter(|number| *number == self.next && frame.is_intact())
            {
                self.note_begun(packet);
                self.note_passed(number, packet);
            }
            let end = number.map_or(0, |number| number + span(packet, self.terms.mtu));
            self.top = self.top.max(end);
            return shared.pass(INNER, frame);
        }
        if !frame.is_intact() {
            shared.counters.rx_icrc_encapsulated += 1;
            return;
        }
        let Some(number) = packet.psn().unwrap_near(self.next).filter(|_| !self.has_failed) else {
            return;
        };
        let is_behind = number >= self.next && !self.parked.is_empty();
        if !is_behind && !self.must_wait(shared, number, packet) {
            return self.go_on_with(shared, number, frame, packet);
        }
        if self.parked.len() >= PARKED_MAX {
            shared.counters.queue_full += 1;
            return;
        }
        let held = shared.pool.hold(frame);
        self.parked.push_back((now, held));
        shared.parked.set(now + PARKED_FOR, self.id, number);
    }

    /// `true` for a READ whose range is about to be announced.
    fn must_wait(&self, shared: &ReadAheadShared, number: u64, packet: &Packet<'_>) -> bool {
        let (Some(Verb::ReadRequest), Some(reth)) = (packet.opcode().verb(), packet.reth()) else {
            return false;
        };
        let range = Range::of(&reth);
        number == self.next
            && self.is_offered
            && self.holdings.is_expected(&range, shared.config.range_bytes_max)
    }

    /// Handles the alarm of the parked request with this number.
    pub(crate) fn handle_parked(
        &mut self,
        now: Instant,
        shared: &mut ReadAheadShared,
        number: u64,
    ) {
        self.parked_again = self.parked_again.filter(|again| *again != number);
        self.unpark(now, shared);
    }

    /// Goes on with the parked requests, up to a READ that is still to wait.
    fn unpark(&mut self, now: Instant, shared: &mut ReadAheadShared) {
        while let Some((since, frame)) = self.parked.front().cloned() {
            if let Ok(Some(packet)) = Packet::parse(frame.head())
                && let Some(number) = packet.psn().unwrap_near(self.next)
            {
                let until = since.max(self.fetched_at) + PARKED_FOR;
                if now < until && self.must_wait(shared, number, &packet) {
                    // Its own alarm may be over.
                    if now >= since + PARKED_FOR && self.parked_again != Some(number) {
                        self.parked_again = Some(number);
                        shared.parked.set(until, self.id, number);
                    }
                    return;
                }
                self.go_on_with(shared, number, &frame.as_frame(), &packet);
            }
            self.parked.pop_front();
        }
    }

    fn go_on_with(
        &mut self,
        shared: &mut ReadAheadShared,
        number: u64,
        frame: &Frame<'_>,
        packet: &Packet<'_>,
    ) {
        if number == self.next {
            self.note_begun(packet);
            self.note_end_of_command(shared, frame, packet);
            self.forget_answers(shared);
            if let (Some(Verb::ReadRequest), Some(reth)) = (packet.opcode().verb(), packet.reth()) {
                if self.take(shared, number, &reth) {
                    return;
                }
                shared.counters.reads_passed += 1;
            }
            self.note_passed(number, packet);
        }
        match self.numbering.to_path(number) {
            PathNumber::Known(path) => {
                self.top = self.top.max(number + span(packet, self.terms.mtu));
                shared.counters.renumbered += 1;
                let change = Change {
                    psn: Psn::from_sequence(path),
                    msn: None,
                    version: VERSION,
                    ack_request: packet.opcode().ends_message() && !is_read(packet),
                };
                let renumbered = changed(&mut shared.pool, frame, packet, &change);
                shared.send(INNER, renumbered);
            }
            PathNumber::Extra { first, .. } => self.answer_again(shared, number, first, packet),
            PathNumber::Gone => shared.counters.too_old += 1,
        }
    }

    fn note_passed(&mut self, number: u64, packet: &Packet<'_>) {
        let PathNumber::Known(next) = self.numbering.to_path(number) else { return };
        if is_read(packet) {
            if self.passed.len() >= 2 * self.terms.reads_max {
                self.passed.pop_front();
            }
            self.passed.push_back(Passed { next, end: next + span(packet, self.terms.mtu) });
        }
    }

    /// Notes a response to a forwarded READ. Returns `true` if `path` is the next expected number.
    fn is_next_response(&mut self, path: u64) -> bool {
        let Some(front) = self.passed.front_mut().filter(|front| front.next == path) else {
            return false;
        };
        front.next += 1;
        if front.next == front.end {
            self.passed.pop_front();
        }
        true
    }

    fn note_begun(&mut self, packet: &Packet<'_>) {
        self.next += span(packet, self.terms.mtu);
        self.reads += u64::from(is_read(packet));
    }

    fn note_end_of_command(
        &mut self,
        shared: &mut ReadAheadShared,
        frame: &Frame<'_>,
        packet: &Packet<'_>,
    ) {
        let begins = matches!(packet.opcode().position(), Position::First | Position::Only);
        if packet.opcode().verb() == Some(Verb::Send) && begins {
            let answered =
                frame.payload.as_bytes().and_then(|payload| self.terms.protocol.answered(payload));
            self.holdings.end_command(shared, answered, packet.invalidate());
        }
    }

    /// Forgets finished answers that the NIC must have received: READs are answered in order, and
    /// the number outstanding is limited.
    fn forget_answers(&mut self, shared: &mut ReadAheadShared) {
        while let Some(answer) = self.answers.front().copied() {
            if !answer.is_done() || self.reads < answer.reads + self.terms.reads_max as u64 {
                return;
            }
            self.answers.pop_front();
            self.holdings.release(shared, answer.serial);
        }
    }

    /// Answers the READ with the next number, `number`, here. Returns `false` if its data is not
    /// held.
    fn take(&mut self, shared: &mut ReadAheadShared, number: u64, reth: &Reth) -> bool {
        let range = Range::of(reth);
        let PathNumber::Known(path) = self.numbering.to_path(number) else { return false };
        let acked_nic = self.numbering.to_nic(self.acked).unwrap_or(0);
        let is_room = self.answers.len() < ANSWERS_MAX && self.numbering.has_room(acked_nic);
        if range.len == 0 || !is_room || number < self.top {
            return false;
        }
        let Some((serial, at)) = self.holdings.claim(&range) else { return false };
        let len = packets(range.len, self.terms.mtu);
        self.numbering.push(number, len, acked_nic);
        self.answers.push_back(Answer {
            first: number,
            end: number + len,
            path,
            run: number,
            next: number,
            serial,
            at,
            range,
            extras: self.numbering.count_to(number),
            reads: self.reads,
        });
        shared.counters.answered += 1;
        self.go_on(shared);
        true
    }

    /// Answers again the READ at `first`, of which the NIC requests the rest from `number` on.
    fn answer_again(
        &mut self,
        shared: &mut ReadAheadShared,
        number: u64,
        first: u64,
        packet: &Packet<'_>,
    ) {
        let Some(answer) = self.answers.iter_mut().find(|answer| answer.first == first) else {
            shared.counters.too_old += 1;
            return;
        };
        let skipped = (number - first) * u64::from(self.terms.mtu);
        let rest = Range {
            address: answer.range.address + skipped,
            len: answer.range.len - skipped as u32,
            ..answer.range
        };
        let asked = packet.reth().map(|reth| Range::of(&reth));
        if asked != Some(rest) {
            shared.counters.stray += 1;
            return;
        }
        if answer.is_done() || answer.next > number {
            (answer.run, answer.next) = (number, number);
            shared.counters.answered_again += 1;
        }
        self.go_on(shared);
    }

    /// Handles a response for the NIC, from the far box or an accelerator.
    pub(crate) fn handle_response(
        &mut self,
        shared: &mut ReadAheadShared,
        frame: &Frame<'_>,
        packet: &Packet<'_>,
    ) {
        if !frame.is_intact() {
            shared.counters.rx_icrc_encapsulated += 1;
            return;
        }
        let Some(path) = packet.psn().unwrap_near(self.acked) else { return };
        let aeth = packet.aeth();
        let is_ack = aeth.is_none_or(|aeth| matches!(aeth.syndrome, Syndrome::Ack { .. }));
        let below = path + u64::from(is_ack);
        if below >= self.acked {
            self.acked = below;
            if let Some(aeth) = aeth {
                self.msn = aeth.msn;
                if is_ack {
                    self.credits = aeth.syndrome;
                }
            }
        }
        let Some(nic) = self.numbering.to_nic(path) else {
            shared.counters.too_old += 1;
            return;
        };
        let extras = self.numbering.count_to(nic);
        let held = if extras == 0 {
            shared.pool.hold(frame)
        } else {
            shared.counters.renumbered += 1;
            let msn = aeth.map(|aeth| aeth.msn.plus(extras as u32));
            let change = Change {
                psn: Psn::from_sequence(nic),
                msn,
                version: packet.bth().version,
                ack_request: false,
            };
            changed(&mut shared.pool, frame, packet, &change)
        };
        let kind = match packet.opcode().verb() {
            Some(Verb::Acknowledge) if is_ack => Response::Ack,
            Some(Verb::Acknowledge) => Response::Nak,
            _ if self.is_next_response(path) => Response::NextData,
            _ => Response::Data,
        };
        self.pass_in_order(shared, nic, held, kind);
        self.go_on(shared);
    }

    /// Forwards a response, or keeps it until the answers before it are complete.
    fn pass_in_order(
        &mut self,
        shared: &mut ReadAheadShared,
        nic: u64,
        frame: FrameBuf,
        kind: Response,
    ) {
        if self.first_open().is_none_or(|answer| nic < answer.first) {
            return shared.send(LAN, frame);
        }
        // Data behind a gap is useless to the NIC. If it were kept until the gap closes, the NIC
        // would accept it, while the accelerators, which saw it out of order, wait for its
        // repetition.
        if kind == Response::Data {
            return;
        }
        // An ACK replaces the ACK before it, unless an answered READ lies between them.
        if kind == Response::Ack
            && let Some((last, kept)) = self.behind.back_mut()
            && *last <= nic
            && is_ack(kept)
            && !self.answers.iter().any(|answer| answer.first > *last && answer.first <= nic)
        {
            (*last, *kept) = (nic, frame);
            return;
        }
        if self.behind.len() >= BEHIND_MAX {
            shared.counters.queue_full += 1;
            return;
        }
        self.behind.push_back((nic, frame));
    }

    fn first_open(&self) -> Option<&Answer> {
        self.answers.iter().find(|answer| !answer.is_done())
    }

    /// Queues the connection for sending if it has a response to send.
    fn go_on(&mut self, shared: &mut ReadAheadShared) {
        if self.is_queued || self.has_failed {
            return;
        }
        let can_go_on = self.first_open().is_some_and(|answer| {
            let held = self.holdings.get(answer.serial);
            let to = answer.bytes(self.terms.mtu)[1];
            answer.path <= self.acked
                && held.is_none_or(|held| held.data.len() >= to || held.is_ended)
        });
        if can_go_on {
            self.is_queued = true;
            shared.answering.push_back(self.id);
        }
    }

    /// Sends up to `room` responses. Returns their number.
    pub(crate) fn send_answers(
        &mut self,
        shared: &mut ReadAheadShared,
        out: &mut dyn Transmit,
        room: usize,
    ) -> usize {
        self.is_queued = false;
        let mut sent = 0;
        while sent < room {
            let Some(index) = self.answers.iter().position(|answer| !answer.is_done()) else {
                break;
            };
            if self.answers[index].path > self.acked || !self.send_one(shared, out, index) {
                break;
            }
            sent += 1;
            if self.answers[index].is_done() {
                self.send_behind(shared);
                // Responses kept behind this answer leave before the next one.
                break;
            }
        }
        if sent > 0 {
            self.go_on(shared);
        }
        sent
    }

    /// Sends the next response of the answer at `index`. Returns `false` if its data is missing.
    fn send_one(
        &mut self,
        shared: &mut ReadAheadShared,
        out: &mut dyn Transmit,
        index: usize,
    ) -> bool {
        let answer = self.answers[index];
        let [from, to] = answer.bytes(self.terms.mtu);
        let held = self.holdings.get(answer.serial);
        let Some(data) = held.and_then(|held| held.data.part(from, to)) else {
            if held.is_none_or(|held| held.is_ended) {
                self.fail(shared, &answer);
            }
            return false;
        };
        let Some((path, like)) = &self.to_nic else { return false };
        let is_last = answer.next + 1 == answer.end;
        let opcode = match (answer.next == answer.run, is_last) {
            (true, true) => Opcode::RC_READ_RESPONSE_ONLY,
            (true, false) => Opcode::RC_READ_RESPONSE_FIRST,
            (false, false) => Opcode::RC_READ_RESPONSE_MIDDLE,
            (false, true) => Opcode::RC_READ_RESPONSE_LAST,
        };
        let psn = Psn::from_sequence(answer.next);
        let bth = Bth {
            migreq: like.migreq,
            pkey: like.pkey,
            ..Bth::new(opcode, self.terms.target_qpn, psn)
        };
        let template = PathTemplate::new(path);
        let mut head = Head::begin(&template, &bth);
        if opcode.has_aeth() {
            let msn = self.msn.plus(answer.extras as u32);
            head.push_aeth(&Aeth { syndrome: self.credits, msn });
        }
        let pad_len = head.finish(&template, data.len());
        let trailer = Trailer::Sealed { pad_len };
        out.transmit(LAN, &Frame { head: head.bytes(), payload: data, trailer });
        shared.counters.answered_bytes += data.len() as u64;
        self.answers[index].next += 1;
        true
    }

    /// Sends the responses that waited for a finished answer.
    fn send_behind(&mut self, shared: &mut ReadAheadShared) {
        let open = self.first_open().map(|answer| answer.first);
        while let Some((nic, _)) = self.behind.front() {
            if open.is_some_and(|first| *nic >= first) {
                return;
            }
            if let Some((_, frame)) = self.behind.pop_front() {
                shared.send(LAN, frame);
            }
        }
    }

    /// Ends the connection, because the data of a READ without path numbers will not arrive.
    fn fail(&mut self, shared: &mut ReadAheadShared, answer: &Answer) {
        shared.counters.answers_failed += 1;
        self.has_failed = true;
        if let Some((path, like)) = &self.to_nic {
            let psn = Psn::from_sequence(answer.next);
            let bth = Bth {
                migreq: like.migreq,
                pkey: like.pkey,
                ..Bth::new(Opcode::RC_ACK, self.terms.target_qpn, psn)
            };
            let template = PathTemplate::new(path);
            let mut head = Head::begin(&template, &bth);
            let msn = self.msn.plus(answer.extras as u32 - 1);
            head.push_aeth(&Aeth { syndrome: Syndrome::Nak(NakCode::RemoteOperational), msn });
            let pad_len = head.finish(&template, 0);
            let trailer = Trailer::Sealed { pad_len };
            shared.pass(LAN, &Frame { head: head.bytes(), payload: Payload::EMPTY, trailer });
        }
        self.clear(shared);
    }

    /// Releases all answers and held data.
    pub(crate) fn clear(&mut self, shared: &mut ReadAheadShared) {
        self.answers.clear();
        self.behind.clear();
        self.parked.clear();
        self.holdings.clear(shared);
    }
}

fn is_ack(frame: &FrameBuf) -> bool {
    let packet = Packet::parse(frame.head()).ok().flatten();
    packet
        .and_then(|packet| packet.aeth())
        .is_some_and(|aeth| matches!(aeth.syndrome, Syndrome::Ack { .. }))
        && packet.is_some_and(|packet| packet.opcode().verb() == Some(Verb::Acknowledge))
}
