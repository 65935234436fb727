use crate::Seal;
use longhaul_node::{Deadline, Frame, Node, Side, Transmit};
use longhaul_units::Instant;

/// Frames that one may pass to the other before the other gets to act.
const BATCH: usize = 64;
/// Rounds of passing to and fro in one call.
const ROUNDS_MAX: usize = 64;

/// A node with its WAN sides sealed: side 0 is its own, each further side `n` is its side `n` with a [`Seal`]'s path `n - 1`
/// before it. Without a seal it is the node alone.
///
/// One seal serves all paths: there is one handshake with a far box, over whichever path gets through, and each path has numbers and
/// a window of its own under the keys. So a path that comes back needs no handshake, and keys are replaced while any path works.
pub struct Sealed<N> {
    node: N,
    seal: Option<Seal>,
    /// Work was left over at this moment because the two had too much to say to each other.
    unfinished_at: Option<Instant>,
}

impl<N: Node> Sealed<N> {
    /// Puts `seal` before the WAN sides of `node`, of which it must have as many as the seal has paths. `None`: nothing is sealed.
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

/// Where the inner node's frames go: side 0 out, others to the seal.
struct Outward<'a> {
    now: Instant,
    seal: &'a mut Seal,
    out: &'a mut dyn Transmit,
    room: usize,
    /// The side whose frames the seal did not take.
    refused: Option<Side>,
}

impl Transmit for Outward<'_> {
    fn room(&mut self, side: Side) -> usize {
        match side.checked_sub(1) {
            None => self.out.room(side),
            Some(path) => {
                let intake = self.seal.intake(Seal::inner(path));
                if intake == 0 {
                    self.refused = Some(Seal::inner(path));
                }
                self.room.min(intake)
            }
        }
    }

    fn train_max(&mut self, side: Side) -> u32 {
        if side == 0 { self.out.train_max(side) } else { 1 }
    }

    fn transmit(&mut self, side: Side, frame: &Frame<'_>) {
        match side.checked_sub(1) {
            None => self.out.transmit(side, frame),
            Some(path) => {
                self.room = self.room.saturating_sub(1);
                self.seal.handle_frame(self.now, Seal::inner(path), frame);
            }
        }
    }
}

/// Where the seal's frames go: to the inner node, or out.
struct Inward<'a, N> {
    now: Instant,
    node: &'a mut N,
    out: &'a mut dyn Transmit,
    room: usize,
    /// The side whose frames the node did not take.
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
}

impl<N: Node> Node for Sealed<N> {
    fn handle_frame(&mut self, now: Instant, side: Side, frame: &Frame<'_>) {
        match (side.checked_sub(1), &mut self.seal) {
            (Some(path), Some(seal)) => seal.handle_frame(now, Seal::wan(path), frame),
            _ => self.node.handle_frame(now, side, frame),
        }
    }

    fn handle_timeout(&mut self, now: Instant) {
        self.node.handle_timeout(now);
        self.seal.iter_mut().for_each(|seal| seal.handle_timeout(now));
    }

    fn poll_transmit(&mut self, now: Instant, out: &mut dyn Transmit) {
        self.unfinished_at = None;
        let Some(seal) = &mut self.seal else { return self.node.poll_transmit(now, out) };
        for _ in 0..ROUNDS_MAX {
            let mut outward = Outward { now, seal, out, room: BATCH, refused: None };
            self.node.poll_transmit(now, &mut outward);
            let (is_cut_short, not_out) = (outward.room == 0, outward.refused);
            let mut inward = Inward { now, node: &mut self.node, out, room: BATCH, refused: None };
            seal.poll_transmit(now, &mut inward);
            let (has_heard, not_in) = (inward.room < BATCH, inward.refused);
            // The node has heard something, or was cut short, or either has room again for what it refused.
            let can_go_on = is_cut_short
                || not_out.is_some_and(|side| seal.intake(side) > 0)
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
}
