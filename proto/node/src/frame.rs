//! A frame in parts: headers, payload, trailer.

use crate::pool::{FrameBuf, PAYLOAD_MAX};
use crate::{Side, Transmit};
use longhaul_lease::Lease;
use longhaul_wire::{Ecn, HEAD_MAX, Head, ICRC_LEN, Layout, Malformed, Split, Udp, icrc, split};

/// Longest trailer: pad and ICRC.
pub const TRAILER_MAX: usize = 3 + ICRC_LEN;

/// One Ethernet frame without FCS, in up to three parts: headers, payload, and pad with ICRC.
///
/// For RoCEv2, `head` ends with the last extended header, and `payload` is the packet's payload
/// only. Any other frame has its leading bytes (at most [`HEAD_MAX`]) in `head`, the rest in
/// `payload`, and no trailer.
#[derive(Clone, Copy, Debug)]
pub struct Frame<'a> {
    /// Leading bytes.
    pub head: &'a [u8],
    /// Bytes behind the head.
    pub payload: Payload<'a>,
    /// End of the frame.
    pub trailer: Trailer,
}

/// A frame's payload, by value or by reference.
#[derive(Clone, Copy)]
pub enum Payload<'a> {
    /// Bytes, valid during the call only.
    Bytes(&'a [u8]),
    /// The payload of a pooled frame: keeping it costs a reference count, not a copy.
    Shared(&'a FrameBuf),
    /// `len` bytes from `at` on in a lease: keeping them costs a reference count, not a copy.
    Lent {
        /// The bytes of the whole frame.
        lease: &'a Lease,
        /// Offset of the payload in bytes.
        at: u32,
        /// Its length in bytes.
        len: u32,
    },
    /// Pieces of registered memory, read when the frame is serialised.
    Memory(&'a dyn Gather, &'a [Segment]),
    /// `len` bytes without content, for simulations.
    Synthetic {
        /// Length in bytes.
        len: usize,
    },
    /// A train: the frame stands for `count` consecutive packets that differ only in their PSN,
    /// which increases by one from that in the headers, each with `len` bytes without content.
    /// Valid only for receivers that accept trains: [`Transmit::train_max`].
    ///
    /// [`Transmit::train_max`]: crate::Transmit::train_max
    Train {
        /// Length of each payload in bytes.
        len: usize,
        /// Number of packets, at least 1.
        count: u32,
    },
}

/// A range of registered memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Segment {
    /// Address in the address space of the [`Gather`].
    pub address: u64,
    /// Length in bytes.
    pub len: usize,
}

/// Reads registered memory. The mapper implements it, because `proto` has no unsafe code.
pub trait Gather {
    /// Copies `out.len()` bytes at `address`, a range within a region that the node has checked.
    fn gather(&self, address: u64, out: &mut [u8]);
}

/// The end of a frame.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Trailer {
    /// None: not RoCEv2.
    None,
    /// Pad and ICRC as received.
    Received {
        /// Pad bytes; only the first `pad_len` are valid.
        pad: [u8; 3],
        /// 0 to 3.
        pad_len: u8,
        /// The received ICRC, valid or not.
        icrc: [u8; ICRC_LEN],
    },
    /// Same as [`Trailer::Received`], for a frame whose ICRC and checksums an earlier node of the
    /// box has found right.
    Checked {
        /// Pad bytes; only the first `pad_len` are valid.
        pad: [u8; 3],
        /// 0 to 3.
        pad_len: u8,
        /// The received ICRC.
        icrc: [u8; ICRC_LEN],
    },
    /// A packet built by a node: zero pad, and an ICRC that is computed when the frame is
    /// serialised.
    Sealed {
        /// 0 to 3.
        pad_len: u8,
    },
}

impl Trailer {
    /// Returns the `pad_len` pad bytes and the ICRC at the start of `end`.
    ///
    /// # Panics
    /// If `end` is shorter.
    #[inline(always)]
    pub(crate) fn received(end: &[u8], pad_len: usize) -> Trailer {
        // Fast path of nearly all packets: the ICRC is copied in one piece.
        if pad_len == 0
            && let Some(&icrc) = end.first_chunk::<ICRC_LEN>()
        {
            return Trailer::Received { pad: [0; 3], pad_len: 0, icrc };
        }
        let (mut pad, mut icrc) = ([0; 3], [0; ICRC_LEN]);
        pad[..pad_len].copy_from_slice(&end[..pad_len]);
        icrc.copy_from_slice(&end[pad_len..pad_len + ICRC_LEN]);
        Trailer::Received { pad, pad_len: pad_len as u8, icrc }
    }

