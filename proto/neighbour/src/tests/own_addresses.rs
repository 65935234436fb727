//! Replies and announcements for our own addresses.

use super::*;

#[test]
fn addresses_are_tried_out_then_announced() {
    let mut host = Host::new();
    host.neighbours.announce(host.now);
    let probes = host.sent();
    assert_eq!(probes.len(), 2);
    assert!(probes[0].ends_with(&packed("00000000 000000000000 0a000001")), "{probes:?}");
    assert!(probes[1].starts_with("3333ff000001"), "{probes:?}");
    let told = host.wait(200);
    assert_eq!(told.len(), 2);
    assert!(told[0].ends_with(&packed("020000000001 0a000001 000000000000 0a000001")), "{told:?}");
    assert!(told[1].starts_with("333300000001"), "{told:?}");
    assert_eq!(host.neighbours.conflict(), None);
    assert_eq!(host.wait(100_000), [""; 0]);
}

#[test]
fn an_address_that_somebody_has_is_not_announced() {
    let mut host = Host::new();
    host.neighbours.announce(host.now);
    host.sent();
    host.hears(&reply(PEER_MAC, "10.0.0.1"));
    assert_eq!(host.neighbours.conflict(), Some((ip("10.0.0.1"), PEER_MAC)));
    assert_eq!(host.wait(1_000), [""; 0]);
    assert_eq!(host.neighbours.counters().conflicts, 1);
}

#[test]
fn our_own_frames_that_come_back_mean_nothing() {
    let mut host = Host::new();
    host.neighbours.announce(host.now);
    let own: Vec<Vec<u8>> = host.sent().iter().map(|text| bytes(text)).collect();
    for frame in own {
        host.hears(&frame);
    }
    host.silent();
    assert_eq!(host.neighbours.conflict(), None);
}

#[test]
fn questions_for_others_are_none_of_ours() {
    let mut host = Host::new();
    assert!(host.hears(&request(PEER_MAC, "10.0.0.2", "10.0.0.3")));
    host.silent();
    assert!(host.neighbours.is_empty());
}

#[test]
fn other_frames_are_left_alone() {
    let mut host = Host::new();
    let mut reverse = request(PEER_MAC, "10.0.0.2", "10.0.0.1");
    reverse[21] = 3;
    assert!(!host.hears(&reverse), "reverse ARP");
    assert!(!host.hears(&[0; 13]) && !host.hears(&[]) && !host.hears(&[0; 60]));
    // An echo request by ICMPv6.
    let mut ping = bytes("020000000001 020000000002 86dd 60000000 0008 3a 40");
    ping.resize(54, 0);
    ping.extend_from_slice(&[128, 0, 0, 0, 0, 0, 0, 0]);
    assert!(!host.hears(&ping));
    assert_eq!(host.neighbours.counters().malformed, 0);
}
