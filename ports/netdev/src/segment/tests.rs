//! Tests of segmentation: each part of a long frame has right headers, lengths and checksums.

use proptest::prelude::*;

use super::*;

/// One header of a frame, which is built from the inside out.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Header {
    Ethernet { tags: usize },
    Ipv4 { options: usize },
    Ipv6 { extensions: usize },
    Gre { has_key: bool },
    Vxlan { has_checksum: bool },
    Geneve { options: usize, has_checksum: bool },
    Tcp { options: usize },
    Udp,
}

use Header::*;

impl Header {
    fn len(self) -> usize {
        match self {
            Ethernet { tags } => 14 + 4 * tags,
            Ipv4 { options } => 20 + 4 * options,
            Ipv6 { extensions } => 40 + 8 * extensions,
            Gre { has_key } => 4 + 4 * usize::from(has_key),
            Vxlan { .. } => 16,
            Geneve { options, .. } => 16 + 4 * options,
            Tcp { options } => 20 + 4 * options,
            Udp => 8,
        }
    }

    fn ethertype(self) -> u16 {
        match self {
            Ipv4 { .. } => 0x0800,
            Ipv6 { .. } => 0x86dd,
            Ethernet { .. } => 0x6558,
            other => unreachable!("{other:?} behind an Ethernet header"),
        }
    }

    fn protocol(self) -> u8 {
        match self {
            Ipv4 { .. } => 4,
            Ipv6 { .. } => 41,
            Gre { .. } => 47,
            Vxlan { .. } | Geneve { .. } | Udp => 17,
            Tcp { .. } => 6,
            Ethernet { .. } => unreachable!("Ethernet behind IP"),
        }
    }

    /// Writes the header before `rest`, whose first header is `next`.
    fn write(self, rest: &[u8], next: Option<Header>) -> Vec<u8> {
        let mut header = vec![0; self.len()];
        match self {
            Ethernet { tags } => {
                header[..12].copy_from_slice(&[2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2]);
                for tag in 0..tags {
                    header[12 + 4 * tag..][..4].copy_from_slice(&[0x81, 0x00, 0, 5]);
                }
                put(&mut header, 12 + 4 * tags, next.unwrap().ethertype());
            }
            Ipv4 { options } => {
                header[0] = 0x45 + options as u8;
                put(&mut header, 2, (self.len() + rest.len()) as u16);
                put(&mut header, 4, 0xfffe);
                header[8] = 64;
                header[9] = next.unwrap().protocol();
                header[12..20].copy_from_slice(&[10, 0, 0, 1, 10, 0, 0, 2]);
                header[20..].fill(1);
                let checksum = !checksum::sum(&header);
                put(&mut header, 10, checksum);
            }
            Ipv6 { extensions } => {
                header[0] = 0x60;
                put(&mut header, 4, (self.len() - 40 + rest.len()) as u16);
                header[6] = if extensions > 0 { 60 } else { next.unwrap().protocol() };
                header[7] = 64;
                header[8..40].iter_mut().enumerate().for_each(|(at, byte)| *byte = at as u8 * 5);
                for number in 0..extensions {
                    let is_last = number + 1 == extensions;
                    header[40 + 8 * number] = if is_last { next.unwrap().protocol() } else { 60 };
                    header[42 + 8 * number..48 + 8 * number].copy_from_slice(&[1, 4, 0, 0, 0, 0]);
                }
            }
            Gre { has_key } => {
                put(&mut header, 0, if has_key { 0x2000 } else { 0 });
                put(&mut header, 2, next.unwrap().ethertype());
            }
            Vxlan { has_checksum } | Geneve { has_checksum, .. } => {
                put(&mut header, 0, 40000);
                put(&mut header, 4, (self.len() + rest.len()) as u16);
                // A nonzero checksum is recomputed.
                put(&mut header, 6, u16::from(has_checksum));
                if let Geneve { options, .. } = self {
                    put(&mut header, 2, 6081);
                    header[8] = options as u8;
                    put(&mut header, 10, next.unwrap().ethertype());
                } else {
                    put(&mut header, 2, 4789);
                    header[8] = 8;
                }
            }
            Tcp { options } => {
                put(&mut header, 0, 1000);
                header[4..8].copy_from_slice(&0xffff_ff00u32.to_be_bytes());
                header[12] = (5 + options as u8) << 4;
                header[13] = 0x10 | FIN | PSH | CWR;
                header[20..].fill(1);
            }
            Udp => {
                put(&mut header, 0, 1000);
                put(&mut header, 4, (8 + rest.len()) as u16);
            }
        }
        header.extend_from_slice(rest);
        header
    }
}

