use crate::frame::{Frame, Payload, Trailer};
use longhaul_wire::HEAD_MAX;
use std::collections::VecDeque;
use std::hint::black_box;
use triomphe::{Arc, ThinArc};

/// Payload sizes of pooled buffers: powers of two, from this one up to a jumbo frame.
const CLASS_MIN: usize = 256;
const CLASSES: usize = 7;
/// Buffers in use that are looked at before a new one is made.
const LOOKS: usize = 4;
/// Buffers taken, at least, before all in use are looked at.
const SWEEP_MIN: usize = 256;
/// Buffers that one frame may bring back: more than one, so that what came back late is caught up with.
const RECLAIMED_MAX: usize = 2;
/// How many frames ahead of its use a buffer is fetched into the cache: over a long path it was last used a round
/// trip ago.
const FETCH_AHEAD: usize = 6;

/// Keeps frames beyond the call that brought them, without an allocation per frame in steady state.
///
/// A buffer has room for headers and for a payload of a power of two, 256 B to 16 KiB; it is used again once every
/// holder has let go. The pool grows with what is held at once and is bounded by its users: each bounds what it
/// holds.
#[derive(Default)]
pub struct FramePool {
    classes: [Class; CLASSES],
}

/// What is in a buffer: headers from 0, payload from [`HEAD_MAX`] on.
type Buffer = ThinArc<Content, u8>;

/// What the bytes of a buffer are.
#[derive(Clone, Copy)]
struct Content {
    payload_len: u32,
    head_len: u8,
    is_synthetic: bool,
    trailer: Trailer,
}

impl Content {
    const NONE: Content =
        Content { payload_len: 0, head_len: 0, is_synthetic: false, trailer: Trailer::None };
}

/// True when nobody but the pool refers to it.
#[inline]
fn is_free(buffer: &Buffer) -> bool {
    buffer.with_arc(Arc::is_unique)
}

/// The buffers of one size.
#[derive(Default)]
struct Class {
    /// In the order in which they were given out, which is about that in which they come back.
    in_use: VecDeque<Buffer>,
    /// The one that came back last is used first, so that no more memory is touched than is held at once.
    free: Vec<Buffer>,
    /// Buffers taken since all in use were last looked at.
    taken: usize,
}

impl Class {
    /// A buffer that nobody else holds, if there is one.
    fn take(&mut self) -> Option<Buffer> {
        for _ in 0..RECLAIMED_MAX {
            if !self.in_use.front().is_some_and(is_free) {
                break;
            }
            self.free.extend(self.in_use.pop_front());
        }
        if let Some(soon) = self.in_use.get(FETCH_AHEAD) {
            fetch(soon);
        }
        self.taken += 1;
        self.free.pop().or_else(|| self.search()).or_else(|| self.sweep())
    }

    /// The buffer given out first may be held for long; those behind it need not be.
    fn search(&mut self) -> Option<Buffer> {
        for _ in 0..LOOKS.min(self.in_use.len()) {
            let buffer = self.in_use.pop_front()?;
            if is_free(&buffer) {
                return Some(buffer);
            }
            self.in_use.push_back(buffer);
        }
        None
    }

    /// Where many are held for long, all those behind them are looked for, instead of making new ones: at most once for
    /// half as many taken as there are, so that there are never more than twice as many as are held at once.
    #[cold]
    fn sweep(&mut self) -> Option<Buffer> {
        if self.taken < SWEEP_MIN.max(self.in_use.len() / 2) {
            return None;
        }
        self.taken = 0;
        let free = &mut self.free;
        self.in_use.retain(|buffer| {
            let is_held = !is_free(buffer);
            if !is_held {
                free.push(buffer.clone());
            }
            is_held
        });
        self.free.pop()
    }
}

/// A frame that somebody keeps. Clones share the bytes.
#[derive(Clone)]
pub struct FrameBuf {
    buffer: Buffer,
    /// The payload lies in this one instead, which is another frame's: a tunnel's frames differ in their headers alone.
    payload_from: Option<Buffer>,
}

