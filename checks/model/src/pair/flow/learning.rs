//! Mirrors `proto/accel/src/flow/learning.rs`, and the parts of learning in `accelerator.rs`.

use super::{Flow, FlowState, Out, Rules};
use crate::pair::line::Frame;
use crate::pair::{Role, Seq, Slip};

/// Mirrors `Returns`; the count saturates.
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash, Debug)]
pub(super) struct Returns {
    last: Option<Seq>,
    to: Seq,
    times: u8,
}

impl Flow {
    /// Mirrors `Flow::watch_request`.
    pub(super) fn watch_request(&mut self, rules: Rules<'_>, seq: Seq, out: &mut Out<'_>) {
        out.wan.push(Frame::Request(seq));
        let is_next = self.started && seq == self.end;
        self.passed_to = self.passed_to.max(seq + 1);
        self.note_whether_it_has(rules, seq);
        if self.started && (self.start..self.end).contains(&seq) {
            return;
        }
        if !is_next {
            self.restart_store(seq);
            self.tentative = None;
        }
        self.started = true;
        if rules.scenario.is_read(seq) && self.start == self.end && self.tentative.is_none() {
            return self.restart_store(seq + 1);
        }
        self.goes_on |= is_next;
        self.end = seq + 1;
        (self.cursor, self.sent_to) = (self.end, self.end);
        if rules.slips(Slip::TrustsTraffic) {
            self.state = FlowState::Terminated;
            (self.acked_to, self.begins_at, self.wanted_to) = (self.start, self.start, self.end);
            self.advance_frontier(rules);
        }
    }

    fn note_whether_it_has(&mut self, rules: Rules<'_>, seq: Seq) {
        self.asked.take_if(|for_sequence| seq <= *for_sequence);
        if rules.scenario.is_read(seq) && rules.role == Role::Far {
            return;
        }
        let Returns { last, to, times } = self.returns;
        self.returns.last = Some(seq);
        if last.is_some_and(|last| seq <= last) {
            let times = if seq == to { times + 1 } else { 1 };
            (self.returns.to, self.returns.times) =
                (seq, times.min(rules.scenario.times_gone_back));
        }
    }

    /// Mirrors `Flow::fail_if_lost`.
    pub(super) fn fail_if_lost(&mut self, rules: Rules<'_>) {
        let Returns { to, times, .. } = self.returns;
        let is_lost = |asked: &mut Seq| times >= rules.scenario.times_gone_back && *asked < to;
        if self.asked.take_if(is_lost).is_none() {
            return;
        }
        self.acked_to = to;
        self.fail(rules, false);
    }

    /// Mirrors `Accelerator::try_to_pair` and `note_asked`: only a flow with two consecutive
    /// packets is compared with responses.
    pub(super) fn learn_from_response(&mut self, rules: Rules<'_>, frame: Frame) {
        if !self.goes_on {
            return;
        }
        match frame {
            Frame::Ack(next) if self.could_pair(next) => self.take_evidence(rules, next),
            Frame::Nak(seq) if self.started && seq < self.start => {
                self.asked = Some(seq);
                self.fail_if_lost(rules);
            }
            _ => {}
        }
    }

    fn could_pair(&self, next: Seq) -> bool {
        self.started && (self.start + 1..=self.end).contains(&next)
    }

    /// Mirrors `Flow::take_evidence`. Messages are counted from the scenario's first, so that MSNs
    /// agree.
    fn take_evidence(&mut self, rules: Rules<'_>, next: Seq) {
        let messages = rules.scenario.messages_below(next);
        let goes_back = self.passed_to > self.end;
        let agrees = self.tentative.is_some_and(|before| !goes_back && messages > before);
        self.tentative = Some(messages);
        self.asked = None;
        self.returns.times = 0;
        self.release(rules, next, true);
        if !agrees {
            return;
        }
        self.state = FlowState::Terminated;
        self.tentative = None;
        (self.responder_next, self.acked_to) = (next, next);
        let wishes = (self.start..self.end).rev().find(|&seq| !rules.scenario.is_read(seq));
        self.wanted_to = wishes.map_or(next, |seq| seq + 1);
        self.advance_frontier(rules);
    }
}
