//! Pairs of boxes, and other senders, that share one bottleneck in virtual time. The reverse path
//! is not limited.
#![allow(dead_code, reason = "each binary uses a part")]

pub mod bbr;
pub mod cubic;

use crate::net::{Source, host_path};
use longhaul_cc::wire_bytes;
use longhaul_node::{Frame, FrameBuf, FramePool, Node, Side, Transmit};
use longhaul_units::{BitRate, Duration, Instant, Rng, SplitMix64};
use longhaul_wan::{Config, INNER, PathStatus, Seed, Transport};
use longhaul_wire::{Ecn, HEAD_MAX};
use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// Wire bytes of a competitor's packet: 1500 bytes in Ethernet.
pub const PACKET_BYTES: u64 = 1538;
pub const PAYLOAD: usize = 4096;

/// A queue before a link, with its impairments and statistics.
pub struct Bottleneck {
    rate: BitRate,
    pub buffer_bytes: u64,
    /// A frame that finds more than this queued is marked.
    pub marks_at_bytes: Option<u64>,
    pub loss: f64,
    /// Maximum extra delay, drawn for each frame independently.
    pub jitter: Duration,
    free_at: Instant,
    rng: SplitMix64,
    /// Bytes of each sender that have left, and that were dropped at a full queue.
    pub left: Vec<u64>,
    pub dropped: Vec<u64>,
    /// Queue length that frames found since the last [`Bottleneck::restart`]: sum and count,
    /// maximum, minimum.
    queued: (f64, u64),
    pub queue_max: u64,
    pub queue_min: u64,
}

impl Bottleneck {
    pub fn new(rate: BitRate, buffer_bytes: u64) -> Self {
        Bottleneck {
            rate,
            buffer_bytes,
            marks_at_bytes: None,
            loss: 0.0,
            jitter: Duration::ZERO,
            free_at: Instant::ZERO,
            rng: SplitMix64::new(99),
            left: Vec::new(),
            dropped: Vec::new(),
            queued: (0.0, 0),
            queue_max: 0,
            queue_min: u64::MAX,
        }
    }

    pub fn set_rate(&mut self, now: Instant, rate: BitRate) {
        let backlog = self.rate.bytes_in(self.free_at.since(now));
        self.rate = rate;
        self.free_at = now + rate.time_for_bytes(backlog);
    }

    fn restart(&mut self) {
        self.left.iter_mut().for_each(|bytes| *bytes = 0);
        self.dropped.iter_mut().for_each(|bytes| *bytes = 0);
        (self.queued, self.queue_max, self.queue_min) = ((0.0, 0), 0, u64::MAX);
    }

    /// Mean queue length that frames found, in bytes.
    pub fn queue_mean(&self) -> f64 {
        self.queued.0 / self.queued.1.max(1) as f64
    }

    /// Enqueues a frame. Returns the time at which it leaves, jitter included, and whether it is
    /// marked. `None`: it is lost.
    fn enter(&mut self, now: Instant, sender: usize, bytes: u64) -> Option<(Instant, bool)> {
        let backlog = self.rate.bytes_in(self.free_at.since(now));
        self.queued = (self.queued.0 + backlog as f64, self.queued.1 + 1);
        self.queue_max = self.queue_max.max(backlog);
        self.queue_min = self.queue_min.min(backlog);
        if backlog + bytes > self.buffer_bytes.max(bytes) {
            self.dropped[sender] += bytes;
            return None;
        }
        self.free_at = self.free_at.max(now) + self.rate.time_for_bytes(bytes);
        self.left[sender] += bytes;
        if self.rng.chance(self.loss) {
            return None;
        }
        let late = Duration::from_ps(if self.jitter == Duration::ZERO {
            0
        } else {
            self.rng.below(self.jitter.as_ps())
        });
        Some((self.free_at + late, self.marks_at_bytes.is_some_and(|at| backlog > at)))
    }
}

