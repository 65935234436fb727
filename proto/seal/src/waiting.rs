//! Datagrams of the transport that wait for keys: those with which it looks for a far box, and not
//! more.

use longhaul_node::FrameBuf;
use longhaul_units::Instant;
use std::collections::VecDeque;

/// Datagrams at most, and their memory in bytes.
const DATAGRAMS_MAX: usize = 64;
const BYTES_MAX: usize = 128 << 10;

/// A datagram, its path, and until when it waits.
pub(crate) struct Waiter {
    pub(crate) until: Instant,
    pub(crate) path: usize,
    pub(crate) frame: FrameBuf,
}

/// See the module. In the order in which they came.
#[derive(Default)]
pub(crate) struct Waiting {
    all: VecDeque<Waiter>,
    bytes: usize,
}

impl Waiting {
    /// False: there is no room, and the datagram is gone.
    pub(crate) fn push(&mut self, waiter: Waiter) -> bool {
        let bytes = self.bytes + waiter.frame.footprint();
        let fits = self.all.len() < DATAGRAMS_MAX && bytes <= BYTES_MAX;
        if fits {
            self.bytes = bytes;
            self.all.push_back(waiter);
        }
        fits
    }

    /// Takes all of them out.
    pub(crate) fn take(&mut self) -> VecDeque<Waiter> {
        self.bytes = 0;
        std::mem::take(&mut self.all)
    }

    /// Drops those that have waited in vain: how many.
    pub(crate) fn drop_due(&mut self, now: Instant) -> u64 {
        let before = self.all.len();
        self.all.retain(|waiter| waiter.until > now);
        self.bytes = self.all.iter().map(|waiter| waiter.frame.footprint()).sum();
        (before - self.all.len()) as u64
    }

    /// When one of them has waited in vain.
    pub(crate) fn next_at(&self) -> Option<Instant> {
        self.all.iter().map(|waiter| waiter.until).min()
    }
}
