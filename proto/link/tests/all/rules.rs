//! Rules: selections, actions and text.

use crate::frames::{Run, SEQUENCE_NAK, Sample, WRITE, acknowledge, of, rule, ruled};
use longhaul_link::{DropReason, Link, LinkConfig, LinkError, Rule, Wire};
use longhaul_node::{Frame, Node, Payload, Side, Trailer, Transmit};
use longhaul_units::{BitRate, Duration, Instant};
use longhaul_wire::{Ecn, Head, Opcode, Syndrome};
use proptest::prelude::*;

/// Words of rules, and others.
const WORDS: &str = "\
    any roce not-roce write ack, cm from a b qpn psn port dscp opcode source 10.0.0.0/8 ::1 \
    destination 0x17 3-9 9-3 : lose mark corrupt icrc payload delay reorder 5ms 0-1ms 1% 0.25 \
    bursts 8 first every number at-most once duplicate";

mod selection {
    use super::*;

    /// One packet of each kind, with its name in rules.
    fn one_of_each() -> Vec<(&'static str, Sample)> {
        vec![
            ("send", of(Opcode::RC_SEND_FIRST)),
            ("send", of(Opcode::UC_SEND_ONLY)),
            ("send", Sample { qpn: 9, ..of(Opcode::UD_SEND_ONLY) }),
            ("write", WRITE),
            ("write", of(Opcode::UC_WRITE_FIRST)),
            ("read-request", of(Opcode::RC_READ_REQUEST)),
            ("read-response", of(Opcode::RC_READ_RESPONSE_FIRST)),
            ("read-response", of(Opcode::RC_READ_RESPONSE_MIDDLE)),
            ("ack", acknowledge(Syndrome::ACK_UNLIMITED)),
            ("nak", acknowledge(SEQUENCE_NAK)),
            ("rnr-nak", acknowledge(Syndrome::RnrNak { timer_code: 3 })),
            ("other", acknowledge(Syndrome::Reserved(0x77))),
            ("cnp", Sample { payload_len: 16, ..of(Opcode::CNP) }),
            ("cm", Sample { qpn: 1, payload_len: 256, ..of(Opcode::UD_SEND_ONLY) }),
            ("other", of(Opcode(0xa5))),
        ]
    }

    #[test]
    fn each_kind_is_selected_by_its_name_and_by_no_other() {
        for (name, _) in one_of_each() {
            let mut run = Run::with_rules(&[&format!("{name}: lose")]);
            for (kind, sample) in one_of_each() {
                assert_eq!(run.send(&sample).is_err(), kind == name, "{sample:?} by {name}");
            }
        }
    }

    #[test]
    fn several_kinds_and_all_of_them() {
        let mut some = Run::with_rules(&["ack, nak write: lose"]);
        let mut all = Run::with_rules(&["roce: lose"]);
        let mut others = Run::with_rules(&["not-roce: lose"]);
        for (kind, sample) in one_of_each() {
            assert_eq!(some.send(&sample).is_err(), ["ack", "nak", "write"].contains(&kind));
            assert_eq!(all.send(&sample), Err(DropReason::Rule));
            assert!(others.send(&sample).is_ok());
        }
    }

