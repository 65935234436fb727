//! Encapsulation and decapsulation of RoCEv2 frames.

use super::{HEADER_LEN, Header};
use crate::DropReason;
use longhaul_node::{Frame, FrameBuf, FramePool, Payload, Trailer};
use longhaul_wire::icrc::Icrc;
use longhaul_wire::{HEAD_MAX, ICRC_LEN, Layout, ROCEV2_PORT, Split, Udp, split};

/// An IPv4 header checksum that a tunnel does not preserve: no header's sum yields it.
const IPV4_CHECKSUM_NEVER: [u8; 2] = [0xff, 0xff];

/// Writes the headers in `head`, a RoCEv2 frame's, to `out`, with the transport header between UDP
/// and BTH. Returns their length.
///
/// `None` if they are too long, or the IPv4 checksum would not be restored.
#[inline]
pub(crate) fn encapsulate(
    head: &[u8],
    udp: Udp,
    port: u16,
    header: &Header,
    out: &mut [u8; HEAD_MAX],
) -> Option<usize> {
    let at = udp.payload();
    let len = head.len() + HEADER_LEN;
    if len > HEAD_MAX || at > head.len() {
        return None;
    }
    if !udp.is_ipv6 && head[udp.ip + 10..udp.ip + 12] == IPV4_CHECKSUM_NEVER {
        return None;
    }
    out[..at].copy_from_slice(&head[..at]);
    out[at..at + HEADER_LEN].copy_from_slice(&header.write(&[]));
    out[at + HEADER_LEN..len].copy_from_slice(&head[at..]);
    udp.set_destination_port(out, port);
    udp.set_checksum(out, 0);
    udp.lengthen(out, HEADER_LEN as i32).then_some(len)
}

/// A transport datagram in a frame.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Outer {
    pub(crate) udp: Udp,
    pub(crate) header: Header,
}

impl Outer {
    /// Parses the fields common to all datagrams. `None` if the datagram is not for `port`, or
    /// invalid.
    #[inline]
    pub(crate) fn find(head: &[u8], port: u16) -> Option<Outer> {
        let udp = Udp::find(head)?;
        if udp.destination_port(head) != port {
            return None;
        }
        let header = Header::read(head.get(udp.payload()..)?)?;
        Some(Outer { udp, header })
    }

    /// Bytes of the transport header.
    #[inline]
    pub(crate) fn header_bytes<'a>(&self, head: &'a [u8]) -> &'a [u8] {
        &head[self.udp.payload()..self.udp.payload() + HEADER_LEN]
    }
}

/// Decapsulates the frame, byte for byte as it entered the tunnel, except for the fields that
/// routers change.
///
/// # Errors
/// [`DropReason::Malformed`] if there is no frame, [`DropReason::Corrupted`] if its ICRC is wrong.
#[inline]
pub(crate) fn take_out(
    pool: &mut FramePool,
    frame: &Frame<'_>,
    outer: &Outer,
) -> Result<FrameBuf, DropReason> {
    let at = outer.udp.payload();
    let mut bytes = [0; HEAD_MAX];
    let len = frame.head.len().checked_sub(HEADER_LEN).ok_or(DropReason::Malformed)?;
    if frame.head.len() > HEAD_MAX {
        return Err(DropReason::Malformed);
    }
    bytes[..at].copy_from_slice(&frame.head[..at]);
    bytes[at..len].copy_from_slice(&frame.head[at + HEADER_LEN..]);
    let udp = outer.udp;
    udp.set_destination_port(&mut bytes, ROCEV2_PORT);
    udp.set_checksum(&mut bytes, outer.header.udp_checksum);
    if !udp.lengthen(&mut bytes, -(HEADER_LEN as i32)) {
        return Err(DropReason::Malformed);
    }
    let head = &bytes[..len];
    let Ok(Split::Roce { layout, payload_len, pad }) = split(head, frame.len() - HEADER_LEN) else {
        return Err(DropReason::Malformed);
    };
    if frame.trailer.is_empty() {
        let inner =
            InBytes::find(head, frame, layout, payload_len, pad).ok_or(DropReason::Malformed)?;
        return if inner.icrc_is_right() {
            Ok(inner.hold_checked(pool))
        } else {
            Err(DropReason::Corrupted)
        };
    }
    let is_whole = layout.payload == len
        && payload_len == frame.payload.len()
        && pad + ICRC_LEN == frame.trailer.len()
        && !matches!(frame.payload, Payload::Train { .. } | Payload::Memory(..));
    let inner = Frame { head, payload: frame.payload, trailer: frame.trailer };
    match is_whole {
        true if inner.icrc_is_right() => Ok(pool.hold(&inner)),
        true => Err(DropReason::Corrupted),
        false => Err(DropReason::Malformed),
    }
}

/// A frame as a port delivers it: `head` may extend beyond the headers, and the trailer lies behind
/// the payload.
pub(super) struct InBytes<'a> {
    /// The headers only.
    head: &'a [u8],
    layout: Layout,
    /// Both pieces of the payload.
    payload: [&'a [u8]; 2],
    pad: [u8; 3],
    pad_len: usize,
    icrc: [u8; ICRC_LEN],
    /// The whole payload, if the port lends it.
    lent: Option<Payload<'a>>,
}

