//! The invariant CRC: CRC-32 over everything in a packet that no router changes.
//!
//! Eight bytes of ones replace the LRH, which RoCEv2 does not have; fields that change in flight
//! are also replaced by ones. Source: IBTA, RoCEv2 annex (A17), checked against captures of
//! ConnectX and kernel rxe.
//!
//! The CRC is crc32fast's: it starts in 6 ns where crc-fast's digest takes 20 and more, and is as
//! fast at 4 KiB (54 GB/s with AVX-512, both).

use crate::{Aeth, ICRC_LEN, Layout, Reth};
use crc32fast::Hasher;
use std::hint::black_box;

/// Bytes of ones in place of the LRH.
const ONES: usize = 8;

/// Longest masked stretch: the ones, IPv4 with options 60, UDP 8, BTH 12, AtomicETH 28.
const COVERED_MAX: usize = ONES + 108;

/// Maximum bytes of payload and pad that join the headers in one update: starting a second update
/// costs more than copying them.
const JOINED_MAX: usize = 128;

/// A running ICRC.
pub struct Icrc(Hasher);

/// The ones, IPv4 without options, UDP and BTH, the usual case.
const PLAIN_LEN: usize = ONES + 40;
/// Bits that are ones in such a stack: the leading ones and the fields that change in flight; at
/// most a RETH follows.
const PLAIN_MASK: [u8; PLAIN_LEN + Reth::LEN] = {
    let mut mask = [0; PLAIN_LEN + Reth::LEN];
    let mut at = 0;
    while at < ONES {
        mask[at] = 0xff;
        at += 1;
    }
    // ToS, TTL, header checksum; UDP checksum; FECN, BECN and the six reserved bits.
    let fields = [1, 8, 10, 11, 26, 27, 32];
    at = 0;
    while at < fields.len() {
        mask[ONES + fields[at]] = 0xff;
        at += 1;
    }
    mask
};

/// Returns the frame from the place of the leading ones (the end of its Ethernet header) up to the
/// payload.
#[inline]
fn covered<'a>(head: &'a [u8], layout: &Layout) -> &'a [u8] {
    &head[layout.ip - ONES..layout.payload]
}

/// Returns `from` with leading ones, and ones for the fields that change in flight.
#[inline(always)]
fn masked<const N: usize>(from: &[u8; N]) -> [u8; N] {
    // A mask known at compile time would become stores of single bytes.
    let (from, mask) = (*from, *black_box(&PLAIN_MASK));
    std::array::from_fn(|at| from[at] | mask[at])
}

/// Calls `use_it` with `covered`, with leading ones and ones for the fields that change in flight.
///
/// The CRC loads 16 bytes at a time, and a load that spans several recent stores stalls (no store
/// forwarding). Therefore the copies of the usual stacks are made in registers; with the leading
/// ones they are whole 16-byte pieces.
#[inline(always)]
fn with_masked<T>(covered: &[u8], layout: &Layout, use_it: impl FnOnce(&[u8]) -> T) -> T {
    if !layout.is_ipv6 && layout.udp - layout.ip == 20 {
        if let Ok(covered) = <&[u8; PLAIN_LEN]>::try_from(covered) {
            return use_it(&masked(covered));
        }
        if let Ok(covered) = <&[u8; PLAIN_LEN + Reth::LEN]>::try_from(covered) {
            return use_it(&masked(covered));
        }
        if let Ok(covered) = <&[u8; PLAIN_LEN + Aeth::LEN]>::try_from(covered) {
            return use_it(&masked(covered));
        }
    }
    let mut copy = [0; COVERED_MAX];
    let copy = &mut copy[..covered.len()];
    copy.copy_from_slice(covered);
    mask_fields(copy, layout);
    use_it(copy)
}

#[cold]
fn mask_fields(covered: &mut [u8], layout: &Layout) {
    let (ones, covered) = covered.split_at_mut(ONES);
    ones.fill(0xff);
    if layout.is_ipv6 {
        // Traffic class, flow label, hop limit.
        covered[0] |= 0x0f;
        covered[1..4].fill(0xff);
        covered[7] = 0xff;
    } else {
        // ToS, TTL, header checksum.
        covered[1] = 0xff;
        covered[8] = 0xff;
        covered[10..12].fill(0xff);
    }
    let udp = layout.udp - layout.ip;
    covered[udp + 6..udp + 8].fill(0xff);
    // FECN, BECN and the six reserved bits.
    covered[layout.bth - layout.ip + 4] = 0xff;
}

