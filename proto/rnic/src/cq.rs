//! Completion queues.

use longhaul_units::Qpn;
use longhaul_work::{Completion, Status};
use std::collections::VecDeque;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Armed {
    No,
    Solicited,
    Any,
}

/// A completion queue: a ring of fixed capacity.
#[derive(Debug)]
pub(crate) struct Cq {
    ring: VecDeque<Completion>,
    capacity: usize,
    armed: Armed,
    overrun: bool,
    /// QPs that complete here, a QP counting once for each of its queues.
    pub users: u32,
}

/// What a completion did to its CQ.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Pushed {
    Quietly,
    /// It was armed for this.
    Notify,
    /// The ring was full; the completion is lost. The first loss says so.
    Lost {
        first: bool,
    },
}

impl Cq {
    pub fn new(capacity: u32) -> Self {
        let capacity = capacity as usize;
        // It takes memory as it fills: programs make queues that are far larger than what they use.
        Cq { ring: VecDeque::new(), capacity, armed: Armed::No, overrun: false, users: 0 }
    }

    /// Changes the capacity. False, and nothing changes, when more completions wait.
    #[must_use]
    pub fn resize(&mut self, capacity: u32) -> bool {
        let fits = self.ring.len() <= capacity as usize;
        if fits {
            self.capacity = capacity as usize;
        }
        fits
    }

    pub fn arm(&mut self, solicited_only: bool) {
        // A request for any completion is not weakened by a later one for solicited ones.
        if self.armed != Armed::Any {
            self.armed = if solicited_only { Armed::Solicited } else { Armed::Any };
        }
    }

    #[inline]
    pub fn push(&mut self, completion: Completion) -> Pushed {
        if self.ring.len() == self.capacity {
            let first = !self.overrun;
            self.overrun = true;
            return Pushed::Lost { first };
        }
        let notify = match self.armed {
            Armed::No => false,
            Armed::Solicited => completion.solicited || completion.status != Status::Success,
            Armed::Any => true,
        };
        self.ring.push_back(completion);
        if !notify {
            return Pushed::Quietly;
        }
        self.armed = Armed::No;
        Pushed::Notify
    }

    #[inline]
    pub fn pop(&mut self) -> Option<Completion> {
        self.ring.pop_front()
    }

    /// Takes out what a QP has completed and nobody has polled.
    pub fn forget(&mut self, qpn: Qpn) {
        self.ring.retain(|completion| completion.qpn != qpn);
    }

    pub fn len(&self) -> usize {
        self.ring.len()
    }
}
