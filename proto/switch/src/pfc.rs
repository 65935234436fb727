//! Priority-based flow control at one port: sending and obeying pause frames.

use longhaul_node::Deadline;
use longhaul_units::{BitRate, Duration, Instant};
use longhaul_wire::{PRIORITIES, Pause};

/// Priority-based flow control (IEEE 802.1Qbb) of one priority, which drops nothing while headroom
/// suffices.
///
/// Frames of the lossless priority count towards the port on which they arrived, until they leave.
/// If those of one port exceed `xoff_bytes`, its link's other end is asked to pause, repeatedly
/// before each pause ends; at `xon_bytes` it may resume. Frames that arrive in between use
/// headroom. With a [`SharedBuffer`] the threshold follows the free part of the buffer. All other
/// priorities share a queue with tail drop at each output, which alternates with the lossless queue
/// frame by frame, or by [`PfcConfig::ets_share`]. CNPs (DSCP 48) are in the shared queue, where
/// each frame waits for at most one frame of the lossless queue. ACKs travel with the data of their
/// QP, in its priority.
#[derive(Clone, Debug, PartialEq)]
pub struct PfcConfig {
    /// The lossless priority, 0 to 7: see [`longhaul_wire::priority_of`]. RoCE usually uses 3 (DSCP
    /// 26).
    pub priority: u8,
    /// Bytes on the wire of one input above which it is paused.
    pub xoff_bytes: u64,
    /// Bytes on the wire of one input at which it resumes: at most `xoff_bytes`. An output idles if
    /// more than `xoff_bytes - xon_bytes`, or `xon_bytes`, leave during the round trip of a pause
    /// frame.
    pub xon_bytes: u64,
    /// A buffer that inputs share. `None`: each has `xoff_bytes` of its own.
    pub shared: Option<SharedBuffer>,
    /// Share of each output's rate for the lossless priority while both queues have frames, in
    /// percent, 1 to 99 (ETS, IEEE 802.1Qaz). `None`: the queues alternate frame by frame.
    pub ets_share: Option<u8>,
    /// Properties of each port.
    pub ports: Vec<PfcPort>,
}

/// A buffer for the lossless priority that inputs share by dynamic thresholds, beside their
/// headroom.
///
/// An input is paused if its frames exceed `alpha` times the free part of the buffer, and resumes
/// when its headroom is empty and its frames are `hysteresis_bytes` below that threshold, or none
/// are left. Source: Choudhury and Hahne, "Dynamic Queue Length Thresholds for Shared-Memory Packet
/// Switches", IEEE/ACM Transactions on Networking 6(2), 1998.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SharedBuffer {
    /// Its size, in bytes on the wire.
    pub bytes: u64,
    /// Above 0.
    pub alpha: f64,
    /// Distance of the resume threshold from that of the pause.
    pub hysteresis_bytes: u64,
}

/// A port with flow control.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PfcPort {
    /// Rate of the output, and unit of pause times.
    pub rate: BitRate,
    /// Bytes on the wire that may arrive beyond `xoff_bytes`. If it is less than what the link
    /// carries in a round trip, plus a few of the longest frames, frames of the lossless priority
    /// are dropped.
    pub headroom_bytes: u64,
}

impl PfcConfig {
    /// The usual priority of RoCE data: DSCP 24 to 31.
    pub const ROCE_PRIORITY: u8 = 3;

    /// Largest number of bytes on the wire of the lossless priority in the switch.
    pub fn buffer_bytes(&self) -> u64 {
        let (own, shared) = match &self.shared {
            None => (self.xoff_bytes, 0),
            Some(shared) => (0, shared.bytes),
        };
        let of = |port: &PfcPort| own.saturating_add(port.headroom_bytes);
        self.ports.iter().fold(shared, |sum, port| sum.saturating_add(of(port)))
    }

    /// The first fault of this configuration on a switch with `ports` ports.
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
        if let Some(SharedBuffer { alpha, .. }) = self.shared
            && !(alpha > 0.0 && alpha.is_finite())
        {
            return Some(PfcFault::Alpha);
        }
        if let Some(share) = self.ets_share.filter(|share| !(1..=99).contains(share)) {
            return Some(PfcFault::Share { share });
        }
        (self.ports.len() != ports).then_some(PfcFault::Ports { given: self.ports.len(), ports })
    }
}

/// Why a [`PfcConfig`] is invalid.
#[derive(Clone, Copy, Debug, PartialEq, thiserror::Error)]
pub enum PfcFault {
    /// The priority does not exist.
    #[error("priority {priority}: there are 0 to 7")]
    Priority {
        /// The priority given.
        priority: u8,
    },
    /// An input would resume before it was paused.
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
    /// The factor of a shared buffer is not a number above 0.
    #[error("alpha of a shared buffer must be above 0")]
    Alpha,
    /// One of the two queues would have no share.
    #[error("a share of {share} %: the lossless priority can have 1 to 99")]
    Share {
        /// The share given.
        share: u8,
    },
    /// The number of entries differs from the number of ports.
    #[error("{given} ports are described, of {ports}")]
    Ports {
        /// Number of entries.
        given: usize,
        /// Number of ports.
        ports: usize,
    },
}

