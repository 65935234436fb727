//! Packets that a requester must retransmit: the LAN lost them, or the store had no room.

use longhaul_units::{Duration, Instant};

/// How often a flow whose packets were refused checks for room, which other flows may have made.
const ROOM_CHECK_EVERY: Duration = Duration::from_ms(1);

/// Requests of a flow dropped since the last one was stored.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Missing {
    /// PSN of the packet that revealed a gap.
    revealed_by: Option<u64>,
    nak_is_owed: bool,
    /// Packets are refused for lack of room: time of the last refusal or room check.
    full_at: Option<Instant>,
}

impl Missing {
    /// For a store that has room again. `ask`: the requester gets a NAK for the refused packets.
    pub(crate) fn since_room(ask: bool) -> Self {
        Missing { nak_is_owed: ask, ..Missing::default() }
    }

    /// Notes that the packet at `seq` lies behind a gap. Returns `true` if it is the first one. One
    /// NAK per gap is owed, and another whenever the same packet comes again.
    pub(crate) fn note_gap(&mut self, seq: u64) -> bool {
        let is_new = self.revealed_by.is_none();
        let revealed_by = *self.revealed_by.get_or_insert(seq);
        self.nak_is_owed |= revealed_by == seq;
        is_new
    }

    /// Notes that a packet was refused for lack of room.
    pub(crate) fn note_full(&mut self, now: Instant) {
        self.full_at = Some(now);
    }

    /// True while packets are refused for lack of room.
    #[inline]
    pub(crate) fn is_full(&self) -> bool {
        self.full_at.is_some()
    }

    pub(crate) fn is_revealed_by(&self, seq: u64) -> bool {
        self.revealed_by == Some(seq)
    }

    /// Owes a sequence NAK.
    pub(crate) fn owe_nak(&mut self) {
        self.nak_is_owed = true;
    }

    #[inline]
    pub(crate) fn owes_nak(&self) -> bool {
        self.nak_is_owed
    }

    pub(crate) fn note_nak_sent(&mut self) {
        self.nak_is_owed = false;
    }

    /// When to check for room.
    pub(crate) fn room_check_at(&self) -> Option<Instant> {
        self.full_at.map(|at| at + ROOM_CHECK_EVERY)
    }

    /// Returns `true` if a room check is due, and restarts its interval.
    pub(crate) fn takes_room_check(&mut self, now: Instant) -> bool {
        let is_due = self.room_check_at().is_some_and(|at| at <= now);
        if is_due {
            self.full_at = Some(now);
        }
        is_due
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_gap_owes_one_nak_and_another_when_its_packet_comes_again() {
        let mut missing = Missing::default();
        assert!(missing.note_gap(7) && missing.owes_nak());
        missing.note_nak_sent();
        assert!(!missing.note_gap(8) && !missing.owes_nak());
        assert!(!missing.note_gap(7) && missing.owes_nak());
    }
}
