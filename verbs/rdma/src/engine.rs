//! The engine: one device, one port and one lock, driven by the program and the engine thread.
//!
//! The program's own calls drive the device. `poll_cq` returns completions; if there are none, it
//! runs one bounded turn (receive, handle deadlines, send) and polls again. Posting sends within
//! the call. The engine thread takes over only while the program does not poll (it computes, or
//! blocks in a system call), see `engine_thread`. After a fork the child never touches the parent's
//! device.

mod attachment;
mod configuration;
mod objects;
mod process;

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, TryLockError, Weak};

use longhaul_host::{Clock, WakeUp};
use longhaul_node::Node;
use longhaul_rnic::{Completion, CqId, Rnic};
use longhaul_units::{Instant, Psn, Rng, SplitMix64};

use crate::attach::{Attach, Line};
use crate::counter_files::CounterFiles;
use crate::device_state::{DeviceState, Driver, EngineCounters};
use crate::error::RdmaError;
use crate::hand_over::HandOver;
use crate::memory::ProcessMemory;
use crate::slot::Slot;
use configuration::rnic_config;

/// Consecutive empty polls after which the program's thread yields: two cores may run three busy
/// processes.
const POLLS_BEFORE_YIELD: u32 = 16;

/// One software RNIC with its port, shared by all threads of the process.
pub struct Engine {
    attach: Attach,
    /// Held while the engine exists.
    slot: Slot,
    clock: Clock,
    state: Mutex<DeviceState>,
    counter_files: Option<Mutex<CounterFiles>>,
    /// Number of PSNs generated.
    psns: AtomicU64,
    /// Between the program's threads and the engine thread.
    pub(crate) hand_over: HandOver,
    /// Set in the child of a fork.
    forked: AtomicBool,
    stopping: AtomicBool,
    started: OnceLock<()>,
    me: Weak<Engine>,
}

impl Engine {
    /// A device as `attach` describes it, in a slot of its port. No descriptor of the port is
    /// opened and no thread is started before [`Engine::start`].
    ///
    /// # Safety
    /// As [`ProcessMemory::new`]: memory given to the device must stay mapped while it is
    /// registered.
    ///
    /// # Errors
    /// [`RdmaError::Slot`] if the port has no place for another process; [`RdmaError::Io`] if the
    /// process is out of descriptors.
    pub unsafe fn new(attach: Attach) -> Result<Arc<Self>, RdmaError> {
        let slot = match &attach.slots {
            Some(dir) => Slot::claim(dir, &attach.host)?,
            None => Slot::ONLY,
        };
        // Of two processes back to back, either may end first.
        let farewell = match &attach.line {
            Line::Memif { socket, back_to_back: false, .. } => Some(format!(
                "host {}: the lab at {} ended the link",
                attach.host,
                socket.display()
            )),
            _ => None,
        };
        // SAFETY: passed on to the caller.
        let rnic = Rnic::new(rnic_config(&attach, &slot), unsafe { ProcessMemory::new() });
        let wake =
            WakeUp::new().map_err(|source| RdmaError::Io { operation: "eventfd", source })?;
        let counter_files =
            attach.counters.as_ref().and_then(|root| match CounterFiles::open(root, &attach) {
                Ok(files) => Some(Mutex::new(files)),
                Err(error) => {
                    eprintln!("longhaul: no counters below {}: {error}", root.display());
                    None
                }
            });
        let engine = Arc::new_cyclic(|me| Engine {
            attach,
            slot,
            counter_files,
            clock: Clock::start(),
            state: Mutex::new(DeviceState::new(rnic, farewell)),
            psns: AtomicU64::new(0),
            hand_over: HandOver::new(wake),
            forked: AtomicBool::new(false),
            stopping: AtomicBool::new(false),
            started: OnceLock::new(),
            me: me.clone(),
        });
        process::register(&engine);
        Ok(engine)
    }

    /// Attachment given by the environment.
    #[must_use]
    pub fn attach(&self) -> &Attach {
        &self.attach
    }

