//! Loss, retries, NAKs and congestion, one rule at a time.

use crate::script::*;
use longhaul_doctor::report::Severity;
use longhaul_wire::{NakCode, Opcode, Syndrome};

const SEQUENCE: Syndrome = Syndrome::Nak(NakCode::PsnSequence);

/// Ten packets that are acknowledged, so that the flow is known and its round trip is 100 µs.
fn begun() -> Script {
    let mut script = Script::default();
    for psn in 0..10 {
        script.write(u64::from(psn) * 10 * US, psn, 1024);
        script.ack(u64::from(psn) * 10 * US + 100 * US, psn);
    }
    script
}

mod go_back_n {
    use super::*;

    #[test]
    fn a_packet_lost_behind_the_capture_point_is_repeated_with_all_after_it() {
        let mut script = begun();
        (10..20).for_each(|psn| script.write(MS + u64::from(psn) * US, psn, 1024));
        script.nak(MS + 115 * US, 12, SEQUENCE);
        (12..20).for_each(|psn| script.write(MS + 150 * US + u64::from(psn) * US, psn, 1024));
        script.ack(MS + 300 * US, 19);
        let flow = script.flow();
        assert_eq!((flow.counters.resent_packets, flow.counters.resent_bytes), (8, 8192));
        assert_eq!(
            (flow.counters.lost_behind_capture_point, flow.counters.lost_before_capture_point),
            (1, 0)
        );
        assert_eq!(flow.payload_bytes, 20 * 1024);
        let [episode] = &flow.recovery.episodes[..] else { panic!("{:?}", flow.recovery) };
        assert_eq!((episode.cause, episode.from_psn, episode.packets), ("sequence_nak", 12, 8));
        assert!(found(&flow, "go_back_n").what.contains("lost behind the capture point"));
    }

    #[test]
    fn a_packet_lost_before_the_capture_point_is_seen_once() {
        let mut script = begun();
        (10..20)
            .filter(|&psn| psn != 12)
            .for_each(|psn| script.write(MS + u64::from(psn) * US, psn, 1024));
        script.nak(MS + 115 * US, 12, SEQUENCE);
        (12..20).for_each(|psn| script.write(MS + 150 * US + u64::from(psn) * US, psn, 1024));
        script.ack(MS + 300 * US, 19);
        let flow = script.flow();
        assert_eq!(flow.counters.resent_packets, 7);
        assert_eq!(
            (flow.counters.lost_behind_capture_point, flow.counters.lost_before_capture_point),
            (0, 1)
        );
        assert_eq!(flow.payload_bytes, 20 * 1024);
        assert_eq!(flow.counters.missed_by_capture, 0);
    }

    #[test]
    fn it_takes_the_time_where_losses_are_many() {
        let mut script = Script::default();
        for round in 0..50_u32 {
            let (at, psn) = (u64::from(round) * 20 * MS, round * 4);
            (0..4).for_each(|n| script.write(at + u64::from(n) * US, psn + n, 4096));
            script.nak(at + 9 * MS, psn + 1, SEQUENCE);
            (1..4).for_each(|n| script.write(at + 10 * MS + u64::from(n) * US, psn + n, 4096));
            script.ack(at + 19 * MS, psn + 3);
        }
        let flow = script.flow();
        assert_eq!(flow.counters.sequence_naks, 50);
        assert!(found(&flow, "go_back_n").share_of_time.unwrap() > 0.4);
    }

    #[test]
    fn late_packets_that_nobody_asked_for_were_reordered() {
        let mut script = begun();
        for (n, psn) in [10, 12, 11, 13].into_iter().enumerate() {
            script.write(MS + n as u64 * US, psn, 1024);
        }
        script.ack(MS + 200 * US, 13);
        let flow = script.flow();
        assert_eq!((flow.counters.reordered, flow.counters.resent_packets), (1, 0));
        assert!(flow.recovery.episodes.is_empty());
    }

    #[test]
    fn acknowledged_packets_that_were_never_seen_are_the_captures_loss() {
        let mut script = begun();
        [10, 11, 14, 15]
            .into_iter()
            .for_each(|psn| script.write(MS + u64::from(psn) * US, psn, 1024));
        script.ack(MS + 200 * US, 15);
        let flow = script.flow();
        assert_eq!(flow.counters.missed_by_capture, 2);
        assert!(
            found(&flow, "incomplete_capture").advice.as_ref().unwrap().contains("tcpdump -s 128")
        );
    }

    #[test]
    fn a_packet_captured_twice_is_no_repetition() {
        let mut script = Script::default();
        for psn in 0..100 {
            let at = u64::from(psn) * 100 * US;
            script.write(at, psn, 1024);
            script.write(at + 500, psn, 1024);
            script.ack(at + 50 * US, psn);
        }
        let flow = script.flow();
        assert_eq!((flow.counters.captured_twice, flow.counters.resent_packets), (100, 0));
        found(&flow, "captured_twice");
    }
}