    /// Length in bytes.
    pub fn len(&self) -> usize {
        match self {
            Trailer::None => 0,
            Trailer::Received { pad_len, .. }
            | Trailer::Checked { pad_len, .. }
            | Trailer::Sealed { pad_len } => usize::from(*pad_len) + ICRC_LEN,
        }
    }

    /// Pad and ICRC as received, if available: the pad length, and the pad bytes followed by the
    /// ICRC.
    #[inline]
    pub fn on_wire(&self) -> Option<(usize, [u8; 3 + ICRC_LEN])> {
        let (Trailer::Received { pad, pad_len, icrc } | Trailer::Checked { pad, pad_len, icrc }) =
            *self
        else {
            return None;
        };
        let pad_len = usize::from(pad_len);
        let mut bytes = [0; 3 + ICRC_LEN];
        bytes[..3].copy_from_slice(&pad);
        bytes[pad_len..pad_len + ICRC_LEN].copy_from_slice(&icrc);
        Some((pad_len, bytes))
    }

    /// True for [`Trailer::None`].
    pub fn is_empty(&self) -> bool {
        *self == Trailer::None
    }
}

impl<'a> Payload<'a> {
    /// No payload.
    pub const EMPTY: Payload<'static> = Payload::Bytes(&[]);

    /// Length in bytes; in a train, of each packet.
    #[inline]
    pub fn len(&self) -> usize {
        match self {
            Payload::Bytes(bytes) => bytes.len(),
            Payload::Shared(held) => held.payload().len(),
            Payload::Lent { len, .. } => *len as usize,
            Payload::Memory(_, segments) => segments.iter().map(|s| s.len).sum(),
            Payload::Synthetic { len } | Payload::Train { len, .. } => *len,
        }
    }

    /// Number of packets: 1, or those of a train.
    #[inline]
    pub fn count(&self) -> u32 {
        match self {
            Payload::Train { count, .. } => *count,
            _ => 1,
        }
    }

    /// True if the payload is empty.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The bytes, if they are contiguous.
    #[inline]
    pub fn as_bytes(&self) -> Option<&'a [u8]> {
        match self {
            Payload::Bytes(bytes) => Some(bytes),
            Payload::Shared(held) => Some(held.payload()),
            Payload::Lent { lease, at, len } => {
                Some(&lease.bytes()[*at as usize..][..*len as usize])
            }
            Payload::Memory(..) | Payload::Synthetic { .. } | Payload::Train { .. } => None,
        }
    }

    /// Copies the payload to `out`, which must have [`Payload::len`] bytes. Synthetic payload is
    /// written as zeros.
    #[inline]
    pub fn copy_to(&self, out: &mut [u8]) {
        if let Some(bytes) = self.as_bytes() {
            return out.copy_from_slice(bytes);
        }
        match self {
            Payload::Memory(memory, segments) => {
                let mut rest = out;
                for segment in *segments {
                    let (piece, after) = rest.split_at_mut(segment.len);
                    memory.gather(segment.address, piece);
                    rest = after;
                }
            }
            _ => out.fill(0),
        }
    }
}

impl std::fmt::Debug for Payload<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let kind = match self {
            Payload::Bytes(_) => "bytes",
            Payload::Shared(_) => "shared",
            Payload::Lent { .. } => "lent",
            Payload::Memory(..) => "memory",
            Payload::Synthetic { .. } => "synthetic",
            Payload::Train { .. } => "train",
        };
        write!(f, "{} {kind}", self.len())
    }
}

/// Transmits `frame` with a congestion mark in its headers, if [`Ecn::mark`] applies one.
pub fn transmit_marked(frame: &Frame<'_>, side: Side, out: &mut dyn Transmit) {
    let mut bytes = [0; HEAD_MAX];
    let head = &mut bytes[..frame.head.len()];
    head.copy_from_slice(frame.head);
    Ecn::mark(head);
    out.transmit(side, &Frame { head, ..*frame });
}

