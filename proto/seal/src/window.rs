//! Replay window: a bitmap of received numbers that moves with the largest of them.

/// Numbers from the largest one received down to a fixed distance below it, one bit each.
///
/// The bitmap is a ring of words; a word is cleared when the largest number enters it. It therefore
/// distinguishes one word's worth of numbers fewer than the ring holds.
pub(crate) struct Window {
    words: Box<[u64]>,
    /// Largest number received plus one; 0 before the first.
    next: u64,
}

const WORD: u64 = u64::BITS as u64;

impl Window {
    /// Creates a window that distinguishes at least `numbers` numbers, a power of two.
    pub(crate) fn new(numbers: u32) -> Self {
        // One word is always partly ahead of the largest number.
        let words = (u64::from(numbers) / WORD + 1).next_power_of_two();
        Window { words: vec![0; words as usize].into(), next: 0 }
    }

    fn word(&self, number: u64) -> usize {
        (number / WORD) as usize & (self.words.len() - 1)
    }

    /// `true` if `number` has not arrived and is not older than the window.
    #[inline]
    pub(crate) fn is_fresh(&self, number: u64) -> bool {
        if number >= self.next {
            return number < u64::MAX;
        }
        let oldest_word = ((self.next - 1) / WORD).saturating_sub(self.words.len() as u64 - 1);
        number / WORD >= oldest_word && self.words[self.word(number)] >> (number % WORD) & 1 == 0
    }

    /// Notes the arrival of `number`, which must be fresh and authenticated, because it moves the
    /// window.
    #[inline]
    pub(crate) fn take(&mut self, number: u64) {
        if number >= self.next {
            let reached = if self.next == 0 { None } else { Some((self.next - 1) / WORD) };
            let first = reached.map_or(0, |word| word + 1);
            let last = number / WORD;
            // A jump clears each word at most once.
            let first = first.max((last + 1).saturating_sub(self.words.len() as u64));
            for word in first..=last {
                let at = word as usize & (self.words.len() - 1);
                self.words[at] = 0;
            }
            self.next = number + 1;
        }
        let at = self.word(number);
        self.words[at] |= 1 << (number % WORD);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::HashSet;

    #[test]
    fn as_many_numbers_are_told_apart_as_promised() {
        for numbers in [1 << 16, 1 << 17] {
            let mut window = Window::new(numbers);
            let newest = 5_000_017;
            window.take(newest);
            let oldest = newest - u64::from(numbers) + 1;
            assert!(window.is_fresh(oldest));
            window.take(oldest);
            assert!(!window.is_fresh(oldest));
            assert!(!window.is_fresh(newest - 2 * u64::from(numbers) - 64), "too old to be known");
        }
    }

    #[test]
    fn the_last_number_of_all_is_never_taken() {
        let mut window = Window::new(64);
        assert!(!window.is_fresh(u64::MAX));
        assert!(window.is_fresh(u64::MAX - 1));
        window.take(u64::MAX - 1);
        assert!(!window.is_fresh(u64::MAX - 1));
    }

    proptest! {
        #![proptest_config(ProptestConfig {
            failure_persistence: None,
            ..ProptestConfig::default()
        })]

        /// Compared with a set: no number is accepted twice, and within the window no fresh number
        /// is refused.
        #[test]
        fn agrees_with_a_set(
            steps in prop::collection::vec((0..400_u64, any::<bool>(), 0..100_u8), 1..400),
        ) {
            let (mut window, mut came, mut newest) = (Window::new(256), HashSet::new(), 0_u64);
            for (by, is_back, leap) in steps {
                let by = if leap == 0 { by * 1000 } else { by };
                let number = if is_back { newest.saturating_sub(by) } else { newest + by / 8 };
                let is_fresh = window.is_fresh(number);
                if came.contains(&number) {
                    prop_assert!(!is_fresh, "{number} is taken twice");
                } else if number + 256 > newest {
                    prop_assert!(is_fresh, "{number} is refused though {newest} is the newest");
                }
                if is_fresh {
                    window.take(number);
                    came.insert(number);
                    newest = newest.max(number);
                }
            }
        }
    }
}
