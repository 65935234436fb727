//! Configuration of a link: delay, rate, queue, loss and other impairments.

use crate::direction::{MEMORY_PER_FRAME_MAX, MEMORY_PER_SHORT_FRAME, memory_of};
use crate::rule::{Action, RULES_MAX, Rule};
use crate::schedule::{CHANGES_MAX, Change, Setting};
use longhaul_cc::{RedConfig, wire_bytes};
use longhaul_node::FramePool;
use longhaul_units::{BitRate, Duration, Instant};
use thiserror::Error;

/// Bytes of a RoCEv2 packet over IPv4 without payload and extended headers: Ethernet, IP, UDP, BTH,
/// ICRC.
const PACKET_OVERHEAD: usize = 14 + 20 + 8 + 12 + 4;

/// Properties of a link, the same in both directions.
#[derive(Clone, Debug, PartialEq)]
pub struct LinkConfig {
    /// One-way delay from the last bit sent to its arrival. Fibre takes 5 µs per km:
    /// [`Duration::of_fibre_m`], [`LinkConfig::fibre_km`].
    pub delay: Duration,
    /// Rate in bits on the wire: a frame takes its length plus 24 bytes. `None`: no serialisation
    /// and no queue; only memory limits the frames in flight.
    pub rate: Option<BitRate>,
    /// Queue capacity, in bytes on the wire. A frame that finds the wire idle needs none; a frame
    /// that would exceed it is dropped. The queue adds up to `queue_bytes / rate` of delay. Paced
    /// senders need almost none in virtual time. In real time a stalled frame loop lets frames
    /// collect in its ports and then delivers them all at once, which needs a ring's worth of
    /// queue. An unpaced RoCE sender needs about its window.
    pub queue_bytes: u64,
    /// Marking of frames whose sender reacts to it (RFC 3168). `None`: no marks. Without a rate
    /// there is no queue, and no mark.
    pub ecn: Option<RedConfig>,
    /// Probability that a frame is lost, 0 to 1.
    pub loss: f64,
    /// Burstiness of losses. `None`: each frame is drawn independently.
    pub bursts: Option<Bursts>,
    /// When the fibre is cut, in both directions at once. `None`: never.
    pub cut: Option<Cut>,
    /// Other impairments of frames in flight.
    pub impairments: Impairments,
    /// Actions on selected frames, in this order, at most [`RULES_MAX`]. The first rule costs about
    /// 30 ns per frame, mostly to parse its headers; without rules there is no cost.
    pub rules: Vec<Rule>,
    /// Changes over time, at most [`CHANGES_MAX`].
    pub changes: Vec<Change>,
    /// Seed of all random decisions; each direction draws from its own streams.
    pub seed: u64,
    /// Bound on the memory for frames in flight, both directions together, in bytes. At 10 Gbit/s a
    /// link needs at most 20 MB per millisecond of delay if all frames are the shortest, and about
    /// 3 MB if they are 4 KiB long.
    pub memory_bytes_max: u64,
}

/// Losses in bursts: the model of Gilbert and Elliott with a good state that loses nothing.
///
/// The overall mean is [`LinkConfig::loss`], which determines how often a burst begins.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Bursts {
    /// Mean length of a burst in frames, distributed geometrically: 1 to 10^9.
    pub frames: f64,
    /// Probability that a frame in a burst is lost: 0.001 to 1.
    pub loss: f64,
}

impl Bursts {
    /// The greatest mean loss of such bursts, with one frame between two bursts.
    pub fn mean_max(&self) -> f64 {
        self.loss * self.frames / (self.frames + 1.0)
    }

    fn check(&self, mean: f64) -> Result<(), LinkError> {
        if !(1.0..=1e9).contains(&self.frames) {
            return Err(LinkError::BurstFrames { frames: self.frames });
        }
        if !(1e-3..=1.0).contains(&self.loss) {
            return Err(LinkError::BurstLoss { loss: self.loss });
        }
        if mean > self.mean_max() {
            return Err(LinkError::BurstMean { bursts: *self, mean });
        }
        Ok(())
    }
}

