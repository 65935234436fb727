//! The rate at which a flow sends to its responder, once CNPs have slowed it down.

use longhaul_cc::RateLimiter;
use longhaul_cc::dcqcn::{CnpOutcome, Dcqcn};
use longhaul_units::Instant;

/// What CNPs leave of a flow's rate.
#[derive(Debug)]
pub(crate) struct Pace {
    limiter: RateLimiter,
    /// When the next packet may leave, while one waits.
    waiting_until: Option<Instant>,
}

impl Pace {
    /// Of a flow that received no CNP.
    pub(crate) fn new() -> Self {
        Pace { limiter: RateLimiter::new(), waiting_until: None }
    }

    /// The responder has sent a CNP. True if it lowers the rate.
    pub(crate) fn handle_cnp(&mut self, now: Instant, dcqcn: &Dcqcn) -> bool {
        self.limiter.on_cnp(now, dcqcn) == CnpOutcome::Handled
    }

    /// True if the next packet has to wait.
    #[inline]
    pub(crate) fn holds_back(&mut self, now: Instant, dcqcn: &Dcqcn) -> bool {
        let ready = self.limiter.ready_at(now, dcqcn);
        self.waiting_until = (ready > now).then_some(ready);
        ready > now
    }

    /// A packet of so many bytes was sent.
    #[inline]
    pub(crate) fn take(&mut self, now: Instant, bytes: u64, dcqcn: &Dcqcn) {
        self.limiter.take(now, bytes, dcqcn);
    }

    #[inline]
    pub(crate) fn waiting_until(&self) -> Option<Instant> {
        self.waiting_until
    }

    /// Ends the wait when it is over.
    pub(crate) fn end_wait(&mut self, now: Instant) {
        self.waiting_until.take_if(|at| *at <= now);
    }
}
