//! The store of one flow: its request packets in PSN order, from the first that may be undelivered
//! to the last that the requester sent.
//!
//! Three positions move through it: the front (first undelivered packet), the cursor (next to send)
//! and the frontier (end of the packets that may be acknowledged to the requester).

use crate::entries::Entries;
use longhaul_node::FrameBuf;
use longhaul_units::Instant;
use longhaul_wire::Packet;
use std::collections::VecDeque;

/// What a box waits for before it acknowledges a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) enum RequestKind {
    /// Nothing: a SEND, or a WRITE with data.
    #[default]
    Plain,
    /// Its own response: a READ or atomic.
    Response,
    /// The responder's ACK: a zero-length WRITE (keep-alive) or, in mode tail, the last packet of a
    /// message.
    EndToEnd,
}

/// One stored request packet, in one cache line.
#[derive(Debug, Default)]
#[repr(align(64))]
pub(crate) struct Entry {
    /// `None` in unused slots only.
    pub(crate) frame: Option<FrameBuf>,
    /// First PSN.
    pub(crate) first: u64,
    /// Messages completed once this packet is executed, counted from the flow's start.
    pub(crate) messages: u64,
    pub(crate) sent_at: Instant,
    /// Number of PSNs, at least 1; a READ takes one per response packet.
    pub(crate) span: u32,
    pub(crate) bytes: u32,
    /// It completes a message.
    pub(crate) ends: bool,
    pub(crate) times_sent: u8,
    pub(crate) kind: RequestKind,
    pub(crate) ack_request: bool,
    /// For [`RequestKind::Response`]: the last response has passed.
    pub(crate) answered: bool,
}

impl Entry {
    /// Last PSN.
    #[inline]
    pub(crate) fn last(&self) -> u64 {
        self.first + u64::from(self.span) - 1
    }

    /// Messages completed before this packet.
    pub(crate) fn messages_before(&self) -> u64 {
        self.messages - u64::from(self.ends)
    }
}

/// A READ or atomic whose responses are awaited.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Awaited {
    pub(crate) first: u64,
    pub(crate) last: u64,
    /// The next response PSN to pass.
    pub(crate) next: u64,
    /// When the request was last sent.
    pub(crate) sent_at: Option<Instant>,
    /// A gap was seen: when to retransmit what is awaited, unless the requester does so first.
    pub(crate) recover_at: Option<Instant>,
}

/// Result of [`Store::release`].
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Released {
    pub(crate) packets: u64,
    pub(crate) bytes: u64,
    /// When the packet with the acknowledged PSN was sent, if it was sent once and asked for an
    /// ACK.
    pub(crate) sample: Option<Instant>,
}

/// Bookkeeping per entry, excluding the frame.
pub(crate) const ENTRY_OVERHEAD: usize = size_of::<Entry>() - size_of::<FrameBuf>();

/// Entry buffers of empty stores: an idle flow keeps none, and a flow that becomes busy allocates
/// none.
#[derive(Debug, Default)]
pub(crate) struct Spare {
    rooms: Vec<Entries>,
    /// Total capacity of `rooms`.
    entries: usize,
}

/// Largest total capacity of spare buffers (16 MiB): enough for many flows that fill and empty by
/// turns over a long path.
const SPARE_ENTRIES_MAX: usize = 1 << 18;

impl Spare {
    fn keep(&mut self, room: Entries) {
        if self.entries + room.capacity() <= SPARE_ENTRIES_MAX {
            self.entries += room.capacity();
            self.rooms.push(room);
        }
    }

    fn take(&mut self) -> Entries {
        let room = self.rooms.pop().unwrap_or_default();
        self.entries -= room.capacity();
        room
    }
}

