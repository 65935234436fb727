//! Mirrors `proto/accel/src/learning.rs`, and what of it stands in `accelerator.rs`.

use super::{Flow, FlowState, Out, Rules};
use crate::pair::line::Frame;
use crate::pair::{Seq, Slip};

/// Mirrors `Asked`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) struct Asked {
    for_sequence: Seq,
    last: Seq,
    oldest: Seq,
    went_back: u8,
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
        let Some(asked) = &mut self.asked else { return };
        if seq <= asked.for_sequence {
            self.asked = None;
            return;
        }
        if rules.scenario.is_read(seq) {
            return;
        }
        let goes_back = seq <= asked.last;
        asked.last = seq;
        if goes_back && seq < asked.oldest {
            (asked.oldest, asked.went_back) = (seq, 0);
        }
        if goes_back && seq == asked.oldest {
            asked.went_back += 1;
        }
    }

    /// Mirrors `Flow::fail_if_lost`.
    pub(super) fn fail_if_lost(&mut self, rules: Rules<'_>) {
        let Some(asked) = self.asked.filter(|asked| asked.went_back >= rules.scenario.times_gone_back) else {
            return;
        };
        self.acked_to = asked.oldest;
        self.fail(rules, false);
    }

    /// Mirrors `Accelerator::try_to_pair` and `note_asked`: only a flow whose packets go on is held against responses.
    pub(super) fn learn_from_response(&mut self, rules: Rules<'_>, frame: Frame) {
        if !self.goes_on {
            return;
        }
        match frame {
            Frame::Ack(next) if self.could_pair(next) => self.take_evidence(rules, next),
            Frame::Nak(seq) if self.started && seq < self.start => {
                let (last, oldest) = (self.lan_next - 1, Seq::MAX);
                self.asked = Some(Asked { for_sequence: seq, last, oldest, went_back: 0 });
            }
            _ => {}
        }
    }

    fn could_pair(&self, next: Seq) -> bool {
        self.started && (self.start + 1..=self.end).contains(&next)
    }

    /// Mirrors `Flow::take_evidence`. Messages are counted from the scenario's first: MSNs agree with that.
    fn take_evidence(&mut self, rules: Rules<'_>, next: Seq) {
        let messages = rules.scenario.messages_below(next);
        let goes_back = self.passed_to > self.end;
        let agrees = self.tentative.is_some_and(|before| !goes_back && messages > before);
        self.tentative = Some(messages);
        self.asked = None;
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
