//! A completion thread: polls its queue, counts arrivals in their rings, and posts receives.

use super::Shared;
use crate::device::{
    Completion, CompletionKind, Completions, Device, DeviceError, Pair, SharedReceives,
};
use crate::ring::Arrival;
use crate::settings::{Receives, Wait};
use longhaul_rdma::BusyPoll;
use std::collections::HashMap;
use std::sync::atomic::Ordering;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime};

/// Completions per poll.
const BATCH: usize = 256;
/// Capacity of a completion queue without a shared receive queue.
const COMPLETIONS: u32 = 1 << 16;
/// Longest sleep, after which the thread looks whether it should stop.
const TICK: Duration = Duration::from_millis(50);
/// Longest time without completions that a thread polls through: about what a wake-up costs.
const SPIN: Duration = Duration::from_micros(20);

/// A queue pair of a sender.
pub(super) struct Entry<D: Device> {
    pub pair: D::Pair,
    pub stream: u32,
    pub ring: u32,
    /// Index of the stream in the ring.
    pub index: u32,
    /// It sends slots `queue` modulo `queues`.
    pub queue: u32,
    pub queues: u32,
    /// Receives taken and not posted again.
    pub taken: u32,
    /// Position of the latest message: window times slots plus slot.
    pub last: Option<u64>,
}

/// A completion thread's objects.
pub(super) struct Worker<D: Device> {
    index: u32,
    pub completions: D::Completions,
    pub receives: Option<D::SharedReceives>,
    pairs: Mutex<HashMap<u32, Entry<D>>>,
}

/// What a thread carries from batch to batch.
struct Progress {
    /// Receives of the shared queue taken and not posted again.
    taken: u32,
    /// The device's count when it was last read.
    out_of_buffer: u64,
    /// Messages that the device refused and that no gap explains yet.
    refused: u64,
}

impl Progress {
    /// Reads the device's count.
    #[cold]
    fn ask(&mut self, device: &impl Device, shared: &Shared) {
        if let Some(count) = device.out_of_buffer() {
            shared.out_of_buffer.store(count, Ordering::Relaxed);
            self.refused += count.saturating_sub(self.out_of_buffer);
            self.out_of_buffer = count;
        }
    }

    /// If the device has refused messages that no gap explains yet, those of this gap are refused.
    fn explain<D: Device>(
        &mut self,
        before: u64,
        position: u64,
        entry: &Entry<D>,
        ring: &mut crate::ring::Ring,
    ) {
        if self.refused > 0 {
            let queue = (entry.queue, entry.queues);
            self.refused -= ring.refuse(entry.index, before, position, queue, self.refused);
        }
    }
}

impl<D: Device> Worker<D> {
    pub fn new(device: &D, shared: &Shared, index: u32) -> Result<Self, DeviceError> {
        let (completions, receives) = match shared.settings.receives {
            Receives::PerPair(_) => (device.completions(COMPLETIONS)?, None),
            Receives::Shared(depth) => {
                let receives = device.shared_receives(depth)?;
                receives.post(depth)?;
                (device.completions(2 * depth)?, Some(receives))
            }
        };
        Ok(Worker { index, completions, receives, pairs: Mutex::default() })
    }

    pub fn pairs(&self) -> MutexGuard<'_, HashMap<u32, Entry<D>>> {
        self.pairs.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Runs until the receiver stops.
    pub fn run(&self, device: &D, shared: &Shared) {
        if let Some(core) = shared.settings.cores.get(self.index as usize)
            && !crate::affinity::pin(*core)
        {
            shared.notice(format!("processor {core} is not available: a thread runs on any"));
        }
        if let Err(error) = self.serve(device, shared) {
            shared.notice(format!("a completion thread ends: {error}"));
            shared.stopping.store(true, Ordering::Relaxed);
        }
    }

    fn serve(&self, device: &D, shared: &Shared) -> Result<(), DeviceError> {
        let mut found = Vec::with_capacity(BATCH);
        let out_of_buffer = device.out_of_buffer().unwrap_or(0);
        let mut progress = Progress { taken: 0, out_of_buffer, refused: 0 };
        let mut ticked = Instant::now();
        let mut busy = BusyPoll::up_to(SPIN);
        while !shared.is_stopping() {
            found.clear();
            self.completions.poll(BATCH, &mut found)?;
            let sleeps = match shared.settings.wait {
                Wait::Events => found.is_empty() && !busy.should_poll(),
                Wait::Solicited => found.is_empty(),
                Wait::Poll => false,
            };
            if sleeps {
                self.completions.arm(shared.settings.wait == Wait::Solicited)?;
                self.completions.poll(BATCH, &mut found)?;
                if found.is_empty() {
                    self.completions.wait(TICK)?;
                }
            }
            if !found.is_empty() {
                busy.note_work();
                self.count(&found, device, shared, &mut progress)?;
            }
            if ticked.elapsed() >= TICK {
                ticked = Instant::now();
                self.close_idle(shared);
                progress.ask(device, shared);
            }
        }
        Ok(())
    }