impl Icrc {
    /// Starts with the headers: `head` from the destination MAC up to the payload.
    ///
    /// # Panics
    /// If `layout` was not found in `head`.
    #[inline]
    pub fn over_head(head: &[u8], layout: &Layout) -> Self {
        let mut crc = Hasher::new();
        with_masked(covered(head, layout), layout, |masked| crc.update(masked));
        Icrc(crc)
    }

    /// Continues with payload or pad bytes.
    #[inline]
    pub fn update(&mut self, bytes: &[u8]) {
        self.0.update(bytes);
    }

    /// The four bytes as they stand on the wire.
    #[inline]
    pub fn finish(self) -> [u8; ICRC_LEN] {
        self.0.finalize().to_le_bytes()
    }
}

/// The ICRC of a packet in pieces, as on the wire: `head` from the destination MAC up to the
/// payload, then `payload`, then `pad`. The fastest way for short packets.
///
/// # Panics
/// If `layout` was not found in `head`.
#[inline]
pub fn of(head: &[u8], layout: &Layout, payload: &[u8], pad: &[u8]) -> [u8; ICRC_LEN] {
    let body = payload.len() + pad.len();
    if body == 0 || body > JOINED_MAX {
        let mut icrc = Icrc::over_head(head, layout);
        icrc.update(payload);
        if !pad.is_empty() {
            icrc.update(pad);
        }
        return icrc.finish();
    }
    let mut joined = [0_u8; COVERED_MAX + JOINED_MAX];
    let covered = covered(head, layout);
    let (masked, rest) = joined.split_at_mut(covered.len());
    with_masked(covered, layout, |copy| masked.copy_from_slice(copy));
    rest[..payload.len()].copy_from_slice(payload);
    rest[payload.len()..body].copy_from_slice(pad);
    let mut crc = Hasher::new();
    crc.update(&joined[..covered.len() + body]);
    crc.finalize().to_le_bytes()
}