    /// Each condition with packets that match it and packets that do not.
    #[test]
    fn conditions_hold_to_their_last_value() {
        let v6 = |source: &str| Sample {
            source: source.parse().unwrap(),
            destination: "fd00::2".parse().unwrap(),
            ..WRITE
        };
        let cases: Vec<(&str, Vec<Sample>, Vec<Sample>)> = vec![
            (
                "qpn 0x17",
                vec![WRITE],
                vec![Sample { qpn: 0x18, ..WRITE }, Sample { qpn: 0x16, ..WRITE }],
            ),
            (
                "write qpn 16-0xffffff",
                vec![Sample { qpn: 16, ..WRITE }, Sample { qpn: 0xff_ffff, ..WRITE }],
                vec![Sample { qpn: 15, ..WRITE }, of(Opcode::RC_ACK)],
            ),
            (
                "psn 0xfffffe-1",
                [0xff_fffe, 0xff_ffff, 0, 1].map(|psn| Sample { psn, ..WRITE }).to_vec(),
                [0xff_fffd, 2, 0x80_0000].map(|psn| Sample { psn, ..WRITE }).to_vec(),
            ),
            ("opcode 7", vec![WRITE], vec![of(Opcode::RC_ACK)]),
            (
                "source 10.0.0.1",
                vec![WRITE],
                vec![Sample { source: [10, 0, 0, 3].into(), ..WRITE }],
            ),
            (
                "destination 10.0.0.0/30",
                vec![WRITE],
                vec![Sample { destination: [10, 0, 0, 4].into(), ..WRITE }],
            ),
            ("source fd00::/8", vec![v6("fd00::1")], vec![v6("fe80::1"), WRITE]),
            ("port 0xc000-0xc001", vec![WRITE], vec![Sample { port: 0xc002, ..WRITE }]),
            ("dscp 26", vec![WRITE], vec![Sample { traffic_class: 27 << 2, ..WRITE }]),
        ];
        for (conditions, fitting, others) in cases {
            let mut run = Run::with_rules(&[&format!("{conditions}: lose")]);
            for sample in fitting {
                assert!(run.send(&sample).is_err(), "{conditions}: {sample:?}");
            }
            for sample in others {
                assert!(run.send(&sample).is_ok(), "{conditions}: {sample:?}");
            }
        }
    }

    #[test]
    fn a_direction_is_selected_by_the_side_that_frames_enter_by() {
        let config = ruled(&["write from b: lose"]);
        assert!(Run::new(&config, 0).send(&WRITE).is_ok());
        assert!(Run::new(&config, 1).send(&WRITE).is_err());
        assert!(Run::new(&config, 0).wire.rule_counters().is_empty());
    }

    /// A malformed packet is forwarded without a trailer, and its bytes look like a WRITE.
    #[test]
    fn what_is_malformed_or_another_protocol_is_not_roce() {
        let bytes = WRITE.bytes();
        let (head, payload) = bytes.split_at(54);
        let malformed = Frame { head, payload: Payload::Bytes(payload), trailer: Trailer::None };
        let mut arp = [0; 60];
        arp[12..14].copy_from_slice(&[0x08, 0x06]);
        for frame in [malformed, Frame::opaque(&arp), Frame::opaque(&arp[..14]), Frame::opaque(&[])]
        {
            for text in
                ["roce: lose", "write: lose", "qpn 0x17: lose", "any: corrupt icrc", "roce: mark"]
            {
                let mut run = Run::with_rules(&[text]);
                assert!(run.send_frame(&frame).is_ok(), "{text}");
                assert_eq!(run.counted(0), (0, 0), "{text}");
            }
            for text in ["not-roce: lose", "any: lose"] {
                assert!(Run::with_rules(&[text]).send_frame(&frame).is_err(), "{text}");
            }
        }
    }

    #[test]
    fn packets_of_a_train_are_selected_by_their_own_psn() {
        let config = ruled(&["psn 102-103: lose", "psn 105: delay 1us"]);
        let mut wire = Wire::new(&config, 0, 1).unwrap();
        let mut places = Vec::new();
        WRITE.with(|frame| {
            let train = Frame { payload: Payload::Train { len: 256, count: 8 }, ..*frame };
            wire.enter_train(Instant::ZERO, &train, 8, |arrival, place, count| {
                places.push((place, count, arrival.due));
            });
        });
        let late = Instant::ZERO + Duration::from_us(1);
        let expected = [0, 1, 4, 5, 6, 7].map(|p| (p, 1, if p < 5 { Instant::ZERO } else { late }));
        assert_eq!(places, expected);
    }