    fn count(
        &self,
        found: &[Completion],
        device: &D,
        shared: &Shared,
        progress: &mut Progress,
    ) -> Result<(), DeviceError> {
        let settings = &shared.settings;
        shared.batches.fetch_add(1, Ordering::Relaxed);
        shared.max_batch.fetch_max(found.len() as u64, Ordering::Relaxed);
        let (now, arrived_at) = (SystemTime::now(), Instant::now());
        let mut pairs = self.pairs();
        let mut open = None;
        for completion in found {
            let is_receive = !matches!(
                completion.kind,
                CompletionKind::Sent { .. } | CompletionKind::Failed { .. }
            );
            progress.taken += u32::from(is_receive);
            let Some(entry) = pairs.get_mut(&completion.qpn) else { continue };
            let CompletionKind::Arrived { immediate, bytes } = completion.kind else {
                let counter = match completion.kind {
                    CompletionKind::Failed { .. } => &shared.failed_pairs,
                    _ => &shared.foreign,
                };
                counter.fetch_add(1, Ordering::Relaxed);
                continue;
            };
            self.post_again(entry, settings.receives)?;
            let place = settings.layout.decode(immediate);
            if place.stream != entry.stream {
                shared.foreign.fetch_add(1, Ordering::Relaxed);
                continue;
            }
            // The lock is kept while the ring is the same.
            if open.as_ref().is_none_or(|(ring, _)| *ring != entry.ring) {
                finish(shared, open.take());
                let mut book = shared.rings[entry.ring as usize].lock();
                book.last_arrival = arrived_at;
                open = Some((entry.ring, book));
            }
            let Some((_, book)) = &mut open else { continue };
            let arrival =
                Arrival { stream: entry.index, window: place.window, slot: place.slot, bytes };
            let Some(window) = book.ring.arrive(arrival, settings.message_bytes) else { continue };
            book.note(window, now);
            let position = window * u64::from(settings.slots) + u64::from(place.slot);
            let before = entry.last.replace(position);
            if let Some(before) =
                before.filter(|before| is_gap(*before, position, entry, settings.slots))
            {
                progress.ask(device, shared);
                progress.explain(before, position, entry, &mut book.ring);
            }
        }
        finish(shared, open);
        drop(pairs);
        self.post_shared(settings.receives, progress)
    }

    fn post_again(&self, entry: &mut Entry<D>, receives: Receives) -> Result<(), DeviceError> {
        let Receives::PerPair(depth) = receives else { return Ok(()) };
        entry.taken += 1;
        if entry.taken >= (depth / 4).clamp(1, 64) {
            entry.pair.post_receives(std::mem::take(&mut entry.taken))?;
        }
        Ok(())
    }

    fn post_shared(&self, receives: Receives, progress: &mut Progress) -> Result<(), DeviceError> {
        let (Receives::Shared(depth), Some(queue)) = (receives, &self.receives) else {
            return Ok(());
        };
        if progress.taken >= (depth / 4).clamp(1, 256) {
            queue.post(std::mem::take(&mut progress.taken))?;
        }
        Ok(())
    }

    /// Closes the windows of rings in which nothing has arrived for some time.
    fn close_idle(&self, shared: &Shared) {
        let idle = Duration::from_millis(shared.settings.idle_ms);
        if idle.is_zero() {
            return;
        }
        let rings = shared.rings.iter().skip(self.index as usize);
        for ring in rings.step_by(shared.settings.threads as usize) {
            let mut book = ring.lock();
            if book.ring.open_windows() > 0 && book.quiet_for() >= idle {
                book.ring.close_all();
                ring.deliver(&mut book, |chunk| shared.chunks.push(chunk));
            }
        }
    }
}

fn finish(shared: &Shared, open: Option<(u32, MutexGuard<'_, crate::chunk::Book>)>) {
    if let Some((ring, mut book)) = open {
        shared.rings[ring as usize].deliver(&mut book, |chunk| shared.chunks.push(chunk));
    }
}

/// Whether a message of the queue pair is missing between two positions.
fn is_gap<D: Device>(before: u64, position: u64, entry: &Entry<D>, slots: u32) -> bool {
    let (slots, queues) = (u64::from(slots), u64::from(entry.queues));
    let follows = if before % slots + queues < slots {
        before + queues
    } else {
        (before / slots + 1) * slots + u64::from(entry.queue)
    };
    position > follows
}
