//! Decides for each frame of one direction whether, when and how it arrives.

use crate::chance::Chance;
use crate::config::{Bursts, LinkConfig, LinkError};
use crate::counters::{DropReason, LinkCounters};
use crate::fault_injector::FaultInjector;
use crate::rule::RuleCounters;
use crate::schedule::{Conditions, Timeline};
use crate::serialiser::Serialiser;
use longhaul_cc::{Red, RedConfig, wire_bytes};
use longhaul_node::{Frame, Side};
use longhaul_units::{Duration, Instant, Rng, SplitMix64};
use longhaul_wire::Ecn;

/// Later than any change.
const NEVER: Instant = Instant::from_ps(u64::MAX);

/// The arrival of a frame that is not lost.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Arrival {
    /// When its last bit reaches the far end. Never decreases among late frames, or among the
    /// others.
    pub due: Instant,
    /// Marked by the queue or a rule: apply [`Ecn::mark`] when it leaves.
    pub is_marked: bool,
    /// It is delayed, so that later frames can overtake it.
    pub is_late: bool,
    /// It arrives twice, at the same time.
    pub is_duplicated: bool,
    /// The bit that is flipped, counted from the frame's first; see [`corrupt`].
    pub corrupted_bit: Option<u32>,
}

impl Arrival {
    fn undamaged(due: Instant, is_marked: bool) -> Self {
        Arrival { due, is_marked, is_late: false, is_duplicated: false, corrupted_bit: None }
    }
}

/// Flips a bit of a frame, for [`Arrival::corrupted_bit`].
pub fn corrupt(frame: &mut [u8], bit: u32) {
    if let Some(byte) = frame.get_mut(bit as usize / 8) {
        *byte ^= 0x80 >> (bit % 8);
    }
}

/// Queue, rate, loss and delay of one direction, without the frames: decides when and whether a
/// frame arrives.
///
/// A [`Direction`](crate::Direction) stores the frames until then; a simulation stores what it
/// needs of them. `now` must never decrease from one call to the next.
pub struct Wire {
    delay: Duration,
    serialiser: Option<Serialiser>,
    /// Time to send a full queue.
    queue_wait_max: Duration,
    red: Option<Red>,
    losses: Chance,
    /// `None` without faults other than loss.
    fault_injector: Option<Box<FaultInjector>>,
    /// Time of the next change; [`NEVER`] without one.
    next_change_at: Instant,
    schedule: Option<Box<Schedule>>,
    last_due: Instant,
    wait_max: Duration,
    counters: LinkCounters,
}

/// The changes of conditions, and the state needed to apply them.
struct Schedule {
    timeline: Timeline,
    /// The present conditions.
    conditions: Conditions,
    queue_bytes: u64,
    ecn: Option<RedConfig>,
    bursts: Option<Bursts>,
    /// Seeds of streams that restart.
    seeds: SplitMix64,
}

impl Wire {
    /// The direction of a link with `config` that frames enter on side `entry`; the caller enforces
    /// the memory bound. `seed` replaces the configuration's.
    ///
    /// # Errors
    /// Same as [`Link::new`](crate::Link::new), except for memory.
    pub fn new(config: &LinkConfig, entry: Side, seed: u64) -> Result<Self, LinkError> {
        config.check_wire()?;
        let red = config.ecn.zip(config.rate);
        let mut wire = Wire {
            delay: config.delay,
            serialiser: config.rate.map(Serialiser::new),
            queue_wait_max: config
                .rate
                .map_or(Duration::ZERO, |rate| rate.time_for_bytes(config.queue_bytes)),
            // A separate stream: marks do not change which frames are lost.
            red: red.map(|(ecn, rate)| Red::new(&ecn, rate, !seed)),
            losses: Chance::in_bursts(config.loss, config.bursts.as_ref(), seed),
            fault_injector: FaultInjector::new(config, entry, seed),
            next_change_at: NEVER,
            schedule: None,
            last_due: Instant::ZERO,
            wait_max: Duration::ZERO,
            counters: LinkCounters::default(),
        };
        let timeline = Timeline::new(config);
        if let Some(at) = timeline.next_at() {
            wire.next_change_at = at;
            wire.schedule = Some(Box::new(Schedule {
                timeline,
                conditions: Conditions::of(config),
                queue_bytes: config.queue_bytes,
                ecn: config.ecn,
                bursts: config.bursts,
                seeds: SplitMix64::new(seed ^ 0x7363_6865_6475_6c65),
            }));
        }
        Ok(wire)
    }

