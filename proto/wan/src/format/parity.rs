//! PARITY datagrams: the parts of a numbered datagram that they protect, and its reconstruction.

use super::{DatagramKind, Extent, HEADER_LEN, Header};
use longhaul_fec::{Body, HEAD_BLOCK_MAX, HEAD_MAX as SYMBOL_HEAD_MAX, Parity, ParityId};
use longhaul_node::{Frame, FrameBuf, FramePool, Payload, Trailer};
use longhaul_wire::{
    Ecn, HEAD_MAX, ICRC_LEN, Layout, Path, PathTemplate, ROCEV2_PORT, Split, Udp, split,
};

/// A protected head up to the BTH: the record's, IPv4 identification and flags, UDP source port.
const FIXED: usize = 20;
/// Bit beside the type in a protected head: the frame had a congestion mark before it was
/// tunnelled.
const MARKED: u8 = 1 << 7;
/// A protected head without a frame: type, UDP checksum, stream, sequence, number.
const RECORD: usize = 15;

/// The header fields of a numbered datagram that parity protects.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct ProtectedHeader {
    pub(crate) kind: DatagramKind,
    /// The frame had a congestion mark before it was tunnelled.
    pub(crate) was_marked: bool,
    pub(crate) udp_checksum: u16,
    pub(crate) stream: u32,
    /// Low half.
    pub(crate) sequence: u32,
    /// Low half. It detects a wrong reconstruction: a sum over other datagrams than those of the
    /// parity does not yield the missing number, but can yield a valid ICRC, if they are an odd
    /// number of equal length.
    pub(crate) number: u32,
    /// Extent of a [`DatagramKind::Part`].
    pub(crate) extent: Extent,
}

impl ProtectedHeader {
    pub(crate) fn of(header: &Header) -> Self {
        let Header { kind, udp_checksum, stream, sequence, number, flags, .. } = *header;
        let was_marked = flags & Header::MARKED_BEFORE != 0;
        ProtectedHeader {
            kind,
            was_marked,
            udp_checksum,
            stream,
            sequence,
            number,
            extent: Extent::default(),
        }
    }

    /// Writes the header fields that both ends know identically, which excludes every field that a
    /// router changes. Returns the length.
    pub(crate) fn write_head(
        &self,
        frame: Option<&Frame<'_>>,
        out: &mut [u8; SYMBOL_HEAD_MAX],
    ) -> usize {
        out[0] = self.kind as u8 | if self.was_marked { MARKED } else { 0 };
        out[1..3].copy_from_slice(&self.udp_checksum.to_be_bytes());
        out[3..7].copy_from_slice(&self.stream.to_be_bytes());
        out[7..11].copy_from_slice(&self.sequence.to_be_bytes());
        out[11..15].copy_from_slice(&self.number.to_be_bytes());
        let Some((frame, udp)) = frame.and_then(|frame| Some((frame, Udp::find(frame.head)?)))
        else {
            return RECORD;
        };
        let id_at = udp.ip + 4;
        let id = [frame.head[id_at], frame.head[id_at + 1], frame.head[id_at + 2]];
        out[15..18].copy_from_slice(if udp.is_ipv6 { &[0; 3] } else { &id });
        out[18..20].copy_from_slice(&frame.head[udp.udp..udp.udp + 2]);
        let transport = &frame.head[udp.payload()..];
        let mut len = FIXED;
        if self.kind == DatagramKind::Part {
            len += Extent::LEN;
            out[FIXED..len].copy_from_slice(&self.extent.write());
        }
        out[len..len + transport.len()].copy_from_slice(transport);
        len += transport.len();
        if let Some((pad_len, end)) = frame.trailer.on_wire() {
            let end = &end[..pad_len + ICRC_LEN];
            out[len..len + end.len()].copy_from_slice(end);
            len += end.len();
        }
        len
    }