impl FramePool {
    /// An empty pool.
    pub fn new() -> Self {
        Self::default()
    }

    /// Keeps `frame`: by reference when it is a pooled one unchanged or with other headers, else by one copy.
    ///
    /// # Panics
    /// When the payload is longer than 16 KiB, or the head longer than [`HEAD_MAX`]: ports deliver no such frames.
    #[inline]
    pub fn hold(&mut self, frame: &Frame<'_>) -> FrameBuf {
        if let Payload::Shared(origin) = frame.payload {
            return self.hold_shared(frame, origin);
        }
        let payload_len = frame.payload.len();
        let is_synthetic = matches!(frame.payload, Payload::Synthetic { .. });
        let stored_len = if is_synthetic { 0 } else { payload_len };
        let content = Content {
            payload_len: payload_len as u32,
            head_len: frame.head.len() as u8,
            is_synthetic,
            trailer: frame.trailer,
        };
        let buffer = self.fill(stored_len, content, |out| {
            out[..frame.head.len()].copy_from_slice(frame.head);
            frame.payload.copy_to(&mut out[HEAD_MAX..HEAD_MAX + stored_len]);
        });
        FrameBuf { buffer, payload_from: None }
    }

    #[inline]
    fn hold_shared(&mut self, frame: &Frame<'_>, origin: &FrameBuf) -> FrameBuf {
        let content = origin.content();
        if std::ptr::eq(frame.head, origin.head()) && frame.trailer == content.trailer {
            return origin.clone();
        }
        let content = Content { head_len: frame.head.len() as u8, trailer: frame.trailer, ..*content };
        FrameBuf {
            buffer: self.fill(0, content, |out| out[..frame.head.len()].copy_from_slice(frame.head)),
            payload_from: Some(origin.payload_buffer().clone()),
        }
    }

    /// Keeps a frame whose payload lies in two pieces, one behind the other.
    ///
    /// # Panics
    /// As [`FramePool::hold`].
    pub fn hold_pieces(&mut self, head: &[u8], pieces: [&[u8]; 2], trailer: Trailer) -> FrameBuf {
        let [first, second] = pieces;
        self.build(head.len(), first.len() + second.len(), trailer, |out, payload| {
            out.copy_from_slice(head);
            let (a, b) = payload.split_at_mut(first.len());
            a.copy_from_slice(first);
            b.copy_from_slice(second);
        })
    }

    /// Makes a frame whose head and payload, so many bytes, `fill` writes where they will lie. What it does not write is left
    /// over from another frame.
    ///
    /// # Panics
    /// As [`FramePool::hold`].
    #[inline]
    pub fn build(
        &mut self,
        head_len: usize,
        payload_len: usize,
        trailer: Trailer,
        fill: impl FnOnce(&mut [u8], &mut [u8]),
    ) -> FrameBuf {
        let content = Content {
            payload_len: payload_len as u32,
            head_len: head_len as u8,
            is_synthetic: false,
            trailer,
        };
        let buffer = self.fill(payload_len, content, |out| {
            let (head, payload) = out.split_at_mut(HEAD_MAX);
            fill(&mut head[..head_len], &mut payload[..payload_len]);
        });
        FrameBuf { buffer, payload_from: None }
    }

    /// Memory that keeping a frame with `payload_len` bytes of payload costs, in bytes.
    pub const fn footprint(payload_len: usize) -> usize {
        size_of::<FrameBuf>() + BUFFER_OVERHEAD + HEAD_MAX + payload_class_bytes(payload_len)
    }

