//! Mirrors `proto/accel/src/flow/responder_side.rs`.

use super::{Flow, FlowState, Out, Probe, Rules};
use crate::pair::line::{Frame, Line};
use crate::pair::{Seq, Slip};

impl Flow {
    /// Mirrors `Accelerator::handle_wan_response` and `Flow::handle_response`.
    pub(super) fn handle_response(&mut self, rules: Rules<'_>, frame: Frame, out: &mut Out<'_>) {
        if self.may_owe_remains() {
            return self.handle_late_answer(rules, frame, out);
        }
        if let (true, Frame::Nak(seq)) = (self.is_taken_in(), frame)
            && seq < self.end
        {
            // Mirrors `Flow::is_stale_nak`.
            return;
        }
        let is_data = matches!(frame, Frame::Response(_));
        match self.state {
            FlowState::Failed if !is_data => {}
            FlowState::Failed | FlowState::Passing => out.lan.push(frame),
            FlowState::Learning => {
                out.lan.push(frame);
                self.learn_from_response(rules, frame);
            }
            FlowState::Terminated => match frame {
                Frame::Response(seq) => self.handle_data_response(rules, seq, out),
                acknowledge => self.handle_acknowledge(rules, acknowledge, out),
            },
        }
    }

    pub(super) fn handle_acknowledge(&mut self, rules: Rules<'_>, frame: Frame, out: &mut Out<'_>) {
        let reference = self.responder_next;
        let named = match frame {
            Frame::Ack(next) => next.saturating_sub(1),
            Frame::Nak(seq) | Frame::Fatal(seq) => seq,
            Frame::Request(_) | Frame::Response(_) => return,
        };
        if named >= self.sent_to {
            return;
        }
        if self.first_awaited(rules).is_some_and(|read| read < named) {
            self.recover = true;
        }
        match frame {
            Frame::Ack(next) => {
                self.silent = 0;
                self.take_delivered(rules, next);
                self.wanted_to = self.wanted_to.max(next);
            }
            Frame::Nak(seq) if seq >= reference => {
                self.silent = 0;
                let next = if rules.slips(Slip::TakesNakForAck) { seq + 1 } else { seq };
                self.take_delivered(rules, next);
                self.cursor = self.cursor.min(seq.max(self.start));
                self.probe = Probe::None;
            }
            Frame::Fatal(seq) if seq >= reference => self.handle_fatal_nak(rules, seq, out),
            _ => {}
        }
    }

    fn handle_fatal_nak(&mut self, rules: Rules<'_>, seq: Seq, out: &mut Out<'_>) {
        self.take_delivered(rules, seq);
        let told = seq >= self.acked_to;
        if told {
            out.lan.push(Frame::Fatal(seq));
            self.acked_to = seq;
        }
        self.fail(rules, told);
    }

    /// Mirrors `Flow::take_delivered` and `let_go`.
    pub(super) fn take_delivered(&mut self, rules: Rules<'_>, next: Seq) {
        if next <= self.responder_next {
            return;
        }
        self.responder_next = next;
        self.let_go(rules);
        self.probe = Probe::None;
        self.backoff = 0;
    }

    fn let_go(&mut self, rules: Rules<'_>) {
        let before = self.start;
        self.release(rules, self.responder_next, false);
        if self.start > before {
            self.advance_frontier(rules);
            let is_roomy = self.end - self.start <= rules.scenario.store / 2;
            if self.store_was_full && is_roomy {
                self.store_was_full = false;
                self.gap = None;
                self.nak_owed = true;
            }
        }
    }

    /// Mirrors `Flow::handle_data_response` and `advance_awaited`.
    fn handle_data_response(&mut self, rules: Rules<'_>, seq: Seq, out: &mut Out<'_>) {
        out.lan.push(Frame::Response(seq));
        if self.replay == Some(seq) {
            self.replay = None;
        }
        let Some(first) = self.first_awaited(rules) else { return };
        if seq < first || self.sent_to <= first || seq >= self.sent_to {
            return;
        }
        self.silent = 0;
        if seq == first {
            self.answered |= 1 << seq;
            self.recover = false;
            self.acked_to = self.acked_to.max(seq + 1);
        } else {
            self.recover = true;
        }
        if rules.scenario.is_read(seq) && seq + 1 > self.responder_next {
            self.take_delivered(rules, seq + 1);
        } else {
            self.let_go(rules);
        }
    }

    /// Mirrors `Flow::resend_front_request`.
    pub(in crate::pair) fn resend_front_request(&mut self, rules: Rules<'_>, to_wan: &mut Line) {
        self.recover = false;
        if let Some(seq) = self.first_awaited(rules) {
            to_wan.push(Frame::Request(seq));
        }
    }

    /// Mirrors `Flow::send_next` and `send_probe`.
    pub(super) fn send_next(&mut self, rules: Rules<'_>, to_wan: &mut Line) {
        if self.probe == Probe::Due {
            self.probe = Probe::Sent;
            // If everything else is delivered, only a READ without its response may be left.
            let oldest = self.responder_next.max(self.start);
            let oldest = if oldest < self.end { oldest } else { self.start };
            return to_wan.push(Frame::Request(oldest));
        }
        let Some(seq) = self.next_to_send() else { return };
        to_wan.push(Frame::Request(seq));
        self.cursor = seq + 1;
        self.sent_to = self.sent_to.max(self.cursor);
        if rules.slips(Slip::ForgetsSent) {
            self.release(rules, self.cursor, false);
        }
    }
}
