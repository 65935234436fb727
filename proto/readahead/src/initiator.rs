//! The connection of an initiator on this box's LAN: the box requests the data that the initiator's
//! commands announce from its NIC.
//!
//! Fetches have numbers at the NIC, but not on the path. When the target goes back, fetches that
//! the NIC has not executed are repeated in their place.

use crate::command::{Command, Protocol, Range};
use crate::local::{
    Announcement, Change, Local, NUMBERS, PACKETS_MAX, VERSION, changed, path_of, with_offer,
};
use crate::numbering::{Numbering, PathNumber};
use crate::shared::{ConnectionId, INNER, LAN, ReadAheadShared, is_read, packets, span};
use longhaul_node::{Frame, FrameBuf, Payload, Trailer};
use longhaul_units::{Instant, Psn, Qpn};
use longhaul_wire::{
    Bth, Head, NakCode, Opcode, Packet, Path, PathTemplate, Position, Reth, Syndrome, Verb,
};
use std::collections::VecDeque;

/// Initial numbers and limits of a connection.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Terms {
    pub(crate) protocol: Protocol,
    pub(crate) initiator_qpn: Qpn,
    pub(crate) target_qpn: Qpn,
    /// First PSN of the initiator's requests, and of the target's.
    pub(crate) initiator_psn: Psn,
    pub(crate) target_psn: Psn,
    pub(crate) mtu: u32,
    /// READs that the target may have outstanding, which the initiator's NIC serves at once.
    pub(crate) reads_max: usize,
}

/// The unwrapped number of a first PSN.
pub(crate) fn first_number(psn: Psn) -> u64 {
    (1 << 32) + u64::from(psn.get())
}

/// An announced range that waits to be fetched.
#[derive(Clone, Copy, Debug)]
struct Wanted {
    announcement: Announcement,
}

/// A range requested from the NIC, and not yet complete.
#[derive(Clone, Copy, Debug)]
struct Fetch {
    number: u16,
    /// READs that the NIC had received before it.
    read: u64,
    command: u32,
    range: Range,
    first: u64,
    end: u64,
    /// Number of the next response.
    next: u64,
    /// Repetitions without progress.
    tries: u32,
    /// Repetitions while the NIC lacked earlier requests.
    waits: u32,
    /// Value of `next` when the alarm was set.
    alarm: Option<u64>,
    /// A lost response was requested again at once; further losses wait for the alarm.
    is_repeated: bool,
    /// The far box was told that no more data follows.
    is_cancelled: bool,
}

/// A READ or atomic of the target: its first number on the path, and the end of its numbers at the
/// NIC.
#[derive(Clone, Copy, Debug)]
struct Asked {
    path: u64,
    end: u64,
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Initiator {
    id: ConnectionId,
    terms: Terms,
    numbering: Numbering,
    /// Number of the initiator's next request.
    command_next: u64,
    /// Path numbers of the target's next request, and of the next one to send to the NIC; those in
    /// between wait.
    next: u64,
    forwarded: u64,
    waiting: VecDeque<FrameBuf>,
    in_message: bool,
    has_gap: bool,
    /// The first request with the far box's mark.
    marked_from: Option<u64>,
    /// The NIC has executed all requests before that one.
    is_all_marked: bool,
    /// The NIC has executed everything before this number of its own.
    executed: u64,
    /// End of the numbers last sent to the NIC.
    wire_next: u64,
    /// READs and atomics of the target without their last response.
    asked: VecDeque<Asked>,
    fetches: VecDeque<Fetch>,
    /// READs and atomics sent to the NIC, fetches included, without repetitions.
    reads: u64,
    wanted: VecDeque<Wanted>,
    to_nic: Option<(Path, Bth)>,
    to_target: Option<Path>,
    number: u16,
    is_refused: bool,
}

impl Initiator {
    pub(crate) fn new(id: ConnectionId, terms: Terms, ranges_max: u32) -> Self {
        let start = first_number(terms.target_psn);
        Initiator {
            id,
            terms,
            numbering: Numbering::new(start, ranges_max as usize),
            command_next: first_number(terms.initiator_psn),
            next: start,
            forwarded: start,
            waiting: VecDeque::new(),
            in_message: false,
            has_gap: false,
            marked_from: None,
            is_all_marked: false,
            executed: start,
            wire_next: start,
            asked: VecDeque::new(),
            fetches: VecDeque::new(),
            reads: 0,
            wanted: VecDeque::new(),
            to_nic: None,
            to_target: None,
            number: 0,
            is_refused: false,
        }
    }

