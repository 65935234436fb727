use longhaul_port::Doorbell;
use std::io;
use std::os::fd::{AsRawFd, RawFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Wakes a sleeping loop from any thread; clones are the same wake-up.
///
/// Waking is a system call only when nobody has woken it since the loop last looked. What a thread wrote before
/// [`WakeUp::wake`] is visible to the loop once [`WakeUp::take`] has returned true for it.
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
}
