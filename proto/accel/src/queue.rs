//! A queue of frames that pass and wait for room on one side.

use longhaul_node::FrameBuf;
use std::collections::VecDeque;

/// Frames that wait for room on one side, in the order they came, bounded in bytes of memory.
#[derive(Debug)]
pub(crate) struct Queue {
    frames: VecDeque<FrameBuf>,
    bytes: u64,
    bytes_max: u64,
    pushed: u64,
    popped: u64,
}

impl std::fmt::Debug for crate::Accelerator {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Accelerator").field("counters", self.counters()).finish_non_exhaustive()
    }
}

impl Queue {
    pub(crate) fn new(bytes_max: u64) -> Self {
        Queue { frames: VecDeque::new(), bytes: 0, bytes_max, pushed: 0, popped: 0 }
    }

    /// False when there is no room for it.
    pub(crate) fn push(&mut self, frame: FrameBuf) -> bool {
        let bytes = frame.footprint() as u64;
        if self.bytes + bytes > self.bytes_max {
            return false;
        }
        self.bytes += bytes;
        self.pushed += 1;
        self.frames.push_back(frame);
        true
    }

    pub(crate) fn pop(&mut self) -> Option<FrameBuf> {
        let frame = self.frames.pop_front()?;
        self.bytes -= frame.footprint() as u64;
        self.popped += 1;
        Some(frame)
    }

    /// Memory that it takes.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.frames.is_empty()
    }

    /// A mark behind everything queued so far.
    pub(crate) fn mark(&self) -> u64 {
        self.pushed
    }

    /// True if everything queued before `mark` was taken has left.
    pub(crate) fn has_passed(&self, mark: u64) -> bool {
        self.popped >= mark
    }
}
