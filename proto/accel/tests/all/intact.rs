//! A box forwards frames that their receiver's network stack drops, and does not act upon them.
//!
//! The ICRC covers addresses, protocol and lengths; the IPv4 checksum also covers the traffic class
//! and the TTL. Over IPv6 nothing covers those.

use crate::script::{Script, run};
use longhaul_accel::{LAN, WAN};
use longhaul_wire::Udp;

/// A script's word, and how a frame so damaged is described.
const DAMAGES: [(&str, &str); 5] = [
    ("damaged", "damaged"),
    ("wrong_address", "damaged"),
    ("wrong_ttl", "missummed"),
    ("wrong_dscp", "missummed"),
    ("wrong_udp_sum", "missummed"),
];

/// Checks that `count` frames were counted as damaged in this manner.
fn is_counted(script: &Script, seen: &str, count: u64) {
    let counters = script.accel.counters();
    let counts = [counters.rx_icrc_encapsulated, counters.rx_checksum_wrong];
    assert_eq!(counts, if seen == "damaged" { [count, 0] } else { [0, count] });
}

/// A stored one would be acknowledged, and dropped by the responder however often the box
/// retransmits it.
#[test]
fn a_request_that_is_not_is_not_stored() {
    for (how, seen) in DAMAGES {
        let script = run(&format!(
            "connect psn=100
             lan: write_only 100 A {how}
             > wan write_only 100 A {seen}
             lan: write_only 101 A
             > lan nak 100 sequence msn=0
             lan: write_only 100 A
             > wan write_only 100 A
             > lan ack 100 msn=1"
        ));
        assert_eq!(script.accel.counters().stored_packets, 1, "{how}");
        is_counted(&script, seen, 1);
    }
}

#[test]
fn a_response_that_is_not_releases_nothing() {
    for (how, seen) in DAMAGES {
        let mut script = run(&format!(
            "connect psn=100
             lan: write_only 100 A
             > wan write_only 100 A
             > lan ack 100 msn=1
             wan: ack 100 msn=1 {how}
             > lan ack 100 msn=1 {seen}
             wan: nak 100 access msn=0 {how}
             > lan nak 100 access msn=0 {seen}
             wan: cnp 0 len=16 {how}
             > lan cnp 0 len=16 {seen}"
        ));
        assert_eq!(script.status().stored_frames, 1, "{how}");
        assert_eq!(script.accel.counters().rp_cnp_handled, 0, "{how}");
        is_counted(&script, seen, 3);
        script.go_on("wan: ack 100 msn=1");
        assert_eq!(script.status().stored_frames, 0, "{how}");
    }
}

#[test]
fn a_connection_managers_message_that_is_not_begins_no_flow() {
    for (how, seen) in DAMAGES {
        let mut script = run("");
        for (side, frame) in [
            (LAN, script.wire.requester_frame("req")),
            (WAN, script.wire.responder_frame(&format!("rep {how}"))),
        ] {
            script.passes(side, &frame);
        }
        assert_eq!(script.accel.flows().count(), 0, "{how}");
        is_counted(&script, seen, 1);
    }
}

/// The flow's mode is that of its first request's DSCP.
#[test]
fn nothing_is_learnt_from_a_request_that_is_not() {
    for (how, seen) in DAMAGES {
        let script = run(&format!("lan: write_only 100 A {how}\n > wan write_only 100 A {seen}"));
        assert_eq!(script.accel.flows().count(), 0, "{how}");
        is_counted(&script, seen, 1);
    }
}

#[test]
fn a_right_udp_checksum_is_as_good_as_none() {
    for ipv6 in [false, true] {
        let mut script = run("");
        if ipv6 {
            let path = &mut script.wire.requester;
            path.source_ip = "fd00::1".parse().unwrap();
            path.destination_ip = "fd00::2".parse().unwrap();
            script.wire.responder = script.wire.requester.reversed();
        }
        let mut frame = script.wire.requester_frame("write_only 100 A len=61");
        let udp = Udp::find(&frame).unwrap();
        // The one that makes the sum of all words, pseudo header included, all ones.
        let right = (1..=u16::MAX).find(|sum| {
            udp.set_checksum(&mut frame, *sum);
            let (head, behind) = frame.split_at(udp.payload());
            udp.checksum_is_right(head, &[behind])
        });
        udp.set_checksum(&mut frame, right.unwrap());
        script.passes(LAN, &frame);
        assert_eq!(script.accel.flows().count(), 1);
        is_counted(&script, "missummed", 0);
    }
}