    /// False in the child of a fork: the device belongs to the parent.
    #[must_use]
    pub fn is_ours(&self) -> bool {
        !self.forked.load(Ordering::Relaxed)
    }

    /// Now, on the engine's clock.
    #[must_use]
    #[inline]
    pub fn now(&self) -> Instant {
        self.clock.now()
    }

    /// An initial PSN, different in each call and each run, so that a queue pair does not accept
    /// packets of an earlier connection. It is not secret.
    #[must_use]
    pub fn fresh_psn(&self) -> Psn {
        let count = self.psns.fetch_add(1, Ordering::Relaxed);
        let mut rng =
            SplitMix64::new(self.now().as_ps() ^ (u64::from(std::process::id()) << 40) ^ count);
        Psn::new(rng.next_u64() as u32)
    }

    #[inline]
    pub(crate) fn lock(&self) -> Result<MutexGuard<'_, DeviceState>, RdmaError> {
        if self.forked.load(Ordering::Relaxed) {
            return Err(RdmaError::Forked);
        }
        Ok(self.state.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// The lock, unless another thread holds it.
    pub(crate) fn try_lock(&self) -> Result<Option<MutexGuard<'_, DeviceState>>, RdmaError> {
        if self.forked.load(Ordering::Relaxed) {
            return Err(RdmaError::Forked);
        }
        match self.state.try_lock() {
            Ok(state) => Ok(Some(state)),
            Err(TryLockError::Poisoned(poisoned)) => Ok(Some(poisoned.into_inner())),
            Err(TryLockError::WouldBlock) => Ok(None),
        }
    }

    /// Runs `operate` on the device, then sends the resulting frames.
    ///
    /// # Errors
    /// [`RdmaError::Forked`].
    #[inline]
    pub fn with<R>(
        &self,
        operate: impl FnOnce(&mut Rnic<ProcessMemory>, Instant) -> R,
    ) -> Result<R, RdmaError> {
        let mut state = self.lock()?;
        let now = self.now();
        let result = operate(&mut state.rnic, now);
        state.send(now);
        self.rouse_thread(&state);
        Ok(result)
    }

    /// Runs `operate`, which must not cause a transmission.
    ///
    /// # Errors
    /// [`RdmaError::Forked`].
    #[inline]
    pub fn with_quietly<R>(
        &self,
        operate: impl FnOnce(&mut Rnic<ProcessMemory>) -> R,
    ) -> Result<R, RdmaError> {
        let mut state = self.lock()?;
        let result = operate(&mut state.rnic);
        state.dispatch();
        Ok(result)
    }

    /// Wakes an engine thread that sleeps beyond the device's deadline, or with work left to do.
    #[inline]
    pub(crate) fn rouse_thread(&self, state: &DeviceState) {
        if let Some(until) = state.thread_sleeps_until
            && (state.out_of_room
                || state.frames_may_wait
                || state.rnic.poll_timeout().is_some_and(|due| due.at < until))
        {
            self.hand_over.wake().wake();
        }
    }

    /// Passes at most `max` completions of `cq` to `take`; if there are none, runs one turn and
    /// polls again.
    ///
    /// # Errors
    /// [`RdmaError::Forked`].
    #[inline]
    pub fn poll_cq(
        &self,
        cq: CqId,
        max: usize,
        mut take: impl FnMut(Completion),
    ) -> Result<usize, RdmaError> {
        let mut state = self.lock()?;
        self.hand_over.note_poll();
        let found = state.rnic.poll_cq(cq, max, &mut take);
        if found > 0 {
            state.empty_polls = 0;
            return Ok(found);
        }
        let worked = state.turn(self.now(), Driver::Program);
        self.rouse_thread(&state);
        let found = state.rnic.poll_cq(cq, max, &mut take);
        if found > 0 || worked > 0 {
            state.empty_polls = 0;
            return Ok(found);
        }
        state.empty_polls += 1;
        if state.empty_polls >= POLLS_BEFORE_YIELD {
            state.empty_polls = 0;
            drop(state);
            std::thread::yield_now();
        }
        Ok(0)
    }

