//! No byte sequence makes a view panic, and every refusal has a reason.

use longhaul_units::{Psn, Qpn};
use longhaul_wire::{
    Bth, Head, ICRC_LEN, Layout, MacAddr, Malformed, Opcode, Packet, Path, PathTemplate, Split,
    icrc, split,
};
use proptest::prelude::*;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

fn path(is_ipv6: bool, vlan: Option<u16>) -> Path {
    let (source_ip, destination_ip) = if is_ipv6 {
        (IpAddr::V6(Ipv6Addr::LOCALHOST), IpAddr::V6(Ipv6Addr::UNSPECIFIED))
    } else {
        (IpAddr::V4(Ipv4Addr::LOCALHOST), IpAddr::V4(Ipv4Addr::BROADCAST))
    };
    Path {
        source_mac: MacAddr([2; 6]),
        destination_mac: MacAddr([4; 6]),
        vlan,
        source_ip,
        destination_ip,
        traffic_class: 2,
        hop_limit: 64,
        flow_label: 0,
        udp_source_port: 50_000,
    }
}

/// A valid frame of any opcode; its extended headers are filled with `filler`.
fn sound(opcode: u8, is_ipv6: bool, vlan: Option<u16>, payload: &[u8], filler: u8) -> Vec<u8> {
    let template = PathTemplate::new(&path(is_ipv6, vlan));
    let opcode = Opcode(opcode);
    let mut head = Head::begin(&template, &Bth::new(opcode, Qpn::new(7), Psn::new(9)));
    for _ in 0..opcode.extended_len() / 4 {
        head.push_immediate([filler; 4]);
    }
    let pad = head.finish(&template, payload.len());
    let mut frame = head.bytes().to_vec();
    frame.extend(payload);
    frame.resize(frame.len() + usize::from(pad) + ICRC_LEN, 0);
    let Ok(Some(layout)) = Layout::find(&frame) else { panic!("{frame:02x?}") };
    let end = frame.len();
    let icrc = icrc::of_frame(&frame, &layout, end);
    frame[end - ICRC_LEN..].copy_from_slice(&icrc);
    frame
}

/// Does all receiver processing of a frame. Returns whether it is RoCEv2 with a correct ICRC.
fn read_all(frame: &[u8]) -> Result<bool, Malformed> {
    let found = split(frame, frame.len())?;
    let (Split::Roce { layout, payload_len, pad }, Some(end)) = (found, found.end()) else {
        return Ok(false);
    };
    assert!(end <= frame.len() && pad < 4 && (payload_len + pad).is_multiple_of(4));
    let Ok(Some(packet)) = Packet::parse(&frame[..layout.payload]) else {
        panic!("split found it")
    };
    assert_eq!(packet.layout(), layout);
    let opcode = packet.opcode();
    assert_eq!(packet.reth().is_some(), opcode.has_reth());
    assert_eq!(packet.aeth().is_some(), opcode.has_aeth());
    assert_eq!(packet.deth().is_some(), opcode.has_deth());
    assert_eq!(packet.atomic_eth().is_some(), opcode.has_atomic());
    assert_eq!(packet.atomic_ack_eth().is_some(), opcode == Opcode::RC_ATOMIC_ACK);
    assert_eq!(packet.immediate().is_some(), opcode.has_immediate());
    assert_eq!(packet.invalidate().is_some(), opcode.has_invalidate());
    let _ = (packet.path(), packet.hop_limit(), packet.ipv4_fragmentation(), packet.bth().write());
    Ok(icrc::of_frame(frame, &layout, end) == frame[end - ICRC_LEN..end])
}

#[test]
fn every_prefix_is_refused_or_no_packet() {
    for opcode in 0..=255 {
        for is_ipv6 in [false, true] {
            let frame = sound(opcode, is_ipv6, Some(5), &[1; 6], 0x5a);
            assert_eq!(read_all(&frame), Ok(true));
            for end in 0..frame.len() {
                assert_ne!(read_all(&frame[..end]), Ok(true), "opcode {opcode:#x} cut at {end}");
            }
        }
    }
}

