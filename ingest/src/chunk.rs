//! A closed window with its data and a fate per message.

use crate::layout::Shape;
use crate::memory::Memory;
use crate::ring::{Fate, Ring};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// When a window's messages arrived, by the clock of this machine, to within a batch of
/// completions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extra {
    /// First message.
    pub first_arrival: SystemTime,
    /// Last message before the window closed.
    pub last_arrival: SystemTime,
}

impl Extra {
    /// First and last arrival, in seconds since 1970.
    #[must_use]
    pub fn seconds(&self) -> (f64, f64) {
        let since_1970 =
            |at: SystemTime| at.duration_since(UNIX_EPOCH).map_or(0.0, |since| since.as_secs_f64());
        (since_1970(self.first_arrival), since_1970(self.last_arrival))
    }
}

/// Arrival times of the window that uses a region.
#[derive(Clone, Copy)]
struct Times {
    window: u64,
    extra: Extra,
}

/// A ring's bookkeeping, with the clock that the ring does not have.
pub(crate) struct Book {
    pub ring: Ring,
    pub last_arrival: Instant,
    times: Vec<Option<Times>>,
}

impl Book {
    /// Time since the last arrival.
    pub fn quiet_for(&self) -> Duration {
        self.last_arrival.elapsed()
    }

    /// Notes that a message of `window` arrived at `now`.
    #[inline]
    pub fn note(&mut self, window: u64, now: SystemTime) {
        let region = (window % self.times.len() as u64) as usize;
        match &mut self.times[region] {
            Some(times) if times.window == window => times.extra.last_arrival = now,
            Some(times) if times.window > window => {}
            times => {
                let extra = Extra { first_arrival: now, last_arrival: now };
                *times = Some(Times { window, extra });
            }
        }
    }
}

/// A ring with its memory.
pub(crate) struct RingMemory {
    book: Mutex<Book>,
    pub shape: Shape,
    /// Number of its first stream.
    pub first_stream: u32,
    pub regions: Vec<Arc<Memory>>,
}

impl RingMemory {
    pub fn new(ring: Ring, shape: Shape, first_stream: u32, regions: Vec<Arc<Memory>>) -> Self {
        let times = vec![None; regions.len()];
        let book = Mutex::new(Book { ring, last_arrival: Instant::now(), times });
        RingMemory { book, shape, first_stream, regions }
    }

    pub fn lock(&self) -> MutexGuard<'_, Book> {
        self.book.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Passes the chunks of closed windows to `deliver`.
    pub fn deliver(self: &Arc<Self>, book: &mut Book, mut deliver: impl FnMut(Chunk)) {
        while let Some(ready) = book.ring.take_ready() {
            let region = (ready.window % self.regions.len() as u64) as usize;
            let times = book.times[region].filter(|times| times.window == ready.window);
            deliver(Chunk {
                ring: Arc::clone(self),
                window: ready.window,
                fates: ready.fates,
                extra: times.map(|times| times.extra),
            });
        }
    }
}

/// A window of a ring's streams. It holds its region: senders write to the region again half a ring
/// later, and [`Chunk::release`] tells whether they have.
pub struct Chunk {
    ring: Arc<RingMemory>,
    window: u64,
    fates: Box<[Fate]>,
    extra: Option<Extra>,
}

impl Chunk {
    /// The window's number, without wrap.
    #[must_use]
    pub fn chunk_id(&self) -> u64 {
        self.window
    }

    /// Number of the first stream in the chunk; [`Shape::streams_per_ring`] streams follow each
    /// other.
    #[must_use]
    pub fn stream_id(&self) -> u32 {
        self.ring.first_stream
    }

    /// Shape of the data.
    #[must_use]
    pub fn shape(&self) -> &Shape {
        &self.ring.shape
    }

    /// Arrival times; `None` if nothing arrived.
    #[must_use]
    pub fn extra(&self) -> Option<Extra> {
        self.extra
    }

    /// One fate for each message, stream after stream, as of the delivery or the latest
    /// [`Chunk::refresh`].
    #[must_use]
    pub fn fates(&self) -> &[Fate] {
        &self.fates
    }

    /// Messages present.
    #[must_use]
    pub fn present(&self) -> usize {
        self.fates.iter().filter(|fate| **fate == Fate::Present).count()
    }

    /// Memory of the chunk: [`Shape::region_bytes`] from the start. Bytes of messages that are not
    /// present are undefined.
    #[must_use]
    pub fn data(&self) -> &Arc<Memory> {
        &self.ring.regions[(self.window % self.ring.regions.len() as u64) as usize]
    }

    /// Copies a message, by its index in [`Chunk::fates`].
    ///
    /// # Panics
    /// If there is no such message, or `to` is longer than it.
    pub fn read(&self, index: usize, to: &mut [u8]) {
        let bytes = self.ring.shape.message_bytes as usize;
        assert!(index < self.fates.len() && to.len() <= bytes, "message {index} of the chunk");
        self.data().read(index * bytes, to);
    }

    /// Updates the fates: late messages and overwritten data since the delivery.
    pub fn refresh(&mut self) {
        if let Some(fates) = self.ring.lock().ring.held(self.window) {
            self.fates.copy_from_slice(fates);
        }
    }

    /// Returns the region to the ring. The result is the number of messages that were overwritten
    /// while the chunk was held, or before: what was read of them is undefined.
    pub fn release(mut self) -> u64 {
        self.give_back()
    }

    fn give_back(&mut self) -> u64 {
        let fates = std::mem::take(&mut self.fates);
        self.ring.lock().ring.release(self.window, fates)
    }
}

impl Drop for Chunk {
    fn drop(&mut self) {
        if !self.fates.is_empty() {
            self.give_back();
        }
    }
}

impl std::fmt::Debug for Chunk {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "window {} of stream {}", self.window, self.ring.first_stream)
    }
}
