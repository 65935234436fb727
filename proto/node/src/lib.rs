//! The contract of all nodes: a [`Node`] is a pure state machine with numbered sides through which
//! frames enter and leave.
//!
//! The caller owns time and I/O. It calls a `handle_*` method, then [`Node::poll_transmit`] until
//! no frame is left, then asks [`Node::poll_timeout`] for the next deadline. The same node runs on
//! real ports (`host`) and in virtual time (`sim`).
#![forbid(unsafe_code)]

mod chain;
mod fair_queue;
mod frame;
mod mirrored;
mod passing;
mod pool;
mod queue;
mod turns;

pub use chain::{Chain, Observer};
pub use fair_queue::{FairQueue, Late, Leaving};
pub use frame::{Frame, Gather, Payload, Segment, TRAILER_MAX, Trailer, transmit_marked};
pub use mirrored::Mirrored;
pub use passing::PassingQueue;
pub use pool::{FrameBuf, FramePool, PAYLOAD_MAX};
pub use queue::FrameQueue;
pub use turns::Turns;

use longhaul_units::Instant;

/// Index of a side (port) of a node, through which frames enter and leave.
pub type Side = usize;

/// When a node must be called next, and the reason, which helps to explain a stall.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Deadline {
    /// Earliest time of the call.
    pub at: Instant,
    /// The reason: "retransmission timer", "propagation", "pacing" …
    pub reason: &'static str,
}

impl Deadline {
    /// The earlier of two deadlines.
    #[must_use]
    pub fn earliest(a: Option<Deadline>, b: Option<Deadline>) -> Option<Deadline> {
        match (a, b) {
            (Some(a), Some(b)) => Some(if b.at < a.at { b } else { a }),
            (a, b) => a.or(b),
        }
    }
}

/// Receives the frames that a node sends.
///
/// A node passes each frame by reference, so that the receiver copies it exactly once, to its
/// destination: a ring slot, a pooled buffer, or not at all in a simulation.
pub trait Transmit {
    /// Number of frames that `side` accepts at present. A node asks before it builds a frame, and
    /// leaves its state unchanged if the answer is 0.
    fn room(&mut self, side: Side) -> usize;

    /// Same as [`Transmit::room`], for frames that are not RoCEv2: see [`Node::other_intake`].
    #[inline]
    fn other_room(&mut self, side: Side) -> usize {
        self.room(side)
    }

    /// Most packets that one frame may stand for at `side`, at least 1: see [`Payload::Train`]. A
    /// train takes the room of one frame.
    fn train_max(&mut self, _side: Side) -> u32 {
        1
    }

    /// Transmits one frame. Within the room granted it cannot fail; beyond it, the receiver drops
    /// and counts the frame.
    fn transmit(&mut self, side: Side, frame: &Frame<'_>);

    /// Same as [`Transmit::transmit`], for a held frame that is sent unchanged; the receiver need
    /// not parse it.
    #[inline]
    fn transmit_held(&mut self, side: Side, held: &FrameBuf) {
        self.transmit(side, &held.as_frame());
    }
}

/// A pure state machine with numbered sides.
///
/// After any `handle_*` call, call [`Node::poll_transmit`] until room is exhausted or nothing is
/// left, then [`Node::poll_timeout`].
pub trait Node {
    /// Handles a frame that arrives at `side`. `frame` is borrowed: a node that keeps parts of it
    /// copies them or holds them with a [`FramePool`].
    fn handle_frame(&mut self, now: Instant, side: Side, frame: &Frame<'_>);

    /// Handles a deadline of [`Node::poll_timeout`]. Calling early or twice does no harm.
    fn handle_timeout(&mut self, now: Instant);

    /// Sends the frames that are due, as far as `out` has room.
    fn poll_transmit(&mut self, now: Instant, out: &mut dyn Transmit);

    /// The next time at which [`Node::handle_timeout`] must be called. `None`: only a frame or a
    /// call can change the state. Waiting for room is not a deadline: the caller polls again when
    /// there is room.
    fn poll_timeout(&self) -> Option<Deadline>;

    /// Frames that the node accepts at `side` before it must drop one: a hint for a neighbour that
    /// can wait, which a [`Chain`] returns as that neighbour's [`Transmit::room`]. Unlimited for a
    /// node that bounds its memory otherwise.
    fn intake(&self, _side: Side) -> usize {
        usize::MAX
    }

    /// Same as [`Node::intake`], for frames that are not RoCEv2. A node whose back-pressure holds
    /// back RDMA only, because a far box or a store is full, takes other frames all the same, so
    /// that they wait only where their own path is busy.
    fn other_intake(&self, side: Side) -> usize {
        self.intake(side)
    }
}

macro_rules! forward_node {
    ($($pointer:ty),*) => {$(
        impl<N: Node + ?Sized> Node for $pointer {
            fn handle_frame(&mut self, now: Instant, side: Side, frame: &Frame<'_>) {
                (**self).handle_frame(now, side, frame);
            }
            fn handle_timeout(&mut self, now: Instant) {
                (**self).handle_timeout(now);
            }
            fn poll_transmit(&mut self, now: Instant, out: &mut dyn Transmit) {
                (**self).poll_transmit(now, out);
            }
            fn poll_timeout(&self) -> Option<Deadline> {
                (**self).poll_timeout()
            }
            fn intake(&self, side: Side) -> usize {
                (**self).intake(side)
            }
            fn other_intake(&self, side: Side) -> usize {
                (**self).other_intake(side)
            }
        }
    )*};
}

forward_node!(Box<N>, &mut N);

/// Implements [`Node`] for an enum whose variants each hold a node: calls that node.
#[macro_export]
macro_rules! node_by_variant {
    ($enum:ident: $($variant:ident),+) => {
        impl $crate::Node for $enum {
            #[inline]
            fn handle_frame(
                &mut self,
                now: ::longhaul_units::Instant,
                side: $crate::Side,
                frame: &$crate::Frame<'_>,
            ) {
                match self { $($enum::$variant(node) => node.handle_frame(now, side, frame)),+ }
            }
            #[inline]
            fn handle_timeout(&mut self, now: ::longhaul_units::Instant) {
                match self { $($enum::$variant(node) => node.handle_timeout(now)),+ }
            }
            #[inline]
            fn poll_transmit(
                &mut self,
                now: ::longhaul_units::Instant,
                out: &mut dyn $crate::Transmit,
            ) {
                match self { $($enum::$variant(node) => node.poll_transmit(now, out)),+ }
            }
            #[inline]
            fn poll_timeout(&self) -> Option<$crate::Deadline> {
                match self { $($enum::$variant(node) => node.poll_timeout()),+ }
            }
            #[inline]
            fn intake(&self, side: $crate::Side) -> usize {
                match self { $($enum::$variant(node) => node.intake(side)),+ }
            }
            #[inline]
            fn other_intake(&self, side: $crate::Side) -> usize {
                match self { $($enum::$variant(node) => node.other_intake(side)),+ }
            }
        }
    };
}
