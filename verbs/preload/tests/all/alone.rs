//! Runs one pair of processes at a time.

use std::sync::{Mutex, MutexGuard, PoisonError};

/// Two polling processes fill two processors; more at once would only time out.
static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

/// Waits until no other test runs processes.
pub fn alone() -> MutexGuard<'static, ()> {
    ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner)
}
