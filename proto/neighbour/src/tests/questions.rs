//! Requests, their retransmission, and the handling of replies.

use super::*;
use crate::Failure;

const NO_ANSWER: Resolution = Resolution::Failed(Failure::NoAnswer);
const KNOWN: Resolution = Resolution::Known(PEER_MAC);

/// A host with an entry for 10.0.0.2, optionally held.
fn acquainted(holds: bool) -> (Host, Option<crate::HopId>) {
    let mut host = Host::new();
    host.ask("10.0.0.2");
    host.sent();
    host.hears(&reply(PEER_MAC, "10.0.0.2"));
    let held = holds.then(|| host.neighbours.hold(host.now, ip("10.0.0.2")).unwrap().0);
    (host, held)
}

#[test]
fn silence_is_a_failure_after_three_tries_a_second_apart() {
    let mut host = Host::new();
    host.ask("10.0.0.2");
    let mut tries = host.sent();
    tries.extend(host.wait(2_999));
    assert_eq!((tries.len(), host.look_up("10.0.0.2")), (3, Resolution::Asking));
    host.wait(1);
    assert_eq!(host.look_up("10.0.0.2"), NO_ANSWER);
    assert_eq!(host.neighbours.counters().unanswered, 1);
    assert_eq!(host.wait(100_000), [""; 0], "nobody wants to know any more");
    assert_eq!(host.ask("10.0.0.2"), Resolution::Asking, "asking again begins anew");
    assert_eq!(host.sent().len(), 1);
}

#[test]
fn a_late_answer_is_an_answer() {
    let mut host = Host::new();
    host.ask("10.0.0.2");
    host.wait(2_500);
    host.hears(&reply(PEER_MAC, "10.0.0.2"));
    assert_eq!(host.look_up("10.0.0.2"), KNOWN);
}

#[test]
fn several_who_ask_share_one_question() {
    let mut host = Host::new();
    for _ in 0..5 {
        assert_eq!(host.ask("10.0.0.2"), Resolution::Asking);
    }
    assert_eq!(host.sent().len(), 1);
}

#[test]
fn what_is_elsewhere_is_behind_the_gateway() {
    let mut host = Host::new();
    assert_eq!(host.ask("192.0.2.1"), Resolution::Asking);
    assert!(host.sent()[0].ends_with("0a0000fe"), "the gateway is asked for");
    host.hears(&reply(OTHER_MAC, "10.0.0.254"));
    assert_eq!(host.look_up("192.0.2.1"), Resolution::Known(OTHER_MAC));
    assert_eq!(host.look_up("198.51.100.1"), Resolution::Known(OTHER_MAC), "everything elsewhere");
    assert_eq!(host.look_up("10.0.0.2"), Resolution::Asking);
    assert_eq!(
        host.ask("2001:db8::1"),
        Resolution::Failed(Failure::NoRoute),
        "no gateway of this family"
    );
    assert_eq!(host.ask("fe80::5"), Resolution::Asking, "link-local addresses are always near");
}

#[test]
fn groups_and_our_own_addresses_need_no_question() {
    let mut host = Host::new();
    assert_eq!(host.ask("10.0.0.1"), Resolution::Known(OUR_MAC));
    assert_eq!(host.ask("239.1.2.3"), Resolution::Known(MacAddr([1, 0, 0x5e, 1, 2, 3])));
    assert!(host.neighbours.hold(host.now, ip("239.1.2.3")).is_none());
    host.silent();
    assert!(host.neighbours.is_empty());
}

#[test]
fn a_held_neighbour_is_asked_again_and_goes_on_where_it_was() {
    let (mut host, _) = acquainted(true);
    let asked = host.wait(30_000);
    assert_eq!(asked.len(), 1);
    assert!(
        asked[0].starts_with("020000000002"),
        "the one who was there is asked first: {asked:?}"
    );
    assert_eq!(host.look_up("10.0.0.2"), KNOWN, "meanwhile it is known");
    host.hears(&reply(PEER_MAC, "10.0.0.2"));
    assert_eq!(host.neighbours.poll_change(), None);
    assert_eq!(host.wait(29_999), [""; 0]);
}

#[test]
fn a_neighbour_that_nobody_holds_is_asked_again_when_somebody_wants_it() {
    let (mut host, _) = acquainted(false);
    assert_eq!(host.wait(100_000), [""; 0]);
    assert_eq!(host.ask("10.0.0.2"), KNOWN);
    assert_eq!(host.sent().len(), 1);
    host.wait(3_000);
    assert_eq!(host.look_up("10.0.0.2"), NO_ANSWER, "it was gone");
}

#[test]
fn a_held_neighbour_that_went_away_is_found_when_it_comes_back() {
    let (mut host, _) = acquainted(true);
    host.wait(34_000);
    assert_eq!(host.look_up("10.0.0.2"), NO_ANSWER, "for whoever comes now");
    let asked = host.wait(60_000);
    assert!(!asked.is_empty(), "for those who have it");
    host.hears(&request(OTHER_MAC, "10.0.0.2", "10.0.0.99"));
    assert_eq!(host.neighbours.poll_change().map(|(_, mac)| mac), Some(OTHER_MAC));
    assert_eq!(host.look_up("10.0.0.2"), Resolution::Known(OTHER_MAC));
}

#[test]
fn a_neighbour_that_moves_takes_those_who_hold_it_along() {
    let (mut host, held) = acquainted(true);
    host.wait(2_000);
    // A gratuitous ARP, as failover sends it.
    host.hears(&request(OTHER_MAC, "10.0.0.2", "10.0.0.2"));
    assert_eq!(host.neighbours.poll_change(), held.map(|id| (id, OTHER_MAC)));
    assert_eq!(host.neighbours.poll_change(), None);
    assert_eq!(host.neighbours.counters().changed, 1);
    host.neighbours.release(held.unwrap());
    host.wait(2_000);
    host.hears(&request(PEER_MAC, "10.0.0.2", "10.0.0.2"));
    assert_eq!(host.neighbours.poll_change(), None, "nobody holds it");
    assert_eq!(host.look_up("10.0.0.2"), KNOWN);
}

