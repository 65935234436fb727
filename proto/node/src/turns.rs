//! Turns of two classes of traffic that share one output.

/// Bytes of a turn, in frame lengths: four frames of 4 KiB.
const QUANTUM: i64 = 16 << 10;

/// Lets two classes of traffic take turns by bytes, so that each gets half of an output for which
/// both have frames, whatever the lengths of their frames. A class alone gets all of it, until the
/// other one has a frame, which comes first.
#[derive(Debug)]
pub struct Turns {
    current: usize,
    /// Bytes left in the turn; negative if its last frame exceeded it, which its next turn pays.
    left: i64,
    /// Bytes by which the other class exceeded its last turn.
    owed: i64,
    /// The current class was the only one with frames.
    was_alone: bool,
}

impl Default for Turns {
    fn default() -> Self {
        Turns { current: 0, left: QUANTUM, owed: 0, was_alone: false }
    }
}

impl Turns {
    /// The class, 0 or 1, whose turn it is among those that are `ready` to send. `None` if neither
    /// is.
    #[inline]
    pub fn choose(&mut self, ready: [bool; 2]) -> Option<usize> {
        match ready {
            [false, false] => None,
            [true, true] => {
                if self.was_alone {
                    *self = Turns { current: 1 - self.current, ..Turns::default() };
                }
                while self.left <= 0 {
                    let owed = std::mem::replace(&mut self.owed, self.left);
                    (self.current, self.left) = (1 - self.current, QUANTUM + owed);
                }
                Some(self.current)
            }
            [is_first, _] => {
                let current = usize::from(!is_first);
                *self = Turns { current, was_alone: true, ..Turns::default() };
                Some(self.current)
            }
        }
    }

    /// Counts a frame of `bytes` as sent by the class that was chosen last.
    #[inline]
    pub fn take(&mut self, bytes: u64) {
        self.left = self.left.saturating_sub_unsigned(bytes);
    }

    /// Returns `bytes` of a turn that were taken and not sent.
    pub fn give_back(&mut self, bytes: u64) {
        self.left = self.left.saturating_add_unsigned(bytes);
    }

    /// Bytes left in the turn, 0 if it is over.
    #[inline]
    pub fn left(&self) -> u64 {
        u64::try_from(self.left).unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Bytes of each class after `frames` frames, of these lengths.
    fn send(turns: &mut Turns, ready: [bool; 2], lens: [u64; 2], frames: u32) -> [u64; 2] {
        let mut sent = [0; 2];
        for _ in 0..frames {
            let class = turns.choose(ready).unwrap();
            turns.take(lens[class]);
            sent[class] += lens[class];
        }
        sent
    }

    #[test]
    fn each_class_gets_half_of_the_bytes_whatever_its_frames() {
        for lens in [[60, 9000], [1514, 4170], [4170, 60], [40_000, 1514]] {
            let sent = send(&mut Turns::default(), [true; 2], lens, 100_000);
            let beyond = QUANTUM as u64 + lens[0].max(lens[1]);
            assert!(sent[0].abs_diff(sent[1]) <= beyond, "{lens:?}: {sent:?}");
        }
    }

    #[test]
    fn a_class_alone_gets_everything_and_owes_nothing_for_it() {
        let mut turns = Turns::default();
        assert_eq!(turns.choose([false; 2]), None);
        for alone in [0, 1] {
            let ready = [alone == 0, alone == 1];
            let sent = send(&mut turns, ready, [1514; 2], 1000);
            assert_eq!(sent[alone], 1000 * 1514);
            assert_eq!(turns.choose([true; 2]), Some(1 - alone), "the one that waited comes first");
        }
        let sent = send(&mut turns, [true; 2], [1514; 2], 1000);
        assert!(sent[0].abs_diff(sent[1]) <= 2 * QUANTUM as u64, "{sent:?}");
    }
}
