//! Limits of flows, one rule at a time.

use crate::script::*;
use longhaul_doctor::Options;
use longhaul_doctor::report::Confidence;
use longhaul_units::BitRate;
use longhaul_wire::{Opcode, Syndrome};

/// `windows` times: `depth` messages of `payload` bytes 1 µs apart, acknowledged one by one a round
/// trip later.
fn windowed(windows: u32, depth: u32, payload: usize, rtt: u64) -> Script {
    let mut script = Script::default();
    for window in 0..windows {
        let start = u64::from(window) * (rtt + 2 * US);
        for message in 0..depth {
            let psn = 100 + window * depth + message;
            let at = start + u64::from(message) * US;
            script.write(at, psn, payload);
            script.ack(at + rtt, psn);
        }
    }
    script
}

mod outstanding_reads {
    use super::*;

    /// The published capture: READs of 4096 B over 100 km, 16 outstanding, the newest PSN 15 after
    /// the oldest.
    fn published(rounds: u32) -> Script {
        let mut script = Script::default();
        for round in 0..rounds {
            let start = u64::from(round) * 1010 * US;
            for read in 0..16 {
                let psn = 2_365_020 + round * 16 + read;
                let at = start + u64::from(read) * 500;
                script.request(at, Opcode::RC_READ_REQUEST, psn, 0, 4096);
                script.read_response(at + 992 * US, psn, 4096);
            }
        }
        script
    }

    #[test]
    fn sixteen_limit_the_flow_and_the_psn_delta_is_fifteen() {
        let flow = published(200).flow();
        let limit = found(&flow, "read_limit");
        assert!(limit.what.contains("16 READ requests outstanding, waited 98"), "{}", limit.what);
        assert!(limit.what.contains("200 times"), "{}", limit.what);
        assert!(limit.share_of_time.unwrap() > 0.9);
        assert_eq!(flow.window.read_psn_delta_max, Some(15));
        assert_eq!(flow.window.reads.unwrap().max, 16);
        assert_eq!(flow.round_trip.far_answer_ns.unwrap().median, 992 * US);
        assert_eq!(flow.payload_bytes, 200 * 16 * 4096);
        assert_eq!(flow.findings[0].rule, "read_limit");
    }

    #[test]
    fn the_advice_names_the_reads_that_would_fill_the_path() {
        let rate = BitRate::from_gbps(100);
        let report = published(50).report_with(Options { rate, ..Options::default() });
        let advice = report.flows[0].findings[0].advice.clone().unwrap();
        assert!(advice.contains("100 Gbit/s with a round trip of"), "{advice}");
        // 12.4 MB in flight by 16 READs: 775 KB each.
        assert!(advice.contains("READs of 75"), "{advice}");
        assert!(advice.contains("max_rd_atomic"), "{advice}");
    }

    #[test]
    fn reads_of_several_packets_show_the_path_mtu_and_count_as_one_each() {
        let mut script = Script::default();
        let mut psn = 10;
        for round in 0..20_u64 {
            for read in 0..4_u64 {
                let at = round * 2 * MS + read * US;
                script.request(at, Opcode::RC_READ_REQUEST, psn, 0, 5000);
                for (offset, opcode, len) in [
                    (0, Opcode::RC_READ_RESPONSE_FIRST, 2048),
                    (1, Opcode::RC_READ_RESPONSE_MIDDLE, 2048),
                    (2, Opcode::RC_READ_RESPONSE_LAST, 904),
                ] {
                    let answered = at + MS + u64::from(offset) * 200;
                    script.answer(answered, opcode, psn + offset, Syndrome::ACK_UNLIMITED, len);
                }
                psn += 3;
            }
        }
        let flow = script.flow();
        assert_eq!(flow.path_mtu, Some(2048));
        assert_eq!(flow.operations[0].bytes.samples, 80);
        assert_eq!(
            (flow.counters.missed_by_capture, flow.counters.lost_before_capture_point),
            (0, 0)
        );
        assert!(found(&flow, "read_limit").what.contains("4 READ requests outstanding"));
        assert_eq!(flow.payload_bytes, 80 * 5000);
    }
}

mod queue_depth {
    use super::*;

    #[test]
    fn messages_outstanding_stay_at_the_depth_while_it_waits() {
        let flow = windowed(50, 64, 1024, 10 * MS).flow();
        let limit = found(&flow, "queue_depth");
        assert!(limit.what.contains("64 messages outstanding"), "{}", limit.what);
        assert!(limit.share_of_time.unwrap() > 0.9, "{limit:?}");
        assert_eq!(limit.confidence, Confidence::Likely);
        assert_eq!(flow.window.messages.unwrap().max, 64);
        assert_eq!(flow.round_trip.far_ack_ns.unwrap().median, 10 * MS);
    }