/// Another kind of sender, with packets of [`PACKET_BYTES`], numbered from 0 and acknowledged
/// individually.
pub trait Competitor {
    /// `true`, and counted as sent, if the next packet is sent now.
    fn sends(&mut self, now: Instant) -> bool;
    fn acknowledged(&mut self, now: Instant, number: u64);
    /// Time at which to call it again if no acknowledgement arrives.
    fn wakes_at(&self, now: Instant) -> Option<Instant>;
}

enum Event {
    /// A frame for one end of a pair.
    Frame(usize, FrameBuf),
    /// An acknowledgement for a competitor.
    Ack(usize, u64),
    /// A sender's wake-up.
    Wake(usize),
}

struct Pair {
    ends: [Transport; 2],
    source: Source,
    delay: Duration,
    is_open: bool,
    payload_bytes: u64,
    wakes: [Option<Instant>; 2],
    /// Interval between frames; zero: as fast as they are accepted.
    every: Duration,
    next_at: Instant,
}

struct Other {
    model: Box<dyn Competitor>,
    delay: Duration,
    next: u64,
    wakes: Option<Instant>,
}

/// A dumbbell topology. Senders are numbered: pairs first, then others.
pub struct Dumbbell {
    pub now: Instant,
    pub bottleneck: Bottleneck,
    pairs: Vec<Pair>,
    others: Vec<Other>,
    events: BinaryHeap<Reverse<(Instant, u64, usize)>>,
    held: Vec<Option<Event>>,
    free: Vec<usize>,
    order: u64,
    pool: FramePool,
    starts: Vec<(usize, Instant)>,
}

/// Output of one end of a pair.
struct Out<'a> {
    now: Instant,
    sender: usize,
    is_near: bool,
    delay: Duration,
    bottleneck: &'a mut Bottleneck,
    pool: &'a mut FramePool,
    sent: Vec<(Instant, FrameBuf)>,
    delivered: u64,
}

impl Transmit for Out<'_> {
    fn room(&mut self, _side: Side) -> usize {
        usize::MAX
    }

    fn transmit(&mut self, side: Side, frame: &Frame<'_>) {
        if side == INNER {
            self.delivered += frame.payload.len() as u64;
        } else if !self.is_near {
            self.sent.push((self.now + self.delay, self.pool.hold(frame)));
        } else if let Some((at, is_marked)) =
            self.bottleneck.enter(self.now, self.sender, wire_bytes(frame.len()))
        {
            let mut head = [0; HEAD_MAX];
            let head = &mut head[..frame.head.len()];
            head.copy_from_slice(frame.head);
            if is_marked {
                Ecn::mark(head);
            }
            let frame = Frame { head, ..*frame };
            self.sent.push((at + self.delay, self.pool.hold(&frame)));
        }
    }
}

impl Dumbbell {
    pub fn new(bottleneck: Bottleneck) -> Self {
        Dumbbell {
            now: Instant::ZERO,
            bottleneck,
            pairs: Vec::new(),
            others: Vec::new(),
            events: BinaryHeap::new(),
            held: Vec::new(),
            free: Vec::new(),
            order: 0,
            pool: FramePool::new(),
            starts: Vec::new(),
        }
    }

    /// Adds a pair with this RTT that sends as fast as it can from `start` on. All pairs are added
    /// before the others.
    pub fn pair(&mut self, config: impl Fn(u64) -> Config, rtt: Duration, start: Duration) {
        assert!(self.others.is_empty(), "pairs come first");
        let number = self.pairs.len();
        let ends = [1, 2].map(|end| Transport::new(config(2 * number as u64 + end)).unwrap());
        self.pairs.push(Pair {
            ends,
            source: Source::new(0, 100, PAYLOAD, false, u64::MAX),
            delay: rtt.divided_by(2),
            is_open: false,
            payload_bytes: 0,
            wakes: [None; 2],
            every: Duration::ZERO,
            next_at: Instant::ZERO,
        });
        self.join(Instant::ZERO + start);
    }

    /// Adds another sender.
    pub fn other(&mut self, model: Box<dyn Competitor>, rtt: Duration, start: Duration) {
        let wakes = Some(Instant::ZERO + start);
        self.others.push(Other { model, delay: rtt.divided_by(2), next: 0, wakes });
        self.join(Instant::ZERO + start);
    }

