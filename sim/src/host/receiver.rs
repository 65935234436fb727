//! The responder of a SEND test: keeps receives posted.

use super::{Nic, Seen};
use longhaul_rnic::Status;
use longhaul_units::Instant;
use std::collections::VecDeque;

/// The program.
pub(crate) struct Receiver {
    size: u32,
    depth: u32,
    seen: VecDeque<Seen>,
    busy_until: Instant,
    /// Status of the first failed receive.
    pub failure: Option<Status>,
}

impl Receiver {
    /// Keeps `depth` receives of `size` bytes posted on each QP.
    pub fn new(size: u32, depth: u32) -> Self {
        Receiver { size, depth, seen: VecDeque::new(), busy_until: Instant::ZERO, failure: None }
    }

    pub fn start(&mut self, _at: Instant, slots: Vec<usize>, nic: &mut Nic) {
        if nic.is_shared() && self.depth > 0 {
            return nic.fill_shared(self.size);
        }
        for slot in slots {
            (0..self.depth).for_each(|_| {
                nic.post_receive(slot, self.size);
            });
        }
    }

    pub fn complete(&mut self, seen: Seen) {
        self.seen.push_back(seen);
    }

    pub fn next_at(&self) -> Option<Instant> {
        self.seen.front().map(|seen| seen.at.max(self.busy_until))
    }

    pub fn run(&mut self, now: Instant, nic: &mut Nic) {
        let (post, poll) = nic.costs();
        while self.busy_until <= now
            && let Some(seen) = self.seen.front().copied()
            && seen.at <= now
        {
            self.seen.pop_front();
            if seen.completion.status != Status::Success {
                self.failure.get_or_insert(seen.completion.status);
                continue;
            }
            nic.arrived(now, &seen.completion);
            self.busy_until = now + poll + post;
            nic.post_receive(seen.slot, self.size);
        }
    }
}
