//! A critical section that one call of the program enters and another one leaves, such as
//! `ibv_start_poll` and `ibv_end_poll`.
//!
//! It spans calls, so it cannot be a mutex with a guard. It is held while a program reads a few
//! completions or describes a few work requests; a thread that finds it held yields and tries
//! again.

use std::sync::atomic::{AtomicU64, Ordering};

/// Attempts before the thread yields its processor.
const ATTEMPTS_BEFORE_YIELD: u32 = 64;
const NOBODY: u64 = 0;

/// A section with at most one thread in it.
pub(crate) struct Section {
    /// Identifies the thread that entered it.
    holder: AtomicU64,
}

/// The result of entering.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Entered {
    /// The section was free; the caller must leave it.
    Now,
    /// The same thread had already entered it, so waiting would deadlock.
    Already,
}

impl Section {
    pub(crate) const fn new() -> Self {
        Section { holder: AtomicU64::new(NOBODY) }
    }

    /// Waits until no other thread is in the section, and enters it.
    #[inline]
    pub(crate) fn enter(&self) -> Entered {
        let me = this_thread();
        let mut attempts = 0_u32;
        loop {
            match self.holder.compare_exchange(NOBODY, me, Ordering::Acquire, Ordering::Relaxed) {
                Ok(_) => return Entered::Now,
                Err(holder) if holder == me => return Entered::Already,
                Err(_) => {}
            }
            attempts += 1;
            if attempts.is_multiple_of(ATTEMPTS_BEFORE_YIELD) {
                std::thread::yield_now();
            } else {
                std::hint::spin_loop();
            }
        }
    }

    /// True if a thread is in it.
    #[inline]
    pub(crate) fn is_held(&self) -> bool {
        self.holder.load(Ordering::Relaxed) != NOBODY
    }

    /// Leaves it, even if another thread entered it: programs that move tasks between threads may
    /// do so.
    #[inline]
    pub(crate) fn leave(&self) {
        self.holder.store(NOBODY, Ordering::Release);
    }
}

/// A number that no other living thread of the process has, and that differs from [`NOBODY`].
#[inline]
fn this_thread() -> u64 {
    // SAFETY: always succeeds, and touches nothing of ours.
    unsafe { libc::pthread_self() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::UnsafeCell;

    struct Shared(Section, UnsafeCell<u64>);
    // SAFETY: the number is only touched inside the section.
    unsafe impl Sync for Shared {}

    #[test]
    fn one_thread_at_a_time_is_in_it() {
        const ROUNDS: u64 = 2_000;
        let shared = Shared(Section::new(), UnsafeCell::new(0));
        std::thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| {
                    let shared = &shared;
                    for _ in 0..ROUNDS {
                        assert_eq!(shared.0.enter(), Entered::Now);
                        // SAFETY: inside the section.
                        unsafe {
                            let before = shared.1.get().read_volatile();
                            std::thread::yield_now();
                            shared.1.get().write_volatile(before + 1);
                        }
                        shared.0.leave();
                    }
                });
            }
        });
        assert_eq!(shared.1.into_inner(), 3 * ROUNDS);
        assert!(!shared.0.is_held());
    }

    #[test]
    fn a_thread_that_enters_twice_is_told_so() {
        let section = Section::new();
        assert_eq!(section.enter(), Entered::Now);
        assert_eq!(section.enter(), Entered::Already);
        section.leave();
        assert_eq!(section.enter(), Entered::Now);
    }

    #[test]
    fn another_thread_may_leave_it() {
        let section = Section::new();
        section.enter();
        std::thread::scope(|scope| {
            scope.spawn(|| section.leave());
        });
        assert!(!section.is_held());
    }
}
