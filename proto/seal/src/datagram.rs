//! Datagrams to the seal's port: sealing and opening.

use crate::DropReason;
use crate::addresses::AddressKey;
use crate::format::{Bound, DatagramKind, HEADER_LEN, Header, OVERHEAD, TAG_LEN, copy_out};
use crate::session::{Session, Way};
use longhaul_node::{Frame, FrameBuf, FramePool, PAYLOAD_MAX, Payload};
use longhaul_units::Instant;
use longhaul_wire::{HEAD_MAX, Path, Udp};

/// Hop limit of the seal's own datagrams.
const HOP_LIMIT: u8 = 64;
/// The ECN field in the traffic class.
const ECN_BITS: u8 = 3;

/// A datagram to the port, on a path.
#[derive(Clone, Copy)]
pub(crate) struct Datagram<'a> {
    /// Path, counted from 0.
    pub(crate) path: usize,
    pub(crate) frame: &'a Frame<'a>,
    pub(crate) udp: Udp,
    /// Bytes behind UDP.
    pub(crate) len: usize,
}

impl<'a> Datagram<'a> {
    /// Finds a datagram to `port` in `frame`. `None` if it is not one; `Err` if it cannot be
    /// handled.
    #[inline(always)]
    pub(crate) fn find(
        path: usize,
        frame: &'a Frame<'a>,
        port: u16,
    ) -> Option<Result<Self, DropReason>> {
        let udp = Udp::find(frame.head)?;
        if udp.destination_port(frame.head) != port {
            return None;
        }
        let len = udp.payload_len(frame.head).filter(|len| udp.payload() + len <= frame.len());
        Some(match len {
            _ if !frame.may_be_kept() => Err(DropReason::Oversized),
            Some(len) => Ok(Datagram { path, frame, udp, len }),
            None => Err(DropReason::Malformed),
        })
    }