fn is_ip(header: &Header) -> bool {
    matches!(header, Ipv4 { .. } | Ipv6 { .. })
}

/// A whole frame with an open or a complete transport checksum, and its description.
pub(crate) fn build(
    headers: &[Header],
    payload: &[u8],
    segment_bytes: usize,
    is_open: bool,
) -> (Vec<u8>, Offload) {
    let mut frame = payload.to_vec();
    let mut next = None;
    for header in headers.iter().rev() {
        frame = header.write(&frame, next);
        next = Some(*header);
    }
    let offsets = offsets(headers);
    let (transport, last) = (offsets[headers.len() - 1], headers[headers.len() - 1]);
    let ip_at = headers.iter().rposition(is_ip).unwrap();
    let checksum_offset = if last == Udp { UDP_CHECKSUM } else { TCP_CHECKSUM };
    let length = (frame.len() - transport) as u16;
    let beyond = checksum::add(pseudo_sum(&frame, offsets[ip_at], last.protocol()), length);
    put(&mut frame, transport + checksum_offset, beyond);
    if !is_open {
        let checksum = checksum::of(checksum::sum(&frame[transport..]));
        put(&mut frame, transport + checksum_offset, checksum);
    }
    let kind = match (last, headers[ip_at]) {
        (Udp, _) => GSO_UDP,
        (_, Ipv4 { .. }) => GSO_TCP_IPV4,
        _ => GSO_TCP_IPV6,
    };
    let offload = Offload {
        needs_checksum: is_open,
        kind,
        segment_bytes,
        checksum_start: transport,
        checksum_offset,
    };
    (frame, offload)
}

fn offsets(headers: &[Header]) -> Vec<usize> {
    headers
        .iter()
        .scan(0, |at, header| {
            *at += header.len();
            Some(*at - header.len())
        })
        .collect()
}

fn split(frame: &mut [u8], offload: &Offload) -> Result<Vec<Vec<u8>>, NotUnderstood> {
    let mut splitter = Splitter::IDLE;
    splitter.begin(frame, offload)?;
    let mut parts = Vec::new();
    while !splitter.is_done() {
        parts.push(splitter.next(frame).to_vec());
    }
    Ok(parts)
}

/// Checks all fields of a part that depend on it.
pub(crate) fn check(part: &[u8], headers: &[Header], number: usize) {
    let mut ip_at = 0;
    for (header, at) in headers.iter().zip(offsets(headers)) {
        let here = &part[at..];
        let with_pseudo = |protocol| {
            let beyond = checksum::add(pseudo_sum(part, ip_at, protocol), here.len() as u16);
            checksum::add(beyond, checksum::sum(here))
        };
        match header {
            Ipv4 { .. } => {
                ip_at = at;
                assert_eq!(usize::from(get(here, 2)), here.len());
                assert_eq!(get(here, 4), 0xfffe_u16.wrapping_add(number as u16));
                assert_eq!(checksum::sum(&here[..header.len()]), 0xffff);
            }
            Ipv6 { .. } => {
                ip_at = at;
                assert_eq!(usize::from(get(here, 4)) + 40, here.len());
            }
            Vxlan { has_checksum } | Geneve { has_checksum, .. } => {
                assert_eq!(usize::from(get(here, 4)), here.len());
                if *has_checksum {
                    assert_ne!(get(here, 6), 0);
                    assert_eq!(with_pseudo(17), 0xffff);
                } else {
                    assert_eq!(get(here, 6), 0);
                }
            }
            Udp => {
                assert_eq!(usize::from(get(here, 4)), here.len());
                assert_ne!(get(here, 6), 0);
                assert_eq!(with_pseudo(17), 0xffff);
            }
            Tcp { .. } => assert_eq!(with_pseudo(6), 0xffff),
            Ethernet { .. } | Gre { .. } => {}
        }
    }
}

