//! A node with its two sides swapped.

use crate::{Deadline, Frame, FrameBuf, Node, Side, Transmit};
use longhaul_units::Instant;

/// A node with its two sides swapped: side 0 is the inner node's side 1, and vice versa.
///
/// A box whose sides differ, such as an accelerator with a LAN and a WAN side, is mirrored at the
/// far end of a chain.
pub struct Mirrored<N>(pub N);

/// Transmits the inner node's frames on the other side.
struct MirroredOut<'a>(&'a mut dyn Transmit);

impl Transmit for MirroredOut<'_> {
    #[inline]
    fn room(&mut self, side: Side) -> usize {
        self.0.room(1 - side)
    }

    #[inline]
    fn other_room(&mut self, side: Side) -> usize {
        self.0.other_room(1 - side)
    }

    #[inline]
    fn transmit(&mut self, side: Side, frame: &Frame<'_>) {
        self.0.transmit(1 - side, frame);
    }

    #[inline]
    fn transmit_held(&mut self, side: Side, held: &FrameBuf) {
        self.0.transmit_held(1 - side, held);
    }
}

impl<N: Node> Node for Mirrored<N> {
    #[inline]
    fn handle_frame(&mut self, now: Instant, side: Side, frame: &Frame<'_>) {
        self.0.handle_frame(now, 1 - side, frame);
    }

    #[inline]
    fn handle_timeout(&mut self, now: Instant) {
        self.0.handle_timeout(now);
    }

    #[inline]
    fn poll_transmit(&mut self, now: Instant, out: &mut dyn Transmit) {
        self.0.poll_transmit(now, &mut MirroredOut(out));
    }

    #[inline]
    fn poll_timeout(&self) -> Option<Deadline> {
        self.0.poll_timeout()
    }

    #[inline]
    fn intake(&self, side: Side) -> usize {
        self.0.intake(1 - side)
    }

    #[inline]
    fn other_intake(&self, side: Side) -> usize {
        self.0.other_intake(1 - side)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Sends one frame on side 0, and records the side of received frames.
    struct Box {
        came_by: Option<Side>,
    }

    impl Node for Box {
        fn handle_frame(&mut self, _: Instant, side: Side, _: &Frame<'_>) {
            self.came_by = Some(side);
        }
        fn handle_timeout(&mut self, _: Instant) {}
        fn poll_transmit(&mut self, _: Instant, out: &mut dyn Transmit) {
            assert_eq!(out.room(0), 7, "room is that of the other side");
            out.transmit(0, &Frame::opaque(&[0; 60]));
        }
        fn poll_timeout(&self) -> Option<Deadline> {
            None
        }
    }

    struct Out(Vec<Side>);

    impl Transmit for Out {
        fn room(&mut self, side: Side) -> usize {
            if side == 1 { 7 } else { 0 }
        }
        fn transmit(&mut self, side: Side, _: &Frame<'_>) {
            self.0.push(side);
        }
    }

    #[test]
    fn sides_change_places_both_ways() {
        let mut node = Mirrored(Box { came_by: None });
        node.handle_frame(Instant::ZERO, 0, &Frame::opaque(&[0; 60]));
        assert_eq!(node.0.came_by, Some(1));
        let mut out = Out(Vec::new());
        node.poll_transmit(Instant::ZERO, &mut out);
        assert_eq!(out.0, [1]);
    }
}
