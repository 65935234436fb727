//! Requesters that must wait, and are told so by RNR NAKs.
//!
//! The box absorbs the responder's RNR NAKs and acknowledges what it has stored. Once it can
//! acknowledge nothing further, and the responder has not been ready for [`Config::ack_hold_max`],
//! the requester must not mistake the silence for loss: it gets an RNR NAK for its first
//! unacknowledged packet, and another whenever it retransmits that packet. The requester's RNR
//! retry counter thus decides how often it retries; its retry counter is not used. The RNR timer
//! includes the round trip to the responder, so that a requester counts no more RNR NAKs than
//! without the box, and grows with the time for which the responder has not been ready.
//!
//! A responder that takes a packet and is not ready for the next may release nothing to the
//! requester. The requester's wait then goes on: it gets the next RNR NAK at once, or its local ACK
//! timer would take a retry for each packet that the responder takes.

use super::missing::Missing;
use crate::Config;
use crate::store::Store;
use longhaul_units::{Duration, Instant};
use longhaul_wire::{Syndrome, rnr_backoff, rnr_timer_code};

/// How long packets may be refused for lack of room before their requester is told: less than half
/// of perftest's budget of 0.54 s, after which its retry counter is exhausted.
const REFUSED_MAX: Duration = Duration::from_ms(200);

/// A responder whose last answer was an RNR NAK.
#[derive(Clone, Copy, Debug)]
struct NotReady {
    /// Its RNR timer.
    timer: Duration,
    since: Instant,
    /// Long enough that the requester must be told.
    is_long: bool,
}

/// The last RNR NAK.
#[derive(Clone, Copy, Debug)]
struct Told {
    psn: u64,
    /// Since when the requester has to wait at this PSN.
    since: Instant,
    /// The requester has retransmitted that packet.
    has_returned: bool,
}

/// Why the requester of a flow must wait, and what it was told.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Hold {
    not_ready: Option<NotReady>,
    /// Packets have been refused for lack of room since then.
    refused_since: Option<Instant>,
    /// An RNR NAK must be sent.
    is_owed: bool,
    told: Option<Told>,
}

impl Hold {
    /// Notes that packets are accepted.
    #[inline]
    pub(crate) fn note_accepted(&mut self) {
        self.refused_since = None;
    }

    /// True if the responder is not ready, so that further acknowledged packets would not be
    /// delivered soon.
    #[inline]
    pub(crate) fn is_for_responder(&self) -> bool {
        self.not_ready.is_some()
    }

    /// Notes that the responder takes packets.
    #[inline]
    pub(crate) fn note_ready(&mut self) {
        self.not_ready = None;
    }

    /// Notes an RNR NAK of the responder with this timer. Returns the time until which nothing is
    /// sent to it: later than the timer if it has not been ready for long, so that many such
    /// responders do not take their neighbours' share of the path.
    pub(crate) fn note_not_ready(
        &mut self,
        now: Instant,
        config: &Config,
        timer: Duration,
        store: &Store,
        missing: &Missing,
    ) -> Instant {
        let since = self.not_ready.map_or(now, |before| before.since);
        let is_long = self.waits_since(store).is_some() || now.since(since) >= config.ack_hold_max;
        self.not_ready = Some(NotReady { timer, since, is_long });
        self.owe(store, missing);
        now + rnr_backoff(timer, now.since(since))
    }

    /// Notes that the next packet was refused for lack of room.
    pub(crate) fn note_refused(&mut self, now: Instant, store: &Store, missing: &Missing) {
        self.refused_since.get_or_insert(now);
        if self.takes_return(store.end()) {
            self.owe(store, missing);
        }
    }

    /// Owes an RNR NAK if packets have been refused for too long.
    pub(crate) fn check_refused(&mut self, now: Instant, store: &Store, missing: &Missing) {
        if self.refused_since.is_some_and(|since| now.since(since) >= REFUSED_MAX) {
            self.owe(store, missing);
        }
    }

    /// Notes that a packet was stored whose requester may have to wait for its acknowledgement.
    #[inline]
    pub(crate) fn note_stored(&mut self, store: &Store, missing: &Missing) {
        if self.not_ready.is_some() {
            self.owe(store, missing);
        }
    }

    /// True if the requester waits for an acknowledgement that cannot be sent.
    fn must_wait(&self, store: &Store, missing: &Missing) -> bool {
        let has_all = store.frontier().0 == store.end();
        match self.not_ready {
            Some(not_ready) => not_ready.is_long && (!has_all || missing.is_full()),
            None => has_all && missing.is_full() && self.refused_since.is_some(),
        }
    }

    /// Since when the requester has been waiting, if it was told to wait at the frontier.
    fn waits_since(&self, store: &Store) -> Option<Instant> {
        self.told.filter(|told| told.psn == store.frontier().0).map(|told| told.since)
    }

    /// True if the requester was told to retransmit `psn` and has not done so.
    fn awaits_return(&self, psn: u64) -> bool {
        self.told.is_some_and(|told| told.psn == psn && !told.has_returned)
    }

    /// Notes that the requester retransmits `psn`. True if it was told to.
    pub(crate) fn takes_return(&mut self, psn: u64) -> bool {
        let is_awaited = self.awaits_return(psn);
        if let Some(told) = self.told.as_mut().filter(|_| is_awaited) {
            told.has_returned = true;
        }
        is_awaited
    }

    /// Owes an RNR NAK, unless the last one has not yet brought the requester back.
    fn owe(&mut self, store: &Store, missing: &Missing) {
        self.is_owed = self.must_wait(store, missing) && !self.awaits_return(store.frontier().0);
    }

    /// True if an RNR NAK must be sent.
    #[inline]
    pub(crate) fn is_due(&self, store: &Store, missing: &Missing) -> bool {
        self.is_owed && self.must_wait(store, missing)
    }

    /// True if the requester was told to retransmit the next PSN expected of it.
    pub(crate) fn is_coming_back(&self, store: &Store) -> bool {
        self.awaits_return(store.end())
    }

    /// True if the packet at `seq` must be dropped because its requester has to wait.
    #[inline]
    pub(crate) fn drops(&mut self, seq: u64, store: &Store, missing: &Missing) -> bool {
        self.not_ready.is_some() && self.drops_at(seq, store, missing)
    }

    #[cold]
    fn drops_at(&mut self, seq: u64, store: &Store, missing: &Missing) -> bool {
        let (frontier, end) = (store.frontier().0, store.end());
        let returned = seq == frontier && self.takes_return(frontier);
        if !self.must_wait(store, missing) || seq < frontier {
            return false;
        }
        if seq >= end && !self.awaits_return(frontier) && !returned && !self.is_owed {
            // Stored if there is room.
            return false;
        }
        self.owe(store, missing);
        true
    }

    /// Returns the RNR NAK that is owed; `round_trip` is the RTT of the responder.
    pub(crate) fn take(
        &mut self,
        now: Instant,
        config: &Config,
        round_trip: Duration,
        store: &Store,
    ) -> Syndrome {
        let (timer, since) = match self.not_ready {
            Some(NotReady { timer, since, .. }) => (timer + round_trip, since),
            None => (config.ack_hold_max.max(round_trip), self.refused_since.unwrap_or(now)),
        };
        let since = self.waits_since(store).unwrap_or(since);
        self.is_owed = false;
        self.told = Some(Told { psn: store.frontier().0, since, has_returned: false });
        Syndrome::RnrNak { timer_code: rnr_timer_code(rnr_backoff(timer, now.since(since))) }
    }
}
