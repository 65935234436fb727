//! Frames that wait during the search for a far box.

use longhaul_node::FrameBuf;
use longhaul_units::Instant;
use std::collections::VecDeque;

/// A frame, and the time until which it waits.
pub(crate) type Waiter = (Instant, FrameBuf);

/// A FIFO of frames, bounded in bytes of memory.
pub(crate) struct Waiting {
    frames: VecDeque<Waiter>,
    bytes: u64,
    bytes_max: u64,
}

impl Waiting {
    pub(crate) fn new(bytes_max: u64) -> Self {
        Waiting { frames: VecDeque::new(), bytes: 0, bytes_max }
    }

    /// Queues a frame, or returns it if there is no room.
    pub(crate) fn push(&mut self, waiter: Waiter) -> Result<(), FrameBuf> {
        let bytes = waiter.1.footprint() as u64;
        if self.bytes + bytes > self.bytes_max {
            return Err(waiter.1);
        }
        self.bytes += bytes;
        self.frames.push_back(waiter);
        Ok(())
    }

    /// Removes all frames.
    pub(crate) fn take(&mut self) -> VecDeque<Waiter> {
        self.bytes = 0;
        std::mem::take(&mut self.frames)
    }

    /// Removes the first frame if it has waited long enough.
    pub(crate) fn pop_due(&mut self, now: Instant) -> Option<FrameBuf> {
        if self.next_at()? > now {
            return None;
        }
        let (_, frame) = self.frames.pop_front()?;
        self.bytes -= frame.footprint() as u64;
        Some(frame)
    }

    /// Time at which the first frame has waited long enough.
    pub(crate) fn next_at(&self) -> Option<Instant> {
        self.frames.front().map(|(until, _)| *until)
    }
}
