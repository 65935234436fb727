//! Devices on one segment of virtual time that loses, repeats, delays and damages frames.

use crate::pair::{VecMemory, config, ip};
use longhaul_node::{Frame, Node, Side, Transmit};
use longhaul_rnic::{Config, Rnic};
use longhaul_units::{Duration, Instant, Rng, SplitMix64};
use longhaul_wire::Head;
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::net::{IpAddr, Ipv4Addr};

#[derive(Clone, Copy, Debug)]
pub struct Wire {
    pub delay: Duration,
    pub jitter: Duration,
    pub loss: f64,
    pub duplication: f64,
    pub corruption: f64,
    /// Congestion experienced, on packets of capable senders.
    pub marking: f64,
}

impl Wire {
    /// Chance may take a packet away.
    pub fn is_lossy(&self) -> bool {
        self.loss > 0.0 || self.corruption > 0.0
    }

    /// The longest that a frame is under way.
    pub fn life(&self) -> Duration {
        self.delay + self.jitter + Duration::from_ns(1)
    }
}

struct Sink<'a>(&'a mut Vec<Vec<u8>>);

impl Transmit for Sink<'_> {
    fn room(&mut self, _side: Side) -> usize {
        16
    }
    fn transmit(&mut self, _side: Side, frame: &Frame<'_>) {
        let mut bytes = vec![0; frame.len()];
        frame.write_to(&mut bytes);
        self.0.push(bytes);
    }
}

/// A frame: when it arrives, its place among those of that moment, at whom, and its bytes.
type UnderWay = (Instant, u64, usize, Vec<u8>);

pub struct Net {
    pub now: Instant,
    pub nodes: Vec<Rnic<VecMemory>>,
    pub wire: Wire,
    /// Of everything that was on the wire and when, in order.
    pub trace: u64,
    pub frames: u64,
    /// Frames by sender, and by receiver.
    pub sent: Vec<u64>,
    pub arrived: Vec<u64>,
    in_flight: BinaryHeap<Reverse<UnderWay>>,
    sequence: u64,
    rng: SplitMix64,
}

impl Net {
    pub fn new(seed: u64, count: usize, memory: usize, wire: Wire, change: impl Fn(&mut Config)) -> Self {
        let node = |n| {
            let mut config = config(n);
            change(&mut config);
            Rnic::new(config, VecMemory(vec![0; memory]))
        };
        Net {
            now: Instant::ZERO,
            nodes: (0..count).map(node).collect(),
            wire,
            trace: 0xcbf2_9ce4_8422_2325,
            frames: 0,
            sent: vec![0; count],
            arrived: vec![0; count],
            in_flight: BinaryHeap::new(),
            sequence: 0,
            rng: SplitMix64::new(seed),
        }
    }

    /// Adds to the trace.
    pub fn note(&mut self, value: u64) {
        self.trace = (self.trace ^ value).wrapping_mul(0x0100_0000_01b3).rotate_left(29);
    }

    fn send_from(&mut self, sender: usize) {
        let mut frames = Vec::new();
        loop {
            let before = frames.len();
            self.nodes[sender].poll_transmit(self.now, &mut Sink(&mut frames));
            if frames.len() == before {
                break;
            }
            assert!(frames.len() < 1 << 16, "a device that never stops sending");
        }
        for bytes in frames {
            self.put(sender, bytes);
        }
    }

    fn put(&mut self, sender: usize, mut bytes: Vec<u8>) {
        self.frames += 1;
        self.sent[sender] += 1;
        self.note(
            bytes.iter().fold(self.now.as_ps(), |h, &b| (h ^ u64::from(b)).wrapping_mul(0x0100_0000_01b3)),
        );
        let wire = self.wire;
        let to = IpAddr::V4(Ipv4Addr::new(bytes[30], bytes[31], bytes[32], bytes[33]));
        if self.rng.chance(wire.loss) {
            return;
        }
        if bytes[15] & 3 == 2 && self.rng.chance(wire.marking) {
            bytes[15] |= 3;
        }
        if self.rng.chance(wire.corruption) {
            let bit = self.rng.below(bytes.len() as u64 * 8) as usize;
            bytes[bit / 8] ^= 1 << (bit % 8);
        }
        for receiver in 0..self.nodes.len() {
            let takes = if to.is_multicast() { receiver != sender } else { ip(receiver) == to };
            if !takes {
                continue;
            }
            let copies = 1 + u32::from(self.rng.chance(wire.duplication));
            for _ in 0..copies {
                let jitter = match wire.jitter.as_ps() {
                    0 => 0,
                    ps => self.rng.below(ps),
                };
                let due = self.now + wire.delay + Duration::from_ps(jitter);
                self.sequence += 1;
                self.in_flight.push(Reverse((due, self.sequence, receiver, bytes.clone())));
            }
        }
    }

    /// One step of virtual time, to no later than `limit`. False when nothing is left to happen until then.
    pub fn step(&mut self, limit: Instant) -> bool {
        for n in 0..self.nodes.len() {
            self.send_from(n);
        }
        let frame = self.in_flight.peek().map(|Reverse((at, ..))| *at);
        let timers = self.nodes.iter().filter_map(|node| node.poll_timeout()).map(|deadline| deadline.at);
        let Some(next) = timers.chain(frame).min().filter(|next| *next <= limit) else {
            self.now = self.now.max(limit);
            return false;
        };
        self.now = self.now.max(next);
        while self.in_flight.peek().is_some_and(|Reverse((at, ..))| *at <= self.now) {
            let Some(Reverse((_, _, receiver, bytes))) = self.in_flight.pop() else { break };
            let head = Head::copy_of(&bytes);
            if let Ok(frame) = Frame::received(&head, &bytes) {
                self.arrived[receiver] += 1;
                self.nodes[receiver].handle_frame(self.now, 0, &frame);
            }
        }
        for node in &mut self.nodes {
            node.handle_timeout(self.now);
        }
        true
    }

    /// Lets `span` pass.
    pub fn pass(&mut self, span: Duration) {
        let limit = self.now + span;
        let mut steps = 0;
        while self.step(limit) {
            steps += 1;
            assert!(steps < 5_000_000, "time stands still: {:?}", self.nodes[0].poll_timeout());
        }
    }
}
