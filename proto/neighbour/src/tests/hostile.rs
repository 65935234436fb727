//! Forged messages and floods.

use super::*;
use crate::{Failure, HopId};
use proptest::prelude::*;

/// A host that holds some neighbours, in a table of few entries.
fn holding() -> (Host, Vec<HopId>) {
    let mut host = Host::with(|config| (config.entries_max, config.heard_max) = (8, 2));
    let hold = |n: u8| {
        let peer = format!("10.0.0.{n}");
        host.ask(&peer);
        host.hears(&reply(MacAddr([2, 0, 0, 0, 1, n]), &peer));
        host.neighbours.hold(host.now, ip(&peer)).unwrap().0
    };
    let held = (10..14).map(hold).collect();
    host.sent();
    (host, held)
}

fn still_there(host: &Host) {
    for n in 10..14 {
        let known = Resolution::Known(MacAddr([2, 0, 0, 0, 1, n]));
        assert_eq!(host.look_up(&format!("10.0.0.{n}")), known);
    }
}

#[test]
fn a_flood_of_messages_makes_no_entries() {
    let (mut host, _) = holding();
    for n in 0..100_000_u32 {
        let [_, b, c, d] = n.to_be_bytes();
        let sender = format!("10.{b}.{c}.{d}");
        if (10..14).contains(&d) && [b, c] == [0, 0] || sender == "10.0.0.1" {
            continue;
        }
        host.hears(&arp(1 + (n % 2) as u8, PEER_MAC, &sender, "10.0.0.77"));
    }
    assert_eq!(host.neighbours.len(), 4);
    still_there(&host);
}

#[test]
fn a_flood_of_questions_waits_for_its_answers_in_a_bounded_queue() {
    let mut host = Host::new();
    for n in 0..10_000_u32 {
        let [_, _, c, d] = n.to_be_bytes();
        host.hears(&request(PEER_MAC, &format!("10.1.{c}.{d}"), "10.0.0.1"));
    }
    host.ask("10.0.0.2");
    let sent = host.sent();
    assert_eq!(sent.len(), 65);
    assert!(sent[0].starts_with("ffffffffffff"), "our own question comes first");
    assert_eq!(host.neighbours.counters().answers_dropped, 10_000 - 64);
}

#[test]
fn strangers_who_speak_to_us_have_few_entries_and_drive_nobody_out() {
    let (mut host, _) = holding();
    for n in 100..200 {
        host.neighbours.heard(host.now, ip(&format!("10.0.0.{n}")), PEER_MAC);
        assert!(host.neighbours.len() <= 6);
    }
    still_there(&host);
    assert_eq!(host.look_up("10.0.0.199"), Resolution::Known(PEER_MAC), "the last ones");
    // Our own entries evict them first.
    for n in 20..24 {
        assert_eq!(host.ask(&format!("10.0.0.{n}")), Resolution::Asking);
    }
    assert_eq!(host.look_up("10.0.0.199"), Resolution::Asking, "forgotten");
    host.neighbours.heard(host.now, ip("10.0.0.50"), PEER_MAC);
    assert_eq!(host.neighbours.len(), 8);
    assert_eq!(
        host.ask("10.0.0.60"),
        Resolution::Failed(Failure::TableFull),
        "all are held or asked for"
    );
    host.wait(3_000);
    assert_eq!(host.ask("10.0.0.60"), Resolution::Asking, "those without an answer make room");
    still_there(&host);
}

#[test]
fn an_address_that_flaps_changes_once_a_second() {
    let (mut host, held) = holding();
    let mut changes = 0;
    for n in 0..1000 {
        host.wait(10);
        let mac = if n % 2 == 0 { OTHER_MAC } else { PEER_MAC };
        host.hears(&request(mac, "10.0.0.10", "10.0.0.10"));
        while let Some((id, _)) = host.neighbours.poll_change() {
            assert_eq!(id, held[0]);
            changes += 1;
        }
    }
    assert!((5..=10).contains(&changes), "{changes} changes in ten seconds");
    assert!(host.neighbours.counters().changes_ignored > 400);
}

#[test]
fn nobody_is_a_group_or_everybody() {
    let mut host = Host::new();
    host.ask("10.0.0.2");
    for mac in [[0xff; 6], [1, 0, 0x5e, 0, 0, 1], [0; 6]] {
        host.hears(&reply(MacAddr(mac), "10.0.0.2"));
        host.neighbours.heard(host.now, ip("10.0.0.3"), MacAddr(mac));
    }
    assert_eq!(host.look_up("10.0.0.2"), Resolution::Asking);
    assert_eq!(host.look_up("10.0.0.3"), Resolution::Asking);
    assert_eq!(host.neighbours.counters().malformed, 3);
}

proptest! {
    #[test]
    fn no_bytes_make_entries_or_harm(
        start in prop::sample::select(vec![
            "",
            "ffffffffffff0200000000020806",
            "0200000000010200000000028100000008060001080006040001",
            "0200000000010200000000020806000108000604000202000000000a0a00000a",
            "3333ff00000102000000000286dd6000000000203aff",
            "33330000000102000000000286dd6000000000183aff",
        ]),
        rest in prop::collection::vec(any::<u8>(), 0..120),
    ) {
        let (mut host, _) = holding();
        let mut frame = bytes(start);
        frame.extend_from_slice(&rest);
        host.hears(&frame);
        host.wait(10_000);
        prop_assert_eq!(host.neighbours.len(), 4);
    }

    #[test]
    fn frames_that_are_nearly_right_are_no_harm_either(
        kind in 0..3_usize,
        changes in prop::collection::vec((0..86_usize, any::<u8>()), 0..4),
    ) {
        let (mut host, _) = holding();
        let peer = (std::net::Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 2), PEER_MAC);
        let own = std::net::Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 1);
        let mut frame = match kind {
            0 => request(PEER_MAC, "10.0.0.2", "10.0.0.1"),
            1 => Outgoing::solicitation(peer, own, None, None).bytes().to_vec(),
            _ => Outgoing::advertisement(peer, None, None).bytes().to_vec(),
        };
        for (at, byte) in changes {
            if let Some(place) = frame.get_mut(at) {
                *place = byte;
            }
        }
        host.hears(&frame);
        host.wait(10_000);
        prop_assert_eq!(host.neighbours.len(), 4);
    }
}
