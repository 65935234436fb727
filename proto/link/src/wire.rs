use crate::chance::Chance;
use crate::config::{Cut, Impairments, LinkConfig, LinkError};
use crate::counters::{DropReason, LinkCounters};
use crate::serialiser::Serialiser;
use longhaul_cc::{Red, wire_bytes};
use longhaul_node::Frame;
use longhaul_units::{Duration, Instant, Rng, SplitMix64};
use longhaul_wire::{Ecn, HEAD_MAX};

/// Longest payload that a link carries, in bytes.
pub const PAYLOAD_LEN_MAX: usize = 16 * 1024;

/// What becomes of a frame that gets through.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Arrival {
    /// When its last bit reaches the far end. It never decreases from one frame to the next that is late, or to the next
    /// that is not.
    pub due: Instant,
    /// The queue marks it: [`Ecn::mark`] when it leaves.
    pub is_marked: bool,
    /// It takes the slow way: frames behind it can overtake it.
    pub is_late: bool,
    /// It arrives twice, at the same time.
    pub is_duplicated: bool,
    /// The bit that is turned over on the way, counted from the frame's first: [`corrupt`].
    pub corrupted_bit: Option<u32>,
}

impl Arrival {
    fn unharmed(due: Instant, is_marked: bool) -> Self {
        Arrival { due, is_marked, is_late: false, is_duplicated: false, corrupted_bit: None }
    }
}

/// Turns over a bit of a frame's bytes, as [`Arrival::corrupted_bit`] says.
pub fn corrupt(frame: &mut [u8], bit: u32) {
    if let Some(byte) = frame.get_mut(bit as usize / 8) {
        *byte ^= 0x80 >> (bit % 8);
    }
}

/// Bits of a frame that are never turned over: a frame with another destination would not be seen at all.
const ADDRESS_BITS: u64 = 96;

/// What else befalls frames. Each kind has a stream of its own: one does not change what another does.
struct Harm {
    late: Chance,
    late_by: Duration,
    duplication: Chance,
    corruption: Chance,
    bits: SplitMix64,
}

impl Harm {
    fn new(config: &Impairments, seed: u64) -> Self {
        let mut seeds = SplitMix64::new(seed.rotate_left(32) ^ 0x696d_7061_6972);
        let mut stream = |probability| Chance::new(probability, seeds.next_u64());
        let [late, duplication, corruption] =
            [config.late, config.duplication, config.corruption].map(&mut stream);
        Harm {
            late,
            late_by: config.late_by,
            duplication,
            corruption,
            bits: SplitMix64::new(seeds.next_u64()),
        }
    }

    /// What befalls a frame of `len` bytes that would arrive at `due`.
    fn befall(&mut self, due: Instant, is_marked: bool, len: usize, counters: &mut LinkCounters) -> Arrival {
        let is_late = self.late.take();
        let is_duplicated = self.duplication.take();
        let is_corrupted = self.corruption.take();
        counters.late_frames += u64::from(is_late);
        counters.duplicated_frames += u64::from(is_duplicated);
        counters.corrupted_frames += u64::from(is_corrupted);
        let bits = (8 * len as u64).saturating_sub(ADDRESS_BITS);
        let corrupted_bit = (is_corrupted && bits > 0).then(|| (ADDRESS_BITS + self.bits.below(bits)) as u32);
        let due = if is_late { due + self.late_by } else { due };
        Arrival { due, is_marked, is_late, is_duplicated, corrupted_bit }
    }
}

/// Queue, rate, loss and delay of one direction, without the frames: it says when and whether a frame arrives.
///
/// A [`Direction`](crate::Direction) keeps the frames until then; a simulation keeps what it needs of them.
/// `now` never decreases from one call to the next.
pub struct Wire {
    delay: Duration,
    serialiser: Option<Serialiser>,
    /// Time that a full queue takes to send.
    queue_wait_max: Duration,
    red: Option<Red>,
    losses: Chance,
    cut: Option<Cut>,
    /// `None`: nothing else befalls any frame.
    harm: Option<Box<Harm>>,
    last_due: Instant,
    wait_max: Duration,
    counters: LinkCounters,
}

impl Wire {
    /// One direction of a link that is like `config`, whose memory bound is somebody else's to hold. `seed` stands in
    /// for the configuration's.
    ///
    /// # Errors
    /// As [`Link::new`](crate::Link::new), but for memory.
    pub fn new(config: &LinkConfig, seed: u64) -> Result<Self, LinkError> {
        config.check_wire()?;
        let red = config.ecn.zip(config.rate);
        Ok(Wire {
            delay: config.delay,
            serialiser: config.rate.map(Serialiser::new),
            queue_wait_max: config
                .rate
                .map_or(Duration::ZERO, |rate| rate.time_for_bytes(config.queue_bytes)),
            // A stream of its own: marks do not change which frames are lost.
            red: red.map(|(ecn, rate)| Red::new(&ecn, rate, !seed)),
            losses: Chance::in_bursts(config.loss, config.bursts.as_ref(), seed),
            cut: config.cut,
            harm: (!config.impairments.is_none()).then(|| Box::new(Harm::new(&config.impairments, seed))),
            last_due: Instant::ZERO,
            wait_max: Duration::ZERO,
            counters: LinkCounters::default(),
        })
    }

