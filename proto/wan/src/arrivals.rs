//! Numbers that have arrived on one path, and those that the next acknowledgement must report.

use crate::format::{Ack, AckEntry};
use longhaul_units::{Duration, Instant};
use std::collections::VecDeque;

/// Classification of a number that arrives.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Arrival {
    /// First arrival.
    First,
    /// Already received.
    Replayed,
    /// Too old or too far ahead.
    Outside,
}

/// Times that each arrival is reported, so that lost acknowledgements cost nothing.
const REPORTS: u8 = 3;
const NUMBERS_PER_WORD: u64 = 64;

#[derive(Clone, Copy, Default)]
struct Word {
    mask: u64,
    /// Numbers that parity has repaired and that have not arrived themselves.
    repaired: u64,
    /// Reports of the word's last change that are still owed.
    reports: u8,
    is_queued: bool,
}

/// Received numbers of one path, as a ring of 64-bit words.
pub(crate) struct Arrivals {
    words: Vec<Word>,
    /// Largest number that arrived or that the sender has skipped.
    largest: u64,
    has_any: bool,
    largest_at: Instant,
    /// Words with unreported changes.
    changed: VecDeque<u64>,
    /// Words to report a second time, and a third.
    again: VecDeque<(Instant, u64)>,
    later: VecDeque<(Instant, u64)>,
    unreported: u32,
    first_unreported_at: Option<Instant>,
    is_urgent: bool,
    pub(crate) congested: u64,
    pub(crate) duplicates: u64,
    /// Numbers that parity has repaired and that have not arrived themselves.
    pub(crate) repaired: u64,
    /// Runs of missing numbers. Late arrivals that fill a gap can decrement it, hence it wraps.
    bursts: u64,
}

impl Arrivals {
    /// Remembers the last `numbers` numbers, a power of two.
    pub(crate) fn new(numbers: u32) -> Self {
        let words = (u64::from(numbers) / NUMBERS_PER_WORD).max(2) as usize;
        Arrivals {
            words: vec![Word::default(); words],
            largest: 0,
            has_any: false,
            largest_at: Instant::ZERO,
            changed: VecDeque::new(),
            again: VecDeque::new(),
            later: VecDeque::new(),
            unreported: 0,
            first_unreported_at: None,
            is_urgent: false,
            congested: 0,
            duplicates: 0,
            repaired: 0,
            bursts: 0,
        }
    }

    fn span(&self) -> u64 {
        self.words.len() as u64 * NUMBERS_PER_WORD
    }

    fn slot(&mut self, word: u64) -> &mut Word {
        let mask = self.words.len() as u64 - 1;
        &mut self.words[(word & mask) as usize]
    }

    /// The 64-bit number whose low half is `low`.
    #[inline]
    pub(crate) fn unwrap(&self, low: u32) -> Option<u64> {
        let distance = low.wrapping_sub(self.largest as u32) as i32;
        self.largest.checked_add_signed(i64::from(distance))
    }

    /// Classifies `number` without noting it.
    #[inline]
    pub(crate) fn look(&self, number: u64) -> Arrival {
        let reach = self.span() / 2;
        if number > self.largest + reach || number + reach < self.largest {
            return Arrival::Outside;
        }
        let word = number / NUMBERS_PER_WORD;
        if word > self.largest / NUMBERS_PER_WORD {
            return Arrival::First;
        }
        let mask = self.words.len() as u64 - 1;
        let held = self.words[(word & mask) as usize].mask;
        if held >> (number % NUMBERS_PER_WORD) & 1 == 1 {
            Arrival::Replayed
        } else {
            Arrival::First
        }
    }

    /// `true` if `number` is remembered and has not arrived itself.
    fn is_missing(&self, number: u64) -> bool {
        let mask = self.words.len() as u64 - 1;
        let word = &self.words[((number / NUMBERS_PER_WORD) & mask) as usize];
        (word.mask & !word.repaired) >> (number % NUMBERS_PER_WORD) & 1 == 0
    }

    /// Updates the count of bursts for `number <= largest`, which arrives late: the run of missing
    /// numbers around it shrinks, splits or disappears.
    fn fill_gap(&mut self, number: u64) {
        let before = number > 0 && self.is_missing(number - 1);
        let behind = number < self.largest && self.is_missing(number + 1);
        self.bursts = match (before, behind) {
            (true, true) => self.bursts.wrapping_add(1),
            (false, false) => self.bursts.wrapping_sub(1),
            _ => self.bursts,
        };
    }

    /// Notes the arrival of `number`, for which [`Arrivals::look`] returned [`Arrival::First`].
    #[inline]
    pub(crate) fn note(&mut self, now: Instant, number: u64) {
        if number <= self.largest && self.has_any {
            self.fill_gap(number);
        } else if self.has_any && number > self.largest + 1 && !self.is_missing(self.largest) {
            self.bursts = self.bursts.wrapping_add(1);
        }
        self.mark(now, number);
    }

