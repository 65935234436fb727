//! Frames for the hosts' side in one order, whether a session delivers them or they pass.
//!
//! A flow's first frames pass, because no session is open yet, and later ones are tunnelled. Both
//! wait in one queue, so that the frames of a flow leave in the order in which they arrived. Frames
//! that are not RoCEv2 have no order among these, and a queue of their own.

use longhaul_cc::CodelConfig;
use longhaul_node::{FairQueue, FrameBuf, Late, Leaving, Turns};
use longhaul_units::Instant;
use std::collections::VecDeque;

/// Frames whose bytes are fetched into the cache ahead of their transmission.
const FETCH_AHEAD: usize = 4;

/// How a frame came to the queue.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Origin {
    /// Delivered by the session `local`, in whose memory it takes `cost` bytes.
    Session { local: u32, cost: u32 },
    /// Passed untunnelled.
    Passed,
}

/// A FIFO of RoCEv2 frames, and a [`FairQueue`] of all others, which take turns. Sessions bound the
/// memory of the frames that they deliver; the queues bound that of the frames that pass.
#[derive(Debug)]
pub(crate) struct InnerQueue {
    frames: VecDeque<(FrameBuf, Origin)>,
    /// Memory of the RoCEv2 frames that pass, in bytes.
    passed_bytes: u64,
    passed_bytes_max: u64,
    other: FairQueue,
    turns: Turns,
}

/// A frame that leaves the queue.
pub(crate) enum Inward {
    Roce(FrameBuf, Origin),
    Other(Leaving),
}

impl InnerQueue {
    pub(crate) fn new(delay: CodelConfig, passed_bytes_max: u64) -> Self {
        InnerQueue {
            frames: VecDeque::new(),
            passed_bytes: 0,
            passed_bytes_max,
            other: FairQueue::new(delay, passed_bytes_max),
            turns: Turns::default(),
        }
    }

    /// Appends a frame that the session `local` delivers.
    #[inline]
    pub(crate) fn deliver(&mut self, frame: FrameBuf, local: u32, cost: u32) {
        self.frames.push_back((frame, Origin::Session { local, cost }));
    }

    /// Appends a RoCEv2 frame that passes. `false` if there is no room: the frame is dropped.
    #[must_use]
    pub(crate) fn pass_roce(&mut self, frame: FrameBuf) -> bool {
        let bytes = frame.footprint() as u64;
        let fits = self.passed_bytes + bytes <= self.passed_bytes_max;
        if fits {
            self.passed_bytes += bytes;
            self.frames.push_back((frame, Origin::Passed));
        }
        fits
    }

    /// Appends another frame. Returns the number of frames dropped for lack of memory.
    #[must_use]
    pub(crate) fn pass_other(&mut self, now: Instant, frame: FrameBuf) -> u64 {
        self.other.push(now, frame)
    }

    /// Removes the next frame. `takes`: whether RoCEv2 frames may leave, and whether others may.
    #[inline]
    pub(crate) fn pop(&mut self, now: Instant, takes: [bool; 2]) -> Option<Inward> {
        if self.other.is_empty() {
            let roce = if takes[0] { self.pop_roce() } else { None };
            return roce.map(|(frame, origin)| Inward::Roce(frame, origin));
        }
        self.pop_in_turn(now, takes)
    }

    fn pop_in_turn(
        &mut self,
        now: Instant,
        [takes_roce, takes_other]: [bool; 2],
    ) -> Option<Inward> {
        // The other frames may all have waited too long.
        loop {
            let ready =
                [takes_roce && !self.frames.is_empty(), takes_other && !self.other.is_empty()];
            let (next, len) = if self.turns.choose(ready)? == 0 {
                let (frame, origin) = self.pop_roce()?;
                let len = frame.len();
                (Inward::Roce(frame, origin), len)
            } else {
                let Some(leaving) = self.other.pop(now) else { continue };
                let len = leaving.frame_len();
                (Inward::Other(leaving), len)
            };
            self.turns.take(len as u64);
            return Some(next);
        }
    }

    /// True if a frame waits that is not RoCEv2.
    #[inline]
    pub(crate) fn has_other(&self) -> bool {
        !self.other.is_empty()
    }

    pub(crate) fn take_late(&mut self) -> Late {
        self.other.take_late()
    }

    /// Removes the first RoCEv2 frame, and has a later one fetched into the cache.
    #[inline]
    fn pop_roce(&mut self) -> Option<(FrameBuf, Origin)> {
        let (frame, origin) = self.frames.pop_front()?;
        if let Some((soon, _)) = self.frames.get(FETCH_AHEAD) {
            soon.fetch();
        }
        if origin == Origin::Passed {
            self.passed_bytes -= frame.footprint() as u64;
        }
        Some((frame, origin))
    }

    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.frames.is_empty() && self.other.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use longhaul_node::{Frame, FramePool};

    #[test]
    fn frames_leave_in_their_order_and_passed_ones_are_bounded() {
        let mut pool = FramePool::new();
        let mut held = |byte: u8| pool.hold(&Frame::opaque(&[byte; 1000]));
        let cost = held(0).footprint() as u64;
        let mut queue = InnerQueue::new(CodelConfig::default(), 2 * cost);
        assert!(queue.pass_roce(held(1)));
        queue.deliver(held(2), 7, 9);
        assert!(queue.pass_roce(held(3)) && !queue.pass_roce(held(4)));
        queue.deliver(held(5), 7, 9);
        let mut left = Vec::new();
        let now = Instant::ZERO;
        while let Some(Inward::Roce(frame, origin)) = queue.pop(now, [true; 2]) {
            left.push((frame.head()[0], origin == Origin::Passed));
        }
        assert_eq!(left, [(1, true), (2, false), (3, true), (5, false)]);
        assert!(queue.is_empty() && queue.pass_roce(held(6)) && queue.pass_roce(held(7)));
    }

    #[test]
    fn other_frames_pass_roce_that_is_held_back() {
        let mut pool = FramePool::new();
        let mut held = |byte: u8| pool.hold(&Frame::opaque(&[byte; 1000]));
        let mut queue = InnerQueue::new(CodelConfig::default(), 1 << 20);
        let now = Instant::ZERO;
        queue.deliver(held(1), 7, 9);
        assert_eq!(queue.pass_other(now, held(2)), 0);
        assert!(matches!(queue.pop(now, [false, true]), Some(Inward::Other(_))));
        assert!(queue.pop(now, [false, true]).is_none() && !queue.is_empty());
        assert!(matches!(queue.pop(now, [true, true]), Some(Inward::Roce(..))));
    }
}
