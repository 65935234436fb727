//! The two hosts: requester and responder of one RC connection.

use super::line::{Frame, Line};
use super::{Scenario, Seq};

/// The requester, as in `proto/rc/src/requester.rs`: go-back-N with a retry counter.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Requester {
    /// The first unacknowledged packet.
    pub una: Seq,
    next: Seq,
    /// The PSN behind the last packet ever sent.
    sent: Seq,
    /// The PSN behind the last packet posted.
    pub posted: Seq,
    retries_left: u8,
    recovering: bool,
    /// It has failed with an error.
    pub failed: bool,
    /// Its host has died.
    pub dead: bool,
}

impl Requester {
    pub(super) fn new(scenario: &Scenario) -> Self {
        Requester {
            una: 0,
            next: 0,
            sent: 0,
            posted: scenario.batch_end(0),
            retries_left: scenario.retries,
            recovering: false,
            failed: false,
            dead: false,
        }
    }

    /// True if everything posted completed successfully.
    pub fn is_done(&self) -> bool {
        self.una == self.posted
    }

    /// True if it neither sends nor receives any more.
    pub fn is_over(&self) -> bool {
        self.failed || self.dead
    }

    /// Mirrors `Requester::transmit`: sends as many packets as window and line permit.
    pub(super) fn transmit(&mut self, scenario: &Scenario, to_lan: &mut Line) {
        let end = self.posted.min(self.una + scenario.window);
        while !self.is_over() && self.next < end && to_lan.len() < scenario.lan_frames {
            to_lan.push(Frame::Request(self.next));
            self.next += 1;
            self.sent = self.sent.max(self.next);
        }
    }

    /// Mirrors `handle_ack`, `handle_read_response` and their callees in `requester/responses.rs`.
    pub(super) fn handle(&mut self, scenario: &Scenario, frame: Frame) {
        if self.is_over() {
            return;
        }
        let reached = match frame {
            Frame::Ack(next) if next > self.una && next <= self.sent => next,
            Frame::Nak(seq) | Frame::Fatal(seq) | Frame::Response(seq) if self.is_current(seq) => {
                seq
            }
            _ => return,
        };
        if self.advance(scenario, reached) {
            return self.implied_nak();
        }
        match frame {
            Frame::Nak(_) if !self.recovering => self.retry(),
            Frame::Fatal(_) => self.failed = true,
            Frame::Response(seq) => {
                self.progress(scenario, seq + 1);
                self.next = self.next.max(self.una);
            }
            _ => {}
        }
    }

    fn is_current(&self, seq: Seq) -> bool {
        (self.una..self.sent).contains(&seq)
    }

    /// Mirrors `advance`: completes up to a READ without its response. Returns `true` if one
    /// stopped it.
    fn advance(&mut self, scenario: &Scenario, to: Seq) -> bool {
        let end = (self.una..to).find(|&seq| scenario.is_read(seq)).unwrap_or(to);
        if end > self.una {
            self.progress(scenario, end);
        }
        self.next = self.next.max(self.una);
        end < to
    }

    fn progress(&mut self, scenario: &Scenario, to: Seq) {
        self.una = to;
        self.retries_left = scenario.retries;
        self.recovering = false;
    }

    fn implied_nak(&mut self) {
        if !self.recovering {
            self.retry();
        }
    }

    /// Mirrors `take_retry` and `go_back`.
    fn retry(&mut self) {
        let Some(left) = self.retries_left.checked_sub(1) else {
            self.failed = true;
            return;
        };
        self.retries_left = left;
        self.next = self.una;
        self.recovering = true;
    }

    pub(super) fn timer_runs(&self) -> bool {
        !self.is_over() && self.una < self.next
    }

    /// True if it has retried already.
    pub(super) fn has_tried_again(&self, scenario: &Scenario) -> bool {
        self.retries_left < scenario.retries
    }

    pub(super) fn handle_timeout(&mut self) {
        self.retry();
    }

    pub(super) fn post(&mut self, end: Seq) {
        self.posted = end;
    }
}

/// State of the responder's host.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum Life {
    Ready,
    /// Refuses the next request that it expects.
    Refusing,
    /// Has refused a request; its QP is in error, and silent.
    Refused,
    Dead,
}

/// The responder, as in `proto/rc/src/responder.rs`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Responder {
    /// The next expected packet; it has all packets below.
    pub expected: Seq,
    /// Number of executions of each packet.
    pub executed: [u8; super::PACKETS_MAX],
    /// A packet was executed before an earlier one.
    pub skipped: bool,
    gap_open: bool,
    gap_top: Seq,
    nak: bool,
    fatal: bool,
    ack_due: bool,
    /// READs to be answered, one bit per packet.
    reads: u16,
    life: Life,
}

impl Responder {
    pub(super) fn new() -> Self {
        Responder {
            expected: 0,
            executed: [0; super::PACKETS_MAX],
            skipped: false,
            gap_open: false,
            gap_top: 0,
            nak: false,
            fatal: false,
            ack_due: false,
            reads: 0,
            life: Life::Ready,
        }
    }

    /// True if it accepts requests.
    pub fn is_ready(&self) -> bool {
        matches!(self.life, Life::Ready | Life::Refusing)
    }

    pub(super) fn die(&mut self) {
        *self = Responder {
            life: Life::Dead,
            nak: false,
            fatal: false,
            ack_due: false,
            reads: 0,
            ..*self
        };
    }

    pub(super) fn refuse(&mut self) {
        self.life = Life::Refusing;
    }

    /// Mirrors `handle_request` and `handle_duplicate`.
    pub(super) fn handle(&mut self, scenario: &Scenario, frame: Frame) {
        let Frame::Request(seq) = frame else { return };
        if !self.is_ready() {
            return;
        }
        if seq > self.expected {
            self.gap_top = self.gap_top.max(seq);
            self.nak |= !self.gap_open;
            self.gap_open = true;
            return;
        }
        if seq == self.expected && self.life == Life::Refusing {
            // Mirrors `fail`.
            self.life = Life::Refused;
            (self.nak, self.fatal) = (false, true);
            return;
        }
        if seq == self.expected {
            self.execute(seq);
            self.expected += 1;
            self.gap_open = false;
        }
        if scenario.is_read(seq) {
            self.reads |= 1 << seq;
        } else {
            self.ack_due = true;
        }
    }

    fn execute(&mut self, seq: Seq) {
        let index = usize::from(seq);
        self.skipped |= self.executed[..index].contains(&0);
        self.executed[index] = self.executed[index].saturating_add(1);
    }

    /// Mirrors `transmit`: sends responses, then an ACK or a NAK.
    pub(super) fn transmit(&mut self, scenario: &Scenario, to_lan: &mut Line) {
        while self.reads != 0 && to_lan.len() < scenario.lan_frames {
            to_lan.push(Frame::Response(self.reads.trailing_zeros() as Seq));
            self.reads &= self.reads - 1;
        }
        if self.reads != 0 || to_lan.len() >= scenario.lan_frames {
            return;
        }
        if self.nak && self.expected > self.gap_top {
            // The gap closed before the NAK was sent.
            (self.nak, self.ack_due) = (false, true);
        }
        if self.ack_due {
            to_lan.push(Frame::Ack(self.expected));
            self.ack_due = false;
        }
        if to_lan.len() >= scenario.lan_frames {
            return;
        }
        if self.fatal {
            to_lan.push(Frame::Fatal(self.expected));
        } else if self.nak {
            to_lan.push(Frame::Nak(self.expected));
        }
        (self.fatal, self.nak) = (false, false);
    }
}
