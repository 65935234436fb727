//! One direction between a side of one station and a side of another.

use crate::packed::{News, Packer, Packet, Ring};
use crate::record::Recorder;
use longhaul_cc::wire_bytes;
use longhaul_link::{Arrival, LinkConfig, LinkCounters, LinkError, Wire};
use longhaul_node::{Frame, Side};
use longhaul_units::{Duration, Instant};

/// Bytes that a station may queue in front of a wire with a rate: frames are requested as the wire
/// can send them, a few at a time, as from a NIC's port.
pub(crate) const WAITING_BYTES: u64 = 16 * 1024;
/// Frame length for computing how many frames find room.
const LONG_FRAME_LEN: usize = 4096 + 128;
/// Frames that a station may send at one moment to a wire without a rate.
const BURST: usize = 256;

/// Destination of an outlet's frames.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Destination {
    /// An inlet of this region.
    Here(usize),
    /// Another region, through this outbox.
    There(usize),
}

/// The sending end of a cable's direction.
pub(crate) struct Outlet {
    wire: Wire,
    pub packer: Packer,
    pub to: Destination,
    /// The sending station.
    pub station: usize,
    /// There is no room while the wire's queue exceeds this time. `None`: no rate.
    waiting_max: Option<Duration>,
    /// Transmission time of a long frame.
    frame_time: Duration,
    /// Maximum packets per train.
    pub train_max: u32,
    /// Minimum time between two frames, in addition to the transmission time.
    gap: Duration,
    next_at: Instant,
    /// Frames that may still be sent at this moment.
    granted: usize,
    /// The station may have more to send once there is room.
    is_wanted: bool,
    pub recorders: Vec<Recorder>,
}

impl Outlet {
    /// The outlet at the end of a cable that is side `entry` of its wire.
    pub fn new(
        config: &LinkConfig,
        entry: Side,
        seed: u64,
        gap: Duration,
        station: usize,
        to: Destination,
    ) -> Result<Self, LinkError> {
        let time = |bytes| config.rate.map(|rate| rate.time_for_bytes(bytes));
        Ok(Outlet {
            wire: Wire::new(config, entry, seed)?,
            packer: Packer::default(),
            to,
            station,
            waiting_max: time(WAITING_BYTES.min(config.queue_bytes)),
            frame_time: time(wire_bytes(LONG_FRAME_LEN)).unwrap_or_default(),
            train_max: 1,
            gap,
            next_at: Instant::ZERO,
            granted: 0,
            is_wanted: false,
            recorders: Vec::new(),
        })
    }

    /// Begins a round of transmissions by the station.
    #[inline]
    pub fn begin(&mut self) {
        self.is_wanted = false;
    }

    /// Returns the number of frames that may be sent now.
    #[inline]
    pub fn room(&mut self, now: Instant) -> usize {
        let most = if self.gap > Duration::ZERO { 1 } else { BURST };
        self.granted = if now < self.next_at {
            0
        } else {
            match self.waiting_max {
                None => most,
                Some(max) => {
                    let backlog = self.wire.backlog(now);
                    if backlog > max {
                        0
                    } else {
                        most.min(
                            ((max - backlog).as_ps() / self.frame_time.as_ps().max(1)) as usize + 1,
                        )
                    }
                }
            }
        };
        self.is_wanted = self.granted == 0;
        self.granted
    }

    /// Sends a frame; `arrives` receives the packets of it that arrive.
    #[inline]
    pub fn send(&mut self, now: Instant, frame: &Frame<'_>, mut arrives: impl FnMut(Packet, News)) {
        self.granted = self.granted.saturating_sub(1);
        self.is_wanted |= self.granted == 0;
        if self.gap > Duration::ZERO {
            self.next_at = self.next_at.max(now) + self.gap.times(frame.payload.count().into());
        }
        let (wire, packer) = (&mut self.wire, &mut self.packer);
        match frame.payload.count() {
            1 => {
                let arrival = wire.enter(now, frame);
                for recorder in &mut self.recorders {
                    recorder.record(now, arrival.ok().map(|arrival| arrival.due), frame);
                }
                if let Ok(arrival) = arrival {
                    let copies = 1 + usize::from(arrival.is_duplicated);
                    for _ in 0..copies {
                        let (packet, news) = pack(packer, frame, &arrival);
                        arrives(packet, news);
                    }
                }
            }
            count => wire.enter_train(now, frame, count.into(), |arrival, place, count| {
                let (packet, news) =
                    packer.pack_part(frame, arrival.due, place as u32, count as u16);
                arrives(packet, news);
            }),
        }
    }

    /// Returns when to ask the station again after it found no room or used it up.
    #[inline]
    pub fn wanted_at(&self, now: Instant) -> Option<Instant> {
        if !self.is_wanted {
            return None;
        }
        let backlog = self.wire.backlog(now);
        // By then half of the queue is sent: the wire is never idle, and the station is not called
        // for each frame unless frames have a gap.
        let share = if self.gap > Duration::ZERO { 1 } else { 2 };
        let free_at =
            now + (backlog - self.waiting_max.map_or(Duration::ZERO, |max| max.divided_by(share)));
        Some(free_at.max(self.next_at))
    }

    /// The wire's counters, without arrivals.
    pub fn counters(&self) -> LinkCounters {
        self.wire.counters()
    }
}

#[inline]
fn pack(packer: &mut Packer, frame: &Frame<'_>, arrival: &Arrival) -> (Packet, News) {
    let Arrival { due, is_marked, is_late, corrupted_bit, .. } = *arrival;
    let (mut packet, news) = match corrupted_bit {
        None => packer.pack(frame, due, is_marked),
        Some(bit) => packer.pack_corrupted(frame, due, bit),
    };
    packet.is_late = is_late;
    (packet, news)
}

/// The receiving end of a cable's direction.
pub(crate) struct Inlet {
    pub ring: Ring,
    /// The receiving station, and its side.
    pub station: usize,
    pub side: Side,
    /// Frames and bytes that have arrived.
    pub frames: u64,
    pub bytes: u64,
}

impl Inlet {
    pub fn new(station: usize, side: Side) -> Self {
        Inlet { ring: Ring::default(), station, side, frames: 0, bytes: 0 }
    }
}

/// Frames for another region, held until both reach the same time.
#[derive(Default)]
pub(crate) struct Outbox {
    pub packets: Vec<Packet>,
    pub news: Vec<News>,
}

impl Outbox {
    pub fn push(&mut self, packet: Packet, news: News) {
        self.packets.push(packet);
        if !matches!(news, News::Nothing) {
            self.news.push(news);
        }
    }
}