#[test]
fn an_advertisement_that_does_not_override_changes_nothing() {
    let mut host = Host::new();
    host.ask("fd00::2");
    let advertisement = |mac: MacAddr, overrides: bool| {
        let from = (std::net::Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 2), mac);
        let mut frame = Outgoing::advertisement(from, None, None).bytes().to_vec();
        if !overrides {
            // Flags and checksum, which grows by what the flags lose.
            frame[58] = 0;
            let sum = u16::from_be_bytes([frame[56], frame[57]]);
            let (sum, carry) = sum.overflowing_add(0x2000);
            frame[56..58].copy_from_slice(&(sum + u16::from(carry)).to_be_bytes());
        }
        frame
    };
    assert!(host.hears(&advertisement(PEER_MAC, false)));
    assert_eq!(host.look_up("fd00::2"), KNOWN, "the first one is always news");
    host.wait(5_000);
    assert!(host.hears(&advertisement(OTHER_MAC, false)));
    assert_eq!((host.look_up("fd00::2"), host.neighbours.counters().changes_ignored), (KNOWN, 1));
    host.hears(&advertisement(OTHER_MAC, true));
    assert_eq!(host.look_up("fd00::2"), Resolution::Known(OTHER_MAC));
    assert_eq!(host.neighbours.counters().malformed, 0);
}

#[test]
fn who_spoke_to_us_can_be_answered_at_once_and_is_asked_all_the_same() {
    let mut host = Host::new();
    host.neighbours.heard(host.now, ip("10.0.0.2"), PEER_MAC);
    assert_eq!(host.look_up("10.0.0.2"), KNOWN);
    host.silent();
    assert_eq!(host.ask("10.0.0.2"), KNOWN);
    assert_eq!(host.sent().len(), 1);
    host.hears(&reply(OTHER_MAC, "10.0.0.2"));
    assert_eq!(host.look_up("10.0.0.2"), Resolution::Known(OTHER_MAC), "the answer counts more");
    host.neighbours.heard(host.now, ip("10.0.0.2"), PEER_MAC);
    assert_eq!(host.look_up("10.0.0.2"), Resolution::Known(OTHER_MAC));
    host.neighbours.heard(host.now, ip("192.0.2.1"), PEER_MAC);
    assert_eq!(
        host.look_up("192.0.2.1"),
        Resolution::Asking,
        "what comes from elsewhere comes from a gateway"
    );
}

mod by_the_owner {
    use super::*;

    #[test]
    fn questions_are_the_owners_and_frames_are_not_ours() {
        let mut host = Host::told_by_owner();
        assert!(!host.hears(&request(PEER_MAC, "10.0.0.2", "10.0.0.1")), "the kernel answers");
        assert_eq!(host.ask("192.0.2.1"), Resolution::Asking);
        host.silent();
        assert_eq!(
            host.neighbours.poll_question(),
            Some(ip("192.0.2.1")),
            "it knows the route too"
        );
        assert_eq!(host.neighbours.poll_question(), None);
        host.neighbours.answer(host.now, ip("192.0.2.1"), Ok(PEER_MAC));
        assert_eq!(host.look_up("192.0.2.1"), KNOWN);
        host.neighbours.answer(host.now, ip("192.0.2.9"), Ok(PEER_MAC));
        assert_eq!(host.neighbours.len(), 1, "nobody asked for that");
    }

    #[test]
    fn no_answer_is_a_failure_and_a_refusal_has_its_reason() {
        let mut host = Host::told_by_owner();
        host.ask("10.0.0.2");
        host.wait(3_000);
        assert_eq!(host.look_up("10.0.0.2"), NO_ANSWER);
        host.ask("10.0.0.3");
        host.neighbours.answer(host.now, ip("10.0.0.3"), Err(Failure::NoRoute));
        assert_eq!(host.look_up("10.0.0.3"), Resolution::Failed(Failure::NoRoute));
    }
}

#[test]
fn a_question_that_could_not_leave_yet_waits_once_and_not_after_its_answer() {
    let mut host = Host::new();
    host.ask("10.0.0.2");
    host.ask("10.0.0.3");
    // No frames are polled for two tries.
    for _ in 0..2 {
        host.now = host.neighbours.poll_timeout().unwrap().at;
        host.neighbours.handle_timeout(host.now);
    }
    host.hears(&reply(PEER_MAC, "10.0.0.2"));
    let sent = host.sent();
    assert_eq!(sent.len(), 1, "{sent:?}");
    assert!(sent[0].contains("0a000003"), "{sent:?}");
    // The skipped request is sent when it is due again.
    let fresh = host.neighbours.config().fresh;
    host.now += fresh;
    host.neighbours.handle_timeout(host.now);
    assert_eq!(host.ask("10.0.0.2"), KNOWN);
    assert!(host.sent().iter().any(|frame| frame.ends_with("0a000002")));
}

#[test]
fn a_place_in_the_table_takes_over_no_question() {
    let mut host = Host::with(|config| config.entries_max = 1);
    host.ask("10.0.0.2");
    host.neighbours.answer(host.now, ip("10.0.0.2"), Err(Failure::NoAnswer));
    // The other entry's request is still queued, but obsolete.
    host.ask("10.0.0.3");
    let sent = host.sent();
    assert_eq!((sent.len(), sent[0].ends_with("0a000003")), (1, true), "{sent:?}");
}