mod receiver_not_ready {
    use super::*;

    #[test]
    fn its_timer_and_the_real_wait_are_told_apart() {
        let mut script = begun();
        for n in 0..5_u64 {
            script.request(MS + n * 4 * MS, Opcode::RC_SEND_ONLY, 10, 100, 0);
            // Code 14: 1.28 ms... the requester takes longer.
            let answer =
                if n < 4 { Syndrome::RnrNak { timer_code: 14 } } else { Syndrome::ACK_UNLIMITED };
            script.nak(MS + n * 4 * MS + 100 * US, 10, answer);
        }
        let flow = script.flow();
        assert_eq!(flow.counters.rnr_naks, 4);
        let rnr = found(&flow, "rnr_nak");
        assert!(rnr.what.contains("4 times"), "{}", rnr.what);
        assert!(
            rnr.evidence.contains("wait 1.28 ms") && rnr.evidence.contains("waited 3.9 ms"),
            "{}",
            rnr.evidence
        );
        assert_eq!(flow.recovery.causes[0].cause, "rnr_nak");
        found(&flow, "rnr_limit");
    }
}

mod timeout {
    use super::*;

    #[test]
    fn its_length_suggests_the_setting() {
        let mut script = begun();
        script.write(MS, 10, 1024);
        // 4.096 µs × 2^14 = 67.1 ms.
        script.write(MS + 67_500 * US, 10, 1024);
        script.ack(MS + 67_600 * US, 10);
        let flow = script.flow();
        let timeout = found(&flow, "timeout");
        assert!(timeout.evidence.contains("timeout 14 means 67.1 ms"), "{}", timeout.evidence);
        assert_eq!(flow.recovery.causes[0].cause, "timeout");
        assert!(!rules(&flow).contains(&"adaptive_retransmission"));
    }

    #[test]
    fn intervals_that_double_are_adaptive_retransmission() {
        // The published case: a link of 40 ms, retries after 2, 4, 8 and 16 ms.
        let mut script = begun();
        let mut at = MS;
        for wait in [0, 2, 4, 8, 16] {
            at += wait * MS;
            script.write(at, 10, 1024);
        }
        script.ack(MS + 40 * MS, 10);
        let flow = script.flow();
        let adaptive = found(&flow, "adaptive_retransmission");
        assert!(adaptive.evidence.contains("2 ms, 4 ms, 8 ms, 16 ms"), "{}", adaptive.evidence);
        assert!(adaptive.advice.as_ref().unwrap().contains("roce_adp_retrans_en"));
        assert_eq!(flow.recovery.longest_tries_ns, [2 * MS, 4 * MS, 8 * MS, 16 * MS]);
    }

    /// A timeout of 67.1 ms was set up; retries come after 20 ms, of one packet and of another
    /// later.
    fn retried_early(is_rxe: bool) -> longhaul_doctor::report::Flow {
        let mut script = Script { is_rxe, ..Script::default() };
        script.connect(14);
        for psn in 0..10 {
            script.write(MS + u64::from(psn) * 10 * US, psn, 1024);
            script.ack(MS + u64::from(psn) * 10 * US + 100 * US, psn);
        }
        for psn in [10, 11] {
            let at = u64::from(psn) * 100 * MS;
            script.write(at, psn, 1024);
            script.write(at + 20 * MS, psn, 1024);
            script.ack(at + 20 * MS + 100 * US, psn);
        }
        script.flow()
    }

    #[test]
    fn retries_before_the_timeout_are_adaptive_retransmission_of_hardware() {
        let flow = retried_early(false);
        let adaptive = found(&flow, "adaptive_retransmission");
        assert!(
            adaptive.what.contains("after 20 ms, although its timeout was set up as 67.1 ms"),
            "{}",
            adaptive.what
        );
        assert!(!rules(&flow).contains(&"early_retry"));
    }

    #[test]
    fn retries_before_the_timeout_are_the_running_timer_of_rxe() {
        let flow = retried_early(true);
        let early = found(&flow, "early_retry");
        assert!(
            early.what.contains("after 20 ms, although its timeout was set up as 67.1 ms"),
            "{}",
            early.what
        );
        assert!(
            early.what.contains("as Linux rxe's does")
                && early.evidence.contains("MigReq is clear")
        );
        assert!(!early.advice.as_ref().unwrap().contains("mlxreg"));
        assert!(!rules(&flow).contains(&"adaptive_retransmission"));
    }

    #[test]
    fn an_answer_that_was_under_way_makes_it_premature() {
        let mut script = begun();
        script.write(MS, 10, 1024);
        script.write(MS + 90 * US, 10, 1024);
        script.ack(MS + 100 * US, 10);
        found(&script.flow(), "premature_retry");
    }
}

mod fatal_nak {
    use super::*;

