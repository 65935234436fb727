//! One direction between a side of one station and a side of another.

use crate::packed::{News, Packer, Packet, Ring};
use crate::record::Recorder;
use longhaul_cc::wire_bytes;
use longhaul_link::{Arrival, LinkConfig, LinkCounters, LinkError, Wire};
use longhaul_node::{Frame, Side};
use longhaul_units::{Duration, Instant};

/// Bytes that a station may have waiting in front of a wire with a rate: a station is asked for
/// frames as the wire can send them, a few at a time, as a NIC's port is.
pub(crate) const WAITING_BYTES: u64 = 16 * 1024;
/// A long frame, for how many find room.
const LONG_FRAME_LEN: usize = 4096 + 128;
/// Frames that a station may send at one moment to a wire without a rate.
const BURST: usize = 256;

/// Where an outlet's frames go.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Destination {
    /// An inlet of the same region.
    Here(usize),
    /// Another region, by this outbox.
    There(usize),
}

/// The sending end.
pub(crate) struct Outlet {
    wire: Wire,
    pub packer: Packer,
    pub to: Destination,
    /// Of this station.
    pub station: usize,
    /// As long as the wire has more than this to send, there is no room. `None`: no rate.
    waiting_max: Option<Duration>,
    /// Time of a long frame.
    frame_time: Duration,
    /// Packets that a frame may stand for.
    pub train_max: u32,
    /// Least time between two frames beyond what the wire takes.
    gap: Duration,
    next_at: Instant,
    /// Frames that may still be sent at this moment.
    granted: usize,
    /// The station may have more to send when there is room again.
    is_wanted: bool,
    pub recorders: Vec<Recorder>,
}

impl Outlet {
    /// Of the end of a cable that is side `entry` of its wire.
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

    /// The station is about to be asked for what it has to send.
    #[inline]
    pub fn begin(&mut self) {
        self.is_wanted = false;
    }

    /// Frames that may be sent now.
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

    /// Sends a frame; `arrives` takes what arrives of it, if anything does.
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

    /// When the station is to be asked again, which found no room or used it up.
    #[inline]
    pub fn wanted_at(&self, now: Instant) -> Option<Instant> {
        if !self.is_wanted {
            return None;
        }
        let backlog = self.wire.backlog(now);
        // Half of what may wait is sent by then: the wire is never idle, and the station is not
        // called for each frame unless each takes its time.
        let share = if self.gap > Duration::ZERO { 1 } else { 2 };
        let free_at =
            now + (backlog - self.waiting_max.map_or(Duration::ZERO, |max| max.divided_by(share)));
        Some(free_at.max(self.next_at))
    }

    /// What the wire did, but for what has arrived.
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

/// The receiving end.
pub(crate) struct Inlet {
    pub ring: Ring,
    /// To this station, at its side.
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

/// What goes to another region, until both have come to the same moment.
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
