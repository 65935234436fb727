//! Sending half of a session: frames and stream records until the far box has them.

use crate::flight::Fate;
use crate::format::DatagramKind;
use crate::key::{Clocking, StreamKey, WireKey};
use crate::unpaced::Unpaced;
use crate::{Config, DropReason};
use longhaul_node::{FrameBuf, FramePool};
use longhaul_units::{Duration, Instant};
use longhaul_wire::{Udp, address_bits};
use slab::Slab;
use std::collections::VecDeque;
use std::ops::Range;

/// Lost transmissions of one record, with nothing of its stream ever acknowledged, after which the
/// stream is declared astray.
const ASTRAY: u32 = 64;

/// A frame, or a record that takes a position in a stream as a frame does.
pub(crate) struct Record {
    pub(crate) frame: Option<FrameBuf>,
    pub(crate) udp: Udp,
    pub(crate) kind: DatagramKind,
    pub(crate) stream: u32,
    pub(crate) sequence: u64,
    /// Range of the frame's payload that it carries, if not all of it.
    pub(crate) part: Option<(u16, u16)>,
    clocking: Clocking,
    /// Transmissions presumed lost.
    lost: u32,
    cost: u32,
    /// Queue entries and transmissions that refer to it.
    refs: u32,
    was_sent: bool,
    /// The far box has it.
    is_done: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum StreamState {
    Closed,
    Open,
    Closing,
    /// Nothing of it reaches the far box. Its slot is not reused.
    Astray,
}

struct StreamOut {
    key: Option<StreamKey>,
    generation: u16,
    next: u64,
    unacknowledged: u32,
    /// Some of it has arrived.
    is_reached: bool,
    used_at: Instant,
    state: StreamState,
    /// The source whose share its unpaced frames take.
    source: u32,
}

/// The record to send next.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Next {
    pub(crate) record: u32,
    pub(crate) is_repeat: bool,
    copies_left: u8,
}

impl Record {
    /// Range of its payload that it carries.
    pub(crate) fn range(&self) -> Range<usize> {
        let len = self.frame.as_ref().map_or(0, |frame| frame.as_frame().payload.len());
        self.part.map_or(0..len, |(from, to)| from.into()..to.into())
    }
}

pub(crate) struct Outgoing {
    records: Slab<Record>,
    fresh: VecDeque<u32>,
    /// Memory of the unsent records.
    fresh_bytes: u64,
    /// Unsent records of unpaced senders; they and the others take turns.
    unpaced: Unpaced,
    is_unpaced_turn: bool,
    /// Parts of the record that was about to be sent.
    parts: VecDeque<Next>,
    /// Records to be retransmitted, with the number of copies.
    repeats: VecDeque<(u32, u8)>,
    /// Further copies, with their due times.
    copies: VecDeque<(Instant, u32, u8)>,
    streams: Vec<StreamOut>,
    closed: Vec<u16>,
    streams_max: usize,
    /// Streams found astray since they were last collected.
    pub(crate) astray: Vec<WireKey>,
    /// Memory of unacknowledged records.
    bytes: u64,
    bytes_peak: u64,
    bytes_max: u64,
    /// Memory of the unacknowledged records that were sent.
    outstanding: u64,
    /// Room that the far box advertised.
    pub(crate) room: u64,
}

/// Memory cost of keeping a frame, in bytes. A synthetic payload costs as much as a real one.
pub(crate) fn cost(frame: &FrameBuf) -> u32 {
    FramePool::footprint(frame.as_frame().payload.len()) as u32
}

