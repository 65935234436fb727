//! State that all sessions of a transport share.

use crate::format::{Close, Datagram, Header, Hello, Ping};
use crate::inner_queue::InnerQueue;
use crate::key::WireKey;
use crate::{Config, Counters, DropReason};
use longhaul_node::{Frame, FramePool, PassingQueue, Side};
use longhaul_secret::SecretRng;
use longhaul_units::Instant;
use longhaul_wire::Path;
use std::collections::VecDeque;

/// Maximum number of control datagrams that wait for room; further ones are dropped.
const CONTROL_MAX: usize = 256;

/// Configuration, counters, memory and queues that all sessions of a transport share.
pub(crate) struct TransportShared {
    pub(crate) config: Config,
    pub(crate) counters: Counters,
    pub(crate) pool: FramePool,
    pub(crate) rng: SecretRng,
    /// Frames for side 0.
    pub(crate) to_inner: InnerQueue,
    pub(crate) pass_out: PassingQueue,
    pub(crate) control_queue: VecDeque<ControlDatagram>,
    /// Streams that have ended and are still in the transport's table.
    pub(crate) streams_ended: Vec<WireKey>,
    /// Streams found astray and still in the transport's table.
    pub(crate) streams_astray: Vec<WireKey>,
}

/// A queued control datagram that belongs to no session, or must outlive its session.
pub(crate) struct ControlDatagram {
    pub(crate) side: Side,
    pub(crate) route: Path,
    pub(crate) header: Header,
    pub(crate) body: Body,
}

pub(crate) enum Body {
    Hello(Hello),
    Ping(Ping),
    Close(Close),
}

impl ControlDatagram {
    pub(crate) fn datagram(&self, port: u16) -> Datagram {
        Datagram::new(&self.route, port, &self.header, |out| match &self.body {
            Body::Hello(hello) => hello.write(out),
            Body::Ping(ping) => ping.write(out),
            Body::Close(close) => close.write(out),
        })
    }
}

impl TransportShared {
    pub(crate) fn new(config: Config) -> Self {
        let (delay, bytes_max) = (config.passthrough_delay, config.passthrough_bytes_max);
        TransportShared {
            counters: Counters::default(),
            pool: FramePool::new(),
            rng: SecretRng::new(&config.seed),
            to_inner: InnerQueue::new(delay, bytes_max),
            pass_out: PassingQueue::new(delay, bytes_max),
            control_queue: VecDeque::new(),
            streams_ended: Vec::new(),
            streams_astray: Vec::new(),
            config,
        }
    }

    /// Queues a frame to pass through unchanged.
    pub(crate) fn pass(&mut self, now: Instant, side: Side, frame: &Frame<'_>) {
        if !frame.may_be_kept() {
            return self.counters.drops.count(DropReason::Oversized);
        }
        let held = self.pool.hold(frame);
        let dropped = match (side, frame.trailer.is_empty()) {
            (0, true) => self.pass_out.push_other(now, held),
            (0, false) => u64::from(!self.pass_out.push_roce(held)),
            (_, true) => self.to_inner.pass_other(now, held),
            (_, false) => u64::from(!self.to_inner.pass_roce(held)),
        };
        self.counters.passed += 1;
        self.counters.drops.add(DropReason::QueueFull, dropped);
    }

    /// Counts the frames that waited too long.
    pub(crate) fn count_late(&mut self) {
        for late in [self.pass_out.take_late(), self.to_inner.take_late()] {
            self.counters.passed_marked += late.marked;
            self.counters.drops.add(DropReason::QueueDelay, late.dropped);
        }
    }

    pub(crate) fn queue_control(&mut self, control: ControlDatagram) {
        if self.control_queue.len() < CONTROL_MAX {
            self.control_queue.push_back(control);
        }
    }
}
