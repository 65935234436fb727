//! Draining: an accelerator returns its flows, so that it can be removed without effect on
//! connections.
//!
//! While it drains, the accelerator acknowledges no request before the responder has it, except a
//! few packets at intervals while much is undelivered, so that no requester gives up. It delivers
//! earlier acknowledged packets from the store as before. A flow passes once none of them is left:
//! its requester then still has every packet that the responder may miss. Both ends agree on PSN
//! and MSN, so that they continue directly with each other.

use crate::Accelerator;
use longhaul_units::Instant;

impl Accelerator {
    /// Accepts no new flows, and lets each known flow pass as soon as every packet acknowledged to
    /// its requester is delivered. With `false`, flows are learnt again; those that pass, from
    /// their traffic.
    ///
    /// Draining is complete when [`Accelerator::stored_bytes`] is 0, which needs responders that
    /// accept their packets. Completions keep the meaning of the flow's mode. Visits each flow
    /// once.
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
