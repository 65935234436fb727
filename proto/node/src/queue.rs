//! A bounded queue of frames.

use crate::{FrameBuf, FramePool};
use std::collections::VecDeque;

/// Frames that wait for room on one side, first in first out, bounded in bytes of memory.
#[derive(Debug)]
pub struct FrameQueue {
    frames: VecDeque<FrameBuf>,
    bytes: u64,
    bytes_max: u64,
    popped: u64,
}

impl FrameQueue {
    /// An empty queue for at most `bytes_max` bytes ([`FrameBuf::footprint`]).
    pub fn new(bytes_max: u64) -> Self {
        FrameQueue { frames: VecDeque::new(), bytes: 0, bytes_max, popped: 0 }
    }

    /// Appends `frame`. `false` if the queue is full: the frame is dropped.
    #[inline(always)]
    #[must_use]
    pub fn push(&mut self, frame: FrameBuf) -> bool {
        let bytes = frame.footprint() as u64;
        let fits = self.bytes + bytes <= self.bytes_max;
        if fits {
            self.bytes += bytes;
            self.frames.push_back(frame);
        }
        fits
    }

    /// Removes the first frame.
    #[inline]
    pub fn pop(&mut self) -> Option<FrameBuf> {
        let frame = self.frames.pop_front()?;
        self.bytes -= frame.footprint() as u64;
        self.popped += 1;
        Some(frame)
    }

    /// True if no frame waits.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.frames.is_empty()
    }

    /// Number of further frames with `payload_len` bytes of payload that fit, if the queue may take
    /// `bytes_max` bytes, and no more than its own bound.
    pub fn room(&self, payload_len: usize, bytes_max: u64) -> usize {
        let free = bytes_max.min(self.bytes_max).saturating_sub(self.bytes);
        let frames = free / FramePool::footprint(payload_len) as u64;
        usize::try_from(frames).unwrap_or(usize::MAX)
    }

    /// A mark behind the last queued frame.
    #[inline]
    pub fn mark(&self) -> u64 {
        self.popped + self.frames.len() as u64
    }

    /// True if every frame before `mark` has left.
    #[inline]
    pub fn has_passed(&self, mark: u64) -> bool {
        self.popped >= mark
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Frame;

    fn frame(pool: &mut FramePool) -> FrameBuf {
        pool.hold(&Frame::opaque(&[7; 1000]))
    }

    #[test]
    fn bytes_are_bounded_and_given_back() {
        let mut pool = FramePool::new();
        let cost = FramePool::footprint(1000 - longhaul_wire::HEAD_MAX) as u64;
        let mut queue = FrameQueue::new(2 * cost);
        let room = |queue: &FrameQueue, max| queue.room(1000 - longhaul_wire::HEAD_MAX, max);
        assert_eq!((room(&queue, u64::MAX), room(&queue, cost)), (2, 1));
        assert!(queue.push(frame(&mut pool)) && queue.push(frame(&mut pool)));
        assert!(!queue.push(frame(&mut pool)));
        assert_eq!((room(&queue, u64::MAX), room(&queue, cost)), (0, 0));
        assert!(queue.pop().is_some() && queue.push(frame(&mut pool)));
        assert!(queue.pop().is_some() && queue.pop().is_some() && queue.pop().is_none());
        assert!(queue.is_empty());
    }

    #[test]
    fn a_mark_has_passed_once_what_is_before_it_has_left() {
        let mut pool = FramePool::new();
        let mut queue = FrameQueue::new(1 << 20);
        assert!(queue.has_passed(queue.mark()));
        assert!(queue.push(frame(&mut pool)));
        let mark = queue.mark();
        assert!(queue.push(frame(&mut pool)) && !queue.has_passed(mark));
        assert!(queue.pop().is_some() && queue.has_passed(mark));
        assert!(!queue.has_passed(queue.mark()));
    }
}