/// Activity of flow control at one port.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct PauseCounters {
    /// Frames sent that request a pause, repetitions included.
    pub pauses_sent: u64,
    /// Frames sent that end a pause.
    pub resumes_sent: u64,
    /// Frames received that request a pause of the lossless priority.
    pub pauses_received: u64,
    /// Frames received that end a pause.
    pub resumes_received: u64,
    /// How long the output's lossless priority was paused.
    pub paused: Duration,
    /// Largest number of bytes on the wire of the lossless priority in the switch that arrived on
    /// this port.
    pub held_bytes_max: u64,
}

/// The state of a shared buffer.
#[derive(Clone, Debug)]
pub(crate) struct Pool {
    shared: SharedBuffer,
    used_bytes: u64,
}

impl Pool {
    pub fn new(shared: SharedBuffer) -> Self {
        Pool { shared, used_bytes: 0 }
    }

    /// Bytes of one input above which it is paused.
    fn threshold(&self) -> u64 {
        (self.shared.alpha * self.free_bytes() as f64) as u64
    }

    fn free_bytes(&self) -> u64 {
        self.shared.bytes.saturating_sub(self.used_bytes)
    }
}

/// Requested length of a pause: the maximum, because a further frame ends it.
const QUANTA: u16 = Pause::QUANTA_MAX;

/// A receiver that asks the other end of its link to pause one priority while its buffer is full:
/// an input of a switch or of a NIC.
#[derive(Clone, Debug)]
pub struct Pauser {
    priority: u8,
    rate: BitRate,
    xoff_bytes: u64,
    xon_bytes: u64,
    bytes_max: u64,
    held_bytes: u64,
    /// Those in headroom, with a shared buffer.
    headroom_held_bytes: u64,
    is_full: bool,
    /// The other end was asked to pause, and not yet to resume.
    is_told: bool,
    refresh_at: Instant,
    counters: PauseCounters,
}

impl Pauser {
    /// For a link at `rate`: pauses `priority` above `xoff_bytes`, resumes at `xon_bytes`, and has
    /// room for `bytes_max`.
    pub fn new(priority: u8, rate: BitRate, [xon_bytes, xoff_bytes, bytes_max]: [u64; 3]) -> Self {
        Pauser {
            priority,
            rate,
            xoff_bytes,
            xon_bytes,
            bytes_max,
            held_bytes: 0,
            headroom_held_bytes: 0,
            is_full: false,
            is_told: false,
            refresh_at: Instant::ZERO,
            counters: PauseCounters::default(),
        }
    }

    /// Takes in a frame of `bytes`. Returns `false` if there is no room for it.
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

    /// Releases the room of a frame of `bytes`.
    #[inline]
    pub fn release(&mut self, bytes: u64) {
        self.held_bytes = self.held_bytes.saturating_sub(bytes);
        self.is_full &= self.held_bytes > self.xon_bytes;
    }

    /// Takes in a frame of `bytes`, into the shared buffer or this input's headroom. Returns
    /// `false` if there is no room for it.
    pub(crate) fn take_shared(&mut self, bytes: u64, pool: &mut Pool) -> bool {
        let held_bytes = self.held_bytes.saturating_add(bytes);
        self.is_full |= held_bytes > pool.threshold() || bytes > pool.free_bytes();
        if self.is_full {
            let in_headroom = self.headroom_held_bytes.saturating_add(bytes);
            if in_headroom > self.bytes_max - self.xoff_bytes {
                return false;
            }
            self.headroom_held_bytes = in_headroom;
        } else {
            pool.used_bytes += bytes;
        }
        self.held_bytes = held_bytes;
        self.counters.held_bytes_max = self.counters.held_bytes_max.max(held_bytes);
        true
    }

    /// Releases the room of a frame of `bytes`: headroom first.
    pub(crate) fn release_shared(&mut self, bytes: u64, pool: &mut Pool) {
        let of_headroom = bytes.min(self.headroom_held_bytes);
        self.headroom_held_bytes -= of_headroom;
        pool.used_bytes = pool.used_bytes.saturating_sub(bytes - of_headroom);
        self.held_bytes = self.held_bytes.saturating_sub(bytes);
        let resume_at = pool.threshold().saturating_sub(pool.shared.hysteresis_bytes);
        self.is_full &= self.headroom_held_bytes > 0 || self.held_bytes > resume_at;
    }

    /// Returns the pause frame that is due, if any; the caller must send it.
    #[inline]
    pub fn poll_pause(&mut self, now: Instant) -> Option<Pause> {
        let is_due = self.is_full != self.is_told || (self.is_full && self.refresh_at <= now);
        if !is_due {
            return None;
        }
        self.is_told = self.is_full;
        // The repeated request may wait behind other frames.
        self.refresh_at = now + Pause::time(QUANTA, self.rate).divided_by(2);
        if !self.is_full {
            self.counters.resumes_sent += 1;
            return Some(Pause::of(self.priority, 0));
        }
        self.counters.pauses_sent += 1;
        Some(Pause::of(self.priority, QUANTA))
    }

    /// When [`Pauser::poll_pause`] must be called, if no frame arrives or leaves.
    #[inline]
    pub fn poll_timeout(&self) -> Option<Deadline> {
        let is_waiting = self.is_full != self.is_told;
        let at = if is_waiting { Instant::ZERO } else { self.refresh_at };
        (is_waiting || self.is_told).then_some(Deadline { at, reason: "pause frame" })
    }

    /// Counters of sent pause frames and held bytes; those of received ones stay zero.
    pub fn counters(&self) -> PauseCounters {
        self.counters
    }
}