fn ip() -> impl Strategy<Value = Header> {
    prop_oneof![
        (0..=10usize).prop_map(|options| Ipv4 { options }),
        (0..=3usize).prop_map(|extensions| Ipv6 { extensions }),
    ]
}

fn ethernet() -> impl Strategy<Value = Header> {
    (0..=2usize).prop_map(|tags| Ethernet { tags })
}

fn tunnel() -> impl Strategy<Value = Vec<Header>> {
    prop_oneof![
        4 => Just(vec![]),
        1 => ip().prop_map(|outer| vec![outer]),
        1 => (ip(), any::<bool>()).prop_map(|(outer, has_key)| vec![outer, Gre { has_key }]),
        1 => (ip(), any::<bool>(), ethernet())
            .prop_map(|(outer, has_key, inner)| vec![outer, Gre { has_key }, inner]),
        1 => (ip(), any::<bool>(), ethernet())
            .prop_map(|(outer, has_checksum, inner)| vec![outer, Vxlan { has_checksum }, inner]),
        1 => (ip(), 0..=4usize, any::<bool>(), prop::option::of(ethernet())).prop_map(
            |(outer, options, has_checksum, inner)| {
                [outer, Geneve { options, has_checksum }].into_iter().chain(inner).collect()
            }
        ),
    ]
}

fn transport() -> impl Strategy<Value = Header> {
    prop_oneof![3 => (0..=10usize).prop_map(|options| Tcp { options }), 1 => Just(Udp)]
}

fn headers() -> impl Strategy<Value = Vec<Header>> {
    (ethernet(), tunnel(), ip(), transport()).prop_map(|(first, tunnel, ip, last)| {
        [first].into_iter().chain(tunnel).chain([ip, last]).collect()
    })
}

fn bytes(len: usize, seed: u8) -> Vec<u8> {
    (0..len).map(|at| (at * 31 + at / 251) as u8 ^ seed).collect()
}

mod splitting {
    use super::*;

