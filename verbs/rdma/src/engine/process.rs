//! The engines of a process at its forks and at its end.

use super::Engine;
use crate::device_state::DeviceState;
use std::io;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::time::Duration;

/// Attempts of an ending process to take a lock, a millisecond apart.
const LAST_TRIES: u32 = 20;

/// Every engine of the process, for the fork handler to disown.
static ENGINES: Mutex<Vec<Weak<Engine>>> = Mutex::new(Vec::new());

/// Makes a fork disown `engine` and, if it writes counter files, the end of the process end its
/// connections.
pub(super) fn register(engine: &Arc<Engine>) {
    disown_at_fork();
    if engine.counter_files.is_some() {
        finish_at_exit();
    }
    let mut engines = ENGINES.lock().unwrap_or_else(PoisonError::into_inner);
    engines.retain(|engine| engine.strong_count() > 0);
    engines.push(Arc::downgrade(engine));
}

impl Engine {
    /// Updates the counter files, if there are any and they are due.
    pub(crate) fn keep_counters(&self) {
        let Some(files) = &self.counter_files else { return };
        let Ok(mut files) = files.try_lock() else { return };
        let now = self.now();
        if files.is_due(now)
            && let Ok(state) = self.state.try_lock()
        {
            let (counters, link) = (state.rnic.counters().clone(), state.link_of_port());
            let fill = state.rnic.sends_queued();
            drop(state);
            // A full disk must not stop the device, and another process's turn not delay it.
            let _ = files.write(now, &counters, fill, link);
        }
    }

    /// Disconnects all connections, without waiting for replies.
    fn end_connections(&self) {
        let Some(mut state) = self.lock_at_last() else { return };
        let now = self.now();
        let open: Vec<_> = state.rnic.cm().connections().map(|info| info.connection).collect();
        for connection in open {
            // It may have ended already.
            let _ = state.rnic.cm().destroy(now, connection);
        }
        state.send(now);
    }

    /// The lock, for a process that ends. The wait is bounded, because a stopped thread may hold
    /// the lock for ever.
    fn lock_at_last(&self) -> Option<MutexGuard<'_, DeviceState>> {
        for _ in 0..LAST_TRIES {
            if let Some(state) = self.try_lock().ok()? {
                return Some(state);
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        None
    }

    /// Writes the counter files a last time; the wait for their lock is bounded too.
    pub(super) fn keep_counters_at_last(&self) {
        let Some(files) = &self.counter_files else { return };
        for _ in 0..LAST_TRIES {
            if let (Ok(mut files), Ok(state)) = (files.try_lock(), self.state.try_lock()) {
                // What is queued ends with the process.
                let result =
                    files.write(self.now(), state.rnic.counters(), 0, state.link_of_port());
                if !result.is_err_and(|error| error.kind() == io::ErrorKind::WouldBlock) {
                    return;
                }
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

/// At the exit of the process, disconnects its connections, as a kernel does for a program that
/// ends with connections open, and writes the counter files once more.
fn finish_at_exit() {
    extern "C" fn at_exit() {
        if let Ok(engines) = ENGINES.try_lock() {
            for engine in engines.iter().filter_map(Weak::upgrade).filter(|engine| engine.is_ours())
            {
                engine.end_connections();
                engine.keep_counters_at_last();
                // The process ends without running destructors that wait for threads.
                std::mem::forget(engine);
            }
        }
    }
    static ONCE: OnceLock<()> = OnceLock::new();
    ONCE.get_or_init(|| {
        // SAFETY: the handler blocks on nothing and does not unwind.
        unsafe { libc::atexit(at_exit) };
    });
}

/// Makes the child of a fork disown the parent's engines: their locks may be held by threads that
/// do not exist there, and their rings belong to the parent.
fn disown_at_fork() {
    extern "C" fn in_child() {
        // Only this thread exists in the child. If another thread held the lock at the fork, it is
        // held for ever and the list is unreachable; but this thread was not creating an engine.
        if let Ok(engines) = ENGINES.try_lock() {
            for engine in engines.iter().filter_map(Weak::upgrade) {
                engine.forked.store(true, Ordering::Relaxed);
                // The child must not run the parent's destructors: its sockets and memory are
                // shared.
                std::mem::forget(engine);
            }
        }
    }
    static ONCE: OnceLock<()> = OnceLock::new();
    ONCE.get_or_init(|| {
        // SAFETY: the handler takes no lock that blocks and allocates nothing.
        unsafe { libc::pthread_atfork(None, None, Some(in_child)) };
    });
}
