//! One direction of a link, with its frames in flight.

use crate::config::{LinkConfig, LinkError};
use crate::counters::{DropReason, LinkCounters};
use crate::rule::RuleCounters;
use crate::wire::{Arrival, Wire, corrupt};
use longhaul_node::{Frame, FrameBuf, FramePool, PAYLOAD_MAX, Side, Transmit, transmit_marked};
use longhaul_units::Instant;
use longhaul_wire::{Ecn, Head};
use std::collections::VecDeque;

/// How many frames ahead of its delivery a frame is prefetched.
const FETCH_AHEAD: usize = 4;

/// Most memory of any frame.
pub(crate) const MEMORY_PER_FRAME_MAX: u64 = memory_of(FramePool::footprint(PAYLOAD_MAX));
/// Most memory of a shortest frame, and the most per byte on the wire of any frame: its buffer is
/// the smallest, and other buffers have at most twice the payload's length.
pub(crate) const MEMORY_PER_SHORT_FRAME: u64 = memory_of(FramePool::footprint(0));

/// Memory of a frame with this footprint in the ring, which doubles when it grows, so that half of
/// it may be empty.
pub(crate) const fn memory_of(footprint: usize) -> u64 {
    (footprint - size_of::<FrameBuf>() + 2 * size_of::<InFlight>()) as u64
}

/// A frame in flight.
#[derive(Clone)]
struct InFlight {
    due: Instant,
    frame: FrameBuf,
    change: ExitEdits,
}

/// Changes made to a frame when it leaves, because the stored copy may be shared.
#[derive(Clone, Copy)]
struct ExitEdits {
    /// Bit to flip, or [`ExitEdits::NO_BIT`].
    corrupted_bit: u32,
    is_marked: bool,
}

impl ExitEdits {
    /// Beyond the last bit of any frame.
    const NO_BIT: u32 = u32::MAX;

    fn of(arrival: &Arrival) -> Self {
        ExitEdits {
            corrupted_bit: arrival.corrupted_bit.unwrap_or(Self::NO_BIT),
            is_marked: arrival.is_marked,
        }
    }
}

impl InFlight {
    fn memory_bytes(&self) -> u64 {
        memory_of(self.frame.footprint())
    }
}

/// One direction: queue, wire and fibre, with the frames in flight. A [`Link`](crate::Link) has
/// two; an output of a switch is one without delay.
///
/// `now` must never decrease from one call to the next.
pub struct Direction {
    wire: Wire,
    memory_bytes_max: u64,
    memory_bytes: u64,
    memory_bytes_peak: u64,
    ring: VecDeque<InFlight>,
    /// Late frames; both queues keep their order.
    late: VecDeque<InFlight>,
    /// Its own pool, so that buffers return in the order in which they were taken.
    pool: FramePool,
    /// The first frame is due and the far side had no room: not a deadline.
    is_blocked: bool,
}

impl Direction {
    /// The direction of a link with `config` that frames enter on side `entry`, with half of the
    /// link's memory. `seed` replaces the configuration's.
    ///
    /// # Errors
    /// Same as [`Link::new`](crate::Link::new).
    pub fn new(config: &LinkConfig, entry: Side, seed: u64) -> Result<Self, LinkError> {
        config.check()?;
        Ok(Direction {
            wire: Wire::new(config, entry, seed)?,
            memory_bytes_max: config.memory_bytes_max / 2,
            memory_bytes: 0,
            memory_bytes_peak: 0,
            ring: VecDeque::new(),
            late: VecDeque::new(),
            pool: FramePool::new(),
            is_blocked: false,
        })
    }