    /// Runs one turn, for callers that are about to poll for an event.
    ///
    /// # Errors
    /// [`RdmaError::Forked`].
    pub fn turn(&self) -> Result<(), RdmaError> {
        let mut state = self.lock()?;
        state.turn(self.now(), Driver::Program);
        self.rouse_thread(&state);
        Ok(())
    }

    /// The program is about to wait for an event rather than to poll: the engine thread takes over
    /// now.
    #[inline]
    pub fn hand_over(&self) {
        self.hand_over.hand_over();
    }

    /// True once the engine thread should end.
    pub(crate) fn stopping(&self) -> bool {
        self.stopping.load(Ordering::Relaxed)
    }

    /// Counters of the engine.
    ///
    /// # Errors
    /// [`RdmaError::Forked`].
    pub fn counters(&self) -> Result<EngineCounters, RdmaError> {
        Ok(self.lock()?.counters)
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        self.stopping.store(true, Ordering::Relaxed);
        if !self.forked.load(Ordering::Relaxed) {
            self.keep_counters_at_last();
            self.hand_over.wake().wake();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::attach::{ENV_HOST, ENV_IP, ENV_ROLE, ENV_SOCKET};

    fn engine(name: &str, host: &'static str) -> Arc<Engine> {
        let socket = std::env::temp_dir()
            .join(format!("longhaul-engine-{}-{name}.sock", std::process::id()));
        let attach = Attach::from_lookup(|variable| match variable {
            ENV_SOCKET => Some(socket.display().to_string()),
            ENV_IP => Some("10.77.0.1".to_owned()),
            ENV_ROLE => Some("master".to_owned()),
            ENV_HOST => Some(host.to_owned()),
            _ => None,
        });
        // SAFETY: no memory is ever registered.
        unsafe { Engine::new(attach.unwrap()) }.unwrap()
    }

    #[test]
    fn starts_once_however_many_threads_ask_at_the_same_time() {
        for round in 0..20 {
            let engine = engine(&format!("once-{round}"), "a");
            let barrier = std::sync::Barrier::new(8);
            std::thread::scope(|scope| {
                for _ in 0..8 {
                    scope.spawn(|| {
                        barrier.wait();
                        engine.start().unwrap();
                    });
                }
            });
            // A second attempt finds the socket taken, and reports that.
            assert!(!engine.lock().unwrap().complained, "round {round}");
        }
    }

    #[test]
    fn a_host_name_is_cut_between_characters() {
        let engine = engine("name", "höhöhöhöhöhöhöhöhöhöhöhöhöhö");
        engine.start().unwrap();
        let state = engine.lock().unwrap();
        let name = state.port.as_ref().unwrap().capabilities().name;
        assert!((30..=31).contains(&name.len()), "{name}");
    }

    #[test]
    fn over_a_socket_no_more_is_under_way_than_a_buffer_takes() {
        let attach = |path_mtu: &'static str| {
            Attach::from_lookup(|variable| match variable {
                crate::attach::ENV_UDP_PORT => Some("14796".to_owned()),
                ENV_IP => Some("127.0.0.92".to_owned()),
                crate::attach::ENV_PATH_MTU => Some(path_mtu.to_owned()),
                _ => None,
            })
        };
        let window = |attach: Attach| {
            // SAFETY: no memory is ever registered.
            let engine = unsafe { Engine::new(attach) }.unwrap();
            engine.with_quietly(|rnic| rnic.config().window_packets).unwrap()
        };
        let (large, small) = (window(attach("4096").unwrap()), window(attach("1024").unwrap()));
        assert!((4..=910).contains(&large) && small > large, "{large} and {small}");
        let in_lab = engine("window", "a");
        assert_eq!(in_lab.with_quietly(|rnic| rnic.config().window_packets).unwrap(), 1 << 23);
    }

    #[test]
    fn psns_differ_from_call_to_call() {
        let engine = engine("psn", "a");
        assert_ne!(engine.fresh_psn(), engine.fresh_psn());
    }
}
