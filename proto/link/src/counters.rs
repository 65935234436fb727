//! Counters of one direction of a link.

/// Why a link dropped a frame.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(usize)]
pub enum DropReason {
    /// The queue in front of the wire had no room for it.
    QueueFull,
    /// Lost at random on the way, as configured.
    Loss,
    /// It came while the fibre was cut.
    Cut,
    /// Lost by a rule.
    Rule,
    /// The memory bound was reached, which a link with a rate is refused for when it is made.
    Memory,
    /// Longer than any frame that a port delivers (16 KiB of payload).
    TooLong,
}

impl DropReason {
    /// Every reason, in counter order.
    pub const ALL: [DropReason; 6] = [
        DropReason::QueueFull,
        DropReason::Loss,
        DropReason::Cut,
        DropReason::Rule,
        DropReason::Memory,
        DropReason::TooLong,
    ];

    /// The name used in metrics.
    pub const fn name(self) -> &'static str {
        match self {
            DropReason::QueueFull => "queue_full",
            DropReason::Loss => "loss",
            DropReason::Cut => "cut",
            DropReason::Rule => "rule",
            DropReason::Memory => "memory",
            DropReason::TooLong => "too_long",
        }
    }
}

/// Dropped frames, counted by reason.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct DropCounters([u64; DropReason::ALL.len()]);

impl DropCounters {
    /// Counts a frame that was dropped.
    pub fn count(&mut self, reason: DropReason) {
        self.0[reason as usize] += 1;
    }

    /// Frames dropped for `reason`.
    pub const fn get(&self, reason: DropReason) -> u64 {
        self.0[reason as usize]
    }

    /// Frames dropped for any reason.
    pub fn total(&self) -> u64 {
        self.0.iter().sum()
    }

    /// Every reason with its count.
    pub fn iter(&self) -> impl Iterator<Item = (DropReason, u64)> + '_ {
        DropReason::ALL.into_iter().map(|reason| (reason, self.get(reason)))
    }
}

/// What one direction of a link did since it was made. Every frame that entered, and every one that
/// was duplicated, was delivered, was dropped, or is in flight.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct LinkCounters {
    /// Frames that entered.
    pub entered_frames: u64,
    /// Bytes that entered: frame bytes, without FCS.
    pub entered_bytes: u64,
    /// Frames that left at the other side.
    pub delivered_frames: u64,
    /// Bytes that left at the other side.
    pub delivered_bytes: u64,
    /// Of the frames delivered, those that the queue or a rule marked.
    pub ecn_marked_frames: u64,
    /// Frames that were late, so that others could overtake them.
    pub late_frames: u64,
    /// Frames that arrive twice: as many more are delivered than entered.
    pub duplicated_frames: u64,
    /// Frames of which a bit was turned over.
    pub corrupted_frames: u64,
    /// Frames that did not get through.
    pub drops: DropCounters,
    /// Frames queued, on the wire or waiting for room at the far side at this moment.
    pub in_flight_frames: u64,
    /// The longest the queue was, in bytes on the wire (a frame and 24 bytes of overhead), the rest
    /// of the frame being sent included.
    pub queue_bytes_max: u64,
    /// Memory that frames in flight hold at this moment, in bytes.
    pub memory_bytes: u64,
    /// The most memory that frames in flight held, in bytes.
    pub memory_bytes_max: u64,
}
