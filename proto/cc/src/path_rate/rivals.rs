//! Who keeps the bottleneck's queue: senders that pay for it, or others that fill any queue.

use longhaul_units::Instant;

/// Queue, in round trips, that senders of this kind never keep; round trips after which it is
/// attributed to others unless it shrinks, and the factor that counts as shrinking.
const FOREIGN_QUEUE: f64 = 0.16;
const FOREIGN_RTTS: f64 = 10.0;
const SHRINKS: f64 = 0.9;
/// Queue, in round trips, for which the sender does not compete.
const ABSURD_QUEUE: f64 = 8.0;
/// Loss above which the others may be senders of this kind.
const LOSS_PERSISTS: f64 = 0.01;
/// Consecutive levels in the absence of others after which the throughput is the sender's own.
const UNCROWDED_LEVELS: u32 = 32;
/// Part of its earlier throughput with which a sender is alone again, and below which the earlier
/// throughput is doubtful.
const ALONE: f64 = 0.9;
const DOUBTFUL: f64 = 0.25;
/// Part of a doubtful throughput forgotten per round trip.
const DOUBT: f64 = 0.02;
/// Weight of the newest level in the mean throughput.
const THROUGHPUT_WEIGHT: f64 = 0.25;

/// Observations over a level.
pub(super) struct Level {
    /// In round trips.
    pub(super) queue: f64,
    pub(super) rtts: f64,
    /// Frames.
    pub(super) lost: f64,
    pub(super) arrived: f64,
}

/// Who keeps the queue.
#[derive(Clone, Copy, Debug)]
pub(super) enum Rivals {
    /// Senders of this kind, if any.
    Alike(Queued),
    /// Others too. `until`: end of the mode unless the queue persists. `lost`, `arrived`: frames
    /// in this window.
    Foreign { queued: Queued, until: Instant, lost: f64, arrived: f64 },
    /// Others, unless the queue shrinks while this sender pays for it. `held`: the in-flight limit
    /// to return to if it does not.
    Tested { queued: Queued, held: f64 },
}

/// Consequence of a level.
#[derive(Clone, Copy, Debug)]
pub(super) enum Turn {
    None,
    OthersCame,
    /// A test ends, and the queue did not shrink.
    OthersStay {
        held: f64,
    },
    /// The queue is too long to compete.
    GivenUp,
}

impl Rivals {
    /// State after another level that ended at `now`. `until`: end of the mode if a queue
    /// persists. `is_regained`: the sender has its earlier throughput.
    pub(super) fn note(
        self,
        now: Instant,
        level: &Level,
        until: Instant,
        is_regained: bool,
    ) -> (Self, Turn) {
        let foreign = |queued| Rivals::Foreign { queued, until, lost: 0.0, arrived: 0.0 };
        let gone = Rivals::Alike(Queued::default());
        match self {
            Rivals::Alike(queued) => {
                let queued = queued.note(level);
                if queued.persists() {
                    (foreign(queued), Turn::OthersCame)
                } else {
                    (Rivals::Alike(queued), Turn::None)
                }
            }
            Rivals::Foreign { .. } if level.queue > ABSURD_QUEUE => (gone, Turn::GivenUp),
            Rivals::Foreign { queued, until: ends, lost, arrived } => {
                let queued = queued.note(level);
                let until = if queued.persists() { until } else { ends };
                if now > until || level.queue < FOREIGN_QUEUE && is_regained {
                    return (gone, Turn::None);
                }
                let (lost, arrived) = (lost + level.lost, arrived + level.arrived);
                (Rivals::Foreign { queued, until, lost, arrived }, Turn::None)
            }
            Rivals::Tested { queued, held } => {
                let queued = queued.note(level);
                if queued.persists() {
                    (foreign(queued), Turn::OthersStay { held })
                } else if level.queue < FOREIGN_QUEUE {
                    (gone, Turn::None)
                } else {
                    (Rivals::Tested { queued, held }, Turn::None)
                }
            }
        }
    }

    /// State at the end of a window: a test begins if frames were lost beside others.
    pub(super) fn tested(self, held: f64) -> Self {
        match self {
            Rivals::Foreign { lost, arrived, .. } if lost > LOSS_PERSISTS * (lost + arrived) => {
                Rivals::Tested { queued: Queued::default(), held }
            }
            Rivals::Foreign { queued, until, .. } => {
                Rivals::Foreign { queued, until, lost: 0.0, arrived: 0.0 }
            }
            other => other,
        }
    }

    /// `true` if neither the state nor the queue hints at others.
    pub(super) fn are_absent(&self, queue: f64) -> bool {
        matches!(self, Rivals::Alike(_)) && queue < FOREIGN_QUEUE
    }
}

/// A queue that senders of this kind do not keep.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Queued {
    /// Consecutive round trips with it in which it did not shrink.
    rtts: f64,
    /// Its length when it last shrank, in round trips.
    length: f64,
}

impl Queued {
    fn note(self, level: &Level) -> Self {
        let Level { queue, rtts, .. } = *level;
        if queue <= FOREIGN_QUEUE {
            Queued::default()
        } else if self.rtts > 0.0 && queue < SHRINKS * self.length {
            Queued { rtts: 0.0, length: queue }
        } else {
            let length = if self.length > 0.0 { self.length } else { queue };
            Queued { rtts: self.rtts + rtts, length }
        }
    }

    fn persists(&self) -> bool {
        self.rtts > FOREIGN_RTTS
    }
}

/// Mean throughput in bytes per second, and its maxima of the last window with a measurement and
/// of this one, in the absence of others.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Throughput {
    mean: f64,
    before: f64,
    this: f64,
    /// Consecutive levels in the absence of others.
    levels: u32,
}

impl Throughput {
    pub(super) fn note(&mut self, rate: f64, is_uncrowded: bool) {
        let weight = if self.mean > 0.0 { THROUGHPUT_WEIGHT } else { 1.0 };
        self.mean += weight * (rate - self.mean);
        self.levels = if is_uncrowded { self.levels.saturating_add(1) } else { 0 };
        if self.levels > UNCROWDED_LEVELS {
            self.this = self.this.max(self.mean);
        }
    }

    /// Starts another window.
    pub(super) fn turn(&mut self) {
        if self.this > 0.0 {
            (self.before, self.this) = (self.this, 0.0);
        }
    }

    /// Forgets the earlier throughput gradually while much less is left of it: the path may have
    /// become slower.
    pub(super) fn doubt(&mut self, rtts: f64) {
        if self.part().is_some_and(|part| part < DOUBTFUL) {
            let less = self.before.max(self.this) * (1.0 - DOUBT).powf(rtts);
            (self.before, self.this) = (less, 0.0);
        }
    }

    /// Throughput before others came. `None`: unknown.
    pub(super) fn earlier(&self) -> Option<f64> {
        Some(self.before.max(self.this)).filter(|earlier| *earlier > 0.0)
    }

    /// The throughput as a part of the earlier one, at most 1.
    pub(super) fn part(&self) -> Option<f64> {
        self.earlier().map(|earlier| (self.mean / earlier).min(1.0))
    }

    pub(super) fn is_regained(&self) -> bool {
        self.part().is_some_and(|part| part > ALONE)
    }
}
