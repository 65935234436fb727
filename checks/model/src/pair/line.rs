//! Frames in flight between two neighbours.

use super::Seq;

/// Most frames in a line; further ones are dropped, as by a full queue.
const FRAMES_MAX: usize = 8;

/// A packet, reduced to what the protocol reads. Numbers are unwrapped PSNs, counted from 0.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Frame {
    /// A request packet that asks for an ACK.
    Request(Seq),
    /// Acknowledges everything below.
    Ack(Seq),
    /// A sequence NAK: acknowledges everything below, and requests this packet.
    Nak(Seq),
    /// A NAK that ends the QP: acknowledges everything below, and refuses this packet.
    Fatal(Seq),
    /// The response to a READ.
    Response(Seq),
}

/// One direction of a cable or path: in order, unless an action of the model reorders it.
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
    /// Number of frames in flight.
    pub fn len(&self) -> usize {
        self.len.into()
    }

    /// True if no frame is in flight.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The frame at `index`; 0 is the next to arrive.
    pub fn get(&self, index: usize) -> Option<Frame> {
        self.frames[..self.len()].get(index).copied()
    }

    /// Appends a frame, or drops it if the line is full.
    pub fn push(&mut self, frame: Frame) {
        if let Some(place) = self.frames.get_mut(usize::from(self.len)) {
            *place = frame;
            self.len += 1;
        }
    }

    /// Removes the frame at `index`.
    pub fn take(&mut self, index: usize) -> Option<Frame> {
        let taken = self.get(index)?;
        let len = self.len();
        self.frames.copy_within(index + 1..len, index);
        self.len -= 1;
        // Unused places are equal in all lines, because states are compared by value.
        self.frames[self.len()] = Frame::Ack(0);
        Some(taken)
    }

    /// Drops all frames.
    pub fn clear(&mut self) {
        *self = Line::default();
    }
}