    /// Enters a frame into the queue.
    #[inline]
    pub fn enter(&mut self, now: Instant, frame: &Frame<'_>) {
        let Ok(arrival) = self.wire.enter(now, frame) else { return };
        let memory_bytes_max = memory_of(FramePool::footprint(frame.payload.len()));
        let copies = 1 + u64::from(arrival.is_duplicated);
        if self.memory_bytes + copies * memory_bytes_max > self.memory_bytes_max {
            (0..copies).for_each(|_| self.wire.drop(DropReason::Memory));
            return;
        }
        let entry = InFlight {
            due: arrival.due,
            change: ExitEdits::of(&arrival),
            frame: self.pool.hold(frame),
        };
        self.memory_bytes += copies * entry.memory_bytes();
        self.memory_bytes_peak = self.memory_bytes_peak.max(self.memory_bytes);
        let way = if arrival.is_late { &mut self.late } else { &mut self.ring };
        if arrival.is_duplicated {
            way.push_back(entry.clone());
        }
        way.push_back(entry);
    }

    /// Passes the frames that are due to `side` of `out`, within its room.
    #[inline]
    pub fn leave(&mut self, now: Instant, side: Side, out: &mut dyn Transmit) {
        self.is_blocked = false;
        while let Some(way) = earlier(&mut self.ring, &mut self.late) {
            let Some(front) = way.front() else { return };
            if front.due > now {
                return;
            }
            if out.room(side) == 0 {
                self.is_blocked = true;
                return;
            }
            if let Some(soon) = way.get(FETCH_AHEAD) {
                soon.frame.fetch();
            }
            let ExitEdits { corrupted_bit, is_marked } = front.change;
            if corrupted_bit != ExitEdits::NO_BIT {
                send_corrupted(&front.frame.as_frame(), corrupted_bit, is_marked, side, out);
            } else if is_marked {
                transmit_marked(&front.frame.as_frame(), side, out);
            } else {
                out.transmit_held(side, &front.frame);
            }
            self.wire.deliver(front.frame.len(), is_marked);
            self.memory_bytes -= front.memory_bytes();
            way.pop_front();
        }
    }

    /// True if no frame is queued or in flight.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.ring.is_empty() && self.late.is_empty()
    }

    /// When the next frame is due; `None` also while it waits only for room.
    #[inline]
    pub fn next_due(&self) -> Option<Instant> {
        if self.is_blocked {
            return None;
        }
        let due = |way: &VecDeque<InFlight>| way.front().map(|front| front.due);
        match (due(&self.ring), due(&self.late)) {
            (Some(ring), Some(late)) => Some(ring.min(late)),
            (ring, late) => ring.or(late),
        }
    }

    /// Returns the counters.
    pub fn counters(&self) -> LinkCounters {
        LinkCounters {
            memory_bytes: self.memory_bytes,
            memory_bytes_max: self.memory_bytes_peak,
            ..self.wire.counters()
        }
    }

    /// Counters of each rule, by its position in the configuration; empty without rules for this
    /// direction.
    pub fn rule_counters(&self) -> &[RuleCounters] {
        self.wire.rule_counters()
    }
}

/// The queue whose first frame is due first.
#[inline]
fn earlier<'a>(
    ring: &'a mut VecDeque<InFlight>,
    late: &'a mut VecDeque<InFlight>,
) -> Option<&'a mut VecDeque<InFlight>> {
    match (ring.front(), late.front()) {
        (Some(front), Some(slow)) if slow.due < front.due => Some(late),
        (Some(_), _) => Some(ring),
        (None, Some(_)) => Some(late),
        (None, None) => None,
    }
}

/// Sends `frame` with a flipped bit, after marking it if required.
#[cold]
fn send_corrupted(
    frame: &Frame<'_>,
    bit: u32,
    is_marked: bool,
    side: Side,
    out: &mut dyn Transmit,
) {
    let mut bytes = vec![0; frame.len()];
    frame.write_to(&mut bytes);
    if is_marked {
        Ecn::mark(&mut bytes);
    }
    corrupt(&mut bytes, bit);
    let head = Head::copy_of(&bytes);
    // A frame that is no longer well-formed is sent as opaque.
    let frame = Frame::received(&head, &bytes).unwrap_or_else(|_| Frame::opaque(&bytes));
    out.transmit(side, &frame);
}
