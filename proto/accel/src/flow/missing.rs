//! Packets that a requester has to send again: the LAN lost them, or the store had no room.

use longhaul_units::{Duration, Instant};

/// How often a flow whose packets were refused looks for room, which other flows may have made.
const ROOM_CHECK_EVERY: Duration = Duration::from_ms(1);

/// What was dropped of a flow's requests since the last one was stored.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Missing {
    /// The packet that revealed a gap.
    revealed_by: Option<u64>,
    nak_is_owed: bool,
    /// Packets are refused for want of room; when one last was, or room was last looked for.
    full_at: Option<Instant>,
}

impl Missing {
    /// The store has room again. `ask`: the requester is sent a NAK for what it was refused.
    pub(crate) fn since_room(ask: bool) -> Self {
        Missing { nak_is_owed: ask, ..Missing::default() }
    }

    /// The packet at `seq` lies behind a gap. True if it is the first that does: one NAK per gap,
    /// and one more whenever the same packet comes again.
    pub(crate) fn note_gap(&mut self, seq: u64) -> bool {
        let is_new = self.revealed_by.is_none();
        let revealed_by = *self.revealed_by.get_or_insert(seq);
        self.nak_is_owed |= revealed_by == seq;
        is_new
    }

    /// A packet was refused for want of room.
    pub(crate) fn note_full(&mut self, now: Instant) {
        self.full_at = Some(now);
    }

    /// True while packets are refused for want of room.
    #[inline]
    pub(crate) fn is_full(&self) -> bool {
        self.full_at.is_some()
    }

    pub(crate) fn is_revealed_by(&self, seq: u64) -> bool {
        self.revealed_by == Some(seq)
    }

    /// A sequence NAK is owed.
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

    /// When to look for room.
    pub(crate) fn room_check_at(&self) -> Option<Instant> {
        self.full_at.map(|at| at + ROOM_CHECK_EVERY)
    }

    /// Returns `true` if it is time to look for room, and restarts that interval.
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
