//! Who runs the device: what the program's threads and the engine thread tell each other without
//! the lock.
//!
//! The program says that it polls ([`HandOver::note_poll`]) and that it is about to wait
//! ([`HandOver::hand_over`]); the thread says that it sleeps because the program polls
//! ([`HandOver::stand_by`]). What holds: after a hand-over the thread takes over; it does not sleep
//! through one, whichever of the two comes first. Each side writes its own flag, then reads the
//! other's, with a fence between.

use crate::placement::current_cpu;
use longhaul_host::WakeUp;
#[cfg(loom)]
use loom::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering, fence};
#[cfg(not(loom))]
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering, fence};

/// Between the program's threads and the one engine thread.
pub(crate) struct HandOver {
    /// Polls by the program, for the engine thread to see that it is not needed.
    polls: AtomicU64,
    /// The processor of the last poll.
    polled_on: AtomicUsize,
    /// The program is about to block or to wait for an event.
    handed_over: AtomicBool,
    /// The engine thread sleeps because the program polls.
    standing_by: AtomicBool,
    wake: WakeUp,
}

impl HandOver {
    /// Nothing handed over; `wake` wakes the engine thread.
    pub(crate) fn new(wake: WakeUp) -> Self {
        HandOver {
            polls: AtomicU64::new(0),
            polled_on: AtomicUsize::new(usize::MAX),
            handed_over: AtomicBool::new(false),
            standing_by: AtomicBool::new(false),
            wake,
        }
    }

    /// Wakes the engine thread, whatever it sleeps for.
    pub(crate) fn wake(&self) -> &WakeUp {
        &self.wake
    }

    /// The program polls. Only ever called by one thread at a time, hence no atomic addition.
    #[inline]
    pub(crate) fn note_poll(&self) {
        self.polls.store(self.polls.load(Ordering::Relaxed).wrapping_add(1), Ordering::Relaxed);
        self.polled_on.store(current_cpu(), Ordering::Relaxed);
    }

    /// Polls so far.
    pub(crate) fn polls(&self) -> u64 {
        self.polls.load(Ordering::Relaxed)
    }

    /// The processor of the last poll; no processor's number before the first.
    pub(crate) fn polled_on(&self) -> usize {
        self.polled_on.load(Ordering::Relaxed)
    }

    /// The program is about to wait for an event rather than to poll: the engine thread takes over
    /// now.
    #[inline]
    pub(crate) fn hand_over(&self) {
        // A swap, as in `take_over`: loom does not know that a swap leaves no place for a store
        // inside it.
        self.handed_over.swap(true, Ordering::AcqRel);
        // Pairs with the fence in `stand_by`: either the thread sees the hand-over, or it is seen
        // standing by.
        fence(Ordering::SeqCst);
        if self.standing_by.load(Ordering::Relaxed) {
            self.wake.wake();
        }
    }

    /// Whether the program has handed over since this was last asked.
    pub(crate) fn take_over(&self) -> bool {
        self.handed_over.swap(false, Ordering::AcqRel)
    }

    /// Whether the program has handed over and nobody has taken over yet.
    pub(crate) fn is_handed_over(&self) -> bool {
        self.handed_over.load(Ordering::Acquire)
    }

    /// The engine thread runs `sleep`, which a hand-over ends, unless there has been one already.
    pub(crate) fn stand_by(&self, sleep: impl FnOnce(&WakeUp)) {
        self.standing_by.store(true, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        if !self.is_handed_over() {
            sleep(&self.wake);
        }
        self.standing_by.store(false, Ordering::Relaxed);
    }
}

#[cfg(all(test, loom))]
mod under_loom {
    //! Every order in which a program can hand over while the engine thread decides whether to
    //! sleep.

    use super::HandOver;
    use longhaul_host::WakeUp;
    use loom::sync::atomic::{AtomicU64, Ordering};
    use loom::thread;
    use std::sync::Arc;

    fn shared() -> Arc<HandOver> {
        Arc::new(HandOver::new(WakeUp::new().unwrap()))
    }

    /// Stands by until the program hands over; without a time limit, so that what is lost is lost
    /// for good.
    fn stand_by_until_handed_over(ours: &HandOver) {
        while !ours.take_over() {
            ours.stand_by(|wake| {
                wake.sleep_in_model();
                wake.take();
            });
        }
    }

    #[test]
    fn the_thread_does_not_sleep_through_a_hand_over() {
        loom::model(|| {
            let (ours, done) = (shared(), Arc::new(AtomicU64::new(0)));
            let program = {
                let (theirs, done) = (Arc::clone(&ours), Arc::clone(&done));
                thread::spawn(move || {
                    done.store(1, Ordering::Relaxed);
                    theirs.hand_over();
                })
            };
            stand_by_until_handed_over(&ours);
            assert_eq!(done.load(Ordering::Relaxed), 1, "sees what the program did before");
            program.join().unwrap();
        });
    }

    #[test]
    fn nor_when_others_wake_it_at_the_same_time() {
        loom::model(|| {
            let ours = shared();
            for hands_over in [true, false] {
                let theirs = Arc::clone(&ours);
                thread::spawn(
                    move || if hands_over { theirs.hand_over() } else { theirs.wake().wake() },
                );
            }
            stand_by_until_handed_over(&ours);
        });
    }

    #[test]
    fn a_second_hand_over_while_the_first_is_taken_is_not_lost() {
        loom::model(|| {
            let ours = shared();
            let program = {
                let theirs = Arc::clone(&ours);
                thread::spawn(move || {
                    theirs.hand_over();
                    // The program polls meanwhile, and waits again.
                    theirs.note_poll();
                    theirs.hand_over();
                })
            };
            stand_by_until_handed_over(&ours);
            // Else both were taken at once.
            if ours.polls() == 0 {
                stand_by_until_handed_over(&ours);
                assert_eq!(ours.polls(), 1);
            }
            program.join().unwrap();
        });
    }
}