    pub(crate) fn is_ready(&self) -> bool {
        self.is_all_marked && !self.is_refused
    }

    /// Notes whether all unmarked requests are executed: for good, because the numbering forgets
    /// the first marked one in time.
    fn note_all_marked(&mut self) {
        let from = self.marked_from.and_then(|from| self.numbering.to_nic(from));
        self.is_all_marked |= from.is_some_and(|from| from <= self.executed);
    }

    pub(crate) fn fetching(&self) -> usize {
        self.fetches.len()
    }

    pub(crate) fn shift(&self) -> u64 {
        self.numbering.to_nic(self.next).map_or(0, |nic| nic - self.next)
    }

    /// Handles a request of the initiator from its NIC.
    pub(crate) fn handle_command(
        &mut self,
        now: Instant,
        shared: &mut ReadAheadShared,
        frame: &Frame<'_>,
        packet: &Packet<'_>,
    ) {
        let offer = !shared.draining && !self.is_refused;
        let offering = with_offer(&mut shared.pool, frame, packet, offer);
        shared.send(INNER, offering);
        let Some(number) = packet.psn().unwrap_near(self.command_next) else { return };
        if number < self.command_next || !frame.is_intact() {
            return;
        }
        self.command_next = number + span(packet, self.terms.mtu);
        let begins = matches!(packet.opcode().position(), Position::First | Position::Only);
        if packet.opcode().verb() != Some(Verb::Send) || !begins {
            return;
        }
        self.to_target = Some(path_of(packet));
        match frame.payload.as_bytes().and_then(|payload| self.terms.protocol.command(payload)) {
            Some(command) => self.want(shared, packet.psn(), &command),
            None => self.wanted.clear(),
        }
        self.fetch(now, shared);
    }

    fn want(&mut self, shared: &mut ReadAheadShared, capsule: Psn, command: &Command) {
        // Memory that this command may name again is no longer stable.
        let ranges = command.ranges();
        self.wanted.retain(|wanted| {
            command.is_whole
                && !ranges.iter().any(|range| range.overlaps(&wanted.announcement.range))
        });
        if !command.is_stable {
            return;
        }
        for range in ranges.iter().filter(|range| range.len > 0) {
            shared.counters.announced += 1;
            let fits = range.len <= shared.config.range_bytes_max
                && range.address.checked_add(u64::from(range.len)).is_some()
                && self.wanted.len() < usize::from(shared.config.wanted_max)
                && packets(range.len, self.terms.mtu) <= PACKETS_MAX;
            if fits && self.is_ready() && !shared.draining {
                let announcement = Announcement { capsule, command: command.id, range: *range };
                self.wanted.push_back(Wanted { announcement });
            } else {
                shared.counters.left += 1;
            }
        }
    }

    /// `true` if the NIC can take another READ. It executes a READ again only while it is one of
    /// the last `reads_max`, so that no more may follow an unfinished fetch, which may be repeated.
    fn can_take_read(&self) -> bool {
        let asked = self.asked.iter().filter(|asked| asked.end > self.executed).count();
        let behind = self.fetches.front().map_or(0, |oldest| self.reads - oldest.read);
        asked + self.fetches.len() < self.terms.reads_max && behind < self.terms.reads_max as u64
    }

    /// Limits an acknowledgement built here to PSNs before the target's unanswered READs, which it
    /// would otherwise acknowledge.
    fn acknowledged_by(&self, path: u64) -> u64 {
        self.asked.iter().map(|asked| asked.path).fold(path, u64::min)
    }

    /// Requests wanted ranges from the NIC, as far as possible at present.
    fn fetch(&mut self, now: Instant, shared: &mut ReadAheadShared) {
        let fetches_max =
            usize::from(shared.config.fetches_max).min(self.terms.reads_max.saturating_sub(1));
        while !self.wanted.is_empty() {
            let is_between = !self.in_message && !self.has_gap && self.next == self.forwarded;
            let is_free = self.fetches.len() < fetches_max && self.can_take_read();
            let Some(first) = self.numbering.to_nic(self.forwarded) else { return };
            let is_known = self.is_ready()
                && first == self.wire_next
                && self.numbering.has_room(self.executed);
            if !(is_between && is_free && is_known && self.to_nic.is_some()) {
                return;
            }
            let Some(Wanted { announcement }) = self.wanted.pop_front() else { return };
            let range = announcement.range;
            let len = packets(range.len, self.terms.mtu);
            self.numbering.push(first, len, self.executed);
            let number = self.number;
            self.number = (number + 1) % NUMBERS;
            self.fetches.push_back(Fetch {
                number,
                read: self.reads,
                command: announcement.command,
                range,
                first,
                end: first + len,
                next: first,
                tries: 0,
                waits: 0,
                alarm: None,
                is_repeated: false,
                is_cancelled: false,
            });
            self.reads += 1;
            self.tell(shared, number, Local::Announce(announcement), Payload::EMPTY);
            self.ask_nic(now, shared, self.fetches.len() - 1);
            self.wire_next = first + len;
        }
    }

