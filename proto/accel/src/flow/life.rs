//! Which life of its QPs a flow is, and which packets are of another.

use super::Flow;
use super::repetitions::Repetitions;
use super::requester_side::ACK_TIMEOUT_MIN;
use crate::timers::SlotId;
use crate::trace::{GAP_MAX, OUTSTANDING_MAX};
use longhaul_units::{Instant, Psn};
use longhaul_wire::Packet;

/// Times that a packet comes again in spite of its answer until its sender is taken for one that
/// does not know the flow.
const REPEATS_MAX: u32 = 2;

/// A packet that comes again and again although it was acknowledged each time: its sender takes no
/// such answer.
#[derive(Clone, Copy, Debug)]
struct Repeated {
    seq: u64,
    /// The last one behind it that was repeated with it.
    last: u64,
    repetitions: Repetitions,
}

/// What tells the lives of a flow's QPs apart.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Lives {
    /// Another life, to which requests belong that do not fit this one.
    successor: Option<SlotId>,
    /// UDP source port of the requester, 0 until its first request: it keeps that for life.
    request_port: u16,
    /// A packet that its requester repeats in spite of the answer.
    repeated: Option<Repeated>,
    /// An ACK behind all that is stored: the requester sent that before this box was on its path.
    acked_elsewhere: Option<u64>,
    /// The QPN of its requester has another owner, which is answered by others.
    is_orphan: bool,
}

impl Lives {
    /// With nothing repeated or acknowledged elsewhere.
    pub(crate) fn afresh(&self) -> Self {
        Lives { repeated: None, acked_elsewhere: None, ..*self }
    }

    /// The first request of this life came, from this UDP port.
    pub(crate) fn begin(&mut self, request_port: u16) {
        self.request_port = request_port;
    }

    /// The responder has acknowledged `seq`, which this box never stored.
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

    /// The requester goes on.
    #[inline]
    pub(crate) fn note_accepted(&mut self) {
        self.repeated = None;
    }

    pub(crate) fn is_repeated(&self, seq: u64) -> bool {
        self.repeated.is_some_and(|repeated| repeated.seq == seq)
    }

    /// True if the sender of a packet takes no answer to it: it does not know the flow.
    pub(crate) fn is_repeated_in_vain(&self) -> bool {
        self.repeated.is_some_and(|repeated| repeated.repetitions.times() >= REPEATS_MAX)
    }

    /// A packet came that its requester should not send again, and is answered.
    pub(crate) fn note_repeated(&mut self, now: Instant, seq: u64) {
        match &mut self.repeated {
            Some(repeated) if repeated.seq == seq => {
                repeated.last = seq;
                repeated.repetitions.count(now);
            }
            // The packets behind the first that is repeated are repeated with it, until the
            // requester goes back, and not so far. The LAN may reorder them.
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
    /// Another life of its QPs, to which requests belong that do not fit this one.
    #[inline]
    pub(crate) fn successor(&self) -> Option<SlotId> {
        self.lives.successor
    }

    pub(crate) fn set_successor(&mut self, successor: Option<SlotId>) {
        self.lives.successor = successor;
    }

    /// Its requester's QPN has another owner: what is stored is delivered, and nobody answered.
    pub(crate) fn become_orphan(&mut self) {
        self.lives.is_orphan = true;
        self.bookkeeping.is_closing = true;
    }

    /// True if `packet` is the next of this flow, by its number.
    #[inline]
    pub(crate) fn is_next(&self, packet: &Packet<'_>) -> bool {
        packet.psn() == Psn::from_sequence(self.store.end())
    }

    /// True if `packet` is the next of this flow, and no other life of its QPs is known.
    #[inline]
    pub(crate) fn expects(&self, packet: &Packet<'_>) -> bool {
        self.lives.successor.is_none() && self.is_next(packet)
    }

    /// True if the next request needs nothing but to be stored.
    #[inline]
    pub(crate) fn only_stores(&self) -> bool {
        self.is_terminated()
            && self.mode.is_final()
            && self.requester.sent.next() <= self.store.end()
            && !self.reads.is_unresolved()
            && !self.requester.hold.is_for_responder()
    }

    /// True if `packet` cannot come from the requester of what is stored, so that it must not be
    /// taken for its next or its last.
    pub(crate) fn is_another_life(&self, packet: &Packet<'_>, payload_len: usize) -> bool {
        let seq = self.sequence_of(packet);
        if seq == self.store.end() || !self.delivers() || self.store.is_empty() {
            return false;
        }
        // A requester that was acknowledged anything has nothing from before its first packet left.
        let is_before_the_first = seq < self.requester.acks.begins_at()
            && self.requester.acks.begins_at() < self.requester.acks.to();
        !self.may_be_sent(seq)
            || is_before_the_first
            || self.comes_by_another_port(packet)
            || (self.lives.is_repeated(seq) && self.lives.is_repeated_in_vain())
            || self.store.contradicts(seq, packet, payload_len)
    }

    /// True if `packet` is not of this flow, whose requester has gone on in another life. Had the
    /// LAN only lost the same packet time and again, it would come back to what is stored.
    pub(crate) fn has_been_left(&self, packet: &Packet<'_>) -> bool {
        let stored = self.store.start()..self.store.end();
        self.delivers() && !stored.is_empty() && !stored.contains(&self.sequence_of(packet))
    }

    /// True if `packet` has not the source port that the requester has kept so far.
    pub(crate) fn comes_by_another_port(&self, packet: &Packet<'_>) -> bool {
        self.lives.request_port != 0 && self.lives.request_port != packet.udp_source_port()
    }

    /// True if a requester of this flow may send `seq` now: it goes on, goes back, or the LAN
    /// lost packets before it.
    pub(crate) fn may_be_sent(&self, seq: u64) -> bool {
        let latest = self.requester.sent.latest().max(self.store.end());
        let last = latest + self.reads.unresolved_max() + GAP_MAX;
        seq + OUTSTANDING_MAX > self.requester.acks.to() && seq <= last
    }

    /// True if an answer of the responder that names `psn` can be to what is stored here.
    #[inline]
    pub(crate) fn has_outstanding(&self, psn: Psn) -> bool {
        let seq = psn.unwrap_near(self.store.responder_next).unwrap_or(0);
        !self.store.is_empty() && seq + 1 >= self.store.responder_next && seq < self.store.sent_to()
    }

    /// True if a response can be for no other flow or life: it names what is outstanding here.
    #[inline]
    pub(crate) fn is_answered_by(&self, packet: &Packet<'_>) -> bool {
        self.is_terminated() && self.has_outstanding(packet.psn())
    }

    /// Unwraps a PSN near what is watched.
    pub(crate) fn sequence_in_trace(&self, packet: &Packet<'_>) -> u64 {
        let end = self.state.learning().map_or(0, |learning| learning.trace.end());
        packet.psn().unwrap_near(end).unwrap_or(0)
    }
}
