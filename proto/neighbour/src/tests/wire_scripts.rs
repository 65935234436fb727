//! Byte-exact scripts.
//!
//! The frames are written by hand from the RFCs, with independently computed checksums.

use super::*;
use crate::multicast_mac;

#[test]
fn an_arp_request_for_us_is_answered_to_who_asked() {
    let mut host = Host::new();
    let asked = "ffffffffffff 020000000002 0806 0001 0800 06 04 0001 020000000002 0a000002 \
                 000000000000 0a000001";
    assert!(host.hears(&bytes(asked)));
    let answer = "020000000002 020000000001 0806 0001 0800 06 04 0002 020000000001 0a000001 \
                  020000000002 0a000002";
    assert_eq!(host.sent(), [packed(answer)]);
}

#[test]
fn an_arp_request_in_our_vlan_is_answered_there() {
    let mut host = Host::with(|config| config.vlan = Some(100));
    let rest = "0806 0001 0800 06 04 0001 020000000002 0a000002 000000000000 0a000001";
    let in_vlan = |tag: &str| bytes(&format!("ffffffffffff 020000000002 {tag} {rest}"));
    assert!(!host.hears(&in_vlan("")), "untagged");
    assert!(!host.hears(&in_vlan("8100 0065")), "another VLAN");
    assert!(host.hears(&in_vlan("8100 6064")), "with a priority");
    let answer = "020000000002 020000000001 8100 0064 0806 0001 0800 06 04 0002
                  020000000001 0a000001 020000000002 0a000002";
    assert_eq!(host.sent(), [packed(answer)]);
    let mut untagged = Host::new();
    assert!(!untagged.hears(&in_vlan("8100 0064")));
    assert!(untagged.hears(&in_vlan("8100 e000")), "a priority alone");
}

#[test]
fn a_question_goes_to_everybody_then_finds_its_answer() {
    let mut host = Host::new();
    assert_eq!(host.ask("10.0.0.2"), Resolution::Asking);
    let question = "ffffffffffff 020000000001 0806 0001 0800 06 04 0001 020000000001 0a000001 \
                    000000000000 0a000002";
    assert_eq!(host.sent(), [packed(question)]);
    let answer = "020000000001 020000000002 0806 0001 0800 06 04 0002 020000000002 0a000002 \
                  020000000001 0a000001";
    assert!(host.hears(&bytes(answer)));
    assert_eq!(host.look_up("10.0.0.2"), Resolution::Known(PEER_MAC));
    host.silent();
}

/// fd00::2 (02:00:00:00:00:02) asks for fd00::1.
const SOLICITATION: &str = "3333ff000001 020000000002 86dd 60000000 0020 3a ff
    fd000000000000000000000000000002 ff0200000000000000000001ff000001
    87 00 7d97 00000000 fd000000000000000000000000000001 01 01 020000000002";

#[test]
fn a_solicitation_for_us_is_answered_to_who_asked() {
    let mut host = Host::new();
    assert!(host.hears(&bytes(SOLICITATION)));
    let answer = "020000000002 020000000001 86dd 60000000 0020 3a ff
        fd000000000000000000000000000001 fd000000000000000000000000000002
        88 00 1c9c 60000000 fd000000000000000000000000000001 02 01 020000000001";
    assert_eq!(host.sent(), [packed(answer)]);
}

#[test]
fn a_link_local_address_of_ours_is_answered_for_as_well() {
    let mut host = Host::with(|config| config.addresses.push(address("fe80::1", 64)));
    let asked = "3333ff000001 020000000002 86dd 60000000 0020 3a ff
        fe800000000000000000000000000002 ff0200000000000000000001ff000001
        87 00 7a97 00000000 fe800000000000000000000000000001 01 01 020000000002";
    assert!(host.hears(&bytes(asked)));
    let answers = host.sent();
    assert_eq!(answers.len(), 1);
    assert!(
        answers[0].contains("fe800000000000000000000000000001fe800000000000000000000000000002"),
        "{answers:?}"
    );
}

#[test]
fn who_tries_our_address_out_is_told_with_everybody() {
    let mut host = Host::new();
    let probe = "3333ff000001 020000000002 86dd 60000000 0018 3a ff
        00000000000000000000000000000000 ff0200000000000000000001ff000001
        87 00 7da5 00000000 fd000000000000000000000000000001";
    assert!(host.hears(&bytes(probe)));
    let answer = host.sent();
    assert_eq!(answer.len(), 1);
    assert!(answer[0].starts_with("333300000001020000000001"), "{answer:?}");
    assert!(answer[0].contains("ff020000000000000000000000000001"), "{answer:?}");
}

#[test]
fn a_question_by_neighbour_discovery_goes_to_the_group_then_finds_its_answer() {
    let mut host = Host::new();
    assert_eq!(host.ask("fd00::2"), Resolution::Asking);
    let question = "3333ff000002 020000000001 86dd 60000000 0020 3a ff
        fd000000000000000000000000000001 ff0200000000000000000001ff000002
        87 00 7d97 00000000 fd000000000000000000000000000002 01 01 020000000001";
    assert_eq!(host.sent(), [packed(question)]);
    let answer = "020000000001 020000000002 86dd 60000000 0020 3a ff
        fd000000000000000000000000000002 fd000000000000000000000000000001
        88 00 1c9a 60000000 fd000000000000000000000000000002 02 01 020000000002";
    assert!(host.hears(&bytes(answer)));
    assert_eq!(host.look_up("fd00::2"), Resolution::Known(PEER_MAC));
}

type Spoil = fn(&mut Vec<u8>);

#[test]
fn what_a_router_may_have_forwarded_or_a_wire_damaged_is_ignored() {
    let sound = bytes(SOLICITATION);
    let spoilt: [(&str, Spoil); 8] = [
        ("hop limit", |frame| frame[21] = 254),
        ("checksum", |frame| frame[56] ^= 1),
        ("code", |frame| frame[55] = 1),
        ("an option without length", |frame| frame[79] = 0),
        ("an option beyond the end", |frame| frame[79] = 2),
        ("length", |frame| frame[19] = 0x21),
        ("cut", |frame| frame.truncate(80)),
        ("a group as the sender", |frame| frame[6] |= 1),
    ];
    for (what, spoil) in spoilt {
        let mut host = Host::new();
        let mut frame = sound.clone();
        spoil(&mut frame);
        assert!(host.hears(&frame), "{what}: is one all the same");
        host.silent();
        assert_eq!(host.neighbours.counters().malformed, 1, "{what}");
    }
}

#[test]
fn groups_have_the_addresses_of_the_standards() {
    assert_eq!(multicast_mac(ip("239.255.1.2")), Some(MacAddr([1, 0, 0x5e, 0x7f, 1, 2])));
    assert_eq!(
        multicast_mac(ip("ff0e::abcd:12")),
        Some(MacAddr([0x33, 0x33, 0xab, 0xcd, 0, 0x12]))
    );
    assert_eq!(multicast_mac(ip("10.0.0.1")), None);
}
