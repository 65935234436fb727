//! Frames that wait while a far box is looked for.

use longhaul_node::FrameBuf;
use longhaul_units::Instant;
use std::collections::VecDeque;

/// A frame, and until when it waits.
pub(crate) type Waiter = (Instant, FrameBuf);

/// See the module. In the order in which they came, bounded in bytes of memory.
pub(crate) struct Waiting {
    frames: VecDeque<Waiter>,
    bytes: u64,
    bytes_max: u64,
}

impl Waiting {
    pub(crate) fn new(bytes_max: u64) -> Self {
        Waiting { frames: VecDeque::new(), bytes: 0, bytes_max }
    }

    /// Takes a frame in; hands it back when there is no room for it.
    pub(crate) fn push(&mut self, waiter: Waiter) -> Result<(), FrameBuf> {
        let bytes = waiter.1.footprint() as u64;
        if self.bytes + bytes > self.bytes_max {
            return Err(waiter.1);
        }
        self.bytes += bytes;
        self.frames.push_back(waiter);
        Ok(())
    }

    /// Takes all of them out.
    pub(crate) fn take(&mut self) -> VecDeque<Waiter> {
        self.bytes = 0;
        std::mem::take(&mut self.frames)
    }

    /// Takes the first one out if it has waited long enough.
    pub(crate) fn pop_due(&mut self, now: Instant) -> Option<FrameBuf> {
        if self.next_at()? > now {
            return None;
        }
        let (_, frame) = self.frames.pop_front()?;
        self.bytes -= frame.footprint() as u64;
        Some(frame)
    }

    /// When the first one has waited long enough.
    pub(crate) fn next_at(&self) -> Option<Instant> {
        self.frames.front().map(|(until, _)| *until)
    }
}
