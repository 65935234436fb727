//! Pinning of this thread and of the processes that it starts.

use crate::problem::Problem;
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use std::io;
use std::process::{Child, Command};
use std::sync::OnceLock;

/// Processors of this process before it was pinned.
static UNPINNED: OnceLock<CpuSet> = OnceLock::new();

/// Pins this thread to one processor.
pub fn pin(core: usize) -> Result<(), Problem> {
    let mut set = CpuSet::new();
    if core >= CpuSet::MAX_CPU {
        return Err(Problem::plain(format!("--cores {core}: no processor has that number")));
    }
    set.set(core);
    let whole = sched_getaffinity(None);
    sched_setaffinity(None, &set).map_err(|error| {
        Problem::new(
            format!("cannot run on processor {core}: {error}"),
            "'nproc' tells how many are allowed",
        )
    })?;
    if let Ok(whole) = whole {
        UNPINNED.get_or_init(|| whole);
    }
    Ok(())
}

/// Starts a process that may run on any processor, although this thread is pinned.
pub fn start_unpinned(command: &mut Command) -> io::Result<Child> {
    let Some(whole) = UNPINNED.get() else { return command.spawn() };
    let pinned = sched_getaffinity(None)?;
    sched_setaffinity(None, whole)?;
    let child = command.spawn();
    sched_setaffinity(None, &pinned)?;
    child
}