/// A fibre that is cut and repaired: frames sent in between are lost, frames sent before arrive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cut {
    /// Time of the first cut, on the clock that drives the link.
    pub at: Instant,
    /// Length of a cut, above 0.
    pub lasts: Duration,
    /// Interval between cuts, longer than a cut. `None`: a single cut.
    pub every: Option<Duration>,
}

impl Cut {
    /// True while the fibre is cut.
    pub fn is_on(&self, now: Instant) -> bool {
        let since = now.as_ps().checked_sub(self.at.as_ps());
        let since =
            since.map(|since| self.every.map_or(since, |every| since % every.as_ps().max(1)));
        since.is_some_and(|since| since < self.lasts.as_ps())
    }

    fn check(&self) -> Result<(), LinkError> {
        let is_ever_on = self.lasts > Duration::ZERO;
        match is_ever_on && self.every.is_none_or(|every| every > self.lasts) {
            true => Ok(()),
            false => Err(LinkError::Cut { cut: *self }),
        }
    }
}

/// Impairments of frames that are not lost, drawn independently for each frame and impairment.
#[derive(Clone, Copy, Debug, PartialEq, Default)]
pub struct Impairments {
    /// Probability that a frame is delayed by `late_by`, so that later frames overtake it: 0 to 1.
    pub late: f64,
    /// See `late`.
    pub late_by: Duration,
    /// Probability that a frame arrives twice: 0 to 1.
    pub duplication: f64,
    /// Probability that one bit of a frame, behind its Ethernet addresses, is flipped: 0 to 1.
    pub corruption: f64,
}

impl Impairments {
    /// Default lateness.
    pub const LATE_BY: Duration = Duration::from_ms(1);

    /// True if no frame is affected.
    pub fn is_none(&self) -> bool {
        self.late <= 0.0 && self.duplication <= 0.0 && self.corruption <= 0.0
    }
}

impl Default for LinkConfig {
    /// No delay, no rate, no loss; 16 MiB of queue (13 ms at 10 Gbit/s) and 2 GiB of memory.
    fn default() -> Self {
        LinkConfig {
            delay: Duration::ZERO,
            rate: None,
            queue_bytes: 16 << 20,
            ecn: None,
            loss: 0.0,
            bursts: None,
            cut: None,
            impairments: Impairments::default(),
            rules: Vec::new(),
            changes: Vec::new(),
            seed: 0,
            memory_bytes_max: 2 << 30,
        }
    }
}

impl LinkConfig {
    /// `km` of fibre at `rate`, otherwise as in [`LinkConfig::default`].
    pub fn fibre_km(km: u64, rate: BitRate) -> Self {
        LinkConfig {
            delay: Duration::of_fibre_m(km.saturating_mul(1000)),
            rate: Some(rate),
            ..LinkConfig::default()
        }
    }

    /// The longest delay at which `memory_bytes` hold all frames in flight at this rate and queue,
    /// for any frame size. `None` without a rate, which is unbounded. If the rate changes, the
    /// highest counts.
    pub fn lossless_delay_max(&self, memory_bytes: u64) -> Option<Duration> {
        self.delay_held(memory_bytes, MEMORY_PER_SHORT_FRAME, wire_bytes(0))
    }

    /// Same as [`LinkConfig::lossless_delay_max`], if all frames are RoCEv2 packets over IPv4 with
    /// payloads of `payload_len` bytes, up to 16 KiB.
    pub fn lossless_delay_at(&self, memory_bytes: u64, payload_len: usize) -> Option<Duration> {
        let frame_bytes = memory_of(FramePool::footprint(payload_len));
        self.delay_held(memory_bytes, frame_bytes, wire_bytes(payload_len + PACKET_OVERHEAD))
    }

    /// The longest delay for frames with this memory and these bytes on the wire each.
    fn delay_held(
        &self,
        memory_bytes: u64,
        memory_per_frame: u64,
        wire_per_frame: u64,
    ) -> Option<Duration> {
        let rate = self.rate_max()?;
        let wire_bytes = u128::from(memory_bytes / 2)
            .saturating_sub(u128::from(MEMORY_PER_FRAME_MAX))
            * u128::from(wire_per_frame)
            / u128::from(memory_per_frame);
        let wire_bytes = wire_bytes / u128::from(self.copies_max());
        let in_fibre = wire_bytes.saturating_sub(u128::from(self.queue_bytes));
        let ps = in_fibre.saturating_mul(8_000_000_000_000) / u128::from(rate.as_bps());
        let all = Duration::from_ps(u64::try_from(ps).unwrap_or(u64::MAX));
        Some(all - self.late_by())
    }

