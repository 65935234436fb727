//! Processor of a thread.

use rustix::thread::{CpuSet, sched_setaffinity};

/// Binds the calling thread to a processor. False if it may not run there.
pub fn pin(core: usize) -> bool {
    let mut set = CpuSet::new();
    if core >= CpuSet::MAX_CPU {
        return false;
    }
    set.set(core);
    sched_setaffinity(None, &set).is_ok()
}
