//! What one session has to send: frames and stream records, until the far box has them.

use crate::flight::Fate;
use crate::format::Kind;
use crate::key::{StreamKey, WireKey};
use longhaul_node::{FrameBuf, FramePool};
use longhaul_units::{Duration, Instant};
use longhaul_wire::Udp;
use slab::Slab;
use std::collections::VecDeque;
use std::ops::Range;

/// One frame, or a record that takes a place in a stream as one does.
pub(crate) struct Record {
    pub(crate) frame: Option<FrameBuf>,
    pub(crate) udp: Udp,
    pub(crate) kind: Kind,
    pub(crate) stream: u32,
    pub(crate) sequence: u64,
    /// What of the frame's payload it carries, where that is not all.
    pub(crate) part: Option<(u16, u16)>,
    cost: u32,
    /// Queue entries and transmissions that name it.
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
}

struct StreamOut {
    key: Option<StreamKey>,
    generation: u16,
    next: u64,
    unacknowledged: u32,
    used_at: Instant,
    state: StreamState,
}

/// What is to be sent next.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Next {
    pub(crate) record: u32,
    pub(crate) is_repeat: bool,
    copies_left: u8,
}

impl Record {
    /// What of its payload it carries.
    pub(crate) fn range(&self) -> Range<usize> {
        let len = self.frame.as_ref().map_or(0, |frame| frame.as_frame().payload.len());
        self.part.map_or(0..len, |(from, to)| from.into()..to.into())
    }
}

/// See the module.
pub(crate) struct Outgoing {
    records: Slab<Record>,
    fresh: VecDeque<u32>,
    /// Memory of those.
    fresh_bytes: u64,
    /// Parts of what was about to be sent.
    parts: VecDeque<Next>,
    /// Records to be sent again, and how often.
    repeats: VecDeque<(u32, u8)>,
    /// Further copies, and when they are due.
    copies: VecDeque<(Instant, u32, u8)>,
    streams: Vec<StreamOut>,
    closed: Vec<u16>,
    streams_max: usize,
    /// Memory of what is not acknowledged.
    bytes: u64,
    bytes_peak: u64,
    bytes_max: u64,
    /// Of that, what may be under way or with the far box unacknowledged.
    outstanding: u64,
    /// What the far box has room for.
    pub(crate) room: u64,
}

/// Memory that keeping a frame costs, in bytes; a synthetic payload costs as if it were there.
pub(crate) fn cost(frame: &FrameBuf) -> u32 {
    FramePool::footprint(frame.as_frame().payload.len()) as u32
}

