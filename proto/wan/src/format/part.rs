//! PART datagrams: pieces of a frame that is too long for a path, and its reassembly.

use super::tunnel::InBytes;
use super::{HEADER_LEN, Header, Outer};
use longhaul_fec::Body;
use longhaul_node::{Frame, FrameBuf, FramePool, Payload, Trailer};
use longhaul_wire::{Ecn, HEAD_MAX, ICRC_LEN, ROCEV2_PORT, Split, Udp, split};
use std::ops::Range;

/// Range of the bytes behind UDP in a tunnelled frame that a PART carries.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Extent {
    /// Offset of the first byte.
    pub(crate) offset: u16,
    /// Number of bytes in all parts together.
    pub(crate) total: u16,
}

impl Extent {
    /// Length of an extent on the wire, between transport header and frame bytes.
    pub(crate) const LEN: usize = 4;

    pub(crate) fn write(self) -> [u8; Self::LEN] {
        let ([o0, o1], [t0, t1]) = (self.offset.to_be_bytes(), self.total.to_be_bytes());
        [o0, o1, t0, t1]
    }

    pub(crate) fn read([o0, o1, t0, t1]: [u8; Self::LEN]) -> Self {
        Extent { offset: u16::from_be_bytes([o0, o1]), total: u16::from_be_bytes([t0, t1]) }
    }

    /// `true` if `len` bytes at this offset fit the frame, and the frame fits a pool.
    pub(crate) fn takes(self, len: usize) -> bool {
        let (offset, total) = (usize::from(self.offset), usize::from(self.total));
        len > 0 && offset + len <= total && total <= longhaul_node::PAYLOAD_MAX
    }
}

/// Header fields up to UDP that no router changes and that are delivered with the frame: IPv4
/// identification and flags, addresses, UDP source port. The check of a PART covers them, as the
/// ICRC does for a whole frame.
struct Constant {
    bytes: [u8; 34],
    len: usize,
}

impl Constant {
    fn of(head: &[u8], udp: Udp) -> Self {
        let fields = match udp.is_ipv6 {
            true => [udp.ip + 8..udp.ip + 40, udp.udp..udp.udp + 2, 0..0],
            false => [udp.ip + 4..udp.ip + 7, udp.ip + 12..udp.ip + 20, udp.udp..udp.udp + 2],
        };
        let mut constant = Constant { bytes: [0; 34], len: 0 };
        for field in fields {
            let end = constant.len + field.len();
            constant.bytes[constant.len..end].copy_from_slice(&head[field]);
            constant.len = end;
        }
        constant
    }

    fn bytes(&self) -> &[u8] {
        &self.bytes[..self.len]
    }
}

/// Bytes that a held piece carries: those behind UDP in its head (only in a simulation), and its
/// payload.
pub(crate) fn piece_len(held: &FrameBuf, udp: Udp) -> usize {
    let frame = held.as_frame();
    frame.head.len().saturating_sub(udp.payload()) + frame.payload.len()
}

/// A piece of a frame, to be sent: a range of its payload, with the headers behind UDP before the
/// first byte, and pad and ICRC behind the last.
pub(crate) struct Piece<'a> {
    pub(crate) extent: Extent,
    inner: Frame<'a>,
    udp: Udp,
    /// Headers behind UDP, in the first piece.
    near: &'a [u8],
    payload: Payload<'a>,
    /// Pad and ICRC, in the last piece.
    end: [u8; 7],
    end_len: usize,
}

impl<'a> Piece<'a> {
    /// The piece with `range` of the payload of `inner`.
    pub(crate) fn of(inner: Frame<'a>, udp: Udp, range: Range<usize>, payload: &'a [u8]) -> Self {
        let (headers, payload_len) = (&inner.head[udp.payload()..], inner.payload.len());
        let total = headers.len() + payload_len + inner.trailer.len();
        let is_first = range.start == 0;
        let offset = if is_first { 0 } else { headers.len() + range.start };
        let is_last = range.end == payload_len;
        let (mut end, mut end_len) = ([0; 7], 0);
        if is_last && let Some((pad_len, bytes)) = inner.trailer.on_wire() {
            (end, end_len) = (bytes, pad_len + ICRC_LEN);
        }
        let payload = match inner.payload {
            Payload::Synthetic { .. } => {
                let behind = if is_last { inner.trailer.len() } else { 0 };
                Payload::Synthetic { len: range.len() + behind }
            }
            _ => Payload::Bytes(payload.get(range).unwrap_or_default()),
        };
        let near = if is_first { headers } else { &[] };
        let extent = Extent { offset: offset as u16, total: total as u16 };
        Piece { extent, inner, udp, near, payload, end, end_len }
    }