    /// Sends the fetch at `index` to the NIC.
    fn ask_nic(&mut self, now: Instant, shared: &mut ReadAheadShared, index: usize) {
        let Some((path, like)) = &self.to_nic else { return };
        let fetch = &mut self.fetches[index];
        let psn = Psn::from_sequence(fetch.first);
        let bth = Bth {
            migreq: like.migreq,
            pkey: like.pkey,
            ack_request: true,
            ..Bth::new(Opcode::RC_READ_REQUEST, self.terms.initiator_qpn, psn)
        };
        let template = PathTemplate::new(path);
        let mut head = Head::begin(&template, &bth);
        let Range { address, rkey, len } = fetch.range;
        head.push_reth(&Reth { virtual_address: address, rkey, len });
        let pad_len = head.finish(&template, 0);
        let frame = Frame {
            head: head.bytes(),
            payload: Payload::EMPTY,
            trailer: Trailer::Sealed { pad_len },
        };
        shared.pass(LAN, &frame);
        if fetch.alarm.is_none() {
            fetch.alarm = Some(fetch.next);
            let at = shared.retry_at(now);
            shared.retries.set(at, self.id, fetch.first);
        }
    }

    fn tell(&self, shared: &mut ReadAheadShared, number: u16, local: Local, data: Payload<'_>) {
        if let Some(path) = &self.to_target {
            let frame = local.write(&mut shared.pool, path, self.terms.target_qpn, number, data);
            shared.send(INNER, frame);
        }
    }

    fn cancel(&mut self, shared: &mut ReadAheadShared, index: usize) {
        let fetch = &mut self.fetches[index];
        if !std::mem::replace(&mut fetch.is_cancelled, true) {
            let number = fetch.number;
            shared.counters.fetches_cancelled += 1;
            self.tell(shared, number, Local::Cancel, Payload::EMPTY);
        }
    }

    fn is_executed(&self, fetch: &Fetch) -> bool {
        self.executed > fetch.first
    }

    /// Repeats the fetch at `index`, or cancels it. Returns `true` if it was removed.
    fn repeat(&mut self, now: Instant, shared: &mut ReadAheadShared, index: usize) -> bool {
        let fetch = self.fetches[index];
        if fetch.is_cancelled && self.is_executed(&fetch) {
            self.fetches.remove(index);
            return true;
        }
        // Until the NIC has what precedes the fetch, it waits for the target, not for this box: as
        // long as the data would be held.
        let config = &shared.config;
        let waits_max = shared.held_for().as_ns() / config.retry_after.as_ns().max(1);
        let lacks_earlier = self.executed < fetch.first;
        let Fetch { waits, tries, .. } = &mut self.fetches[index];
        let (tries, max) =
            if lacks_earlier { (waits, waits_max) } else { (tries, config.tries_max.into()) };
        if u64::from(*tries) >= max {
            self.cancel(shared, index);
            return false;
        }
        *tries += 1;
        shared.counters.fetches_repeated += 1;
        self.ask_nic(now, shared, index);
        false
    }

    /// Handles the alarm of the fetch at `first`.
    pub(crate) fn handle_alarm(&mut self, now: Instant, shared: &mut ReadAheadShared, first: u64) {
        let Some(index) = self.fetches.iter().position(|fetch| fetch.first == first) else {
            return;
        };
        let fetch = &mut self.fetches[index];
        let before = fetch.alarm.take();
        if before != Some(fetch.next) {
            fetch.alarm = Some(fetch.next);
            let at = shared.retry_at(now);
            shared.retries.set(at, self.id, first);
        } else if self.repeat(now, shared, index) {
            self.go_on(now, shared);
        }
    }