impl Outgoing {
    pub(crate) fn new(bytes_max: u64, streams_max: u32) -> Self {
        Outgoing {
            records: Slab::new(),
            fresh: VecDeque::new(),
            fresh_bytes: 0,
            parts: VecDeque::new(),
            repeats: VecDeque::new(),
            copies: VecDeque::new(),
            streams: Vec::new(),
            closed: Vec::new(),
            streams_max: streams_max as usize,
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

    /// Memory that is free.
    pub(crate) fn free_bytes(&self) -> u64 {
        self.bytes_max.saturating_sub(self.bytes)
    }

    /// Memory of what was never sent.
    pub(crate) fn fresh_bytes(&self) -> u64 {
        self.fresh_bytes
    }

    /// Frames that the far box does not have.
    pub(crate) fn frames(&self) -> u64 {
        self.records.iter().filter(|(_, record)| !record.is_done && record.kind == Kind::Data).count() as u64
    }

    /// Streams that are not closed.
    pub(crate) fn streams_open(&self) -> usize {
        self.streams.len() - self.closed.len()
    }

    /// Opens a stream. `None`: there are as many as there may be.
    pub(crate) fn open(&mut self, now: Instant, key: StreamKey) -> Option<u16> {
        let slot = match self.closed.pop() {
            Some(slot) => slot,
            None if self.streams.len() < self.streams_max => {
                self.streams.push(StreamOut {
                    key: None,
                    // The first life is 0.
                    generation: u16::MAX,
                    next: 0,
                    unacknowledged: 0,
                    used_at: now,
                    state: StreamState::Closed,
                });
                (self.streams.len() - 1) as u16
            }
            None => return None,
        };
        let stream = &mut self.streams[usize::from(slot)];
        stream.key = Some(key);
        stream.generation = stream.generation.wrapping_add(1);
        stream.next = 0;
        stream.used_at = now;
        stream.state = StreamState::Open;
        Some(slot)
    }

    /// Takes a frame into a stream. False: no room.
    #[inline]
    pub(crate) fn push(&mut self, now: Instant, slot: u16, udp: Udp, frame: FrameBuf) -> bool {
        let cost = cost(&frame);
        if self.bytes + u64::from(cost) > self.bytes_max {
            return false;
        }
        self.append(now, slot, Kind::Data, udp, Some(frame), cost);
        true
    }

    #[inline]
    fn append(&mut self, now: Instant, slot: u16, kind: Kind, udp: Udp, frame: Option<FrameBuf>, cost: u32) {
        let Some(stream) = self.streams.get_mut(usize::from(slot)) else { return };
        let record = Record {
            frame,
            udp,
            kind,
            stream: u32::from(stream.generation) << 16 | u32::from(slot),
            sequence: stream.next,
            part: None,
            cost,
            refs: 1,
            was_sent: false,
            is_done: false,
        };
        stream.next += 1;
        stream.unacknowledged += 1;
        stream.used_at = now;
        self.bytes += u64::from(cost);
        self.bytes_peak = self.bytes_peak.max(self.bytes);
        self.fresh_bytes += u64::from(cost);
        self.fresh.push_back(self.records.insert(record) as u32);
    }

    /// Ends streams that carried nothing since `since`. Returns the keys of those that ended.
    pub(crate) fn end_idle(&mut self, now: Instant, since: Instant) -> Vec<WireKey> {
        let mut ended = Vec::new();
        for slot in 0..self.streams.len() {
            let stream = &mut self.streams[slot];
            if stream.state != StreamState::Open || stream.unacknowledged > 0 || stream.used_at > since {
                continue;
            }
            stream.state = StreamState::Closing;
            ended.extend(stream.key.take().map(|key| WireKey::of(&key)));
            let nowhere = Udp { ip: 0, is_ipv6: false, udp: 0 };
            self.append(now, slot as u16, Kind::End, nowhere, None, 0);
        }
        ended
    }

    /// True when something waits that may be sent at `now`.
    #[inline]
    pub(crate) fn has_next(&self, now: Instant) -> bool {
        !self.parts.is_empty()
            || !self.repeats.is_empty()
            || self.copies.front().is_some_and(|&(at, ..)| at <= now)
            || self.fresh.front().is_some_and(|&record| self.may_send(record))
    }

    /// True when a repetition waits.
    #[inline]
    pub(crate) fn has_repeat(&self) -> bool {
        self.parts.front().map_or(!self.repeats.is_empty(), |part| part.is_repeat)
    }

    /// The far box has room for this one.
    #[inline]
    fn may_send(&self, record: u32) -> bool {
        let cost = self.records.get(record as usize).map_or(0, |record| u64::from(record.cost));
        self.outstanding + cost <= self.room
    }

    /// When a further copy is due, if nothing else waits.
    pub(crate) fn copy_at(&self) -> Option<Instant> {
        self.copies.front().map(|&(at, ..)| at)
    }

    /// What is to be sent: repetitions first. The caller sends it, or gives up on it by [`Outgoing::release`].
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
                let &record = self.fresh.front()?;
                if !self.may_send(record) {
                    return None;
                }
                self.fresh.pop_front();
                let cost = self.records.get(record as usize).map_or(0, |record| u64::from(record.cost));
                self.fresh_bytes -= cost;
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

    /// A frame that nobody can take: its place in the stream stays, empty.
    pub(crate) fn void(&mut self, record: u32) {
        if let Some(record) = self.records.get_mut(record as usize) {
            record.kind = Kind::Void;
        }
    }

    /// Instead of `next`, `count` parts of what it carries are to be sent next; each has its share of the memory.
    pub(crate) fn split(&mut self, next: Next, count: usize) {
        let Some(whole) = self.records.get_mut(next.record as usize) else { return };
        let range = whole.range();
        let (Some(frame), false) = (whole.frame.take(), whole.is_done) else { return };
        let Record { udp, kind, stream, sequence, cost, was_sent, .. } = *whole;
        // Should it have arrived after all, its parts are there for nothing.
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

    /// `next` has been sent: the place in the queue that named it has become a transmission. Further copies follow
    /// `spacing` apart.
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

    /// Sends `record` again, `copies` times.
    pub(crate) fn repeat(&mut self, record: u32, copies: u8) {
        if let Some(held) = self.records.get_mut(record as usize)
            && !held.is_done
        {
            held.refs += 1;
            self.repeats.push_back((record, copies.max(1)));
        }
    }

    /// A transmission of `record` has met its fate.
    #[inline]
    pub(crate) fn settle(&mut self, record: u32, fate: Fate, copies: u8) {
        match fate {
            Fate::Arrived | Fate::ArrivedLate => {
                self.acknowledge(record);
                self.release(record);
            }
            Fate::Lost => self.repeat(record, copies),
            Fate::Forgotten => self.release(record),
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
        stream.unacknowledged -= 1;
        if stream.state == StreamState::Closing && stream.unacknowledged == 0 {
            stream.state = StreamState::Closed;
            self.closed.push(slot);
        }
    }

    /// One that named `record` no longer does.
    #[inline]
    pub(crate) fn release(&mut self, record: u32) {
        let Some(held) = self.records.get_mut(record as usize) else { return };
        held.refs -= 1;
        if held.refs == 0 {
            self.records.remove(record as usize);
        }
    }
}
