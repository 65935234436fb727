//! Detects an MTU black hole from losses of long datagrams without a later arrival of the same
//! length.

/// Losses that indicate a black hole.
pub(crate) const LOST_MAX: u32 = 16;
/// Width of a class of lengths, in bytes on the wire.
const CLASS_BYTES: u64 = 64;
/// The last class includes everything longer.
const CLASSES: usize = 72;

pub(crate) struct LongLosses {
    /// Only transmissions of more bytes on the wire are counted; every path carries shorter ones.
    pub(crate) from: u64,
    /// By class: number after the newest transmission that arrived.
    arrived_to: [u64; CLASSES],
    /// By class: transmissions lost since one of this class or a longer one arrived.
    lost: [u32; CLASSES],
    total: u32,
}

impl LongLosses {
    /// Counts transmissions of more than `from` bytes on the wire.
    pub(crate) fn new(from: u64) -> Self {
        LongLosses { from, arrived_to: [0; CLASSES], lost: [0; CLASSES], total: 0 }
    }

    /// Notes that transmission `number` arrived, which shows that the path carries its length and
    /// less.
    #[inline]
    pub(crate) fn arrived(&mut self, number: u64, bytes: u64) {
        let class = class(bytes);
        if bytes <= self.from || number < self.arrived_to[class] {
            return;
        }
        self.arrived_to[class] = number + 1;
        if self.total > 0 {
            self.lost[..=class].fill(0);
            self.total = self.lost.iter().sum();
        }
    }

    /// Notes that transmission `number` was lost.
    pub(crate) fn lost(&mut self, number: u64, bytes: u64) {
        let class = class(bytes);
        if bytes > self.from && self.arrived_to[class..].iter().all(|&to| number >= to) {
            self.lost[class] += 1;
            self.total += 1;
        }
    }

    /// Notes that datagrams sent later get through and no long ones do.
    pub(crate) fn overtaken(&mut self) {
        self.total = LOST_MAX;
    }

    /// `true` if the losses indicate a black hole.
    #[inline]
    pub(crate) fn are_of_a_black_hole(&self) -> bool {
        self.total >= LOST_MAX
    }

    /// Forgets all losses.
    pub(crate) fn clear(&mut self) {
        self.lost.fill(0);
        self.total = 0;
    }
}

fn class(bytes: u64) -> usize {
    ((bytes / CLASS_BYTES) as usize).min(CLASSES - 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    const LONG: u64 = 1200;
    const MEDIUM: u64 = 800;

    #[test]
    fn shorter_datagrams_that_arrive_in_between_do_not_hide_a_black_hole() {
        let mut losses = LongLosses::new(600);
        for number in (0..).step_by(3).take(LOST_MAX as usize) {
            assert!(!losses.are_of_a_black_hole());
            losses.arrived(number, MEDIUM);
            losses.lost(number + 1, LONG);
            losses.arrived(number + 2, 100);
        }
        assert!(losses.are_of_a_black_hole());
        losses.clear();
        assert!(!losses.are_of_a_black_hole());
    }

    #[test]
    fn losses_behind_which_something_as_long_arrives_are_not_of_their_length() {
        let mut losses = LongLosses::new(600);
        for number in (0..).step_by(4).take(1000) {
            losses.lost(number, MEDIUM);
            losses.lost(number + 1, LONG);
            losses.lost(number + 2, 500);
            losses.arrived(number + 3, LONG);
            assert!(!losses.are_of_a_black_hole());
        }
        // Lost, but behind the arrival of a larger number.
        (0..100).for_each(|number| losses.lost(number, MEDIUM));
        assert!(!losses.are_of_a_black_hole());
    }
}
