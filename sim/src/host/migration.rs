//! The source of a live migration: copies a disk, then a guest's memory in passes while the guest
//! runs, then stops the guest and sends what is left.
//!
//! The rules are QEMU's: when what is left of a pass takes no longer than the downtime limit, at
//! the rate measured last, the source takes the log of the guest's writes. If what is to be sent
//! still takes no longer, it stops the guest; otherwise another pass begins. All bytes are WRITEs
//! of one queue pair, which have lengths and no contents.

mod guest;

use super::doorbells::Doorbells;
use super::{Goal, Nic, Op, Posted, Seen};
use guest::Guest;
use longhaul_rnic::Status;
use longhaul_units::{BitRate, Duration, Instant, SplitMix64};
use std::collections::VecDeque;

/// Interval over which the source measures its rate (QEMU: `BUFFER_DELAY`).
const MEASURED: Duration = Duration::from_ms(100);

/// A guest with its disk, and the limits of its migration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Migration {
    /// Time before the first byte.
    pub setup: Duration,
    /// Bytes of the disk, which are copied before the memory.
    pub disk_bytes: u64,
    /// Rate of the disk; `None`: as fast as the path.
    pub disk_rate: Option<BitRate>,
    /// Bytes of memory that the first pass sends, at least one.
    pub memory_bytes: u64,
    /// Rate at which the source passes memory to the NIC; `None`: as fast as the path.
    pub memory_rate: Option<BitRate>,
    /// What the guest writes; `None`: it is idle.
    pub writes: Option<Writes>,
    /// Maximum time that sending what is left may take when the guest is stopped.
    pub downtime_limit: Duration,
}

/// What a guest writes: part of its memory in turn, then a pause.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Writes {
    /// The part, in bytes: at most the memory.
    pub bytes: u64,
    /// Rate of the writes, without the pauses.
    pub rate: BitRate,
    /// Pause after each turn.
    pub pause: Duration,
}

impl Migration {
    /// Pieces of `size` bytes in the memory.
    pub fn pieces(&self, size: u32) -> u64 {
        self.memory_bytes.div_ceil(size.into())
    }
}

/// Parameters of a migration's flow.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Course {
    pub migration: Migration,
    /// Bytes of a WRITE.
    pub size: u32,
    /// WRITEs posted and not completed.
    pub depth: u32,
    /// Time after which the migration is cancelled.
    pub timeout: Duration,
}

/// What the source does.
#[derive(Clone, Copy, Debug)]
enum Phase {
    SetUp {
        until: Instant,
    },
    Disk {
        /// WRITEs to post.
        left: u64,
    },
    Passes,
    /// The guest is stopped.
    Rest {
        /// The state of the guest's devices is posted, behind its memory.
        has_state: bool,
    },
    Ended,
}

/// When each phase began.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Times {
    pub disk: Option<Instant>,
    pub passes: Option<Instant>,
    pub stop: Option<Instant>,
    /// The destination has everything.
    pub arrival: Option<Instant>,
}

/// The rate of completed WRITEs.
struct Meter {
    since: Instant,
    bytes: u64,
    /// Bytes in the last interval, and its length.
    measured: Option<(u64, Duration)>,
}

impl Meter {
    fn new(since: Instant) -> Self {
        Meter { since, bytes: 0, measured: None }
    }

    fn add(&mut self, at: Instant, bytes: u64) {
        self.bytes += bytes;
        let span = at.since(self.since);
        if span >= MEASURED {
            *self = Meter { since: at, bytes: 0, measured: Some((self.bytes, span)) };
        }
    }

    /// Bytes sent in `time` at the last measured rate, none before.
    fn bytes_in(&self, time: Duration) -> u64 {
        let Some((bytes, span)) = self.measured else { return 0 };
        let sent = u128::from(bytes) * u128::from(time.as_ps()) / u128::from(span.as_ps().max(1));
        u64::try_from(sent).unwrap_or(u64::MAX)
    }
}

/// The program.
pub(crate) struct Migrator {
    course: Course,
    slot: usize,
    phase: Phase,
    guest: Guest,
    doorbells: Doorbells,
    seen: VecDeque<Seen>,
    meter: Meter,
    busy_until: Instant,
    /// Earliest time of the next WRITE, at the rate of disk or memory.
    handed_at: Instant,
    outstanding: u32,
    pub began: Instant,
    pub times: Times,
    /// Time of the last polled completion.
    pub last: Instant,
    /// WRITEs completed.
    pub messages: u64,
    /// WRITEs posted of the disk, and of memory and devices.
    pub posted: [u64; 2],
    /// Passes over the memory.
    pub passes: u64,
    /// Status of the first failed WRITE.
    pub failure: Option<Status>,
}

impl Migrator {
    pub fn new(course: Course) -> Self {
        Migrator {
            course,
            slot: 0,
            phase: Phase::Ended,
            guest: Guest::new(0, course.size, None),
            doorbells: Doorbells::default(),
            seen: VecDeque::new(),
            meter: Meter::new(Instant::ZERO),
            busy_until: Instant::ZERO,
            handed_at: Instant::ZERO,
            outstanding: 0,
            began: Instant::ZERO,
            times: Times::default(),
            last: Instant::ZERO,
            messages: 0,
            posted: [0; 2],
            passes: 0,
            failure: None,
        }
    }

