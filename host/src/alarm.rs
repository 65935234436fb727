//! Wake-up of one thread that sleeps, or is about to sleep, on a descriptor.

use longhaul_port::Doorbell;
#[cfg(loom)]
use loom::sync::atomic::{AtomicBool, Ordering, fence};
use std::io;
use std::os::fd::{AsRawFd, RawFd};
#[cfg(not(loom))]
use std::sync::atomic::{AtomicBool, Ordering, fence};

/// Wakes one thread that is about to sleep, or sleeps, on its descriptor, when others bring it
/// something.
///
/// Telling a thread that is awake costs a fence and a load, telling one that sleeps a system call,
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
    /// When the process is out of descriptors.
    pub(crate) fn new() -> io::Result<Self> {
        Ok(Alarm { is_set: AtomicBool::new(false), bell: Doorbell::new()? })
    }

    /// Has the descriptor become readable when something is brought from here on. What was brought
    /// before shows to whoever looks afterwards.
    pub(crate) fn set(&self) {
        self.is_set.store(true, Ordering::Relaxed);
        // Pairs with that in `tell`: either this side sees what was brought, or the other one sees
        // that it is set.
        fence(Ordering::SeqCst);
    }

    /// To be called when something was brought.
    #[inline]
    pub(crate) fn tell(&self) {
        fence(Ordering::SeqCst);
        if self.is_set.load(Ordering::Relaxed) {
            // Fails only for a descriptor that is no eventfd, which this one is.
            let _ = self.bell.ring();
        }
    }

    /// Back to silence. A bell that is rung late ends the next sleep early, and no other.
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
    //! Every order in which two threads can bring something to a third that is about to sleep.

    use super::Alarm;
    use loom::sync::atomic::{AtomicUsize, Ordering};
    use loom::thread;
    use std::sync::Arc;

    const BRINGERS: usize = 2;

    /// As a core does with its rings: what is in them is the only thing that it looks at.
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