    /// Notes that parity has repaired `number`.
    pub(crate) fn note_repaired(&mut self, now: Instant, number: u64) {
        if number > self.largest && self.has_any && !self.is_missing(self.largest) {
            self.bursts = self.bursts.wrapping_add(1);
        }
        self.mark(now, number);
        self.slot(number / NUMBERS_PER_WORD).repaired |= 1 << (number % NUMBERS_PER_WORD);
        self.repaired = self.repaired.wrapping_add(1);
    }

    /// Notes the arrival of `number`, for which [`Arrivals::look`] returned [`Arrival::Replayed`].
    /// It was late, not lost, if parity had repaired it.
    pub(crate) fn note_replayed(&mut self, number: u64) {
        self.duplicates += 1;
        let bit = 1 << (number % NUMBERS_PER_WORD);
        if self.slot(number / NUMBERS_PER_WORD).repaired & bit != 0 {
            self.fill_gap(number);
            self.slot(number / NUMBERS_PER_WORD).repaired &= !bit;
            self.repaired = self.repaired.wrapping_sub(1);
        }
    }

    #[inline]
    fn mark(&mut self, now: Instant, number: u64) {
        let is_next = !self.has_any || number == self.largest + 1;
        if number > self.largest || !self.has_any {
            self.advance(number);
            self.largest_at = now;
        }
        self.has_any = true;
        let word = number / NUMBERS_PER_WORD;
        let slot = self.slot(word);
        slot.mask |= 1 << (number % NUMBERS_PER_WORD);
        slot.reports = REPORTS;
        if !slot.is_queued {
            slot.is_queued = true;
            self.changed.push_back(word);
        }
        self.unreported += 1;
        self.is_urgent |= !is_next;
        self.first_unreported_at.get_or_insert(now);
    }

    /// Moves the window up to `number` and clears the words that leave it.
    fn advance(&mut self, number: u64) {
        let (from, to) = (self.largest / NUMBERS_PER_WORD, number / NUMBERS_PER_WORD);
        let words = self.words.len() as u64;
        for word in from + 1..=to.min(from + words) {
            *self.slot(word) = Word::default();
        }
        if to > from + words {
            *self.slot(to) = Word::default();
        }
        self.largest = number;
    }

    /// Notes that the sender's next number is `next`: missing numbers before it will not arrive.
    /// Needed after a silence in which more numbers were lost than are remembered.
    pub(crate) fn skip_to(&mut self, next: u64) {
        if next > self.largest + self.span() / 4 && next < u64::MAX / 2 {
            self.advance(next - 1);
        }
    }

    /// Deadline of the next acknowledgement: at most `delay` after the first event it reports.
    pub(crate) fn ack_at(&self, delay: Duration, every: u32) -> Option<Instant> {
        let first = self
            .first_unreported_at
            .map(|at| if self.is_urgent || self.unreported >= every { at } else { at + delay });
        let repeats =
            [self.again.front(), self.later.front()].into_iter().flatten().map(|&(at, _)| at);
        repeats.chain(first).min()
    }

