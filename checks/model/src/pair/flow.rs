//! One box's flow, as in `proto/accel`: its store, its acknowledgements, and what it owes to either
//! side.

mod learning;
mod one_way;
mod requester_side;
mod responder_side;

use super::line::{Frame, Line};
use super::{Duty, Role, Scenario, Seq, Slip};
use learning::Returns;

/// Largest count of timeouts, used to compare the back-off of two timers.
const BACKOFF_MAX: u8 = 5;

/// Mirrors `FlowState`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum FlowState {
    /// Forwards and remembers requests.
    Learning,
    /// Stores, acknowledges and delivers requests.
    Terminated,
    /// Forwards requests, by its mode or for lack of answers; earlier acknowledged packets are
    /// still delivered.
    Passing,
    /// An acknowledged packet could not be delivered.
    Failed,
}

/// Mirrors `Probe`, without the two answers that distinguish a slow responder from loss.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum Probe {
    None,
    Due,
    Sent,
}

/// Inputs of a flow's rules, apart from its own state.
#[derive(Clone, Copy)]
pub(super) struct Rules<'a> {
    pub(super) scenario: &'a Scenario,
    pub(super) role: Role,
    pub(super) duty: Duty,
    pub(super) slip: Option<Slip>,
}

impl Rules<'_> {
    fn slips(&self, slip: Slip) -> bool {
        self.slip == Some(slip)
    }

    /// Mirrors `Flow::request_of`: pseudo-ACKs may pass this packet.
    fn is_plain(&self, seq: Seq) -> bool {
        !self.scenario.is_read(seq) && !self.is_end_to_end(seq)
    }

    /// True if only the responder's ACK answers it.
    fn is_end_to_end(&self, seq: Seq) -> bool {
        self.duty == Duty::AcknowledgeButLast
            && self.scenario.ends_message(seq)
            && !self.scenario.is_read(seq)
            && !self.slips(Slip::AcknowledgesLast)
    }
}

/// The outgoing lines of a box.
pub(super) struct Out<'a> {
    pub(super) lan: &'a mut Line,
    pub(super) wan: &'a mut Line,
    pub(super) lan_frames: usize,
    pub(super) wan_frames: usize,
}

/// See the module. Fields are named as in `Flow` and `Store`; of the store's entries only PSNs are
/// kept.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Flow {
    /// Its state.
    pub state: FlowState,
    /// The first packet in the store.
    pub start: Seq,
    /// The PSN behind the last packet in the store.
    pub end: Seq,
    begins_at: Seq,
    started: bool,
    cursor: Seq,
    frontier: Seq,
    sent_to: Seq,
    responder_next: Seq,
    /// READs whose response has passed, one bit per packet.
    answered: u16,
    /// READs must be requested again.
    recover: bool,
    acked_to: Seq,
    wanted_to: Seq,
    lan_next: Seq,
    passed_to: Seq,
    ack_again: bool,
    /// The packet that revealed a gap.
    gap: Option<Seq>,
    nak_owed: bool,
    fatal_owed: bool,
    store_was_full: bool,
    replay: Option<Seq>,
    probe: Probe,
    /// Timeouts since the responder was last heard.
    silent: u8,
    /// Answers arrive: the packets acknowledged before the flow passed are delivered.
    is_aside: bool,
    /// Timeouts since the last delivery, up to [`BACKOFF_MAX`].
    backoff: u8,
    tentative: Option<u8>,
    goes_on: bool,
    returns: Returns,
    asked: Option<Seq>,
}

impl Flow {
    /// A flow learnt from the connection manager's messages.
    pub(super) fn known(duty: Duty) -> Self {
        let state = if duty == Duty::Pass { FlowState::Passing } else { FlowState::Terminated };
        Flow { state, ..Flow::unknown(duty, 0) }
    }

    /// A flow that is not learnt yet.
    pub(super) fn unknown(duty: Duty, start: Seq) -> Self {
        Flow {
            state: if duty == Duty::Pass { FlowState::Passing } else { FlowState::Learning },
            start,
            end: start,
            begins_at: start,
            started: false,
            cursor: start,
            frontier: start,
            sent_to: start,
            responder_next: start,
            answered: 0,
            recover: false,
            acked_to: start,
            wanted_to: start,
            lan_next: start,
            passed_to: start,
            ack_again: false,
            gap: None,
            nak_owed: false,
            fatal_owed: false,
            store_was_full: false,
            replay: None,
            probe: Probe::None,
            silent: 0,
            is_aside: false,
            backoff: 0,
            tentative: None,
            goes_on: false,
            returns: Returns::default(),
            asked: None,
        }
    }

    /// True if it stores this packet, and will deliver it.
    pub fn holds(&self, seq: Seq) -> bool {
        self.delivers() && (self.start..self.end).contains(&seq)
    }

    /// True if it has a packet to deliver.
    pub fn owes_delivery(&self) -> bool {
        self.delivers() && self.start < self.end
    }

    /// Mirrors `Flow::delivers`.
    fn delivers(&self) -> bool {
        self.state == FlowState::Terminated || self.delivers_remains()
    }

