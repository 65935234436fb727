//! The store of one flow: request packets in PSN order, from the first that the responder may not
//! have to the last that the requester sent.
//!
//! Three positions move through it: what the responder has (the front), what is to be sent next
//! (the cursor) and what may be acknowledged to the requester (the frontier).

use crate::entries::Entries;
use longhaul_node::FrameBuf;
use longhaul_units::Instant;
use longhaul_wire::Packet;
use std::collections::VecDeque;

/// What a box awaits before it acknowledges a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) enum RequestKind {
    /// Nothing: SEND or WRITE with data.
    #[default]
    Plain,
    /// READ or atomic: its own response answers it.
    Response,
    /// The responder's own ACK answers it: a zero-length WRITE, which asks whether the peer is
    /// alive, or in mode tail the last packet of a message.
    EndToEnd,
}

/// One stored request packet, in a line of the cache.
#[derive(Debug, Default)]
#[repr(align(64))]
pub(crate) struct Entry {
    /// There always is one, but in a place that holds no packet.
    pub(crate) frame: Option<FrameBuf>,
    /// First PSN.
    pub(crate) first: u64,
    /// Messages completed once this packet is executed, counted from the flow's start.
    pub(crate) messages: u64,
    pub(crate) sent_at: Instant,
    /// PSNs, at least 1; a READ takes one for each of its response packets.
    pub(crate) span: u32,
    pub(crate) bytes: u32,
    /// It completes a message itself.
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
    /// A gap was seen: when to resend the request, unless the requester does so first.
    pub(crate) recover_at: Option<Instant>,
}

/// What [`Store::release`] let go.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Released {
    pub(crate) packets: u64,
    pub(crate) bytes: u64,
    /// When the packet that was acknowledged by name had been sent, if it was sent once and asked
    /// for an ACK.
    pub(crate) sample: Option<Instant>,
}

/// Bookkeeping per entry beyond the frame itself.
pub(crate) const ENTRY_OVERHEAD: usize = size_of::<Entry>() - size_of::<FrameBuf>();

/// Room for entries of stores that are empty: a flow that rests keeps none, and one that begins
/// again allocates none.
#[derive(Debug, Default)]
pub(crate) struct Spare {
    rooms: Vec<Entries>,
    /// Entries that they have room for.
    entries: usize,
}

