//! What is under way between two neighbours.

use super::Seq;

/// Frames that a line holds at most. What is sent beyond is dropped, as by a full queue.
const FRAMES_MAX: usize = 8;

/// A packet, by what the protocol reads of it. Numbers are PSNs, unwrapped and counted from 0.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Frame {
    /// A request packet that asks for an ACK.
    Request(Seq),
    /// Acknowledges everything below.
    Ack(Seq),
    /// A sequence NAK: acknowledges everything below, and asks for this one.
    Nak(Seq),
    /// A NAK that ends the QP: acknowledges everything below, and refuses this one.
    Fatal(Seq),
    /// The response to a READ.
    Response(Seq),
}

/// One direction of a cable or path: first in, first out, unless the model says otherwise.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Line {
    frames: [Frame; FRAMES_MAX],
    len: u8,
}

impl Default for Line {
    fn default() -> Self {
        Line { frames: [Frame::Ack(0); FRAMES_MAX], len: 0 }
    }
}

impl Line {
    /// Frames under way.
    pub fn len(&self) -> usize {
        self.len.into()
    }

    /// True when nothing is under way.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The frame at `index`, the first to come out being 0.
    pub fn get(&self, index: usize) -> Option<Frame> {
        self.frames[..self.len()].get(index).copied()
    }

    /// Puts a frame in; drops it when there is no room.
    pub fn push(&mut self, frame: Frame) {
        if let Some(place) = self.frames.get_mut(usize::from(self.len)) {
            *place = frame;
            self.len += 1;
        }
    }

    /// Takes the frame at `index` out.
    pub fn take(&mut self, index: usize) -> Option<Frame> {
        let taken = self.get(index)?;
        let len = self.len();
        self.frames.copy_within(index + 1..len, index);
        self.len -= 1;
        // Places behind the end are alike in all lines, for states are compared by them.
        self.frames[self.len()] = Frame::Ack(0);
        Some(taken)
    }

    /// Loses everything.
    pub fn clear(&mut self) {
        *self = Line::default();
    }
}