    proptest! {
        /// No bytes make a rule panic, and none that are not RoCEv2 are mistaken for it.
        #[test]
        fn any_bytes_are_judged(
            mut bytes in prop::collection::vec(any::<u8>(), 0..200),
            looks_like in any::<bool>(),
            changed in prop::collection::vec((0_usize..80, any::<u8>()), 0..4),
        ) {
            if looks_like {
                bytes = WRITE.bytes();
                for (at, byte) in changed {
                    bytes[at] = byte;
                }
            }
            let rules = ["read-response dscp 1: duplicate", "qpn 5-9 psn 3-1: delay 1us", "roce: \
                                                                                           corrupt \
                                                                                           icrc",
                "any: corrupt payload", "any: mark", "source fd00::/8: reorder 1us", "not-roce: \
                                                                                      lose"];
            let head = Head::copy_of(&bytes);
            let received = Frame::received(&head, &bytes);
            let is_roce = received.is_ok_and(|frame| frame.trailer != Trailer::None);
            let frame = received.unwrap_or_else(|_| Frame::opaque(&bytes));
            let mut run = Run::with_rules(&rules);
            prop_assert_eq!(run.send_frame(&frame).is_ok(), is_roce);
            prop_assert_eq!(run.counted(2).0, u64::from(is_roce));
        }
    }
}

mod action {
    use super::*;

    struct Take(Vec<(Instant, Vec<u8>)>, Instant);

    impl Transmit for Take {
        fn room(&mut self, _side: Side) -> usize {
            usize::MAX
        }
        fn transmit(&mut self, _side: Side, frame: &Frame<'_>) {
            let mut bytes = vec![0; frame.len()];
            frame.write_to(&mut bytes);
            self.0.push((self.1, bytes));
        }
    }

    /// Sends `samples` a microsecond apart through a link with these rules. Returns time and bytes
    /// of each arrival.
    fn through(rules: &[&str], samples: &[Sample]) -> Vec<(Instant, Vec<u8>)> {
        let mut link = Link::new(ruled(rules)).unwrap();
        let mut out = Take(Vec::new(), Instant::ZERO);
        let drain = |link: &mut Link, until: Instant, out: &mut Take| {
            while let Some(deadline) = link.poll_timeout().filter(|deadline| deadline.at <= until) {
                out.1 = deadline.at;
                link.poll_transmit(deadline.at, out);
            }
        };
        for (number, sample) in (0..).zip(samples) {
            let now = Instant::ZERO + Duration::from_us(number);
            drain(&mut link, now, &mut out);
            sample.with(|frame| link.handle_frame(now, 0, frame));
        }
        drain(&mut link, Instant::from_ps(u64::MAX), &mut out);
        out.0
    }

    fn icrc_is_right(bytes: &[u8]) -> bool {
        let head = Head::copy_of(bytes);
        Frame::received(&head, bytes).unwrap().icrc_is_right()
    }

    fn differing_bits(one: &[u8], other: &[u8]) -> Vec<usize> {
        assert_eq!(one.len(), other.len());
        (0..8 * one.len())
            .filter(|bit| (one[bit / 8] ^ other[bit / 8]) & (0x80 >> (bit % 8)) != 0)
            .collect()
    }

    #[test]
    fn a_corrupted_icrc_is_all_that_is_wrong() {
        let sent = WRITE.bytes();
        for (_, came) in through(&["write: corrupt icrc"], &[WRITE; 200]) {
            let [bit] = differing_bits(&sent, &came)[..] else { panic!("one bit") };
            assert!(bit / 8 >= sent.len() - 4 && !icrc_is_right(&came));
        }
    }

    #[test]
    fn a_corrupted_payload_leaves_headers_and_icrc_as_they_were() {
        let sent = WRITE.bytes();
        for (_, came) in through(&["write: corrupt payload"], &[WRITE; 200]) {
            let [bit] = differing_bits(&sent, &came)[..] else { panic!("one bit") };
            assert!((54..sent.len() - 4).contains(&(bit / 8)) && !icrc_is_right(&came));
        }
        let mut run = Run::with_rules(&["roce: corrupt payload"]);
        assert_eq!(run.send(&of(Opcode::RC_ACK)).unwrap().corrupted_bit, None, "it has none");
        assert_eq!(run.counted(0), (0, 0));
    }