    #[test]
    fn the_advice_follows_the_bandwidth_delay_product() {
        let rate = BitRate::from_gbps(100);
        let report = windowed(20, 64, 4096, MS).report_with(Options { rate, ..Options::default() });
        let advice = report.flows[0].findings[0].advice.clone().unwrap();
        // RTT × rate / frame size: 1 ms × 100 Gbit/s / 4178 B = 2992 messages.
        assert!(advice.contains("queue depth of 2,99"), "{advice}");
        assert!(advice.contains("-t 4096") && advice.contains("98 Gbit/s"), "{advice}");
        assert!(!advice.contains("guessed"), "{advice}");
        assert!(advice.contains("accelerator near the sender"), "{advice}");
        let report =
            windowed(50, 8, 4096, 20 * US).report_with(Options { rate, ..Options::default() });
        let limit = found(&report.flows[0], "queue_depth");
        assert!(!limit.advice.as_ref().unwrap().contains("accelerator"), "20 µs: {limit:?}");
    }

    #[test]
    fn a_depth_of_128_single_packets_may_as_well_be_the_window_of_rxe() {
        let flow = windowed(20, 128, 512, 10 * MS).flow();
        let limit = found(&flow, "window");
        assert!(limit.what.contains("128 messages of one packet each"), "{}", limit.what);
        assert!(limit.advice.as_ref().unwrap().contains("MigReq is set"), "{limit:?}");
    }

    #[test]
    fn an_ack_clocked_flow_is_limited_without_a_pause() {
        // 32 messages spread evenly over the round trip: each ACK lets one go.
        let mut script = Script::default();
        for message in 0..2000_u32 {
            let at = u64::from(message) * 31 * US;
            script.write(at, message, 4096);
            script.ack(at + 32 * 31 * US - 5 * US, message);
        }
        let flow = script.flow();
        assert!(found(&flow, "queue_depth").what.contains("32 messages"), "{:?}", rules(&flow));
    }
}

mod psn_window {
    use super::*;

    #[test]
    fn stopping_amid_a_message_is_the_transports_window() {
        let mut script = Script::default();
        let (per_message, window) = (48, 128_u32);
        let opcode = |psn: u32| match psn % per_message {
            0 => Opcode::RC_WRITE_FIRST,
            n if n == per_message - 1 => Opcode::RC_WRITE_LAST,
            _ => Opcode::RC_WRITE_MIDDLE,
        };
        for psn in 0..window * 40 {
            let at = u64::from(psn / window) * 5 * MS + u64::from(psn % window) * US;
            script.request(at, opcode(psn), psn, 1024, 1024 * per_message);
            if (psn + 1) % window == 0 || (psn + 1) % per_message == 0 {
                script.ack(at + 4 * MS, psn);
            }
        }
        let flow = script.flow();
        let limit = found(&flow, "psn_window");
        assert!(limit.what.contains("128 packets outstanding"), "{}", limit.what);
        assert!(
            limit.advice.as_ref().unwrap().contains("Linux rxe stops at 129 packets"),
            "{limit:?}"
        );
        assert_eq!(flow.path_mtu, Some(1024));
        assert_eq!(flow.operations[0].bytes.max, u64::from(1024 * per_message));
    }
}

mod credits {
    use super::*;

    #[test]
    fn a_full_window_at_the_responders_credits_is_its_receives() {
        let mut script = Script::default();
        for message in 0..200_u32 {
            let at = u64::from(message / 4) * 2 * MS + u64::from(message % 4) * US;
            script.request(at, Opcode::RC_SEND_ONLY, message, 100, 0);
            // Code 4 means four credits.
            script.nak(at + MS, message, Syndrome::Ack { credit_code: 4 });
        }
        assert_eq!(script.flow().findings[0].rule, "credits");
    }
}

mod the_sender {
    use super::*;

    #[test]
    fn pausing_with_nothing_outstanding_is_its_own_doing() {
        let mut script = Script::default();
        let mut psn = 0;
        for burst in 0..60_u64 {
            for message in 0..(burst * 7 % 11 + 1) {
                let at = burst * 20 * MS + message * 3 * US;
                script.write(at, psn, 4096);
                script.ack(at + 100 * US, psn);
                psn += 1;
            }
        }
        let flow = script.flow();
        let finding = found(&flow, "sender");
        assert!(finding.what.contains("pauses with nothing outstanding here"), "{}", finding.what);
        assert!(finding.share_of_time.unwrap() > 0.9);
    }

