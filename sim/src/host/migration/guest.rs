//! A guest's memory: which pieces of it are still to be sent, and which it has written since.

use super::Writes;
use longhaul_units::{Duration, Instant, Rng};

/// The memory, in pieces of one size.
pub(super) struct Guest {
    /// Pieces to send, and their number.
    unsent: Vec<bool>,
    left: usize,
    /// Pieces written since the last [`Guest::sync`].
    dirty: Vec<bool>,
    /// Where the search for the next piece to send begins.
    next: usize,
    writer: Option<Writer>,
}

/// The guest's program: writes its pieces in turn, then pauses.
struct Writer {
    pieces: usize,
    each: Duration,
    pause: Duration,
    /// The next piece, and the time at which it is written.
    at: usize,
    due: Instant,
}

impl Guest {
    /// Memory of so many pieces of `size` bytes, none of them to be sent, of a guest that begins a
    /// turn of its writes at time zero.
    pub fn new(pieces: usize, size: u32, writes: Option<&Writes>) -> Self {
        let writer = writes.map(|writes| Writer {
            pieces: writes.bytes.div_ceil(size.into()).max(1) as usize,
            each: writes.rate.time_for_bytes(size.into()),
            pause: writes.pause,
            at: 0,
            due: Instant::ZERO,
        });
        Guest { unsent: vec![false; pieces], left: 0, dirty: vec![false; pieces], next: 0, writer }
    }

    /// Lets the guest be anywhere in its turn at time zero.
    #[must_use]
    pub fn anywhere(mut self, rng: &mut impl Rng) -> Self {
        if let Some(writer) = &mut self.writer {
            let ahead = Duration::from_ps(rng.below(writer.turn().as_ps()));
            writer.run(Instant::ZERO + ahead, &mut self.dirty);
            writer.due = Instant::ZERO + writer.due.since(Instant::ZERO + ahead);
        }
        self
    }

    /// Pieces to send.
    pub fn left(&self) -> u64 {
        self.left as u64
    }

    /// Starts the first pass: every piece is to be sent, and the writes from now on are logged.
    pub fn log(&mut self, now: Instant) {
        if let Some(writer) = &mut self.writer {
            writer.run(now, &mut self.dirty);
        }
        self.dirty.fill(false);
        self.unsent.fill(true);
        self.left = self.unsent.len();
    }

    /// Takes the log of the writes until now: what is dirty is to be sent.
    pub fn sync(&mut self, now: Instant) {
        if let Some(writer) = &mut self.writer {
            writer.run(now, &mut self.dirty);
        }
        for (unsent, dirty) in self.unsent.iter_mut().zip(&mut self.dirty) {
            *unsent |= std::mem::take(dirty);
        }
        self.left = self.unsent.iter().filter(|unsent| **unsent).count();
    }

    /// Takes a piece to send, in the order of addresses. `false` if there is none.
    pub fn take(&mut self) -> bool {
        let (before, after) = self.unsent.split_at(self.next);
        let found = after
            .iter()
            .position(|unsent| *unsent)
            .map(|at| at + self.next)
            .or_else(|| before.iter().position(|unsent| *unsent));
        let Some(found) = found else { return false };
        self.unsent[found] = false;
        self.left -= 1;
        self.next = found + 1;
        true
    }
}

impl Writer {
    /// Time of a turn.
    fn turn(&self) -> Duration {
        self.each.times(self.pieces as u64) + self.pause
    }

    /// Marks what is written until now.
    fn run(&mut self, now: Instant, dirty: &mut [bool]) {
        let turn = self.turn();
        let turns = now.since(self.due).as_ps() / turn.as_ps().max(1);
        if turns > 0 {
            dirty[..self.pieces].fill(true);
            self.due += turn.times(turns);
        }
        while self.due <= now {
            dirty[self.at] = true;
            self.at += 1;
            self.due += self.each;
            if self.at == self.pieces {
                self.at = 0;
                self.due += self.pause;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use longhaul_units::{BitRate, SplitMix64};

    /// 1000 bytes per second in pieces of 100 bytes: one each 100 ms, from 0 on.
    fn guest(working_set: u64) -> Guest {
        let writes = Writes {
            bytes: working_set,
            rate: BitRate::from_bps(8000).unwrap(),
            pause: Duration::from_ms(1000),
        };
        Guest::new(10, 100, Some(&writes))
    }

    fn ms(ms: u64) -> Instant {
        Instant::ZERO + Duration::from_ms(ms)
    }

    fn send_all(guest: &mut Guest) -> u64 {
        let mut sent = 0;
        while guest.take() {
            sent += 1;
        }
        assert_eq!(guest.left(), 0);
        sent
    }

    #[test]
    fn what_is_written_after_it_was_sent_is_sent_again() {
        let mut guest = guest(500);
        guest.log(ms(50));
        assert_eq!(send_all(&mut guest), 10);
        // Pieces 1 and 2 of a turn that has begun before.
        guest.sync(ms(250));
        assert_eq!(send_all(&mut guest), 2);
        guest.sync(ms(260));
        assert_eq!(guest.left(), 0);
        // The rest of the turn; then the guest pauses until 1500 ms.
        guest.sync(ms(1450));
        assert_eq!(send_all(&mut guest), 2);
        guest.sync(ms(1550));
        assert_eq!(send_all(&mut guest), 1);
    }

    #[test]
    fn a_turn_dirties_the_working_set_once_and_the_rest_of_the_memory_never() {
        let mut guest = guest(500);
        guest.log(ms(0));
        send_all(&mut guest);
        guest.sync(ms(100_000));
        assert_eq!(send_all(&mut guest), 5);
        // 100 s are 66 turns of 1.5 s and a second, half of it a pause.
        guest.sync(ms(100_400));
        assert_eq!(guest.left(), 0);
        guest.sync(ms(100_550));
        assert_eq!(guest.left(), 1);
    }

    #[test]
    fn a_guest_may_be_anywhere_in_its_turn() {
        let mut rng = SplitMix64::new(1);
        let mut first = std::collections::BTreeSet::new();
        for _ in 0..100 {
            let mut guest = guest(500).anywhere(&mut rng);
            guest.log(ms(0));
            send_all(&mut guest);
            // A piece, or none while the guest pauses, and all of them after a turn.
            guest.sync(ms(100));
            assert!(guest.left() <= 1);
            first.insert(guest.unsent.iter().position(|unsent| *unsent));
            guest.sync(ms(1500));
            assert_eq!(guest.left(), 5);
        }
        assert_eq!(first.len(), 6, "{first:?}");
    }

    #[test]
    fn an_idle_guest_dirties_nothing() {
        let mut guest = Guest::new(3, 100, None);
        guest.log(ms(0));
        assert_eq!(send_all(&mut guest), 3);
        guest.sync(ms(1000));
        assert_eq!(guest.left(), 0);
    }
}