    /// Limits the pair's source to one frame per `every`.
    pub fn slow_down(&mut self, pair: usize, every: Duration) {
        self.pairs[pair].every = every;
    }

    fn join(&mut self, start: Instant) {
        let sender = self.bottleneck.left.len();
        self.bottleneck.left.push(0);
        self.bottleneck.dropped.push(0);
        self.starts.push((sender, start));
        self.put(start, Event::Wake(sender));
    }

    fn put(&mut self, at: Instant, event: Event) {
        let slot = self.free.pop().unwrap_or_else(|| {
            self.held.push(None);
            self.held.len() - 1
        });
        self.held[slot] = Some(event);
        self.order += 1;
        self.events.push(Reverse((at, self.order, slot)));
    }

    pub fn run_for(&mut self, time: Duration) {
        let until = self.now + time;
        let mut at_once = 0;
        loop {
            let event = self.events.peek().map(|Reverse((at, ..))| *at);
            let wakes = self.pairs.iter().enumerate().flat_map(|(pair, of)| {
                (0..2).filter_map(move |end| of.wakes[end].map(|at| (at, 2 * pair + end)))
            });
            let wake = wakes.min();
            let next = [event, wake.map(|(at, _)| at)].into_iter().flatten().min();
            let Some(next) = next.filter(|&next| next <= until) else { break };
            at_once = if next <= self.now { at_once + 1 } else { 0 };
            assert!(at_once < 100_000, "time stands still");
            self.now = self.now.max(next);
            if event.is_some_and(|at| wake.is_none_or(|(wake, _)| at <= wake)) {
                let Some(Reverse((_, _, slot))) = self.events.pop() else { break };
                self.free.push(slot);
                if let Some(event) = self.held[slot].take() {
                    self.handle(event);
                }
            } else if let Some((_, end)) = wake {
                self.pairs[end / 2].ends[end % 2].handle_timeout(self.now);
                self.pump(end);
            }
        }
        self.now = until;
    }

    fn handle(&mut self, event: Event) {
        match event {
            Event::Frame(end, frame) => {
                self.pairs[end / 2].ends[end % 2].handle_frame(self.now, 1, &frame.as_frame());
                self.pump(end);
            }
            Event::Wake(sender) if sender < self.pairs.len() => self.wake(sender),
            Event::Wake(sender) => {
                // Other wake-ups are stale.
                let of = &mut self.others[sender - self.pairs.len()];
                if of.wakes.take_if(|at| *at <= self.now).is_some() {
                    self.press(sender);
                }
            }
            Event::Ack(sender, number) => {
                self.others[sender - self.pairs.len()].model.acknowledged(self.now, number);
                self.press(sender);
            }
        }
    }

    /// Lets a pair find each other, and takes frames that are due from its source.
    fn wake(&mut self, pair: usize) {
        let of = &mut self.pairs[pair];
        if !of.is_open {
            of.is_open = of.ends[0].sessions().any(|s| s.paths.iter().all(|p| p.is_up));
            let (now, near) = (self.now, &mut of.ends[0]);
            if !of.is_open {
                let mut knock = Source::new(0, 0xffff, 8, false, 1);
                knock.send(|frame| near.handle_frame(now, INNER, frame));
                self.put(now + Duration::from_ms(20), Event::Wake(pair));
            }
        }
        self.pump(2 * pair);
    }

    fn pump(&mut self, end: usize) {
        let Dumbbell { pairs, bottleneck, pool, now, .. } = self;
        let (number, now) = (end / 2, *now);
        let is_near = end.is_multiple_of(2);
        let pair = &mut pairs[number];
        let mut out = Out {
            now,
            sender: number,
            is_near,
            delay: pair.delay,
            bottleneck,
            pool,
            sent: Vec::new(),
            delivered: 0,
        };
        let mut next_frame = None;
        loop {
            let node = &mut pair.ends[end % 2];
            let mut is_fed = false;
            // Without a path, everything would pass.
            let takes = |node: &Transport| (1..usize::MAX).contains(&node.intake(INNER));
            while is_near && pair.is_open && pair.next_at <= now && takes(node) {
                pair.source.send(|frame| node.handle_frame(now, INNER, frame));
                pair.next_at = pair.next_at.max(now) + pair.every;
                next_frame = (pair.every > Duration::ZERO).then_some(pair.next_at);
                is_fed = true;
            }
            node.poll_transmit(now, &mut out);
            if !is_fed {
                break;
            }
        }
        pair.wakes[end % 2] =
            pair.ends[end % 2].poll_timeout().map(|deadline| deadline.at.max(now));
        pair.payload_bytes += if is_near { 0 } else { out.delivered };
        let sent = out.sent;
        for (at, frame) in sent {
            self.put(at, Event::Frame(end ^ 1, frame));
        }
        if let Some(at) = next_frame {
            self.put(at, Event::Wake(number));
        }
    }

