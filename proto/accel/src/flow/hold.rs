//! Requesters that have to wait, and hear so by RNR NAKs.
//!
//! The box absorbs the responder's RNR NAKs, and acknowledges what it has stored. Once it can
//! acknowledge nothing further, and the responder has not been ready for [`Config::ack_hold_max`],
//! the requester must not take the silence for loss: it gets an RNR NAK for the first packet that
//! it was not acknowledged, and another whenever it comes back to that packet. How often it comes
//! back is for its own RNR retry counter to decide; its retry counter is not touched. The RNR timer
//! covers the round trip to the responder, so that a requester counts no more RNR NAKs than it
//! would without the box, and grows with the time that the responder has not been ready.

use super::Flow;
use crate::Config;
use crate::shared::Shared;
use longhaul_units::{Duration, Instant};
use longhaul_wire::{Syndrome, rnr_timer_code};

/// How long packets may be refused for want of room before their requester hears of it: less than
/// half of what a requester has by perftest's settings, 0.54 s, before its retry counter is used
/// up.
const REFUSED_MAX: Duration = Duration::from_ms(200);
/// Part of the time that a responder has not been ready by which it may be asked later than its RNR
/// timer allows.
const LATER: u64 = 8;
/// The latest that is.
const LATER_MAX: Duration = Duration::from_ms(100);

/// A responder that was not ready when it last answered.
#[derive(Clone, Copy, Debug)]
struct NotReady {
    /// Its RNR timer.
    timer: Duration,
    since: Instant,
    /// So long that its requester hears of it.
    is_long: bool,
}

/// Why the requester of a flow has to wait, and what it was told.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Hold {
    not_ready: Option<NotReady>,
    /// Packets are refused for want of room, since then.
    refused_since: Option<Instant>,
    /// An RNR NAK is to be sent.
    is_owed: bool,
    /// PSN of the last one, until its requester comes back to it.
    told: Option<u64>,
}

impl Hold {
    /// Packets are accepted.
    #[inline]
    pub(crate) fn note_accepted(&mut self) {
        self.refused_since = None;
    }

    /// The responder is not ready: what is acknowledged to the requester would not be delivered
    /// soon.
    #[inline]
    pub(crate) fn is_for_responder(&self) -> bool {
        self.not_ready.is_some()
    }

    /// The responder takes packets.
    #[inline]
    pub(crate) fn note_ready(&mut self) {
        self.not_ready = None;
    }
}

fn later(now: Instant, since: Instant) -> Duration {
    now.since(since).divided_by(LATER).min(LATER_MAX)
}

impl Flow {
    /// The responder has answered by an RNR NAK with this timer: it is asked again when that is
    /// over. One that is not ready for long is asked less often, so that many of them do not take
    /// their neighbours' share of the path.
    pub(crate) fn note_not_ready(&mut self, now: Instant, config: &Config, timer: Duration) {
        let since = self.requester.hold.not_ready.map_or(now, |before| before.since);
        let is_long = now.since(since) >= config.ack_hold_max;
        self.requester.hold.not_ready = Some(NotReady { timer, since, is_long });
        let until = now + timer.max(later(now, since));
        self.responder.retransmission.wait_for_responder(until);
        self.owe_wait();
    }

    /// A packet was refused for want of room.
    pub(crate) fn note_refused(&mut self, now: Instant, seq: u64) {
        self.requester.hold.refused_since.get_or_insert(now);
        if self.requester.hold.told.take_if(|told| *told == seq).is_some() {
            self.owe_wait();
        }
    }

    /// Looks whether packets have been refused for too long.
    pub(crate) fn check_refused(&mut self, now: Instant) {
        if self.requester.hold.refused_since.is_some_and(|since| now.since(since) >= REFUSED_MAX) {
            self.owe_wait();
        }
    }

    /// True when the requester waits for an acknowledgement that it cannot have.
    fn must_wait(&self) -> bool {
        let has_all = self.store.frontier().0 == self.store.end();
        match self.requester.hold.not_ready {
            Some(not_ready) => not_ready.is_long && (!has_all || self.requester.missing.is_full()),
            None => {
                has_all
                    && self.requester.missing.is_full()
                    && self.requester.hold.refused_since.is_some()
            }
        }
    }

    /// An RNR NAK is owed unless the requester was sent one and has not come back since.
    fn owe_wait(&mut self) {
        self.requester.hold.is_owed =
            self.must_wait() && self.requester.hold.told != Some(self.store.frontier().0);
    }

    /// True when an RNR NAK is to be sent.
    #[inline]
    pub(crate) fn owes_wait(&self) -> bool {
        self.requester.hold.is_owed && self.must_wait()
    }

    /// True when the requester was told to come back to the next PSN expected of it.
    pub(crate) fn is_coming_back(&self) -> bool {
        self.requester.hold.told == Some(self.store.end())
    }

    /// True when the packet at `seq` is not to be looked at, because its requester has to wait.
    #[inline]
    pub(crate) fn makes_wait(&mut self, seq: u64) -> bool {
        self.requester.hold.not_ready.is_some() && self.makes_wait_at(seq)
    }

    #[cold]
    fn makes_wait_at(&mut self, seq: u64) -> bool {
        let (frontier, end) = (self.store.frontier().0, self.store.end());
        let returned =
            self.requester.hold.told.take_if(|told| *told == frontier && seq == frontier).is_some();
        if !self.must_wait() || seq < frontier {
            return false;
        }
        if seq >= end
            && self.requester.hold.told != Some(frontier)
            && !returned
            && !self.requester.hold.is_owed
        {
            // To be stored, if there is room.
            return false;
        }
        self.owe_wait();
        true
    }

    /// A packet was stored whose requester may have to wait for its acknowledgement.
    #[inline]
    pub(crate) fn note_stored_while_not_ready(&mut self) {
        if self.requester.hold.not_ready.is_some() {
            self.owe_wait();
        }
    }

    /// The RNR NAK that is owed.
    pub(crate) fn take_wait(&mut self, now: Instant, shared: &mut Shared) -> Syndrome {
        let round_trip = self.responder.retransmission.rtt().smoothed().unwrap_or_default();
        let (timer, since) = match self.requester.hold.not_ready {
            Some(NotReady { timer, since, .. }) => (timer + round_trip, since),
            None => (
                shared.config.ack_hold_max.max(round_trip),
                self.requester.hold.refused_since.unwrap_or(now),
            ),
        };
        self.requester.hold.is_owed = false;
        self.requester.hold.told = Some(self.store.frontier().0);
        shared.counters.rnr_naks += 1;
        Syndrome::RnrNak { timer_code: rnr_timer_code(timer.max(later(now, since))) }
    }
}
