//! Flows that the connection manager begins and ends.

use crate::FlowKey;
use crate::accelerator::Accelerator;
use crate::advice;
use crate::connections::{Action, is_rep};
use crate::ece::Plain;
use crate::flow::{Beginning, Flow};
use longhaul_node::{Frame, Side};
use longhaul_units::Instant;
use longhaul_wire::Packet;

impl Accelerator {
    /// Handles a packet for QP1.
    pub(crate) fn handle_management(
        &mut self,
        now: Instant,
        side: Side,
        frame: &Frame<'_>,
        packet: &Packet<'_>,
    ) {
        if !self.is_sound(side, frame, packet) {
            return;
        }
        let Some(payload) = frame.payload.as_bytes() else { return self.pass(side, frame) };
        match self.connections.handle(side, packet, payload) {
            Action::Pass => {}
            Action::Begin(key, beginning) => {
                self.begin_flow(now, key, beginning);
                self.leave_alternate_path(now, key, beginning);
            }
            Action::Alternate(key, beginning) => {
                self.pass_for_alternate_path(now, key);
                self.leave_alternate_path(now, key, beginning);
            }
            Action::Hold(key) => {
                if self.hold_dreq(now, frame, &key) {
                    return;
                }
            }
            Action::End(key, beginning) => {
                let other = beginning.alternate.map(|addresses| key.on_path(addresses));
                for key in [key].into_iter().chain(other) {
                    self.close_flow(key);
                }
            }
        }
        let plain = self.without_ece(side, frame, packet, payload);
        let frame = plain.as_ref().map_or(*frame, Plain::frame);
        let may_wait = self.has_departures(side) && is_rep(payload);
        if !(may_wait && self.hold_rep(now, &frame, packet)) {
            self.pass(side, &frame);
        }
    }

    fn close_flow(&mut self, key: FlowKey) {
        let Some(slot) = self.flows.by_responder(key.wire()) else { return };
        if let Some(flow) = self.flows.get_mut(slot) {
            flow.bookkeeping.is_closing = true;
        }
        self.touch(slot);
    }

    fn begin_flow(&mut self, now: Instant, key: FlowKey, beginning: Beginning) {
        if let Some(slot) = self.flows.by_responder(key.wire()) {
            self.shared.counters.flows_reset += 1;
            self.remove_flow(slot);
        }
        let requester = beginning.requester_qpn.unwrap_or_default();
        if let Some(slot) = self.flows.by_requester(key.to_requester(requester)) {
            self.orphan(slot);
        }
        if self.shared.draining {
            return;
        }
        let mut flow = Flow::new(now, &self.shared.config, key, beginning);
        flow.follow_passed_requests(&self.shared);
        self.shared.give(advice::on_path_mtu(beginning.path_mtu), &key);
        match self.add_flow(now, flow) {
            Some(_) => self.shared.counters.flows_from_cm += 1,
            None => self.shared.counters.flow_table_full += 1,
        }
    }
}