    /// A buffer for so many bytes of payload, which `write` has written.
    #[inline]
    fn fill(&mut self, payload_len: usize, content: Content, write: impl FnOnce(&mut [u8])) -> Buffer {
        let size = payload_class_bytes(payload_len);
        let class = (size / CLASS_MIN).trailing_zeros() as usize;
        assert!(class < CLASSES, "payload of {payload_len} bytes");
        let class = &mut self.classes[class];
        let mut taken = class
            .take()
            .unwrap_or_else(|| ThinArc::from_header_and_slice(Content::NONE, &vec![0; HEAD_MAX + size]));
        taken.with_arc_mut(|taken| match Arc::get_mut(taken) {
            Some(inside) => {
                *inside.header_mut() = content;
                write(inside.slice_mut());
            }
            None => unreachable!("just found to be unshared"),
        });
        class.in_use.push_back(taken.clone());
        taken
    }
}

/// Bytes of a buffer beside those of the frame: reference count, [`Content`], length.
const BUFFER_OVERHEAD: usize = 2 * size_of::<usize>() + size_of::<Content>();

/// Loads the lines with the count in front of the bytes and the start of the payload; the CPU goes on meanwhile, and
/// fetches what follows by itself.
#[inline]
fn fetch(buffer: &Buffer) {
    let bytes = &buffer.slice;
    black_box((bytes[0], bytes[HEAD_MAX], bytes[HEAD_MAX + 128]));
}

/// Room for the payload in the smallest buffer that takes `payload_len` bytes.
const fn payload_class_bytes(payload_len: usize) -> usize {
    let size = payload_len.next_power_of_two();
    if size < CLASS_MIN { CLASS_MIN } else { size }
}

impl std::fmt::Debug for FrameBuf {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.as_frame().fmt(f)
    }
}

impl FrameBuf {
    /// Starts to load the frame into the cache, for who will send it or let go of it in a moment: over a long path it
    /// was last touched a round trip ago.
    #[inline]
    pub fn fetch(&self) {
        fetch(&self.buffer);
        self.payload_from.iter().for_each(fetch);
    }

    #[inline]
    fn content(&self) -> &Content {
        &self.buffer.header.header
    }

    #[inline]
    fn payload_buffer(&self) -> &Buffer {
        self.payload_from.as_ref().unwrap_or(&self.buffer)
    }

    /// The headers.
    #[inline]
    pub fn head(&self) -> &[u8] {
        &self.buffer.slice[..usize::from(self.content().head_len)]
    }

    /// The payload; empty when it is synthetic.
    #[inline]
    pub fn payload(&self) -> &[u8] {
        let content = self.content();
        let len = if content.is_synthetic { 0 } else { content.payload_len as usize };
        &self.payload_buffer().slice[HEAD_MAX..HEAD_MAX + len]
    }

