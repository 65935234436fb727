//! Lives of a flow's QPs: which packets belong to another one.

use super::Flow;
use super::repetitions::Repetitions;
use super::requester_side::ACK_TIMEOUT_MIN;
use crate::timers::SlotId;
use crate::trace::{GAP_MAX, OUTSTANDING_MAX};
use longhaul_units::{Instant, Psn};
use longhaul_wire::Packet;

/// Times that a packet is repeated in spite of its answer before its sender counts as one that does
/// not know the flow.
const REPEATS_MAX: u32 = 2;

/// A packet that is repeated although it was acknowledged each time: its sender ignores such
/// answers.
#[derive(Clone, Copy, Debug)]
struct Repeated {
    seq: u64,
    /// The last packet behind it that was repeated with it.
    last: u64,
    repetitions: Repetitions,
}

/// State that distinguishes the lives of a flow's QPs.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Lives {
    /// Another life, which receives the requests that do not fit this one.
    successor: Option<SlotId>,
    /// UDP source port of the requester, constant during a life; 0 until its first request.
    request_port: u16,
    /// A packet that its requester repeats in spite of the answer.
    repeated: Option<Repeated>,
    /// An ACK behind everything stored: the requester sent its packet before this box was on the
    /// path.
    acked_elsewhere: Option<u64>,
    /// The requester's QPN has another owner, which other boxes or flows answer.
    is_orphan: bool,
}

impl Lives {
    /// Forgets what was repeated or acknowledged elsewhere.
    pub(crate) fn afresh(&self) -> Self {
        Lives { repeated: None, acked_elsewhere: None, ..*self }
    }

    /// Notes the first request of this life, with its UDP source port.
    pub(crate) fn begin(&mut self, request_port: u16) {
        self.request_port = request_port;
    }

    /// Notes that the responder has acknowledged `seq`, which this box never stored.
    pub(crate) fn note_acked_elsewhere(&mut self, seq: u64) {
        self.acked_elsewhere = Some(seq);
    }

    pub(crate) fn is_acked_elsewhere(&self, seq: u64) -> bool {
        self.acked_elsewhere == Some(seq)
    }

    #[inline]
    pub(crate) fn is_orphan(&self) -> bool {
        self.is_orphan
    }

    /// Notes that the requester makes progress.
    #[inline]
    pub(crate) fn note_accepted(&mut self) {
        self.repeated = None;
    }

    pub(crate) fn is_repeated(&self, seq: u64) -> bool {
        self.repeated.is_some_and(|repeated| repeated.seq == seq)
    }

    /// True if the sender of a packet ignores the answers to it: it does not know the flow.
    pub(crate) fn is_repeated_in_vain(&self) -> bool {
        self.repeated.is_some_and(|repeated| repeated.repetitions.times() >= REPEATS_MAX)
    }

    /// Notes an answered packet that its requester should not have repeated.
    pub(crate) fn note_repeated(&mut self, now: Instant, seq: u64) {
        match &mut self.repeated {
            Some(repeated) if repeated.seq == seq => {
                repeated.last = seq;
                repeated.repetitions.count(now);
            }
            // Packets behind the first repeated one are repeated with it, until the requester goes
            // back less far. The LAN may reorder them.
            Some(repeated)
                if repeated.seq < seq
                    && (repeated.last < seq
                        || repeated.repetitions.is_within(now, ACK_TIMEOUT_MIN)) =>
            {
                repeated.last = repeated.last.max(seq);
            }
            _ => {
                let repetitions = Repetitions::since(now);
                self.repeated = Some(Repeated { seq, last: seq, repetitions });
            }
        }
    }
}

impl Flow {
    /// Another life of its QPs, which receives the requests that do not fit this one.
    #[inline]
    pub(crate) fn successor(&self) -> Option<SlotId> {
        self.lives.successor
    }

    pub(crate) fn set_successor(&mut self, successor: Option<SlotId>) {
        self.lives.successor = successor;
    }

