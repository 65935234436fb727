//! Turns and deadlines of QPs.

use longhaul_units::Instant;
use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

/// QPs with packets to send, round robin. A flag in the QP records whether it is in the list, so
/// that the cost of a packet does not depend on the number of idle QPs.
#[derive(Debug, Default)]
pub(crate) struct RoundRobin(VecDeque<u32>);

impl RoundRobin {
    #[inline]
    pub fn push(&mut self, slot: u32) {
        self.0.push_back(slot);
    }

    #[inline]
    pub fn pop(&mut self) -> Option<u32> {
        self.0.pop_front()
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub fn forget(&mut self, slot: u32) {
        self.0.retain(|&s| s != slot);
    }
}

/// Deadlines, one entry per QP, evaluated only when it expires.
///
/// A deadline that moves later, as with every ACK, leaves its entry unchanged: an entry that
/// expires too early is queued again with the right time. Only a deadline that moves earlier adds
/// an entry, and makes the old one stale.
#[derive(Debug, Default)]
pub(crate) struct Timers(BinaryHeap<Reverse<(Instant, u32)>>);

impl Timers {
    /// Schedules `slot` for `at`. `entry` is the time of the QP's current entry.
    #[inline]
    pub fn schedule(&mut self, slot: u32, at: Instant, entry: &mut Option<Instant>) {
        if entry.is_none_or(|present| at < present) {
            *entry = Some(at);
            self.0.push(Reverse((at, slot)));
        }
    }

    /// Removes stale entries, for which `is_live` returns `false`, once they far outnumber the
    /// `usual` live ones.
    pub fn compact(&mut self, usual: usize, is_live: impl Fn(Instant, u32) -> bool) {
        if self.0.len() > 4 * usual + 1024 {
            self.0.retain(|&Reverse((at, slot))| is_live(at, slot));
        }
    }

    /// Time of the next entry.
    #[inline]
    pub fn next(&self) -> Option<Instant> {
        self.0.peek().map(|Reverse((at, _))| *at)
    }

    /// Removes an expired entry. It is valid only if it equals the QP's record of its entry.
    pub fn pop(&mut self, now: Instant) -> Option<(Instant, u32)> {
        if self.next()? > now {
            return None;
        }
        self.0.pop().map(|Reverse(entry)| entry)
    }
}

#[cfg(test)]
mod timers {
    use super::*;

    #[test]
    fn a_later_deadline_adds_no_entry() {
        let mut timers = Timers::default();
        let mut entry = None;
        for ns in 10..1000 {
            timers.schedule(0, Instant::from_ns(ns), &mut entry);
        }
        assert_eq!(timers.0.len(), 1);
        assert_eq!(timers.next(), Some(Instant::from_ns(10)));
    }

    #[test]
    fn stale_entries_are_forgotten_when_they_are_many() {
        let mut timers = Timers::default();
        let mut entry = None;
        for ns in (10..5000).rev() {
            timers.schedule(3, Instant::from_ns(ns), &mut entry);
            timers.compact(1, |at, _| Some(at) == entry);
        }
        assert!(timers.0.len() <= 1028, "{} entries", timers.0.len());
        assert_eq!(timers.next(), Some(Instant::from_ns(10)));
    }

    #[test]
    fn an_earlier_deadline_comes_up_first_and_leaves_a_stale_one() {
        let mut timers = Timers::default();
        let mut entry = None;
        timers.schedule(7, Instant::from_ns(50), &mut entry);
        timers.schedule(7, Instant::from_ns(20), &mut entry);
        assert_eq!(timers.pop(Instant::from_ns(10)), None);
        assert_eq!(timers.pop(Instant::from_ns(60)), Some((Instant::from_ns(20), 7)));
        assert_eq!(entry, Some(Instant::from_ns(20)));
        let stale = timers.pop(Instant::from_ns(60));
        assert_eq!(
            stale,
            Some((Instant::from_ns(50), 7)),
            "which the QP's note tells from a live one"
        );
    }
}