    #[test]
    fn a_mark_is_for_senders_that_react_to_it() {
        let deaf = Sample { traffic_class: 0, ..WRITE };
        let came = through(&["write: mark every 2"], &[WRITE, WRITE, deaf, deaf, WRITE, WRITE]);
        let marks: Vec<Option<Ecn>> = came.iter().map(|(_, bytes)| Ecn::of(bytes)).collect();
        let (no, yes, deaf) = (Some(Ecn::Capable), Some(Ecn::Congested), Some(Ecn::NotCapable));
        assert_eq!(marks, [no, yes, deaf, deaf, no, yes]);
        assert!(came.iter().all(|(_, bytes)| icrc_is_right(bytes)), "the ICRC leaves the mark out");
        let both = through(&["write: mark", "write: corrupt icrc"], &[WRITE]);
        assert_eq!(Ecn::of(&both[0].1), Some(Ecn::Congested));
    }

    fn psns(came: &[(Instant, Vec<u8>)]) -> Vec<u8> {
        came.iter().map(|(_, bytes)| bytes[53]).collect()
    }

    fn numbered(count: u32) -> Vec<Sample> {
        (0..count).map(|psn| Sample { psn, ..WRITE }).collect()
    }

    #[test]
    fn delay_keeps_the_order_and_reordering_does_not() {
        let came = through(&["psn 2: delay 3us"], &numbered(7));
        assert_eq!(psns(&came), [0, 1, 2, 3, 4, 5, 6]);
        let at: Vec<u64> = came.iter().map(|(at, _)| at.as_ns() / 1000).collect();
        assert_eq!(at, [0, 1, 5, 5, 5, 5, 6]);
        let came = through(&["psn 2: reorder 2.5us"], &numbered(7));
        assert_eq!(psns(&came), [0, 1, 3, 4, 2, 5, 6]);
        // Late frames do not overtake each other.
        let came = through(&["psn 1: reorder 4.5us", "psn 2: reorder 1us"], &numbered(7));
        assert_eq!(psns(&came), [0, 3, 4, 5, 1, 2, 6]);
    }

    #[test]
    fn duplicates_arrive_together() {
        assert_eq!(psns(&through(&["psn 1: duplicate"], &numbered(3))), [0, 1, 1, 2]);
    }

    #[test]
    fn turns_and_limits_count_what_is_selected() {
        for (how_often, lost) in [
            ("", (1..=10).collect::<Vec<u32>>()),
            ("first 3", vec![1, 2, 3]),
            ("every 4", vec![4, 8]),
            ("number 5", vec![5]),
            ("once", vec![1]),
            ("at-most 2", vec![1, 2]),
            ("every 3 at-most 2", vec![3, 6]),
            ("0%", vec![]),
        ] {
            let mut run = Run::with_rules(&[&format!("write: lose {how_often}")]);
            let mut came = Vec::new();
            for psn in 1..=10 {
                // Frames in between are not counted.
                assert!(run.send(&of(Opcode::RC_ACK)).is_ok());
                if run.send(&Sample { psn, ..WRITE }).is_err() {
                    came.push(psn);
                }
            }
            assert_eq!(came, lost, "{how_often}");
            assert_eq!(run.counted(0), (10, lost.len() as u64));
        }
    }

    #[test]
    fn behind_the_rule_that_loses_a_frame_no_other_sees_it() {
        let mut run = Run::with_rules(&["write: duplicate", "write: lose", "write: mark"]);
        assert_eq!(run.send(&WRITE), Err(DropReason::Rule));
        assert_eq!([0, 1, 2].map(|index| run.counted(index)), [(1, 1), (1, 1), (0, 0)]);
        assert_eq!(run.wire.counters().drops.get(DropReason::Rule), 1);
        assert_eq!(run.wire.counters().duplicated_frames, 0, "it did not arrive at all");
    }

    #[test]
    fn a_frame_that_a_rule_loses_has_used_the_wire() {
        let rate = BitRate::from_gbps(8);
        let mut run = Run::new(&LinkConfig { rate, ..ruled(&["write: lose"]) }, 0);
        assert!(run.send(&Sample { payload_len: 1024 - 82, ..WRITE }).is_err());
        let due = run.send(&acknowledge(SEQUENCE_NAK)).unwrap().due;
        assert_eq!(due, Instant::from_ns(1024 + 86));
    }
}

