//! The queue of frames that pass through a box.

use crate::{FairQueue, FrameBuf, FrameQueue, Late, Leaving, Turns};
use longhaul_cc::CodelConfig;
use longhaul_units::Instant;

/// Frames that pass and wait for room on one side.
///
/// RoCEv2 frames and all others wait separately and take turns by bytes:
///
/// - RoCEv2 frames leave in their order, and none is dropped or marked below the byte bound. A
///   dropped frame costs its sender the round trip of everything behind it, and the number of
///   outstanding requests bounds the frames that wait.
/// - Other frames are queued by flow, with a bounded sojourn time ([`FairQueue`]).
#[derive(Debug)]
pub struct PassingQueue {
    roce: FrameQueue,
    other: FairQueue,
    turns: Turns,
}

impl PassingQueue {
    /// An empty queue for at most `bytes_max` bytes of RoCEv2 frames and as many of others
    /// ([`FrameBuf::footprint`]).
    pub fn new(config: CodelConfig, bytes_max: u64) -> Self {
        PassingQueue {
            roce: FrameQueue::new(bytes_max),
            other: FairQueue::new(config, bytes_max),
            turns: Turns::default(),
        }
    }

    /// As [`FairQueue::reconfigure`].
    pub fn reconfigure(&mut self, config: CodelConfig) {
        self.other.reconfigure(config);
    }

    /// Appends a RoCEv2 frame. `false` if the queue is full: the frame is dropped.
    #[inline(always)]
    #[must_use]
    pub fn push_roce(&mut self, frame: FrameBuf) -> bool {
        self.roce.push(frame)
    }

    /// Appends another frame. Returns the number of frames dropped for lack of memory, which may
    /// include this one.
    #[must_use]
    pub fn push_other(&mut self, now: Instant, frame: FrameBuf) -> u64 {
        self.other.push(now, frame)
    }

    /// Removes the next frame of either kind.
    #[inline]
    pub fn pop(&mut self, now: Instant) -> Option<Leaving> {
        if self.other.is_empty() {
            return self.roce.pop().map(Leaving::unmarked);
        }
        self.pop_in_turn(now)
    }

    fn pop_in_turn(&mut self, now: Instant) -> Option<Leaving> {
        // The frames of a chosen queue may all have waited too long.
        loop {
            let chosen = self.turns.choose([!self.roce.is_empty(), !self.other.is_empty()])?;
            let leaving = match chosen {
                0 => self.roce.pop().map(Leaving::unmarked),
                _ => self.other.pop(now),
            };
            if let Some(leaving) = leaving {
                self.turns.take(leaving.frame_len() as u64);
                return Some(leaving);
            }
        }
    }

    /// Removes the next frame that is not RoCEv2.
    #[inline]
    pub fn pop_other(&mut self, now: Instant) -> Option<Leaving> {
        if self.other.is_empty() { None } else { self.other.pop(now) }
    }

    /// True if no frame waits.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.roce.is_empty() && self.other.is_empty()
    }

    /// True if a frame waits that is not RoCEv2.
    #[inline]
    pub fn has_other(&self) -> bool {
        !self.other.is_empty()
    }

    /// True if a RoCEv2 frame waits.
    #[inline]
    pub fn has_roce(&self) -> bool {
        !self.roce.is_empty()
    }

    /// As [`FrameQueue::room`], for RoCEv2 frames.
    pub fn room(&self, payload_len: usize, bytes_max: u64) -> usize {
        self.roce.room(payload_len, bytes_max)
    }

    /// A mark behind the last RoCEv2 frame.
    #[inline]
    pub fn mark(&self) -> u64 {
        self.roce.mark()
    }

    /// True if every RoCEv2 frame before `mark` has left.
    #[inline]
    pub fn has_passed(&self, mark: u64) -> bool {
        self.roce.has_passed(mark)
    }

    /// Returns the frames that waited too long since the last call.
    #[inline]
    pub fn take_late(&mut self) -> Late {
        self.other.take_late()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Frame, FramePool};
    use longhaul_units::Duration;

    /// A frame whose first byte is `kind`.
    fn frame(pool: &mut FramePool, kind: u8, len: usize) -> FrameBuf {
        pool.hold(&Frame::opaque(&vec![kind; len]))
    }

    #[test]
    fn other_traffic_has_half_of_the_bytes_beside_roce_and_roce_loses_nothing() {
        let mut pool = FramePool::new();
        let mut queue = PassingQueue::new(CodelConfig::default(), 64 << 20);
        let (mut bytes, mut late) = ([0; 2], Late::default());
        let (mut now, mut pushed) = (Instant::ZERO, 0_u64);
        for _ in 0..20_000 {
            assert!(queue.push_roce(frame(&mut pool, 0, 1082)));
            pushed += 1082;
            assert_eq!(queue.push_other(now, frame(&mut pool, 1, 1514)), 0);
            let leaving = queue.pop(now).unwrap();
            bytes[usize::from(leaving.frame().head()[0])] += leaving.frame_len() as u64;
            late.dropped += queue.take_late().dropped;
            now += Duration::from_us(20);
        }
        assert!(bytes[0].abs_diff(bytes[1]) < 40_000, "{bytes:?}");
        assert!(late.dropped > 0);
        let mark = queue.mark();
        while let Some(leaving) = queue.pop(now) {
            let kind = usize::from(leaving.frame().head()[0]);
            bytes[kind] += leaving.frame_len() as u64;
        }
        assert_eq!(bytes[0], pushed, "no RoCE frame is lost");
        assert!(queue.has_passed(mark) && queue.is_empty());
    }

    #[test]
    fn other_traffic_passes_roce_that_is_held_back() {
        let mut pool = FramePool::new();
        let mut queue = PassingQueue::new(CodelConfig::default(), 1 << 20);
        let now = Instant::ZERO;
        assert!(queue.push_roce(frame(&mut pool, 0, 100)));
        assert_eq!(queue.push_other(now, frame(&mut pool, 1, 100)), 0);
        assert_eq!(queue.pop_other(now).unwrap().frame().head()[0], 1);
        assert!(queue.pop_other(now).is_none() && !queue.is_empty());
        assert_eq!(queue.pop(now).unwrap().frame().head()[0], 0);
    }
}
