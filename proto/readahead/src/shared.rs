//! State that all connections share.

use crate::{Config, Counters};
use longhaul_node::{Frame, FrameBuf, FramePool, FrameQueue, Side};
use longhaul_units::{Duration, Instant};
use longhaul_wire::{Packet, Verb};
use std::collections::VecDeque;

/// The side of the hosts.
pub const LAN: Side = 0;
/// The side of the accelerators, and of the far box beyond them.
pub const INNER: Side = 1;

/// Spare buffers kept for fetched data.
const SPARE_MAX: usize = 64;

/// Identifies one use of a slot in the connection table.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct ConnectionId {
    pub(crate) slot: u32,
    pub(crate) generation: u32,
}

/// Deadlines that are all set the same time ahead, so that they expire in the order in which they
/// were set.
#[derive(Default)]
pub(crate) struct Alarms(VecDeque<(Instant, ConnectionId, u64)>);

impl Alarms {
    pub(crate) fn set(&mut self, at: Instant, id: ConnectionId, what: u64) {
        // Keeps the order even if the clock goes back.
        let at = self.0.back().map_or(at, |last| last.0.max(at));
        self.0.push_back((at, id, what));
    }

    pub(crate) fn next_at(&self) -> Option<Instant> {
        self.0.front().map(|alarm| alarm.0)
    }

    pub(crate) fn pop_due(&mut self, now: Instant) -> Option<(ConnectionId, u64)> {
        let &(at, id, what) = self.0.front()?;
        (at <= now).then(|| self.0.pop_front()).flatten().map(|_| (id, what))
    }
}

/// State that all connections share: configuration, counters, memory and queues.
pub(crate) struct ReadAheadShared {
    pub(crate) config: Config,
    pub(crate) pool: FramePool,
    pub(crate) counters: Counters,
    pub(crate) queues: [FrameQueue; 2],
    /// Fetches that may have to be repeated, by the NIC's first number.
    pub(crate) retries: Alarms,
    /// Held ranges that may expire, by serial.
    pub(crate) expiries: Alarms,
    /// Parked requests, by their number on their connection.
    pub(crate) parked: Alarms,
    /// Connections whose answers can continue.
    pub(crate) answering: VecDeque<ConnectionId>,
    pub(crate) held_bytes: u64,
    /// Nothing more is offered or fetched.
    pub(crate) draining: bool,
    spare: Vec<Vec<u8>>,
}

impl ReadAheadShared {
    pub(crate) fn new(config: Config) -> Self {
        ReadAheadShared {
            queues: [(); 2].map(|()| FrameQueue::new(config.queue_bytes_max)),
            config,
            pool: FramePool::new(),
            counters: Counters::default(),
            retries: Alarms::default(),
            expiries: Alarms::default(),
            parked: Alarms::default(),
            answering: VecDeque::new(),
            held_bytes: 0,
            draining: false,
            spare: Vec::new(),
        }
    }

    /// Queues `frame`, unchanged.
    pub(crate) fn pass(&mut self, side: Side, frame: &Frame<'_>) {
        if !frame.may_be_kept() {
            self.counters.queue_full += 1;
            return;
        }
        let held = self.pool.hold(frame);
        self.send(side, held);
    }

    pub(crate) fn send(&mut self, side: Side, frame: FrameBuf) {
        if !self.queues[side].push(frame) {
            self.counters.queue_full += 1;
        }
    }

    /// Returns an empty buffer for `len` bytes, which count as held.
    pub(crate) fn take_buffer(&mut self, len: u32) -> Vec<u8> {
        self.held_bytes += u64::from(len);
        let mut buffer = self.spare.pop().unwrap_or_default();
        buffer.clear();
        buffer.reserve_exact(len as usize);
        buffer
    }

    /// Returns a buffer that [`ReadAheadShared::take_buffer`] gave out for `len` bytes.
    pub(crate) fn return_buffer(&mut self, buffer: Vec<u8>, len: u32) {
        self.held_bytes -= u64::from(len);
        if self.spare.len() < SPARE_MAX {
            self.spare.push(buffer);
        }
    }

    pub(crate) fn retry_at(&self, now: Instant) -> Instant {
        now + self.config.retry_after
    }

    pub(crate) fn held_for(&self) -> Duration {
        self.config.held_for
    }
}

/// Numbers that a request takes: one per packet of its response.
pub(crate) fn span(packet: &Packet<'_>, mtu: u32) -> u64 {
    match packet.opcode().verb() {
        Some(Verb::ReadRequest) => packet.reth().map_or(1, |reth| packets(reth.len, mtu)),
        _ => 1,
    }
}

/// Number of packets of a READ's response.
pub(crate) fn packets(len: u32, mtu: u32) -> u64 {
    u64::from(len.div_ceil(mtu).max(1))
}

/// True for a request that takes one of the responder's resources: a READ or an atomic.
pub(crate) fn is_read(packet: &Packet<'_>) -> bool {
    matches!(packet.opcode().verb(), Some(Verb::ReadRequest | Verb::CmpSwap | Verb::FetchAdd))
}
