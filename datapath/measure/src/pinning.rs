//! Pinning of this thread and of the processes that it starts.

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use std::io;
use std::process::{Child, Command};
use std::sync::OnceLock;
use thiserror::Error;

/// Processors of this process before it was pinned.
static UNPINNED: OnceLock<CpuSet> = OnceLock::new();

/// Why a thread cannot be pinned.
#[derive(Debug, Error)]
pub enum PinError {
    /// The number exceeds what the system can count.
    #[error("no processor has number {0}")]
    NoSuchProcessor(usize),
    /// The system refused the processor.
    #[error("cannot run on processor {core}: {error}")]
    Refused {
        /// Number of the processor.
        core: usize,
        /// The error of the operating system.
        error: io::Error,
    },
}

/// Pins this thread to one processor.
///
/// # Errors
/// [`PinError`].
pub fn pin(core: usize) -> Result<(), PinError> {
    let mut set = CpuSet::new();
    if core >= CpuSet::MAX_CPU {
        return Err(PinError::NoSuchProcessor(core));
    }
    set.set(core);
    let whole = sched_getaffinity(None);
    sched_setaffinity(None, &set)
        .map_err(|error| PinError::Refused { core, error: error.into() })?;
    if let Ok(whole) = whole {
        UNPINNED.get_or_init(|| whole);
    }
    Ok(())
}

/// Starts a process that may run on any processor, although this thread is pinned.
///
/// # Errors
/// Those of [`Command::spawn`] and of the operating system.
pub fn start_unpinned(command: &mut Command) -> io::Result<Child> {
    let Some(whole) = UNPINNED.get() else { return command.spawn() };
    let pinned = sched_getaffinity(None)?;
    sched_setaffinity(None, whole)?;
    let child = command.spawn();
    sched_setaffinity(None, &pinned)?;
    child
}