mod chance {
    use super::*;

    fn lost(rules: &[&str], index: usize, entry: Side) -> Vec<u32> {
        let mut run = Run::new(&ruled(rules), entry);
        let mut lost = Vec::new();
        for psn in 0..20_000 {
            let struck = run.counted(index).1;
            let _ = run.send(&Sample { psn, ..WRITE });
            if run.counted(index).1 > struck {
                lost.push(psn);
            }
        }
        lost
    }

    #[test]
    fn a_rule_strikes_the_same_frames_whatever_others_there_are() {
        let alone = lost(&["write: duplicate 1%"], 0, 0);
        assert!((120..280).contains(&alone.len()), "{}", alone.len());
        assert_eq!(lost(&["write: duplicate 1%"], 0, 0), alone);
        assert_eq!(
            lost(&["write: duplicate 1%", "any: mark 10%", "write: delay 0-1us"], 0, 0),
            alone
        );
        let second = lost(&["ack: lose", "write: lose 1%"], 1, 0);
        assert_ne!(second, alone, "each has a stream of its own");
        assert_eq!(lost(&["any: duplicate 5%", "write: lose 1%"], 1, 0), second);
    }

    #[test]
    fn losses_of_the_link_are_the_same_with_and_without_rules() {
        let survivors = |rules: &[&str]| {
            let mut run = Run::new(&LinkConfig { loss: 0.05, ..ruled(rules) }, 0);
            (0..5000).filter(|_| run.send(&WRITE) != Err(DropReason::Loss)).collect::<Vec<u32>>()
        };
        assert_eq!(survivors(&[]), survivors(&["write: lose 10%", "any: duplicate"]));
    }

    #[test]
    fn in_bursts_the_mean_stays() {
        let lost = lost(&["write: lose 5% bursts 10"], 0, 0);
        let runs = 1 + lost.windows(2).filter(|pair| pair[1] != pair[0] + 1).count();
        let (mean, length) = (lost.len() as f64 / 20_000.0, lost.len() as f64 / runs as f64);
        assert!((0.03..0.07).contains(&mean), "{mean}");
        assert!((7.0..13.0).contains(&length), "{length}");
    }
}

mod memory {
    use super::*;

    #[test]
    fn what_rules_keep_longer_or_twice_is_counted_for() {
        let fibre = LinkConfig::fibre_km(100, BitRate::from_gbps(10).unwrap());
        let needed = |rules: &[&str]| {
            let rules = ruled(rules).rules;
            LinkConfig { rules, ..fibre.clone() }.memory_bytes_needed().unwrap()
        };
        let plain = needed(&[]);
        assert_eq!(needed(&["write: lose", "any: mark"]), plain);
        assert!(needed(&["any: duplicate once"]) > plain * 19 / 10);
        let longer = LinkConfig { delay: fibre.delay + Duration::from_ms(3), ..fibre.clone() };
        assert_eq!(
            Some(needed(&["any: delay 0-1ms", "cm: reorder 2ms"])),
            longer.memory_bytes_needed()
        );
    }
}

mod text {
    use super::*;

    #[test]
    fn a_rule_is_written_as_it_is_read() {
        for (text, written) in [
            ("read-response from a: lose 1%", "read-response from a: lose 1%"),
            ("any: lose 0.07", "any: lose 7%"),
            ("any: lose 12.5%", "any: lose 12.5%"),
            ("any: lose 0.0001", "any: lose 1e-4"),
            ("any: lose 0", "any: lose 0%"),
            ("any: lose 0.123456789012345", "any: lose 1.23456789012345e-1"),
            ("nak,ack  from b : corrupt icrc once", "ack, nak from b: corrupt icrc once"),
            ("qpn 23: mark", "roce qpn 0x17: mark"),
            ("roce source ::1: duplicate", "roce source ::1/128: duplicate"),
            ("any: delay 0-100us", "any: delay 0ns-100us"),
            ("any: delay 50-100us", "any: delay 50us-100us"),
            (
                "write: reorder 1ms 1e-3 bursts 8 every 3 at-most 10",
                "write: reorder 1ms 1e-3 bursts 8 every 3 at-most 10",
            ),
            ("not-roce: corrupt payload first 2", "not-roce: corrupt payload first 2"),
        ] {
            let read = rule(text);
            assert_eq!(read.to_string(), written);
            assert_eq!(rule(written), read);
        }
    }

