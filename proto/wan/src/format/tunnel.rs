use super::{HEADER_LEN, Header};
use longhaul_node::{Frame, FrameBuf, FramePool, Payload, Trailer};
use longhaul_wire::{HEAD_MAX, ICRC_LEN, ROCEV2_PORT, Split, Udp, split};

/// Checksum of an IPv4 header that does not survive the way there and back: no sum of a header gives it.
const IPV4_CHECKSUM_NEVER: [u8; 2] = [0xff, 0xff];

/// Writes the headers of `head` (a RoCEv2 frame's) to `out` with the transport header between UDP and BTH. Returns
/// their length.
///
/// `None`: too long, or its IPv4 checksum would not come back as it is.
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

/// A datagram of the transport in a frame.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Outer {
    pub(crate) udp: Udp,
    pub(crate) header: Header,
}

impl Outer {
    /// Reads what is common to all datagrams. `None`: not to `port`, or nothing that this format has.
    #[inline]
    pub(crate) fn find(head: &[u8], port: u16) -> Option<Outer> {
        let udp = Udp::find(head)?;
        if udp.destination_port(head) != port {
            return None;
        }
        let header = Header::read(head.get(udp.payload()..)?)?;
        Some(Outer { udp, header })
    }

    /// The transport header's bytes.
    #[inline]
    pub(crate) fn header_bytes<'a>(&self, head: &'a [u8]) -> &'a [u8] {
        &head[self.udp.payload()..self.udp.payload() + HEADER_LEN]
    }
}

/// Takes the tunnelled frame out, byte for byte what went in but for what routers change. `None`: there is none.
///
/// Its ICRC is not looked at.
#[inline]
pub(crate) fn take_out(pool: &mut FramePool, frame: &Frame<'_>, outer: &Outer) -> Option<FrameBuf> {
    let at = outer.udp.payload();
    let mut bytes = [0; HEAD_MAX];
    let len = frame.head.len().checked_sub(HEADER_LEN)?;
    if frame.head.len() > HEAD_MAX {
        return None;
    }
    bytes[..at].copy_from_slice(&frame.head[..at]);
    bytes[at..len].copy_from_slice(&frame.head[at + HEADER_LEN..]);
    let udp = outer.udp;
    udp.set_destination_port(&mut bytes, ROCEV2_PORT);
    udp.set_checksum(&mut bytes, outer.header.udp_checksum);
    if !udp.lengthen(&mut bytes, -(HEADER_LEN as i32)) {
        return None;
    }
    let head = &bytes[..len];
    let Ok(Split::Roce { layout, payload_len, pad }) = split(head, frame.len() - HEADER_LEN) else {
        return None;
    };
    if frame.trailer.is_empty() {
        return take_out_of_bytes(pool, head, frame.payload.as_bytes()?, layout.payload, payload_len, pad);
    }
    let is_whole = layout.payload == len
        && payload_len == frame.payload.len()
        && pad + ICRC_LEN == frame.trailer.len()
        && !matches!(frame.payload, Payload::Train { .. } | Payload::Memory(..));
    is_whole.then(|| pool.hold(&Frame { head, payload: frame.payload, trailer: frame.trailer }))
}

/// As it comes from a port: the headers' end is not where `head` ends, and the trailer lies behind the payload.
pub(super) fn take_out_of_bytes(
    pool: &mut FramePool,
    head: &[u8],
    rest: &[u8],
    payload_at: usize,
    payload_len: usize,
    pad: usize,
) -> Option<FrameBuf> {
    let (head, behind) = head.split_at(payload_at);
    let at = |at: usize| {
        if at < behind.len() { behind.get(at).copied() } else { rest.get(at - behind.len()).copied() }
    };
    let mut pad_bytes = [0; 3];
    for (place, byte) in pad_bytes[..pad].iter_mut().enumerate() {
        *byte = at(payload_len + place)?;
    }
    let mut icrc = [0; ICRC_LEN];
    for (place, byte) in icrc.iter_mut().enumerate() {
        *byte = at(payload_len + pad + place)?;
    }
    let first = &behind[..behind.len().min(payload_len)];
    let second = rest.get(..payload_len - first.len())?;
    let trailer = Trailer::Received { pad: pad_bytes, pad_len: pad as u8, icrc };
    (payload_len <= crate::PAYLOAD_MAX).then(|| pool.hold_pieces(head, [first, second], trailer))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::Kind;
    use longhaul_units::{Psn, Qpn};
    use longhaul_wire::{Bth, Head, MacAddr, Opcode, Path, PathTemplate};
    use proptest::prelude::*;
    use std::net::IpAddr;

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
        let [source_ip, destination_ip] = ips.map(|ip| ip.parse::<IpAddr>().unwrap());
        let template = PathTemplate::new(&Path {
            source_mac: MacAddr([2, 0, 0, 0, 0, 1]),
            destination_mac: MacAddr([2, 0, 0, 0, 0, 2]),
            vlan: sample.vlan,
            source_ip,
            destination_ip,
            traffic_class: 2,
            hop_limit: 64,
            flow_label: 0,
            udp_source_port: 0xc123,
        });
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
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        /// Out comes what went in, whether the frame is handed on in its parts or crosses a port as bytes.
        #[test]
        fn out_comes_what_went_in(sample in samples()) {
            let (built, pad_len) = head(&sample);
            let mut inner_head = built.bytes().to_vec();
            let udp = Udp::find(&inner_head).unwrap();
            udp.set_checksum(&mut inner_head, sample.udp_checksum);
            let payload: Vec<u8> = (0..sample.payload_len).map(|n| n as u8).collect();
            let mut pool = FramePool::new();
            let held = pool.hold(&Frame { head: &inner_head, payload: Payload::Bytes(&payload), trailer: Trailer::None });
            let trailer = Trailer::Received { pad: [0, 7, 0], pad_len, icrc: [1, 2, 3, 4] };
            let (payload, trailer) = match sample.form {
                0 => (Payload::Bytes(&payload), trailer),
                1 => (Payload::Shared(&held), trailer),
                2 => (Payload::Bytes(&payload), Trailer::Sealed { pad_len }),
                _ => (Payload::Synthetic { len: payload.len() }, Trailer::Sealed { pad_len }),
            };
            let inner = Frame { head: &inner_head, payload, trailer };
            let header = Header { udp_checksum: sample.udp_checksum, ..Header::new(Kind::Data, 77) };
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
            // Without the computed ICRC: what crosses a port has been computed before.
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
        }

        /// Frames cut short, lengthened and with wrong bytes are taken out as something whole or not at all.
        #[test]
        fn hostile_bytes_do_no_harm(
            sample in samples(),
            wrong in prop::collection::vec((0..200_usize, any::<u8>()), 0..6),
            len in 0..400_usize,
        ) {
            let (built, _) = head(&sample);
            let udp = Udp::find(built.bytes()).unwrap();
            let mut out = [0; HEAD_MAX];
            let at = encapsulate(built.bytes(), udp, PORT, &Header::new(Kind::Data, 1), &mut out).unwrap();
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
                && let Some(taken) = take_out(&mut FramePool::new(), &frame, &outer)
            {
                prop_assert!(taken.len() + HEADER_LEN <= frame.len());
            }
        }
    }
}