    /// Returns the acknowledgement that is due. Its words are due again after `delay`, and after
    /// four times `delay`.
    pub(crate) fn report(&mut self, now: Instant, delay: Duration, room_bytes: u64) -> Ack {
        let mut ack = Ack {
            largest: self.largest as u32,
            delay_ns: u32::try_from(now.since(self.largest_at).as_ns()).unwrap_or(u32::MAX),
            room_bytes,
            congested: self.congested as u32,
            duplicates: self.duplicates as u32,
            repaired: self.repaired as u32,
            bursts: self.bursts as u16,
            ..Ack::default()
        };
        let oldest = (self.largest / NUMBERS_PER_WORD + 1).saturating_sub(self.words.len() as u64);
        let (mut again, mut later) = (self.again.len(), self.later.len());
        while usize::from(ack.count) < Ack::ENTRIES_MAX {
            let is_late =
                |queue: &VecDeque<(Instant, u64)>| queue.front().is_some_and(|&(at, _)| at <= now);
            let word = if let Some(word) = self.changed.pop_front() {
                self.slot(word).is_queued = false;
                word
            } else if later > 0 && is_late(&self.later) {
                later -= 1;
                self.later.pop_front().map_or(0, |(_, word)| word)
            } else if again > 0 && (ack.count > 0 || is_late(&self.again)) {
                again -= 1;
                self.again.pop_front().map_or(0, |(_, word)| word)
            } else {
                break;
            };
            let slot = self.slot(word);
            if word < oldest || slot.reports == 0 || slot.is_queued {
                continue;
            }
            slot.reports -= 1;
            let (mask, reports) = (slot.mask, slot.reports);
            match reports {
                2 => self.again.push_back((now + delay, word)),
                1 => self.later.push_back((now + delay.times(4), word)),
                _ => {}
            }
            ack.entries[usize::from(ack.count)] = AckEntry { word: word as u32, mask };
            ack.count += 1;
        }
        self.unreported = 0;
        self.is_urgent = !self.changed.is_empty();
        self.first_unreported_at = self.is_urgent.then_some(now);
        ack
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::HashSet;

    const NOW: Instant = Instant::from_ns(1000);
    const DELAY: Duration = Duration::from_us(10);

    fn named(ack: &Ack) -> Vec<u64> {
        let entries = ack.entries().iter();
        entries
            .flat_map(|e| {
                (0..64).filter(|n| e.mask >> n & 1 == 1).map(|n| u64::from(e.word) * 64 + n)
            })
            .collect()
    }

    #[test]
    fn a_number_counts_once() {
        let mut arrivals = Arrivals::new(1024);
        assert_eq!(arrivals.look(0), Arrival::First);
        arrivals.note(NOW, 0);
        assert_eq!(arrivals.look(0), Arrival::Replayed);
        arrivals.note(NOW, 500);
        assert_eq!(arrivals.look(1), Arrival::First);
        assert_eq!(arrivals.look(500 + 513), Arrival::Outside);
        arrivals.note(NOW, 900);
        assert_eq!(arrivals.look(100), Arrival::Outside, "too old to tell");
    }

    #[test]
    fn every_number_is_named_three_times_and_then_no_more() {
        let mut arrivals = Arrivals::new(1024);
        let mut now = NOW;
        let mut times = vec![0; 300];
        for number in 0..300 {
            arrivals.note(now, number);
            if number % 32 == 31 {
                now += DELAY;
                named(&arrivals.report(now, DELAY, 0)).iter().for_each(|&n| times[n as usize] += 1);
            }
        }
        while let Some(at) = arrivals.ack_at(DELAY, 32) {
            now = now.max(at);
            let ack = arrivals.report(now, DELAY, 0);
            named(&ack).iter().for_each(|&n| times[n as usize] += 1);
        }
        assert!(times.iter().all(|&n| (3..=5).contains(&n)), "{times:?}");
    }

    #[test]
    fn a_gap_is_reported_at_once() {
        let mut arrivals = Arrivals::new(1024);
        arrivals.note(NOW, 0);
        assert_eq!(arrivals.ack_at(DELAY, 32), Some(NOW + DELAY));
        arrivals.note(NOW, 2);
        assert_eq!(arrivals.ack_at(DELAY, 32), Some(NOW));
    }

    #[test]
    fn runs_of_what_did_not_come_are_counted_before_repair() {
        let mut arrivals = Arrivals::new(1024);
        let bursts = |arrivals: &mut Arrivals| {
            let ack = arrivals.report(NOW, DELAY, 0);
            (ack.bursts, ack.repaired)
        };
        for number in [0, 1, 4, 5, 9] {
            arrivals.note(NOW, number);
        }
        assert_eq!(bursts(&mut arrivals), (2, 0), "2 and 3; 6 to 8");
        for number in [2, 3, 7] {
            arrivals.note_repaired(NOW, number);
        }
        assert_eq!(bursts(&mut arrivals), (2, 3), "as before repair");
        arrivals.note(NOW, 6);
        assert_eq!(bursts(&mut arrivals), (2, 3), "7 and 8 are left");
        arrivals.note_replayed(7);
        assert_eq!(bursts(&mut arrivals), (2, 2), "7 was late; 8 is left");
        arrivals.note(NOW, 8);
        assert_eq!(bursts(&mut arrivals), (1, 2));
        arrivals.note_repaired(NOW, 12);
        assert_eq!(bursts(&mut arrivals), (2, 3), "10 to 12");
        arrivals.note(NOW, 14);
        assert_eq!(bursts(&mut arrivals), (2, 3), "10 to 13");
        arrivals.note_replayed(0);
        assert_eq!(bursts(&mut arrivals), (2, 3), "a copy changes nothing");
    }

    proptest! {
        #![proptest_config(ProptestConfig {
            failure_persistence: None,
            ..ProptestConfig::default()
        })]

        /// In any order of arrivals, every number that is reported has arrived, and every
        /// remembered arrival is reported.
        #[test]
        fn reports_are_true(steps in prop::collection::vec(0..200_u64, 1..600)) {
            let mut arrivals = Arrivals::new(1024);
            let (mut noted, mut told) = (HashSet::new(), HashSet::new());
            let mut now = NOW;
            let mut base = 0_u64;
            for step in steps {
                base += step / 20;
                let number = base + step % 20;
                match arrivals.look(number) {
                    Arrival::First => {
                        prop_assert!(noted.insert(number));
                        arrivals.note(now, number);
                    }
                    Arrival::Replayed => prop_assert!(noted.contains(&number)),
                    Arrival::Outside => {}
                }
                now += Duration::from_us(3);
                if arrivals.ack_at(DELAY, 32).is_some_and(|at| at <= now) {
                    told.extend(named(&arrivals.report(now, DELAY, 0)));
                }
            }
            while let Some(at) = arrivals.ack_at(DELAY, 32) {
                now = now.max(at);
                told.extend(named(&arrivals.report(now, DELAY, 0)));
            }
            prop_assert!(told.is_subset(&noted));
            prop_assert_eq!(told, noted);
        }
    }
}
