//! Mirrors `proto/accel/src/flow/one_way.rs`, except for the signs that requesters show before a
//! box gives up.

use super::{Flow, FlowState, Out, Probe, Rules};
use crate::pair::line::Frame;
use crate::pair::{Seq, Slip};

/// Times that the remains are retransmitted; three in the code.
const RESENDS: u8 = 1;

impl Flow {
    /// Mirrors `Flow::pass_but_for_remains`.
    pub(super) fn pass_one_way(&mut self, rules: Rules<'_>, out: &mut Out<'_>) {
        while let Some(seq) = self.next_to_send().filter(|_| out.wan.len() < out.wan_frames) {
            out.wan.push(Frame::Request(seq));
            self.cursor = seq + 1;
        }
        let kept = if rules.slips(Slip::ForgetsRemains) { self.start } else { self.acked_to };
        let passing =
            Flow { state: FlowState::Passing, started: true, ..Flow::unknown(rules.duty, kept) };
        let start = self.start.min(kept);
        *self = Flow {
            start,
            cursor: start,
            sent_to: self.sent_to.min(kept),
            responder_next: self.responder_next.min(kept),
            lan_next: self.lan_next,
            silent: self.silent,
            ..passing
        };
    }

    /// Mirrors `Flow::insist_on_remains`.
    pub(super) fn insist_on_remains(&mut self, rules: Rules<'_>) {
        if self.silent > rules.scenario.give_up + RESENDS {
            self.restart_store(self.end);
        } else {
            self.cursor = self.start;
        }
    }

    /// Mirrors `Flow::may_owe_remains`.
    pub(super) fn may_owe_remains(&self) -> bool {
        self.state == FlowState::Passing && self.started && !self.is_aside
    }

    /// Mirrors `Flow::handle_late_answer`.
    pub(super) fn handle_late_answer(&mut self, rules: Rules<'_>, frame: Frame, out: &mut Out<'_>) {
        let from: Seq = self.end;
        let named = match frame {
            Frame::Ack(next) => next.saturating_sub(1),
            Frame::Nak(seq) | Frame::Fatal(seq) | Frame::Response(seq) => seq,
            Frame::Request(_) => return,
        };
        let next = if matches!(frame, Frame::Ack(_)) { named + 1 } else { named };
        self.silent = 0;
        if named >= from && next >= from {
            self.take_delivered(rules, from);
            out.lan.push(frame);
        } else if matches!(frame, Frame::Response(_)) {
            out.lan.push(frame);
        } else if self.delivers_remains() {
            self.handle_acknowledge(rules, frame, out);
        } else if !matches!(frame, Frame::Ack(_)) {
            let has_passed = self.lan_next > from;
            self.fail(rules, false);
            self.fatal_owed = has_passed;
        } else {
            out.lan.push(frame);
        }
        if self.state == FlowState::Passing && self.start == self.end && next >= from {
            self.is_aside = true;
        }
        self.probe = Probe::None;
    }

    /// Mirrors `Flow::restart_learning` of a flow whose answers arrive again.
    pub(super) fn is_taken_in(&self) -> bool {
        self.state == FlowState::Passing && self.is_aside
    }
}
