//! The receiver: completion threads, sessions, and the queue of chunks.

mod host;
mod worker;

use crate::chunk::{Chunk, RingMemory};
use crate::device::{Device, DeviceError};
use crate::layout::ShapeError;
use crate::memory::Memory;
use crate::ring::{Counts, Fates, Ring};
use crate::session::StaticStream;
use crate::settings::Settings;
use longhaul_rdma::EventQueue;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::os::fd::RawFd;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;
use thiserror::Error;
use worker::Worker;

/// Why a receiver cannot start.
#[derive(Debug, Error)]
pub enum ReceiverError {
    /// The shape is invalid.
    #[error(transparent)]
    Shape(#[from] ShapeError),
    /// A setting is out of its range.
    #[error("{0}")]
    Setting(&'static str),
    /// The user's memory does not fit the shape.
    #[error("{needed} regions of {bytes} bytes are needed, and {given} were given")]
    Memory {
        /// Regions that the shape needs.
        needed: u64,
        /// Bytes of each.
        bytes: u64,
        /// Regions given that are large enough.
        given: u64,
    },
    /// A sender without a session does not fit.
    #[error("the configuration's {0}")]
    Sender(String),
    /// The device refused.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// The operating system refused.
    #[error("cannot {action}: {source}")]
    Io {
        /// What was to be done.
        action: String,
        /// The operating system's error.
        source: io::Error,
    },
}

impl ReceiverError {
    fn io(action: impl Into<String>) -> impl FnOnce(io::Error) -> Self {
        let action = action.into();
        move |source| ReceiverError::Io { action, source }
    }
}

/// State that all threads share.
struct Shared {
    settings: Settings,
    rings: Vec<Arc<RingMemory>>,
    chunks: EventQueue<Chunk>,
    notices: Mutex<Vec<String>>,
    stopping: AtomicBool,
    sessions: AtomicU64,
    refused: AtomicU64,
    /// Completions of a stream on another stream's queue pair, and those of operations that senders
    /// of ingest do not use.
    foreign: AtomicU64,
    /// Queue pairs that failed.
    failed_pairs: AtomicU64,
    /// As the device counts them.
    out_of_buffer: AtomicU64,
    /// Polls that found completions.
    batches: AtomicU64,
    /// Most completions of a poll.
    max_batch: AtomicU64,
}

impl Shared {
    fn is_stopping(&self) -> bool {
        self.stopping.load(Ordering::Relaxed)
    }

    fn notice(&self, text: String) {
        self.notices.lock().unwrap_or_else(PoisonError::into_inner).push(text);
    }

    /// Operates on a ring, and delivers what has closed.
    fn with_ring<R>(&self, ring: u32, operate: impl FnOnce(&mut Ring) -> R) -> R {
        let memory = &self.rings[ring as usize];
        let mut book = memory.lock();
        let result = operate(&mut book.ring);
        memory.deliver(&mut book, |chunk| self.chunks.push(chunk));
        result
    }
}

/// What threads need of a device.
struct Inner<D: Device> {
    device: D,
    /// By ring and region.
    registrations: Vec<Vec<D::Registration>>,
    workers: Vec<Worker<D>>,
    shared: Arc<Shared>,
}

/// Counts of a receiver.
#[derive(Clone, Debug, Default)]
pub struct Statistics {
    /// Sums of the rings' counts; `fates` by stream.
    pub counts: Counts,
    /// Messages of closed windows.
    pub fates: Fates,
    /// Windows that are open.
    pub open_windows: u64,
    /// Regions held by chunks.
    pub held_regions: u64,
    /// Regions in total.
    pub regions: u64,
    /// Senders that are connected, or have no session.
    pub sessions: u64,
    /// Senders that were refused.
    pub refused: u64,
    /// Completions that no sender of ingest causes.
    pub foreign: u64,
    /// Queue pairs that failed.
    pub failed_pairs: u64,
    /// Messages that the device dropped because no receive was posted.
    pub out_of_buffer: u64,
    /// Polls of the completion queues that found completions.
    pub batches: u64,
    /// Most completions that one poll found.
    pub max_batch: u64,
}

/// A running receiver. Dropping it stops it; chunks stay valid.
pub struct Receiver {
    shared: Arc<Shared>,
    threads: Mutex<Vec<JoinHandle<()>>>,
    address: SocketAddr,
    static_streams: Vec<StaticStream>,
}

impl Receiver {
    /// Starts a receiver with memory of its own.
    ///
    /// # Errors
    /// If a setting is invalid, or device or operating system refuse.
    pub fn start<D: Device>(device: D, settings: Settings) -> Result<Self, ReceiverError> {
        let shape = settings.shape();
        shape.check()?;
        let regions = u64::from(shape.rings()) * u64::from(shape.regions);
        let memory = (0..regions).map(|_| Memory::allocate(shape.region_bytes() as usize));
        let memory = memory.map(Arc::new).collect();
        Self::start_in(device, settings, memory)
    }

    /// Starts a receiver in the user's memory: the regions of each ring, ring after ring.
    ///
    /// # Errors
    /// As [`Receiver::start`], and if `memory` does not fit.
    pub fn start_in<D: Device>(
        device: D,
        settings: Settings,
        memory: Vec<Arc<Memory>>,
    ) -> Result<Self, ReceiverError> {
        let shape = settings.shape();
        shape.check()?;
        check(&settings)?;
        let needed = u64::from(shape.rings()) * u64::from(shape.regions);
        let fitting = memory.iter().filter(|one| one.len() as u64 >= shape.region_bytes());
        let given = fitting.count() as u64;
        if given != needed || memory.len() as u64 != needed {
            return Err(ReceiverError::Memory { needed, bytes: shape.region_bytes(), given });
        }
        let registrations = memory
            .chunks(shape.regions as usize)
            .map(|ring| ring.iter().map(|memory| device.register(memory)).collect())
            .collect::<Result<Vec<Vec<_>>, _>>()?;
        let rings = memory.chunks(shape.regions as usize).zip(0..).map(|(memory, ring)| {
            let book = Ring::new(&shape, settings.delivery);
            Arc::new(RingMemory::new(book, shape, ring * shape.streams_per_ring, memory.to_vec()))
        });
        let shared = Arc::new(Shared {
            rings: rings.collect(),
            chunks: EventQueue::new().map_err(ReceiverError::io("create an event descriptor"))?,
            notices: Mutex::default(),
            stopping: AtomicBool::new(false),
            sessions: AtomicU64::new(0),
            refused: AtomicU64::new(0),
            foreign: AtomicU64::new(0),
            failed_pairs: AtomicU64::new(0),
            out_of_buffer: AtomicU64::new(0),
            batches: AtomicU64::new(0),
            max_batch: AtomicU64::new(0),
            settings,
        });
        let workers =
            (0..shared.settings.threads).map(|index| Worker::new(&device, &shared, index));
        let workers = workers.collect::<Result<_, DeviceError>>()?;
        let listener = TcpListener::bind(shared.settings.listen)
            .map_err(ReceiverError::io(format!("listen on {}", shared.settings.listen)))?;
        let address = listener.local_addr().map_err(ReceiverError::io("listen"))?;
        let inner = Arc::new(Inner { device, registrations, workers, shared: Arc::clone(&shared) });
        let static_streams = host::accept_static(&inner).map_err(ReceiverError::Sender)?;
        let threads = spawn_all(&inner, listener)?;
        Ok(Receiver { shared, threads: Mutex::new(threads), address, static_streams })
    }

    /// Address of its sessions.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// What [`Settings::senders`] must know of this receiver.
    #[must_use]
    pub fn static_streams(&self) -> &[StaticStream] {
        &self.static_streams
    }

    /// The next chunk; waits for one for at most `limit`. `None` if none came.
    #[must_use]
    pub fn next(&self, limit: Duration) -> Option<Chunk> {
        self.shared.chunks.pop_within(limit).ok()
    }

    /// Chunks that wait for [`Receiver::next`].
    #[must_use]
    pub fn queued(&self) -> usize {
        self.shared.chunks.len()
    }

    /// A descriptor that is readable while chunks are queued. It belongs to the receiver, and must
    /// only be polled.
    #[must_use]
    pub fn fd(&self) -> RawFd {
        self.shared.chunks.fd()
    }

    /// Sentences for the user since the last call: senders that came, ended or were refused.
    #[must_use]
    pub fn notices(&self) -> Vec<String> {
        std::mem::take(&mut *self.shared.notices.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// True once it has stopped: it was told to, or its device has failed, as a notice says.
    #[must_use]
    pub fn has_stopped(&self) -> bool {
        self.shared.is_stopping()
    }

    /// Counts so far.
    #[must_use]
    pub fn statistics(&self) -> Statistics {
        let shared = &self.shared;
        let mut sum = Statistics {
            regions: (shared.rings.len() * shared.settings.regions as usize) as u64,
            sessions: shared.sessions.load(Ordering::Relaxed),
            refused: shared.refused.load(Ordering::Relaxed),
            foreign: shared.foreign.load(Ordering::Relaxed),
            failed_pairs: shared.failed_pairs.load(Ordering::Relaxed),
            out_of_buffer: shared.out_of_buffer.load(Ordering::Relaxed),
            batches: shared.batches.load(Ordering::Relaxed),
            max_batch: shared.max_batch.load(Ordering::Relaxed),
            ..Statistics::default()
        };
        for ring in &shared.rings {
            let book = ring.lock();
            let (counts, of) = (&mut sum.counts, book.ring.counts());
            counts.arrivals += of.arrivals;
            counts.bytes += of.bytes;
            counts.duplicates += of.duplicates;
            counts.late += of.late;
            counts.lateness.merge(&of.lateness);
            counts.outside += of.outside;
            counts.windows_delivered += of.windows_delivered;
            counts.windows_complete += of.windows_complete;
            counts.windows_undelivered += of.windows_undelivered;
            counts.windows_skipped += of.windows_skipped;
            counts.fates.extend_from_slice(&of.fates);
            of.fates.iter().for_each(|fates| sum.fates.merge(fates));
            sum.open_windows += book.ring.open_windows() as u64;
            sum.held_regions += book.ring.held_regions() as u64;
        }
        sum
    }

    /// Stops: ends all sessions and closes all windows. Their chunks remain in the queue.
    pub fn stop(&self) {
        self.shared.stopping.store(true, Ordering::Relaxed);
        let mut threads = self.threads.lock().unwrap_or_else(PoisonError::into_inner);
        for thread in threads.drain(..) {
            // A panic was printed.
            let _ = thread.join();
        }
        for ring in 0..self.shared.rings.len() {
            self.shared.with_ring(ring as u32, Ring::close_all);
        }
    }
}

impl Drop for Receiver {
    fn drop(&mut self) {
        self.stop();
    }
}

fn check(settings: &Settings) -> Result<(), ReceiverError> {
    let depth = match settings.receives {
        crate::settings::Receives::PerPair(depth) | crate::settings::Receives::Shared(depth) => {
            depth
        }
    };
    let fault = if settings.threads == 0 || settings.threads > 256 {
        "threads: a number from 1 to 256 is needed"
    } else if !settings.cores.is_empty() && settings.cores.len() != settings.threads as usize {
        "cores: none, or one for each thread"
    } else if !(4..=1 << 20).contains(&depth) {
        "receives: a depth from 4 to 1048576 is needed"
    } else if settings.queue_pairs_max == 0 {
        "queue_pairs_max: at least 1 is needed"
    } else {
        return Ok(());
    };
    Err(ReceiverError::Setting(fault))
}

fn spawn_all<D: Device>(
    inner: &Arc<Inner<D>>,
    listener: TcpListener,
) -> Result<Vec<JoinHandle<()>>, ReceiverError> {
    let spawn = |name: String, run: Box<dyn FnOnce() + Send>| {
        std::thread::Builder::new()
            .name(name)
            .spawn(run)
            .map_err(ReceiverError::io("start a thread"))
    };
    let mut threads = Vec::new();
    for index in 0..inner.workers.len() {
        let of_worker = Arc::clone(inner);
        let run = move || of_worker.workers[index].run(&of_worker.device, &of_worker.shared);
        threads.push(spawn(format!("ingest-{index}"), Box::new(run))?);
    }
    let of_host = Arc::clone(inner);
    threads.push(spawn("ingest-host".into(), Box::new(move || host::run(&of_host, &listener)))?);
    Ok(threads)
}
