//! Draining: an accelerator hands its flows back, so that it can go and no connection notices.
//!
//! From then on no request is acknowledged before the responder has it, but for a little now and
//! then while there is much to be delivered, so that no requester gives up. What was acknowledged
//! earlier is delivered from the store as ever. Once nothing of that is left, a flow passes: its
//! requester has everything that the responder may still miss. No PSN or MSN differs between the
//! two then, so that either may go on with the other at once.

use crate::flow::Flow;
use crate::shared::Shared;
use crate::state::{Passing, Remains, State};
use crate::{Accelerator, PassReason};
use longhaul_units::{Duration, Instant};
use longhaul_wire::{Packet, Syndrome};

/// How often a little is acknowledged early nevertheless while much is left to be delivered, at
/// least: half of what a requester has by perftest's settings, 0.54 s, before it gives up. It must
/// be delivered in turn before the flow passes.
const SIGN_OF_LIFE_EVERY: Duration = Duration::from_ms(250);

impl Accelerator {
    /// Takes in no more flows, and lets those that are known pass as soon as everything
    /// acknowledged to their requesters is delivered; or, with false, takes flows in again, from
    /// their traffic those that pass.
    ///
    /// Done when [`Accelerator::stored_bytes`] is 0, which needs responders that take what is
    /// theirs. A completion says no less than the flow's mode meanwhile. Looks at each flow once.
    pub fn set_draining(&mut self, now: Instant, draining: bool) {
        self.shared.draining = draining;
        for slot in 0..self.flows.slots() {
            if let Some(flow) = self.flows.get_mut(slot)
                && flow.is_terminated()
            {
                flow.requester.allowance.stop_withholding();
                flow.advance_frontier(now, &self.shared);
            }
            self.touch(slot);
        }
        self.settle_touched();
    }

    /// True from [`Accelerator::set_draining`] on.
    pub fn is_draining(&self) -> bool {
        self.shared.draining
    }
}

impl Flow {
    /// How long pseudo-ACKs may be withheld before a little is acknowledged.
    pub(crate) fn ack_hold(&self, shared: &Shared) -> Duration {
        let config = &shared.config;
        let usual = config.ack_hold_max;
        // Longer than its delivery takes, or there would always be something left.
        let while_draining = || {
            SIGN_OF_LIFE_EVERY
                .max(self.responder.retransmission.rtt().patience(config).times(2))
                .max(usual)
        };
        if shared.draining { while_draining() } else { usual }
    }

    /// Passes from here on, if the accelerator drains and nothing is owed to the requester.
    pub(crate) fn step_aside_if_draining(&mut self, shared: &mut Shared) {
        let is_free = match self.state {
            State::Learning(_) => true,
            State::Terminated => !self.store.owes_delivery() && !self.owes_requester(),
            State::Passing(_) | State::Failed(_) => false,
        };
        if !shared.draining || !is_free {
            return;
        }
        if self.is_terminated() {
            // What was not sent would be missed, and cost the requester a timeout.
            for frame in self.store.waiting_frames() {
                shared.queue_to_wan(frame.clone());
            }
        }
        let from = self.store.responder_next.max(self.requester.acks.to());
        self.discard_store(shared, from);
        self.begin_sides_afresh();
        self.state.pass(PassReason::Draining, Remains::DeliveredTo(from));
    }

    /// True for a NAK that was overtaken on its way: it asks for what the responder had when the
    /// flow began to pass, and what its requester may not have any more.
    pub(crate) fn is_stale_nak(&self, packet: &Packet<'_>) -> bool {
        let is_nak =
            packet.aeth().is_some_and(|aeth| !matches!(aeth.syndrome, Syndrome::Ack { .. }));
        let State::Passing(Passing { remains: Remains::DeliveredTo(from), .. }) = self.state else {
            return false;
        };
        let seq = packet.psn().unwrap_near(self.requester.sent.next());
        is_nak && seq.is_some_and(|seq| seq < from)
    }
}
