//! Tests of the capture reader: every format, damaged and truncated files.

use super::*;

/// A pcap file of one 6-byte packet truncated from 9, at second 5 and `fraction`.
fn classic(magic: u32, fraction: u32, big_endian: bool) -> Vec<u8> {
    let word = |v: u32| if big_endian { v.to_be_bytes() } else { v.to_le_bytes() };
    let half = |v: u16| if big_endian { v.to_be_bytes() } else { v.to_le_bytes() };
    let mut file = word(magic).to_vec();
    file.extend(half(2));
    file.extend(half(4));
    for v in [0, 0, 65535, 1, 5, fraction, 6, 9] {
        file.extend(word(v));
    }
    file.extend(*b"packet");
    file
}

fn block(kind: u32, body: &[u8], big_endian: bool) -> Vec<u8> {
    let word = |v: u32| if big_endian { v.to_be_bytes() } else { v.to_le_bytes() };
    let padded = body.len().next_multiple_of(4);
    let length = (padded + 12) as u32;
    let mut b = word(kind).to_vec();
    b.extend(word(length));
    b.extend(body);
    b.resize(8 + padded, 0);
    b.extend(word(length));
    b
}

fn words(values: &[u32], big_endian: bool) -> Vec<u8> {
    values.iter().flat_map(|v| if big_endian { v.to_be_bytes() } else { v.to_le_bytes() }).collect()
}

fn halves(a: u16, b: u16, big_endian: bool) -> Vec<u8> {
    [a, b].iter().flat_map(|v| if big_endian { v.to_be_bytes() } else { v.to_le_bytes() }).collect()
}

fn section(big: bool) -> Vec<u8> {
    let mut body = words(&[0x1a2b_3c4d], big);
    body.extend(halves(1, 0, big));
    body.extend([0xff; 8]);
    block(0x0a0d_0d0a, &body, big)
}

fn interface(link_type: u16, snap_len: u32, resolution: Option<u8>, big: bool) -> Vec<u8> {
    let mut body = halves(link_type, 0, big);
    body.extend(words(&[snap_len], big));
    if let Some(resolution) = resolution {
        // A comment first: options before the one looked for are stepped over.
        body.extend(halves(1, 5, big));
        body.extend(*b"hello\0\0\0");
        body.extend(halves(9, 1, big));
        body.extend([resolution, 0, 0, 0]);
        body.extend(halves(0, 0, big));
    }
    block(1, &body, big)
}

fn enhanced(interface: u32, units: u64, data: &[u8], original: u32, big: bool) -> Vec<u8> {
    let mut body =
        words(&[interface, (units >> 32) as u32, units as u32, data.len() as u32, original], big);
    body.extend(data);
    block(6, &body, big)
}

fn all(file: &[u8]) -> Result<Vec<Record<'_>>, CaptureError> {
    records(file).collect()
}

#[test]
fn all_four_magics_are_read() {
    for big in [false, true] {
        for (magic, ns) in [(MAGIC_MICROSECONDS, 5_000_007_000), (MAGIC_NANOSECONDS, 5_000_000_007)]
        {
            let file = classic(magic, 7, big);
            let expected = Record {
                timestamp_ns: Some(ns),
                link_type: LinkType::ETHERNET,
                original_len: 9,
                data: b"packet",
            };
            assert_eq!(all(&file), Ok(vec![expected]));
        }
    }
}

#[test]
fn what_the_writer_writes_is_read_back() {
    let mut file = file_header(LinkType(101), 64).to_vec();
    let header = RecordHeader {
        timestamp_ns: 1_700_000_000_123_456_789,
        captured_len: 3,
        original_len: 1500,
    };
    file.extend(header.write());
    file.extend([1, 2, 3]);
    let expected = Record {
        timestamp_ns: Some(1_700_000_000_123_456_789),
        link_type: LinkType(101),
        original_len: 1500,
        data: &[1, 2, 3],
    };
    assert_eq!(all(&file), Ok(vec![expected]));
}

