use crate::config::{LinkConfig, LinkError};
use crate::counters::{DropReason, LinkCounters};
use crate::serialiser::Serialiser;
use longhaul_cc::{Red, wire_bytes};
use longhaul_node::{Frame, FrameBuf, FramePool, Side, Transmit};
use longhaul_units::{Duration, Instant, Rng, SplitMix64};
use longhaul_wire::{Ecn, HEAD_MAX};
use std::collections::VecDeque;

/// Longest payload that a [`FramePool`] keeps, in bytes.
pub const PAYLOAD_LEN_MAX: usize = 16 * 1024;
/// How many frames ahead of its delivery a frame is fetched into the cache.
const FETCH_AHEAD: usize = 4;

/// The most memory that any frame takes.
pub(crate) const MEMORY_PER_FRAME_MAX: u64 = memory_of(FramePool::footprint(PAYLOAD_LEN_MAX));
/// The most memory that a shortest frame takes. Per byte on the wire no frame takes more: its buffer is the smallest
/// there is, and others have at most twice the payload's length.
pub(crate) const MEMORY_PER_SHORT_FRAME: u64 = memory_of(FramePool::footprint(0));

/// What a frame of this footprint costs in the ring, which grows by doubling, so that half of it can be empty.
const fn memory_of(footprint: usize) -> u64 {
    (footprint - size_of::<FrameBuf>() + 2 * size_of::<InFlight>()) as u64
}

/// A frame on its way.
struct InFlight {
    due: Instant,
    /// To be marked when it leaves: the copy in the store may be shared.
    is_marked: bool,
    frame: FrameBuf,
}

impl InFlight {
    fn memory_bytes(&self) -> u64 {
        memory_of(self.frame.footprint())
    }
}

/// One direction: queue, wire and fibre. A [`Link`](crate::Link) has two; an output of a switch is one without
/// length.
///
/// Its `now` never decreases from one call to the next.
pub struct Direction {
    delay: Duration,
    serialiser: Option<Serialiser>,
    /// Time that a full queue takes to send.
    queue_wait_max: Duration,
    red: Option<Red>,
    loss: f64,
    rng: SplitMix64,
    memory_bytes_max: u64,
    ring: VecDeque<InFlight>,
    /// Of its own, so that buffers come back in the order they were taken.
    pool: FramePool,
    /// The latest due time; due times never decrease.
    last_due: Instant,
    /// The front is due and the far side had no room: not a deadline.
    is_blocked: bool,
    wait_max: Duration,
    counters: LinkCounters,
}

impl Direction {
    /// One direction of a link that is like `config`, with half of its memory. `seed` stands in for the
    /// configuration's.
    ///
    /// # Errors
    /// As [`Link::new`](crate::Link::new).
    pub fn new(config: &LinkConfig, seed: u64) -> Result<Self, LinkError> {
        config.check()?;
        let red = config.ecn.zip(config.rate);
        Ok(Direction {
            delay: config.delay,
            serialiser: config.rate.map(Serialiser::new),
            queue_wait_max: config
                .rate
                .map_or(Duration::ZERO, |rate| rate.time_for_bytes(config.queue_bytes)),
            // A stream of its own: marks do not change which frames are lost.
            red: red.map(|(ecn, rate)| Red::new(&ecn, rate, !seed)),
            loss: config.loss,
            rng: SplitMix64::new(seed),
            memory_bytes_max: config.memory_bytes_max / 2,
            ring: VecDeque::new(),
            pool: FramePool::new(),
            last_due: Instant::ZERO,
            is_blocked: false,
            wait_max: Duration::ZERO,
            counters: LinkCounters::default(),
        })
    }

    /// A frame comes to the queue.
    #[inline]
    pub fn enter(&mut self, now: Instant, frame: &Frame<'_>) {
        let len = frame.len();
        self.counters.entered_frames += 1;
        self.counters.entered_bytes += len as u64;
        if let Err(reason) = self.take(now, len, frame) {
            self.counters.drops.count(reason);
        }
    }

