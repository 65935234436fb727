//! Two paths from a host: one through the boxes, and a detour.

use longhaul_node::{Deadline, Frame, FrameBuf, FramePool, Node, Side, Transmit};
use longhaul_units::{Instant, Qpn};
use longhaul_wire::Packet;
use std::collections::VecDeque;

const HOST: Side = 0;
const BOXES: Side = 1;
const DETOUR: Side = 2;

/// Sends its host's frames through the boxes or, after a given time, through the detour. Messages
/// of the connection manager, which have another UDP source port, always pass the boxes.
pub struct Fork {
    detour_from: Option<Instant>,
    waiting: [VecDeque<FrameBuf>; 3],
    pool: FramePool,
}

impl Fork {
    pub fn new(detour_from: Option<Instant>) -> Fork {
        Fork { detour_from, waiting: Default::default(), pool: FramePool::new() }
    }
}

impl Node for Fork {
    fn handle_frame(&mut self, now: Instant, side: Side, frame: &Frame<'_>) {
        let packet = Packet::parse(frame.head).ok().flatten();
        let is_managers = packet.is_some_and(|packet| packet.dest_qp() == Qpn::GSI);
        let is_diverted = !is_managers && self.detour_from.is_some_and(|from| from <= now);
        let to = match side {
            HOST if is_diverted => DETOUR,
            HOST => BOXES,
            _ => HOST,
        };
        self.waiting[to].push_back(self.pool.hold(frame));
    }

    fn handle_timeout(&mut self, _now: Instant) {}

    fn poll_transmit(&mut self, _now: Instant, out: &mut dyn Transmit) {
        for (side, waiting) in self.waiting.iter_mut().enumerate() {
            while out.room(side) > 0 {
                let Some(frame) = waiting.pop_front() else { break };
                out.transmit_held(side, &frame);
            }
        }
    }

    fn poll_timeout(&self) -> Option<Deadline> {
        None
    }
}
