//! Tests of frames that the port refuses to send.

use super::*;

#[test]
fn what_is_not_plain_rocev2_is_counted() {
    let (addresses, mut a, mut b) = pair();
    let good = frame_on(&path(addresses[0], addresses[1]), 1, 64);
    let with = |change: &dyn Fn(&mut Vec<u8>)| {
        let mut frame = good.clone();
        change(&mut frame);
        frame
    };
    let bad = [
        with(&|frame| frame[12..14].copy_from_slice(&[0x08, 0x06])),
        with(&|frame| frame[14] = 0x46),
        with(&|frame| frame[14] = 0x65),
        with(&|frame| frame[20] = 0),
        with(&|frame| frame[20] = 0x20),
        with(&|frame| frame[23] = 6),
        with(&|frame| frame[16..18].fill(0xff)),
        with(&|frame| frame[16..18].fill(0)),
        with(&|frame| frame[38..40].fill(0)),
        with(&|frame| frame[36..38].copy_from_slice(&53_u16.to_be_bytes())),
        with(&|frame| frame[12..16].copy_from_slice(&[0x86, 0xdd, 0x45, 0])),
        with(&|frame| frame[12..16].copy_from_slice(&[0x86, 0xdd, 0x60, 0])),
        with(&|frame| frame.truncate(30)),
        with(&|frame| frame.truncate(14)),
        with(&|frame| frame.truncate(good.len() - 1)),
    ];
    for frame in &bad {
        give(&mut a, frame);
    }
    give(&mut a, &good);
    a.flush().unwrap();
    assert_eq!(a.udp_counters().tx_not_rocev2, bad.len() as u64);
    assert_eq!(a.counters().tx_frames, 1);
    check_icrc(&take(&mut b, 1, 64)[0]);
}

#[test]
fn every_length_of_a_frame_is_survived() {
    let (addresses, mut a, _b) = pair();
    for vlan in [None, Some(3)] {
        let good = frame_on(&Path { vlan, ..path(addresses[0], addresses[1]) }, 1, 8);
        for len in 14..good.len() {
            give(&mut a, &good[..len]);
            assert_eq!(a.counters().tx_frames, 0, "{len} bytes");
        }
    }
    let own = IpAddr::V6(std::net::Ipv6Addr::LOCALHOST);
    let good = frame_on(&path(own, own), 1, 8);
    for len in 0..good.len() {
        assert!(crate::headers::Outgoing::parse(&good[..len], own).is_err(), "{len} bytes");
    }
    assert!(crate::headers::Outgoing::parse(&good, own).is_ok());
}

#[test]
fn foreign_addresses_and_ports_are_counted() {
    let (addresses, mut a, _b) = pair();
    let own = path(addresses[0], addresses[1]);
    give(&mut a, &frame_on(&Path { source_ip: addresses[1], ..own }, 1, 64));
    give(&mut a, &frame_on(&Path { udp_source_port: 0xc000, ..own }, 1, 64));
    a.flush().unwrap();
    let counters = a.udp_counters();
    assert_eq!((counters.tx_foreign_source, counters.tx_source_port), (1, 1));
    assert_eq!(counters.tx_calls, 0);
}

#[test]
fn lengths_that_the_port_cannot_carry_are_errors() {
    let (_, mut a, _b) = pair();
    for len in [0, 13, 4353] {
        a.transmit(len, &mut |_| panic!("{len} bytes")).unwrap_err();
    }
}

#[test]
fn an_unreachable_destination_is_told_once_and_delays_nobody() {
    let (addresses, mut a, mut b) = pair();
    // Broadcast needs an option that the socket does not have.
    let nowhere = path(addresses[0], IpAddr::from([255, 255, 255, 255]));
    for _ in 0..3 {
        give(&mut a, &frame_on(&nowhere, 1, 64));
    }
    give(&mut a, &frame_on(&path(addresses[0], addresses[1]), 2, 64));
    let message = a.flush().unwrap_err().to_string();
    assert!(message.contains("no way to"), "{message}");
    give(&mut a, &frame_on(&nowhere, 1, 64));
    a.flush().unwrap();
    assert_eq!(a.udp_counters().tx_unreachable, 4);
    assert_eq!(a.counters().tx_drops.total(), 4);
    assert_eq!(psn(&take(&mut b, 1, 64)[0]), 2);
}

#[test]
fn a_peer_that_is_not_there_is_no_error() {
    let (addresses, mut a, b) = pair();
    drop(b);
    for number in 0..20 {
        give(&mut a, &frame_on(&path(addresses[0], addresses[1]), number, 64));
        a.flush().unwrap();
        assert_eq!(a.receive(8, &mut |_| panic!("a frame")).unwrap(), 0);
    }
}
