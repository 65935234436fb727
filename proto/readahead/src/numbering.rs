//! Two numberings of one sequence of requests: that of a host's NIC, and that of the path between
//! the boxes.
//!
//! The NIC's numbering has additional ranges: READs that this box sent to the NIC, or answered for
//! it.

use std::collections::VecDeque;

/// A range of the NIC's numbers without numbers on the path.
#[derive(Clone, Copy, Debug)]
struct Extra {
    nic: u64,
    len: u64,
    /// Total length of the extras before this one.
    before: u64,
}

impl Extra {
    fn end(&self) -> u64 {
        self.nic + self.len
    }

    /// The path's number behind it.
    fn path(&self) -> u64 {
        self.nic - self.before
    }
}

/// Translation of one of the NIC's numbers to the path.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum PathNumber {
    /// The number on the path.
    Known(u64),
    /// None: part of the extra that begins at `first`; the next number on the path is `path`.
    Extra { first: u64, path: u64 },
    /// It lies before all remembered ranges.
    Gone,
}

/// See the module. All numbers are unwrapped.
#[derive(Debug)]
pub(crate) struct Numbering {
    extras: VecDeque<Extra>,
    max: usize,
    /// Extras before this number of the NIC are forgotten.
    floor: u64,
    /// Total length and count of the extras before it.
    before_floor: (u64, u64),
}

impl Numbering {
    /// The two numberings are equal from `start` on. At most `max` ranges are remembered.
    pub(crate) fn new(start: u64, max: usize) -> Self {
        // No duplicate is this far behind the start of a sequence.
        const REACH: u64 = 1 << 23;
        Numbering {
            extras: VecDeque::new(),
            max,
            floor: start.saturating_sub(REACH),
            before_floor: (0, 0),
        }
    }

    /// The NIC's number of `path`; `None` before all remembered ranges.
    #[inline]
    pub(crate) fn to_nic(&self, path: u64) -> Option<u64> {
        let behind = self.extras.partition_point(|extra| extra.path() <= path);
        let nic = path + self.len_before(behind);
        (nic >= self.floor).then_some(nic)
    }

    /// Translates the NIC's number `nic`.
    #[inline]
    pub(crate) fn to_path(&self, nic: u64) -> PathNumber {
        if nic < self.floor {
            return PathNumber::Gone;
        }
        let behind = self.extras.partition_point(|extra| extra.nic <= nic);
        match behind.checked_sub(1).map(|last| self.extras[last]) {
            Some(extra) if nic < extra.end() => {
                PathNumber::Extra { first: extra.nic, path: extra.path() }
            }
            _ => PathNumber::Known(nic - self.len_before(behind)),
        }
    }

    /// Number of extras that begin at or before `nic`: messages that the path does not count.
    #[inline]
    pub(crate) fn count_to(&self, nic: u64) -> u64 {
        self.before_floor.1 + self.extras.partition_point(|extra| extra.nic <= nic) as u64
    }

    /// Adds a range of `len` numbers at `nic`, behind all others. Returns `false` without room;
    /// only ranges before `done_below` may be forgotten.
    pub(crate) fn push(&mut self, nic: u64, len: u64, done_below: u64) -> bool {
        debug_assert!(self.extras.back().is_none_or(|last| last.end() <= nic));
        if self.extras.len() >= self.max {
            match self.extras.front() {
                Some(oldest) if oldest.end() <= done_below => {
                    self.floor = oldest.end();
                    self.before_floor = (oldest.before + oldest.len, self.before_floor.1 + 1);
                    self.extras.pop_front();
                }
                _ => return false,
            }
        }
        let before = self.len_before(self.extras.len());
        self.extras.push_back(Extra { nic, len, before });
        true
    }

    /// True if [`Numbering::push`] has room for one more range.
    pub(crate) fn has_room(&self, done_below: u64) -> bool {
        self.extras.len() < self.max
            || self.extras.front().is_some_and(|oldest| oldest.end() <= done_below)
    }

    /// Total length of the first `count` remembered extras, and of all forgotten ones.
    #[inline]
    fn len_before(&self, count: usize) -> u64 {
        match count.checked_sub(1).map(|last| self.extras[last]) {
            Some(extra) => extra.before + extra.len,
            None => self.before_floor.0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const START: u64 = 1 << 32;

    proptest! {
        /// Compares with a list of all numbers of the NIC, with whether the path has them.
        #[test]
        fn agrees_with_a_list_of_all_numbers(
            pieces in prop::collection::vec((0_u64..6, 1_u64..5), 0..40),
        ) {
            let mut numbering = Numbering::new(START, 64);
            let mut listed = Vec::new();
            for (requests, extra) in pieces {
                listed.extend((0..requests).map(|_| None));
                let nic = START + listed.len() as u64;
                prop_assert!(numbering.push(nic, extra, START));
                listed.extend((0..extra).map(|_| Some(nic)));
            }
            listed.extend([None; 3]);
            let mut path = START;
            let mut extras = std::collections::BTreeSet::new();
            for (at, extra) in listed.iter().enumerate() {
                let nic = START + at as u64;
                extras.extend(*extra);
                prop_assert_eq!(numbering.count_to(nic), extras.len() as u64);
                match extra {
                    Some(first) => {
                        prop_assert_eq!(
                            numbering.to_path(nic),
                            PathNumber::Extra { first: *first, path }
                        );
                    }
                    None => {
                        prop_assert_eq!(numbering.to_path(nic), PathNumber::Known(path));
                        prop_assert_eq!(numbering.to_nic(path), Some(nic));
                        path += 1;
                    }
                }
            }
        }
    }

    #[test]
    fn what_is_forgotten_still_counts() {
        let mut numbering = Numbering::new(START, 2);
        for number in 0..5 {
            let nic = START + number * 10;
            assert!(numbering.push(nic, 3, nic));
        }
        let nic = START + 49;
        assert_eq!(numbering.to_path(nic), PathNumber::Known(nic - 15));
        assert_eq!(numbering.to_nic(nic - 15), Some(nic));
        assert_eq!(numbering.count_to(nic), 5);
        assert_eq!(numbering.to_path(START + 5), PathNumber::Gone);
        assert_eq!(numbering.to_nic(START), None);
    }

    #[test]
    fn nothing_that_may_be_asked_for_again_is_forgotten() {
        let mut numbering = Numbering::new(START, 1);
        assert!(numbering.push(START, 3, START));
        assert!(!numbering.has_room(START + 2) && !numbering.push(START + 5, 3, START + 2));
        assert!(numbering.has_room(START + 3) && numbering.push(START + 5, 3, START + 3));
    }
}
