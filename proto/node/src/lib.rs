//! The one contract: a [`Node`] is a pure state machine with numbered sides that frames go in and
//! out of.
//!
//! The caller owns time and I/O. It calls a `handle_*` method, then [`Node::poll_transmit`] until
//! nothing comes, then asks [`Node::poll_timeout`] when to come back. The same node runs on real
//! ports (`host`) and in virtual time (`sim`).
#![forbid(unsafe_code)]

mod chain;
mod frame;
mod mirrored;
mod pool;
mod queue;

pub use chain::{Chain, Observer};
pub use frame::{Frame, Gather, Payload, Segment, TRAILER_MAX, Trailer};
pub use mirrored::Mirrored;
pub use pool::{FrameBuf, FramePool, PAYLOAD_MAX};
pub use queue::FrameQueue;

use longhaul_units::Instant;

/// Which of a node's sides (ports) a frame enters or leaves by: 0 up to the node's number of sides.
pub type Side = usize;

/// When a node wants to be called, and what for, so that a stall can be explained.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Deadline {
    /// Not before this moment.
    pub at: Instant,
    /// What waits: "retransmission timer", "propagation", "pacing" …
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

/// Takes the frames that a node sends.
///
/// A node hands each frame over by reference, so that the taker copies it exactly once, straight to
/// where it goes: a ring slot, a pooled buffer, or nowhere at all in a simulation.
pub trait Transmit {
    /// Frames that `side` takes right now. A node asks before it builds a frame, and leaves its
    /// state as it is when the answer is 0.
    fn room(&mut self, side: Side) -> usize;

    /// Packets that one frame may stand for at `side`, at least 1: see [`Payload::Train`]. A train
    /// takes the room of one frame.
    fn train_max(&mut self, _side: Side) -> u32 {
        1
    }

    /// Takes one frame. With room asked for and granted it cannot fail; without, the frame is
    /// dropped and counted by the taker.
    fn transmit(&mut self, side: Side, frame: &Frame<'_>);

    /// As [`Transmit::transmit`], of a kept frame that goes as it is: who takes it need not look
    /// into it.
    #[inline]
    fn transmit_held(&mut self, side: Side, held: &FrameBuf) {
        self.transmit(side, &held.as_frame());
    }
}

/// A pure state machine with numbered sides.
///
/// Mutate, then drain: after any `handle_*` call [`Node::poll_transmit`] until room is used up or
/// nothing is left, then ask [`Node::poll_timeout`].
pub trait Node {
    /// A frame arrives at `side`. `frame` is borrowed: what the node wants to keep, it copies or
    /// holds by a [`FramePool`].
    fn handle_frame(&mut self, now: Instant, side: Side, frame: &Frame<'_>);

    /// A deadline given by [`Node::poll_timeout`] has come. Calling early or twice does no harm.
    fn handle_timeout(&mut self, now: Instant);

    /// Sends what is due, as far as `out` has room.
    fn poll_transmit(&mut self, now: Instant, out: &mut dyn Transmit);

    /// The next moment at which [`Node::handle_timeout`] must be called. `None`: only a frame or a
    /// caller's request can change anything. What waits for room alone is not a deadline: the
    /// caller comes back when there is room.
    fn poll_timeout(&self) -> Option<Deadline>;

    /// Frames that the node takes at `side` before it has to drop one. It is advice for a neighbour
    /// that can wait: a [`Chain`] hands it on as that neighbour's [`Transmit::room`]. A node that
    /// bounds what it keeps in some other way has no such limit.
    fn intake(&self, _side: Side) -> usize {
        usize::MAX
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
        }
    )*};
}

forward_node!(Box<N>, &mut N);