    /// Mirrors `Flow::delivers_remains`.
    fn delivers_remains(&self) -> bool {
        self.state == FlowState::Passing && self.start < self.end
    }

    /// Mirrors `handle_roce`: requests from the LAN, responses from the WAN.
    pub(super) fn handle(&mut self, rules: Rules<'_>, frame: Frame, out: &mut Out<'_>) {
        match frame {
            Frame::Request(seq) => self.handle_request(rules, seq, out),
            response => self.handle_response(rules, response, out),
        }
    }

    /// Mirrors `Accelerator::poll_transmit`: sends what is owed to either side, within the room.
    pub(super) fn transmit(&mut self, rules: Rules<'_>, out: &mut Out<'_>) {
        while self.owes_requester(rules) && out.lan.len() < out.lan_frames {
            self.answer_requester(rules, out.lan);
        }
        while self.owes_responder() && out.wan.len() < out.wan_frames {
            self.send_next(rules, out.wan);
        }
    }

    /// Mirrors `Flow::owes_responder`.
    fn owes_responder(&mut self) -> bool {
        self.delivers() && (self.probe == Probe::Due || self.next_to_send().is_some())
    }

    /// Mirrors `Store::restart`.
    fn restart_store(&mut self, start: Seq) {
        (self.start, self.end, self.cursor, self.frontier) = (start, start, start, start);
        (self.sent_to, self.responder_next) = (start, start);
        (self.answered, self.recover) = (0, false);
    }

    /// Mirrors `Flow::restart_learning`.
    fn restart_learning(&mut self, rules: Rules<'_>, seq: Seq) {
        *self = Flow::unknown(rules.duty, seq);
    }

    /// Mirrors `Flow::fail`.
    fn fail(&mut self, rules: Rules<'_>, told: bool) {
        let at = if rules.slips(Slip::FailsAtEnd) { self.end } else { self.acked_to };
        let unacknowledged = self.end > self.acked_to;
        *self = Flow {
            state: FlowState::Failed,
            fatal_owed: unacknowledged && !told,
            lan_next: self.lan_next,
            ..Flow::unknown(rules.duty, at)
        };
    }

    /// True for a READ whose response has not passed.
    fn is_awaited(&self, rules: Rules<'_>, seq: Seq) -> bool {
        rules.scenario.is_read(seq) && self.answered & 1 << seq == 0
    }

    /// The first READ in the store whose response has not passed.
    fn first_awaited(&self, rules: Rules<'_>) -> Option<Seq> {
        (self.start..self.end).find(|&seq| self.is_awaited(rules, seq))
    }

    /// Mirrors `Store::advance_frontier`; the only limit on memory is [`Scenario::store`].
    fn advance_frontier(&mut self, rules: Rules<'_>) {
        while self.frontier < self.end
            && (rules.is_plain(self.frontier) || self.answered & 1 << self.frontier != 0)
        {
            self.frontier += 1;
        }
    }

    /// Mirrors `Store::release`: releases the packets below `limit`, up to an awaited READ unless
    /// `forced`.
    fn release(&mut self, rules: Rules<'_>, limit: Seq, forced: bool) {
        while self.start < self.end
            && self.start < limit
            && (forced || !self.is_awaited(rules, self.start))
        {
            self.start += 1;
        }
        self.frontier = self.frontier.max(self.start);
        self.cursor = self.cursor.max(self.start);
    }

    /// Mirrors `Store::next_to_send`.
    fn next_to_send(&mut self) -> Option<Seq> {
        self.cursor = self.cursor.max(self.responder_next.min(self.end));
        (self.cursor < self.end).then_some(self.cursor)
    }

    /// True if the retransmission timer runs: mirrors `Store::is_outstanding` and the condition in
    /// `Flow::deadline`.
    pub(super) fn timer_runs(&self) -> bool {
        self.delivers() && self.cursor > self.start && self.probe != Probe::Due
    }

    /// Mirrors `Flow::time_out`, with a count of timeouts in place of `give_up_after`.
    pub(super) fn handle_timeout(&mut self, rules: Rules<'_>, out: &mut Out<'_>) {
        self.backoff = (self.backoff + 1).min(BACKOFF_MAX);
        self.silent += u8::from(!rules.slips(Slip::NeverGivesUp));
        if self.delivers_remains() {
            self.insist_on_remains(rules);
        } else if self.silent > rules.scenario.give_up {
            self.pass_one_way(rules, out);
        } else {
            self.probe = Probe::Due;
        }
    }

    /// Back-off of the retransmission timer.
    pub(super) fn backoff(&self) -> u8 {
        self.backoff
    }

    pub(super) fn is_to_recover(&self) -> bool {
        self.state == FlowState::Terminated && self.recover
    }

    pub(super) fn awaits_replay(&self) -> bool {
        self.state == FlowState::Terminated && self.replay.is_some()
    }

    /// Gives up waiting for the responses of a repeated READ.
    pub(super) fn forget_replay(&mut self) {
        self.replay = None;
    }
}