    /// Parses the beginning of [`ProtectedHeader::write_head`]'s output. The rest belongs to the
    /// frame.
    pub(crate) fn read_head(head: &[u8]) -> Option<(ProtectedHeader, &[u8])> {
        let (fixed, rest) = head.split_first_chunk::<RECORD>()?;
        let [kind, c0, c1, s0, s1, s2, s3, q0, q1, q2, q3, n0, n1, n2, n3] = *fixed;
        let was_marked = kind & MARKED != 0;
        let kinds = [DatagramKind::Data, DatagramKind::Part, DatagramKind::End, DatagramKind::Void];
        let kind = kinds.into_iter().find(|known| *known as u8 == kind & !MARKED)?;
        let extent = match kind {
            DatagramKind::Part => Extent::read(*rest.get(FIXED - RECORD..)?.first_chunk()?),
            _ => Extent::default(),
        };
        let protected = ProtectedHeader {
            kind,
            was_marked,
            udp_checksum: u16::from_be_bytes([c0, c1]),
            stream: u32::from_be_bytes([s0, s1, s2, s3]),
            sequence: u32::from_be_bytes([q0, q1, q2, q3]),
            number: u32::from_be_bytes([n0, n1, n2, n3]),
            extent,
        };
        (matches!(kind, DatagramKind::Data | DatagramKind::Part) || rest.is_empty())
            .then_some((protected, rest))
    }
}

/// The part of a payload that parity protects.
pub(crate) fn symbol_body<'a>(frame: &'a Frame<'_>) -> Body<'a> {
    match frame.payload.as_bytes() {
        Some(bytes) => Body::bytes(bytes),
        None => Body::Virtual(frame.payload.len()),
    }
}

/// Headers up to UDP of a stream's latest frame. Parity does not protect the fields that routers
/// change, which are alike in all frames of a stream.
#[derive(Clone, Copy)]
pub(crate) struct Prefix {
    bytes: [u8; Prefix::MAX],
    len: u8,
}

impl Prefix {
    /// Ethernet, one VLAN tag, IPv6, UDP.
    const MAX: usize = 18 + 40 + Udp::LEN;

    /// `None` if the headers are longer than those of any tunnelled frame without IPv4 options.
    pub(crate) fn of(head: &[u8]) -> Option<Prefix> {
        let len = Udp::find(head)?.payload();
        let mut bytes = [0; Prefix::MAX];
        bytes.get_mut(..len)?.copy_from_slice(&head[..len]);
        Some(Prefix { bytes, len: len as u8 })
    }

    /// Reconstructs the headers up to UDP; `first` is the bytes behind
    /// [`ProtectedHeader::read_head`]. The congestion mark is the frame's own, not that of the
    /// latest frame.
    fn restored(
        &self,
        protected: &ProtectedHeader,
        first: [u8; FIXED - RECORD],
    ) -> Option<([u8; HEAD_MAX], Udp)> {
        let [id0, id1, flags, p0, p1] = first;
        let prefix = &self.bytes[..usize::from(self.len)];
        let udp = Udp::find(prefix)?;
        let at = prefix.len();
        let mut out = [0; HEAD_MAX];
        out[..at].copy_from_slice(prefix);
        let class_at = udp.ip + 1;
        let ecn_at = if udp.is_ipv6 { 4 } else { 0 };
        if protected.was_marked {
            out[class_at] |= 3 << ecn_at;
        } else if Ecn::of(&out[..at]) == Some(Ecn::Congested) {
            out[class_at] ^= 1 << ecn_at;
        }
        if !udp.is_ipv6 {
            if prefix[udp.ip] != 0x45 {
                return None;
            }
            out[udp.ip + 4..udp.ip + 7].copy_from_slice(&[id0, id1, flags]);
            out[udp.ip + 10..udp.ip + 12].fill(0);
        }
        out[udp.udp..udp.udp + 2].copy_from_slice(&[p0, p1]);
        Some((out, udp))
    }