    /// Bytes of the head behind UDP.
    #[inline(always)]
    pub(crate) fn message(&self) -> &'a [u8] {
        &self.frame.head[self.udp.payload()..]
    }

    /// Its source.
    #[inline(always)]
    pub(crate) fn source(&self) -> AddressKey {
        AddressKey::in_head(self.frame.head, self.udp, true)
    }

    /// Its destination.
    #[inline(always)]
    pub(crate) fn destination(&self) -> AddressKey {
        AddressKey::in_head(self.frame.head, self.udp, false)
    }

    /// Way of the seal's own datagrams that follow this one.
    pub(crate) fn way_on(&self) -> Way {
        Way { path: self.path, headers: own_headers(self.udp.path(self.frame.head)) }
    }

    /// Way of the seal's own datagrams that answer this one.
    pub(crate) fn way_back(&self) -> Way {
        Way { path: self.path, headers: own_headers(self.udp.path(self.frame.head).reversed()) }
    }

    /// Seals the datagram with one copy, into the buffer in which it is encrypted. Always inlined,
    /// like the rest of the data path: returning the result through memory costs more than the
    /// work.
    #[inline(always)]
    pub(crate) fn seal(
        &self,
        now: Instant,
        kind: DatagramKind,
        pool: &mut FramePool,
        session: &mut Session,
    ) -> Result<FrameBuf, DropReason> {
        let Datagram { path, frame, udp, len } = *self;
        let at = udp.payload();
        let is_synthetic = matches!(frame.payload, Payload::Synthetic { .. });
        if len + TAG_LEN > PAYLOAD_MAX || is_synthetic && frame.head.len() + HEADER_LEN > HEAD_MAX {
            return Err(DropReason::Oversized);
        }
        let number = session.number(now, path, len).ok_or(DropReason::NoKeys)?;
        let udp_checksum = udp.checksum(frame.head);
        let header = Header { kind, path: path as u8, udp_checksum, index: session.remote, number };
        let write_head = |out: &mut [u8]| {
            out[..at].copy_from_slice(&frame.head[..at]);
            out[at..at + HEADER_LEN].copy_from_slice(&header.write());
            udp.set_checksum(out, 0);
            udp.lengthen(out, OVERHEAD as i32)
        };
        if let Payload::Synthetic { len } = frame.payload {
            let mut head = [0; HEAD_MAX];
            if !write_head(&mut head) {
                return Err(DropReason::Oversized);
            }
            let end = frame.head.len() + HEADER_LEN;
            head[at + HEADER_LEN..end].copy_from_slice(&frame.head[at..]);
            let payload = Payload::Synthetic { len: len + TAG_LEN };
            return Ok(pool.hold(&Frame { head: &head[..end], payload, trailer: frame.trailer }));
        }
        let mut outcome = Err(DropReason::Malformed);
        let held = pool.lend(at + HEADER_LEN + len + TAG_LEN, &mut |out| {
            let (head, out) = out.split_at_mut(at + HEADER_LEN);
            if !write_head(head) {
                outcome = Err(DropReason::Oversized);
                return;
            }
            let (text, tag) = out.split_at_mut(len);
            if len + at == frame.len() {
                Frame { head: &frame.head[at..], ..*frame }.write_to(text);
            } else if copy_out(frame, at, text).is_none() {
                // The frame is shorter than its UDP length.
                return;
            }
            let bound = Bound::new(&header.write(), head, udp);
            if session.sealing.seal(header.nonce(), bound.bytes(), text, tag) {
                outcome = Ok(());
            }
        });
        outcome.map(|()| held)
    }

    /// Opens the datagram, sealed with `header`, and notes its number.
    #[inline(always)]
    pub(crate) fn open(
        &self,
        header: &Header,
        pool: &mut FramePool,
        session: &mut Session,
    ) -> Result<FrameBuf, DropReason> {
        let Datagram { frame, udp, len, .. } = *self;
        let at = udp.payload();
        let len = len.checked_sub(OVERHEAD).ok_or(DropReason::Malformed)?;
        if len > PAYLOAD_MAX {
            return Err(DropReason::Oversized);
        }
        if !session.is_fresh(header.path, header.number) {
            return Err(DropReason::Replayed);
        }
        let write_head = |out: &mut [u8]| {
            out[..at].copy_from_slice(&frame.head[..at]);
            udp.set_checksum(out, header.udp_checksum);
            udp.lengthen(out, -(OVERHEAD as i32))
        };
        if let Payload::Synthetic { len: payload_len } = frame.payload {
            let payload_len = payload_len.checked_sub(TAG_LEN).ok_or(DropReason::Malformed)?;
            let mut head = [0; HEAD_MAX];
            if !write_head(&mut head) {
                return Err(DropReason::Malformed);
            }
            let rest = &frame.head[at + HEADER_LEN..];
            head[at..at + rest.len()].copy_from_slice(rest);
            let payload = Payload::Synthetic { len: payload_len };
            let head = &head[..at + rest.len()];
            session.take(header.path, header.number, len);
            return Ok(pool.hold(&Frame { head, payload, trailer: frame.trailer }));
        }
        let tag = tag_at(frame, at + HEADER_LEN + len).ok_or(DropReason::Malformed)?;
        let bound = Bound::new(&header.write(), frame.head, udp);
        let mut outcome = Err(DropReason::Malformed);
        let held = pool.lend(at + len, &mut |out| {
            let (head, text) = out.split_at_mut(at);
            if !write_head(head) || copy_out(frame, at + HEADER_LEN, text).is_none() {
                return;
            }
            outcome = match session.opening.open(header.nonce(), bound.bytes(), text, tag) {
                true => Ok(()),
                false => Err(DropReason::Unauthenticated),
            };
        });
        outcome?;
        session.take(header.path, header.number, len);
        Ok(held)
    }
}

/// Headers of the seal's own datagrams: those of other datagrams, with the seal's hop limit, as
/// that of a datagram from far away may be exhausted, and without the ECN mark.
fn own_headers(headers: Path) -> Path {
    Path { hop_limit: HOP_LIMIT, traffic_class: headers.traffic_class & !ECN_BITS, ..headers }
}

/// The result of [`Seal::inbound`] as a frame whose payload can be kept by reference.
#[inline]
pub(crate) fn opened(held: &FrameBuf) -> Frame<'_> {
    held.lease().map_or_else(|| held.as_frame(), Frame::lent_opaque)
}

/// Tag at offset `at`.
#[inline]
fn tag_at(frame: &Frame<'_>, at: usize) -> Option<[u8; TAG_LEN]> {
    if let Some(in_payload) = at.checked_sub(frame.head.len()) {
        return frame.payload.as_bytes()?.get(in_payload..)?.first_chunk().copied();
    }
    let mut tag = [0; TAG_LEN];
    copy_out(frame, at, &mut tag)?;
    Some(tag)
}