    proptest! {
        #[test]
        fn keeps_the_stream_and_makes_every_header_right(
            headers in headers(),
            len in 1..40_000usize,
            segment_bytes in 8..9000usize,
            seed: u8,
            is_open: bool,
        ) {
            // Inside a tunnel the kernel always leaves the checksum open, which reveals the offset
            // of the inner header.
            let is_open = is_open || headers.len() > 3;
            let payload = bytes(len, seed);
            let (mut frame, offload) = build(&headers, &payload, segment_bytes, is_open);
            let parts = split(&mut frame, &offload).unwrap();
            prop_assert_eq!(parts.len(), len.div_ceil(segment_bytes));
            let header_bytes: usize = headers.iter().map(|header| header.len()).sum();
            let mut stream = Vec::new();
            for (number, part) in parts.iter().enumerate() {
                check(part, &headers, number);
                prop_assert!(part.len() <= header_bytes + segment_bytes);
                if let Some(Tcp { options }) = headers.last() {
                    let tcp = &part[header_bytes - 20 - 4 * options..];
                    let sequence = u32::from_be_bytes(*tcp[4..].first_chunk().unwrap());
                    prop_assert_eq!(sequence, 0xffff_ff00u32.wrapping_add(stream.len() as u32));
                    let is_last = number + 1 == parts.len();
                    prop_assert_eq!(tcp[13] & (FIN | PSH), if is_last { FIN | PSH } else { 0 });
                    prop_assert_eq!(tcp[13] & CWR, if number == 0 { CWR } else { 0 });
                    prop_assert_eq!(tcp[13] & 0x10, 0x10);
                }
                stream.extend_from_slice(&part[header_bytes..]);
            }
            prop_assert_eq!(stream, payload);
        }

        #[test]
        fn survives_any_bytes(
            mut frame in prop::collection::vec(any::<u8>(), 0..300),
            offload: [u8; OFFLOAD_BYTES],
        ) {
            let offload = Offload::parse(&offload);
            let _ = complete(&mut frame, &offload);
            let _ = split(&mut frame, &offload);
        }

        #[test]
        fn survives_frames_that_are_damaged_or_described_wrongly(
            headers in headers(),
            len in 1..300usize,
            damage in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..6),
            cut in any::<prop::sample::Index>(),
            described in (any::<bool>(), 0..6u8, 0..50usize, 0..200usize, 0..20usize),
            keeps_description: bool,
        ) {
            let (mut frame, mut offload) = build(&headers, &bytes(len, 0), 8, true);
            for (at, value) in damage {
                let at = at.index(frame.len().min(200));
                frame[at] = value;
            }
            frame.truncate(cut.index(frame.len()) + 1);
            if !keeps_description {
                let (needs_checksum, kind, segment_bytes, checksum_start, checksum_offset) =
                    described;
                offload = Offload {
                    needs_checksum,
                    kind,
                    segment_bytes,
                    checksum_start,
                    checksum_offset,
                };
            }
            let _ = split(&mut frame, &offload);
            let _ = complete(&mut frame, &offload);
        }
    }

    #[test]
    fn leaves_out_the_udp_checksum_that_a_sender_left_out() {
        let headers = [Ethernet { tags: 0 }, Ipv4 { options: 0 }, Udp];
        let (mut frame, offload) = build(&headers, &[1; 100], 40, false);
        put(&mut frame, 34 + UDP_CHECKSUM, 0);
        let parts = split(&mut frame, &offload).unwrap();
        assert_eq!(parts.iter().map(Vec::len).collect::<Vec<_>>(), [82, 82, 62]);
        assert!(parts.iter().all(|part| get(part, 34 + UDP_CHECKSUM) == 0));
    }

    #[test]
    fn refuses_what_it_would_get_wrong() {
        let headers = [Ethernet { tags: 0 }, Ipv4 { options: 0 }, Tcp { options: 0 }];
        let (frame, offload) = build(&headers, &[1; 100], 40, true);
        let refuses = |change: &dyn Fn(&mut Vec<u8>, &mut Offload)| {
            let (mut frame, mut offload) = (frame.clone(), offload);
            change(&mut frame, &mut offload);
            split(&mut frame, &offload) == Err(NotUnderstood)
        };
        assert!(!refuses(&|_, _| ()));
        assert!(refuses(&|_, offload| offload.segment_bytes = 7));
        assert!(refuses(&|_, offload| offload.checksum_start = 38));
        assert!(refuses(&|_, offload| offload.kind = 3));
        assert!(refuses(&|frame, _| frame[20] = 0x20), "a fragment");
        assert!(refuses(&|frame, _| frame[23] = 17), "UDP described as TCP");
        assert!(refuses(&|frame, _| frame[46] = 0x40), "a TCP header of 16 bytes");
        assert!(refuses(&|frame, _| frame.truncate(54)), "no payload");
    }
}

mod completing {
    use super::*;

    proptest! {
        #[test]
        fn makes_the_checksum_right(headers in headers(), len in 0..2000usize, seed: u8) {
            let (mut frame, offload) = build(&headers, &bytes(len, seed), 0, true);
            complete(&mut frame, &Offload { kind: 0, ..offload }).unwrap();
            let (complete, _) = build(&headers, &bytes(len, seed), 0, false);
            prop_assert_eq!(frame, complete);
        }
    }

    #[test]
    fn gives_sctp_its_crc() {
        let mut frame = Ipv4 { options: 0 }.write(&bytes(40, 3), Some(Udp));
        frame[9] = PROTOCOL_SCTP;
        let mut frame = Ethernet { tags: 1 }.write(&frame, Some(Ipv4 { options: 0 }));
        let offload = Offload {
            needs_checksum: true,
            checksum_start: 38,
            checksum_offset: 8,
            ..Offload::default()
        };
        complete(&mut frame, &offload).unwrap();
        let mut expected = bytes(40, 3);
        expected[8..12].fill(0);
        let crc = checksum::crc32c(expected.iter().copied());
        assert_eq!(frame[46..50], crc.to_le_bytes());
        frame[27] = PROTOCOL_TCP;
        assert_eq!(complete(&mut frame, &offload), Err(NotUnderstood));
    }

    #[test]
    fn refuses_a_place_outside_the_frame() {
        let offload = Offload {
            needs_checksum: true,
            checksum_start: 50,
            checksum_offset: 16,
            ..Offload::default()
        };
        assert_eq!(complete(&mut [0; 67], &offload), Err(NotUnderstood));
        assert_eq!(complete(&mut [0; 68], &offload), Ok(()));
    }
}