/// The ICRC that a whole frame should carry; `end` is the packet's end as [`crate::Split::end`]
/// gives it.
///
/// # Panics
/// If `layout` and `end` were not found in `frame`, or the frame was truncated before its ICRC.
pub fn of_frame(frame: &[u8], layout: &Layout, end: usize) -> [u8; ICRC_LEN] {
    of(&frame[..layout.payload], layout, &frame[layout.payload..end - ICRC_LEN], &[])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Split, split};
    use proptest::prelude::*;

    fn bytes(hex: &str) -> Vec<u8> {
        (0..hex.len()).step_by(2).map(|i| u8::from_str_radix(&hex[i..i + 2], 16).unwrap()).collect()
    }

    const CNP: &str = "45c2003c718c4000401191610a0011010a001201000012b7002800008100ffff40000118\
                       0000000000000000000000000000000000000000";
    const ACK: &str =
        "4500003000004000401100000a0000020a000001c00012b7001c00001140ffff00000011001234561f000007";

    /// An Ethernet frame around `packet`, which lacks its ICRC, and the place of the ICRC.
    fn frame(packet: &str) -> (Vec<u8>, Layout, usize) {
        let mut frame = bytes("0200000000010200000000020800");
        frame.extend(bytes(packet));
        frame.extend([0; 4]);
        let found = split(&frame, frame.len()).unwrap();
        let Split::Roce { layout, .. } = found else { panic!("{found:?}") };
        let end = found.end().unwrap();
        assert_eq!(end, frame.len());
        (frame, layout, end)
    }

    /// The definition: eight bytes of ones, then everything from the IP header on, with ones for
    /// fields that change in flight.
    fn plain(frame: &[u8], layout: &Layout, end: usize) -> [u8; ICRC_LEN] {
        let (ip, udp, bth) = (layout.ip, layout.udp, layout.bth);
        let changing: &[usize] = if layout.is_ipv6 {
            &[ip + 1, ip + 2, ip + 3, ip + 7, udp + 6, udp + 7, bth + 4]
        } else {
            &[ip + 1, ip + 8, ip + 10, ip + 11, udp + 6, udp + 7, bth + 4]
        };
        let mut bytes = frame.to_vec();
        changing.iter().for_each(|&at| bytes[at] = 0xff);
        if layout.is_ipv6 {
            bytes[ip] |= 0x0f;
        }
        bytes[ip - 8..ip].fill(0xff);
        crc32fast::hash(&bytes[ip - 8..end - ICRC_LEN]).to_le_bytes()
    }

    proptest! {
        #[test]
        fn any_packet_has_the_one_that_is_defined(
            is_ipv6: bool,
            vlan in prop::option::of(0..4096_u16),
            has_options: bool,
            opcode in prop::sample::select(&[
                0x00_u8, 0x06, 0x07, 0x08, 0x0a, 0x0b, 0x0c, 0x11, 0x12, 0x13, 0x17, 0x64, 0x81,
            ]),
            noise in prop::collection::vec(any::<u8>(), 0..700),
            fill: u8,
        ) {
            let mut frame = vec![fill; 12];
            vlan.iter().for_each(|vlan| frame.extend([[0x81, 0x00], vlan.to_be_bytes()].concat()));
            frame.extend(if is_ipv6 { [0x86, 0xdd] } else { [0x08, 0x00] });
            let ip = frame.len();
            let ip_len = match (is_ipv6, has_options) {
                (true, _) => 40,
                (false, true) => 28,
                (false, false) => 20,
            };
            let body = crate::Opcode(opcode).extended_len() + noise.len() / 4 * 4;
            let udp_len = (8 + 12 + body + ICRC_LEN) as u16;
            frame.resize(ip + ip_len + usize::from(udp_len) - body.min(noise.len()), fill);
            frame.extend(&noise[..body.min(noise.len())]);
            if is_ipv6 {
                frame[ip] = 0x60 | fill & 0xf;
                frame[ip + 4..ip + 6].copy_from_slice(&udp_len.to_be_bytes());
                frame[ip + 6] = 17;
            } else {
                frame[ip] = 0x40 | (ip_len / 4) as u8;
                frame[ip + 2..ip + 4].copy_from_slice(&(ip_len as u16 + udp_len).to_be_bytes());
                frame[ip + 6..ip + 8].fill(0);
                frame[ip + 9] = 17;
            }
            let udp = ip + ip_len;
            frame[udp + 2..udp + 4].copy_from_slice(&crate::ROCEV2_PORT.to_be_bytes());
            frame[udp + 4..udp + 6].copy_from_slice(&udp_len.to_be_bytes());
            frame[udp + 8] = opcode;
            frame[udp + 9] &= 0xcf;
            let found = split(&frame, frame.len()).unwrap();
            let Split::Roce { layout, .. } = found else { panic!("{found:?}") };
            let end = found.end().unwrap();
            prop_assert_eq!(of_frame(&frame, &layout, end), plain(&frame, &layout, end));
        }
    }

    #[test]
    fn matches_a_cnp_captured_from_a_connectx() {
        let (frame, layout, end) = frame(CNP);
        assert_eq!(of_frame(&frame, &layout, end), [0x82, 0xfd, 0x00, 0x2a]);
    }

    #[test]
    fn matches_a_computed_ack() {
        let (frame, layout, end) = frame(ACK);
        assert_eq!(of_frame(&frame, &layout, end), [0xd7, 0xfd, 0xda, 0x5b]);
    }

    #[test]
    fn ipv6_offsets_on_an_ipv4_packet_are_not_what_we_compute() {
        // The mistake that a public FPGA stack shipped.
        let (frame, layout, end) = frame(CNP);
        let mut wrong = [0xff_u8; 8].to_vec();
        wrong.extend(&frame[layout.ip..end - 4]);
        let ip = &mut wrong[8..];
        ip[0] |= 0x0f;
        ip[1..4].fill(0xff);
        ip[7] = 0xff;
        ip[46..48].fill(0xff);
        ip[52] = 0xff;
        let wrong = crc32fast::hash(&wrong).to_le_bytes();
        assert_eq!(wrong, [0x94, 0xf8, 0xee, 0x90]);
        assert_ne!(of_frame(&frame, &layout, end), wrong);
    }

    #[test]
    fn a_constant_is_not_what_we_compute() {
        for packet in [CNP, ACK] {
            let (frame, layout, end) = frame(packet);
            let icrc = of_frame(&frame, &layout, end);
            assert_ne!(icrc, 0xdead_beef_u32.to_be_bytes());
            assert_ne!(icrc, 0xdead_beef_u32.to_le_bytes());
        }
    }

    #[test]
    fn joined_and_separate_updates_agree() {
        let (frame, layout, _) = frame(ACK);
        let head = &frame[..layout.payload];
        let payload: Vec<u8> = (0..600).map(|i| (i * 7) as u8).collect();
        for len in 0..600 {
            for pad in 0..4 {
                let mut separate = Icrc::over_head(head, &layout);
                separate.update(&payload[..len]);
                separate.update(&[0; 3][..pad]);
                assert_eq!(
                    of(head, &layout, &payload[..len], &[0; 3][..pad]),
                    separate.finish(),
                    "{len}"
                );
            }
        }
    }
}
