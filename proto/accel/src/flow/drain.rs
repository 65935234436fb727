//! Draining of one flow: it passes once it owes nothing.

use super::Flow;
use super::state::{Passing, Remains, State};
use crate::PassReason;
use crate::shared::AccelShared;
use longhaul_units::{Duration, Instant};
use longhaul_wire::{Packet, Syndrome};

/// Shortest time between two early ACKs while much is undelivered: half of perftest's budget of
/// 0.54 s, after which a requester gives up. The packets that they acknowledge must also be
/// delivered before the flow passes.
const SIGN_OF_LIFE_EVERY: Duration = Duration::from_ms(250);

impl Flow {
    /// Decides again whether pseudo-ACKs are withheld, because draining begins or ends.
    pub(crate) fn review_frontier(&mut self, now: Instant, shared: &AccelShared) {
        self.requester.allowance.stop_withholding();
        self.advance_frontier(now, shared);
    }

    /// How long pseudo-ACKs may be withheld before a few packets are acknowledged.
    pub(crate) fn ack_hold(&self, shared: &AccelShared) -> Duration {
        let config = &shared.config;
        let usual = config.ack_hold_max;
        // Exceeds the delivery time of those packets, or the store would never become empty.
        let while_draining = || {
            SIGN_OF_LIFE_EVERY
                .max(self.responder.retransmission.rtt().patience(config).times(2))
                .max(usual)
        };
        if shared.draining { while_draining() } else { usual }
    }

    /// Passes the flow if the accelerator drains and the flow owes nothing.
    #[inline]
    pub(crate) fn step_aside_if_draining(&mut self, shared: &mut AccelShared) {
        if shared.draining {
            self.step_aside_if_free(shared);
        }
    }

    #[cold]
    fn step_aside_if_free(&mut self, shared: &mut AccelShared) {
        let is_free = match self.state {
            State::Learning(_) => true,
            State::Terminated => !self.store.owes_delivery() && !self.owes_requester(),
            State::Passing(_) | State::Failed(_) => false,
        };
        if !is_free {
            return;
        }
        if self.is_terminated() {
            // An unsent packet would be missing, and cost the requester a timeout.
            for frame in self.store.waiting_frames() {
                shared.queue_to_wan(frame.clone());
            }
        }
        let from = self.store.responder_next.max(self.requester.acks.to());
        self.discard_store(shared, from);
        self.begin_sides_afresh();
        self.state.pass(PassReason::Draining, Remains::DeliveredTo(from));
    }

    /// True for an overtaken NAK: it asks for packets that the responder had when the flow began to
    /// pass, and that the requester may have released.
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