#[test]
fn every_flipped_bit_under_the_icrc_is_noticed() {
    for opcode in [0x00, 0x0b, 0x0d, 0x11, 0x12, 0x14, 0x17, 0x65, 0x81] {
        for is_ipv6 in [false, true] {
            let mut frame = sound(opcode, is_ipv6, None, &[1; 7], 0x5a);
            let Ok(Some(Layout { ip, udp, bth, .. })) = Layout::find(&frame) else { panic!() };
            for bit in 0..frame.len() * 8 {
                let at = bit / 8;
                let is_mutable = at < ip
                    || match is_ipv6 {
                        false => [1, 8, 10, 11].contains(&(at - ip)),
                        // Low half of byte 0 and bytes 1 to 3: traffic class and flow label.
                        true => {
                            (1..4).contains(&(at - ip)) || at == ip + 7 || (at == ip && bit % 8 < 4)
                        }
                    }
                    || [udp + 6, udp + 7, bth + 4].contains(&at);
                frame[at] ^= 1 << (bit % 8);
                let outcome = read_all(&frame);
                if !is_mutable {
                    assert_ne!(outcome, Ok(true), "opcode {opcode:#x}, IPv6 {is_ipv6}, bit {bit}");
                } else if at >= ip {
                    assert_eq!(outcome, Ok(true), "opcode {opcode:#x}, IPv6 {is_ipv6}, bit {bit}");
                }
                frame[at] ^= 1 << (bit % 8);
            }
        }
    }
}

#[test]
fn ethernet_padding_is_no_part_of_the_packet() {
    let mut frame = sound(0x11, false, None, &[], 0);
    frame.extend([0; 20]);
    assert_eq!(read_all(&frame), Ok(true));
}

#[test]
fn reasons_are_told_apart() {
    let sound = sound(0x04, false, None, &[1; 8], 0);
    let with = |changes: &[(usize, u8)]| {
        let mut frame = sound.clone();
        for &(at, byte) in changes {
            frame[at] = byte;
        }
        read_all(&frame)
    };
    assert_eq!(with(&[(14, 0x44)]), Err(Malformed::IpHeaderLength));
    assert_eq!(with(&[(17, 0xff)]), Err(Malformed::Length));
    assert_eq!(with(&[(39, 1)]), Err(Malformed::Length));
    assert_eq!(with(&[(20, 0x20)]), Err(Malformed::Fragment));
    assert_eq!(with(&[(43, 0x10)]), Ok(false), "pad may lie: the ICRC tells");
    assert_eq!(with(&[(17, 20 + 8 + 12), (39, 8 + 12)]), Err(Malformed::Truncated));
    assert_eq!(with(&[(17, 20 + 8 + 12 + 7 + 4), (39, 8 + 12 + 7 + 4)]), Err(Malformed::Pad));
    assert_eq!(with(&[(14, 0x65)]), Ok(false), "version 6 under IPv4's EtherType is not ours");
    assert_eq!(with(&[(23, 6)]), Ok(false), "TCP");
    assert_eq!(with(&[(20, 0x20), (36, 0)]), Ok(false), "somebody else's fragment");
    assert_eq!(with(&[(20, 0x00), (21, 0x08)]), Ok(false), "a later fragment has no ports");
}

proptest! {
    #[test]
    fn random_bytes_never_panic(frame in proptest::collection::vec(any::<u8>(), 0..200)) {
        let _ = read_all(&frame);
    }

    #[test]
    fn damaged_frames_never_pass_for_sound(
        opcode: u8,
        is_ipv6: bool,
        vlan in proptest::option::of(any::<u16>()),
        payload in proptest::collection::vec(any::<u8>(), 0..100),
        filler: u8,
        damage in proptest::collection::vec((0..200_usize, 1_u8..), 1..6),
    ) {
        let mut frame = sound(opcode, is_ipv6, vlan, &payload, filler);
        prop_assert_eq!(read_all(&frame), Ok(true));
        let Ok(Some(Layout { bth, .. })) = Layout::find(&frame) else { panic!() };
        let before = frame.clone();
        for (at, bits) in damage {
            // From the BTH on, except the byte that routers may change.
            let at = bth + at % (frame.len() - bth);
            if at != bth + 4 {
                frame[at] ^= bits;
            }
        }
        prop_assert!(frame == before || read_all(&frame) != Ok(true));
    }
}
