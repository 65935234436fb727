//! A pool of buffers for frames that a node keeps.

use crate::frame::{Frame, Payload, Trailer};
use longhaul_lease::{Circulation, Lease, Returned};
use longhaul_wire::{HEAD_MAX, ICRC_LEN};
use std::hint::black_box;
use triomphe::{Arc, ThinArc};

/// Smallest payload size of the buffers; the classes are powers of two up to a jumbo frame.
const CLASS_MIN: usize = 256;
const CLASSES: usize = 7;
/// Longest payload that a [`FramePool`] holds, in bytes.
pub const PAYLOAD_MAX: usize = CLASS_MIN << (CLASSES - 1);

/// Keeps frames beyond the call that delivered them, without an allocation per frame in steady
/// state.
///
/// A buffer has room for headers and for a payload of a power of two, 256 B to 16 KiB, and is
/// reused once every holder has released it. The pool grows with the frames held at once; its users
/// must bound these. A frame lent by a port takes no buffer.
#[derive(Default)]
pub struct FramePool {
    classes: [Circulation<Buffer>; CLASSES],
    leases: [Circulation<Lease>; CLASSES],
}

/// Headers at 0, payload at [`HEAD_MAX`].
#[derive(Clone)]
struct Buffer(ThinArc<Content, u8>);

/// Layout of a buffer's bytes.
#[derive(Clone, Copy)]
struct Content {
    payload_len: u32,
    /// Offset of the payload, in this buffer or in its storage.
    payload_at: u8,
    head_len: u8,
    is_synthetic: bool,
    trailer: Trailer,
}

impl Content {
    const NONE: Content = Content {
        payload_len: 0,
        payload_at: HEAD_MAX as u8,
        head_len: 0,
        is_synthetic: false,
        trailer: Trailer::None,
    };
}

impl Returned for Buffer {
    #[inline]
    fn is_returned(&self) -> bool {
        self.0.with_arc(Arc::is_unique)
    }

    /// Prefetches the lines with the reference count and the start of the payload, without a stall;
    /// the hardware prefetcher loads the rest.
    #[inline]
    fn fetch(&self) {
        let bytes = &self.0.slice;
        black_box((bytes[0], bytes[HEAD_MAX], bytes[HEAD_MAX + 128]));
    }
}

/// A held frame. Clones share the bytes.
#[derive(Clone)]
pub struct FrameBuf(Kept);

#[derive(Clone)]
enum Kept {
    Pooled {
        buffer: Buffer,
        payload: PayloadStorage,
    },
    /// The bytes that a port received.
    Lent {
        lease: Lease,
        parts: Parts,
    },
}

/// Storage of a pooled frame's payload: its own buffer, or that of the frame
/// that it was tunnelled from.
#[derive(Clone)]
enum PayloadStorage {
    Here,
    In(Buffer),
    Lent(Lease),
}

/// Layout of a lent frame's bytes: head, payload, then pad and ICRC for RoCEv2.
#[derive(Clone, Copy)]
struct Parts {
    payload_len: u32,
    head_len: u8,
    pad_len: u8,
    is_roce: bool,
}

impl Parts {
    #[inline]
    fn payload_end(&self) -> usize {
        usize::from(self.head_len) + self.payload_len as usize
    }

    #[inline]
    fn trailer(&self, bytes: &[u8]) -> Trailer {
        if !self.is_roce {
            return Trailer::None;
        }
        Trailer::received(&bytes[self.payload_end()..], usize::from(self.pad_len))
    }
}

impl FramePool {
    /// An empty pool.
    pub fn new() -> Self {
        Self::default()
    }

    /// Holds `frame`: by reference if it is pooled or lent, unchanged or with other headers,
    /// otherwise by one copy.
    ///
    /// # Panics
    /// If the frame is too long for a buffer: see [`Frame::fits_pool`].
    #[inline]
    pub fn hold(&mut self, frame: &Frame<'_>) -> FrameBuf {
        match frame.payload {
            Payload::Shared(origin) => return self.hold_shared(frame, origin),
            Payload::Lent { lease, at, len } => return self.hold_lent(frame, lease, at, len),
            _ => {}
        }
        let payload_len = frame.payload.len();
        let is_synthetic = matches!(frame.payload, Payload::Synthetic { .. });
        let stored_len = if is_synthetic { 0 } else { payload_len };
        let content = Content {
            payload_len: payload_len as u32,
            head_len: frame.head.len() as u8,
            is_synthetic,
            trailer: frame.trailer,
            ..Content::NONE
        };
        let buffer = self.fill(stored_len, content, |out| {
            out[..frame.head.len()].copy_from_slice(frame.head);
            frame.payload.copy_to(&mut out[HEAD_MAX..HEAD_MAX + stored_len]);
        });
        FrameBuf(Kept::Pooled { buffer, payload: PayloadStorage::Here })
    }

