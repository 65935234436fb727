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
    /// Number of queues of QPs that complete here.
    pub users: u32,
}

/// Effect of a completion on its CQ.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Pushed {
    Quietly,
    /// The CQ was armed for it.
    Notify,
    /// The ring was full and the completion is lost; `first` for the first loss.
    Lost {
        first: bool,
    },
}

impl Cq {
    pub fn new(capacity: u32) -> Self {
        let capacity = capacity as usize;
        // The ring allocates as it fills, because programs create queues far larger than they use.
        Cq { ring: VecDeque::new(), capacity, armed: Armed::No, overrun: false, users: 0 }
    }

    /// Changes the capacity. Returns `false`, and changes nothing, if more completions wait.
    #[must_use]
    pub fn resize(&mut self, capacity: u32) -> bool {
        let fits = self.ring.len() <= capacity as usize;
        if fits {
            self.capacity = capacity as usize;
        }
        fits
    }

    pub fn arm(&mut self, solicited_only: bool) {
        // A later request for solicited completions does not weaken one for any completion.
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

    /// Removes a QP's unpolled completions.
    pub fn forget(&mut self, qpn: Qpn) {
        self.ring.retain(|completion| completion.qpn != qpn);
    }

    pub fn len(&self) -> usize {
        self.ring.len()
    }
}