    fn take(&mut self, now: Instant, len: usize, frame: &Frame<'_>) -> Result<(), DropReason> {
        let payload_len = frame.payload.len();
        if frame.head.len() > HEAD_MAX || payload_len > PAYLOAD_LEN_MAX {
            return Err(DropReason::TooLong);
        }
        let backlog = self.serialiser.as_ref().map_or(Duration::ZERO, |serialiser| serialiser.backlog(now));
        let sent_at = self.serialise(now, backlog, wire_bytes(len)).ok_or(DropReason::QueueFull)?;
        // A lost frame has used the wire all the same.
        if self.loss > 0.0 && self.rng.chance(self.loss) {
            return Err(DropReason::Loss);
        }
        let memory_bytes_max = memory_of(FramePool::footprint(payload_len));
        if self.counters.memory_bytes + memory_bytes_max > self.memory_bytes_max {
            return Err(DropReason::Memory);
        }
        let due = self.last_due.max(sent_at + self.delay);
        self.last_due = due;
        let is_marked = self.marks(backlog, frame.head);
        let entry = InFlight { due, is_marked, frame: self.pool.hold(frame) };
        self.counters.memory_bytes += entry.memory_bytes();
        self.counters.memory_bytes_max = self.counters.memory_bytes_max.max(self.counters.memory_bytes);
        self.ring.push_back(entry);
        Ok(())
    }

    /// When the last bit is sent, or `None` when the queue has no room.
    fn serialise(&mut self, now: Instant, backlog: Duration, bytes: u64) -> Option<Instant> {
        let Some(serialiser) = &mut self.serialiser else { return Some(now) };
        if backlog > Duration::ZERO {
            let wait = backlog + serialiser.rate().time_for_bytes(bytes);
            if wait > self.queue_wait_max {
                return None;
            }
            self.wait_max = self.wait_max.max(wait);
        }
        Some(serialiser.send(now, bytes))
    }

    /// True when a frame with these headers that finds `backlog` in front of it is to be marked.
    fn marks(&mut self, backlog: Duration, head: &[u8]) -> bool {
        match &mut self.red {
            Some(red) if backlog > Duration::ZERO => {
                Ecn::of(head) == Some(Ecn::Capable) && red.marks(backlog)
            }
            _ => false,
        }
    }

    /// Hands what is due to `side` of `out`, as far as that has room.
    #[inline]
    pub fn leave(&mut self, now: Instant, side: Side, out: &mut dyn Transmit) {
        self.is_blocked = false;
        while let Some(front) = self.ring.front() {
            if front.due > now {
                return;
            }
            if out.room(side) == 0 {
                self.is_blocked = true;
                return;
            }
            if let Some(soon) = self.ring.get(FETCH_AHEAD) {
                soon.frame.fetch();
            }
            let frame = front.frame.as_frame();
            if front.is_marked {
                self.counters.ecn_marked_frames += 1;
                send_marked(&frame, side, out);
            } else {
                out.transmit(side, &frame);
            }
            self.counters.delivered_frames += 1;
            self.counters.delivered_bytes += frame.len() as u64;
            self.counters.memory_bytes -= front.memory_bytes();
            self.ring.pop_front();
        }
    }

    /// True when nothing is queued or under way.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.ring.is_empty()
    }

    /// When the next frame is due; `None` also while one waits for room alone.
    #[inline]
    pub fn next_due(&self) -> Option<Instant> {
        if self.is_blocked { None } else { self.ring.front().map(|front| front.due) }
    }

    /// What it did so far.
    pub fn counters(&self) -> LinkCounters {
        let queue_bytes_max = self.serialiser.as_ref().map_or(0, |s| s.rate().bytes_in(self.wait_max));
        LinkCounters { in_flight_frames: self.ring.len() as u64, queue_bytes_max, ..self.counters }
    }
}

/// Sends `frame` with the mark in its headers.
fn send_marked(frame: &Frame<'_>, side: Side, out: &mut dyn Transmit) {
    let mut bytes = [0; HEAD_MAX];
    let head = &mut bytes[..frame.head.len()];
    head.copy_from_slice(frame.head);
    Ecn::mark(head);
    out.transmit(side, &Frame { head, ..*frame });
}
