//! Wake-up that any thread can send to a sleeping loop.

use longhaul_port::Doorbell;
#[cfg(loom)]
use loom::sync::atomic::{AtomicBool, Ordering};
use std::io;
use std::os::fd::{AsRawFd, RawFd};
use std::sync::Arc;
#[cfg(not(loom))]
use std::sync::atomic::{AtomicBool, Ordering};

/// Wakes a sleeping loop from any thread; clones are the same wake-up.
///
/// A system call is only needed for the first wake-up since the loop last checked. Writes before
/// [`WakeUp::wake`] are visible to the loop once [`WakeUp::take`] has returned true for it.
#[derive(Clone, Debug)]
pub struct WakeUp(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    /// Set before the bell rings, cleared when the loop checks.
    is_pending: AtomicBool,
    bell: Doorbell,
}

impl WakeUp {
    /// A silent wake-up.
    ///
    /// # Errors
    /// If the process is out of descriptors.
    pub fn new() -> io::Result<Self> {
        Ok(WakeUp(Arc::new(Inner { is_pending: AtomicBool::new(false), bell: Doorbell::new()? })))
    }

    /// Wakes the loop, at once or when it next tries to sleep.
    pub fn wake(&self) {
        if !self.0.is_pending.swap(true, Ordering::AcqRel) {
            // Fails only for a descriptor that is not an eventfd.
            let _ = self.0.bell.ring();
        }
    }

    /// True if a thread has woken the loop since the last call. Costs a load if none has.
    #[inline]
    pub fn take(&self) -> bool {
        self.0.is_pending.load(Ordering::Relaxed) && self.0.is_pending.swap(false, Ordering::AcqRel)
    }

    pub(crate) fn descriptor(&self) -> RawFd {
        self.0.bell.as_raw_fd()
    }

    /// Silences the bell. A late ring for a wake-up that was already taken costs one spurious
    /// check.
    pub(crate) fn silence(&self) -> io::Result<()> {
        self.0.bell.clear().map(|_| ())
    }

    /// Sleeps like [`Parker::sleep`](crate::Parker::sleep) without ports and without a timeout.
    #[cfg(loom)]
    pub fn sleep_in_model(&self) {
        self.0.bell.wait();
        self.silence().unwrap();
    }
}

#[cfg(all(test, loom))]
mod under_loom {
    //! Loom tests of two threads that wake a third, under all interleavings.

    use super::WakeUp;
    use loom::sync::Mutex;
    use loom::sync::atomic::{AtomicUsize, Ordering};
    use loom::thread;
    use std::sync::Arc;

    const WAKERS: usize = 2;

    /// Like [`Driver`](crate::Driver), which looks for work only if `take` returns true.
    #[test]
    fn what_was_written_before_a_wake_up_is_seen_after_it() {
        loom::model(|| {
            let (wake, written) = (WakeUp::new().unwrap(), Arc::new(AtomicUsize::new(0)));
            for _ in 0..WAKERS {
                let (wake, written) = (wake.clone(), Arc::clone(&written));
                thread::spawn(move || {
                    written.fetch_add(1, Ordering::Relaxed);
                    wake.wake();
                });
            }
            let mut seen = 0;
            while seen < WAKERS {
                if wake.take() {
                    seen = written.load(Ordering::Relaxed);
                } else {
                    wake.sleep_in_model();
                }
            }
        });
    }

    /// Like the engine thread of a program, which checks everything after any wake-up.
    #[test]
    fn a_wake_up_between_looking_and_sleeping_is_not_lost() {
        loom::model(|| {
            let (wake, written) = (WakeUp::new().unwrap(), Arc::new(Mutex::new(0)));
            for _ in 0..WAKERS {
                let (wake, written) = (wake.clone(), Arc::clone(&written));
                thread::spawn(move || {
                    *written.lock().unwrap() += 1;
                    wake.wake();
                });
            }
            while *written.lock().unwrap() < WAKERS {
                wake.sleep_in_model();
                wake.take();
            }
        });
    }
}