    /// Memory that this link needs to avoid losses for lack of it, in bytes; the inverse of
    /// [`LinkConfig::lossless_delay_max`]. `None` without a rate.
    pub fn memory_bytes_needed(&self) -> Option<u64> {
        let rate = self.rate_max()?;
        let ps = u128::from((self.delay_max() + self.late_by()).as_ps());
        let in_fibre = (ps * u128::from(rate.as_bps())).div_ceil(8_000_000_000_000);
        let copies = u128::from(self.copies_max());
        let wire = (in_fibre + u128::from(self.queue_bytes)).saturating_mul(copies);
        let held = (wire.saturating_mul(u128::from(MEMORY_PER_SHORT_FRAME)))
            .div_ceil(u128::from(wire_bytes(0)));
        let both = held.saturating_add(u128::from(MEMORY_PER_FRAME_MAX)).saturating_mul(2);
        Some(u64::try_from(both).unwrap_or(u64::MAX))
    }

    /// The longest delay over time, excluding rules and lateness.
    pub fn delay_max(&self) -> Duration {
        self.changed_delays().fold(self.delay, Duration::max)
    }

    fn changed_delays(&self) -> impl Iterator<Item = Duration> {
        self.changes.iter().filter_map(|change| match change.to {
            Setting::Delay(delay) => Some(delay),
            _ => None,
        })
    }

    /// The shortest delay over time.
    pub fn delay_min(&self) -> Duration {
        self.changed_delays().fold(self.delay, Duration::min)
    }

    /// Adds `more` to the delay, at all times.
    pub fn add_delay(&mut self, more: Duration) {
        self.delay = self.delay + more;
        for change in &mut self.changes {
            if let Setting::Delay(delay) = &mut change.to {
                *delay = *delay + more;
            }
        }
    }

    /// The highest rate over time.
    fn rate_max(&self) -> Option<BitRate> {
        let changed = self.changes.iter().filter_map(|change| match change.to {
            Setting::Rate(rate) => Some(rate),
            _ => None,
        });
        Some(changed.fold(self.rate?, BitRate::max))
    }

    /// Largest delay of a frame beyond the link's delay.
    fn late_by(&self) -> Duration {
        let late =
            if self.impairments.late > 0.0 { self.impairments.late_by } else { Duration::ZERO };
        self.rules.iter().fold(late, |sum, rule| sum + rule.delay_max())
    }

    /// Most copies of a frame in flight at once.
    fn copies_max(&self) -> u64 {
        let duplicates = self.impairments.duplication > 0.0
            || self.rules.iter().any(|rule| rule.action == Action::Duplicate);
        if duplicates { 2 } else { 1 }
    }

    /// Checks everything except memory.
    pub(crate) fn check_wire(&self) -> Result<(), LinkError> {
        if !(0.0..=1.0).contains(&self.loss) {
            return Err(LinkError::Loss { loss: self.loss });
        }
        if let Some(bursts) = &self.bursts {
            bursts.check(self.loss)?;
        }
        if let Some(cut) = &self.cut {
            cut.check()?;
        }
        let Impairments { late, duplication, corruption, .. } = self.impairments;
        for (what, probability) in
            [("late", late), ("duplication", duplication), ("corruption", corruption)]
        {
            if !(0.0..=1.0).contains(&probability) {
                return Err(LinkError::Impairment { what, probability });
            }
        }
        for (what, count, most) in
            [("rules", self.rules.len(), RULES_MAX), ("changes", self.changes.len(), CHANGES_MAX)]
        {
            if count > most {
                return Err(LinkError::TooMany { what, count, most });
            }
        }
        for (number, rule) in (1..).zip(&self.rules) {
            if let Some(why) = rule.fault() {
                return Err(LinkError::Rule { number, why });
            }
        }
        self.changes.iter().try_for_each(|change| change.check(self))?;
        match self.ecn.filter(|ecn| !ecn.is_valid()) {
            Some(ecn) => Err(LinkError::Ecn { ecn }),
            None => Ok(()),
        }
    }

