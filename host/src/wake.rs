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
/// Waking is a system call only when nobody has woken it since the loop last looked. What a thread
/// wrote before [`WakeUp::wake`] is visible to the loop once [`WakeUp::take`] has returned true for
/// it.
#[derive(Clone, Debug)]
pub struct WakeUp(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    /// Set before the bell is rung, cleared when the loop looks.
    is_pending: AtomicBool,
    bell: Doorbell,
}

impl WakeUp {
    /// A silent wake-up.
    ///
    /// # Errors
    /// When the process is out of descriptors.
    pub fn new() -> io::Result<Self> {
        Ok(WakeUp(Arc::new(Inner { is_pending: AtomicBool::new(false), bell: Doorbell::new()? })))
    }

    /// Wakes the loop, now or when it next wants to sleep.
    pub fn wake(&self) {
        if !self.0.is_pending.swap(true, Ordering::AcqRel) {
            // Fails only for a descriptor that is no eventfd, which this one is.
            let _ = self.0.bell.ring();
        }
    }

    /// Whether somebody woke the loop since the last call. Costs a load when nobody did.
    #[inline]
    pub fn take(&self) -> bool {
        self.0.is_pending.load(Ordering::Relaxed) && self.0.is_pending.swap(false, Ordering::AcqRel)
    }

    pub(crate) fn descriptor(&self) -> RawFd {
        self.0.bell.as_raw_fd()
    }

    /// Silences the bell. A bell rung late for a wake-up already taken costs one look for nothing.
    pub(crate) fn silence(&self) -> io::Result<()> {
        self.0.bell.clear().map(|_| ())
    }

    /// Sleeps as [`Parker::sleep`](crate::Parker::sleep) does without ports and without a limit.
    #[cfg(loom)]
    pub fn sleep_in_model(&self) {
        self.0.bell.wait();
        self.silence().unwrap();
    }
}

#[cfg(all(test, loom))]
mod under_loom {
    //! Every order in which two threads can wake a third.

    use super::WakeUp;
    use loom::sync::Mutex;
    use loom::sync::atomic::{AtomicUsize, Ordering};
    use loom::thread;
    use std::sync::Arc;

    const WAKERS: usize = 2;

    /// As [`Driver`](crate::Driver) does, which looks for work only when `take` says so.
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

    /// As the engine thread of a program does, which looks at everything whatever woke it.
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