    /// A frame comes to the queue.
    ///
    /// # Errors
    /// Why it is dropped; it has been counted.
    #[inline]
    pub fn enter(&mut self, now: Instant, frame: &Frame<'_>) -> Result<Arrival, DropReason> {
        let len = frame.len();
        self.counters.entered_frames += 1;
        self.counters.entered_bytes += len as u64;
        let taken = self.take(now, len, frame);
        if let Err(reason) = taken {
            self.drop(reason);
        }
        taken
    }

    fn take(&mut self, now: Instant, len: usize, frame: &Frame<'_>) -> Result<Arrival, DropReason> {
        if frame.head.len() > HEAD_MAX || frame.payload.len() > PAYLOAD_LEN_MAX {
            return Err(DropReason::TooLong);
        }
        let backlog = self.backlog(now);
        let sent_at = self.serialise(now, backlog, wire_bytes(len)).ok_or(DropReason::QueueFull)?;
        // A lost frame has used the wire all the same.
        if self.cut.is_some_and(|cut| cut.is_on(sent_at)) {
            return Err(DropReason::Cut);
        }
        if self.losses.take() {
            return Err(DropReason::Loss);
        }
        self.last_due = self.last_due.max(sent_at + self.delay);
        let (due, is_marked) = (self.last_due, self.marks(backlog, frame.head));
        Ok(match &mut self.harm {
            None => Arrival::unharmed(due, is_marked),
            Some(harm) => harm.befall(due, is_marked, len, &mut self.counters),
        })
    }

    /// A train of `count` frames like `frame` comes to the queue at once. `arrived` is told of each part of it that gets
    /// through: when its last frame does, the place of its first frame in the train, and how many they are. The frame
    /// behind a gap is a part by itself, so that it arrives when it would without a train. Without marking only.
    pub fn enter_train(
        &mut self,
        now: Instant,
        frame: &Frame<'_>,
        count: u64,
        mut arrived: impl FnMut(Arrival, u64, u64),
    ) {
        let bytes = wire_bytes(frame.len());
        let all_fit = self.backlog(now) + self.time_of(bytes * count) <= self.queue_wait_max;
        if self.red.is_some() || self.harm.is_some() || self.cut.is_some() || !all_fit {
            for place in 0..count {
                if let Ok(arrival) = self.enter(now, frame) {
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
            // A lost frame uses the wire all the same.
            let frames = part.max(1);
            let waits = self.backlog(now) > Duration::ZERO;
            let sent_at = self.serialiser.as_mut().map_or(now, |wire| wire.send(now, bytes * frames));
            if waits {
                self.wait_max = self.wait_max.max(sent_at.since(now));
            }
            if part == 0 {
                self.losses.take();
                self.drop(DropReason::Loss);
            } else {
                self.losses.pass(part);
                self.last_due = self.last_due.max(sent_at + self.delay);
                arrived(Arrival::unharmed(self.last_due, false), place, part);
            }
            place += frames;
        }
    }

    fn time_of(&self, bytes: u64) -> Duration {
        self.serialiser.as_ref().map_or(Duration::ZERO, |wire| wire.rate().time_for_bytes(bytes))
    }

    /// How long a frame that comes now waits before its first bit is sent; zero without a rate.
    #[inline]
    pub fn backlog(&self, now: Instant) -> Duration {
        self.serialiser.as_ref().map_or(Duration::ZERO, |serialiser| serialiser.backlog(now))
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

    /// Counts a frame that entered and has arrived.
    #[inline]
    pub fn deliver(&mut self, len: usize, is_marked: bool) {
        self.counters.delivered_frames += 1;
        self.counters.delivered_bytes += len as u64;
        self.counters.ecn_marked_frames += u64::from(is_marked);
    }

    /// Counts a frame that does not get through.
    pub(crate) fn drop(&mut self, reason: DropReason) {
        self.counters.drops.count(reason);
    }

    /// What it did so far. Of memory it knows nothing.
    pub fn counters(&self) -> LinkCounters {
        let queue_bytes_max = self.serialiser.as_ref().map_or(0, |s| s.rate().bytes_in(self.wait_max));
        let gone = self.counters.delivered_frames + self.counters.drops.total();
        let came = self.counters.entered_frames + self.counters.duplicated_frames;
        LinkCounters { in_flight_frames: came - gone, queue_bytes_max, ..self.counters }
    }
}