    #[inline]
    fn hold_shared(&mut self, frame: &Frame<'_>, origin: &FrameBuf) -> FrameBuf {
        if origin.is_whole(frame) {
            return origin.clone();
        }
        let (content, place) = match &origin.0 {
            Kept::Pooled { buffer, payload: PayloadStorage::Here } => {
                (*buffer.content(), PayloadStorage::In(buffer.clone()))
            }
            Kept::Pooled { buffer, payload } => (*buffer.content(), payload.clone()),
            Kept::Lent { lease, parts } => {
                let content = Content {
                    payload_len: parts.payload_len,
                    payload_at: parts.head_len,
                    ..Content::NONE
                };
                (content, PayloadStorage::Lent(lease.clone()))
            }
        };
        self.hold_elsewhere(frame, content, place)
    }

    #[inline]
    fn hold_lent(&mut self, frame: &Frame<'_>, lease: &Lease, at: u32, len: u32) -> FrameBuf {
        let bytes = lease.bytes();
        if let Some(whole) = FrameBuf::lent_whole(frame) {
            return whole;
        }
        let Ok(payload_at) = u8::try_from(at) else {
            return self.hold(&Frame {
                payload: Payload::Bytes(&bytes[at as usize..][..len as usize]),
                ..*frame
            });
        };
        let content = Content { payload_len: len, payload_at, ..Content::NONE };
        self.hold_elsewhere(frame, content, PayloadStorage::Lent(lease.clone()))
    }

    /// Copies the headers, and holds the payload by reference.
    fn hold_elsewhere(
        &mut self,
        frame: &Frame<'_>,
        content: Content,
        payload: PayloadStorage,
    ) -> FrameBuf {
        let content =
            Content { head_len: frame.head.len() as u8, trailer: frame.trailer, ..content };
        let buffer =
            self.fill(0, content, |out| out[..frame.head.len()].copy_from_slice(frame.head));
        FrameBuf(Kept::Pooled { buffer, payload })
    }

    /// Holds a frame whose payload consists of two consecutive pieces.
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

    /// Builds a frame whose head and payload `fill` writes in place. Bytes that it does not write
    /// are stale.
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
            trailer,
            ..Content::NONE
        };
        let buffer = self.fill(payload_len, content, |out| {
            let (head, payload) = out.split_at_mut(HEAD_MAX);
            fill(&mut head[..head_len], &mut payload[..payload_len]);
        });
        FrameBuf(Kept::Pooled { buffer, payload: PayloadStorage::Here })
    }

    /// Builds a frame of `len` bytes that `write` writes in place, and holds it like one that a
    /// port has [lent](FrameBuf::lease), so that parts of it can be kept by reference. Bytes that
    /// `write` does not write are stale.
    ///
    /// # Panics
    /// If it is longer than [`HEAD_MAX`] and 16 KiB.
    #[inline]
    pub fn lend(&mut self, len: usize, write: &mut dyn FnMut(&mut [u8])) -> FrameBuf {
        let payload_len = len.saturating_sub(HEAD_MAX);
        let (class, size) = payload_class(payload_len);
        let class = &mut self.leases[class];
        let mut lease = class.take().unwrap_or_else(|| Lease::with_capacity(HEAD_MAX + size));
        lease.fill(len, write);
        class.give(lease.clone());
        let head_len = (len - payload_len) as u8;
        let parts = Parts { payload_len: payload_len as u32, head_len, pad_len: 0, is_roce: false };
        FrameBuf(Kept::Lent { lease, parts })
    }

    /// Bytes of memory for holding a frame with `payload_len` bytes of payload.
    pub const fn footprint(payload_len: usize) -> usize {
        size_of::<FrameBuf>() + BUFFER_OVERHEAD + HEAD_MAX + payload_class_bytes(payload_len)
    }

    /// Returns a buffer for `payload_len` bytes of payload, filled by `write`.
    #[inline]
    fn fill(
        &mut self,
        payload_len: usize,
        content: Content,
        write: impl FnOnce(&mut [u8]),
    ) -> Buffer {
        let (class, size) = payload_class(payload_len);
        let class = &mut self.classes[class];
        let mut taken = class.take().unwrap_or_else(|| {
            Buffer(ThinArc::from_header_and_slice(Content::NONE, &vec![0; HEAD_MAX + size]))
        });
        taken.0.with_arc_mut(|taken| match Arc::get_mut(taken) {
            Some(inside) => {
                *inside.header_mut() = content;
                write(inside.slice_mut());
            }
            None => unreachable!("just found to be unshared"),
        });
        class.give(taken.clone());
        taken
    }
}