    /// Reconstructs a piece of a frame from its repaired head, behind
    /// [`ProtectedHeader::read_head`], and body. `None` if they do not form a piece.
    pub(crate) fn rebuild_piece(
        &self,
        pool: &mut FramePool,
        protected: &ProtectedHeader,
        head: &[u8],
        body: &Body<'_>,
    ) -> Option<FrameBuf> {
        let (first, rest) = head.split_first_chunk::<{ FIXED - RECORD }>()?;
        let near = rest.get(Extent::LEN..)?;
        let (mut out, _) = self.restored(protected, *first)?;
        let at = usize::from(self.len);
        out.get_mut(at..at + near.len())?.copy_from_slice(near);
        let payload = match *body {
            Body::Bytes([bytes, [], []]) if near.is_empty() => Payload::Bytes(bytes),
            Body::Virtual(len) => Payload::Synthetic { len },
            Body::Bytes(_) => return None,
        };
        let is_whole = protected.extent.takes(near.len() + body.len());
        let head = &out[..at + near.len()];
        (is_whole && body.len() <= longhaul_node::PAYLOAD_MAX)
            .then(|| pool.hold(&Frame { head, payload, trailer: Trailer::None }))
    }

    /// Reconstructs a frame from its repaired head, behind [`ProtectedHeader::read_head`], and
    /// body. `None` if they do not form a frame.
    pub(crate) fn rebuild(
        &self,
        pool: &mut FramePool,
        protected: &ProtectedHeader,
        head: &[u8],
        body: &Body<'_>,
    ) -> Option<FrameBuf> {
        let (first, transport) = head.split_first_chunk::<{ FIXED - RECORD }>()?;
        let (mut out, udp) = self.restored(protected, *first)?;
        let at = usize::from(self.len);
        out.get_mut(at..at + transport.len())?.copy_from_slice(transport);
        udp.set_destination_port(&mut out, ROCEV2_PORT);
        udp.set_checksum(&mut out, protected.udp_checksum);
        let headers = Layout::find(&out[..at + transport.len()]).ok().flatten()?.payload;
        let end = &transport[headers - at..];
        let trailer = match (body, end.len().checked_sub(ICRC_LEN)) {
            (Body::Virtual(_), None) if end.is_empty() => {
                Trailer::Sealed { pad_len: out[at + 1] >> 4 & 3 }
            }
            (Body::Bytes(_), Some(pad_len @ 0..=3)) => {
                let (mut pad, mut icrc) = ([0; 3], [0; ICRC_LEN]);
                pad[..pad_len].copy_from_slice(&end[..pad_len]);
                icrc.copy_from_slice(&end[pad_len..]);
                Trailer::Received { pad, pad_len: pad_len as u8, icrc }
            }
            _ => return None,
        };
        let behind_udp = headers - at + body.len() + trailer.len();
        udp.finish_lengths(&mut out, behind_udp);
        let pad_len = trailer.len() - ICRC_LEN;
        let head = &out[..headers];
        let is_whole = matches!(split(head, at + behind_udp),
            Ok(Split::Roce { layout, payload_len, pad })
                if layout.payload == headers && payload_len == body.len() && pad == pad_len);
        let payload = match *body {
            Body::Bytes([bytes, [], []]) => Payload::Bytes(bytes),
            Body::Virtual(len) => Payload::Synthetic { len },
            Body::Bytes(_) => return None,
        };
        (is_whole && body.len() <= longhaul_node::PAYLOAD_MAX)
            .then(|| pool.hold(&Frame { head, payload, trailer }))
    }
}

/// Shape of a group as encoded in the stream field: symbols, stride, number of parities and index
/// of this one in 4 bits each, length of the head block.
fn shape(id: &ParityId, head_len: usize) -> u32 {
    u32::from_be_bytes([id.symbols, id.stride, id.rows << 4 | id.row, head_len as u8])
}

/// A PARITY datagram, ready to send.
pub(crate) struct ParityDatagram<'a> {
    head: [u8; HEAD_MAX],
    head_len: usize,
    payload: Payload<'a>,
}