impl Outgoing {
    /// `seed` is that of the hash tables.
    pub(crate) fn new(config: &Config, seed: u64) -> Self {
        let bytes_max = config.send_bytes_max;
        let unpaced = Unpaced::new(config.passthrough_bytes_max, bytes_max / 2, seed);
        Outgoing {
            records: Slab::new(),
            fresh: VecDeque::new(),
            fresh_bytes: 0,
            unpaced,
            is_unpaced_turn: false,
            parts: VecDeque::new(),
            repeats: VecDeque::new(),
            copies: VecDeque::new(),
            streams: Vec::new(),
            closed: Vec::new(),
            astray: Vec::new(),
            streams_max: config.streams_max as usize,
            bytes: 0,
            bytes_peak: 0,
            bytes_max,
            outstanding: 0,
            room: 0,
        }
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    pub(crate) fn bytes_peak(&self) -> u64 {
        self.bytes_peak
    }

    /// Free memory.
    pub(crate) fn free_bytes(&self) -> u64 {
        self.bytes_max.saturating_sub(self.bytes)
    }

    /// Memory of unsent frames whose senders respect back-pressure.
    pub(crate) fn fresh_bytes(&self) -> u64 {
        self.fresh_bytes
    }

    /// Frames that the far box does not have yet.
    pub(crate) fn frames(&self) -> u64 {
        self.records
            .iter()
            .filter(|(_, record)| !record.is_done && record.kind == DatagramKind::Data)
            .count() as u64
    }

    /// Open streams.
    pub(crate) fn streams_open(&self) -> usize {
        self.streams.len() - self.closed.len()
    }

    /// Opens a stream. `None` if the maximum is reached.
    pub(crate) fn open(&mut self, now: Instant, key: StreamKey) -> Option<u16> {
        let slot = match self.closed.pop() {
            Some(slot) => slot,
            None if self.streams.len() < self.streams_max => {
                self.streams.push(StreamOut {
                    key: None,
                    // The first generation is 0.
                    generation: u16::MAX,
                    next: 0,
                    unacknowledged: 0,
                    is_reached: false,
                    used_at: now,
                    state: StreamState::Closed,
                    source: 0,
                });
                (self.streams.len() - 1) as u16
            }
            None => return None,
        };
        let stream = &mut self.streams[usize::from(slot)];
        stream.source = self.unpaced.join(address_bits(key.source));
        stream.key = Some(key);
        stream.generation = stream.generation.wrapping_add(1);
        stream.next = 0;
        stream.is_reached = false;
        stream.used_at = now;
        stream.state = StreamState::Open;
        Some(slot)
    }

    /// Appends a frame to a stream.
    ///
    /// # Errors
    /// Returns the reason if there is no room for it.
    #[inline]
    pub(crate) fn push(
        &mut self,
        now: Instant,
        slot: u16,
        clocking: Clocking,
        udp: Udp,
        frame: FrameBuf,
    ) -> Result<(), DropReason> {
        let cost = cost(&frame);
        if self
            .streams
            .get(usize::from(slot))
            .is_some_and(|stream| stream.state == StreamState::Astray)
        {
            return Err(DropReason::Astray);
        }
        if self.bytes + u64::from(cost) > self.bytes_max {
            return Err(DropReason::StoreFull);
        }
        let is_taken =
            self.append(now, slot, (DatagramKind::Data, clocking), udp, Some(frame), cost);
        if is_taken { Ok(()) } else { Err(DropReason::ShareFull) }
    }

    /// Returns `false` if the frame exceeds its source's share.
    #[inline]
    fn append(
        &mut self,
        now: Instant,
        slot: u16,
        (kind, clocking): (DatagramKind, Clocking),
        udp: Udp,
        frame: Option<FrameBuf>,
        cost: u32,
    ) -> bool {
        let Some(stream) = self.streams.get_mut(usize::from(slot)) else { return false };
        let index = self.records.vacant_key() as u32;
        if clocking == Clocking::None && !self.unpaced.push(stream.source, index, cost) {
            return false;
        }
        self.records.insert(Record {
            frame,
            udp,
            kind,
            stream: u32::from(stream.generation) << 16 | u32::from(slot),
            sequence: stream.next,
            part: None,
            clocking,
            lost: 0,
            cost,
            refs: 1,
            was_sent: false,
            is_done: false,
        });
        stream.next += 1;
        stream.unacknowledged += 1;
        stream.used_at = now;
        self.bytes += u64::from(cost);
        self.bytes_peak = self.bytes_peak.max(self.bytes);
        if clocking == Clocking::Acks {
            self.fresh_bytes += u64::from(cost);
            self.fresh.push_back(index);
        }
        true
    }

    /// Ends the streams that have been idle since `since`. Returns their keys.
    pub(crate) fn end_idle(&mut self, now: Instant, since: Instant) -> Vec<WireKey> {
        let mut ended = Vec::new();
        for slot in 0..self.streams.len() {
            let stream = &mut self.streams[slot];
            if stream.state != StreamState::Open
                || stream.unacknowledged > 0
                || stream.used_at > since
            {
                continue;
            }
            stream.state = StreamState::Closing;
            ended.extend(stream.key.take().map(|key| WireKey::of(&key)));
            let nowhere = Udp { ip: 0, is_ipv6: false, udp: 0 };
            let end = (DatagramKind::End, Clocking::Acks);
            self.append(now, slot as u16, end, nowhere, None, 0);
        }
        ended
    }

    /// `true` if a record may be sent at `now`.
    #[inline]
    pub(crate) fn has_next(&self, now: Instant) -> bool {
        !self.parts.is_empty()
            || !self.repeats.is_empty()
            || self.copies.front().is_some_and(|&(at, ..)| at <= now)
            || self.next_fresh().is_some()
    }

    /// The next unsent record and its memory, alternating between paced and unpaced ones.
    #[inline]
    fn next_fresh(&self) -> Option<(u32, Clocking, u64)> {
        let paced = self.fresh.front().map(|&record| (record, Clocking::Acks));
        let (record, clocking) = match self.unpaced.front().map(|record| (record, Clocking::None)) {
            None => paced?,
            Some(unpaced) if self.is_unpaced_turn => unpaced,
            Some(unpaced) => paced.unwrap_or(unpaced),
        };
        let cost = self.records.get(record as usize).map_or(0, |record| u64::from(record.cost));
        // The far box must have room for it.
        (self.outstanding + cost <= self.room).then_some((record, clocking, cost))
    }

    /// `true` if a retransmission waits.
    #[inline]
    pub(crate) fn has_repeat(&self) -> bool {
        self.parts.front().map_or(!self.repeats.is_empty(), |part| part.is_repeat)
    }

    /// Time of the next copy, if nothing else waits.
    pub(crate) fn copy_at(&self) -> Option<Instant> {
        self.copies.front().map(|&(at, ..)| at)
    }

    /// Returns the next record to send, retransmissions first. The caller sends it, or gives it up
    /// with [`Outgoing::release`].
    pub(crate) fn next(&mut self, now: Instant) -> Option<Next> {
        loop {
            let next = if let Some(part) = self.parts.pop_front() {
                part
            } else if let Some((record, copies)) = self.repeats.pop_front() {
                Next { record, is_repeat: true, copies_left: copies - 1 }
            } else if self.copies.front().is_some_and(|&(at, ..)| at <= now) {
                let (_, record, copies) = self.copies.pop_front()?;
                Next { record, is_repeat: true, copies_left: copies - 1 }
            } else {
                let (record, clocking, cost) = self.next_fresh()?;
                if clocking == Clocking::None {
                    self.unpaced.pop(cost);
                } else {
                    self.fresh.pop_front();
                    self.fresh_bytes -= cost;
                }
                self.is_unpaced_turn = clocking == Clocking::Acks;
                Next { record, is_repeat: false, copies_left: 0 }
            };
            if self.records.get(next.record as usize).is_some_and(|record| !record.is_done) {
                return Some(next);
            }
            self.release(next.record);
        }
    }

    /// The record that [`Outgoing::next`] names.
    #[inline]
    pub(crate) fn record(&self, record: u32) -> Option<&Record> {
        self.records.get(record as usize)
    }

    /// Replaces a frame that cannot be delivered by an empty position in its stream.
    pub(crate) fn void(&mut self, record: u32) {
        if let Some(record) = self.records.get_mut(record as usize) {
            record.kind = DatagramKind::Void;
        }
    }

    /// Replaces `next` by `count` parts of its payload, to be sent next; each takes its share of
    /// the memory.
    pub(crate) fn split(&mut self, next: Next, count: usize) {
        let Some(whole) = self.records.get_mut(next.record as usize) else { return };
        let range = whole.range();
        let (Some(frame), false) = (whole.frame.take(), whole.is_done) else { return };
        let Record { udp, kind, stream, sequence, clocking, cost, was_sent, .. } = *whole;
        // If the whole arrives after all, its parts are superfluous.
        whole.is_done = true;
        let len = range.len().div_ceil(count.max(1)).max(1);
        let count = range.len().div_ceil(len).max(1);
        let share = cost / count as u32;
        for at in (0..count).rev() {
            let from = (range.start + at * len).min(range.end);
            let to = (from + len).min(range.end);
            let record = Record {
                frame: Some(frame.clone()),
                udp,
                kind,
                stream,
                sequence,
                part: Some((from as u16, to as u16)),
                clocking,
                lost: 0,
                cost: if at == 0 { cost - share * (count as u32 - 1) } else { share },
                refs: 1,
                was_sent,
                is_done: false,
            };
            let record = self.records.insert(record) as u32;
            self.parts.push_front(Next { record, ..next });
        }
        if let Some(stream) = self.streams.get_mut(usize::from(stream as u16)) {
            stream.unacknowledged += count as u32 - 1;
        }
        self.release(next.record);
    }

    /// Notes that `next` was sent: its queue entry becomes a transmission. Further copies follow at
    /// intervals of `spacing`.
    #[inline]
    pub(crate) fn sent(&mut self, now: Instant, next: Next, spacing: Duration) {
        let Some(record) = self.records.get_mut(next.record as usize) else { return };
        if !record.was_sent {
            record.was_sent = true;
            self.outstanding += u64::from(record.cost);
        }
        if next.copies_left > 0 {
            record.refs += 1;
            self.copies.push_back((now + spacing, next.record, next.copies_left));
        }
    }

    /// Queues `record` for retransmission, in `copies` copies.
    pub(crate) fn repeat(&mut self, record: u32, copies: u8) {
        if let Some(held) = self.records.get_mut(record as usize)
            && !held.is_done
        {
            held.refs += 1;
            self.repeats.push_back((record, copies.max(1)));
        }
    }

    /// Applies the outcome of a transmission of `record`.
    #[inline]
    pub(crate) fn settle(&mut self, record: u32, fate: Fate, copies: u8) {
        match fate {
            Fate::Arrived | Fate::ArrivedLate => {
                self.acknowledge(record);
                self.release(record);
            }
            Fate::Lost => {
                self.note_lost(record);
                self.repeat(record, copies);
            }
            Fate::GivenUp => self.repeat(record, copies),
            Fate::Forgotten => self.release(record),
        }
    }

    /// Declares a stream astray if one of its records has been lost too often for a path that
    /// works.
    fn note_lost(&mut self, index: u32) {
        let Some(record) = self.records.get_mut(index as usize).filter(|record| !record.is_done)
        else {
            return;
        };
        record.lost += 1;
        let (is_too_often, id) = (record.lost >= ASTRAY, record.stream);
        let Some(stream) = self.streams.get_mut(usize::from(id as u16)) else { return };
        if !is_too_often || stream.is_reached {
            return;
        }
        stream.state = StreamState::Astray;
        self.astray.extend(stream.key.take().map(|key| WireKey::of(&key)));
        let source = stream.source;
        for (_, record) in
            self.records.iter_mut().filter(|(_, record)| record.stream == id && !record.is_done)
        {
            record.is_done = true;
            record.frame = None;
            self.bytes -= u64::from(record.cost);
            self.outstanding -= if record.was_sent { u64::from(record.cost) } else { 0 };
            if record.clocking == Clocking::None {
                self.unpaced.acknowledge(source, record.cost);
            }
        }
    }

    #[inline]
    fn acknowledge(&mut self, index: u32) {
        let Some(record) = self.records.get_mut(index as usize) else { return };
        if record.is_done {
            return;
        }
        record.is_done = true;
        record.frame = None;
        self.bytes -= u64::from(record.cost);
        self.outstanding -= u64::from(record.cost);
        let slot = record.stream as u16;
        let Some(stream) = self.streams.get_mut(usize::from(slot)) else { return };
        if record.clocking == Clocking::None {
            self.unpaced.acknowledge(stream.source, record.cost);
        }
        stream.unacknowledged -= 1;
        stream.is_reached = true;
        if stream.state == StreamState::Closing && stream.unacknowledged == 0 {
            stream.state = StreamState::Closed;
            self.unpaced.leave(stream.source);
            self.closed.push(slot);
        }
    }

    /// Drops one reference to `record`.
    #[inline]
    pub(crate) fn release(&mut self, record: u32) {
        let Some(held) = self.records.get_mut(record as usize) else { return };
        held.refs -= 1;
        if held.refs == 0 {
            self.records.remove(record as usize);
        }
    }
}