/// Bytes of a buffer besides the frame: reference count, [`Content`], length.
const BUFFER_OVERHEAD: usize = 2 * size_of::<usize>() + size_of::<Content>();

/// Class and payload room of the buffers for `payload_len` bytes.
#[inline]
fn payload_class(payload_len: usize) -> (usize, usize) {
    let size = payload_class_bytes(payload_len);
    let class = (size / CLASS_MIN).trailing_zeros() as usize;
    assert!(class < CLASSES, "payload of {payload_len} bytes");
    (class, size)
}

/// Payload room of the smallest buffer for `payload_len` bytes.
const fn payload_class_bytes(payload_len: usize) -> usize {
    let size = payload_len.next_power_of_two();
    if size < CLASS_MIN { CLASS_MIN } else { size }
}

impl Buffer {
    #[inline]
    fn content(&self) -> &Content {
        &self.0.header.header
    }

    #[inline]
    fn head(&self) -> &[u8] {
        &self.0.slice[..usize::from(self.content().head_len)]
    }
}

impl std::fmt::Debug for FrameBuf {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.as_frame().fmt(f)
    }
}

impl FrameBuf {
    /// Holds `frame` if it is unchanged since a port lent it: the inlined part of
    /// [`FramePool::hold`] that needs no pool.
    #[inline(always)]
    pub fn lent_whole(frame: &Frame<'_>) -> Option<FrameBuf> {
        let Payload::Lent { lease, at, len } = frame.payload else { return None };
        let bytes = lease.bytes();
        let (is_roce, pad_len) = match &frame.trailer {
            Trailer::None => (false, 0),
            Trailer::Received { pad, pad_len, icrc } => {
                let (end, pad) =
                    (bytes.len().checked_sub(ICRC_LEN)?, pad.get(..usize::from(*pad_len))?);
                let is_same =
                    bytes[end..] == *icrc && (pad.is_empty() || bytes[..end].ends_with(pad));
                is_same.then_some((true, *pad_len))?
            }
            Trailer::Checked { .. } | Trailer::Sealed { .. } => return None,
        };
        let is_whole = std::ptr::eq(frame.head.as_ptr(), bytes.as_ptr())
            && frame.head.len() == at as usize
            && frame.len() == bytes.len();
        let parts = Parts { payload_len: len, head_len: frame.head.len() as u8, pad_len, is_roce };
        is_whole.then(|| FrameBuf(Kept::Lent { lease: lease.clone(), parts }))
    }

    /// Prefetches the frame, for a caller that will soon send or release it: over a long path it
    /// was last accessed a round trip ago.
    #[inline]
    pub fn fetch(&self) {
        let fetch_lent = |lease: &Lease| {
            black_box(lease.bytes().first());
        };
        match &self.0 {
            Kept::Pooled { buffer, payload } => {
                buffer.fetch();
                match payload {
                    PayloadStorage::Here => {}
                    PayloadStorage::In(other) => other.fetch(),
                    PayloadStorage::Lent(lease) => fetch_lent(lease),
                }
            }
            Kept::Lent { lease, .. } => fetch_lent(lease),
        }
    }

    /// Prefetches what a release accesses: the reference count, not the bytes.
    #[inline]
    pub fn fetch_count(&self) {
        match &self.0 {
            Kept::Pooled { buffer, payload } => {
                black_box(buffer.is_returned());
                match payload {
                    PayloadStorage::Here => {}
                    PayloadStorage::In(other) => _ = black_box(other.is_returned()),
                    PayloadStorage::Lent(lease) => _ = black_box(lease.is_returned()),
                }
            }
            Kept::Lent { lease, .. } => _ = black_box(lease.is_returned()),
        }
    }

    /// The headers.
    #[inline]
    pub fn head(&self) -> &[u8] {
        match &self.0 {
            Kept::Pooled { buffer, .. } => buffer.head(),
            Kept::Lent { lease, parts } => &lease.bytes()[..usize::from(parts.head_len)],
        }
    }

