//! Receiving half of a session: delivers each stream's frames in order, and holds those that wait
//! for earlier ones.

use crate::format::{DatagramKind, Extent, Prefix};
use crate::partial::{Fit, Partial, Piece};
use longhaul_node::{FrameBuf, FramePool};
use slab::Slab;
use std::collections::VecDeque;

/// Empty entry of a stream's ring.
const NONE: u32 = u32::MAX;

/// Content of one position in a stream.
pub(crate) enum Item {
    Frame(FrameBuf),
    End,
    Void,
    /// Parts of a frame. They keep their position in the ring, even at the front, until the frame
    /// is complete.
    Partial(Partial),
}

/// Verdict on a frame or part that arrives.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Verdict {
    /// Accept it.
    Take,
    /// It is held or was delivered: acknowledge it again and drop it.
    Duplicate,
    /// Its stream is invalid, or its position is.
    Outside,
    /// There is no memory for it.
    NoRoom,
}

struct StreamIn {
    generation: u16,
    is_open: bool,
    next: u64,
    /// Waiting items, by distance from `next`.
    ring: VecDeque<u32>,
    /// Headers of a recent frame.
    prefix: Option<Prefix>,
}

pub(crate) struct Incoming {
    streams: Vec<Option<StreamIn>>,
    streams_max: usize,
    waiting: Slab<(Item, u32)>,
    /// Positions in the rings of all streams.
    places: usize,
    places_max: usize,
    /// Memory of frames that wait, here or for room inside.
    bytes: u64,
    bytes_peak: u64,
    bytes_max: u64,
    /// Unused lists of pieces.
    rooms: Vec<Vec<Piece>>,
    scratch: Vec<u8>,
    /// Room last advertised to the far box.
    told_room: u64,
}