    /// The requester's QPN has another owner: stored packets are delivered, and nobody is answered.
    pub(crate) fn become_orphan(&mut self) {
        self.lives.is_orphan = true;
        self.bookkeeping.is_closing = true;
    }

    /// True if `packet` has the PSN that this flow expects.
    #[inline]
    pub(crate) fn is_next(&self, packet: &Packet<'_>) -> bool {
        packet.psn() == Psn::from_sequence(self.store.end())
    }

    /// True if `packet` has the PSN that this flow expects, and no other life of its QPs is known.
    #[inline]
    pub(crate) fn expects(&self, packet: &Packet<'_>) -> bool {
        self.lives.successor.is_none() && self.is_next(packet)
    }

    /// True if the next request needs only to be stored.
    #[inline]
    pub(crate) fn only_stores(&self) -> bool {
        self.is_terminated()
            && self.mode.is_final()
            && self.requester.sent.next() <= self.store.end()
            && !self.reads.is_unresolved()
            && !self.requester.hold.is_for_responder()
    }

    /// True if `packet` cannot come from the requester of the stored packets, so that it must be
    /// treated neither as its next nor as a duplicate.
    pub(crate) fn is_another_life(&self, packet: &Packet<'_>, payload_len: usize) -> bool {
        let seq = self.sequence_of(packet);
        if seq == self.store.end() || !self.delivers() || self.store.is_empty() {
            return false;
        }
        // A requester that was acknowledged anything has released the PSNs before its first packet.
        let is_before_the_first = seq < self.requester.acks.begins_at()
            && self.requester.acks.begins_at() < self.requester.acks.to();
        !self.may_be_sent(seq)
            || is_before_the_first
            || self.comes_by_another_port(packet)
            || (self.lives.is_repeated(seq) && self.lives.is_repeated_in_vain())
            || self.store.contradicts(seq, packet, payload_len)
    }

    /// True if `packet` is not of this flow, whose requester continues in another life. If the LAN
    /// had merely lost the same packet repeatedly, the requester would go back to a stored one.
    pub(crate) fn has_been_left(&self, packet: &Packet<'_>) -> bool {
        let stored = self.store.start()..self.store.end();
        self.delivers() && !stored.is_empty() && !stored.contains(&self.sequence_of(packet))
    }

    /// True if the UDP source port of `packet` differs from the requester's.
    pub(crate) fn comes_by_another_port(&self, packet: &Packet<'_>) -> bool {
        self.lives.request_port != 0 && self.lives.request_port != packet.udp_source_port()
    }

    /// True if a requester of this flow may send `seq` next: it continues, goes back, or the LAN
    /// lost packets before `seq`.
    pub(crate) fn may_be_sent(&self, seq: u64) -> bool {
        let latest = self.requester.sent.latest().max(self.store.end());
        let last = latest + self.reads.unresolved_max() + GAP_MAX;
        seq + OUTSTANDING_MAX > self.requester.acks.to() && seq <= last
    }

    /// True if a response with `psn` can answer a packet stored here.
    #[inline]
    pub(crate) fn has_outstanding(&self, psn: Psn) -> bool {
        let seq = psn.unwrap_near(self.store.responder_next).unwrap_or(0);
        !self.store.is_empty()
            && seq < self.store.sent_to()
            && (seq + 1 >= self.store.responder_next || self.store.awaits(seq))
    }

    /// True if a response fits no other flow or life: its PSN is outstanding here.
    #[inline]
    pub(crate) fn is_answered_by(&self, packet: &Packet<'_>) -> bool {
        self.is_terminated() && self.has_outstanding(packet.psn())
    }

    /// Unwraps a PSN near the end of the trace.
    pub(crate) fn sequence_in_trace(&self, packet: &Packet<'_>) -> u64 {
        let end = self.state.learning().map_or(0, |learning| learning.trace.end());
        packet.psn().unwrap_near(end).unwrap_or(0)
    }
}
