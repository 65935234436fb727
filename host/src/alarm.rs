//! Wake-up of one thread that sleeps, or is about to sleep, on a descriptor.

use longhaul_port::Doorbell;
#[cfg(loom)]
use loom::sync::atomic::{AtomicBool, Ordering, fence};
use std::io;
use std::os::fd::{AsRawFd, RawFd};
#[cfg(not(loom))]
use std::sync::atomic::{AtomicBool, Ordering, fence};

/// Wakes the thread that sleeps, or is about to sleep, on its descriptor, when other threads hand
/// it work.
///
/// Telling an awake thread costs a fence and a load; telling a sleeping one costs a system call,
/// until it is awake.
#[derive(Debug)]
pub(crate) struct Alarm {
    is_set: AtomicBool,
    bell: Doorbell,
}

impl Alarm {
    /// An alarm that is not set.
    ///
    /// # Errors
    /// If the process is out of descriptors.
    pub(crate) fn new() -> io::Result<Self> {
        Ok(Alarm { is_set: AtomicBool::new(false), bell: Doorbell::new()? })
    }

    /// Makes the descriptor readable at the next hand-over. The caller must check for earlier ones
    /// afterwards.
    pub(crate) fn set(&self) {
        self.is_set.store(true, Ordering::Relaxed);
        // Pairs with the fence in `tell`: either this side sees the work, or the other side sees
        // that the alarm is set.
        fence(Ordering::SeqCst);
    }

    /// Call after handing over work.
    #[inline]
    pub(crate) fn tell(&self) {
        fence(Ordering::SeqCst);
        if self.is_set.load(Ordering::Relaxed) {
            // Fails only for a descriptor that is not an eventfd.
            let _ = self.bell.ring();
        }
    }

    /// Silences the alarm. A late ring ends the next sleep early, and no other.
    pub(crate) fn unset(&self) {
        self.is_set.store(false, Ordering::Relaxed);
        // As in `tell`.
        let _ = self.bell.clear();
    }

    pub(crate) fn descriptor(&self) -> RawFd {
        self.bell.as_raw_fd()
    }

    /// Sleeps as `ppoll` does on the descriptor.
    #[cfg(all(test, loom))]
    pub(crate) fn sleep_in_model(&self) {
        self.bell.wait();
    }
}

#[cfg(all(test, loom))]
mod under_loom {
    //! Loom tests of two threads that hand work to a third which is about to sleep, under all
    //! interleavings.

    use super::Alarm;
    use loom::sync::atomic::{AtomicUsize, Ordering};
    use loom::thread;
    use std::sync::Arc;

    const BRINGERS: usize = 2;

    /// Like a core with its rings: the thread only checks their contents.
    #[test]
    fn what_is_brought_to_a_thread_that_goes_to_sleep_wakes_it() {
        loom::model(|| {
            let alarm = Arc::new(Alarm::new().unwrap());
            let rings: [Arc<AtomicUsize>; BRINGERS] = std::array::from_fn(|_| Arc::default());
            for ring in &rings {
                let (alarm, ring) = (Arc::clone(&alarm), Arc::clone(ring));
                thread::spawn(move || {
                    ring.store(1, Ordering::Release);
                    alarm.tell();
                });
            }
            let mut seen = 0;
            while seen < BRINGERS {
                alarm.set();
                let found: usize = rings.iter().map(|ring| ring.load(Ordering::Acquire)).sum();
                if found == seen {
                    alarm.sleep_in_model();
                }
                alarm.unset();
                seen = rings.iter().map(|ring| ring.load(Ordering::Acquire)).sum();
            }
        });
    }
}