    fn press(&mut self, sender: usize) {
        let (now, place) = (self.now, sender - self.pairs.len());
        while self.others[place].model.sends(now) {
            let number = self.others[place].next;
            self.others[place].next += 1;
            if let Some((at, _)) = self.bottleneck.enter(now, sender, PACKET_BYTES) {
                let back = at + self.others[place].delay.times(2);
                self.put(back, Event::Ack(sender, number));
            }
        }
        let wakes = self.others[place].model.wakes_at(now);
        if wakes != self.others[place].wakes {
            self.others[place].wakes = wakes;
            if let Some(at) = wakes {
                self.put(at.max(now), Event::Wake(sender));
            }
        }
    }

    /// Runs for `time`, and measures only that.
    pub fn measure(&mut self, time: Duration) -> Shares {
        self.bottleneck.restart();
        let before: Vec<u64> = self.pairs.iter().map(|pair| pair.payload_bytes).collect();
        self.run_for(time);
        let seconds = time.as_secs_f64();
        let share =
            |bytes: &u64| *bytes as f64 * 8.0 / seconds / self.bottleneck.rate.as_bps() as f64;
        Shares {
            of_rate: self.bottleneck.left.iter().map(share).collect(),
            goodput_bps: self
                .pairs
                .iter()
                .zip(before)
                .map(|(pair, before)| (pair.payload_bytes - before) as f64 * 8.0 / seconds)
                .collect(),
            queue_mean: self.bottleneck.queue_mean(),
            queue_max: self.bottleneck.queue_max,
            dropped: self.bottleneck.dropped.iter().sum(),
        }
    }

    /// The path of a pair, as seen by its near box.
    pub fn path(&self, pair: usize) -> PathStatus {
        self.pairs[pair].ends[0].sessions().next().expect("a session").paths[0].clone()
    }
}

/// Measurements over a period.
#[derive(Debug)]
pub struct Shares {
    /// Share of the bottleneck's rate that each sender had.
    pub of_rate: Vec<f64>,
    /// Payload delivered at the far boxes, for each pair.
    pub goodput_bps: Vec<f64>,
    /// Mean and maximum of the queue length that frames found, in bytes.
    pub queue_mean: f64,
    pub queue_max: u64,
    /// Bytes dropped at the full queue.
    pub dropped: u64,
}

impl Shares {
    pub fn used(&self) -> f64 {
        self.of_rate.iter().sum()
    }

    /// Jain's fairness index: 1 if all shares are equal, 1/n if one sender has everything.
    pub fn jain(&self) -> f64 {
        let squares: f64 = self.of_rate.iter().map(|share| share * share).sum();
        self.used().powi(2) / (self.of_rate.len() as f64 * squares)
    }
}

/// Configuration of one box with a rate that adapts, for a path with a bandwidth-delay product of
/// `bdp` bytes.
pub fn adaptive(id: u64, bdp: u64) -> Config {
    Config {
        box_id: id,
        seed: Seed::of_scenario(1000 + id),
        ..Config::for_paths(
            vec![longhaul_wan::PathConfig {
                rate: longhaul_wan::Rate::Adaptive { most: None },
                ..longhaul_wan::PathConfig::default()
            }],
            (2 * bdp).max(8 << 20),
        )
    }
}

/// Keeps the module of hosts' frames in use.
pub fn first_path() -> longhaul_wire::Path {
    host_path(0)
}