    /// The frame, for sending it on.
    #[inline]
    pub fn as_frame(&self) -> Frame<'_> {
        let content = self.content();
        let payload = if content.is_synthetic {
            Payload::Synthetic { len: content.payload_len as usize }
        } else {
            Payload::Shared(self)
        };
        Frame { head: self.head(), payload, trailer: content.trailer }
    }

    /// Length of the frame in bytes.
    #[inline]
    pub fn len(&self) -> usize {
        let Content { payload_len, head_len, trailer, .. } = self.content();
        usize::from(*head_len) + *payload_len as usize + trailer.len()
    }

    /// True when the frame has no bytes.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Memory that keeping this frame costs, in bytes; a payload that is another frame's too is counted for both.
    pub fn footprint(&self) -> usize {
        FramePool::footprint(self.payload().len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Buffers of the class that a payload of 872 bytes (1000 less the head) is in.
    fn buffers(pool: &FramePool) -> usize {
        pool.classes[2].in_use.len() + pool.classes[2].free.len()
    }

    #[test]
    fn buffers_are_used_again_once_let_go() {
        let mut pool = FramePool::new();
        let bytes = [7_u8; 1000];
        let first = pool.hold(&Frame::opaque(&bytes));
        let second = pool.hold(&Frame::opaque(&bytes));
        assert_eq!(buffers(&pool), 2);
        drop(first);
        let third = pool.hold(&Frame::opaque(&bytes));
        assert_eq!(buffers(&pool), 2, "the first buffer came back");
        drop((second, third));
    }

    #[test]
    fn frames_that_are_held_for_long_do_not_make_it_grow() {
        let mut pool = FramePool::new();
        let bytes = [7_u8; 1000];
        let (mut long, mut short) = (VecDeque::new(), VecDeque::new());
        for number in 0..400_000_u32 {
            let frame = pool.hold(&Frame::opaque(&bytes));
            // A thousand in a row are kept, now and then, and the oldest of those let go.
            if number % 20_000 < 1000 {
                long.push_back(frame);
                if long.len() > 3000 {
                    long.pop_front();
                }
            } else {
                short.push_back(frame);
                if short.len() > 500 {
                    short.pop_front();
                }
            }
        }
        assert!(buffers(&pool) <= 2 * 3501 + SWEEP_MIN, "{} buffers for 3500 frames", buffers(&pool));
    }

    #[test]
    fn no_more_memory_is_touched_than_is_held_at_once() {
        let mut pool = FramePool::new();
        let bytes = [7_u8; 1000];
        let burst: Vec<FrameBuf> = (0..500).map(|_| pool.hold(&Frame::opaque(&bytes))).collect();
        drop(burst);
        let mut held = VecDeque::new();
        let mut touched = std::collections::HashSet::new();
        for round in 0..5000 {
            held.push_back(pool.hold(&Frame::opaque(&bytes)));
            if held.len() > 8 {
                held.pop_front();
            }
            if round > 1000 {
                touched.insert(held.back().map(|frame| frame.head().as_ptr()));
            }
        }
        assert!(touched.len() < 16, "{} buffers in turn", touched.len());
        assert_eq!(buffers(&pool), 500);
    }

    #[test]
    fn one_frame_held_for_long_does_not_make_the_pool_grow() {
        let mut pool = FramePool::new();
        let bytes = [7_u8; 1000];
        let kept = pool.hold(&Frame::opaque(&bytes));
        for _ in 0..1000 {
            pool.hold(&Frame::opaque(&bytes));
        }
        assert!(buffers(&pool) <= 8, "{} buffers", buffers(&pool));
        drop(kept);
    }

    #[test]
    fn a_payload_in_pieces_is_kept_as_one() {
        let mut pool = FramePool::new();
        let held = pool.hold_pieces(&[1; 60], [&[2; 30], &[3; 400]], Trailer::None);
        let mut out = vec![0; held.len()];
        held.as_frame().write_to(&mut out);
        assert_eq!(out, [vec![1; 60], vec![2; 30], vec![3; 400]].concat());
    }

    #[test]
    fn a_pooled_frame_is_not_copied() {
        let mut pool = FramePool::new();
        let held = pool.hold(&Frame::opaque(&[1; 500]));
        let again = pool.hold(&held.as_frame());
        assert_eq!(held.payload().as_ptr(), again.payload().as_ptr());
        let mut out = vec![0; again.len()];
        again.as_frame().write_to(&mut out);
        assert_eq!(out, [1; 500]);
    }

    #[test]
    fn other_headers_do_not_copy_the_payload() {
        let (mut pool, mut other) = (FramePool::new(), FramePool::new());
        let bare = pool.hold(&Frame::opaque(&[1; 500]));
        let tunnelled = other.hold(&Frame { head: &[2; 70], ..bare.as_frame() });
        let again = pool.hold(&Frame { head: &[3; 40], ..tunnelled.as_frame() });
        let at = bare.payload().as_ptr();
        assert_eq!([tunnelled.payload().as_ptr(), again.payload().as_ptr()], [at; 2]);
        drop((bare, tunnelled));
        // The buffer is nobody else's while one frame refers to it.
        let next = pool.hold(&Frame::opaque(&[4; 500]));
        assert_ne!(next.payload().as_ptr(), at);
        let mut out = vec![0; again.len()];
        again.as_frame().write_to(&mut out);
        assert_eq!(out, [vec![3; 40], vec![1; 500 - HEAD_MAX]].concat());
    }
}