    pub fn start(&mut self, at: Instant, slots: Vec<usize>, nic: &mut Nic) {
        let Course { migration, size, .. } = &self.course;
        self.slot = slots[0];
        (self.began, self.last, self.busy_until) = (at, at, at);
        let pieces = migration.pieces(*size) as usize;
        let mut rng = SplitMix64::new(nic.rnic.config().seed);
        self.guest = Guest::new(pieces, *size, migration.writes.as_ref()).anywhere(&mut rng);
        self.phase = Phase::SetUp { until: at + migration.setup };
    }

    /// `true` after arrival, cancellation or failure.
    pub fn is_done(&self) -> bool {
        self.failure.is_some() || matches!(self.phase, Phase::Ended)
    }

    /// Ends after this time, at the latest.
    pub fn goal(&self) -> Goal {
        Goal::Time(self.course.timeout)
    }

    /// Work requests for which the send queue had no room.
    pub fn refused(&self) -> u64 {
        self.doorbells.refused
    }

    /// Bytes of memory that were still to be sent.
    pub fn left_bytes(&self) -> u64 {
        self.guest.left() * u64::from(self.course.size)
    }

    pub fn complete(&mut self, seen: Seen) {
        self.seen.push_back(seen);
    }

    pub fn next_at(&self) -> Option<Instant> {
        if self.is_done() {
            return None;
        }
        let turns = [self.seen.front().map(|seen| seen.at), self.step_at()];
        let turn = turns.into_iter().flatten().min().map(|at| at.max(self.busy_until));
        let stop = Some(self.began + self.course.timeout);
        [turn, stop, self.doorbells.next_at()].into_iter().flatten().min()
    }

    pub fn run(&mut self, now: Instant, nic: &mut Nic) {
        if self.is_done() || now < self.began {
            return;
        }
        if self.began + self.course.timeout <= now {
            self.phase = Phase::Ended;
            self.last = now;
            return;
        }
        let (_, poll) = nic.costs();
        while self.busy_until <= now {
            if let Some(seen) = self.seen.front().copied().filter(|seen| seen.at <= now) {
                self.seen.pop_front();
                self.busy_until = self.busy_until.max(now) + poll;
                self.take(&seen);
            } else if self.step_at().is_some_and(|at| at <= now) {
                self.step(now, nic);
            } else {
                break;
            }
        }
        self.doorbells.ring(now, nic);
    }

    fn take(&mut self, seen: &Seen) {
        if seen.completion.status != Status::Success {
            self.failure.get_or_insert(seen.completion.status);
            return;
        }
        self.outstanding -= 1;
        self.messages += 1;
        self.last = self.busy_until;
        self.meter.add(self.busy_until, self.course.size.into());
    }

    /// Time of the next step other than polling; `None`: a completion comes first.
    fn step_at(&self) -> Option<Instant> {
        let is_idle = self.outstanding == 0;
        match self.phase {
            Phase::SetUp { until } => Some(until),
            Phase::Disk { left: 0 } | Phase::Rest { has_state: true } => {
                is_idle.then_some(self.last)
            }
            Phase::Disk { .. } | Phase::Passes | Phase::Rest { .. } => {
                (self.outstanding < self.course.depth).then_some(self.handed_at)
            }
            Phase::Ended => None,
        }
    }

    fn step(&mut self, now: Instant, nic: &mut Nic) {
        let Migration { disk_bytes, disk_rate, downtime_limit, .. } = self.course.migration;
        match &mut self.phase {
            Phase::SetUp { .. } => {
                let left = disk_bytes.div_ceil(self.course.size.into());
                self.phase = Phase::Disk { left };
                self.times.disk = Some(now);
                self.handed_at = now;
            }
            Phase::Disk { left: 0 } => {
                self.guest.log(now);
                self.phase = Phase::Passes;
                self.times.passes = Some(now);
                self.passes = 1;
                (self.handed_at, self.meter) = (now, Meter::new(now));
            }
            Phase::Disk { left } => {
                *left -= 1;
                self.posted[0] += 1;
                self.post(now, disk_rate, nic);
            }
            Phase::Passes => {
                let most = self.meter.bytes_in(downtime_limit);
                if self.left_bytes() <= most {
                    self.guest.sync(now);
                    if self.left_bytes() <= most {
                        self.phase = Phase::Rest { has_state: false };
                        self.times.stop = Some(now);
                        return;
                    }
                    self.passes += 1;
                }
                self.send_memory(now, nic);
            }
            Phase::Rest { has_state: true } => {
                self.phase = Phase::Ended;
                self.times.arrival = Some(self.last);
            }
            Phase::Rest { has_state } => {
                *has_state = self.guest.left() == 0;
                self.send_memory(now, nic);
            }
            Phase::Ended => {}
        }
    }

    /// Posts a piece of memory, or the state of the devices if nothing is left.
    fn send_memory(&mut self, now: Instant, nic: &Nic) {
        self.guest.take();
        self.posted[1] += 1;
        self.post(now, self.course.migration.memory_rate, nic);
    }

    fn post(&mut self, now: Instant, rate: Option<BitRate>, nic: &Nic) {
        let (post, _) = nic.costs();
        let size = self.course.size;
        let cost = rate.map_or(Duration::ZERO, |rate| rate.time_for_bytes(size.into()));
        self.handed_at = (self.handed_at + cost).max(now);
        self.busy_until = self.busy_until.max(now) + post + nic.list_cost();
        self.outstanding += 1;
        let wr_id = self.posted.iter().sum();
        let posted = Posted {
            op: Op::Write,
            size,
            wr_id,
            signaled: true,
            solicited: false,
            offset: 0,
            capsule: None,
        };
        self.doorbells.add(nic.doorbell(self.busy_until), self.slot, posted);
    }
}
