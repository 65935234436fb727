//! Priority-based flow control at one port: pauses sent, pauses obeyed.

use longhaul_node::Deadline;
use longhaul_units::{BitRate, Duration, Instant};
use longhaul_wire::{PRIORITIES, Pause};

/// Priority-based flow control (IEEE 802.1Qbb) of one priority: nothing of it is dropped while
/// headroom is enough.
///
/// Its frames are counted by the port that they came in by, from their arrival to their departure.
/// When those of one port exceed `xoff_bytes`, what is at its other end is asked to pause, again
/// and again before the pause is over; at `xon_bytes` it may go on. What arrives in between takes
/// headroom. All other priorities share a queue with tail drop at each output, which takes turns
/// with the lossless one, a frame each; CNPs (DSCP 48) are among them and so wait for at most a
/// frame of the other queue. ACKs travel with the data of their QP, and in its priority.
#[derive(Clone, Debug, PartialEq)]
pub struct PfcConfig {
    /// The lossless priority, 0 to 7: see [`longhaul_wire::priority_of`]. RoCE usually has 3 (DSCP
    /// 26).
    pub priority: u8,
    /// Bytes on the wire of one input beyond which it is paused.
    pub xoff_bytes: u64,
    /// Bytes on the wire of one input at which it may go on: at most `xoff_bytes`. Where more than
    /// `xoff_bytes - xon_bytes` leave while the word goes round, or `xon_bytes` do, an output
    /// idles.
    pub xon_bytes: u64,
    /// What differs by port: one for each.
    pub ports: Vec<PfcPort>,
}

/// A port with flow control.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PfcPort {
    /// Rate of the link: of the output, and what pauses measure time by.
    pub rate: BitRate,
    /// Bytes on the wire that may come in beyond `xoff_bytes`: what a round trip of the link
    /// carries, and a few of the longest frames, or frames of the lossless priority are dropped.
    pub headroom_bytes: u64,
}

impl PfcConfig {
    /// The priority that RoCE data usually has: DSCP 24 to 31.
    pub const ROCE_PRIORITY: u8 = 3;

    /// Bytes on the wire that may be in the switch of its lossless priority.
    pub fn buffer_bytes(&self) -> u64 {
        let of = |port: &PfcPort| self.xoff_bytes.saturating_add(port.headroom_bytes);
        self.ports.iter().fold(0, |sum, port| sum.saturating_add(of(port)))
    }

    /// What is wrong with it, on a switch of so many ports.
    pub(crate) fn fault(&self, ports: usize) -> Option<PfcFault> {
        if usize::from(self.priority) >= PRIORITIES {
            return Some(PfcFault::Priority { priority: self.priority });
        }
        if self.xon_bytes > self.xoff_bytes {
            return Some(PfcFault::Thresholds {
                xoff_bytes: self.xoff_bytes,
                xon_bytes: self.xon_bytes,
            });
        }
        (self.ports.len() != ports).then_some(PfcFault::Ports { given: self.ports.len(), ports })
    }
}

/// What is wrong with a [`PfcConfig`].
#[derive(Clone, Copy, Debug, PartialEq, thiserror::Error)]
pub enum PfcFault {
    /// There is no such priority.
    #[error("priority {priority}: there are 0 to 7")]
    Priority {
        /// The one given.
        priority: u8,
    },
    /// An input would go on before it was paused.
    #[error(
        "it goes on at {xon_bytes} bytes, above the {xoff_bytes} at which it pauses: give xon at \
         most xoff"
    )]
    Thresholds {
        /// The threshold given.
        xoff_bytes: u64,
        /// The threshold given.
        xon_bytes: u64,
    },
    /// Not one for each port.
    #[error("{given} ports are described, of {ports}")]
    Ports {
        /// How many are described.
        given: usize,
        /// How many there are.
        ports: usize,
    },
}

/// What flow control did at one port.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct PauseCounters {
    /// Frames sent that ask for a pause, repeated ones included.
    pub pauses_sent: u64,
    /// Frames sent that end a pause.
    pub resumes_sent: u64,
    /// Frames received that ask for a pause of the lossless priority.
    pub pauses_received: u64,
    /// Frames received that end one.
    pub resumes_received: u64,
    /// How long the output was not to send its lossless priority.
    pub paused: Duration,
    /// The most that was in the switch of the lossless priority and had come by this port, in bytes
    /// on the wire.
    pub held_bytes_max: u64,
}

/// How long a pause is asked for: as long as can be, because a frame that ends it follows.
const QUANTA: u16 = Pause::QUANTA_MAX;

/// A receiver that asks the other end of its link to pause one priority while its buffer is full: a
/// switch's input, or a NIC's.
#[derive(Clone, Debug)]
pub struct Pauser {
    priority: u8,
    rate: BitRate,
    xoff_bytes: u64,
    xon_bytes: u64,
    bytes_max: u64,
    held_bytes: u64,
    is_full: bool,
    /// The other end was asked to pause, and not yet to go on.
    is_told: bool,
    refresh_at: Instant,
    counters: PauseCounters,
}

impl Pauser {
    /// For a link at `rate`: pauses `priority` above `xoff_bytes` until `xon_bytes`, and has room
    /// for `bytes_max`.
    pub fn new(priority: u8, rate: BitRate, [xon_bytes, xoff_bytes, bytes_max]: [u64; 3]) -> Self {
        Pauser {
            priority,
            rate,
            xoff_bytes,
            xon_bytes,
            bytes_max,
            held_bytes: 0,
            is_full: false,
            is_told: false,
            refresh_at: Instant::ZERO,
            counters: PauseCounters::default(),
        }
    }

    /// A frame of `bytes` comes. False: there is no room for it.
    #[inline]
    pub fn take(&mut self, bytes: u64) -> bool {
        let held_bytes = self.held_bytes.saturating_add(bytes);
        if held_bytes > self.bytes_max {
            return false;
        }
        self.held_bytes = held_bytes;
        self.counters.held_bytes_max = self.counters.held_bytes_max.max(held_bytes);
        self.is_full |= held_bytes > self.xoff_bytes;
        true
    }

    /// A frame of `bytes` that was taken has gone.
    #[inline]
    pub fn release(&mut self, bytes: u64) {
        self.held_bytes = self.held_bytes.saturating_sub(bytes);
        self.is_full &= self.held_bytes > self.xon_bytes;
    }

    /// What the other end is to be told now, if anything; whoever asks sends it.
    #[inline]
    pub fn poll_pause(&mut self, now: Instant) -> Option<Pause> {
        let is_due = self.is_full != self.is_told || (self.is_full && self.refresh_at <= now);
        if !is_due {
            return None;
        }
        self.is_told = self.is_full;
        // The frame that asks again may wait behind others.
        self.refresh_at = now + Pause::time(QUANTA, self.rate).divided_by(2);
        if !self.is_full {
            self.counters.resumes_sent += 1;
            return Some(Pause::of(self.priority, 0));
        }
        self.counters.pauses_sent += 1;
        Some(Pause::of(self.priority, QUANTA))
    }

    /// When [`Pauser::poll_pause`] is to be asked, if nothing comes or goes.
    #[inline]
    pub fn poll_timeout(&self) -> Option<Deadline> {
        let is_waiting = self.is_full != self.is_told;
        let at = if is_waiting { Instant::ZERO } else { self.refresh_at };
        (is_waiting || self.is_told).then_some(Deadline { at, reason: "pause frame" })
    }

    /// What it sent and held; of what was received it knows nothing.
    pub fn counters(&self) -> PauseCounters {
        self.counters
    }
}
