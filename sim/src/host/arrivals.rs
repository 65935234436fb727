//! What a responder's program knows of the messages of a QP.

use longhaul_units::Instant;

/// Messages whose presence is remembered, behind the latest.
const REMEMBERED: u32 = 128;

/// Messages of a QP, as its program finds them in completions. Immediate data numbers them, so that
/// a gap shows what is missing.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Arrivals {
    /// Messages received, without duplicates.
    pub messages: u64,
    /// Those within the flow's window.
    pub counted: u64,
    /// Messages flagged as missing.
    pub flagged: u64,
    /// Messages received twice, or too late to know.
    pub duplicates: u64,
    /// Time of the last.
    pub last: Instant,
    /// Number of the next message.
    next: u32,
    /// Bit `i`: message `next - 1 - i` has been received.
    present: u128,
}

impl Arrivals {
    /// Notes a message whose number is unknown.
    pub fn note(&mut self, at: Instant, is_counted: bool) {
        self.messages += 1;
        self.counted += u64::from(is_counted);
        self.last = at;
    }

    /// Notes message `number`.
    pub fn note_number(&mut self, at: Instant, number: u32, is_counted: bool) {
        let ahead = number.wrapping_sub(self.next);
        if ahead <= u32::MAX / 2 {
            self.flagged += u64::from(ahead);
            self.next = number.wrapping_add(1);
            self.present = self.present.checked_shl(ahead + 1).unwrap_or(0) | 1;
            return self.note(at, is_counted);
        }
        let behind = self.next.wrapping_sub(1).wrapping_sub(number);
        let bit = if behind < REMEMBERED { 1 << behind } else { 0 };
        if bit == 0 || self.present & bit != 0 {
            self.duplicates += 1;
            return;
        }
        self.present |= bit;
        self.flagged = self.flagged.saturating_sub(1);
        self.note(at, is_counted);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(numbers: &[u32]) -> (u64, u64, u64) {
        let mut arrivals = Arrivals::default();
        for &number in numbers {
            arrivals.note_number(Instant::ZERO, number, true);
        }
        (arrivals.messages, arrivals.flagged, arrivals.duplicates)
    }

    #[test]
    fn a_gap_is_flagged() {
        assert_eq!(of(&[0, 1, 2]), (3, 0, 0));
        assert_eq!(of(&[0, 3, 4]), (3, 2, 0));
        assert_eq!(of(&[2]), (1, 2, 0));
    }

    #[test]
    fn a_late_message_is_no_longer_flagged_and_a_duplicate_changes_nothing() {
        assert_eq!(of(&[0, 2, 1]), (3, 0, 0));
        assert_eq!(of(&[0, 2, 2, 0]), (2, 1, 2));
        assert_eq!(of(&[0, 2, 1, 1]), (3, 0, 1));
        assert_eq!(of(&[200, 0]), (1, 200, 1), "older than what is remembered");
    }

    #[test]
    fn numbers_wrap() {
        let mut arrivals = Arrivals { next: u32::MAX, ..Arrivals::default() };
        arrivals.note_number(Instant::ZERO, u32::MAX, true);
        arrivals.note_number(Instant::ZERO, 1, true);
        assert_eq!((arrivals.messages, arrivals.flagged), (2, 1));
    }
}