    /// Handles a request of the target, from the far box.
    pub(crate) fn handle_request(
        &mut self,
        now: Instant,
        shared: &mut ReadAheadShared,
        frame: &Frame<'_>,
        packet: &Packet<'_>,
    ) {
        if !frame.is_intact() {
            shared.counters.rx_icrc_encapsulated += 1;
            return;
        }
        let Some(path) = packet.psn().unwrap_near(self.next) else { return };
        let is_marked = packet.bth().version == VERSION;
        if !is_marked && self.marked_from.is_some_and(|from| path >= from) {
            shared.counters.unmarked += 1;
            return;
        }
        if path != self.next {
            self.has_gap |= path > self.next;
            if path < self.forwarded || self.waiting.is_empty() {
                self.forward(now, shared, frame, packet, path);
            }
            return;
        }
        self.has_gap = false;
        if is_marked && self.marked_from.is_none() {
            self.marked_from = Some(path);
            self.note_all_marked();
            shared.counters.connections += 1;
        }
        self.to_nic = Some((path_of(packet), packet.bth()));
        self.note_end_of_command(shared, frame, packet);
        let must_wait = !self.waiting.is_empty() || self.is_full_for(packet);
        if must_wait && self.waiting.len() >= usize::from(shared.config.waiting_max) {
            shared.counters.queue_full += 1;
            return;
        }
        self.next = path + span(packet, self.terms.mtu);
        if must_wait {
            let held = shared.pool.hold(frame);
            self.waiting.push_back(held);
        } else {
            self.forward_next(now, shared, frame, packet);
        }
        self.fetch(now, shared);
    }

    fn is_full_for(&self, packet: &Packet<'_>) -> bool {
        is_read(packet) && !self.can_take_read() && !self.fetches.is_empty()
    }

    /// Drops the announcements that end with this request of the target, an answer or its own READ:
    /// their memory may then be reused.
    fn note_end_of_command(
        &mut self,
        shared: &mut ReadAheadShared,
        frame: &Frame<'_>,
        packet: &Packet<'_>,
    ) {
        if let (Some(Verb::ReadRequest), Some(reth)) = (packet.opcode().verb(), packet.reth()) {
            let read = Range::of(&reth);
            self.wanted.retain(|wanted| !read.overlaps(&wanted.announcement.range));
            return;
        }
        let begins = matches!(packet.opcode().position(), Position::First | Position::Only);
        if packet.opcode().verb() != Some(Verb::Send) || !begins {
            return;
        }
        let invalid = packet.invalidate();
        let answered =
            frame.payload.as_bytes().and_then(|payload| self.terms.protocol.answered(payload));
        let is_over =
            |command: u32, range: &Range| answered == Some(command) || invalid == Some(range.rkey);
        self.wanted
            .retain(|wanted| !is_over(wanted.announcement.command, &wanted.announcement.range));
        for index in 0..self.fetches.len() {
            if is_over(self.fetches[index].command, &self.fetches[index].range) {
                self.cancel(shared, index);
            }
        }
    }

    /// Sends the next request to the NIC.
    fn forward_next(
        &mut self,
        now: Instant,
        shared: &mut ReadAheadShared,
        frame: &Frame<'_>,
        packet: &Packet<'_>,
    ) {
        let path = self.forwarded;
        self.forwarded = path + span(packet, self.terms.mtu);
        self.in_message = !packet.opcode().ends_message();
        if is_read(packet)
            && let Some(first) = self.numbering.to_nic(path)
        {
            if self.asked.len() >= 2 * self.terms.reads_max {
                self.asked.pop_front();
            }
            self.reads += 1;
            self.asked.push_back(Asked { path, end: first + span(packet, self.terms.mtu) });
        }
        self.forward(now, shared, frame, packet, path);
    }

    /// Sends the request with number `path` to the NIC, with the adjacent fetches that the NIC must
    /// get again.
    fn forward(
        &mut self,
        now: Instant,
        shared: &mut ReadAheadShared,
        frame: &Frame<'_>,
        packet: &Packet<'_>,
        path: u64,
    ) {
        let Some(nic) = self.numbering.to_nic(path) else {
            shared.counters.too_old += 1;
            return;
        };
        if self.wire_next != nic {
            let mut begin = nic;
            let is_before =
                |fetch: &&Fetch, begin: u64| fetch.end == begin && !self.is_executed(fetch);
            while let Some(fetch) = self.fetches.iter().find(|fetch| is_before(fetch, begin)) {
                begin = fetch.first;
            }
            self.ask_again_from(now, shared, begin);
        }
        let psn = Psn::from_sequence(nic);
        if psn == packet.psn() && packet.bth().version == 0 {
            shared.pass(LAN, frame);
        } else {
            shared.counters.renumbered += 1;
            let change = Change { psn, msn: None, version: 0, ack_request: false };
            let renumbered = changed(&mut shared.pool, frame, packet, &change);
            shared.send(LAN, renumbered);
        }
        self.wire_next = nic + span(packet, self.terms.mtu);
        self.ask_again_from(now, shared, self.wire_next);
    }