impl Incoming {
    pub(crate) fn new(bytes_max: u64, streams_max: u32, places_max: u32) -> Self {
        Incoming {
            streams: Vec::new(),
            streams_max: streams_max as usize,
            waiting: Slab::new(),
            places: 0,
            places_max: places_max as usize,
            bytes: 0,
            bytes_peak: 0,
            bytes_max,
            rooms: Vec::new(),
            scratch: Vec::new(),
            told_room: bytes_max,
        }
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    pub(crate) fn bytes_peak(&self) -> u64 {
        self.bytes_peak
    }

    /// Frames that wait for earlier ones.
    pub(crate) fn waiting(&self) -> usize {
        self.waiting.len()
    }

    /// Open streams.
    pub(crate) fn streams_open(&self) -> usize {
        self.streams.iter().flatten().filter(|stream| stream.is_open).count()
    }

    /// Free memory; records it as advertised to the far box.
    pub(crate) fn tell_room(&mut self) -> u64 {
        self.told_room = self.bytes_max.saturating_sub(self.bytes);
        self.told_room
    }

    /// `true` if the room last advertised to the far box is small and there is more.
    pub(crate) fn owes_room(&self) -> bool {
        let room = self.bytes_max.saturating_sub(self.bytes);
        self.told_room < self.bytes_max / 2 && room > self.told_room + self.bytes_max / 8
    }

    /// Verdict on position `sequence` (low half) of `stream`, for a frame that takes `cost` bytes
    /// of memory.
    #[inline]
    pub(crate) fn look(&self, stream: u32, sequence: u32, cost: u32) -> Verdict {
        self.judge(stream, sequence, cost, |partial| partial.is_some().then_some(Fit::Wanted))
    }

    /// Verdict on a part of a frame: `len` bytes at `extent`.
    pub(crate) fn look_at_part(
        &self,
        (stream, sequence): (u32, u32),
        extent: Extent,
        len: u16,
        cost: u32,
    ) -> Verdict {
        self.judge(stream, sequence, cost, |partial| Some(partial?.fit(extent, len)))
    }

    /// Common part of both: `fit` judges the item against the parts held at its position, if any.
    #[inline]
    fn judge(
        &self,
        stream: u32,
        sequence: u32,
        cost: u32,
        fit: impl Fn(Option<&Partial>) -> Option<Fit>,
    ) -> Verdict {
        let (slot, generation) = (stream as u16, (stream >> 16) as u16);
        if usize::from(slot) >= self.streams_max {
            return Verdict::Outside;
        }
        let (distance, places) = match self.streams.get(usize::from(slot)) {
            Some(Some(held)) => match generation.wrapping_sub(held.generation) as i16 {
                0 if !held.is_open => return Verdict::Duplicate,
                0 => {
                    let distance = sequence.wrapping_sub(held.next as u32) as i32;
                    if distance < 0 {
                        return Verdict::Duplicate;
                    }
                    if let Some(&index) =
                        held.ring.get(distance as usize).filter(|&&index| index != NONE)
                    {
                        let there = match self.waiting.get(index as usize) {
                            Some((Item::Partial(partial), _)) => Some(partial),
                            _ => None,
                        };
                        match fit(there) {
                            Some(Fit::Wanted) => {}
                            Some(Fit::Unfit) => return Verdict::Outside,
                            Some(Fit::Covered) | None => return Verdict::Duplicate,
                        }
                    }
                    (distance, held.ring.len())
                }
                ..0 => return Verdict::Duplicate,
                // The sender ends a stream before it reuses its slot.
                _ if held.is_open => return Verdict::Outside,
                _ => (sequence as i32, 0),
            },
            _ => (sequence as i32, 0),
        };
        let more = (i64::from(distance) + 1 - places as i64).max(0) as usize;
        if distance < 0 || distance > 0 && self.places + more > self.places_max {
            return Verdict::Outside;
        }
        // The next frame of a stream is delivered at once. It may use a reserve, so that its
        // successors can follow.
        let reserve = if distance == 0 { self.bytes_max / 16 } else { 0 };
        if self.bytes + u64::from(cost) > self.bytes_max + reserve {
            Verdict::NoRoom
        } else {
            Verdict::Take
        }
    }

    /// Accepts an item for which [`Incoming::look`] returned [`Verdict::Take`]. `deliver` gets each
    /// frame that is next in order; its memory counts until [`Incoming::gone`]. Returns `true` if
    /// this begins a stream.
    #[inline]
    pub(crate) fn take(
        &mut self,
        stream: u32,
        sequence: u32,
        item: Item,
        cost: u32,
        mut deliver: impl FnMut(FrameBuf, u32),
    ) -> bool {
        let (slot, generation) = (usize::from(stream as u16), (stream >> 16) as u16);
        let is_begun = self.begin(slot, generation);
        // The parts of a frame that arrives whole are of no further use.
        self.take_partial(slot, sequence);
        let Some(held) = &mut self.streams[slot] else { return false };
        self.bytes += u64::from(cost);
        self.bytes_peak = self.bytes_peak.max(self.bytes);
        let distance = sequence.wrapping_sub(held.next as u32) as usize;
        if distance > 0 {
            let index = self.waiting.insert((item, cost)) as u32;
            let len = held.ring.len().max(distance + 1);
            self.places += len - held.ring.len();
            held.ring.resize(len, NONE);
            held.ring[distance] = index;
            return is_begun;
        }
        let mut ready = Some((item, cost));
        while let Some((item, cost)) = ready {
            held.next += 1;
            self.places -= usize::from(held.ring.pop_front().is_some());
            match item {
                Item::Frame(frame) => deliver(frame, cost),
                Item::Void | Item::Partial(_) => self.bytes -= u64::from(cost),
                Item::End => {
                    held.is_open = false;
                    self.places -= held.ring.len();
                    let behind = std::mem::take(&mut held.ring);
                    for index in behind.into_iter().filter(|&index| index != NONE) {
                        self.bytes -= u64::from(self.waiting.remove(index as usize).1);
                    }
                    break;
                }
            }
            ready = match held.ring.front() {
                Some(&index) if index != NONE => match self.waiting.get(index as usize) {
                    Some((Item::Partial(_), _)) | None => None,
                    Some(_) => Some(self.waiting.remove(index as usize)),
                },
                _ => None,
            };
        }
        is_begun
    }

    /// Begins the stream in `slot` if necessary. Returns `true` if it is new.
    #[inline]
    fn begin(&mut self, slot: usize, generation: u16) -> bool {
        if self.streams.len() <= slot {
            self.streams.resize_with(slot + 1, || None);
        }
        let held = &mut self.streams[slot];
        let is_begun = held.as_ref().is_none_or(|held| held.generation != generation);
        if is_begun {
            *held = Some(StreamIn {
                generation,
                is_open: true,
                next: 0,
                ring: VecDeque::new(),
                prefix: None,
            });
        }
        is_begun
    }

    /// Removes the parts held at a position and releases their memory.
    #[inline]
    fn take_partial(&mut self, slot: usize, sequence: u32) -> Option<Partial> {
        let held = self.streams[slot].as_mut()?;
        let distance = sequence.wrapping_sub(held.next as u32) as usize;
        let place = held.ring.get_mut(distance).filter(|index| **index != NONE)?;
        if !matches!(self.waiting.get(*place as usize), Some((Item::Partial(_), _))) {
            return None;
        }
        let (item, cost) = self.waiting.remove(*place as usize);
        *place = NONE;
        self.bytes -= u64::from(cost);
        match item {
            Item::Partial(partial) => Some(partial),
            _ => None,
        }
    }

    /// Accepts a part for which [`Incoming::look_at_part`] returned [`Verdict::Take`]. Returns
    /// whether this begins a stream, and if the frame is complete, the frame, for
    /// [`Incoming::take`]. `Some(None)`: the parts do not form a valid frame.
    pub(crate) fn take_part(
        &mut self,
        pool: &mut FramePool,
        (stream, sequence): (u32, u32),
        udp_checksum: u16,
        total: u16,
        piece: Piece,
        cost: u32,
    ) -> (bool, Option<Option<FrameBuf>>) {
        let (slot, generation) = (usize::from(stream as u16), (stream >> 16) as u16);
        let is_begun = self.begin(slot, generation);
        let Some(held) = &mut self.streams[slot] else { return (false, None) };
        let distance = sequence.wrapping_sub(held.next as u32) as usize;
        let len = held.ring.len().max(distance + 1);
        self.places += len - held.ring.len();
        held.ring.resize(len, NONE);
        let rooms = &mut self.rooms;
        let place = &mut held.ring[distance];
        if *place == NONE {
            let partial = Partial::new(total, udp_checksum, rooms.pop().unwrap_or_default());
            *place = self.waiting.insert((Item::Partial(partial), 0)) as u32;
        }
        self.bytes += u64::from(cost);
        self.bytes_peak = self.bytes_peak.max(self.bytes);
        let Some((Item::Partial(partial), of_all)) = self.waiting.get_mut(*place as usize) else {
            return (is_begun, None);
        };
        *of_all += cost;
        partial.add(piece);
        if !partial.is_whole() {
            return (is_begun, None);
        }
        let Some(partial) = self.take_partial(slot, sequence) else { return (is_begun, None) };
        let frame = partial.assemble(pool, &mut self.scratch);
        self.rooms.push(partial.into_room());
        (is_begun, Some(frame))
    }

    /// Notes the headers of a frame of `stream`, which has begun.
    #[inline]
    pub(crate) fn note_prefix(&mut self, stream: u32, prefix: Prefix) {
        if let Some(Some(held)) = self.streams.get_mut(usize::from(stream as u16)) {
            held.prefix = Some(prefix);
        }
    }

    /// Headers of a recent frame of `stream`.
    pub(crate) fn prefix(&self, stream: u32) -> Option<&Prefix> {
        let held = self.streams.get(usize::from(stream as u16))?.as_ref()?;
        held.prefix.as_ref().filter(|_| held.generation == (stream >> 16) as u16)
    }

    /// Releases the memory of a delivered frame.
    #[inline]
    pub(crate) fn gone(&mut self, cost: u32) {
        self.bytes -= u64::from(cost);
    }

    /// The item for a stream record that is not a frame.
    pub(crate) fn item(kind: DatagramKind) -> Item {
        if kind == DatagramKind::End { Item::End } else { Item::Void }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use longhaul_node::{Frame, FramePool};
    use proptest::prelude::*;

    struct Rig {
        incoming: Incoming,
        pool: FramePool,
        out: Vec<(u8, u64)>,
    }

    impl Rig {
        fn new(bytes_max: u64, places_max: u32) -> Self {
            Rig {
                incoming: Incoming::new(bytes_max, 4, places_max),
                pool: FramePool::new(),
                out: Vec::new(),
            }
        }

        fn frame(&mut self, stream: u32, sequence: u64) -> Verdict {
            let verdict = self.incoming.look(stream, sequence as u32, 100);
            if verdict == Verdict::Take {
                let mut bytes = [0; 60];
                bytes[0] = stream as u8;
                bytes[1..9].copy_from_slice(&sequence.to_be_bytes());
                let held = self.pool.hold(&Frame::opaque(&bytes));
                let out = &mut self.out;
                self.incoming.take(stream, sequence as u32, Item::Frame(held), 100, |frame, _| {
                    let head = frame.head();
                    out.push((head[0], u64::from_be_bytes(head[1..9].try_into().unwrap())));
                });
            }
            verdict
        }

        fn end(&mut self, stream: u32, sequence: u64) {
            assert_eq!(self.incoming.look(stream, sequence as u32, 0), Verdict::Take);
            self.incoming.take(stream, sequence as u32, Item::End, 0, |_, _| {});
        }
    }

    #[test]
    fn streams_do_not_wait_for_each_other() {
        let mut rig = Rig::new(10_000, 100);
        for (stream, sequence) in [(0, 1), (1, 0), (1, 1), (0, 2)] {
            assert_eq!(rig.frame(stream, sequence), Verdict::Take);
        }
        assert_eq!(rig.out, [(1, 0), (1, 1)]);
        rig.frame(0, 0);
        assert_eq!(rig.out[2..], [(0, 0), (0, 1), (0, 2)]);
    }

    #[test]
    fn a_stream_that_ended_is_not_reopened_by_what_comes_late() {
        let mut rig = Rig::new(10_000, 100);
        rig.frame(2, 0);
        rig.end(2, 1);
        assert_eq!(rig.frame(2, 0), Verdict::Duplicate);
        assert_eq!(rig.frame(2, 1), Verdict::Duplicate);
        assert_eq!(rig.incoming.streams_open(), 0);
        assert_eq!(rig.frame(1 << 16 | 2, 0), Verdict::Take);
        assert_eq!(rig.frame(2, 0), Verdict::Duplicate, "of the life before");
        assert_eq!(rig.frame(7 << 16 | 2, 0), Verdict::Outside, "this life has not ended");
    }

    #[test]
    fn what_is_too_far_ahead_or_too_much_is_not_taken() {
        let mut rig = Rig::new(1000, 64);
        assert_eq!(rig.frame(0, 64), Verdict::Outside);
        assert_eq!(rig.frame(0, u64::from(u32::MAX)), Verdict::Outside);
        assert_eq!(rig.frame(9, 0), Verdict::Outside, "a stream beyond the table");
        for sequence in 1..=10 {
            assert_eq!(rig.frame(0, sequence), Verdict::Take);
        }
        assert_eq!(rig.frame(0, 11), Verdict::NoRoom);
        assert_eq!(rig.incoming.tell_room(), 0);
    }

    proptest! {
        #![proptest_config(ProptestConfig {
            failure_persistence: None,
            ..ProptestConfig::default()
        })]

        /// In any order and with duplicates, each frame is delivered once and in order, and all
        /// memory is released.
        #[test]
        fn each_once_and_in_order(
            order in Just((0..60_u64).chain(0..60).collect::<Vec<_>>()).prop_shuffle(),
        ) {
            let mut rig = Rig::new(1 << 20, 64);
            for sequence in order {
                rig.frame(3, sequence);
            }
            prop_assert_eq!(rig.out, (0..60).map(|n| (3, n)).collect::<Vec<_>>());
            prop_assert_eq!(rig.incoming.waiting(), 0);
            prop_assert_eq!(rig.incoming.places, 0);
            (0..60).for_each(|_| rig.incoming.gone(100));
            prop_assert_eq!(rig.incoming.bytes(), 0);
        }
    }
}
