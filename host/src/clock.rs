//! Monotonic clock of the process.

use longhaul_units::Instant;

/// Reads the system's monotonic clock as the time since this clock was created. Copies share the
/// epoch.
///
/// A reading costs no system call if the kernel provides a vDSO. The resolution is a nanosecond;
/// readings never decrease, and last 213 days.
#[derive(Clone, Copy, Debug)]
pub struct Clock {
    epoch: std::time::Instant,
}

impl Clock {
    /// A clock whose epoch is this moment.
    pub fn start() -> Self {
        Clock { epoch: std::time::Instant::now() }
    }

    /// Time since the epoch.
    #[inline]
    pub fn now(&self) -> Instant {
        // Saturates only where `Instant` itself does.
        Instant::from_ns(u64::try_from(self.epoch.elapsed().as_nanos()).unwrap_or(u64::MAX))
    }
}
