use crate::frame::{Frame, Payload, Trailer};
use longhaul_wire::Head;
use std::collections::VecDeque;
use std::sync::Arc;

/// A pooled payload buffer; clones share the bytes. It returns to its pool when the last clone is dropped.
#[derive(Clone)]
pub struct Buffer(Arc<Bytes>);

struct Bytes {
    bytes: Box<[u8]>,
    len: usize,
}

impl Buffer {
    /// The bytes in use.
    #[inline]
    pub fn bytes(&self) -> &[u8] {
        &self.0.bytes[..self.0.len]
    }

    /// Bytes of memory that the buffer holds.
    pub fn capacity(&self) -> usize {
        self.0.bytes.len()
    }
}

/// Buffer sizes: powers of two, from [`CLASS_MIN`] up to a jumbo frame.
const CLASS_MIN: usize = 256;
const CLASSES: usize = 7;
/// Buffers looked at before a new one is made.
const LOOKS: usize = 4;

/// Keeps frames beyond the call that brought them, without an allocation per frame in steady state.
///
/// Buffers come in powers of two from 256 B to 16 KiB and are used again once every holder has let go. The pool
/// grows with what is held at once and is bounded by its users: each bounds what it holds.
#[derive(Default)]
pub struct FramePool {
    classes: [VecDeque<Arc<Bytes>>; CLASSES],
}

/// A frame that somebody keeps.
#[derive(Clone)]
pub struct FrameBuf {
    head: Head,
    payload: Held,
    trailer: Trailer,
}

#[derive(Clone)]
enum Held {
    Empty,
    Buffer(Buffer),
    Synthetic { len: usize },
}

impl FramePool {
    /// An empty pool.
    pub fn new() -> Self {
        Self::default()
    }

    /// Keeps `frame`: by reference when its payload lies in a pooled buffer, else by one copy.
    ///
    /// # Panics
    /// When the payload is longer than 16 KiB, or the head longer than [`longhaul_wire::HEAD_MAX`]: ports
    /// deliver no such frames.
    pub fn hold(&mut self, frame: &Frame<'_>) -> FrameBuf {
        let payload = match frame.payload {
            Payload::Synthetic { len } => Held::Synthetic { len },
            Payload::Shared(buffer) => Held::Buffer(buffer.clone()),
            payload if payload.is_empty() => Held::Empty,
            payload => Held::Buffer(self.buffer(payload.len(), |out| payload.copy_to(out))),
        };
        FrameBuf { head: Head::copy_of(frame.head), payload, trailer: frame.trailer }
    }

    fn buffer(&mut self, len: usize, fill: impl FnOnce(&mut [u8])) -> Buffer {
        let size = len.next_power_of_two().max(CLASS_MIN);
        let class = (size / CLASS_MIN).trailing_zeros() as usize;
        assert!(class < CLASSES, "payload of {len} bytes");
        let ring = &mut self.classes[class];
        // Frames leave in about the order they came, so a free buffer is near the front if there is one.
        let mut taken = None;
        for _ in 0..LOOKS.min(ring.len()) {
            let Some(mut front) = ring.pop_front() else { break };
            if Arc::get_mut(&mut front).is_some() {
                taken = Some(front);
                break;
            }
            ring.push_back(front);
        }
        let mut taken =
            taken.unwrap_or_else(|| Arc::new(Bytes { bytes: vec![0; size].into_boxed_slice(), len: 0 }));
        match Arc::get_mut(&mut taken) {
            Some(bytes) => {
                fill(&mut bytes.bytes[..len]);
                bytes.len = len;
            }
            None => unreachable!("just found to be unshared"),
        }
        ring.push_back(taken.clone());
        Buffer(taken)
    }
}

impl std::fmt::Debug for FrameBuf {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.as_frame().fmt(f)
    }
}

impl FrameBuf {
    /// The frame, for sending it on.
    #[inline]
    pub fn as_frame(&self) -> Frame<'_> {
        let payload = match &self.payload {
            Held::Empty => Payload::EMPTY,
            Held::Buffer(buffer) => Payload::Shared(buffer),
            Held::Synthetic { len } => Payload::Synthetic { len: *len },
        };
        Frame { head: self.head.bytes(), payload, trailer: self.trailer }
    }

    /// Length of the frame in bytes.
    #[inline]
    pub fn len(&self) -> usize {
        self.as_frame().len()
    }

    /// True when the frame has no bytes.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Memory that keeping this frame costs, in bytes.
    pub fn footprint(&self) -> usize {
        size_of::<FrameBuf>()
            + match &self.payload {
                Held::Buffer(buffer) => buffer.capacity(),
                Held::Empty | Held::Synthetic { .. } => 0,
            }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffers_are_used_again_once_let_go() {
        let mut pool = FramePool::new();
        let bytes = [7_u8; 1000];
        let first = pool.hold(&Frame::opaque(&bytes));
        let second = pool.hold(&Frame::opaque(&bytes));
        assert_eq!(pool.classes[2].len(), 2);
        drop(first);
        let third = pool.hold(&Frame::opaque(&bytes));
        assert_eq!(pool.classes[2].len(), 2, "the first buffer came back");
        drop((second, third));
    }

    #[test]
    fn a_shared_payload_is_not_copied() {
        let mut pool = FramePool::new();
        let held = pool.hold(&Frame::opaque(&[1; 500]));
        let again = pool.hold(&held.as_frame());
        assert_eq!(pool.classes.iter().map(VecDeque::len).sum::<usize>(), 1);
        let mut out = vec![0; again.len()];
        again.as_frame().write_to(&mut out);
        assert_eq!(out, [1; 500]);
    }
}
