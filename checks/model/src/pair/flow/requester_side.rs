//! Mirrors `proto/accel/src/flow/requester_side.rs`.

use super::{Flow, FlowState, Out, Rules};
use crate::pair::line::{Frame, Line};
use crate::pair::{Duty, Seq, Slip};

impl Flow {
    /// Mirrors `Flow::handle_request`, and the call of `fail_if_lost` behind it.
    pub(super) fn handle_request(&mut self, rules: Rules<'_>, seq: Seq, out: &mut Out<'_>) {
        if self.is_taken_in() {
            self.restart_learning(rules, seq);
        }
        if self.state == FlowState::Passing {
            self.lan_next = self.lan_next.max(seq + 1);
            return out.wan.push(Frame::Request(seq));
        }
        if self.state == FlowState::Failed {
            self.fatal_owed = true;
        }
        self.note_going_back(seq);
        if self.state == FlowState::Terminated && self.begins_anew(rules, seq) {
            let may_go_back = self.start == self.end && seq < self.end;
            let passed_to = if may_go_back { self.end } else { seq };
            self.restart_learning(rules, seq);
            self.passed_to = passed_to;
        }
        match self.state {
            FlowState::Learning => self.watch_request(rules, seq, out),
            FlowState::Passing | FlowState::Failed => {}
            FlowState::Terminated if seq == self.end => self.accept(rules, seq),
            FlowState::Terminated if seq > self.end => self.note_gap(rules, seq),
            FlowState::Terminated => self.handle_duplicate(rules, seq, out),
        }
        self.fail_if_lost(rules);
    }

    fn note_going_back(&mut self, seq: Seq) {
        if seq < self.lan_next && self.replay.is_some_and(|last| last < seq) {
            self.replay = None;
        }
        self.lan_next = seq + 1;
    }

    /// Mirrors `Flow::begins_anew`, for PSNs that are all within its windows.
    fn begins_anew(&self, rules: Rules<'_>, seq: Seq) -> bool {
        if seq == self.end || self.start < self.end {
            return false;
        }
        if !self.started && seq < self.end {
            return true;
        }
        if seq < self.end {
            return !rules.scenario.is_read(seq);
        }
        self.gap == Some(seq)
    }

    fn accept(&mut self, rules: Rules<'_>, seq: Seq) {
        if self.end - self.start >= rules.scenario.store && self.start < self.end {
            self.store_was_full = true;
            return;
        }
        self.started = true;
        self.gap = None;
        self.nak_owed = false;
        self.store_was_full = false;
        self.end = seq + 1;
        if !rules.scenario.is_read(seq) {
            self.wanted_to = self.end;
        }
        self.advance_frontier(rules);
    }

    fn note_gap(&mut self, rules: Rules<'_>, seq: Seq) {
        if rules.slips(Slip::AcknowledgesUnstored) {
            // As if the packets in between had arrived.
            (self.frontier, self.wanted_to) = (seq + 1, seq + 1);
        }
        if self.store_was_full {
            return;
        }
        match self.gap {
            Some(revealed_by) if revealed_by == seq => self.nak_owed = true,
            Some(_) => {}
            None => {
                self.gap = Some(seq);
                self.nak_owed = true;
            }
        }
    }

    /// Mirrors `Flow::handle_duplicate` and `handle_repeated_request`. Every repeated READ counts
    /// as overdue.
    fn handle_duplicate(&mut self, rules: Rules<'_>, seq: Seq, out: &mut Out<'_>) {
        if !rules.scenario.is_read(seq) {
            self.ack_again = true;
            return;
        }
        if seq >= self.start && self.is_awaited(rules, seq) {
            if self.sent_to > seq {
                self.recover = false;
                out.wan.push(Frame::Request(seq));
            }
        } else {
            self.replay = Some(self.replay.map_or(seq, |last| last.max(seq)));
            out.wan.push(Frame::Request(seq));
        }
    }

    /// Mirrors `Flow::nak_is_due`.
    fn nak_is_due(&self, rules: Rules<'_>) -> bool {
        let waits_end_to_end = || self.frontier < self.end && rules.is_end_to_end(self.frontier);
        self.nak_owed
            && (self.frontier == self.end
                || rules.slips(Slip::NaksAtEnd)
                || (rules.duty == Duty::AcknowledgeButLast && waits_end_to_end()))
    }

    /// Mirrors `Flow::owes_requester`.
    pub(super) fn owes_requester(&self, rules: Rules<'_>) -> bool {
        match self.state {
            FlowState::Learning | FlowState::Passing => false,
            FlowState::Failed => self.fatal_owed,
            FlowState::Terminated => {
                self.replay.is_none()
                    && ((self.ack_again && self.frontier > self.begins_at)
                        || self.wanted_to.min(self.frontier) > self.acked_to
                        || self.nak_is_due(rules))
            }
        }
    }

    /// Mirrors `Flow::answer_requester`.
    pub(super) fn answer_requester(&mut self, rules: Rules<'_>, to_lan: &mut Line) {
        if self.fatal_owed {
            self.fatal_owed = false;
            return to_lan.push(Frame::Fatal(self.acked_to));
        }
        if self.nak_is_due(rules) {
            self.nak_owed = false;
            let at = if rules.slips(Slip::NaksAtEnd) { self.end } else { self.frontier };
            to_lan.push(Frame::Nak(at));
        } else {
            to_lan.push(Frame::Ack(self.frontier));
        }
        self.acked_to = self.acked_to.max(self.frontier);
        self.ack_again = false;
    }
}
