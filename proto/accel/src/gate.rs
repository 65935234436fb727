//! The rate limit of one side of an accelerator.

use longhaul_cc::{JointPacer, JointRate, Pacer};
use longhaul_node::Deadline;
use longhaul_units::{BitRate, Instant};

/// The rate limit of one side, and when it admits the next frame if one is waiting.
pub(crate) struct Gate {
    pacing: Pacing,
    waiting_until: Option<Instant>,
}

enum Pacing {
    None,
    Alone(Pacer),
    Joint(JointPacer),
}

impl Gate {
    pub(crate) fn new(rate: Option<BitRate>, joint: Option<&JointRate>, burst_bytes: u64) -> Self {
        let pacing = match (rate, joint) {
            (None, _) => Pacing::None,
            (Some(rate), None) => Pacing::Alone(Pacer::new(rate, burst_bytes)),
            (Some(_), Some(joint)) => Pacing::Joint(JointPacer::new(joint.clone())),
        };
        Gate { pacing, waiting_until: None }
    }

    #[inline]
    pub(crate) fn is_open(&mut self, now: Instant) -> bool {
        let ready = match &self.pacing {
            Pacing::None => return true,
            Pacing::Alone(pacer) => pacer.ready_at(now),
            Pacing::Joint(pacer) => pacer.ready_at(now),
        };
        self.waiting_until = (ready > now).then_some(ready);
        ready <= now
    }

    /// No frame is waiting.
    pub(crate) fn stop_waiting(&mut self) {
        self.waiting_until = None;
    }

    pub(crate) fn deadline(&self, reason: &'static str) -> Option<Deadline> {
        self.waiting_until.map(|at| Deadline { at, reason })
    }

    #[inline]
    pub(crate) fn take(&mut self, now: Instant, bytes: u64) {
        match &mut self.pacing {
            Pacing::None => {}
            Pacing::Alone(pacer) => pacer.take(now, bytes),
            Pacing::Joint(pacer) => pacer.take(now, bytes),
        }
    }
}
