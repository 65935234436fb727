//! A loom model of the semaphore: the guarantees of a semaphore eventfd, without the kernel.

use std::io;
use std::os::fd::RawFd;
use std::time::Duration;

use loom::sync::{Condvar, Mutex};

/// Replaces the real semaphore under `cfg(loom)`.
pub(crate) struct Semaphore {
    count: Mutex<u64>,
    raised: Condvar,
}

impl Semaphore {
    pub(crate) fn new() -> io::Result<Self> {
        Ok(Semaphore { count: Mutex::new(0), raised: Condvar::new() })
    }

    /// No descriptor.
    pub(crate) fn fd(&self) -> RawFd {
        -1
    }

    pub(crate) fn raise(&self) {
        *self.count.lock().unwrap() += 1;
        self.raised.notify_all();
    }

    pub(crate) fn lower(&self) -> io::Result<()> {
        let mut count = self.count.lock().unwrap();
        while *count == 0 {
            count = self.raised.wait(count).unwrap();
        }
        *count -= 1;
        Ok(())
    }

    pub(crate) fn lower_now(&self) -> bool {
        let mut count = self.count.lock().unwrap();
        let lowered = *count > 0;
        *count -= u64::from(lowered);
        lowered
    }

    /// Waits until the count is not 0, without a limit.
    pub(crate) fn wait(&self, _limit: Duration) -> io::Result<()> {
        let mut count = self.count.lock().unwrap();
        while *count == 0 {
            count = self.raised.wait(count).unwrap();
        }
        Ok(())
    }
}
