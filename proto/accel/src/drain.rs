//! Draining: an accelerator hands its flows back, so that it can go and no connection notices.
//!
//! From then on no request is acknowledged before the responder has it, but for a little now and
//! then while there is much to be delivered, so that no requester gives up. What was acknowledged
//! earlier is delivered from the store as ever. Once nothing of that is left, a flow passes: its
//! requester has everything that the responder may still miss. No PSN or MSN differs between the
//! two then, so that either may go on with the other at once.

use crate::Accelerator;
use longhaul_units::Instant;

impl Accelerator {
    /// Adds no more flows, and lets each known one pass as soon as everything acknowledged to its
    /// requester is delivered. With `false`, flows are learnt again, those that pass from their
    /// traffic.
    ///
    /// Done when [`Accelerator::stored_bytes`] is 0, which needs responders that accept their
    /// packets. A completion says no less than the flow's mode meanwhile. Looks at each flow once.
    pub fn set_draining(&mut self, now: Instant, draining: bool) {
        self.shared.draining = draining;
        for slot in 0..self.flows.slots() {
            if let Some(flow) = self.flows.get_mut(slot)
                && flow.is_terminated()
            {
                flow.review_frontier(now, &self.shared);
            }
            self.touch(slot);
        }
        self.settle_touched();
    }

    /// True while the accelerator drains.
    pub fn is_draining(&self) -> bool {
        self.shared.draining
    }
}