    #[test]
    fn equal_bursts_may_be_a_window_that_this_point_cannot_see() {
        // Captured at the responder: ACKs at once, the next window a round trip later.
        let mut script = Script::default();
        for message in 0..1600_u32 {
            let at = u64::from(message / 16) * 10 * MS + u64::from(message % 16) * US;
            script.write(at, message, 4096);
            script.ack(at + 5 * US, message);
        }
        let flow = script.flow();
        assert_eq!(flow.findings[0].rule, "bursts", "{:?}", flow.findings);
        assert!(flow.findings[0].what.contains("nothing outstanding here"));
        assert!(flow.findings[0].advice.as_ref().unwrap().contains("captured near the responder"));
    }

    #[test]
    fn one_message_at_a_time_waits_for_each_answer() {
        let flow = windowed(100, 1, 64, 200 * US).flow();
        assert_eq!(flow.findings[0].rule, "one_at_a_time");
    }
}

mod the_line {
    use super::*;

    #[test]
    fn a_full_line_is_said_to_be_full() {
        // 4096 B and 82 around them, every 334 ns: 100 Gbit/s.
        let mut script = Script::default();
        for message in 0..4000_u32 {
            let at = u64::from(message) * 335;
            script.write(at, message, 4096);
            if message % 8 == 7 {
                script.ack(at + 20 * US, message);
            }
        }
        let flow = script.flow();
        assert_eq!(flow.findings[0].rule, "line_rate", "{:?}", flow.findings);
        assert!(flow.findings[0].what.contains("100 Gbit/s"));
    }
}

mod one_direction {
    use super::*;

    #[test]
    fn alone_tells_nothing_about_waiting() {
        let mut script = Script::default();
        (0..500_u32).for_each(|psn| script.write(u64::from(psn) * 10 * US, psn, 512));
        let flow = script.flow();
        assert_eq!(rules(&flow), ["one_way"]);
        assert_eq!(flow.operations[0].bytes.samples, 500);
    }

    #[test]
    fn of_answers_alone_makes_no_flow() {
        let mut script = Script::default();
        (0..50_u32).for_each(|psn| script.ack(u64::from(psn) * 10 * US, psn));
        let report = script.report();
        assert!(report.flows.is_empty());
        assert_eq!(report.capture.answers_without_requests, 50);
        assert!(report.findings.iter().any(|f| f.rule == "answers_without_requests"));
    }
}

mod many_queue_pairs {
    use super::*;
    use longhaul_units::{Psn, Qpn};
    use longhaul_wire::{Aeth, Bth, MacAddr, Path, PathTemplate};
    use std::net::IpAddr;

    /// Sixteen queue pairs in step, all from PSN 0, as collective libraries do it.
    fn in_step(port: impl Fn(u32) -> u16) -> Script {
        let mut script = Script::default();
        for psn in 0..40_u32 {
            for qp in 0..16_u32 {
                let at = u64::from(psn) * MS + u64::from(qp) * US;
                let template = |source, destination| {
                    PathTemplate::new(&Path {
                        source_mac: MacAddr([2, 0, 0, 0, 0, source]),
                        destination_mac: MacAddr([2, 0, 0, 0, 0, destination]),
                        vlan: None,
                        source_ip: IpAddr::from([10, 0, 0, source]),
                        destination_ip: IpAddr::from([10, 0, 0, destination]),
                        traffic_class: 0,
                        hop_limit: 64,
                        flow_label: 0,
                        udp_source_port: port(qp),
                    })
                };
                let bth = |opcode, base| Bth::new(opcode, Qpn::new(base + qp), Psn::new(psn));
                script
                    .add(at, frame(&template(1, 2), &bth(Opcode::RC_SEND_ONLY, 0x100), |_| {}, 64));
                let aeth =
                    Aeth { syndrome: Syndrome::ACK_UNLIMITED, msn: longhaul_units::Msn::new(psn) };
                let ack = frame(
                    &template(2, 1),
                    &bth(Opcode::RC_ACK, 0x200),
                    |head| head.push_aeth(&aeth),
                    0,
                );
                script.add(at + 100 * US, ack);
            }
        }
        script
    }

    #[test]
    fn in_step_are_told_apart_by_their_source_ports() {
        let report = in_step(|qp| 0xc000 + qp as u16).report();
        for flow in &report.flows {
            assert_eq!(flow.requester.qpn.unwrap() - 0x200, flow.responder.qpn.unwrap() - 0x100);
        }
        assert_eq!(report.flows.len(), 16);
    }

    #[test]
    fn with_nothing_to_tell_them_apart_are_said_to_be_ambiguous() {
        let report = in_step(|_| 0xc000).report();
        assert!(
            report.flows.iter().all(|flow| flow.limited_by == "ambiguous"),
            "{:?}",
            report.flows[0].findings
        );
    }
}