    /// Applies the scheduled conditions of `now`.
    #[cold]
    fn change(&mut self, now: Instant) {
        let Some(schedule) = &mut self.schedule else { return };
        if let Some(conditions) = schedule.timeline.advance(now) {
            let before = std::mem::replace(&mut schedule.conditions, conditions);
            let (losses_seed, marks_seed) = (schedule.seeds.next_u64(), schedule.seeds.next_u64());
            self.delay = conditions.delay;
            if conditions.loss != before.loss {
                self.losses =
                    Chance::in_bursts(conditions.loss, schedule.bursts.as_ref(), losses_seed);
            }
            if let (Some(rate), Some(serialiser)) = (conditions.rate, &mut self.serialiser)
                && conditions.rate != before.rate
            {
                // A wait corresponds to a number of bytes at one rate only.
                let queue_bytes = serialiser.rate().bytes_in(std::mem::take(&mut self.wait_max));
                self.counters.queue_bytes_max = self.counters.queue_bytes_max.max(queue_bytes);
                serialiser.set_rate(rate);
                self.queue_wait_max = rate.time_for_bytes(schedule.queue_bytes);
                self.red = schedule.ecn.map(|ecn| Red::new(&ecn, rate, marks_seed));
            }
        }
        self.next_change_at = schedule.timeline.next_at().unwrap_or(NEVER);
    }

    /// Enters a frame into the queue.
    ///
    /// # Errors
    /// Why it is dropped, after counting it.
    #[inline]
    pub fn enter(&mut self, now: Instant, frame: &Frame<'_>) -> Result<Arrival, DropReason> {
        self.enter_at(now, frame, 0)
    }

    /// Enters a frame that is at `place` in a train into the queue.
    #[inline]
    fn enter_at(
        &mut self,
        now: Instant,
        frame: &Frame<'_>,
        place: u32,
    ) -> Result<Arrival, DropReason> {
        let len = frame.len();
        self.counters.entered_frames += 1;
        self.counters.entered_bytes += len as u64;
        let taken = self.take(now, len, frame, place);
        if let Err(reason) = taken {
            self.drop(reason);
        }
        taken
    }

    #[inline]
    fn take(
        &mut self,
        now: Instant,
        len: usize,
        frame: &Frame<'_>,
        place: u32,
    ) -> Result<Arrival, DropReason> {
        if !frame.fits_pool() {
            return Err(DropReason::TooLong);
        }
        if now >= self.next_change_at {
            self.change(now);
        }
        let backlog = self.backlog(now);
        let sent_at = self.serialise(now, backlog, wire_bytes(len)).ok_or(DropReason::QueueFull)?;
        if self.fault_injector.is_some() {
            return self.take_with_faults(sent_at, backlog, frame, place);
        }
        // A lost frame still uses the wire.
        if self.losses.take() {
            return Err(DropReason::Loss);
        }
        self.last_due = self.last_due.max(sent_at + self.delay);
        Ok(Arrival::undamaged(self.last_due, marks(&mut self.red, backlog, frame.head)))
    }

    /// Processes a frame whose last bit is sent at `sent_at`, after a wait of `backlog`.
    fn take_with_faults(
        &mut self,
        sent_at: Instant,
        backlog: Duration,
        frame: &Frame<'_>,
        place: u32,
    ) -> Result<Arrival, DropReason> {
        let Some(fault_injector) = &mut self.fault_injector else {
            unreachable!("who calls has looked")
        };
        if fault_injector.is_cut(sent_at) {
            return Err(DropReason::Cut);
        }
        if self.losses.take() {
            return Err(DropReason::Loss);
        }
        let effects = fault_injector.judge(frame, place);
        if effects.is_lost {
            return Err(DropReason::Rule);
        }
        self.last_due = self.last_due.max(sent_at + self.delay + effects.delay);
        let is_marked = marks(&mut self.red, backlog, frame.head);
        Ok(fault_injector.apply(self.last_due, is_marked, frame.len(), effects, &mut self.counters))
    }

