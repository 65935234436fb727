//! Hand-over of the device between the program's threads and the engine thread, without the lock.
//!
//! The program signals that it polls ([`HandOver::note_poll`]) and that it is about to wait
//! ([`HandOver::hand_over`]); the thread signals that it sleeps because the program polls
//! ([`HandOver::stand_by`]). Invariant: the thread takes over after a hand-over, and does not sleep
//! through one, whichever happens first. Each side writes its own flag, then reads the other's,
//! with a fence between.

use crate::placement::current_cpu;
use longhaul_host::WakeUp;
#[cfg(loom)]
use loom::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering, fence};
#[cfg(not(loom))]
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering, fence};

/// State between the program's threads and the engine thread.
pub(crate) struct HandOver {
    /// The program's polls; while they increase, the engine thread is not needed.
    polls: AtomicU64,
    /// Processor of the last poll.
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

    /// Wakes the engine thread, whatever it waits for.
    pub(crate) fn wake(&self) -> &WakeUp {
        &self.wake
    }

    /// Counts a poll by the program. Only one thread at a time may call this, so the addition need
    /// not be atomic.
    #[inline]
    pub(crate) fn note_poll(&self) {
        self.polls.store(self.polls.load(Ordering::Relaxed).wrapping_add(1), Ordering::Relaxed);
        self.polled_on.store(current_cpu(), Ordering::Relaxed);
    }

    /// Polls so far.
    pub(crate) fn polls(&self) -> u64 {
        self.polls.load(Ordering::Relaxed)
    }

    /// Processor of the last poll; an invalid number before the first.
    pub(crate) fn polled_on(&self) -> usize {
        self.polled_on.load(Ordering::Relaxed)
    }

    /// The program is about to wait for an event: the engine thread takes over at once.
    #[inline]
    pub(crate) fn hand_over(&self) {
        // A swap, as in `take_over`: loom does not model that a swap is indivisible with respect to
        // a store.
        self.handed_over.swap(true, Ordering::AcqRel);
        // Pairs with the fence in `stand_by`: either the thread sees the hand-over, or this side
        // sees that it stands by.
        fence(Ordering::SeqCst);
        if self.standing_by.load(Ordering::Relaxed) {
            self.wake.wake();
        }
    }

    /// True if the program has handed over since the last call.
    pub(crate) fn take_over(&self) -> bool {
        self.handed_over.swap(false, Ordering::AcqRel)
    }

    /// True if the program has handed over and nobody has taken over yet.
    pub(crate) fn is_handed_over(&self) -> bool {
        self.handed_over.load(Ordering::Acquire)
    }

    /// Runs `sleep` on the engine thread, which a hand-over ends, unless there has already been
    /// one.
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
    //! Loom tests of a program that hands over while the engine thread decides whether to sleep,
    //! under all interleavings.

    use super::HandOver;
    use longhaul_host::WakeUp;
    use loom::sync::atomic::{AtomicU64, Ordering};
    use loom::thread;
    use std::sync::Arc;

    fn shared() -> Arc<HandOver> {
        Arc::new(HandOver::new(WakeUp::new().unwrap()))
    }

    /// Stands by until the program hands over; without a timeout, so that a lost wake-up hangs the
    /// test.
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
            // Otherwise both were taken at once.
            if ours.polls() == 0 {
                stand_by_until_handed_over(&ours);
                assert_eq!(ours.polls(), 1);
            }
            program.join().unwrap();
        });
    }
}