    pub(crate) fn check(&self) -> Result<(), LinkError> {
        self.check_wire()?;
        match (self.lossless_delay_max(self.memory_bytes_max), self.memory_bytes_needed()) {
            (Some(delay_max), Some(memory_bytes_needed)) if self.delay_max() > delay_max => {
                Err(LinkError::Memory {
                    delay: self.delay_max(),
                    delay_max,
                    memory_bytes_max: self.memory_bytes_max,
                    memory_bytes_needed,
                })
            }
            _ => Ok(()),
        }
    }
}

/// Why a [`LinkConfig`] is invalid.
#[derive(Clone, Copy, Debug, PartialEq, Error)]
#[non_exhaustive]
pub enum LinkError {
    /// Not a probability.
    #[error("a loss of {loss} is no probability: give a number from 0 to 1")]
    Loss {
        /// The value given.
        loss: f64,
    },
    /// Not a valid burst length.
    #[error("a burst of {frames} frames makes no sense: give a mean length from 1 to 1000000000")]
    BurstFrames {
        /// The value given.
        frames: f64,
    },
    /// Not a valid probability within bursts.
    #[error("a loss of {loss} within bursts makes no sense: give a number from 0.001 to 1")]
    BurstLoss {
        /// The value given.
        loss: f64,
    },
    /// More than the loss of bursts that follow each other without a pause.
    #[error(
        "bursts of {} frames that lose {} of them cannot make a loss of {mean}: {:.3} is the most. \
         Give a lower loss, or longer bursts",
        bursts.frames, bursts.loss, bursts.mean_max()
    )]
    BurstMean {
        /// The bursts given.
        bursts: Bursts,
        /// The loss given.
        mean: f64,
    },
    /// A cut without length, or one that is never repaired.
    #[error(
        "a cut of {} every {} makes no sense: give a time above 0, and longer ones from cut to cut",
        cut.lasts, cut.every.unwrap_or_default()
    )]
    Cut {
        /// The values given.
        cut: Cut,
    },
    /// Not a probability.
    #[error("{what} = {probability} is no probability: give a number from 0 to 1")]
    Impairment {
        /// Name of the impairment.
        what: &'static str,
        /// The value given.
        probability: f64,
    },
    /// Thresholds in the wrong order, or not a probability.
    #[error(
        "marking from {} to {} bytes with a probability of {} makes no sense: give Kmin, a Kmax \
         that is not below it, and a number from 0 to 1",
        ecn.kmin_bytes,
        ecn.kmax_bytes,
        ecn.pmax
    )]
    Ecn {
        /// The values given.
        ecn: RedConfig,
    },
    /// An invalid rule.
    #[error("rule {number} makes no sense: {why}")]
    Rule {
        /// Its position, counted from 1.
        number: usize,
        /// The problem.
        why: &'static str,
    },
    /// An invalid change.
    #[error("the change '{change}' makes no sense: {why}")]
    Change {
        /// The change given.
        change: Change,
        /// The problem.
        why: &'static str,
    },
    /// More than a link accepts.
    #[error("{count} {what} are too many: give {most} at most")]
    TooMany {
        /// What there are too many of.
        what: &'static str,
        /// The number given.
        count: usize,
        /// The limit.
        most: usize,
    },
    /// The frames in flight could exceed the memory.
    #[error(
        "a one-way delay of {delay} is too long for {} MiB of memory, which is lossless up to \
         {} at this rate and queue: give at least {} MiB, or a shorter distance, a lower rate or a \
         smaller queue",
        memory_bytes_max >> 20,
        delay_max.rounded_down(),
        memory_bytes_needed.div_ceil(1 << 20)
    )]
    Memory {
        /// The delay given.
        delay: Duration,
        /// The longest delay for which the memory suffices.
        delay_max: Duration,
        /// The memory given, in bytes.
        memory_bytes_max: u64,
        /// The memory that would suffice, in bytes.
        memory_bytes_needed: u64,
    },
}
