//! Connections with an alternate path (APM): a QP may move to it, and back, at any time.
//!
//! Packets that a box has acknowledged on a path that its QP has left may be undeliverable for
//! good, and the box on the other path does not know them. The flows of such a connection therefore
//! pass, on both paths.

use crate::accelerator::Accelerator;
use crate::flow::{Beginning, Flow};
use crate::{FlowKey, FlowState, PassReason};
use longhaul_units::Instant;

impl Accelerator {
    /// Passes the flow with `key`, whose connection gets an alternate path.
    pub(crate) fn pass_for_alternate_path(&mut self, now: Instant, key: FlowKey) {
        let Some(slot) = self.flows.by_responder(key.wire()) else { return };
        if let Some(flow) = self.flows.get_mut(slot) {
            flow.pass_for_good(now, &mut self.shared, PassReason::AlternatePath);
        }
        self.touch(slot);
    }

    /// Passes requests on the alternate path of the flow with `key` too, if it has one.
    pub(crate) fn leave_alternate_path(
        &mut self,
        now: Instant,
        key: FlowKey,
        beginning: Beginning,
    ) {
        let Some(addresses) = beginning.alternate else { return };
        self.shared.counters.alternate_paths += 1;
        let key = key.on_path(addresses);
        if self.flows.by_responder(key.wire()).is_some() {
            return self.pass_for_alternate_path(now, key);
        }
        let flow = Flow::new(now, &self.shared.config, key, beginning);
        debug_assert_eq!(flow.state(), FlowState::Passing);
        if self.shared.draining {
            return;
        }
        let requester = key.to_requester(beginning.requester_qpn.unwrap_or_default());
        if let Some(slot) = self.flows.by_requester(requester) {
            self.orphan(slot);
        }
        if self.add_flow(now, flow).is_none() {
            self.shared.counters.flow_table_full += 1;
        }
    }
}