impl<'a> InBytes<'a> {
    /// Parses a tunnelled `frame`; `head` is that of the inner frame. `None` if it is truncated.
    #[inline]
    pub(super) fn find(
        head: &'a [u8],
        frame: &Frame<'a>,
        layout: Layout,
        payload_len: usize,
        pad_len: usize,
    ) -> Option<Self> {
        let rest = frame.payload.as_bytes()?;
        let (head, behind) = head.split_at(layout.payload);
        let at = |at: usize| {
            if at < behind.len() {
                behind.get(at).copied()
            } else {
                rest.get(at - behind.len()).copied()
            }
        };
        let mut pad = [0; 3];
        for (place, byte) in pad[..pad_len].iter_mut().enumerate() {
            *byte = at(payload_len + place)?;
        }
        let mut icrc = [0; ICRC_LEN];
        for (place, byte) in icrc.iter_mut().enumerate() {
            *byte = at(payload_len + pad_len + place)?;
        }
        let first = &behind[..behind.len().min(payload_len)];
        let second = rest.get(..payload_len - first.len())?;
        let begin = layout.payload + HEADER_LEN;
        let lent = match frame.payload {
            Payload::Lent { lease, at, .. }
                if std::ptr::eq(frame.head.as_ptr(), lease.bytes().as_ptr())
                    && at as usize == frame.head.len() =>
            {
                Some(Payload::Lent { lease, at: begin as u32, len: payload_len as u32 })
            }
            _ => None,
        };
        let is_short = payload_len <= longhaul_node::PAYLOAD_MAX;
        is_short.then_some(InBytes {
            head,
            layout,
            payload: [first, second],
            pad,
            pad_len,
            icrc,
            lent,
        })
    }

    #[inline]
    fn icrc_is_right(&self) -> bool {
        let mut icrc = Icrc::over_head(self.head, &self.layout);
        self.payload.iter().for_each(|piece| icrc.update(piece));
        icrc.update(&self.pad[..self.pad_len]);
        icrc.finish() == self.icrc
    }

    /// Holds the frame, whose ICRC is valid: by reference if possible, otherwise by one copy.
    #[inline]
    fn hold_checked(&self, pool: &mut FramePool) -> FrameBuf {
        let InBytes { head, pad, icrc, .. } = *self;
        let trailer = Trailer::Checked { pad, pad_len: self.pad_len as u8, icrc };
        match self.lent {
            Some(payload) => pool.hold(&Frame { head, payload, trailer }),
            None => pool.hold_pieces(head, self.payload, trailer),
        }
    }