    /// Writes the headers up to the payload. Returns their length; `None` if they are too long.
    pub(crate) fn write_head(
        &self,
        port: u16,
        header: &Header,
        out: &mut [u8; HEAD_MAX],
    ) -> Option<usize> {
        let at = self.udp.payload();
        let extent_at = at + HEADER_LEN;
        let near_at = extent_at + Extent::LEN;
        let len = near_at + self.near.len();
        out.get_mut(near_at..len)?.copy_from_slice(self.near);
        out[..at].copy_from_slice(&self.inner.head[..at]);
        let extent = self.extent.write();
        let bytes = self.payload.as_bytes().unwrap_or_default();
        let constant = Constant::of(self.inner.head, self.udp);
        let covered = [constant.bytes(), &extent, self.near, bytes, self.end()];
        out[at..extent_at].copy_from_slice(&header.write_over(covered));
        out[extent_at..near_at].copy_from_slice(&extent);
        self.udp.set_destination_port(out, port);
        self.udp.set_checksum(out, 0);
        let behind = len - at + self.payload.len() + self.end_len;
        let before = self.udp.payload_len(self.inner.head)?;
        self.udp.lengthen(out, behind as i32 - before as i32).then_some(len)
    }

    /// Payload behind the headers.
    pub(crate) fn payload(&self) -> Payload<'a> {
        self.payload
    }

    /// Pad and ICRC, in the last piece.
    fn end(&self) -> &[u8] {
        &self.end[..self.end_len]
    }

    /// Trailer of the frame that carries it.
    pub(crate) fn trailer(&self) -> Trailer {
        if self.end_len > 0 { self.inner.trailer } else { Trailer::None }
    }

    /// Head that parity protects, as the holder of the piece has it.
    pub(crate) fn symbol_head(&self) -> &'a [u8] {
        let near = if self.payload.as_bytes().is_none() { self.near.len() } else { 0 };
        &self.inner.head[..self.udp.payload() + near]
    }

    /// Body that parity protects.
    pub(crate) fn symbol_body(&self) -> Body<'_> {
        match &self.payload {
            Payload::Bytes(bytes) => Body::Bytes([self.near, bytes, self.end()]),
            payload => Body::Virtual(payload.len()),
        }
    }
}

/// Takes the piece out of a PART, with headers up to UDP, and its bytes as payload. `None` if it is
/// truncated or damaged, or its extent is invalid.
pub(crate) fn take_piece(
    pool: &mut FramePool,
    frame: &Frame<'_>,
    outer: &Outer,
) -> Option<(Extent, FrameBuf)> {
    let at = outer.udp.payload();
    let near_at = at + HEADER_LEN + Extent::LEN;
    let extent = *frame.head.get(at + HEADER_LEN..)?.first_chunk::<{ Extent::LEN }>()?;
    let len = outer.udp.payload_len(frame.head)?.checked_sub(HEADER_LEN + Extent::LEN)?;
    let near = frame.head.get(near_at..)?;
    let near = &near[..near.len().min(len)];
    let header = outer.header_bytes(frame.head);
    let constant = Constant::of(frame.head, outer.udp);
    let held = if let Payload::Synthetic { len: far } = frame.payload {
        let is_sound = Header::is_sound_over(header, [constant.bytes(), &extent, near]);
        if !is_sound || near.len() + far != len || far > longhaul_node::PAYLOAD_MAX {
            return None;
        }
        let mut head = [0; HEAD_MAX];
        head[..at].copy_from_slice(&frame.head[..at]);
        head[at..at + near.len()].copy_from_slice(near);
        let payload = Payload::Synthetic { len: far };
        pool.hold(&Frame { head: &head[..at + near.len()], payload, trailer: Trailer::None })
    } else {
        if len > longhaul_node::PAYLOAD_MAX {
            return None;
        }
        let mut is_sound = false;
        let held = pool.build(at, len, Trailer::None, |head, bytes| {
            head.copy_from_slice(&frame.head[..at]);
            let (first, rest) = bytes.split_at_mut(near.len());
            first.copy_from_slice(near);
            is_sound = copy_behind_head(frame, rest).is_some()
                && Header::is_sound_over(header, [constant.bytes(), &extent, &*first, &*rest]);
        });
        if !is_sound {
            return None;
        }
        held
    };
    let extent = Extent::read(extent);
    extent.takes(len).then_some((extent, held))
}

