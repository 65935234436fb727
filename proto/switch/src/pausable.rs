//! Ports with priority-based flow control: pausable outputs, and inputs that send pause frames.

use crate::config::SwitchConfig;
use crate::pfc::{PauseCounters, Pauser, PfcConfig, Pool};
use longhaul_cc::{Red, wire_bytes};
use longhaul_link::{DropReason as OutputDrop, LinkConfig, LinkCounters, LinkError, Wire};
use longhaul_node::{Deadline, Frame, FrameBuf, FramePool, Side, Transmit, transmit_marked};
use longhaul_units::{BitRate, Duration, Instant};
use longhaul_wire::{Ecn, MacAddr, Pause, priority_of};
use std::collections::VecDeque;

/// The queue of the lossless priority; the other queue serves all other priorities.
const LOSSLESS: usize = 0;
const OTHERS: usize = 1;

/// Source address of a port's pause frames, locally administered; nobody learns it.
fn address_of(port: Side) -> MacAddr {
    MacAddr([2, 0, 0, 0, 0, port as u8])
}

/// A frame in a queue.
struct Queued {
    entered_at: Instant,
    /// The port on which it arrived.
    input: Side,
    queue: usize,
    is_marked: bool,
    frame: FrameBuf,
}

impl Queued {
    fn wire_bytes(&self) -> u64 {
        wire_bytes(self.frame.len())
    }
}

/// What an output is sending.
enum Sending {
    Frame(Queued),
    Pause([u8; Pause::LEN]),
}

/// Pause of an output's lossless priority.
#[derive(Clone, Copy, Default)]
struct Paused {
    since: Instant,
    until: Instant,
    before: Duration,
}

impl Paused {
    /// Total pause time until `now`.
    fn total(&self, now: Instant) -> Duration {
        self.before + self.until.min(now).since(self.since)
    }

    /// Pauses for `time` from `now` on, or ends the pause if it is zero.
    fn ask(&mut self, now: Instant, time: Duration) {
        *self = Paused { before: self.total(now), since: now, until: now + time };
    }
}

/// Which queue is next while both have frames.
#[derive(Clone, Copy)]
enum Turn {
    /// They alternate frame by frame; this one is next.
    Alternate(usize),
    /// By ETS: shares in percent, and bytes of the lossless queue times the other's share less
    /// bytes of the other times the lossless queue's.
    Shares { shares: [i64; 2], ahead: i64 },
}

impl Turn {
    fn new(share: Option<u8>) -> Self {
        match share.map(i64::from) {
            None => Turn::Alternate(LOSSLESS),
            Some(share) => Turn::Shares { shares: [share, 100 - share], ahead: 0 },
        }
    }

    fn next(&self) -> usize {
        match self {
            Turn::Alternate(queue) => *queue,
            Turn::Shares { ahead, .. } => usize::from(*ahead > 0),
        }
    }

    /// Notes a frame of `bytes` that leaves `queue`; `is_contested`: the other had one too.
    fn take(&mut self, queue: usize, bytes: u64, is_contested: bool) {
        match self {
            Turn::Alternate(next) => *next = 1 - queue,
            // A queue saves up no share while it is empty or paused.
            Turn::Shares { ahead, .. } if !is_contested => *ahead = 0,
            Turn::Shares { shares, ahead } => {
                let sign = if queue == LOSSLESS { 1 } else { -1 };
                *ahead += sign * bytes as i64 * shares[1 - queue];
            }
        }
    }
}

/// Both directions of a port.
struct Port {
    /// Source address of its pause frames.
    address: MacAddr,
    rate: BitRate,
    priority: u8,
    queue_bytes_max: u64,
    input: Pauser,
    /// Computes the end of each transmission.
    wire: Wire,
    queues: [VecDeque<Queued>; 2],
    queue_bytes: [u64; 2],
    reds: Option<[Red; 2]>,
    turn: Turn,
    sending: Option<(Instant, Sending)>,
    /// Time since which the wire has been free.
    free_at: Instant,
    is_blocked: bool,
    paused: Paused,
    memory_bytes: u64,
    output: LinkCounters,
    pauses: PauseCounters,
}

