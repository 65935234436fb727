//! The rate at which a flow sends to its responder after CNPs.

use longhaul_cc::RateLimiter;
use longhaul_cc::dcqcn::{CnpOutcome, Dcqcn};
use longhaul_units::Instant;

/// Rate limit that CNPs impose on a flow.
#[derive(Debug)]
pub(crate) struct Pace {
    limiter: RateLimiter,
    /// When the next packet may leave, if one waits.
    waiting_until: Option<Instant>,
}

impl Pace {
    /// For a flow that has received no CNP.
    pub(crate) fn new() -> Self {
        Pace { limiter: RateLimiter::new(), waiting_until: None }
    }

    /// Processes a CNP of the responder. Returns `true` if it lowers the rate.
    pub(crate) fn handle_cnp(&mut self, now: Instant, dcqcn: &Dcqcn) -> bool {
        self.limiter.on_cnp(now, dcqcn) == CnpOutcome::Handled
    }

    /// True if the next packet must wait.
    #[inline]
    pub(crate) fn holds_back(&mut self, now: Instant, dcqcn: &Dcqcn) -> bool {
        let ready = self.limiter.ready_at(now, dcqcn);
        self.waiting_until = (ready > now).then_some(ready);
        ready > now
    }

    /// Notes that `bytes` were sent.
    #[inline]
    pub(crate) fn take(&mut self, now: Instant, bytes: u64, dcqcn: &Dcqcn) {
        self.limiter.take(now, bytes, dcqcn);
    }

    #[inline]
    pub(crate) fn waiting_until(&self) -> Option<Instant> {
        self.waiting_until
    }

    /// Ends the wait if it is over.
    pub(crate) fn end_wait(&mut self, now: Instant) {
        self.waiting_until.take_if(|at| *at <= now);
    }
}