    /// Repeats the consecutive fetches that start at `begin` in the NIC's numbers, up to the first
    /// executed one.
    fn ask_again_from(&mut self, now: Instant, shared: &mut ReadAheadShared, begin: u64) {
        let mut at = begin;
        while let Some(index) = self.fetches.iter().position(|fetch| fetch.first == at) {
            let fetch = self.fetches[index];
            if self.is_executed(&fetch) {
                break;
            }
            shared.counters.fetches_repeated += 1;
            self.ask_nic(now, shared, index);
            at = fetch.end;
            self.wire_next = at;
        }
    }

    /// Sends what the NIC has room for.
    fn go_on(&mut self, now: Instant, shared: &mut ReadAheadShared) {
        while let Some(frame) = self.waiting.front().cloned() {
            let Ok(Some(packet)) = Packet::parse(frame.head()) else { break };
            if self.is_full_for(&packet) {
                break;
            }
            self.waiting.pop_front();
            self.forward_next(now, shared, &frame.as_frame(), &packet);
        }
        self.fetch(now, shared);
    }

    /// Handles a response of the NIC, to the target or to a fetch.
    pub(crate) fn handle_response(
        &mut self,
        now: Instant,
        shared: &mut ReadAheadShared,
        frame: &Frame<'_>,
        packet: &Packet<'_>,
    ) {
        if !frame.is_intact() {
            shared.counters.rx_icrc_encapsulated += 1;
            return;
        }
        let Some(nic) = packet.psn().unwrap_near(self.executed) else { return };
        match self.numbering.to_path(nic) {
            PathNumber::Gone => shared.counters.too_old += 1,
            PathNumber::Extra { first, path } => {
                self.handle_fetched(now, shared, frame, packet, [nic, first, path])
            }
            PathNumber::Known(path) => {
                let syndrome = packet.aeth().map(|aeth| aeth.syndrome);
                let is_ack = matches!(syndrome, None | Some(Syndrome::Ack { .. }));
                self.is_refused |= is_fatal(syndrome);
                if packet.opcode().verb() != Some(Verb::Acknowledge) {
                    self.asked.retain(|asked| asked.end != nic + 1);
                }
                self.note_executed(now, shared, nic + u64::from(is_ack));
                self.pass_response(shared, frame, packet, path, self.numbering.count_to(nic));
            }
        }
        self.go_on(now, shared);
    }

    /// Forwards a response with number `path`, and an MSN without the NIC's `extras` messages that
    /// the path does not count.
    fn pass_response(
        &mut self,
        shared: &mut ReadAheadShared,
        frame: &Frame<'_>,
        packet: &Packet<'_>,
        path: u64,
        extras: u64,
    ) {
        let psn = Psn::from_sequence(path);
        if psn == packet.psn() && extras == 0 {
            return shared.pass(INNER, frame);
        }
        shared.counters.renumbered += 1;
        let msn = packet.aeth().map(|aeth| less(aeth.msn, extras));
        let change = Change { psn, msn, version: packet.bth().version, ack_request: false };
        let renumbered = changed(&mut shared.pool, frame, packet, &change);
        shared.send(INNER, renumbered);
    }

    /// Notes that the NIC has executed everything before `below`. Missing responses of earlier
    /// fetches are lost.
    fn note_executed(&mut self, now: Instant, shared: &mut ReadAheadShared, below: u64) {
        if below <= self.executed {
            return;
        }
        self.executed = below;
        self.note_all_marked();
        let mut index = 0;
        while index < self.fetches.len() {
            let fetch = &mut self.fetches[index];
            let is_owed = fetch.end < below && !std::mem::replace(&mut fetch.is_repeated, true);
            if !(is_owed && self.repeat(now, shared, index)) {
                index += 1;
            }
        }
    }

