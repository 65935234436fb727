//! Safe verbs for this project's programs.
//!
//! [`Device::open`] attaches to a lab port or to a second process; the objects correspond one to
//! one to those of verbs, and are destroyed when dropped. Queue pairs are connected by an exchange
//! of [`Endpoint`]s that the program transports itself, or by the connection manager
//! ([`Device::connect`], [`Listener::accept`]).

mod connect;
mod memory_region;
mod queue_pair;
mod shared_receive_queue;

pub use connect::{Connection, ConnectionRequest, Listener};
pub use memory_region::{Keeper, MemoryRegion, Piece};
pub use queue_pair::{Endpoint, PathSettings, QueuePair, QueuePairSettings, Request};
pub use shared_receive_queue::SharedReceiveQueue;

use std::sync::Arc;
use std::time::Duration;

use longhaul_rnic::{Completion, CqId, DropReason, PdId};

use crate::attach::Attach;
use crate::device_state::{AsyncEvent, CqSinks};
use crate::engine::Engine;
use crate::error::RdmaError;
use crate::event_queue::EventQueue;

/// An open device. Clones share it.
#[derive(Clone)]
pub struct Device {
    engine: Arc<Engine>,
    asynchronous: Arc<EventQueue<AsyncEvent>>,
}

impl Device {
    /// Opens the device that `attach` describes. The port is attached when the first queue pair or
    /// listener needs it.
    ///
    /// # Errors
    /// [`RdmaError::Io`] if the process is out of descriptors.
    pub fn open(attach: Attach) -> Result<Self, RdmaError> {
        // SAFETY: memory is registered by `MemoryRegion` alone, which keeps it until it is
        // deregistered, and inline data is borrowed during the call.
        let engine = unsafe { Engine::new(attach) }?;
        let asynchronous =
            EventQueue::new().map_err(|source| RdmaError::Io { operation: "eventfd", source })?;
        Ok(Device { engine, asynchronous: Arc::new(asynchronous) })
    }

    /// Opens the device that this process's environment describes.
    ///
    /// # Errors
    /// [`RdmaError::Attach`] and those of [`Device::open`].
    pub fn from_env() -> Result<Self, RdmaError> {
        Self::open(Attach::from_env()?)
    }

    /// The engine, for counters and snapshots.
    #[must_use]
    pub fn engine(&self) -> &Arc<Engine> {
        &self.engine
    }

    /// Messages that the device dropped since it was opened because no receive was posted for them.
    ///
    /// # Errors
    /// [`RdmaError::Forked`].
    pub fn out_of_buffer(&self) -> Result<u64, RdmaError> {
        self.engine.with_quietly(|rnic| rnic.counters().get(DropReason::NoReceive))
    }

    /// Creates a protection domain.
    ///
    /// # Errors
    /// [`RdmaError::Verbs`].
    pub fn alloc_pd(&self) -> Result<ProtectionDomain, RdmaError> {
        let id = self.engine.with(|rnic, _| rnic.alloc_pd())??;
        Ok(ProtectionDomain(Arc::new(PdInner { engine: Arc::clone(&self.engine), id })))
    }

    /// Creates a completion queue for `capacity` completions.
    ///
    /// # Errors
    /// [`RdmaError::Verbs`].
    pub fn create_cq(&self, capacity: u32) -> Result<CompletionQueue, RdmaError> {
        let channel =
            EventQueue::new().map_err(|source| RdmaError::Io { operation: "eventfd", source })?;
        let channel = Arc::new(channel);
        let sinks = CqSinks {
            channel: Some(Arc::clone(&channel)),
            asynchronous: Some(Arc::clone(&self.asynchronous)),
            cookie: 0,
        };
        let id = self.engine.create_cq(capacity, sinks)?;
        Ok(CompletionQueue(Arc::new(CqInner { engine: Arc::clone(&self.engine), id, channel })))
    }

    /// The next asynchronous event, if any; cookies are queue pair numbers.
    #[must_use]
    pub fn asynchronous_event(&self) -> Option<AsyncEvent> {
        self.asynchronous.try_pop()
    }
}

struct PdInner {
    engine: Arc<Engine>,
    id: PdId,
}

impl Drop for PdInner {
    fn drop(&mut self) {
        // Its users hold it, so only a fork can make this fail.
        let _ = self.engine.with(|rnic, _| rnic.dealloc_pd(self.id));
    }
}

/// A protection domain, which restricts queue pairs to its regions. Clones share it.
#[derive(Clone)]
pub struct ProtectionDomain(Arc<PdInner>);

struct CqInner {
    engine: Arc<Engine>,
    id: CqId,
    channel: Arc<EventQueue<u64>>,
}

impl Drop for CqInner {
    fn drop(&mut self) {
        // As for protection domains.
        let _ = self.engine.destroy_cq(self.id);
    }
}

/// A completion queue. Clones share it.
#[derive(Clone)]
pub struct CompletionQueue(Arc<CqInner>);

impl CompletionQueue {
    /// Passes at most `max` completions to `take`, oldest first, and returns their number; drives
    /// the device if there are none. Never blocks.
    ///
    /// # Errors
    /// [`RdmaError::Forked`].
    pub fn poll(&self, max: usize, take: impl FnMut(Completion)) -> Result<usize, RdmaError> {
        self.0.engine.poll_cq(self.0.id, max, take)
    }

    /// Requests one event at the next completion, or at the next solicited or failed one.
    ///
    /// # Errors
    /// [`RdmaError::Forked`].
    pub fn arm(&self, solicited_only: bool) -> Result<(), RdmaError> {
        self.0.engine.with(|rnic, _| rnic.arm_cq(self.0.id, solicited_only))??;
        self.0.engine.hand_over();
        Ok(())
    }

    /// Sleeps until the event that [`CompletionQueue::arm`] requested.
    ///
    /// # Errors
    /// [`RdmaError::TimedOut`].
    pub fn wait_for_event(&self, limit: Duration) -> Result<(), RdmaError> {
        match self.0.channel.pop_within(limit) {
            Ok(_) => Ok(()),
            Err(error) if error.kind() == std::io::ErrorKind::TimedOut => {
                Err(RdmaError::TimedOut(limit))
            }
            Err(source) => {
                Err(RdmaError::Io { operation: "waiting for a completion event", source })
            }
        }
    }

    /// The next completion; polls until there is one.
    ///
    /// # Errors
    /// [`RdmaError::TimedOut`], [`RdmaError::Forked`].
    pub fn next(&self, limit: Duration) -> Result<Completion, RdmaError> {
        let begun = std::time::Instant::now();
        let mut found = None;
        loop {
            self.poll(1, |completion| found = Some(completion))?;
            if let Some(completion) = found {
                return Ok(completion);
            }
            if begun.elapsed() > limit {
                return Err(RdmaError::TimedOut(limit));
            }
        }
    }
}
