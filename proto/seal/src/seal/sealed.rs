//! A node behind a seal on each of its WAN sides.

use super::Seal;
use crate::datagram::opened;
use longhaul_node::{Deadline, Frame, FrameBuf, Node, Side, Transmit};
use longhaul_units::Instant;

/// Frames that may wait in the seal before the node gets its turn.
const BATCH: usize = 64;
/// Maximum number of exchanges between node and seal in one call.
const ROUNDS_MAX: usize = 64;

/// A node with its WAN sides sealed. Side 0 is the node's own; behind each further side `n` is path
/// `n - 1` of a [`Seal`]. Without a seal it is the node alone.
///
/// One seal serves all paths: one handshake with a far box, over any path that works, covers all of
/// them, and each path has numbers and a replay window of its own under the keys. A path that
/// recovers therefore needs no handshake, and keys are replaced while any path works.
pub struct Sealed<N> {
    node: N,
    seal: Option<Seal>,
    /// Time at which a call ended with work left over, because [`ROUNDS_MAX`] was reached.
    unfinished_at: Option<Instant>,
}

impl<N: Node> Sealed<N> {
    /// Puts `seal` before the WAN sides of `node`, which must have as many as the seal has paths.
    /// `None`: nothing is sealed.
    pub fn new(node: N, seal: impl Into<Option<Seal>>) -> Self {
        Sealed { node, seal: seal.into(), unfinished_at: None }
    }

    /// The node inside.
    pub fn node(&self) -> &N {
        &self.node
    }

    /// The node inside.
    pub fn node_mut(&mut self) -> &mut N {
        &mut self.node
    }

    /// The seal, if there is one.
    pub fn seal(&self) -> Option<&Seal> {
        self.seal.as_ref()
    }

    /// The seal, if there is one.
    pub fn seal_mut(&mut self) -> Option<&mut Seal> {
        self.seal.as_mut()
    }
}

/// Output of the inner node: side 0 leaves directly, the others through the seal. The seal queues
/// frames only if there is no room or its queue is not empty: the node can make better choices
/// about waiting frames.
struct Outward<'a> {
    now: Instant,
    seal: &'a mut Seal,
    out: &'a mut dyn Transmit,
    /// Side whose frames the seal refused.
    refused: Option<Side>,
}

impl Transmit for Outward<'_> {
    #[inline]
    fn room(&mut self, side: Side) -> usize {
        match side.checked_sub(1) {
            Some(path) if !self.seal.is_clear_outward(path) => {
                self.refused = Some(side);
                0
            }
            _ => self.out.room(side),
        }
    }

    #[inline]
    fn other_room(&mut self, side: Side) -> usize {
        if side == 0 { self.out.other_room(side) } else { self.room(side) }
    }

    fn train_max(&mut self, side: Side) -> u32 {
        if side == 0 { self.out.train_max(side) } else { 1 }
    }

    #[inline]
    fn transmit(&mut self, side: Side, frame: &Frame<'_>) {
        let Some(path) = side.checked_sub(1) else { return self.out.transmit(side, frame) };
        if !self.seal.is_clear_outward(path) || self.out.room(side) == 0 {
            return self.seal.handle_frame(self.now, Seal::inner(path), frame);
        }
        self.seal.counters.inner_frames_in += 1;
        if let Some(held) = self.seal.outbound(self.now, path, frame) {
            self.seal.counters.wan_frames_out += 1;
            self.out.transmit_held(side, &held);
        }
        self.seal.settle();
    }

    #[inline]
    fn transmit_held(&mut self, side: Side, held: &FrameBuf) {
        if side == 0 {
            self.out.transmit_held(side, held)
        } else {
            self.transmit(side, &held.as_frame())
        }
    }
}

/// Output of the seal: to the inner node, or out.
struct Inward<'a, N> {
    now: Instant,
    node: &'a mut N,
    out: &'a mut dyn Transmit,
    room: usize,
    /// Side whose frames the node refused.
    refused: Option<Side>,
}

impl<N: Node> Transmit for Inward<'_, N> {
    fn room(&mut self, side: Side) -> usize {
        let outer = side / 2 + 1;
        if side == Seal::wan(side / 2) {
            return self.out.room(outer);
        }
        let intake = self.node.intake(outer);
        if intake == 0 {
            self.refused = Some(outer);
        }
        self.room.min(intake)
    }

    fn transmit(&mut self, side: Side, frame: &Frame<'_>) {
        let outer = side / 2 + 1;
        if side == Seal::wan(side / 2) {
            return self.out.transmit(outer, frame);
        }
        self.room = self.room.saturating_sub(1);
        self.node.handle_frame(self.now, outer, frame);
    }

    fn transmit_held(&mut self, side: Side, held: &FrameBuf) {
        if side == Seal::wan(side / 2) {
            return self.out.transmit_held(side / 2 + 1, held);
        }
        self.transmit(side, &held.as_frame());
    }
}

impl<N: Node> Node for Sealed<N> {
    fn handle_frame(&mut self, now: Instant, side: Side, frame: &Frame<'_>) {
        let (Some(path), Some(seal)) = (side.checked_sub(1), &mut self.seal) else {
            return self.node.handle_frame(now, side, frame);
        };
        if !seal.is_clear_inward(path) || self.node.intake(side) == 0 {
            return seal.handle_frame(now, Seal::wan(path), frame);
        }
        if let Some(held) = seal.inbound(now, path, frame) {
            seal.counters.inner_frames_out += 1;
            self.node.handle_frame(now, side, &opened(&held));
        }
        seal.settle();
    }

    fn handle_timeout(&mut self, now: Instant) {
        self.node.handle_timeout(now);
        self.seal.iter_mut().for_each(|seal| seal.handle_timeout(now));
    }

    fn poll_transmit(&mut self, now: Instant, out: &mut dyn Transmit) {
        self.unfinished_at = None;
        let Some(seal) = &mut self.seal else { return self.node.poll_transmit(now, out) };
        for _ in 0..ROUNDS_MAX {
            let mut outward = Outward { now, seal, out, refused: None };
            self.node.poll_transmit(now, &mut outward);
            let not_out = outward.refused;
            let mut inward = Inward { now, node: &mut self.node, out, room: BATCH, refused: None };
            seal.poll_transmit(now, &mut inward);
            let (has_heard, not_in) = (inward.room < BATCH, inward.refused);
            // The node has received something, or there is room again for a side that was refused.
            let can_go_on = not_out.is_some_and(|side| seal.is_clear_outward(side - 1))
                || not_in.is_some_and(|side| self.node.intake(side) > 0);
            if !has_heard && !can_go_on {
                return;
            }
        }
        self.unfinished_at = Some(now);
    }

    fn poll_timeout(&self) -> Option<Deadline> {
        let unfinished =
            self.unfinished_at.map(|at| Deadline { at, reason: "more to pass through the seal" });
        let seal = self.seal.as_ref().and_then(Seal::poll_timeout);
        Deadline::earliest(unfinished, Deadline::earliest(self.node.poll_timeout(), seal))
    }

    fn intake(&self, side: Side) -> usize {
        match (side.checked_sub(1), &self.seal) {
            (Some(path), Some(seal)) => seal.intake(Seal::wan(path)),
            _ => self.node.intake(side),
        }
    }

    fn other_intake(&self, side: Side) -> usize {
        if side == 0 { self.node.other_intake(side) } else { self.intake(side) }
    }
}