    /// Handles a response to the fetch at `first`, with number `nic` at the NIC; `path` is the
    /// path's number behind the fetch.
    fn handle_fetched(
        &mut self,
        now: Instant,
        shared: &mut ReadAheadShared,
        frame: &Frame<'_>,
        packet: &Packet<'_>,
        [nic, first, path]: [u64; 3],
    ) {
        let syndrome = packet.aeth().map(|aeth| aeth.syndrome);
        if is_fatal(syndrome) {
            return self.refuse(shared);
        }
        if syndrome == Some(Syndrome::Nak(NakCode::PsnSequence)) {
            self.note_executed(now, shared, nic);
            self.pass_response(shared, frame, packet, path, self.numbering.count_to(first - 1));
            self.ask_again_from(now, shared, first);
            return;
        }
        if packet.opcode().verb() != Some(Verb::ReadResponse) {
            self.note_executed(now, shared, nic + 1);
            return self.pass_acknowledge(shared, frame, packet, path);
        }
        if self.executed < first {
            self.acknowledge(shared, packet, path);
        }
        self.note_executed(now, shared, nic + 1);
        let Some(index) = self.fetches.iter().position(|fetch| fetch.first == first) else {
            return;
        };
        let fetch = &mut self.fetches[index];
        let at = (nic - first) * u64::from(self.terms.mtu);
        let is_right_len = frame.payload.len() as u64
            == u64::from(fetch.range.len).saturating_sub(at).min(u64::from(self.terms.mtu));
        if nic != fetch.next || !is_right_len {
            // A response is missing. Those behind it are not kept.
            if nic > fetch.next && !std::mem::replace(&mut fetch.is_repeated, true) {
                self.repeat(now, shared, index);
            }
            return;
        }
        fetch.next += 1;
        fetch.tries = 0;
        fetch.is_repeated = false;
        let fetch = *fetch;
        if !fetch.is_cancelled {
            shared.counters.fetched_bytes += frame.payload.len() as u64;
            let index = (nic - first) as u32;
            self.tell(shared, fetch.number, Local::Data { index }, frame.payload);
        }
        if fetch.next == fetch.end {
            shared.counters.fetched += u64::from(!fetch.is_cancelled);
            self.fetches.remove(index);
        }
    }

    /// Forwards the NIC's acknowledgement of a fetch as one of everything before `path`.
    fn pass_acknowledge(
        &mut self,
        shared: &mut ReadAheadShared,
        frame: &Frame<'_>,
        packet: &Packet<'_>,
        path: u64,
    ) {
        let last = self.acknowledged_by(path) - 1;
        if let Some(nic) = self.numbering.to_nic(last) {
            self.pass_response(shared, frame, packet, last, self.numbering.count_to(nic));
        }
    }

    /// Sends an ACK of everything before `path`: the NIC sends none for requests before a READ,
    /// because the READ's response implies it.
    fn acknowledge(&self, shared: &mut ReadAheadShared, packet: &Packet<'_>, path: u64) {
        let Some(mut aeth) = packet.aeth() else { return };
        let path = self.acknowledged_by(path) - 1;
        let Some(nic) = self.numbering.to_nic(path) else { return };
        aeth.msn = less(aeth.msn, self.numbering.count_to(nic));
        let of = packet.bth();
        let psn = Psn::from_sequence(path);
        let bth = Bth {
            migreq: of.migreq,
            pkey: of.pkey,
            ..Bth::new(Opcode::RC_ACK, self.terms.target_qpn, psn)
        };
        let template = PathTemplate::new(&path_of(packet));
        let mut head = Head::begin(&template, &bth);
        head.push_aeth(&aeth);
        let pad_len = head.finish(&template, 0);
        let trailer = Trailer::Sealed { pad_len };
        shared.pass(INNER, &Frame { head: head.bytes(), payload: Payload::EMPTY, trailer });
    }

    /// Cancels all fetches: the NIC has refused one, and with it everything that follows.
    fn refuse(&mut self, shared: &mut ReadAheadShared) {
        shared.counters.fetches_refused += u64::from(!self.is_refused);
        self.is_refused = true;
        self.wanted.clear();
        for index in 0..self.fetches.len() {
            self.cancel(shared, index);
        }
        self.fetches.clear();
    }
}

fn is_fatal(syndrome: Option<Syndrome>) -> bool {
    matches!(syndrome, Some(Syndrome::Nak(code)) if code != NakCode::PsnSequence)
}

fn less(msn: longhaul_units::Msn, messages: u64) -> longhaul_units::Msn {
    longhaul_units::Msn::new(msn.get().wrapping_sub(messages as u32))
}