impl<'a> Frame<'a> {
    /// Splits a received frame into its parts.
    ///
    /// `head` must be a private copy of the frame's first [`HEAD_MAX`] bytes (or of all, if
    /// shorter), so that a peer that still owns `bytes` cannot change a header after it was
    /// checked.
    #[inline(always)]
    pub fn received(head: &'a Head, bytes: &'a [u8]) -> Result<Frame<'a>, Malformed> {
        match split(head.bytes(), bytes.len())? {
            Split::Other => Ok(Frame::received_opaque(head, bytes)),
            Split::Roce { layout, payload_len, pad } => {
                let (payload, end) = bytes[layout.payload..].split_at(payload_len);
                let trailer = Trailer::received(end, pad);
                Ok(Frame {
                    head: &head.bytes()[..layout.payload],
                    payload: Payload::Bytes(payload),
                    trailer,
                })
            }
        }
    }

    /// A received frame that is only forwarded; `head` as in [`Frame::received`].
    #[inline]
    pub fn received_opaque(head: &'a Head, bytes: &'a [u8]) -> Frame<'a> {
        let head = head.bytes();
        Frame { head, payload: Payload::Bytes(&bytes[head.len()..]), trailer: Trailer::None }
    }

    /// Splits a received frame that its port lends, and that nobody changes, into its parts.
    #[inline(always)]
    pub fn lent(lease: &'a Lease) -> Result<Frame<'a>, Malformed> {
        let bytes = lease.bytes();
        let head = &bytes[..bytes.len().min(HEAD_MAX)];
        let (head_len, payload_len, trailer) = match split(head, bytes.len())? {
            Split::Other => return Ok(Frame::lent_opaque(lease)),
            Split::Roce { layout, payload_len, pad } => (
                layout.payload,
                payload_len,
                Trailer::received(&bytes[layout.payload + payload_len..], pad),
            ),
        };
        let payload = Payload::Lent { lease, at: head_len as u32, len: payload_len as u32 };
        Ok(Frame { head: &head[..head_len], payload, trailer })
    }

    /// Same as [`Frame::opaque`], for a frame that its port lends.
    pub fn lent_opaque(lease: &'a Lease) -> Frame<'a> {
        let bytes = lease.bytes();
        let head = &bytes[..bytes.len().min(HEAD_MAX)];
        let payload =
            Payload::Lent { lease, at: head.len() as u32, len: (bytes.len() - head.len()) as u32 };
        Frame { head, payload, trailer: Trailer::None }
    }

    /// A frame that is only forwarded, never parsed.
    pub fn opaque(bytes: &'a [u8]) -> Frame<'a> {
        let (head, payload) = bytes.split_at(bytes.len().min(HEAD_MAX));
        Frame { head, payload: Payload::Bytes(payload), trailer: Trailer::None }
    }

    /// Length from the destination MAC to the last byte, without FCS; in a train, of each packet.
    #[inline]
    pub fn len(&self) -> usize {
        self.head.len() + self.payload.len() + self.trailer.len()
    }

    /// True if the frame has no bytes.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.head.is_empty() && self.payload.is_empty() && self.trailer.is_empty()
    }

    /// True if it fits a buffer of a [`FramePool`]: a head of at most [`HEAD_MAX`] bytes and a
    /// payload of at most [`PAYLOAD_MAX`] bytes.
    ///
    /// [`FramePool`]: crate::FramePool
    #[inline]
    pub fn fits_pool(&self) -> bool {
        self.head.len() <= HEAD_MAX && self.payload.len() <= PAYLOAD_MAX
    }

    /// True if a node may hold it: one packet, not empty, that fits the pool.
    #[inline]
    pub fn may_be_kept(&self) -> bool {
        self.fits_pool() && !self.is_empty() && self.payload.count() == 1
    }

    /// Serialises the frame to `out`, which must have [`Frame::len`] bytes, and computes the ICRC
    /// of a sealed one.
    ///
    /// # Panics
    /// If `out` has another length.
    #[inline]
    pub fn write_to(&self, out: &mut [u8]) {
        assert_eq!(out.len(), self.len(), "output length");
        let (head, rest) = out.split_at_mut(self.head.len());
        head.copy_from_slice(self.head);
        let (payload, trailer) = rest.split_at_mut(self.payload.len());
        self.payload.copy_to(payload);
        match self.trailer {
            Trailer::None => {}
            Trailer::Received { pad, pad_len, icrc } | Trailer::Checked { pad, pad_len, icrc } => {
                let (pad_out, icrc_out) = trailer.split_at_mut(usize::from(pad_len));
                pad_out.copy_from_slice(&pad[..usize::from(pad_len)]);
                icrc_out.copy_from_slice(&icrc);
            }
            Trailer::Sealed { pad_len } => {
                let (pad_out, icrc_out) = trailer.split_at_mut(usize::from(pad_len));
                pad_out.fill(0);
                icrc_out.copy_from_slice(&icrc_of(self.head, payload, pad_out));
            }
        }
    }

    /// Headers, payload and trailer, which is written to `end` with the ICRC of a sealed frame.
    /// `None` if the payload is not contiguous.
    #[inline]
    pub fn pieces<'b>(&'b self, end: &'b mut [u8; TRAILER_MAX]) -> Option<[&'b [u8]; 3]> {
        let payload = self.payload.as_bytes()?;
        let len = self.trailer.len();
        let (pad, icrc) = match &self.trailer {
            Trailer::None => return Some([self.head, payload, &[]]),
            Trailer::Received { pad, icrc, .. } | Trailer::Checked { pad, icrc, .. } => {
                (*pad, *icrc)
            }
            Trailer::Sealed { pad_len } => {
                ([0; 3], icrc_of(self.head, payload, &[0; 3][..usize::from(*pad_len)]))
            }
        };
        let pad_len = len - ICRC_LEN;
        end[..3].copy_from_slice(&pad);
        end[pad_len..len].copy_from_slice(&icrc);
        Some([self.head, payload, &end[..len]])
    }

    /// True if the ICRC is valid. It is for sealed and checked frames, and for payloads whose bytes
    /// are not available. It is not for a frame without an ICRC: a RoCEv2 frame that is opaque has
    /// wrong lengths.
    #[inline]
    pub fn icrc_is_right(&self) -> bool {
        self.has_icrc(|payload, pad| icrc_of(self.head, payload, pad))
    }

    /// Same as [`Frame::icrc_is_right`], with the layout of the headers already known.
    #[inline]
    pub fn icrc_is_right_at(&self, layout: &Layout) -> bool {
        self.has_icrc(|payload, pad| icrc::of(self.head, layout, payload, pad))
    }

    /// True if nothing that a receiver verifies is wrong: the ICRC is valid, and the checksums are
    /// right.
    #[inline]
    pub fn is_intact(&self) -> bool {
        Layout::find(self.head).is_ok_and(|layout| layout.is_some_and(|at| self.is_intact_at(&at)))
    }

    /// Same as [`Frame::is_intact`], with the layout of the headers already known.
    #[inline]
    pub fn is_intact_at(&self, layout: &Layout) -> bool {
        self.icrc_is_right_at(layout) && self.checksums_are_right_at(layout)
    }

    /// True if the checksums are right: that of IPv4, and that of UDP if there is one. They cover
    /// what the ICRC leaves out: the IPv4 traffic class and hop limit, and the checksums
    /// themselves. A receiver's network stack drops a frame with a wrong one, however often it is
    /// retransmitted.
    ///
    /// They are right for sealed and checked frames, as in [`Frame::icrc_is_right`].
    #[inline]
    pub fn checksums_are_right_at(&self, layout: &Layout) -> bool {
        let Trailer::Received { pad, pad_len, icrc } = &self.trailer else { return true };
        let udp = Udp::from(*layout);
        udp.ip_checksum_is_right(self.head)
            && (udp.checksum(self.head) == 0
                || self.payload.as_bytes().is_none_or(|payload| {
                    let pad = &pad[..usize::from(*pad_len)];
                    udp.checksum_is_right(self.head, &[payload, pad, icrc])
                }))
    }

    #[inline]
    fn has_icrc(&self, compute: impl FnOnce(&[u8], &[u8]) -> [u8; ICRC_LEN]) -> bool {
        // By reference: a copy in other pieces than it was written in would defeat store-to-load
        // forwarding.
        match (&self.trailer, self.payload.as_bytes()) {
            (Trailer::Received { pad, pad_len, icrc }, Some(payload)) => {
                compute(payload, &pad[..usize::from(*pad_len)]) == *icrc
            }
            (trailer, _) => !matches!(trailer, Trailer::None),
        }
    }
}

/// The ICRC of a packet; zeros if `head` is no RoCEv2 header stack.
#[inline]
fn icrc_of(head: &[u8], payload: &[u8], pad: &[u8]) -> [u8; ICRC_LEN] {
    match Layout::find(head) {
        Ok(Some(layout)) => icrc::of(head, &layout, payload, pad),
        _ => [0; ICRC_LEN],
    }
}