    #[test]
    fn comes_first_and_names_the_cause() {
        let mut script = begun();
        script.request(MS, Opcode::RC_READ_REQUEST, 10, 0, 100);
        script.nak(MS + 100 * US, 10, Syndrome::Nak(NakCode::RemoteAccess));
        let flow = script.flow();
        assert_eq!(flow.findings[0].rule, "fatal_nak");
        assert_eq!(flow.findings[0].severity, Severity::Failure);
        assert!(flow.findings[0].what.contains("to a READ with a remote access error"));
    }
}

mod implied_nak {
    use super::*;

    #[test]
    fn a_read_that_a_later_answer_passes_is_asked_for_again() {
        let mut script = begun();
        script.request(MS, Opcode::RC_READ_REQUEST, 10, 0, 100);
        script.write(MS + US, 11, 1024);
        script.ack(MS + 100 * US, 11);
        script.request(MS + 120 * US, Opcode::RC_READ_REQUEST, 10, 0, 100);
        script.read_response(MS + 220 * US, 10, 100);
        script.write(MS + 230 * US, 11, 1024);
        script.ack(MS + 330 * US, 11);
        let flow = script.flow();
        assert_eq!(flow.recovery.causes[0].cause, "implied_nak");
        found(&flow, "implied_nak");
    }

    #[test]
    fn a_response_that_only_the_capture_lacks_is_none() {
        let mut script = begun();
        script.request(MS, Opcode::RC_READ_REQUEST, 10, 0, 100);
        script.write(MS + US, 11, 1024);
        script.ack(MS + 100 * US, 11);
        for psn in 12..40 {
            script.write(MS + u64::from(psn) * 200 * US, psn, 1024);
            script.ack(MS + u64::from(psn) * 200 * US + 100 * US, psn);
        }
        let flow = script.flow();
        assert!(flow.recovery.causes.is_empty());
        assert_eq!(flow.counters.missing_responses, 1);
        assert!(flow.window.messages.unwrap().max <= 10, "{:?}", flow.window);
    }
}

mod congestion {
    use super::*;

    #[test]
    fn marks_and_notifications_are_counted_per_direction() {
        let mut script = begun();
        for psn in 10..20 {
            let class = if psn % 2 == 0 { 3 } else { 2 };
            script.marked_request(
                MS + u64::from(psn) * US,
                Opcode::RC_WRITE_ONLY,
                psn,
                1024,
                1024,
                class,
            );
            script.cnp(MS + u64::from(psn) * US + 50 * US);
        }
        script.ack(MS + 200 * US, 19);
        let flow = script.flow();
        assert_eq!((flow.congestion.requests_marked, flow.congestion.cnps_to_requester), (5, 10));
        assert!(flow.congestion.ecn_capable);
        found(&flow, "congestion");
    }
}

mod acknowledgements {
    use super::*;

    #[test]
    fn far_sooner_than_reads_come_from_somebody_nearer() {
        let mut script = Script::default();
        for n in 0..40_u32 {
            let at = u64::from(n) * 30 * MS;
            script.write(at, n * 2, 1024);
            script.ack(at + 50 * US, n * 2);
            script.request(at + 100 * US, Opcode::RC_READ_REQUEST, n * 2 + 1, 0, 100);
            script.read_response(at + 10 * MS, n * 2 + 1, 100);
        }
        let flow = script.flow();
        assert!(found(&flow, "pseudo_ack").evidence.contains("ACKs after 50 µs"));
    }

    #[test]
    fn taken_back_prove_that_two_parties_answer() {
        let mut script = begun();
        (10..20).for_each(|psn| script.write(MS + u64::from(psn) * US, psn, 1024));
        script.ack(MS + 115 * US, 19);
        script.nak(MS + 10 * MS, 12, SEQUENCE);
        let flow = script.flow();
        assert_eq!(found(&flow, "acknowledged_then_missing").severity, Severity::Failure);
    }
}

mod sequence_numbers {
    use super::*;

    #[test]
    fn pass_two_to_the_24_without_a_gap() {
        let mut script = Script::default();
        for n in 0..40_u32 {
            let psn = (0xff_fff0 + n) & 0xff_ffff;
            script.write(u64::from(n) * 100 * US, psn, 1024);
            script.ack(u64::from(n) * 100 * US + 50 * US, psn);
        }
        let flow = script.flow();
        assert_eq!(
            (flow.counters.psn_wraps, flow.counters.missed_by_capture, flow.psns),
            (1, 0, 40)
        );
        assert_eq!(flow.operations[0].bytes.samples, 40);
        found(&flow, "psn_wrap");
    }

    #[test]
    fn that_jump_far_are_a_new_life_of_the_queue_pair() {
        let mut script = begun();
        for psn in 0x70_0000..0x70_0010 {
            script.write(5 * MS + u64::from(psn & 0xff) * US, psn, 1024);
        }
        let flow = script.flow();
        assert_eq!(flow.counters.restarts, 1);
        assert_eq!(flow.counters.missed_by_capture, 0);
    }
}