    #[test]
    fn what_is_wrong_is_told_with_its_place_and_what_to_write() {
        for (text, place, part) in [
            ("read-respons: lose", 1, "read-response"),
            ("lose 1%", 8, "no ': ' between"),
            ("", 1, "no ': ' between"),
            (": lose", 1, "which frames?"),
            ("from a: lose", 1, "which frames?"),
            ("write from c: lose", 12, "sides are a and b"),
            ("write from: lose", 11, "from which side?"),
            ("write any: lose", 7, "another kind"),
            ("any write: lose", 5, "another kind"),
            ("not-roce qpn 3: lose", 1, "say roce"),
            ("any qpn 3: lose", 1, "say roce"),
            ("qpn 0x1000000: lose", 5, "up to 0xffffff"),
            ("qpn 9-3: lose", 1, "from the smaller number"),
            ("qpn: lose", 4, "QPNs up to"),
            ("dscp 64: lose", 6, "from 0 to 63"),
            ("source 10.0.0.1/8: lose", 8, "10.0.0.0/8 may be meant"),
            ("source 10.0.0.1 destination ::1: lose", 1, "IPv4 to IPv6"),
            ("write:", 7, "Say lose, mark"),
            ("write: loose", 8, "say lose, mark"),
            ("write: corrupt", 15, "Say icrc or payload"),
            ("write: corrupt head", 16, "icrc or payload"),
            ("write: delay", 13, "how long?"),
            ("write: delay 5", 14, "how long?"),
            ("write: delay 2ms-1ms", 1, "shorter time"),
            ("write: lose 101%", 13, "a probability"),
            ("write: lose -1", 13, "a probability"),
            ("write: lose NaN", 13, "a probability"),
            ("write: lose every 0", 19, "from 1 on"),
            ("write: lose first", 18, "from 1 on"),
            ("write: lose first 3 every 2", 21, "exclude each other"),
            ("write: lose 1% bursts 0.5", 1, "mean length from 1"),
            ("write: lose 90% bursts 2", 1, "cannot be as frequent"),
            ("write: lose 1% bursts x", 23, "in frames"),
            ("écrire: lose", 1, "neither a kind of frame"),
            ("write à: lose", 7, "neither a kind of frame"),
        ] {
            let error = text.parse::<Rule>().unwrap_err();
            assert_eq!((error.place, error.text.as_str()), (place, text), "{error}");
            assert!(error.why.contains(part), "{error}");
            assert!(!error.to_string().contains('\n'));
        }
    }

    #[test]
    fn too_many_and_senseless_rules_are_refused_by_number() {
        let mut config = ruled(&["any: lose"; 65]);
        let refused = |config: &LinkConfig| Link::new(config.clone()).map(drop).unwrap_err();
        assert!(matches!(
            refused(&config),
            LinkError::TooMany { what: "rules", count: 65, most: 64 }
        ));
        config.rules.truncate(2);
        config.rules[1].probability = f64::NAN;
        assert!(matches!(refused(&config), LinkError::Rule { number: 2, .. }));
    }

    proptest! {
        #[test]
        fn any_text_is_read_or_refused(text in "\\PC*") {
            if let Ok(rule) = text.parse::<Rule>() {
                prop_assert_eq!(rule.to_string().parse::<Rule>(), Ok(rule));
            }
        }

        #[test]
        fn any_words_are_read_back(
            words in prop::collection::vec(
                prop::sample::select(WORDS.split(' ').collect::<Vec<_>>()),
                1..12,
            ),
        ) {
            let text = words.join(" ");
            if let Ok(rule) = text.parse::<Rule>() {
                prop_assert_eq!(rule.to_string().parse::<Rule>(), Ok(rule));
            }
        }
    }
}