impl<'a> ParityDatagram<'a> {
    /// `None` if the protected heads are longer than the room before a payload.
    pub(crate) fn new(
        path: &Path,
        port: u16,
        header: &Header,
        parity: &Parity<'a>,
    ) -> Option<Self> {
        let payload = match parity.body {
            Body::Bytes([bytes, [], []]) => Payload::Bytes(bytes),
            Body::Virtual(len) => Payload::Synthetic { len },
            Body::Bytes(_) => return None,
        };
        let template = PathTemplate::new(path);
        let below = template.bytes();
        let mut head = [0; HEAD_MAX];
        let (at, body_at) = (below.len(), below.len() + HEADER_LEN);
        let head_len = body_at + parity.head.len();
        head.get_mut(body_at..head_len)?.copy_from_slice(parity.head);
        head[..at].copy_from_slice(below);
        let header = Header {
            number: parity.id.base as u32,
            stream: shape(&parity.id, parity.head.len()),
            ..*header
        };
        let covered = payload.as_bytes().unwrap_or_default();
        head[at..body_at].copy_from_slice(&header.write_over([parity.head, covered]));
        if let Some(udp) = Udp::find(&head) {
            udp.set_destination_port(&mut head, port);
            udp.finish_lengths(&mut head, head_len - at + payload.len());
        }
        Some(ParityDatagram { head, head_len, payload })
    }

    pub(crate) fn frame(&self) -> Frame<'_> {
        Frame { head: &self.head[..self.head_len], payload: self.payload, trailer: Trailer::None }
    }
}

/// Body of a received PARITY datagram: the head block, the part of the body that lies behind it in
/// the headers, and the rest.
#[derive(Clone, Copy)]
pub(crate) struct ParityBody<'a> {
    head: &'a [u8],
    near: &'a [u8],
    far: Body<'a>,
}

impl<'a> ParityBody<'a> {
    /// `None` if it is truncated, or its head block exceeds the room.
    pub(crate) fn find(frame: &'a Frame<'_>, udp: Udp, header: &Header) -> Option<Self> {
        let head_len = usize::from(header.stream as u8);
        let len = udp.payload_len(frame.head)?.checked_sub(HEADER_LEN)?;
        let behind = frame.head.get(udp.payload() + HEADER_LEN..)?;
        let behind = &behind[..behind.len().min(len)];
        let (head, near) =
            behind.split_at_checked(head_len).filter(|(head, _)| head.len() <= HEAD_BLOCK_MAX)?;
        let rest = len - behind.len();
        let far = match frame.payload {
            Payload::Synthetic { len } if near.is_empty() && len == rest => Body::Virtual(len),
            payload => Body::bytes(payload.as_bytes()?.get(..rest)?),
        };
        Some(ParityBody { head, near, far })
    }

    /// `true` if the check of the header in `bytes` is valid.
    pub(crate) fn is_sound(&self, bytes: &[u8]) -> bool {
        let far = match self.far {
            Body::Bytes([bytes, ..]) => bytes,
            Body::Virtual(_) => &[],
        };
        Header::is_sound_over(bytes, [self.head, self.near, far])
    }

    /// The parity, of a group whose first number is `base`.
    pub(crate) fn parity(&self, base: u64, header: &Header) -> Parity<'a> {
        let [symbols, stride, row, _] = header.stream.to_be_bytes();
        let id = ParityId { base, symbols, stride, rows: row >> 4, row: row & 15 };
        let body = match self.far {
            Body::Bytes([far, ..]) => Body::Bytes([self.near, far, &[]]),
            body @ Body::Virtual(_) => body,
        };
        Parity { id, head: self.head, body }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::samples;
    use longhaul_units::{Psn, Qpn, RKey};
    use longhaul_wire::{AtomicEth, Bth, Head, MacAddr, Opcode};
    use proptest::prelude::*;

    fn route(is_ipv6: bool, vlan: Option<u16>) -> Path {
        let ips = if is_ipv6 { ["fd00::1", "fd00::2"] } else { ["10.1.2.3", "10.9.8.7"] };
        Path { traffic_class: 2, ..samples::route(ips, vlan) }
    }