#[test]
fn pcapng_blocks_are_read_in_both_orders() {
    for big in [false, true] {
        let mut file = section(big);
        file.extend(interface(1, 4, Some(9), big));
        file.extend(interface(113, 0, None, big));
        file.extend(interface(1, 0, Some(0x80 | 10), big));
        file.extend(block(5, &[0; 20], big));
        file.extend(enhanced(0, 1_700_000_000_000_000_001, b"abcde", 99, big));
        file.extend(enhanced(1, 1_700_000_000_000_000, b"f", 1, big));
        file.extend(enhanced(2, 1025, b"", 0, big));
        let mut simple = words(&[6], big);
        simple.extend(*b"ghij");
        file.extend(block(3, &simple, big));
        let found = all(&file).unwrap();
        let brief: Vec<_> =
            found.iter().map(|r| (r.timestamp_ns, r.link_type.0, r.original_len, r.data)).collect();
        assert_eq!(
            brief,
            [
                (Some(1_700_000_000_000_000_001), 1, 99, &b"abcde"[..]),
                (Some(1_700_000_000_000_000_000), 113, 1, b"f"),
                (Some(1_000_976_562), 1, 0, b""),
                (None, 1, 6, b"ghij"),
            ]
        );
    }
}

#[test]
fn a_second_section_may_turn_the_byte_order_and_forgets_interfaces() {
    let mut file = section(false);
    file.extend(interface(1, 0, None, false));
    file.extend(section(true));
    let mut undescribed = file.clone();
    undescribed.extend(enhanced(0, 0, b"x", 1, true));
    assert_eq!(all(&undescribed), Err(CaptureError::Interface(0)));
    file.extend(interface(1, 0, None, true));
    file.extend(enhanced(0, 1, b"x", 1, true));
    assert_eq!(all(&file).unwrap()[0].timestamp_ns, Some(1000));
}

#[test]
fn damage_is_named() {
    assert_eq!(all(b"\x1f\x8b\x08\x00more"), Err(CaptureError::NoCapture([0x1f, 0x8b, 8, 0])));
    assert_eq!(all(b""), Err(CaptureError::Empty));
    assert_eq!(all(&classic(MAGIC_MICROSECONDS, 0, false)[..23]), Err(CaptureError::NoHeader(23)));
    let mut file = classic(MAGIC_MICROSECONDS, 0, false);
    assert_eq!(all(&file[..file.len() - 1]), Err(CaptureError::Truncated(21)));
    file[32..36].copy_from_slice(&u32::MAX.to_le_bytes());
    assert_eq!(all(&file), Err(CaptureError::RecordLength(u32::MAX)));
    file[4] = 9;
    assert_eq!(all(&file), Err(CaptureError::Version(9, 4)));

    let mut file = section(false);
    let at = file.len();
    file.extend(interface(1, 0, None, false));
    let with = |change: &dyn Fn(&mut Vec<u8>)| {
        let mut damaged = file.clone();
        change(&mut damaged);
        all(&damaged).unwrap_err()
    };
    assert_eq!(with(&|f| f[8] = 0), CaptureError::ByteOrder(0x1a2b_3c00));
    assert_eq!(with(&|f| f[at + 4] = 8), CaptureError::BlockLength(8));
    assert_eq!(with(&|f| f[at + 4] = 13), CaptureError::BlockLength(13));
    assert_eq!(with(&|f| f[at + 7] = 1), CaptureError::BlockLength(0x100_0014));
    assert_eq!(with(&|f| *f.last_mut().unwrap() = 1), CaptureError::BlockTrailer(20, 0x100_0014));
    let mut long = words(&[0, 0, 0, 5, 5], false);
    long.extend(*b"four");
    assert_eq!(with(&|f| f.extend(block(6, &long, false))), CaptureError::RecordLength(5));
    let one_more = interface(1, 0, None, false);
    assert_eq!(
        with(&|f| (0..INTERFACES_MAX).for_each(|_| f.extend(&one_more))),
        CaptureError::TooManyInterfaces
    );
}

#[test]
fn bytes_may_come_one_at_a_time() {
    let mut file = section(false);
    file.extend(interface(1, 0, None, false));
    file.extend(enhanced(0, 3, b"abcde", 5, false));
    let mut decoder = Decoder::new();
    let (mut from, mut to, mut packets) = (0, 0, 0);
    loop {
        match decoder.step(&file[from..to]).unwrap() {
            Step::NeedMore { bytes } => {
                assert!(bytes > to - from, "asks for what it has");
                if to == file.len() {
                    break;
                }
                to += 1;
            }
            Step::Skip { consumed } => from += consumed,
            Step::Packet { consumed, record } => {
                assert_eq!(record.data, b"abcde");
                from += consumed;
                packets += 1;
            }
        }
    }
    assert_eq!(packets, 1);
    assert_eq!(decoder.finish(&file[from..]), Ok(()));
}