impl Port {
    fn new(
        config: &SwitchConfig,
        pfc: &PfcConfig,
        port: usize,
        seed: u64,
    ) -> Result<Self, LinkError> {
        let of = &pfc.ports[port];
        let plain = LinkConfig { rate: Some(of.rate), ecn: config.ecn, ..LinkConfig::default() };
        let wire = Wire::new(&plain, 0, seed)?;
        let room =
            [pfc.xon_bytes, pfc.xoff_bytes, pfc.xoff_bytes.saturating_add(of.headroom_bytes)];
        Ok(Port {
            address: address_of(port),
            rate: of.rate,
            priority: pfc.priority,
            queue_bytes_max: config.queue_bytes,
            input: Pauser::new(pfc.priority, of.rate, room),
            wire,
            queues: Default::default(),
            queue_bytes: [0; 2],
            reds: config
                .ecn
                .map(|ecn| [!seed, seed.rotate_left(32)].map(|seed| Red::new(&ecn, of.rate, seed))),
            turn: Turn::new(pfc.ets_share),
            sending: None,
            free_at: Instant::ZERO,
            is_blocked: false,
            paused: Paused::default(),
            memory_bytes: 0,
            output: LinkCounters::default(),
            pauses: PauseCounters::default(),
        })
    }

    /// Queues a frame, for which there must be room, at the output.
    fn enter(&mut self, now: Instant, input: Side, queue: usize, frame: FrameBuf) {
        let backlog = self.rate.time_for_bytes(self.queue_bytes[queue]);
        let is_marked = match &mut self.reds {
            Some(reds) => Ecn::of(frame.head()) == Some(Ecn::Capable) && reds[queue].marks(backlog),
            None => false,
        };
        let queued = Queued { entered_at: now, input, queue, is_marked, frame };
        self.queue_bytes[queue] += queued.wire_bytes();
        self.memory_bytes += queued.frame.footprint() as u64;
        self.output.memory_bytes_max = self.output.memory_bytes_max.max(self.memory_bytes);
        self.queues[queue].push_back(queued);
        let waits = self.queue_bytes.iter().sum::<u64>() + self.sending_bytes();
        self.output.queue_bytes_max = self.output.queue_bytes_max.max(waits);
        self.begin(now);
    }

    fn sending_bytes(&self) -> u64 {
        match &self.sending {
            Some((_, Sending::Frame(queued))) => queued.wire_bytes(),
            _ => 0,
        }
    }

    /// Starts the next transmission if the wire is free; a due pause frame goes first.
    fn begin(&mut self, now: Instant) {
        if self.sending.is_some() {
            return;
        }
        if let Some(pause) = self.input.poll_pause(now) {
            self.put(now, Sending::Pause(pause.write(self.address)));
            return;
        }
        let first = self.turn.next();
        let may_leave = |port: &Port, queue: usize| {
            !port.queues[queue].is_empty() && (queue != LOSSLESS || port.paused.until <= now)
        };
        for queue in [first, 1 - first] {
            if !may_leave(self, queue) {
                continue;
            }
            let is_contested = may_leave(self, 1 - queue);
            let Some(queued) = self.queues[queue].pop_front() else { continue };
            self.turn.take(queue, queued.wire_bytes(), is_contested);
            self.queue_bytes[queue] -= queued.wire_bytes();
            // If calls come late, the wire was not idle in between.
            let allowed_at = if queue == LOSSLESS { self.paused.until } else { Instant::ZERO };
            let start = self.free_at.max(queued.entered_at).max(allowed_at).min(now);
            self.put(start, Sending::Frame(queued));
            return;
        }
    }

    fn put(&mut self, start: Instant, sending: Sending) {
        let arrival = match &sending {
            Sending::Frame(queued) => self.wire.enter(start, &queued.frame.as_frame()),
            Sending::Pause(bytes) => self.wire.enter(start, &Frame::opaque(bytes)),
        };
        // The wire is free and accepts every frame that was received.
        let due = arrival.map_or(start, |arrival| arrival.due);
        self.sending = Some((due, sending));
    }

    /// Processes a pause frame received on this port.
    fn receive_pause(&mut self, now: Instant, pause: &Pause) {
        let Some(quanta) = pause.quanta[usize::from(self.priority)] else { return };
        let count = if quanta > 0 {
            &mut self.pauses.pauses_received
        } else {
            &mut self.pauses.resumes_received
        };
        *count += 1;
        self.paused.ask(now, Pause::time(quanta, self.rate));
        self.begin(now);
    }

    fn has_work(&self) -> bool {
        self.has_frames() || self.input.poll_timeout().is_some()
    }

    /// True if a frame is queued or being sent.
    fn has_frames(&self) -> bool {
        self.sending.is_some() || self.queues.iter().any(|queue| !queue.is_empty())
    }

    fn deadline(&self) -> Option<Deadline> {
        if let Some((due, _)) = self.sending {
            return (!self.is_blocked).then_some(Deadline { at: due, reason: "switch output" });
        }
        let over = (!self.queues[LOSSLESS].is_empty()).then_some(Deadline {
            at: self.paused.until,
            reason: "paused by the link's other end",
        });
        Deadline::earliest(over, self.input.poll_timeout())
    }
}