    /// Holds the frame by one copy. Its ICRC is not checked.
    pub(super) fn hold(&self, pool: &mut FramePool) -> FrameBuf {
        let InBytes { head, pad, icrc, .. } = *self;
        pool.hold_pieces(
            head,
            self.payload,
            Trailer::Received { pad, pad_len: self.pad_len as u8, icrc },
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::DatagramKind;
    use crate::samples;
    use longhaul_lease::Lease;
    use longhaul_units::{Psn, Qpn};
    use longhaul_wire::icrc;
    use longhaul_wire::{Bth, Head, Opcode, Path, PathTemplate};
    use proptest::prelude::*;

    const PORT: u16 = 4797;

    #[derive(Clone, Debug)]
    struct Sample {
        is_ipv6: bool,
        vlan: Option<u16>,
        payload_len: usize,
        udp_checksum: u16,
        atomic: bool,
        form: u8,
    }

    fn samples() -> impl Strategy<Value = Sample> {
        let vlan = prop::option::of(1..4095_u16);
        (any::<bool>(), vlan, 0..5000_usize, any::<u16>(), any::<bool>(), 0..4_u8).prop_map(
            |(is_ipv6, vlan, payload_len, udp_checksum, atomic, form)| Sample {
                is_ipv6,
                vlan,
                payload_len,
                udp_checksum,
                atomic,
                form,
            },
        )
    }

    fn head(sample: &Sample) -> (Head, u8) {
        let ips = if sample.is_ipv6 { ["fd00::1", "fd00::2"] } else { ["10.1.2.3", "10.9.8.7"] };
        let template =
            PathTemplate::new(&Path { traffic_class: 2, ..samples::route(ips, sample.vlan) });
        let opcode = if sample.atomic { Opcode::RC_CMP_SWAP } else { Opcode::RC_SEND_ONLY };
        let mut head = Head::begin(&template, &Bth::new(opcode, Qpn::new(5), Psn::new(9)));
        if sample.atomic {
            head.push_atomic(&longhaul_wire::AtomicEth {
                virtual_address: 1,
                rkey: longhaul_units::RKey(2),
                swap_or_add: 3,
                compare: 4,
            });
        }
        let pad = head.finish(&template, sample.payload_len);
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

        /// The frame is unchanged, whether it is forwarded in parts or serialised by a port.
        #[test]
        fn out_comes_what_went_in(sample in samples()) {
            let (built, pad_len) = head(&sample);
            let mut inner_head = built.bytes().to_vec();
            let udp = Udp::find(&inner_head).unwrap();
            udp.set_checksum(&mut inner_head, sample.udp_checksum);
            let payload: Vec<u8> = (0..sample.payload_len).map(|n| n as u8).collect();
            let mut pool = FramePool::new();
            let held = pool.hold(&Frame {
                head: &inner_head,
                payload: Payload::Bytes(&payload),
                trailer: Trailer::None,
            });
            let layout = Layout::find(&inner_head).unwrap().unwrap();
            let pad = [0, 7, 0];
            let icrc = icrc::of(&inner_head, &layout, &payload, &pad[..usize::from(pad_len)]);
            let trailer = Trailer::Received { pad, pad_len, icrc };
            let (payload, trailer) = match sample.form {
                0 => (Payload::Bytes(&payload), trailer),
                1 => (Payload::Shared(&held), trailer),
                2 => (Payload::Bytes(&payload), Trailer::Sealed { pad_len }),
                _ => (Payload::Synthetic { len: payload.len() }, Trailer::Sealed { pad_len }),
            };
            let inner = Frame { head: &inner_head, payload, trailer };
            let header =
                Header { udp_checksum: sample.udp_checksum, ..Header::new(DatagramKind::Data, 77) };
            let mut out = [0; HEAD_MAX];
            let len = encapsulate(inner.head, udp, PORT, &header, &mut out).unwrap();
            let tunnelled = Frame { head: &out[..len], ..inner };
            prop_assert_eq!(tunnelled.len(), inner.len() + HEADER_LEN);
            let outer = Outer::find(tunnelled.head, PORT).unwrap();
            prop_assert_eq!(outer.header, header);
            prop_assert!(Header::is_sound(outer.header_bytes(tunnelled.head), &[]));
            let taken = take_out(&mut pool, &tunnelled, &outer).unwrap();
            let expected = bytes_of(&inner);
            prop_assert_eq!(&bytes_of(&taken.as_frame()), &expected);
            prop_assert_eq!(taken.as_frame().trailer, inner.trailer);

            let mut wire = bytes_of(&tunnelled);
            let crossed = wire.len();
            // Without the computed ICRC: in a frame from a port it was computed earlier.
            if matches!(trailer, Trailer::Sealed { .. }) {
                wire[crossed - 4..].copy_from_slice(&expected[expected.len() - 4..]);
            }
            // Ethernet pads short frames.
            wire.resize(crossed.max(60), 0);
            let head = Head::copy_of(&wire);
            let received = Frame::received(&head, &wire).unwrap();
            let outer = Outer::find(received.head, PORT).unwrap();
            let taken = take_out(&mut pool, &received, &outer).unwrap();
            prop_assert_eq!(&bytes_of(&taken.as_frame()), &expected);

            // Through a port that lends: the same bytes, by reference.
            let mut lease = Lease::with_capacity(wire.len());
            lease.fill(wire.len(), &mut |out| out.copy_from_slice(&wire));
            let received = Frame::lent(&lease).unwrap();
            let taken = take_out(&mut pool, &received, &outer).unwrap();
            prop_assert_eq!(&bytes_of(&taken.as_frame()), &expected);
            prop_assert!(
                lease.bytes().as_ptr_range().contains(&taken.payload().as_ptr()),
                "it was copied"
            );
            wire[crossed - 1] ^= 1;
            let head = Head::copy_of(&wire);
            let received = Frame::received(&head, &wire).unwrap();
            prop_assert_eq!(
                take_out(&mut pool, &received, &outer).unwrap_err(),
                DropReason::Corrupted
            );
        }

        /// Frames that are truncated, lengthened or damaged yield a whole frame or nothing.
        #[test]
        fn hostile_bytes_do_no_harm(
            sample in samples(),
            wrong in prop::collection::vec((0..200_usize, any::<u8>()), 0..6),
            len in 0..400_usize,
        ) {
            let (built, _) = head(&sample);
            let udp = Udp::find(built.bytes()).unwrap();
            let mut out = [0; HEAD_MAX];
            let header = Header::new(DatagramKind::Data, 1);
            let at = encapsulate(built.bytes(), udp, PORT, &header, &mut out).unwrap();
            let mut wire = out[..at].to_vec();
            wire.resize(at + sample.payload_len + 8, 0xaa);
            for (place, value) in wrong {
                if let Some(byte) = wire.get_mut(place) {
                    *byte = value;
                }
            }
            wire.truncate(len);
            let head = Head::copy_of(&wire);
            let frame = Frame::received(&head, &wire).unwrap_or_else(|_| Frame::opaque(&wire));
            if let Some(outer) = Outer::find(frame.head, PORT)
                && let Ok(taken) = take_out(&mut FramePool::new(), &frame, &outer)
            {
                prop_assert!(taken.len() + HEADER_LEN <= frame.len());
            }
        }
    }
}