    /// Enters a train of `count` frames like `frame` into the queue at once. Calls `arrived` for
    /// each part of it that arrives, with the arrival of its last frame, the place of its first
    /// frame in the train, and its length. The frame behind a gap is a part by itself, so that it
    /// arrives at the same time as without a train.
    pub fn enter_train(
        &mut self,
        now: Instant,
        frame: &Frame<'_>,
        count: u64,
        mut arrived: impl FnMut(Arrival, u64, u64),
    ) {
        let bytes = wire_bytes(frame.len());
        let all_fit = self.backlog(now) + self.time_of(bytes * count) <= self.queue_wait_max;
        let has_more_to_it = self.red.is_some()
            || self.fault_injector.is_some()
            || now >= self.next_change_at
            || !all_fit;
        if has_more_to_it {
            for place in 0..count {
                if let Ok(arrival) = self.enter_at(now, frame, place as u32) {
                    arrived(arrival, place, 1);
                }
            }
            return;
        }
        self.counters.entered_frames += count;
        self.counters.entered_bytes += frame.len() as u64 * count;
        let (mut place, mut follows_gap) = (0, false);
        while place < count {
            let run = self.losses.before_next().min(count - place);
            let part = if follows_gap { run.min(1) } else { run };
            follows_gap = part == 0;
            // A lost frame still uses the wire.
            let frames = part.max(1);
            let waits = self.backlog(now) > Duration::ZERO;
            let sent_at =
                self.serialiser.as_mut().map_or(now, |wire| wire.send(now, bytes * frames));
            if waits {
                self.wait_max = self.wait_max.max(sent_at.since(now));
            }
            if part == 0 {
                self.losses.take();
                self.drop(DropReason::Loss);
            } else {
                self.losses.pass(part);
                self.last_due = self.last_due.max(sent_at + self.delay);
                arrived(Arrival::undamaged(self.last_due, false), place, part);
            }
            place += frames;
        }
    }

    fn time_of(&self, bytes: u64) -> Duration {
        self.serialiser.as_ref().map_or(Duration::ZERO, |wire| wire.rate().time_for_bytes(bytes))
    }

    /// How long a frame that arrives at `now` waits before its first bit is sent; zero without a
    /// rate.
    #[inline]
    pub fn backlog(&self, now: Instant) -> Duration {
        self.serialiser.as_ref().map_or(Duration::ZERO, |serialiser| serialiser.backlog(now))
    }

    /// Returns when the last bit is sent, or `None` if the queue has no room.
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

    /// Counts a frame that entered and arrived.
    #[inline]
    pub fn deliver(&mut self, len: usize, is_marked: bool) {
        self.counters.delivered_frames += 1;
        self.counters.delivered_bytes += len as u64;
        self.counters.ecn_marked_frames += u64::from(is_marked);
    }

    /// Counts a dropped frame.
    pub(crate) fn drop(&mut self, reason: DropReason) {
        self.counters.drops.count(reason);
    }

    /// Counters of each rule, by its position in the configuration; empty without rules for this
    /// direction.
    pub fn rule_counters(&self) -> &[RuleCounters] {
        self.fault_injector.as_ref().map_or(&[], |fault_injector| fault_injector.rule_counters())
    }

    /// Returns the counters, except those of memory.
    pub fn counters(&self) -> LinkCounters {
        let queue_bytes = self.serialiser.as_ref().map_or(0, |s| s.rate().bytes_in(self.wait_max));
        let queue_bytes_max = self.counters.queue_bytes_max.max(queue_bytes);
        let gone = self.counters.delivered_frames + self.counters.drops.total();
        let came = self.counters.entered_frames + self.counters.duplicated_frames;
        LinkCounters { in_flight_frames: came - gone, queue_bytes_max, ..self.counters }
    }
}

/// True if `red` marks a frame with these headers that finds `backlog` before it.
#[inline]
fn marks(red: &mut Option<Red>, backlog: Duration, head: &[u8]) -> bool {
    match red {
        Some(red) if backlog > Duration::ZERO => {
            Ecn::of(head) == Some(Ecn::Capable) && red.marks(backlog)
        }
        _ => false,
    }
}