/// Entries that rooms nobody uses may have room for, 16 MiB: those of many flows that fill and
/// empty by turns over a long path.
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
    /// Entries before this one lie below the frontier; `frontier_bytes` is their memory.
    frontier_index: usize,
    frontier_bytes: u64,
    frontier: u64,
    frontier_messages: u64,
    bytes: u64,
    end: u64,
    messages: u64,
    sent_to: u64,
    pub(crate) responder_next: u64,
    pub(crate) awaited: VecDeque<Awaited>,
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
            bytes: 0,
            end: start,
            messages: 0,
            sent_to: start,
            responder_next: start,
            awaited: VecDeque::new(),
        }
    }

    /// Forgets everything and expects `start` next. Returns the bytes let go.
    pub(crate) fn restart(&mut self, start: u64) -> u64 {
        std::mem::replace(self, Store::new(start)).bytes
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    pub(crate) fn len(&self) -> usize {
        self.entries.len()
    }

    /// Memory that the entries take.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// The PSN behind the last packet: what is expected from the requester.
    pub(crate) fn end(&self) -> u64 {
        self.end
    }

    /// Messages completed by everything stored so far.
    pub(crate) fn messages(&self) -> u64 {
        self.messages
    }

    /// The first PSN that the responder is not known to have.
    pub(crate) fn start(&self) -> u64 {
        self.entries.front().map_or(self.end, |e| e.first)
    }

    /// PSNs outstanding.
    pub(crate) fn psns(&self) -> u64 {
        self.end - self.start()
    }

    /// Everything below may be acknowledged; with it the messages that this completes.
    pub(crate) fn frontier(&self) -> (u64, u64) {
        (self.frontier, self.frontier_messages)
    }

    /// The PSN behind the last packet ever sent.
    pub(crate) fn sent_to(&self) -> u64 {
        self.sent_to
    }

    /// The PSN behind the last packet sent and not taken back for sending again.
    #[inline]
    pub(crate) fn sent_before(&self) -> u64 {
        let last = self.cursor.checked_sub(1).and_then(|index| self.entries.get(index));
        last.map_or(self.responder_next, |entry| entry.last() + 1)
    }

    /// PSNs that are sent and not to be sent again, and of which the responder is not known to have
    /// any.
    pub(crate) fn outstanding(&self) -> u64 {
        self.sent_before().saturating_sub(self.responder_next)
    }

    /// Entries not sent, or to be sent again.
    pub(crate) fn unsent(&self) -> usize {
        self.entries.len() - self.cursor
    }

    /// True if at least the front entry has been sent and not been taken back for sending again.
    pub(crate) fn is_outstanding(&self) -> bool {
        self.cursor > 0
    }

    /// True while something that may have been acknowledged is not known to be delivered.
    pub(crate) fn owes_delivery(&self) -> bool {
        self.frontier_index > 0
    }

    /// Frames to be sent, in their order.
    pub(crate) fn waiting_frames(&self) -> impl Iterator<Item = &FrameBuf> {
        self.entries.from(self.cursor).filter_map(|entry| entry.frame.as_ref())
    }

    pub(crate) fn front_mut_at(&mut self, index: usize) -> Option<&mut Entry> {
        self.entries.get_mut(index)
    }

    pub(crate) fn entry(&self, index: usize) -> Option<&Entry> {
        self.entries.get(index)
    }

    /// Index of the first entry that ends at or behind `seq`.
    pub(crate) fn index_of(&self, seq: u64) -> usize {
        self.entries.partition_point(|e| e.last() < seq)
    }

    /// True if another request than `packet` is stored under its number: its QP number has a new
    /// owner.
    ///
    /// READs are not compared: one that is repeated may ask for what is left of it.
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

    /// Gives up the room for entries when there are none.
    #[inline]
    pub(crate) fn rest(&mut self, spare: &mut Spare) {
        if self.entries.is_empty() && self.entries.capacity() > 0 {
            spare.keep(std::mem::take(&mut self.entries));
        }
    }

    /// Takes room for entries before the first.
    #[inline]
    pub(crate) fn wake(&mut self, spare: &mut Spare) {
        if self.entries.capacity() == 0 {
            self.entries = spare.take();
        }
    }

    /// Appends the packet at [`Store::end`]. Returns the memory that it takes.
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
        // One by one, as they are read.
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

    /// Gives the last entry, a READ, `span` PSNs.
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

    /// Takes everything as sent at `now` by somebody else.
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

    /// Moves the frontier as far as nothing is awaited and stored bytes below it stay within
    /// `bytes_max`. True if it was the bytes that stopped it.
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
            self.frontier_index += 1;
        }
        false
    }

    /// True if the frontier stands at a packet of this kind.
    pub(crate) fn frontier_waits_for(&self, kind: RequestKind) -> bool {
        self.entries.get(self.frontier_index).is_some_and(|entry| entry.kind == kind)
    }

    /// Moves the frontier by at least one packet and about `bytes`, if nothing is awaited.
    pub(crate) fn advance_frontier_by(&mut self, bytes: u64) {
        let next = self.entries.get(self.frontier_index).map_or(0, |entry| u64::from(entry.bytes));
        self.advance_frontier(self.frontier_bytes + bytes.max(next));
    }

    /// Lets go of what the responder has: everything below `limit`, up to the first READ or atomic
    /// whose responses are still awaited (or past it when `forced`).
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
            let by_name = entry.last() + 1 == limit && entry.times_sent == 1 && entry.ack_request;
            released.sample = by_name.then_some(entry.sent_at);
            if count <= self.frontier_index {
                self.frontier_bytes -= u64::from(entry.bytes);
            } else {
                self.frontier = entry.last() + 1;
                self.frontier_messages = entry.messages;
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

    /// Lets go of what lies at `to` and behind it; the `messages` before that stay acknowledged.
    /// Returns the memory let go.
    pub(crate) fn truncate(&mut self, to: u64, messages: u64) -> u64 {
        let keep = self.entries.partition_point(|entry| entry.first < to);
        let freed: u64 = self.entries.from(keep).map(|entry| u64::from(entry.bytes)).sum();
        self.entries.truncate(keep);
        self.awaited.retain(|awaited| awaited.first < to);
        self.bytes -= freed;
        self.cursor = self.cursor.min(keep);
        (self.frontier_index, self.frontier_bytes) = (keep, self.bytes);
        (self.end, self.frontier) = (to, to);
        (self.messages, self.frontier_messages) = (messages, messages);
        self.sent_to = self.sent_to.min(to);
        freed
    }

    /// Sends again from `seq` on.
    pub(crate) fn rewind_to(&mut self, seq: u64) {
        self.cursor = self.cursor.min(self.index_of(seq));
    }

    /// The next packet to send. What the responder is known to have is skipped.
    pub(crate) fn next_to_send(&mut self) -> Option<&Entry> {
        while let Some(entry) = self.entries.get(self.cursor) {
            if entry.last() >= self.responder_next {
                break;
            }
            self.cursor += 1;
        }
        self.entries.get(self.cursor)
    }

    /// The packet of [`Store::next_to_send`] was sent. True if it had been sent before.
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

    /// The READ or atomic that holds `seq` was sent.
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

    /// Puts `frame`, a retry for the rest of a READ from `seq` on, in place of the stored request.
    ///
    /// The next response stays the next when the retry asks for earlier ones again: its requester
    /// may have sent it before these came, and takes what follows them. One that lost them asks for
    /// all that follows as well, whatever is counted here.
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

    /// The last response of the front awaited request, which ends at `last`, has passed.
    pub(crate) fn count_answered(&mut self, last: u64) {
        let index = self.index_of(last);
        if let Some(entry) = self.entries.get_mut(index) {
            entry.answered = true;
        }
        self.awaited.pop_front();
    }
}

impl Store {
    /// The PSN behind the last stored packet that asked for an ACK.
    pub(crate) fn last_wish(&self) -> Option<u64> {
        let wish =
            self.entries.from(0).rev().find(|e| e.ack_request && e.kind != RequestKind::Response);
        wish.map(|e| e.last() + 1)
    }
}