#[derive(Debug)]
pub(crate) struct Store {
    entries: Entries,
    cursor: usize,
    /// Entries before this index are below the frontier; `frontier_bytes` is their memory.
    frontier_index: usize,
    frontier_bytes: u64,
    frontier: u64,
    frontier_messages: u64,
    /// PSN and messages behind the last request below the frontier that is not answered by its own
    /// responses.
    ack_end: (u64, u64),
    bytes: u64,
    end: u64,
    messages: u64,
    sent_to: u64,
    pub(crate) responder_next: u64,
    pub(crate) awaited: VecDeque<Awaited>,
    /// When the READ or atomic that was answered last had last been sent.
    pub(crate) answered_sent_at: Option<Instant>,
}

impl Store {
    /// An empty store whose first packet is `start`.
    pub(crate) fn new(start: u64) -> Self {
        Store {
            entries: Entries::default(),
            cursor: 0,
            frontier_index: 0,
            frontier_bytes: 0,
            frontier: start,
            frontier_messages: 0,
            ack_end: (start, 0),
            bytes: 0,
            end: start,
            messages: 0,
            sent_to: start,
            responder_next: start,
            awaited: VecDeque::new(),
            answered_sent_at: None,
        }
    }

    /// Discards everything and expects `start` next. Returns the bytes released.
    pub(crate) fn restart(&mut self, start: u64) -> u64 {
        std::mem::replace(self, Store::new(start)).bytes
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    pub(crate) fn len(&self) -> usize {
        self.entries.len()
    }

    /// Bytes of memory that the entries use.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// The PSN behind the last packet, which is expected next from the requester.
    pub(crate) fn end(&self) -> u64 {
        self.end
    }

    /// Messages completed by all packets stored so far.
    pub(crate) fn messages(&self) -> u64 {
        self.messages
    }

    /// The first PSN not released.
    pub(crate) fn start(&self) -> u64 {
        self.entries.front().map_or(self.end, |e| e.first)
    }

    /// PSNs stored, `end - start`.
    pub(crate) fn psns(&self) -> u64 {
        self.end - self.start()
    }

    /// The PSN below which everything may be acknowledged, and the messages completed there.
    pub(crate) fn frontier(&self) -> (u64, u64) {
        (self.frontier, self.frontier_messages)
    }

    /// The PSN behind that of a pseudo-ACK, and the messages before it. A pseudo-ACK never carries
    /// the PSN of a READ or atomic, because kernel rxe mistakes an ACK with the last PSN of a READ
    /// for its responses (`rxe_comp.c`, `check_ack`).
    pub(crate) fn ack_end(&self) -> (u64, u64) {
        self.ack_end
    }

    /// The PSN behind the last packet sent so far.
    pub(crate) fn sent_to(&self) -> u64 {
        self.sent_to
    }

    /// The PSN behind the last packet that is sent and not to be retransmitted.
    #[inline]
    pub(crate) fn sent_before(&self) -> u64 {
        let last = self.cursor.checked_sub(1).and_then(|index| self.entries.get(index));
        last.map_or(self.responder_next, |entry| entry.last() + 1)
    }

    /// PSNs sent, not to be retransmitted, and not known to be delivered.
    pub(crate) fn outstanding(&self) -> u64 {
        self.sent_before().saturating_sub(self.responder_next)
    }

    /// Number of entries to be sent or retransmitted.
    pub(crate) fn unsent(&self) -> usize {
        self.entries.len() - self.cursor
    }

    /// True if at least the front entry is sent and not to be retransmitted.
    pub(crate) fn is_outstanding(&self) -> bool {
        self.cursor > 0
    }

    /// True while a packet below the frontier is not known to be delivered.
    pub(crate) fn owes_delivery(&self) -> bool {
        self.frontier_index > 0
    }

    /// Frames to be sent or retransmitted, in order.
    pub(crate) fn waiting_frames(&self) -> impl Iterator<Item = &FrameBuf> {
        self.entries.from(self.cursor).filter_map(|entry| entry.frame.as_ref())
    }

    pub(crate) fn front_mut_at(&mut self, index: usize) -> Option<&mut Entry> {
        self.entries.get_mut(index)
    }

    pub(crate) fn entry(&self, index: usize) -> Option<&Entry> {
        self.entries.get(index)
    }

    /// Index of the first entry whose last PSN is at or behind `seq`.
    pub(crate) fn index_of(&self, seq: u64) -> usize {
        self.entries.partition_point(|e| e.last() < seq)
    }

    /// True if the stored request at `seq` differs from `packet`: the QPN has a new owner.
    ///
    /// READs are not compared, because a repeated READ may request only the rest.
    pub(crate) fn contradicts(&self, seq: u64, packet: &Packet<'_>, payload_len: usize) -> bool {
        let Some(entry) = self.entries.get(self.index_of(seq)) else { return false };
        if entry.kind == RequestKind::Response || entry.last() != seq {
            return false;
        }
        let Some(frame) = &entry.frame else { return false };
        let Ok(Some(stored)) = Packet::parse(frame.head()) else { return false };
        (stored.opcode(), stored.reth(), frame.as_frame().payload.len())
            != (packet.opcode(), packet.reth(), payload_len)
    }

    /// Returns the entry buffer to `spare` if the store is empty.
    #[inline]
    pub(crate) fn rest(&mut self, spare: &mut Spare) {
        if self.entries.is_empty() && self.entries.capacity() > 0 {
            spare.keep(std::mem::take(&mut self.entries));
        }
    }

    /// Takes an entry buffer if the store has none.
    #[inline]
    pub(crate) fn wake(&mut self, spare: &mut Spare) {
        if self.entries.capacity() == 0 {
            self.entries = spare.take();
        }
    }

    /// Appends the packet at [`Store::end`]. Returns the bytes of memory that it uses.
    #[inline(always)]
    pub(crate) fn push(
        &mut self,
        frame: FrameBuf,
        span: u64,
        kind: RequestKind,
        ends: bool,
        ack_request: bool,
    ) -> u64 {
        let bytes = frame.footprint() + ENTRY_OVERHEAD;
        let first = self.end;
        let last = first + span - 1;
        self.messages += u64::from(ends);
        self.end = last + 1;
        self.bytes += bytes as u64;
        if kind == RequestKind::Response {
            self.awaited.push_back(Awaited {
                first,
                last,
                next: first,
                sent_at: None,
                recover_at: None,
            });
        }
        let messages = self.messages;
        let entry = self.entries.push_back();
        // Written field by field, as it is read.
        entry.frame = Some(frame);
        entry.first = first;
        entry.messages = messages;
        entry.sent_at = Instant::ZERO;
        entry.span = span as u32;
        entry.bytes = bytes as u32;
        entry.ends = ends;
        entry.times_sent = 0;
        entry.kind = kind;
        entry.ack_request = ack_request;
        entry.answered = false;
        bytes as u64
    }

    /// Sets the span of the last entry, a READ.
    pub(crate) fn resolve_span(&mut self, span: u64) {
        if let (Some(entry), Some(awaited)) = (self.entries.back_mut(), self.awaited.back_mut()) {
            entry.span = span as u32;
            awaited.last = entry.last();
            self.end = entry.last() + 1;
            if self.sent_to > entry.first {
                self.sent_to = self.end;
            }
        }
    }

    /// Marks all entries as sent at `now`, because their frames were forwarded.
    pub(crate) fn count_all_as_sent(&mut self, now: Instant) {
        for index in self.cursor..self.entries.len() {
            if let Some(entry) = self.entries.get_mut(index) {
                entry.sent_at = now;
                entry.times_sent = 1;
            }
        }
        for awaited in &mut self.awaited {
            awaited.sent_at.get_or_insert(now);
        }
        self.cursor = self.entries.len();
        self.sent_to = self.end;
    }

    /// Advances the frontier up to an entry that awaits an answer, and while the bytes below it
    /// stay within `bytes_max`. Returns `true` if `bytes_max` stopped it.
    pub(crate) fn advance_frontier(&mut self, bytes_max: u64) -> bool {
        while let Some(entry) = self.entries.get(self.frontier_index) {
            if entry.kind != RequestKind::Plain && !entry.answered {
                return false;
            }
            if self.frontier_bytes + u64::from(entry.bytes) > bytes_max {
                return true;
            }
            self.frontier_bytes += u64::from(entry.bytes);
            self.frontier = entry.last() + 1;
            self.frontier_messages = entry.messages;
            if entry.kind != RequestKind::Response {
                self.ack_end = self.frontier();
            }
            self.frontier_index += 1;
        }
        false
    }

    /// True if the entry at the frontier is of this kind.
    pub(crate) fn frontier_waits_for(&self, kind: RequestKind) -> bool {
        self.entries.get(self.frontier_index).is_some_and(|entry| entry.kind == kind)
    }

    /// Advances the frontier by at least one packet and about `bytes`, unless an answer is awaited.
    pub(crate) fn advance_frontier_by(&mut self, bytes: u64) {
        let next = self.entries.get(self.frontier_index).map_or(0, |entry| u64::from(entry.bytes));
        self.advance_frontier(self.frontier_bytes + bytes.max(next));
    }

    /// Releases the delivered entries below `limit`, up to the first READ or atomic whose responses
    /// are awaited (or past it if `forced`).
    pub(crate) fn release(&mut self, limit: u64, forced: bool) -> Released {
        let mut released = Released::default();
        let mut count = 0;
        let mut awaited = 0;
        while let Some(entry) = self.entries.get(count) {
            let is_awaited = entry.kind == RequestKind::Response && !entry.answered;
            if entry.last() >= limit || (is_awaited && !forced) {
                break;
            }
            if let Some(frame) = &entry.frame {
                frame.fetch_count();
            }
            count += 1;
            awaited += usize::from(is_awaited);
            released.bytes += u64::from(entry.bytes);
            // A READ or atomic was sampled at its first response.
            let by_name = entry.last() + 1 == limit
                && entry.times_sent == 1
                && entry.ack_request
                && entry.kind != RequestKind::Response;
            released.sample = by_name.then_some(entry.sent_at);
            if count <= self.frontier_index {
                self.frontier_bytes -= u64::from(entry.bytes);
            } else {
                self.frontier = entry.last() + 1;
                self.frontier_messages = entry.messages;
                if entry.kind != RequestKind::Response {
                    self.ack_end = self.frontier();
                }
            }
        }
        self.entries.drop_front(count);
        self.awaited.drain(..awaited);
        self.bytes -= released.bytes;
        self.cursor = self.cursor.saturating_sub(count);
        self.frontier_index = self.frontier_index.saturating_sub(count);
        released.packets = count as u64;
        released
    }

    /// Releases all entries from `to` on; the `messages` before it stay acknowledged. Returns the
    /// bytes released.
    pub(crate) fn truncate(&mut self, to: u64, messages: u64) -> u64 {
        let keep = self.entries.partition_point(|entry| entry.first < to);
        let freed: u64 = self.entries.from(keep).map(|entry| u64::from(entry.bytes)).sum();
        self.entries.truncate(keep);
        self.awaited.retain(|awaited| awaited.first < to);
        self.bytes -= freed;
        self.cursor = self.cursor.min(keep);
        (self.frontier_index, self.frontier_bytes) = (keep, self.bytes);
        (self.end, self.frontier) = (to, to);
        self.ack_end = self.ack_end.min((to, messages));
        (self.messages, self.frontier_messages) = (messages, messages);
        self.sent_to = self.sent_to.min(to);
        freed
    }

    /// Moves the cursor back to `seq`.
    pub(crate) fn rewind_to(&mut self, seq: u64) {
        self.cursor = self.cursor.min(self.index_of(seq));
    }

    /// The next packet to send, skipping packets known to be delivered.
    pub(crate) fn next_to_send(&mut self) -> Option<&Entry> {
        while let Some(entry) = self.entries.get(self.cursor) {
            if entry.last() >= self.responder_next {
                break;
            }
            self.cursor += 1;
        }
        self.entries.get(self.cursor)
    }

    /// Notes that the packet of [`Store::next_to_send`] was sent. Returns `true` for a
    /// retransmission.
    pub(crate) fn count_sent(&mut self, now: Instant) -> bool {
        let Some(entry) = self.entries.get_mut(self.cursor) else { return false };
        let again = entry.times_sent > 0;
        entry.times_sent = entry.times_sent.saturating_add(1);
        entry.sent_at = now;
        let (kind, first, last) = (entry.kind, entry.first, entry.last());
        self.cursor += 1;
        self.sent_to = self.sent_to.max(last + 1);
        if kind == RequestKind::Response {
            self.count_request_sent(first, now);
        }
        again
    }

    /// Notes that the READ or atomic whose range holds `seq` was sent.
    pub(crate) fn count_request_sent(&mut self, seq: u64, now: Instant) {
        if let Some(awaited) = self.awaited_at(seq) {
            awaited.sent_at = Some(now);
            awaited.recover_at = None;
        }
    }

    /// The awaited READ or atomic whose range holds `seq`.
    pub(crate) fn awaited_at(&mut self, seq: u64) -> Option<&mut Awaited> {
        let index = self.awaited.partition_point(|a| a.last < seq);
        self.awaited.get_mut(index).filter(|a| a.first <= seq)
    }

    /// True if the READ or atomic before that at `seq` was sent after it. Responses to the latter
    /// then arrive too early, and their requester drops them.
    pub(crate) fn is_overtaken(&self, seq: u64) -> bool {
        let index = self.awaited.partition_point(|a| a.last < seq);
        let before_sent_at = match index.checked_sub(1) {
            Some(before) => self.awaited.get(before).and_then(|before| before.sent_at),
            None => self.answered_sent_at,
        };
        let sent_at = self.awaited.get(index).and_then(|awaited| awaited.sent_at);
        sent_at.is_some() && sent_at < before_sent_at
    }

    /// True if a READ or atomic whose range holds `seq` is awaited. Packets behind it may be
    /// delivered already.
    pub(crate) fn awaits(&self, seq: u64) -> bool {
        let index = self.awaited.partition_point(|a| a.last < seq);
        self.awaited.get(index).is_some_and(|a| a.first <= seq)
    }

    /// Replaces the stored READ by `frame`, which requests its rest from `seq` on.
    ///
    /// The expected response does not move back if `frame` requests earlier ones again: the
    /// requester may have sent it before these arrived, and takes the responses that follow them. A
    /// requester that lost them requests all later ones too, whatever is expected here.
    pub(crate) fn replace_request(&mut self, seq: u64, frame: FrameBuf) {
        let index = self.index_of(seq);
        if let Some(entry) = self.entries.get_mut(index) {
            entry.frame = Some(frame);
            entry.times_sent = entry.times_sent.saturating_add(1);
            entry.span = (entry.last() + 1 - seq) as u32;
            entry.first = seq;
        }
        if let Some(awaited) = self.awaited_at(seq) {
            awaited.first = seq;
            awaited.next = awaited.next.max(seq);
        }
    }

    /// Notes that the last response of the first awaited request, which ends at `last`, has passed.
    pub(crate) fn count_answered(&mut self, last: u64) {
        let index = self.index_of(last);
        if let Some(entry) = self.entries.get_mut(index) {
            entry.answered = true;
        }
        self.answered_sent_at = self.awaited.pop_front().and_then(|awaited| awaited.sent_at);
    }
}

impl Store {
    /// The PSN behind the last stored packet with AckReq.
    pub(crate) fn last_wish(&self) -> Option<u64> {
        let wish =
            self.entries.from(0).rev().find(|e| e.ack_request && e.kind != RequestKind::Response);
        wish.map(|e| e.last() + 1)
    }
}