    /// The payload; empty when it is synthetic.
    #[inline]
    pub fn payload(&self) -> &[u8] {
        let (buffer, place) = match &self.0 {
            Kept::Pooled { buffer, payload } => (buffer, payload),
            Kept::Lent { lease, parts } => {
                return &lease.bytes()[usize::from(parts.head_len)..parts.payload_end()];
            }
        };
        let content = buffer.content();
        let len = if content.is_synthetic { 0 } else { content.payload_len as usize };
        let bytes = match place {
            PayloadStorage::Here => &buffer.0.slice,
            PayloadStorage::In(other) => &other.0.slice,
            PayloadStorage::Lent(lease) => lease.bytes(),
        };
        &bytes[usize::from(content.payload_at)..][..len]
    }

    /// Returns the frame for transmission.
    #[inline]
    pub fn as_frame(&self) -> Frame<'_> {
        let payload = match &self.0 {
            Kept::Pooled { buffer, .. } if buffer.content().is_synthetic => {
                Payload::Synthetic { len: buffer.content().payload_len as usize }
            }
            _ => Payload::Shared(self),
        };
        Frame { head: self.head(), payload, trailer: self.trailer() }
    }

    #[inline]
    fn trailer(&self) -> Trailer {
        match &self.0 {
            Kept::Pooled { buffer, .. } => buffer.content().trailer,
            Kept::Lent { lease, parts } => parts.trailer(lease.bytes()),
        }
    }

    /// True if `frame`, whose payload is this one's, also has its headers and trailer.
    #[inline]
    fn is_whole(&self, frame: &Frame<'_>) -> bool {
        std::ptr::eq(frame.head, self.head()) && frame.trailer == self.trailer()
    }

    /// The lease of the frame's bytes, if a port lent them.
    #[inline]
    pub fn lease(&self) -> Option<&Lease> {
        match &self.0 {
            Kept::Lent { lease, .. } => Some(lease),
            Kept::Pooled { .. } => None,
        }
    }

    /// Length of the frame in bytes.
    #[inline]
    pub fn len(&self) -> usize {
        match &self.0 {
            Kept::Pooled { buffer, .. } => {
                let Content { payload_len, head_len, trailer, .. } = buffer.content();
                usize::from(*head_len) + *payload_len as usize + trailer.len()
            }
            Kept::Lent { lease, .. } => lease.bytes().len(),
        }
    }

    /// True if the frame has no bytes.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Bytes of memory for holding this frame; a shared payload counts for each frame.
    pub fn footprint(&self) -> usize {
        let payload_len = match &self.0 {
            Kept::Pooled { buffer, .. } if buffer.content().is_synthetic => 0,
            Kept::Pooled { buffer, .. } => buffer.content().payload_len,
            Kept::Lent { parts, .. } => parts.payload_len,
        };
        FramePool::footprint(payload_len as usize)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::VecDeque;

    /// Number of buffers in the class of an 872-byte payload (1000 bytes less the head).
    fn buffers(pool: &FramePool) -> usize {
        pool.classes[2].len()
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
    fn a_part_of_what_it_lends_is_kept_by_reference() {
        let mut pool = FramePool::new();
        let whole = pool
            .lend(1000, &mut |out| out.iter_mut().zip(0..).for_each(|(byte, at)| *byte = at as u8));
        let lease = whole.lease().unwrap();
        assert!(pool.hold(&Frame::lent_opaque(lease)).lease().unwrap().is_same(lease));
        let payload = Payload::Lent { lease, at: 200, len: 500 };
        let kept = pool.hold(&Frame { head: &[7; 60], payload, trailer: Trailer::None });
        assert!(std::ptr::eq(kept.payload(), &lease.bytes()[200..700]));
        assert_eq!((whole.head(), whole.len()), (&lease.bytes()[..HEAD_MAX], 1000));
        drop(whole);
        let other = pool.lend(1000, &mut |out| out.fill(0));
        assert_eq!(
            (kept.payload()[0], other.payload()[0]),
            (200, 0),
            "its bytes stay while a part is kept"
        );
        drop(kept);
        pool.lend(900, &mut |out| out.fill(1));
        assert_eq!(pool.leases[2].len(), 2, "the first came back");
    }

    #[test]
    fn frames_that_are_held_for_long_do_not_make_it_grow() {
        let mut pool = FramePool::new();
        let bytes = [7_u8; 1000];
        let (mut long, mut short) = (VecDeque::new(), VecDeque::new());
        for number in 0..400_000_u32 {
            let frame = pool.hold(&Frame::opaque(&bytes));
            // At times a thousand consecutive frames are kept, and the oldest of these released.
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
        assert!(buffers(&pool) <= 2 * 3501 + 256, "{} buffers for 3500 frames", buffers(&pool));
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

    fn lent(bytes: &[u8]) -> Lease {
        let mut lease = Lease::with_capacity(bytes.len());
        lease.fill(bytes.len(), &mut |out| out.copy_from_slice(bytes));
        lease
    }

    fn written(frame: &Frame<'_>) -> Vec<u8> {
        let mut out = vec![0; frame.len()];
        frame.write_to(&mut out);
        let mut end = [0xee; crate::TRAILER_MAX];
        assert_eq!(frame.pieces(&mut end).expect("bytes at hand").concat(), out, "in pieces");
        out
    }

    /// A RoCEv2 SEND with `payload_len` bytes of payload, with pad and ICRC.
    fn packet(payload_len: usize) -> Vec<u8> {
        use longhaul_units::{Psn, Qpn};
        use longhaul_wire::{Bth, Head, MacAddr, Opcode, Path, PathTemplate};
        let template = PathTemplate::new(&Path {
            source_mac: MacAddr([2; 6]),
            destination_mac: MacAddr([4; 6]),
            vlan: None,
            source_ip: [10, 0, 0, 1].into(),
            destination_ip: [10, 0, 0, 2].into(),
            traffic_class: 0,
            hop_limit: 64,
            flow_label: 0,
            udp_source_port: 0xc000,
        });
        let bth = Bth::new(Opcode::RC_SEND_ONLY, Qpn::new(7), Psn::new(1));
        let pad_len = payload_len.next_multiple_of(4) - payload_len;
        let mut head = Head::begin(&template, &bth);
        head.finish(&template, payload_len);
        let payload = vec![0x5a; payload_len];
        let trailer = Trailer::Sealed { pad_len: pad_len as u8 };
        written(&Frame { head: head.bytes(), payload: Payload::Bytes(&payload), trailer })
    }

    #[test]
    fn a_lent_frame_is_kept_and_passed_on_where_it_lies() {
        let mut pool = FramePool::new();
        for bytes in [packet(0), packet(1), packet(500), packet(4095), vec![9; 60], vec![8; 900]] {
            let lease = lent(&bytes);
            let frame = Frame::lent(&lease).unwrap();
            assert_eq!(written(&frame), bytes);
            let held = pool.hold(&frame);
            assert_eq!((written(&held.as_frame()), held.len()), (bytes.clone(), bytes.len()));
            let again = pool.hold(&held.as_frame());
            for held in [&held, &again] {
                assert!(held.lease().is_some_and(|found| found.is_same(&lease)));
            }
            let opaque = pool.hold(&Frame::lent_opaque(&lease));
            assert!(opaque.lease().is_some());
            assert_eq!(written(&opaque.as_frame()), bytes);
            drop((held, again, opaque));
            assert!(lease.is_returned());
        }
        assert!(pool.classes.iter().all(Circulation::is_empty), "nothing was copied");
    }

    #[test]
    fn a_lent_frame_with_other_headers_or_trailer_is_not_what_was_lent() {
        let mut pool = FramePool::new();
        let bytes = packet(500);
        let lease = lent(&bytes);
        let frame = Frame::lent(&lease).unwrap();
        let other_head = [7; 70];
        let end = bytes.len() - frame.payload.len() - frame.trailer.len();
        let expected = [&other_head[..], &bytes[end..]].concat();
        for held in [pool.hold(&Frame { head: &other_head, ..frame }), {
            let held = pool.hold(&frame);
            pool.hold(&Frame { head: &other_head, ..held.as_frame() })
        }] {
            assert!(held.lease().is_none());
            assert_eq!(written(&held.as_frame()), expected);
            assert_eq!(held.payload().as_ptr(), lease.bytes()[end..].as_ptr());
        }
        let held = pool.hold(&frame);
        let sealed =
            pool.hold(&Frame { trailer: Trailer::Sealed { pad_len: 0 }, ..held.as_frame() });
        assert!(sealed.lease().is_none());
        let bare = pool.hold(&Frame { trailer: Trailer::None, ..frame });
        assert_eq!(written(&bare.as_frame()), &bytes[..bytes.len() - 4]);
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
        // A buffer is not reused while a frame refers to it.
        let next = pool.hold(&Frame::opaque(&[4; 500]));
        assert_ne!(next.payload().as_ptr(), at);
        let mut out = vec![0; again.len()];
        again.as_frame().write_to(&mut out);
        assert_eq!(out, [vec![3; 40], vec![1; 500 - HEAD_MAX]].concat());
    }
}
