//! Transport datagrams that wait for keys. They need only suffice for the transport's search for a
//! far box.

use longhaul_node::FrameBuf;
use longhaul_units::Instant;
use std::collections::VecDeque;

/// Maximum number of waiting datagrams, and of their memory in bytes.
const DATAGRAMS_MAX: usize = 64;
const BYTES_MAX: usize = 128 << 10;

/// A datagram, its path, and the time until which it waits.
pub(crate) struct Waiter {
    pub(crate) until: Instant,
    pub(crate) path: usize,
    pub(crate) frame: FrameBuf,
}

/// A FIFO of datagrams.
#[derive(Default)]
pub(crate) struct Waiting {
    all: VecDeque<Waiter>,
    bytes: usize,
}

impl Waiting {
    /// Queues a datagram. Returns `false`, and drops it, if there is no room.
    pub(crate) fn push(&mut self, waiter: Waiter) -> bool {
        let bytes = self.bytes + waiter.frame.footprint();
        let fits = self.all.len() < DATAGRAMS_MAX && bytes <= BYTES_MAX;
        if fits {
            self.bytes = bytes;
            self.all.push_back(waiter);
        }
        fits
    }

    /// Removes all datagrams.
    pub(crate) fn take(&mut self) -> VecDeque<Waiter> {
        self.bytes = 0;
        std::mem::take(&mut self.all)
    }

    /// Drops the datagrams that have waited too long. Returns their number.
    pub(crate) fn drop_due(&mut self, now: Instant) -> u64 {
        let before = self.all.len();
        self.all.retain(|waiter| waiter.until > now);
        self.bytes = self.all.iter().map(|waiter| waiter.frame.footprint()).sum();
        (before - self.all.len()) as u64
    }

    /// Earliest time at which a datagram has waited too long.
    pub(crate) fn next_at(&self) -> Option<Instant> {
        self.all.iter().map(|waiter| waiter.until).min()
    }
}
