//! What NICs do beside the standard, one rule at a time.

use crate::script::*;
use longhaul_doctor::Features;
use longhaul_doctor::report::Severity;
use longhaul_wire::mad::Ece;
use longhaul_wire::{NakCode, Syndrome};

const SEQUENCE: Syndrome = Syndrome::Nak(NakCode::PsnSequence);
const SELECTIVE_REPEAT: Ece = Ece { vendor_id: 0x15b3, options: 0x2000_0001 };

/// Packets `psns`, 1 µs apart from `at_ns` on.
fn write_all(script: &mut Script, at_ns: u64, psns: std::ops::Range<u32>) {
    for (n, psn) in psns.enumerate() {
        script.write(at_ns + n as u64 * US, psn, 1024);
    }
}

mod selective_repeat {
    use super::*;

    /// Of twenty packets one is missed; `again` are sent again before all are acknowledged.
    fn with_again(again: std::ops::Range<u32>) -> Script {
        let mut script = Script::default();
        for round in 0..4_u32 {
            let (at, psn) = (u64::from(round) * 10 * MS, round * 20);
            write_all(&mut script, at, psn..psn + 20);
            script.nak(at + 200 * US, psn + 5, SEQUENCE);
            write_all(&mut script, at + 250 * US, psn + again.start..psn + again.end);
            script.ack(at + 500 * US, psn + 19);
        }
        script
    }

    #[test]
    fn single_packets_are_sent_again_and_the_rest_was_kept() {
        let flow = with_again(5..6).flow();
        assert_eq!((flow.counters.resent_packets, flow.counters.kept_packets), (4, 4 * 14));
        let finding = found(&flow, "selective_repeat");
        assert_eq!(finding.severity, Severity::Note);
        assert!(finding.evidence.contains("56 packets"), "{}", finding.evidence);
    }

    #[test]
    fn go_back_n_is_none() {
        let flow = with_again(5..20).flow();
        assert_eq!(flow.counters.kept_packets, 0);
        assert!(!rules(&flow).contains(&"selective_repeat"), "{:?}", rules(&flow));
    }

    #[test]
    fn a_few_repetitions_that_the_capture_lacks_are_none() {
        let flow = with_again(5..19).flow();
        assert_eq!(flow.counters.kept_packets, 4);
        assert!(!rules(&flow).contains(&"selective_repeat"), "{:?}", rules(&flow));
    }
}

mod ece {
    use super::*;

    fn connected(ece: [Ece; 2]) -> longhaul_doctor::report::Flow {
        let mut script = Script::default();
        script.connect_with(14, ece);
        write_all(&mut script, MS, 0..10);
        script.ack(2 * MS, 9);
        script.flow()
    }

    #[test]
    fn an_offer_that_was_taken_is_named_with_its_options() {
        let flow = connected([SELECTIVE_REPEAT; 2]);
        let agreed = flow.agreed.unwrap();
        let features = Some(Features { vendor_id: 0x15b3, options: 0x2000_0001 });
        assert_eq!((agreed.ece_offered, agreed.ece_agreed), (features, features));
        let finding = found(&flow, "ece");
        assert!(finding.what.contains("agreed on vendor features"), "{}", finding.what);
        assert!(finding.evidence.contains("0x20000001 of vendor 0x15b3"), "{}", finding.evidence);
        assert!(finding.advice.is_some());
    }

    #[test]
    fn an_offer_that_was_not_taken_needs_no_advice() {
        // Without a vendor the options of a REP mean nothing.
        for rep in [Ece::NONE, Ece { vendor_id: 0, options: 7 }] {
            let flow = connected([SELECTIVE_REPEAT, rep]);
            let finding = found(&flow, "ece");
            assert!(finding.what.contains("took none"), "{}", finding.what);
            assert_eq!(finding.advice, None);
        }
    }

    #[test]
    fn none_is_not_worth_a_word() {
        assert!(!rules(&connected([Ece::NONE; 2])).contains(&"ece"));
    }
}

#[test]
fn a_reserved_syndrome_is_named_with_its_byte() {
    let mut script = Script::default();
    write_all(&mut script, 0, 0..10);
    script.nak(100 * US, 3, Syndrome::Reserved(0x47));
    script.nak(110 * US, 4, Syndrome::Reserved(0x9f));
    script.ack(200 * US, 9);
    let flow = script.flow();
    assert_eq!((flow.counters.reserved_syndromes, flow.counters.acks), (2, 1));
    let finding = found(&flow, "reserved_syndrome");
    assert!(finding.what.contains("2 times") || finding.what.contains("twice"), "{}", finding.what);
    assert_eq!(finding.evidence, "first 0x47");
}

mod coalesced_acks {
    use super::*;

    fn each_of(messages: u32) -> longhaul_doctor::report::Flow {
        let mut script = Script::default();
        for round in 0..16_u32 {
            let (at, psn) = (u64::from(round) * MS, round * messages);
            write_all(&mut script, at, psn..psn + messages);
            script.ack(at + 100 * US, psn + messages - 1);
        }
        script.flow()
    }

    #[test]
    fn one_for_several_messages_is_named() {
        let flow = each_of(5);
        let finding = found(&flow, "coalesced_acks");
        assert!(finding.what.contains("each completes 5 messages"), "{}", finding.what);
        assert_eq!(finding.evidence, "80 messages by 16 ACKs");
    }

    #[test]
    fn one_for_each_message_is_not() {
        assert!(!rules(&each_of(1)).contains(&"coalesced_acks"));
    }
}
