//! Bounded queue of frames that wait for room at one side.

use longhaul_node::{FrameBuf, FramePool};
use std::collections::VecDeque;

/// Memory that a frame of a 4 KiB path MTU takes: what one more frame of intake is counted as.
const FRAME_COST: u64 = FramePool::footprint(4096 + 256) as u64;

/// Frames that wait for room on one side, in the order they came, bounded in bytes of memory.
pub(crate) struct Queue {
    frames: VecDeque<FrameBuf>,
    bytes: u64,
    bytes_max: u64,
}

impl Queue {
    pub(crate) fn new(bytes_max: u64) -> Self {
        Queue { frames: VecDeque::new(), bytes: 0, bytes_max }
    }

    /// False: it is full, and the frame is gone.
    #[inline(always)]
    pub(crate) fn push(&mut self, frame: FrameBuf) -> bool {
        let bytes = frame.footprint() as u64;
        let fits = self.bytes + bytes <= self.bytes_max;
        if fits {
            self.bytes += bytes;
            self.frames.push_back(frame);
        }
        fits
    }

    #[inline]
    pub(crate) fn pop(&mut self) -> Option<FrameBuf> {
        let frame = self.frames.pop_front()?;
        self.bytes -= frame.footprint() as u64;
        Some(frame)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.frames.is_empty()
    }

    /// Frames that it takes.
    pub(crate) fn intake(&self) -> usize {
        usize::try_from((self.bytes_max - self.bytes) / FRAME_COST).unwrap_or(usize::MAX)
    }
}