    fn head(route: &Path, payload_len: usize, is_atomic: bool) -> (Head, u8) {
        let template = PathTemplate::new(route);
        let opcode = if is_atomic { Opcode::RC_CMP_SWAP } else { Opcode::RC_SEND_ONLY };
        let mut head = Head::begin(&template, &Bth::new(opcode, Qpn::new(5), Psn::new(9)));
        if is_atomic {
            let atomic =
                AtomicEth { virtual_address: 1, rkey: RKey(2), swap_or_add: 3, compare: 4 };
            head.push_atomic(&atomic);
        }
        let pad = head.finish(&template, payload_len);
        (head, pad)
    }

    fn bytes_of(frame: &Frame<'_>) -> Vec<u8> {
        let mut bytes = vec![0; frame.len()];
        frame.write_to(&mut bytes);
        bytes
    }

    proptest! {
        #![proptest_config(ProptestConfig {
            failure_persistence: None,
            ..ProptestConfig::default()
        })]

        /// A frame is reconstructed from its protected parts and another frame of its stream, as
        /// the path would have delivered it.
        #[test]
        fn a_frame_comes_back_byte_for_byte(
            is_ipv6: bool,
            is_atomic: bool,
            is_virtual: bool,
            vlan in prop::option::of(1..4095_u16),
            len in 0..5000_usize,
            id in any::<[u8; 3]>(),
            words in any::<[u32; 3]>(),
        ) {
            let len = if is_atomic { 0 } else { len };
            let on_arrival = |hosts: &Path| Path {
                source_mac: MacAddr([2, 0, 0, 0, 0, 9]),
                hop_limit: 61,
                traffic_class: 0x28 | 2,
                ..*hosts
            };
            let udp_source_port = words[0] as u16 | 0xc000;
            let sent_by = Path { udp_source_port, ..route(is_ipv6, vlan) };
            let (built, pad_len) = head(&sent_by, len, is_atomic);
            let expected_head = head(&on_arrival(&sent_by), len, is_atomic).0;
            let (mut built, mut expected_head) =
                (built.bytes().to_vec(), expected_head.bytes().to_vec());
            let udp = Udp::find(&built).unwrap();
            let was_marked = words[1] & 1 == 1;
            if was_marked {
                expected_head[udp.ip + 1] |= if is_ipv6 { 3 << 4 } else { 3 };
            }
            for head in [&mut built, &mut expected_head] {
                if !is_ipv6 {
                    head[udp.ip + 4..udp.ip + 6].copy_from_slice(&id[..2]);
                    head[udp.ip + 10..udp.ip + 12].fill(0);
                    let behind =
                        usize::from(u16::from_be_bytes([head[udp.udp + 4], head[udp.udp + 5]])) - 8;
                    udp.finish_lengths(head, behind);
                }
                udp.set_checksum(head, words[0] as u16);
            }
            let payload = vec![7; len];
            let (payload, trailer) = match is_virtual {
                true => (Payload::Synthetic { len }, Trailer::Sealed { pad_len }),
                false => (
                    Payload::Bytes(&payload[..]),
                    Trailer::Received { pad: [0; 3], pad_len, icrc: [1, 2, 3, 4] },
                ),
            };
            let frame = Frame { head: &built, payload, trailer };
            let protected = ProtectedHeader {
                kind: DatagramKind::Data,
                was_marked,
                udp_checksum: words[0] as u16,
                stream: words[1],
                sequence: words[2],
                number: words[0],
                extent: Extent::default(),
            };
            let mut symbol = [0; SYMBOL_HEAD_MAX];
            let symbol_len = protected.write_head(Some(&frame), &mut symbol);
            prop_assert!(
                4 + symbol_len + HEADER_LEN + PathTemplate::new(&sent_by).bytes().len() <= HEAD_MAX
            );
            // Another frame of the stream, marked on its path.
            let other = Path { traffic_class: 0x28 | 3, ..on_arrival(&route(is_ipv6, vlan)) };
            let prefix = Prefix::of(head(&other, 77, false).0.bytes()).unwrap();
            let (read, rest) = ProtectedHeader::read_head(&symbol[..symbol_len]).unwrap();
            prop_assert_eq!(read, protected);
            let body = symbol_body(&frame);
            let back = prefix.rebuild(&mut FramePool::new(), &protected, rest, &body).unwrap();
            let expected = Frame { head: &expected_head, payload, trailer };
            // Without bytes there is no ICRC either.
            if is_virtual {
                prop_assert_eq!(back.head(), &expected_head[..]);
                prop_assert_eq!(back.len(), expected.len());
            } else {
                prop_assert_eq!(bytes_of(&back.as_frame()), bytes_of(&expected));
            }
        }

        /// Whatever bytes parity yields, the result is a whole frame or none.
        #[test]
        fn any_bytes_are_rebuilt_or_refused(
            is_ipv6: bool,
            bytes in prop::collection::vec(any::<u8>(), 0..192),
            body_len in 0..300_usize,
            is_virtual: bool,
        ) {
            let prefix = Prefix::of(head(&route(is_ipv6, None), 77, false).0.bytes()).unwrap();
            let body = vec![1; body_len];
            let body = if is_virtual { Body::Virtual(body_len) } else { Body::bytes(&body) };
            if let Some((protected, rest)) = ProtectedHeader::read_head(&bytes)
                && let Some(back) = prefix.rebuild(&mut FramePool::new(), &protected, rest, &body)
            {
                let frame = back.as_frame();
                let whole = matches!(split(frame.head, frame.len()), Ok(Split::Roce { .. }));
                prop_assert!(whole);
            }
        }

        /// A PARITY is parsed again after it crosses a port as bytes; if damaged or truncated, its
        /// check fails.
        #[test]
        fn a_parity_crosses_a_port(
            is_ipv6: bool,
            vlan in prop::option::of(1..4095_u16),
            head_len in 4..68_usize,
            body_len in 0..5000_usize,
            wrong in prop::option::of(any::<prop::sample::Index>()),
            cut in 0..6000_usize,
        ) {
            let (block, body) = (vec![3; head_len], vec![5; body_len]);
            let id = ParityId { base: 1 << 40 | 77, symbols: 128, stride: 64, rows: 8, row: 7 };
            let parity = Parity { id, head: &block, body: Body::bytes(&body) };
            let header = Header { path: 3, ..Header::new(DatagramKind::Parity, 9) };
            let datagram =
                ParityDatagram::new(&route(is_ipv6, vlan), 4797, &header, &parity).unwrap();
            let mut wire = bytes_of(&datagram.frame());
            let at = PathTemplate::new(&route(is_ipv6, vlan)).bytes().len();
            if let Some(wrong) = wrong {
                let behind = wire.len() - at;
                wire[at + wrong.index(behind)] ^= 0x10;
            }
            let read = |wire: &[u8]| {
                let head = Head::copy_of(wire);
                let frame = Frame::received(&head, wire).unwrap_or_else(|_| Frame::opaque(wire));
                let outer = super::super::Outer::find(frame.head, 4797)?;
                let body = ParityBody::find(&frame, outer.udp, &outer.header)?;
                if !body.is_sound(outer.header_bytes(frame.head)) {
                    return None;
                }
                let parity = body.parity(1 << 40 | 77, &outer.header);
                let Body::Bytes(pieces) = parity.body else { return None };
                Some((parity.id, parity.head.to_vec(), pieces.concat()))
            };
            let expected = (wrong.is_none()).then_some((id, block.clone(), body.clone()));
            prop_assert_eq!(read(&wire), expected.clone());
            wire.truncate(cut);
            let is_whole = cut >= datagram.frame().len();
            prop_assert_eq!(read(&wire), expected.filter(|_| is_whole));
        }
    }
}
