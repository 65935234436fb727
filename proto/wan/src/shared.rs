//! State that all sessions of a transport share.

use crate::format::{Close, Datagram, Header, Hello, Ping};
use crate::key::WireKey;
use crate::{Config, Counters, DropReason};
use longhaul_node::{Frame, FrameBuf, FramePool, FrameQueue, Side};
use longhaul_secret::SecretRng;
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
    /// Frames for side 0 in stream order, with their session and memory cost.
    pub(crate) to_inner: VecDeque<(FrameBuf, u32, u32)>,
    pub(crate) pass_in: FrameQueue,
    pub(crate) pass_out: FrameQueue,
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
        TransportShared {
            counters: Counters::default(),
            pool: FramePool::new(),
            rng: SecretRng::new(&config.seed),
            to_inner: VecDeque::new(),
            pass_in: FrameQueue::new(config.passthrough_bytes_max),
            pass_out: FrameQueue::new(config.passthrough_bytes_max),
            control_queue: VecDeque::new(),
            streams_ended: Vec::new(),
            streams_astray: Vec::new(),
            config,
        }
    }

    /// Queues a frame to pass through unchanged.
    pub(crate) fn pass(&mut self, side: Side, frame: &Frame<'_>) {
        if !frame.may_be_kept() {
            return self.counters.drops.count(DropReason::Oversized);
        }
        let held = self.pool.hold(frame);
        let queue = if side == 0 { &mut self.pass_out } else { &mut self.pass_in };
        if queue.push(held) {
            self.counters.passed += 1;
        } else {
            self.counters.drops.count(DropReason::QueueFull);
        }
    }

    pub(crate) fn queue_control(&mut self, control: ControlDatagram) {
        if self.control_queue.len() < CONTROL_MAX {
            self.control_queue.push_back(control);
        }
    }
}