/// All ports of a switch with flow control.
pub(crate) struct Pausable {
    ports: Vec<Port>,
    /// The buffer that inputs share; `None`: each has its own.
    shared: Option<Pool>,
    priority: u8,
    pool: FramePool,
    now: Instant,
}

impl Pausable {
    /// `seeds` are indexed by port.
    pub fn new(config: &SwitchConfig, pfc: &PfcConfig, seeds: &[u64]) -> Result<Self, LinkError> {
        let ports =
            seeds.iter().enumerate().map(|(port, seed)| Port::new(config, pfc, port, *seed));
        Ok(Pausable {
            ports: ports.collect::<Result<_, _>>()?,
            shared: pfc.shared.map(Pool::new),
            priority: pfc.priority,
            pool: FramePool::new(),
            now: Instant::ZERO,
        })
    }

    /// Queues a frame received on `input` at the output of `port`. Returns `false` for a frame of
    /// the lossless priority if the input has no room left.
    pub fn enter(&mut self, now: Instant, input: Side, port: Side, frame: &Frame<'_>) -> bool {
        self.now = now;
        let bytes = wire_bytes(frame.len());
        let is_lossless = priority_of(frame.head) == self.priority;
        if is_lossless {
            let from = &mut self.ports[input];
            let has_room = match &mut self.shared {
                None => from.input.take(bytes),
                Some(shared) => from.input.take_shared(bytes, shared),
            };
            if !has_room {
                return false;
            }
            from.begin(now);
        }
        let queue = if is_lossless { LOSSLESS } else { OTHERS };
        let to = &mut self.ports[port];
        to.output.entered_frames += 1;
        to.output.entered_bytes += frame.len() as u64;
        // A frame that finds the wire idle needs no room.
        if !is_lossless && to.queue_bytes[OTHERS] + bytes > to.queue_bytes_max && to.has_frames() {
            to.output.drops.count(OutputDrop::QueueFull);
            return true;
        }
        let held = self.pool.hold(frame);
        to.enter(now, input, queue, held);
        true
    }

    /// Processes a pause frame received on `port`.
    pub fn receive_pause(&mut self, now: Instant, port: Side, pause: &Pause) {
        self.now = now;
        self.ports[port].receive_pause(now, pause);
    }

    /// Passes the frames that are due at `port` to `out`. Returns the set of ports that got work to
    /// do.
    pub fn leave(&mut self, now: Instant, port: Side, out: &mut dyn Transmit) -> u64 {
        self.now = now;
        let mut told = 0;
        loop {
            let from = &mut self.ports[port];
            from.begin(now);
            let Some((due, sending)) = &from.sending else { return told };
            if *due > now {
                return told;
            }
            if out.room(port) == 0 {
                from.is_blocked = true;
                return told;
            }
            match sending {
                Sending::Pause(bytes) => out.transmit(port, &Frame::opaque(bytes)),
                Sending::Frame(queued) if queued.is_marked => {
                    transmit_marked(&queued.frame.as_frame(), port, out);
                }
                Sending::Frame(queued) => out.transmit_held(port, &queued.frame),
            }
            from.free_at = if std::mem::take(&mut from.is_blocked) { now } else { *due };
            let Some((_, Sending::Frame(queued))) = from.sending.take() else { continue };
            from.memory_bytes -= queued.frame.footprint() as u64;
            from.output.delivered_frames += 1;
            from.output.delivered_bytes += queued.frame.len() as u64;
            from.output.ecn_marked_frames += u64::from(queued.is_marked);
            if queued.queue == LOSSLESS {
                let input = &mut self.ports[queued.input];
                match &mut self.shared {
                    None => input.input.release(queued.wire_bytes()),
                    Some(shared) => input.input.release_shared(queued.wire_bytes(), shared),
                }
                input.begin(now);
                told |= u64::from(input.has_work()) << queued.input;
            }
        }
    }

    /// True if `port` has something to send, now or later.
    pub fn has_work(&self, port: Side) -> bool {
        self.ports[port].has_work()
    }

    /// The next deadline of `port`.
    pub fn deadline(&self, port: Side) -> Option<Deadline> {
        self.ports[port].deadline()
    }

    /// Counters of a port's output and of its flow control.
    pub fn counters(&self, port: Side) -> (LinkCounters, PauseCounters) {
        let port = &self.ports[port];
        let gone = port.output.delivered_frames + port.output.drops.total();
        let output = LinkCounters {
            in_flight_frames: port.output.entered_frames - gone,
            memory_bytes: port.memory_bytes,
            ..port.output
        };
        let PauseCounters { pauses_sent, resumes_sent, held_bytes_max, .. } = port.input.counters();
        let paused = port.paused.total(self.now);
        (output, PauseCounters { pauses_sent, resumes_sent, held_bytes_max, paused, ..port.pauses })
    }
}