/// Copies the bytes behind the head of `frame` to `out`. `None` if there are fewer.
fn copy_behind_head(frame: &Frame<'_>, out: &mut [u8]) -> Option<()> {
    let payload = frame.payload.as_bytes()?;
    let (first, rest) = out.split_at_mut(payload.len().min(out.len()));
    first.copy_from_slice(&payload[..first.len()]);
    if rest.is_empty() {
        return Some(());
    }
    let (_, end) = frame.trailer.on_wire()?;
    if rest.len() > frame.trailer.len() {
        return None;
    }
    rest.copy_from_slice(&end[..rest.len()]);
    Some(())
}

/// Reassembles pieces that together are all of a frame's bytes behind UDP. `None` if they do not
/// form a RoCE packet.
///
/// The ICRC is not checked. The fields that routers change come from one piece, except for the
/// congestion mark, which is set if any piece has one. `scratch` is a work buffer.
pub(crate) fn assemble<'a>(
    pool: &mut FramePool,
    scratch: &mut Vec<u8>,
    udp_checksum: u16,
    total: u16,
    pieces: impl Iterator<Item = (u16, &'a FrameBuf)> + Clone,
) -> Option<FrameBuf> {
    let is_marked = |held: &FrameBuf| Ecn::of(held.head()) == Some(Ecn::Congested);
    let (_, first) = pieces.clone().next()?;
    let model = pieces.clone().map(|(_, held)| held).find(|held| is_marked(held)).unwrap_or(first);
    let udp = Udp::find(model.head())?;
    let (at, total) = (udp.payload(), usize::from(total));
    if !udp.is_ipv6 && model.head()[udp.ip] != 0x45 {
        return None;
    }
    let mut head = [0; HEAD_MAX];
    head[..at].copy_from_slice(&model.head()[..at]);
    if !udp.is_ipv6 {
        head[udp.ip + 10..udp.ip + 12].fill(0);
    }
    udp.set_destination_port(&mut head, ROCEV2_PORT);
    udp.set_checksum(&mut head, udp_checksum);
    udp.finish_lengths(&mut head, total);
    let is_synthetic =
        |held: &FrameBuf| matches!(held.as_frame().payload, Payload::Synthetic { .. });
    if pieces.clone().all(|(_, held)| is_synthetic(held)) {
        let (_, first) = pieces.clone().find(|(offset, _)| *offset == 0)?;
        let near = first.head().get(at..)?;
        head.get_mut(at..at + near.len())?.copy_from_slice(near);
        let head = &head[..at + near.len()];
        let Ok(Split::Roce { layout, payload_len, pad }) = split(head, at + total) else {
            return None;
        };
        let payload = Payload::Synthetic { len: payload_len };
        let trailer = Trailer::Sealed { pad_len: pad as u8 };
        let is_whole = layout.payload == head.len() && payload_len <= longhaul_node::PAYLOAD_MAX;
        return is_whole.then(|| pool.hold(&Frame { head, payload, trailer }));
    }
    scratch.clear();
    scratch.resize(total, 0);
    for (offset, held) in pieces {
        let bytes = held.payload();
        let from = usize::from(offset);
        scratch.get_mut(from..from + bytes.len())?.copy_from_slice(bytes);
    }
    let near = total.min(HEAD_MAX - at);
    head[at..at + near].copy_from_slice(&scratch[..near]);
    let head = &head[..at + near];
    let Ok(Split::Roce { layout, payload_len, pad }) = split(head, at + total) else { return None };
    let whole = Frame { head, payload: Payload::Bytes(&scratch[near..]), trailer: Trailer::None };
    Some(InBytes::find(head, &whole, layout, payload_len, pad)?.hold(pool))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::DatagramKind;
    use crate::samples;
    use longhaul_units::{Psn, Qpn};
    use longhaul_wire::{Bth, Head, Opcode, Path, PathTemplate};
    use proptest::prelude::*;

    fn head(is_ipv6: bool, payload_len: usize) -> (Head, u8) {
        let ips = if is_ipv6 { ["fd00::1", "fd00::2"] } else { ["10.1.2.3", "10.9.8.7"] };
        let template = PathTemplate::new(&Path { traffic_class: 2, ..samples::route(ips, None) });
        let mut head =
            Head::begin(&template, &Bth::new(Opcode::RC_SEND_ONLY, Qpn::new(5), Psn::new(9)));
        let pad = head.finish(&template, payload_len);
        (head, pad)
    }

    fn bytes_of(frame: &Frame<'_>) -> Vec<u8> {
        let mut bytes = vec![0; frame.len()];
        frame.write_to(&mut bytes);
        bytes
    }

    /// The pieces of a frame split at `cuts`, as a port delivers them.
    fn cross(inner: &Frame<'_>, payload: &[u8], cuts: &[usize]) -> Vec<Vec<u8>> {
        let udp = Udp::find(inner.head).unwrap();
        let cut = |ends: &[usize]| {
            let piece = Piece::of(*inner, udp, ends[0]..ends[1], payload);
            let mut head = [0; HEAD_MAX];
            let header = Header { udp_checksum: 77, ..Header::new(DatagramKind::Part, 1) };
            let len = piece.write_head(4797, &header, &mut head).unwrap();
            let trailer = piece.trailer();
            bytes_of(&Frame { head: &head[..len], payload: piece.payload(), trailer })
        };
        cuts.windows(2).map(cut).collect()
    }

    fn taken(pool: &mut FramePool, wire: &[u8]) -> Option<(Extent, FrameBuf)> {
        let head = Head::copy_of(wire);
        let frame = Frame::received(&head, wire).unwrap_or_else(|_| Frame::opaque(wire));
        let outer = Outer::find(frame.head, 4797)
            .filter(|outer| outer.header.kind == DatagramKind::Part)?;
        take_piece(pool, &frame, &outer)
    }

    proptest! {
        #![proptest_config(ProptestConfig {
            failure_persistence: None,
            ..ProptestConfig::default()
        })]

        /// However it is split, the frame is reassembled byte for byte; with any bit flipped, that
        /// piece is refused.
        #[test]
        fn a_frame_comes_back_byte_for_byte(
            is_ipv6: bool,
            len in 2..5000_usize,
            cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..6),
            wrong in any::<prop::sample::Index>(),
            padding in 0..40_usize,
        ) {
            let (built, pad_len) = head(is_ipv6, len);
            let mut inner_head = built.bytes().to_vec();
            let udp = Udp::find(&inner_head).unwrap();
            udp.set_checksum(&mut inner_head, 77);
            let payload: Vec<u8> = (0..len).map(|n| (n * 7) as u8).collect();
            let trailer = Trailer::Received { pad: [0; 3], pad_len, icrc: [1, 2, 3, 4] };
            let inner = Frame { head: &inner_head, payload: Payload::Bytes(&payload), trailer };
            let mut ends: Vec<usize> =
                cuts.iter().map(|cut| 1 + cut.index(len - 1)).chain([0, len]).collect();
            ends.sort_unstable();
            ends.dedup();
            let mut pool = FramePool::new();
            let mut pieces = Vec::new();
            for wire in cross(&inner, &payload, &ends) {
                let mut damaged = wire.clone();
                // The check covers everything from the transport header on, and the same fields
                // before it as the ICRC.
                let at = udp.payload() + wrong.index(wire.len() - udp.payload());
                damaged[at] ^= 4;
                prop_assert!(taken(&mut pool, &damaged).is_none());
                let mut damaged = wire.clone();
                damaged[udp.udp - 1] ^= 4;
                prop_assert!(taken(&mut pool, &damaged).is_none(), "an address");
                prop_assert!(taken(&mut pool, &wire[..wire.len() - 1]).is_none(), "cut short");
                let mut padded = wire.clone();
                padded.resize(wire.len() + padding, 0);
                pieces.push(taken(&mut pool, &padded).unwrap());
            }
            pieces.reverse();
            let total = pieces[0].0.total;
            let held = pieces.iter().map(|(extent, held)| (extent.offset, held));
            let back = assemble(&mut pool, &mut Vec::new(), 77, total, held).unwrap();
            prop_assert_eq!(bytes_of(&back.as_frame()), bytes_of(&inner));
        }

        /// Pieces of any bytes and extents yield a whole packet or nothing.
        #[test]
        fn any_pieces_are_put_together_or_refused(
            is_ipv6: bool,
            total in any::<u16>(),
            pieces in prop::collection::vec(
                (any::<u16>(), prop::collection::vec(any::<u8>(), 0..300)),
                1..8,
            ),
            has_bth: bool,
        ) {
            let (built, _) = head(is_ipv6, 100);
            let at = Udp::find(built.bytes()).unwrap().payload();
            let mut pool = FramePool::new();
            let mut held = Vec::new();
            for (offset, mut bytes) in pieces {
                let offset = if has_bth { 0 } else { offset };
                if has_bth {
                    bytes.splice(0..bytes.len().min(12), built.bytes()[at..].iter().copied());
                }
                if (Extent { offset, total }).takes(bytes.len()) {
                    held.push((
                        offset,
                        pool.hold_pieces(&built.bytes()[..at], [&bytes, &[]], Trailer::None),
                    ));
                }
            }
            let held = held.iter().map(|(offset, held)| (*offset, held));
            if let Some(back) = assemble(&mut pool, &mut Vec::new(), 0, total, held) {
                prop_assert_eq!(back.len(), at + usize::from(total));
            }
        }
    }
}
