//! Rules for a pseudo-ACK accelerator, one module per rule.

use crate::script;
use crate::script::{Script, config, frames, run, run_with};
use longhaul_accel::{Config, DropReason, FlowState, LAN, Learnt, Pacing, PassReason, WAN};
use longhaul_node::{Frame, Node};
use longhaul_units::{BitRate, Duration, Qpn};
use longhaul_wire::{Head, Opcode, Packet, PathTemplate};

/// Rule 1: the ACK frame.
mod ack_frame {
    use super::*;

    fn first_ack(script: &Script) -> Vec<u8> {
        script.last.iter().find(|(side, _)| *side == LAN).expect("an ACK").1.clone()
    }

    #[test]
    fn looks_like_the_real_responders() {
        let mut script = run("connect psn=100\n wan: send_only 9000\n > lan send_only 9000");
        script.go_on("lan: write_only 100 A\n > wan write_only 100 A\n > lan ack 100 msn=1");
        let ack = first_ack(&script);
        let head = Head::copy_of(&ack);
        let frame = Frame::received(&head, &ack).unwrap();
        assert!(frame.icrc_is_right());
        let packet = Packet::parse(frame.head).unwrap().unwrap();
        let bth = packet.bth();
        assert_eq!(bth.opcode, Opcode::RC_ACK);
        assert_eq!(bth.dest_qp, Qpn::new(frames::REQUESTER_QPN));
        assert!(bth.migreq, "as the real responder sends it");
        assert_eq!(packet.path(), script.wire.responder, "addresses, source port, TTL and ToS");
    }

    #[test]
    fn before_any_real_frame_the_way_back_is_deduced_from_requests() {
        let script = run("connect psn=100\n lan: write_only 100 A\n > wan write_only 100 A\n \
             > lan ack 100 msn=1");
        let ack = first_ack(&script);
        let packet = Packet::parse(&ack).unwrap().unwrap();
        assert_eq!(packet.path(), script.wire.requester.reversed());
        assert!(packet.bth().migreq, "learnt from the REP");
    }

    #[test]
    fn migreq_is_clear_when_the_responder_clears_it() {
        let mut script = run("");
        script.wire.responder_migreq = false;
        script.go_on(
            "connect psn=100\n lan: write_only 100 A\n > wan write_only 100 A\n \
                    > lan ack 100 msn=1",
        );
        assert!(!Packet::parse(&first_ack(&script)).unwrap().unwrap().bth().migreq);
    }

    #[test]
    fn works_over_ipv6_and_vlan() {
        let mut script = run("");
        let path = &mut script.wire.requester;
        path.source_ip = "fd00::1".parse().unwrap();
        path.destination_ip = "fd00::2".parse().unwrap();
        path.vlan = Some(42);
        script.wire.responder = path.reversed();
        script.go_on(
            "connect psn=100\n lan: write_only 100 A\n > wan write_only 100 A\n \
                    > lan ack 100 msn=1",
        );
        let packet = first_ack(&script);
        assert_eq!(Packet::parse(&packet).unwrap().unwrap().path(), script.wire.responder);
    }

    #[test]
    fn finite_credits_are_mirrored_from_the_responders_limit() {
        run("connect psn=100
             lan: send_only 100 A
             > wan send_only 100 A
             > lan ack 100 msn=1              # no finite credits seen yet
             wan: ack 100 msn=1 credits=8     # limit: message 9
             lan: send_only 101 A
             > wan send_only 101 A
             > lan ack 101 msn=2 credits=6    # 7 left; the next lower code
             lan: send_only 102 A
             > wan send_only 102 A
             > lan ack 102 msn=3 credits=6
             wan: ack 101 msn=2 credits=0     # the limit does not move back
             wan: ack 102 msn=3 credits=16    # limit 19: the requester is told
             > lan ack 102 msn=3 credits=16");
    }
}

/// Rule 2: the MSN.
mod msn {
    use super::*;

    #[test]
    fn counts_completed_messages_from_establishment() {
        run("connect psn=100
             lan: write_first 100
             > wan write_first 100
             lan: write_middle 101 A
             > wan write_middle 101 A
             > lan ack 101 msn=0
             lan: write_last 102 A
             > wan write_last 102 A
             > lan ack 102 msn=1");
    }

    #[test]
    fn in_mid_flow_is_learnt_from_two_real_acks_that_agree() {
        let script = run("
             lan: write_only 500 A
             > wan write_only 500 A
             wan: ack 500 msn=77
             > lan ack 500 msn=77            # passed: one ACK could be another flow's
             lan: write_only 501 A
             > wan write_only 501 A
             lan: write_only 502 A
             > wan write_only 502 A
             lan: write_only 503 A
             > wan write_only 503 A
             wan: ack 501 msn=78
             > lan ack 501 msn=78            # passed; the flow is known from here on
             > lan ack 503 msn=80            # and what is stored is acknowledged
             lan: write_only 504 A
             > wan write_only 504 A
             > lan ack 504 msn=81");
        let flow = script.status();
        assert_eq!((flow.state, flow.learnt), (FlowState::Terminated, Learnt::Traffic));
        assert_eq!(flow.requester_qpn, Some(Qpn::new(frames::REQUESTER_QPN)));
    }

    #[test]
    fn acks_that_disagree_leave_the_flow_passive() {
        let script = run("
             lan: write_only 500 A
             > wan write_only 500 A
             wan: ack 500 msn=77
             > lan ack 500 msn=77
             lan: write_only 501 A
             > wan write_only 501 A
             wan: ack 501 msn=90
             > lan ack 501 msn=90
             lan: write_only 502 A
             > wan write_only 502 A");
        assert_eq!(script.status().state, FlowState::Learning);
    }
}

/// Rule 3: only stored, contiguous packets.
mod contiguous {
    use super::*;

    #[test]
    fn one_sequence_nak_per_gap_with_the_expected_psn() {
        let script = run("connect psn=100
             lan: write_only 100 A
             > wan write_only 100 A
             > lan ack 100 msn=1
             lan: write_only 102 A
             > lan nak 101 sequence msn=1
             lan: write_only 103 A
             lan: write_only 104 A
             lan: write_only 101 A
             > wan write_only 101 A
             > lan ack 101 msn=2
             lan: write_only 103 A
             > lan nak 102 sequence msn=2");
        assert_eq!(script.accel.counters().sequence_naks, 2);
        assert_eq!(script.accel.counters().drops.get(DropReason::PsnGap), 4);
    }

    #[test]
    fn a_packet_with_a_wrong_icrc_passes_but_is_not_acknowledged() {
        let script = run("connect psn=100
             lan: write_only 100 A damaged
             > wan write_only 100 A damaged
             lan: write_only 101 A
             > lan nak 100 sequence msn=0
             lan: write_only 100 A
             > wan write_only 100 A
             > lan ack 100 msn=1");
        assert_eq!(script.accel.counters().rx_icrc_encapsulated, 1);
        assert_eq!(script.accel.counters().stored_packets, 1);
    }

    #[test]
    fn the_psn_wraps() {
        run("connect psn=16777214
             lan: write_only 16777214 A
             > wan write_only 16777214 A
             > lan ack 16777214 msn=1
             lan: write_only 16777215 A
             > wan write_only 16777215 A
             > lan ack 16777215 msn=2
             lan: write_only 0 A
             > wan write_only 0 A
             > lan ack 0 msn=3
             wan: ack 0 msn=3");
    }
}

/// Rule 4: pseudo-ACKs stay below the first outstanding READ or atomic.
mod outstanding_read {
    use super::*;

    #[test]
    fn holds_acks_until_its_last_response_has_passed() {
        run("connect psn=100 mtu=1024
             lan: write_only 100
             > wan write_only 100
             lan: read 101 dma=2500 A
             > wan read 101 A dma=2500
             lan: write_only 104 A
             > wan write_only 104 A
             > lan ack 100 msn=1
             wan: read_first 101 msn=1
             > lan read_first 101 msn=1
             wan: read_middle 102
             > lan read_middle 102
             wan: read_last 103 msn=2
             > lan read_last 103 msn=2
             > lan ack 104 msn=3
             wan: ack 104 msn=3");
    }

    #[test]
    fn an_atomic_holds_them_too() {
        run("connect psn=100
             lan: atomic 100 A
             > wan atomic 100 A
             lan: send_only 101 A
             > wan send_only 101 A
             wan: atomic_ack 100 msn=1
             > lan atomic_ack 100 msn=1
             > lan ack 101 msn=2");
    }

    #[test]
    fn a_gap_behind_it_is_named_only_after_it() {
        run("connect psn=100
             lan: read 100 dma=64 A
             > wan read 100 A dma=64
             lan: write_only 102 A
             wan: read_only 100 msn=1
             > lan read_only 100 msn=1
             > lan nak 101 sequence msn=1");
    }

    #[test]
    fn duplicates_are_dropped_while_it_is_in_flight() {
        let script = run("connect psn=100
             lan: read 100 dma=64 A
             > wan read 100 A dma=64
             after 1ms
             lan: read 100 dma=64 A
             after 2ms
             lan: read 100 dma=64 A
             wan: read_only 100 msn=1
             > lan read_only 100 msn=1");
        assert_eq!(script.accel.counters().drops.get(DropReason::ReadInFlight), 2);
    }

    #[test]
    fn the_requesters_own_retry_goes_through_after_a_gap_in_responses() {
        run("connect psn=100 mtu=1024
             lan: read 100 dma=4096 A
             > wan read 100 A dma=4096
             after 10ms
             wan: read_first 100 msn=1
             > lan read_first 100 msn=1
             wan: read_last 103 msn=1      # 101 and 102 are lost
             > lan read_last 103 msn=1
             lan: read 101 dma=3072 A
             > wan read 101 A dma=3072
             after 10ms
             wan: read_first 101 msn=1
             > lan read_first 101 msn=1
             wan: read_middle 102
             > lan read_middle 102
             wan: read_last 103 msn=1
             > lan read_last 103 msn=1");
    }

    /// Until the repeated one is answered, the requester drops the responses that are arriving.
    #[test]
    fn those_behind_one_that_is_repeated_go_through_too_and_once() {
        let script = run("connect psn=100 mtu=1024
             lan: read 100 dma=2048 A
             > wan read 100 A dma=2048
             lan: read 102 dma=64 A
             > wan read 102 A dma=64
             lan: read 103 dma=64 A
             > wan read 103 A dma=64
             after 10ms
             wan: read_first 100 msn=1
             > lan read_first 100 msn=1
             wan: read_only 102 msn=2      # 101 is lost
             > lan read_only 102 msn=2
             lan: read 101 dma=1024 A
             > wan read 101 A dma=1024
             lan: read 102 dma=64 A
             > wan read 102 A dma=64
             lan: read 103 dma=64 A
             > wan read 103 A dma=64
             wan: read_only 103 msn=3      # the answer to the first request
             > lan read_only 103 msn=3
             lan: read 102 dma=64 A
             lan: read 103 dma=64 A
             after 10ms
             wan: read_only 101 msn=3
             > lan read_only 101 msn=3
             wan: read_only 102 msn=3
             > lan read_only 102 msn=3
             wan: read_only 103 msn=3
             > lan read_only 103 msn=3");
        assert_eq!(script.accel.counters().drops.get(DropReason::ReadInFlight), 2);
        assert_eq!(script.status().stored_frames, 0);
    }

    #[test]
    fn those_behind_one_whose_response_the_lan_lost_go_through_too() {
        run("connect psn=100 mtu=1024
             lan: read 100 dma=64 A
             > wan read 100 A dma=64
             lan: read 101 dma=64 A
             > wan read 101 A dma=64
             after 10ms
             wan: read_only 100 msn=1      # lost on the LAN
             > lan read_only 100 msn=1
             lan: read 100 dma=64 A
             > wan read 100 A dma=64
             lan: read 101 dma=64 A
             > wan read 101 A dma=64");
    }

    /// A requester that goes back repeats all READs behind, even those whose responses are
    /// arriving.
    #[test]
    fn one_asked_for_again_while_its_responses_come_is_answered_with_the_last_of_them() {
        run("connect psn=100 mtu=1024
             lan: read 100 dma=3072 A
             > wan read 100 A dma=3072
             lan: send_only 103 A
             > wan send_only 103 A
             after 20ms
             wan: read_first 100 msn=1
             > lan read_first 100 msn=1
             wan: read_middle 101
             > lan read_middle 101
             lan: read 100 dma=3072 A      # left before the two came
             > wan read 100 A dma=3072
             wan: read_last 102 msn=1
             > lan read_last 102 msn=1
             > lan ack 103 msn=2
             wan: read_first 100 msn=2
             > lan read_first 100 msn=2");
    }

    #[test]
    fn it_is_resent_after_a_gap_if_the_requester_keeps_waiting() {
        let script = run("connect psn=100 mtu=1024
             lan: read 100 dma=2048 A
             > wan read 100 A dma=2048
             after 10ms
             wan: read_last 101 msn=1
             > lan read_last 101 msn=1
             after 5ms
             > wan read 100 A dma=2048
             wan: read_first 100 msn=1
             > lan read_first 100 msn=1
             wan: read_last 101 msn=1
             > lan read_last 101 msn=1");
        assert_eq!(script.status().stored_frames, 0);
    }

    #[test]
    fn those_that_it_has_overtaken_are_resent_once_it_is_answered() {
        let script = run("connect psn=100 mtu=1024
             lan: read 100 dma=2048 A
             > wan read 100 A dma=2048
             lan: read 102 dma=64 A
             > wan read 102 A dma=64
             after 10ms
             wan: read_first 100 msn=1
             > lan read_first 100 msn=1
             wan: read_only 102 msn=2
             > lan read_only 102 msn=2
             after 5ms
             > wan read 100 A dma=2048
             after 10ms
             wan: read_first 100 msn=2
             > lan read_first 100 msn=2
             wan: read_last 101 msn=2
             > lan read_last 101 msn=2
             after 5ms
             > wan read 102 A dma=64");
        assert_eq!(script.accel.counters().retransmits_read, 2);
    }

    #[test]
    fn those_behind_one_that_a_probe_brought_are_resent() {
        run("connect psn=100 mtu=1024
             lan: read 100 dma=64 A
             > wan read 100 A dma=64
             lan: read 101 dma=64 A
             > wan read 101 A dma=64
             lan: read 102 dma=64 A
             > wan read 102 A dma=64
             after 100ms
             > wan read 100 A dma=64
             after 10ms
             wan: read_only 100 msn=3
             > lan read_only 100 msn=3
             after 5ms
             > wan read 101 A dma=64
             > wan read 102 A dma=64");
    }

    #[test]
    fn a_nak_behind_it_brings_it_again_before_what_is_missing() {
        run("connect psn=100 mtu=1024
             lan: read 100 dma=64 A
             > wan read 100 A dma=64
             lan: read 101 dma=64 A
             > wan read 101 A dma=64
             lan: write_only 102 A
             > wan write_only 102 A
             after 10ms
             wan: nak 101 sequence msn=1   # the response to the first is lost
             > wan read 100 A dma=64
             > wan read 101 A dma=64
             > wan write_only 102 A");
    }

    #[test]
    fn a_real_ack_that_passes_it_brings_it_again_but_not_what_was_acknowledged() {
        run("connect psn=100 mtu=1024
             lan: read 100 dma=64 A
             > wan read 100 A dma=64
             lan: write_only 101 A
             > wan write_only 101 A
             after 10ms
             wan: ack 101 msn=2            # the response to the READ is lost
             after 5ms
             > wan read 100 A dma=64
             wan: read_only 100 msn=2
             > lan read_only 100 msn=2
             > lan ack 101 msn=2");
    }

    #[test]
    fn of_a_flow_that_begins_with_it_is_answered_by_its_response_alone() {
        run("connect psn=100 mtu=1024
             lan: read 100 dma=64 A
             > wan read 100 A dma=64
             lan: read 101 dma=64 A
             > wan read 101 A dma=64
             wan: read_only 100 msn=1
             > lan read_only 100 msn=1
             wan: read_only 101 msn=2
             > lan read_only 101 msn=2
             lan: write_only 102 A
             > wan write_only 102 A
             > lan ack 102 msn=3");
    }

    #[test]
    fn what_came_before_it_is_acknowledged_without_it() {
        run("connect psn=100 mtu=1024
             lan: write_only 100 A
             > wan write_only 100 A
             > lan ack 100 msn=1
             lan: read 101 dma=64 A
             > wan read 101 A dma=64
             lan: read 102 dma=64 A
             > wan read 102 A dma=64
             wan: read_only 101 msn=2
             > lan read_only 101 msn=2
             lan: write_only 100 A
             > lan ack 100 msn=1
             wan: read_only 102 msn=3
             > lan read_only 102 msn=3");
    }

    #[test]
    fn a_retry_after_its_response_was_lost_on_the_lan_goes_through_and_holds_acks() {
        run("connect psn=100 mtu=1024
             lan: read 100 dma=64 A
             > wan read 100 A dma=64
             wan: read_only 100 msn=1
             > lan read_only 100 msn=1
             lan: write_only 101 A
             > wan write_only 101 A
             > lan ack 101 msn=2
             lan: read 100 dma=64 A        # the requester took the ACK for an implied NAK
             > wan read 100 A dma=64
             lan: write_only 101 A         # an ACK for this would be another one
             wan: read_only 100 msn=1
             > lan read_only 100 msn=1
             > lan ack 101 msn=2");
    }

    #[test]
    fn without_a_path_mtu_its_length_is_learnt_from_the_response() {
        let mut script = run_with(config(), "");
        // Two agreeing ACKs: the flow is learnt from traffic, its path MTU is unknown.
        script.go_on(
            "lan: write_only 100 A
             > wan write_only 100 A
             wan: ack 100 msn=5
             > lan ack 100 msn=5
             lan: write_only 101 A
             > wan write_only 101 A
             wan: ack 101 msn=6
             > lan ack 101 msn=6
             lan: read 102 dma=2048 A
             > wan read 102 A dma=2048
             lan: write_only 104 A         # 2 or 8 PSNs? this fits 2, an MTU of 1024
             > wan write_only 104 A
             wan: read_first 102 msn=6
             > lan read_first 102 msn=6
             wan: read_last 103 msn=7
             > lan read_last 103 msn=7
             > lan ack 104 msn=8",
        );
        assert_eq!(script.status().path_mtu, Some(1024));
    }
}

/// Rule 5: covered real ACKs are suppressed, duplicates are acknowledged again, the MSN never
/// decreases.
mod real_acks {
    use super::*;

    #[test]
    fn are_absorbed_and_release_the_store() {
        let script = run("connect psn=100
             lan: write_only 100 A
             > wan write_only 100 A
             > lan ack 100 msn=1
             lan: write_only 101 A
             > wan write_only 101 A
             > lan ack 101 msn=2
             wan: ack 101 msn=2
             wan: ack 100 msn=1");
        assert_eq!(script.status().stored_frames, 0);
        assert_eq!(script.status().stored_bytes, 0);
        assert_eq!(script.accel.counters().acks_absorbed, 2);
    }

    #[test]
    fn every_duplicate_is_acknowledged_again_and_not_sent_again() {
        run("connect psn=100
             lan: write_only 100 A
             > wan write_only 100 A
             > lan ack 100 msn=1
             lan: write_only 101
             > wan write_only 101
             lan: write_only 100
             > lan ack 101 msn=2
             lan: write_only 101
             > lan ack 101 msn=2");
    }

    #[test]
    fn a_duplicate_of_what_is_delivered_is_the_responders_to_answer() {
        // It is a repetition or the first packet of another life of the QP; only the responder can
        // tell.
        let script = run("connect psn=100
             lan: write_only 100 A
             > wan write_only 100 A
             > lan ack 100 msn=1
             wan: ack 100 msn=1
             lan: write_only 100 A
             > wan write_only 100 A
             wan: ack 100 msn=1
             > lan ack 100 msn=1");
        assert_eq!(script.status().state, FlowState::Learning);
    }

    #[test]
    fn an_ack_for_what_was_never_sent_is_not_believed() {
        let mut script = run("connect psn=100
             lan: write_only 100 A
             > wan write_only 100 A
             > lan ack 100 msn=1
             wan: ack 105 msn=6
             > lan ack 105 msn=6          # its requester knows whether it sent that");
        assert_eq!(script.status().stored_frames, 1);
        let slow = Config { wan_pacing: BitRate::from_gbps(1).into(), burst_bytes: 1, ..config() };
        script.accel.reconfigure(slow).expect("valid");
        script.go_on(
            "lan: write_only 101 A
             > wan write_only 101 A
             > lan ack 101 msn=2
             lan: write_only 102 A
             > lan ack 102 msn=3
             wan: ack 102 msn=3           # before it is sent
             after 10us
             > wan write_only 102 A",
        );
        assert_eq!(script.accel.counters().drops.get(DropReason::AckOutside), 1);
        assert_eq!(script.status().stored_frames, 3);
    }

    #[test]
    fn one_with_a_wrong_icrc_passes_and_is_not_believed() {
        let script = run("connect psn=100
             lan: write_only 100 A
             > wan write_only 100 A
             > lan ack 100 msn=1
             wan: ack 100 msn=1 damaged
             > lan ack 100 msn=1 damaged");
        assert_eq!(script.status().stored_frames, 1);
    }
}

/// Rule 6: every AckReq is answered, and so are long runs without one.
mod ack_requests {
    use super::*;

    #[test]
    fn one_ack_covers_all_that_came_between_two_drains() {
        let mut script = run("connect psn=100");
        for psn in 100..110 {
            let bytes = script.wire.requester_frame(&format!("write_only {psn} A"));
            script::deliver(&mut script.accel, script.now, LAN, &bytes);
        }
        let mut sink = script::Sink::default();
        script.accel.poll_transmit(script.now, &mut sink);
        let lan: Vec<_> = sink.out.iter().filter(|(side, _)| *side == LAN).collect();
        assert_eq!(lan.len(), 1);
        assert_eq!(frames::describe(LAN, &lan[0].1), "lan ack 109 msn=10");
        assert_eq!(sink.out.len(), 11);
    }

    #[test]
    fn progress_is_shown_every_64_packets_without_one() {
        let mut script = run("connect psn=100\n lan: write_first 100\n > wan write_first 100");
        for psn in 101..163 {
            script.go_on(&format!("lan: write_middle {psn}\n > wan write_middle {psn}"));
        }
        script.go_on("lan: write_middle 163\n > wan write_middle 163\n > lan ack 163 msn=0");
    }
}

/// Rule 7: the accelerator handles NAKs, RNR NAKs and timeouts of the responder.
mod recovery {
    use super::*;

    const THREE: &str = "connect psn=100
             lan: write_only 100 A
             > wan write_only 100 A
             > lan ack 100 msn=1
             lan: write_only 101 A
             > wan write_only 101 A
             > lan ack 101 msn=2
             lan: write_only 102 A
             > wan write_only 102 A
             > lan ack 102 msn=3
             after 10ms";

    #[test]
    fn a_sequence_nak_is_answered_from_the_store() {
        let mut script = run(THREE);
        script.go_on(
            "wan: nak 101 sequence msn=1
             > wan write_only 101 A
             > wan write_only 102 A
             after 10ms
             wan: ack 102 msn=3",
        );
        assert_eq!(script.accel.counters().retransmits_nak, 2);
        assert_eq!(script.status().stored_frames, 0);
    }

    #[test]
    fn a_repeated_nak_does_not_repeat_a_retransmission_under_way() {
        let mut script = run(THREE);
        script.go_on(
            "wan: ack 100 msn=1             # a round trip of 10 ms
             wan: nak 101 sequence msn=1
             > wan write_only 101 A
             > wan write_only 102 A
             after 1ms
             wan: nak 101 sequence msn=1
             after 9ms
             wan: nak 101 sequence msn=1
             > wan write_only 101 A
             > wan write_only 102 A",
        );
    }

    #[test]
    fn rnr_time_is_honoured() {
        let mut script = run(THREE);
        script.go_on(
            "wan: rnr 101 timer=13 msn=1    # 960 µs
             wan: nak 101 sequence msn=1    # what was in flight behind it
             lan: write_only 103 A
             > lan ack 103 msn=4
             after 900us
             after 100us
             > wan write_only 101 A
             > wan write_only 102 A
             > wan write_only 103 A",
        );
        assert_eq!(script.accel.counters().rnr_nak_absorbed, 1);
    }

    #[test]
    fn a_timeout_asks_with_one_packet_and_go_back_n_follows_the_answer() {
        let mut script = run(THREE);
        script.go_on(
            "wan: ack 100 msn=1
             after 40ms                     # smoothed 10 ms + 4 x 5 ms
             > wan write_only 101 A
             after 10ms
             wan: ack 101 msn=2
             after 2ms                      # nothing more follows by itself
             > wan write_only 102 A         # sent before the question, not in the answer: lost
             after 8ms
             wan: ack 102 msn=3",
        );
        assert_eq!(script.accel.counters().local_ack_timeout_err, 1);
    }

    #[test]
    fn an_early_timeout_floods_nothing() {
        let mut script = run(THREE);
        script.go_on(
            "wan: ack 100 msn=1
             after 31ms
             > wan write_only 101 A
             wan: ack 101 msn=2             # too early to answer the question: the original's
             wan: ack 102 msn=3",
        );
        assert_eq!(script.accel.counters().retransmits_timeout, 1);
    }

    #[test]
    fn a_responder_that_was_only_slow_is_sent_nothing_but_the_question_again() {
        let mut script = run(THREE);
        script.go_on(
            "wan: ack 100 msn=1             # a round trip of 10 ms
             lan: write_only 103 A
             > wan write_only 103 A
             > lan ack 103 msn=4
             after 40ms
             > wan write_only 101 A
             after 15ms                     # late enough to be an answer to the question
             wan: ack 101 msn=2
             after 1ms
             wan: ack 102 msn=3             # but this was never sent again: nothing was lost
             after 5ms
             wan: ack 103 msn=4
             wan: ack 103 msn=4             # to the question
             lan: write_only 104 A
             > wan write_only 104 A
             > lan ack 104 msn=5
             after 5ms
             wan: ack 104 msn=5
             after 1000ms",
        );
        assert_eq!(script.accel.counters().retransmits_timeout, 1);
        assert_eq!(script.status().stored_frames, 0);
    }

    #[test]
    fn what_is_sent_after_everything_was_answered_is_not_taken_for_lost() {
        let mut script = run(THREE);
        script.go_on(
            "wan: ack 100 msn=1
             wan: ack 101 msn=2
             after 45ms
             > wan write_only 102 A
             after 10ms
             wan: ack 102 msn=3             # nothing is left that could be lost
             lan: write_only 103 A
             > wan write_only 103 A
             > lan ack 103 msn=4
             after 10ms
             wan: ack 103 msn=4",
        );
        assert_eq!(script.accel.counters().retransmits_timeout, 1);
    }

    #[test]
    fn the_question_asks_for_an_ack_with_a_right_icrc() {
        run("connect psn=100
             lan: write_only 100
             > wan write_only 100
             after 100ms
             > wan write_only 100 A         # `describe` checks the ICRC
             wan: ack 100 msn=1
             > lan ack 100 msn=1");
    }

    #[test]
    fn a_fatal_nak_for_what_was_not_acknowledged_is_the_requesters() {
        let script = run("connect psn=100
             lan: write_only 100
             > wan write_only 100
             wan: nak 100 access msn=0
             > lan nak 100 access msn=0
             lan: write_only 101 A
             > lan nak 100 access msn=0");
        assert_eq!(script.status().state, FlowState::Failed);
    }

    #[test]
    fn a_reserved_syndrome_is_the_requesters_and_changes_nothing() {
        let script = run("connect psn=100
             lan: write_only 100 A
             > wan write_only 100 A
             > lan ack 100 msn=1
             wan: reserved 100 byte=127 msn=0
             > lan reserved 100 msn=0
             wan: reserved 100 byte=64 msn=0
             > lan reserved 100 msn=0
             after 100ms
             > wan write_only 100 A
             wan: ack 100 msn=1
             after 1000ms");
        assert_eq!(script.accel.counters().syndromes_unknown, 2);
        assert_eq!(script.status().stored_bytes, 0);
    }

    #[test]
    fn a_fatal_nak_after_a_pseudo_ack_fails_the_oldest_unacknowledged_packet() {
        let mut script = run(THREE);
        script.go_on(
            "lan: write_only 103
             > wan write_only 103
             wan: nak 101 access msn=1
             > lan nak 103 operational msn=3
             after 1000ms                   # nothing behind the failure is delivered
             lan: write_only 104 A
             > lan nak 103 operational msn=3",
        );
        assert_eq!(script.accel.counters().stored_lost, 2);
        assert_eq!(script.status().stored_bytes, 0);
    }

    #[test]
    fn with_everything_acknowledged_the_next_request_gets_the_fatal_nak() {
        let mut script = run(THREE);
        script.go_on(
            "wan: nak 101 invalid msn=1
             lan: write_only 103 A
             > lan nak 103 operational msn=3",
        );
        assert_eq!(script.accel.counters().drops.get(DropReason::FlowFailed), 1);
    }

    #[test]
    fn a_flow_whose_responder_is_silent_passes() {
        let mut script = run("connect psn=100
             lan: write_only 100 A
             > wan write_only 100 A
             > lan ack 100 msn=1
             after 100ms
             > wan write_only 100 A
             after 200ms
             > wan write_only 100 A
             after 400ms
             > wan write_only 100 A
             after 800ms
             > wan write_only 100 A");
        let status = script.status();
        assert_eq!(
            (status.state, status.pass_reason),
            (FlowState::Passing, Some(PassReason::OneWay))
        );
        script.go_on("lan: write_only 101 A\n > wan write_only 101 A");
    }
}

/// Rule 9: a zero-length WRITE probes whether the peer is alive.
mod keep_alive {
    use super::*;

    #[test]
    fn is_answered_only_when_the_responder_has_answered() {
        run("connect psn=100
             lan: write_only 100 A len=0
             > wan write_only 100 A len=0
             lan: write_only 101 A
             > wan write_only 101 A
             after 10ms
             lan: write_only 100 A len=0    # a retry is no reason to answer, but one to ask
             > wan write_only 100 A len=0
             wan: ack 100 msn=1
             > lan ack 101 msn=2");
    }

    #[test]
    fn one_with_immediate_data_is_a_message() {
        let mut script = run("connect psn=100");
        let path = PathTemplate::new(&script.wire.requester);
        let mut bth = longhaul_wire::Bth::new(
            Opcode::RC_WRITE_ONLY_IMM,
            Qpn::new(frames::RESPONDER_QPN),
            longhaul_units::Psn::new(100),
        );
        bth.ack_request = true;
        let mut head = Head::begin(&path, &bth);
        head.push_reth(&longhaul_wire::Reth {
            virtual_address: 0,
            rkey: longhaul_units::RKey(0),
            len: 0,
        });
        head.push_immediate([1, 2, 3, 4]);
        let bytes = frames::seal(head, &path, &[]);
        script.inject(LAN, &bytes);
        script.go_on("> wan unknown 100 A len=0\n > lan ack 100 msn=1");
    }
}

/// Rule 10: a DREQ waits for the store.
mod disconnect {
    use super::*;
    use crate::script::frames::Wire;

    #[test]
    fn is_held_until_stored_data_is_acknowledged() {
        let mut script = run("connect psn=100
             lan: write_only 100 A
             > wan write_only 100 A
             > lan ack 100 msn=1
             lan: dreq
             lan: dreq
             after 4ms
             wan: ack 100 msn=1
             > wan dreq
             wan: drep
             > lan drep");
        assert_eq!(script.accel.counters().dreqs_held, 1);
        assert_eq!(script.accel.flows().count(), 0);
        script.go_on("wan: drep\n > lan drep");
    }

    #[test]
    fn passes_at_once_when_nothing_is_stored() {
        run("connect psn=100\n lan: dreq\n > wan dreq\n wan: drep\n > lan drep");
    }

    #[test]
    fn waits_while_deliveries_go_on() {
        let wait = Config { dreq_hold_max: Duration::from_ms(50), ..config() };
        run_with(
            wait,
            "connect psn=100
             lan: write_only 100 A
             > wan write_only 100 A
             > lan ack 100 msn=1
             lan: write_only 101 A
             > wan write_only 101 A
             > lan ack 101 msn=2
             lan: dreq
             after 40ms
             wan: ack 100 msn=1
             after 50ms
             wan: ack 101 msn=2
             > wan dreq",
        );
    }

    #[test]
    fn is_let_go_after_a_bounded_wait() {
        let wait = Config { dreq_hold_max: Duration::from_ms(50), ..config() };
        run_with(
            wait,
            "connect psn=100
             lan: write_only 100 A
             > wan write_only 100 A
             > lan ack 100 msn=1
             lan: dreq
             after 60ms
             > wan dreq",
        );
    }

    const SHORT: Duration = Duration::from_ms(50);

    /// A script whose flow departed with an undelivered packet, and whose requester asks for the
    /// next connection.
    fn departed() -> Script {
        let wait = Config { dreq_hold_max: SHORT, ..config() };
        let mut script = run_with(
            wait,
            "connect psn=100
             lan: write_only 100 A
             > wan write_only 100 A
             > lan ack 100 msn=1
             lan: dreq",
        );
        let next = Wire { requester_qpn: script.wire.requester_qpn + 1, ..Wire::default() };
        script.passes(LAN, &next.requester_frame("req id=3 psn=700"));
        script
    }

    /// The REP of the next connection, which has QPs of its own.
    fn next_rep(script: &mut Script) {
        let next = Wire { responder_qpn: script.wire.responder_qpn + 1, ..Wire::default() };
        script.inject(WAN, &next.responder_frame("rep id=3 rid=4 psn=700"));
    }

    #[test]
    fn the_next_connection_waits_and_what_is_owed_is_sent_again() {
        let mut script = departed();
        next_rep(&mut script);
        script.go_on("> wan write_only 100 A\n wan: ack 100 msn=1\n > wan dreq\n > lan rep");
        assert_eq!(script.accel.counters().reps_held, 1);
        assert_eq!(script.accel.counters().stored_lost, 0);
    }

    #[test]
    fn a_repeated_rep_does_not_prolong_the_wait() {
        let mut script = departed();
        next_rep(&mut script);
        script.go_on("> wan write_only 100 A\n after 40ms");
        next_rep(&mut script);
        script.go_on("after 11ms\n > wan dreq\n > lan rep\n > lan rep");
        assert_eq!(script.accel.counters().stored_lost, 1);
    }
}

/// Rule 11: conditions that reset a flow.
mod reset {
    use super::*;

    /// The QP is reset while it is learnt, and again behind the packets stored since.
    #[test]
    fn what_comes_from_before_a_life_that_was_learnt_late_is_another_one() {
        let mut script = run("lan: write_only 500 A
             > wan write_only 500 A
             lan: write_only 5000500 A
             > wan write_only 5000500 A
             wan: ack 5000500 msn=1
             > lan ack 5000500 msn=1
             lan: write_only 5000501 A
             > wan write_only 5000501 A
             wan: ack 5000501 msn=2
             > lan ack 5000501 msn=2
             lan: write_only 5000502 A
             > wan write_only 5000502 A
             > lan ack 5000502 msn=3");
        script.go_on(
            "lan: write_only 5000100 A
             > wan write_only 5000100 A
             lan: write_only 5000101 A
             > wan write_only 5000101 A",
        );
        assert_eq!(script.accel.counters().other_lives, 1);
    }

    #[test]
    fn a_new_connection_of_the_same_qps_starts_afresh() {
        let mut script = run("connect psn=100
             lan: write_only 100 A
             > wan write_only 100 A
             > lan ack 100 msn=1");
        script.go_on(
            "connect psn=7000 id=5 rid=6
             lan: write_only 7000 A
             > wan write_only 7000 A
             > lan ack 7000 msn=1",
        );
        assert_eq!(script.accel.counters().flows_reset, 1);
        assert_eq!(script.accel.flows().count(), 1);
    }

    #[test]
    fn another_request_under_a_stored_number_is_not_taken_for_a_repetition() {
        let script = run("connect psn=100
             lan: write_only 100 A
             > wan write_only 100 A
             > lan ack 100 msn=1
             lan: write_only 101 A
             > wan write_only 101 A
             > lan ack 101 msn=2
             lan: send_only 100 A
             > wan send_only 100 A");
        let counters = script.accel.counters();
        assert_eq!((counters.other_lives, counters.duplicate_request), (1, 0));
    }

    #[test]
    fn a_repeated_reply_of_the_connection_manager_does_not() {
        run("connect psn=100
             lan: write_only 100 A
             > wan write_only 100 A
             > lan ack 100 msn=1
             wan: rep psn=100
             > lan rep
             lan: write_only 101 A
             > wan write_only 101 A
             > lan ack 101 msn=2");
    }

    /// Data is stored for a QP that is reset: both ends reconnect, without the CM, at another PSN.
    const RESET: &str = "connect psn=100
         lan: write_only 100 A
         > wan write_only 100 A
         > lan ack 100 msn=1";

    #[test]
    fn another_life_of_both_qps_passes_at_once_and_ends_the_one_before_when_the_responder_is_in_it()
    {
        for psn in [8_000_000, 30_000, 16_000_000] {
            let mut script = run(RESET);
            script.go_on(&format!(
                "lan: write_only {psn} A
                 > wan write_only {psn} A
                 lan: write_only {second} A
                 > wan write_only {second} A
                 wan: ack {psn} msn=1
                 > lan ack {psn} msn=1",
                second = psn + 1
            ));
            assert_eq!(script.accel.counters().stored_lost, 0, "one ACK may be for another flow");
            script.go_on(&format!(
                "wan: ack {second} msn=2
                 > lan ack {second} msn=2
                 lan: write_only {third} A
                 > wan write_only {third} A
                 > lan ack {third} msn=3",
                second = psn + 1,
                third = psn + 2
            ));
            assert_eq!(script.accel.counters().stored_lost, 1);
            assert_eq!(script.accel.flows().count(), 1);
        }
    }

    #[test]
    fn a_stray_packet_changes_nothing() {
        let mut script = run(RESET);
        script.go_on(
            "lan: write_only 8000000 A      # anybody can send this
             > wan write_only 8000000 A
             lan: write_only 101 A
             > wan write_only 101 A
             > lan ack 101 msn=2
             wan: ack 101 msn=2",
        );
        assert_eq!(script.accel.flows().count(), 1);
        assert_eq!(script.status().state, FlowState::Terminated);
        assert_eq!(script.accel.counters().stored_lost, 0);
    }

    #[test]
    fn another_life_that_begins_where_the_one_before_might_go_on_passes_when_it_insists() {
        let mut script = run(RESET);
        script.go_on(
            "lan: write_only 300 A
             > lan nak 101 sequence msn=1   # of which it knows nothing
             after 3ms
             lan: write_only 300 A
             > lan nak 101 sequence msn=1
             after 3ms
             lan: write_only 300 A
             > lan nak 101 sequence msn=1
             after 3ms
             lan: write_only 300 A
             > wan write_only 300 A
             wan: ack 300 msn=1
             > lan ack 300 msn=1
             lan: write_only 301 A
             > wan write_only 301 A
             wan: ack 301 msn=2
             > lan ack 301 msn=2",
        );
        assert_eq!(script.status().state, FlowState::Terminated);
        assert_eq!(script.accel.counters().stored_lost, 1);
    }

    #[test]
    fn one_that_begins_behind_what_is_stored_passes_when_it_insists() {
        let mut script = run(RESET);
        script.go_on(
            "wan: ack 100 msn=1\n lan: write_only 101 A\n > wan write_only 101 A\n \
             > lan ack 101 msn=2",
        );
        for _ in 0..3 {
            script.go_on("lan: write_only 100 A\n > lan ack 101 msn=2");
            script.now += Duration::from_ms(1);
        }
        script.go_on("lan: write_only 100 A\n > wan write_only 100 A");
        assert_eq!(script.accel.counters().other_lives, 1);
    }

    #[test]
    fn one_that_begins_before_the_first_packet_of_the_life_before_passes_at_once() {
        let mut script = run(RESET);
        script.go_on(
            "lan: write_only 90 A\n > wan write_only 90 A\n wan: ack 90 msn=1\n > lan ack 90 msn=1",
        );
        assert_eq!(script.accel.counters().other_lives, 1);
    }

    #[test]
    fn a_requester_that_was_acknowledged_nothing_goes_back_as_far_as_it_likes() {
        let silent = Config { ack_every: 8, ..config() };
        let mut script =
            run_with(silent, "connect psn=100\n lan: write_only 100\n > wan write_only 100");
        script.go_on("lan: write_only 90 A\n > lan ack 100 msn=1");
        assert_eq!(script.accel.counters().other_lives, 0);
    }

    /// Responses of a READ whose first transmission was lost, behind the ACK of a later request.
    #[test]
    fn responses_of_a_read_count_whatever_life_goes_on_beside_it() {
        let mut script = run("connect psn=100 mtu=1024
             lan: write_only 100 A
             > wan write_only 100 A
             > lan ack 100 msn=1
             lan: read 101 dma=2048 A
             > wan read 101 A dma=2048
             lan: write_only 103 A
             > wan write_only 103 A
             wan: ack 103 msn=3");
        for psn in 90..=103 {
            script.go_on(&format!("lan: write_only {psn} A\n > wan write_only {psn} A"));
        }
        assert_eq!(script.accel.counters().other_lives, 1);
        script.go_on(
            "wan: read_first 101 msn=2
             > lan read_first 101 msn=2
             wan: read_last 102 msn=2
             > lan read_last 102 msn=2",
        );
        let reads: Vec<_> = script.accel.flows().map(|flow| flow.outstanding_reads).collect();
        assert_eq!(reads, [0], "the life before has ended");
    }

    #[test]
    fn another_source_port_tells_lives_apart() {
        let mut script = run(RESET);
        script.wire.requester.udp_source_port += 1;
        script.go_on("lan: write_only 300 A\n > wan write_only 300 A");
        assert_eq!(script.accel.counters().other_lives, 1);
    }

    #[test]
    fn a_failed_flow_lets_another_life_pass_at_once() {
        let failed = "connect psn=100
             lan: write_only 100 A
             > wan write_only 100 A
             > lan ack 100 msn=1
             wan: nak 100 access msn=0
             lan: write_only 101 A
             > lan nak 101 operational msn=1";
        let mut script = run(failed);
        script.go_on("lan: write_only 30000 A\n > wan write_only 30000 A");
        let mut script = run(failed);
        script.wire.requester.udp_source_port += 1;
        script.go_on("lan: write_only 102 A\n > wan write_only 102 A");
        // A requester that got the NAK, and repeats the packet all the same, never knew the flow.
        let mut script = run(failed);
        script.now += Duration::from_ms(1);
        script.go_on("lan: write_only 101 A\n > lan nak 101 operational msn=1");
        script.now += Duration::from_ms(1);
        script.go_on("lan: write_only 101 A\n > wan write_only 101 A");
    }

    #[test]
    fn a_first_request_with_another_psn_than_the_cm_said_is_learnt_from_traffic() {
        let script = run("connect psn=100\n lan: write_only 9000 A\n > wan write_only 9000 A");
        assert_eq!(script.status().state, FlowState::Learning);
        let script = run("connect psn=100
             lan: write_only 300 A
             > lan nak 100 sequence msn=0
             after 60ms
             lan: write_only 300 A         # it does not know 100
             > wan write_only 300 A");
        assert_eq!(script.status().state, FlowState::Learning);
    }
}

/// Rule 12: behaviour of a full store.
mod back_pressure {
    use super::*;

    fn small() -> Config {
        Config { flow_bytes_max: 64 << 10, total_bytes_max: 64 << 10, flow_psns_max: 8, ..config() }
    }

    #[test]
    fn beyond_the_limit_packets_are_dropped_and_one_nak_brings_the_requester_back() {
        let mut script = run_with(small(), "connect psn=100");
        for psn in 100..108 {
            script.go_on(&format!(
                "lan: write_only {psn} A\n > wan write_only {psn} A\n > lan ack {psn} msn={}",
                psn - 99
            ));
        }
        script.go_on(
            "lan: write_only 108 A
             lan: write_only 109 A
             wan: ack 100 msn=1             # room for one: not worth a NAK
             wan: ack 103 msn=4
             > lan nak 108 sequence msn=8
             lan: write_only 108 A
             > wan write_only 108 A
             > lan ack 108 msn=9",
        );
        assert_eq!(script.accel.counters().drops.get(DropReason::StoreFull), 2);
    }

    #[test]
    fn above_the_watermark_acks_follow_the_responder() {
        // 4 KiB packets use a little more than 4 KiB: the watermark is 48 KiB of payload.
        let rto_min = Duration::from_ms(50);
        let roomy = Config { flow_psns_max: 1000, total_bytes_max: 1 << 20, rto_min, ..small() };
        let mut script = run_with(roomy, "connect psn=100 mtu=4096");
        for psn in 100..111 {
            let text = format!(
                "lan: write_only {psn} A len=4096\n > wan write_only {psn} A len=4096\n \
                 > lan ack {psn} msn={}",
                psn - 99
            );
            script.go_on(&text);
        }
        script.go_on(
            "lan: write_only 111 A len=4096
             > wan write_only 111 A len=4096
             lan: write_only 112 A len=4096
             > wan write_only 112 A len=4096
             wan: ack 100 msn=1
             > lan ack 111 msn=12",
        );
        assert!(script.status().back_pressure);
        script.go_on("after 10ms\n > lan ack 112 msn=13   # stored, and not to be held for longer");
    }

    #[test]
    fn memory_stays_within_its_limit() {
        let mut script =
            run_with(Config { flow_psns_max: 100_000, ..small() }, "connect psn=100 mtu=4096");
        for psn in 100..400 {
            let bytes = script.wire.requester_frame(&format!("write_only {psn} A len=4096"));
            script::deliver(&mut script.accel, script.now, LAN, &bytes);
            assert!(script.accel.stored_bytes() <= 64 << 10);
        }
        assert!(script.accel.counters().drops.get(DropReason::StoreFull) > 250);
    }

    #[test]
    fn congestion_marks_and_cnps_pass() {
        run("connect psn=100\n lan: write_only 100 fecn\n > wan write_only 100");
    }
}

/// Rule 14: traffic pairs the directions only when it is unambiguous.
mod pairing {
    use super::*;

    /// Two flows between the same hosts whose outstanding ranges overlap.
    fn two_flows() -> Script {
        let mut script = run("lan: write_only 500 A\n > wan write_only 500 A");
        script.wire.responder_qpn = 0x33;
        script.go_on("lan: write_only 500 A\n > wan write_only 500 A");
        script.go_on("lan: write_only 501 A\n > wan write_only 501 A");
        script
    }

    /// A flow whose requester has gone back to 100 and is known; the responder has everything up to
    /// 104.
    fn went_back() -> Script {
        run("lan: read 100 dma=64 A
             > wan read 100 A dma=64
             lan: send_only 101 A
             > wan send_only 101 A
             lan: send_only 102 A
             > wan send_only 102 A
             lan: send_only 103 A
             > wan send_only 103 A
             lan: read 104 dma=64 A
             > wan read 104 A dma=64
             wan: read_only 100 msn=1      # lost on the LAN; the requester goes back
             > lan read_only 100 msn=1
             lan: read 100 dma=64 A
             > wan read 100 A dma=64
             lan: send_only 101 A
             > wan send_only 101 A
             lan: send_only 102 A          # lost from here on
             > wan send_only 102 A
             wan: ack 101 msn=2
             > lan ack 101 msn=2
             wan: ack 102 msn=3
             > lan ack 102 msn=3
             wan: ack 103 msn=4
             > lan ack 103 msn=4
             wan: read_only 104 msn=5      # it has everything by now
             > lan read_only 104 msn=5")
    }

    #[test]
    fn waits_until_a_requester_that_went_back_is_as_far_again() {
        let mut script = went_back();
        script.go_on(
            "lan: send_only 105 A
             > wan send_only 105 A
             lan: send_only 106 A
             > wan send_only 106 A",
        );
        assert_eq!(script.status().state, FlowState::Learning);
        script.go_on(
            "wan: ack 105 msn=6
             > lan ack 105 msn=6
             > lan ack 106 msn=7",
        );
        assert_eq!(script.status().state, FlowState::Terminated);
    }

    #[test]
    fn an_ambiguous_ack_pairs_nothing() {
        let mut script = two_flows();
        script.go_on("wan: ack 500 msn=1\n > lan ack 500 msn=1");
        assert_eq!(script.accel.counters().pairing_ambiguous, 1);
    }

    #[test]
    fn the_count_of_messages_since_the_connection_began_decides() {
        let mut script = run("lan: write_only 499 A
             > wan write_only 499 A
             lan: write_only 500 A
             > wan write_only 500 A
             lan: write_only 501 A
             > wan write_only 501 A");
        script.wire.responder_qpn = 0x33;
        script.go_on(
            "lan: write_only 500 A
             > wan write_only 500 A
             lan: write_only 501 A
             > wan write_only 501 A
             wan: ack 500 msn=1             # the other requester has sent two messages by then
             > lan ack 500 msn=1
             wan: ack 501 msn=2
             > lan ack 501 msn=2
             lan: write_only 502 A
             > wan write_only 502 A
             > lan ack 502 msn=3",
        );
        let terminated = script.accel.flows().find(|f| f.state == FlowState::Terminated).unwrap();
        assert_eq!(terminated.key.responder_qpn, Qpn::new(0x33));
    }

    /// Learns a flow to `responder_qpn` that begins at PSN `at` from its traffic.
    fn learn(script: &mut Script, responder_qpn: u32, at: u32) {
        script.wire.responder_qpn = responder_qpn;
        let [first, second, third] = [at, at + 1, at + 2];
        script.go_on(&format!(
            "lan: write_only {first} A
             > wan write_only {first} A
             lan: write_only {second} A
             > wan write_only {second} A
             wan: ack {first} msn=1
             > lan ack {first} msn=1
             wan: ack {second} msn=2
             > lan ack {second} msn=2
             lan: write_only {third} A
             > wan write_only {third} A
             > lan ack {third} msn=3
             wan: ack {third} msn=3"
        ));
    }

    #[test]
    fn a_requesters_qpn_that_lives_again_is_not_taken_for_that_of_its_last_flow() {
        let mut script = run("");
        learn(&mut script, 0x22, 500);
        learn(&mut script, 0x33, 90_000);
        learn(&mut script, 0x44, 80_000);
        assert_eq!(script.accel.counters().flows_from_traffic, 3);
    }

    #[test]
    fn packets_that_belong_to_nobody_are_not_in_the_way() {
        let mut script = run("");
        for stray in 0..100 {
            script.wire.responder_qpn = 0x1000 + stray;
            script.go_on(&format!("lan: write_only {stray} A\n > wan write_only {stray} A"));
        }
        learn(&mut script, 0x33, 90_000);
        assert_eq!(script.accel.counters().flows_from_traffic, 1);
    }

    /// Like NCCL, MPI and perftest: out of band, each QP with its own PSNs, all at once.
    #[test]
    fn two_thousand_flows_at_once_are_learnt_and_each_is_answered_as_itself() {
        const FLOWS: u32 = 2000;
        let mut script = run("");
        let start = |flow: u32| flow.wrapping_mul(0x9e37_79b1) & 0xff_ffff;
        for packet in 0..8 {
            for flow in 0..FLOWS {
                script.wire.responder_qpn = 0x4000 + flow;
                let psn = (start(flow) + packet) & 0xff_ffff;
                let bytes = script.wire.requester_frame(&format!("write_only {psn} A"));
                script::deliver(&mut script.accel, script.now, LAN, &bytes);
            }
        }
        for packet in 0..4 {
            for flow in 0..FLOWS {
                script.now += Duration::from_us(100);
                script.wire.requester_qpn = 0x8000 + flow;
                let psn = (start(flow) + packet) & 0xff_ffff;
                let bytes = script.wire.responder_frame(&format!("ack {psn} msn={}", packet + 1));
                script::deliver(&mut script.accel, script.now, WAN, &bytes);
            }
        }
        let paired = |flow: &longhaul_accel::FlowStatus| {
            let number = flow.key.responder_qpn.get() - 0x4000;
            flow.requester_qpn.is_none_or(|qpn| qpn.get() == 0x8000 + number)
        };
        assert!(
            script.accel.flows().all(|flow| paired(&flow)),
            "a flow has another one's requester"
        );
        let learnt = script.accel.counters().flows_from_traffic;
        assert!(learnt > u64::from(FLOWS) * 99 / 100, "{learnt} of {FLOWS} flows");
    }

    /// A NAK carries the missing PSN, which may lie within a message, where message counts agree.
    #[test]
    fn a_nak_is_no_reason_to_take_a_flow_over() {
        let mut script = went_back();
        script.go_on(
            "lan: write_first 105
             > wan write_first 105
             lan: write_middle 106
             > wan write_middle 106
             wan: nak 105 sequence msn=5
             > lan nak 105 sequence msn=5",
        );
        assert_eq!(script.status().state, FlowState::Learning);
    }

    /// A flow that is being learnt does not own an ACK to an unfollowed requester merely because of
    /// its PSNs.
    #[test]
    fn an_ack_that_a_flow_no_longer_remembers_is_nobodys() {
        let mut script = run("");
        for psn in [500, 501, 900] {
            script.go_on(&format!("lan: write_only {psn} A\n > wan write_only {psn} A"));
        }
        script.wire.responder_qpn = 0x33;
        for psn in [500, 501] {
            script.go_on(&format!("lan: write_only {psn} A\n > wan write_only {psn} A"));
        }
        script.go_on(
            "wan: ack 500 msn=7\n > lan ack 500 msn=7\n wan: ack 501 msn=8\n > lan ack 501 msn=8",
        );
        assert_eq!(script.accel.counters().flows_from_traffic, 0);
        assert_eq!(script.accel.counters().pairing_ambiguous, 2);
    }

    #[test]
    fn what_cannot_be_learnt_passes_for_good() {
        let mut script = run("");
        for psn in 0..1200 {
            script.go_on(&format!("lan: write_only {psn} A\n > wan write_only {psn} A"));
            script.now += Duration::from_ms(10);
        }
        let flow = script.status();
        assert_eq!(
            (flow.state, flow.pass_reason),
            (FlowState::Passing, Some(PassReason::NotLearnt))
        );
        assert_eq!(flow.stored_bytes, 0);
        script.go_on(
            "wan: ack 1199 msn=1\n > lan ack 1199 msn=1\n lan: write_only 1200 A\n \
             > wan write_only 1200 A",
        );
    }
}

/// Rule 15: frames of the hosts are not changed.
mod untouched {
    use super::*;

    #[test]
    fn a_stored_request_leaves_byte_for_byte() {
        let mut script = run("connect psn=100");
        let bytes = script.wire.requester_frame("send_only 100 A len=333");
        script.inject(LAN, &bytes);
        assert!(script.last.contains(&(WAN, bytes)));
        script.go_on("> wan send_only 100 A len=333\n > lan ack 100 msn=1");
    }

    #[test]
    fn whatever_is_not_understood_passes_both_ways() {
        let mut script = run("");
        let path = PathTemplate::new(&script.wire.requester);
        let mut strange = vec![
            b"\x02\0\0\0\0\x01\x02\0\0\0\0\x02\x08\x06 an ARP request, say".to_vec(),
            vec![1, 2, 3],
        ];
        for opcode in [0x24_u8, 0x64, 0x81, 0x1f, 0xa4, 0xff] {
            let bth =
                longhaul_wire::Bth::new(Opcode(opcode), Qpn::new(5), longhaul_units::Psn::new(1));
            let mut head = Head::begin(&path, &bth);
            if Opcode(opcode).has_deth() {
                head.push_deth(&longhaul_wire::Deth {
                    qkey: 1,
                    reserved_8: 0,
                    source_qp: Qpn::new(9),
                });
            }
            strange.push(frames::seal(head, &path, &[7; 32]));
        }
        let mut cut = script.wire.requester_frame("write_only 100 A");
        cut.truncate(60);
        strange.push(cut);
        for bytes in strange {
            for side in [LAN, WAN] {
                script::deliver(&mut script.accel, script.now, side, &bytes);
                let mut sink = script::Sink::default();
                script.accel.poll_transmit(script.now, &mut sink);
                assert_eq!(sink.out, [(1 - side, bytes.clone())]);
            }
        }
        assert_eq!(script.accel.flows().count(), 0);
        assert_eq!(script.accel.counters().malformed, 2);
    }

    #[test]
    fn requests_from_the_wan_and_their_answers_pass() {
        let script = run("connect psn=100
             wan: write_only 9000 A
             > lan write_only 9000 A
             lan: ack 9000 msn=1
             > wan ack 9000 msn=1
             wan: read 9001 dma=64 A
             > lan read 9001 A dma=64
             lan: read_only 9001 msn=2
             > wan read_only 9001 msn=2");
        assert_eq!(script.accel.counters().stored_packets, 0);
    }
}

/// A requester at either end of the connection is served.
mod both_directions {
    use super::*;

    #[test]
    fn a_connection_asked_for_by_the_far_side_is_learnt_too() {
        let mut script = run("");
        // Swap the roles: the REQ comes from the WAN, the REP from the LAN.
        // In the REQ the sender's QPN is the far one.
        let swap = |script: &mut Script| {
            std::mem::swap(&mut script.wire.requester_qpn, &mut script.wire.responder_qpn);
        };
        swap(&mut script);
        // It tells the near side the first PSN.
        let req = script.wire.responder_frame("req rpsn=100");
        let rep = script.wire.requester_frame("rep psn=9000");
        swap(&mut script);
        script.inject(WAN, &req);
        script.go_on("> lan req");
        script.inject(LAN, &rep);
        script.go_on(
            "> wan rep
             lan: write_only 100 A
             > wan write_only 100 A
             > lan ack 100 msn=1",
        );
        assert_eq!(script.status().learnt, Learnt::ConnectionManager);
    }
}

/// The WAN's rate limit holds.
mod pacing {
    use super::*;

    #[test]
    fn stored_packets_leave_at_the_wan_rate() {
        let slow =
            Config { wan_pacing: BitRate::from_gbps(1).into(), burst_bytes: 10_000, ..config() };
        let mut script = run_with(slow, "connect psn=100 mtu=4096");
        for psn in 100..110 {
            let bytes = script.wire.requester_frame(&format!("write_only {psn} A len=4096"));
            script::deliver(&mut script.accel, script.now, LAN, &bytes);
        }
        let start = script.now;
        let mut sent = 0;
        for _ in 0..100 {
            let mut sink = script::Sink::default();
            script.accel.poll_transmit(script.now, &mut sink);
            sent += sink.out.iter().filter(|(side, _)| *side == WAN).count();
            if sent == 10 {
                break;
            }
            script.now = script.accel.poll_timeout().expect("pacing").at;
            script.accel.handle_timeout(script.now);
        }
        assert_eq!(sent, 10);
        // Ten packets of 4096 + 74 + 24 bytes at 1 Gbit/s take 336 µs, less the burst.
        let took = script.now.since(start).as_ns();
        assert!((255_000..270_000).contains(&took), "{took} ns");
    }
}

/// Limits of the tables.
mod bounded {
    use super::*;

    #[test]
    fn the_least_recently_used_flow_makes_room() {
        let few = Config { flows_max: 3, ..config() };
        let mut script = run_with(few, "");
        for qpn in 0x40..0x50 {
            script.wire.responder_qpn = qpn;
            script.go_on("lan: write_only 500 A\n > wan write_only 500 A");
        }
        assert_eq!(script.accel.flows().count(), 3);
        assert_eq!(script.accel.counters().flows_evicted, 13);
    }

    #[test]
    fn a_flow_with_stored_data_is_not_evicted() {
        let one = Config { flows_max: 1, ..config() };
        let mut script = run_with(
            one,
            "connect psn=100
             lan: write_only 100 A
             > wan write_only 100 A
             > lan ack 100 msn=1",
        );
        script.wire.responder_qpn = 0x99;
        script.go_on("lan: write_only 500 A\n > wan write_only 500 A");
        assert_eq!(script.status().key.responder_qpn, Qpn::new(frames::RESPONDER_QPN));
        assert_eq!(script.accel.counters().flow_table_full, 1);
    }
}

/// Rule 15: nobody waits forever.
mod patience {
    use super::*;

    #[test]
    fn acks_are_not_withheld_from_a_requester_that_has_its_read_and_goes_back_behind_it() {
        run("connect psn=100 mtu=1024
             lan: read 100 A dma=64
             > wan read 100 A dma=64
             wan: read_only 100 msn=1
             > lan read_only 100 msn=1
             lan: send_only 101 A
             > wan send_only 101 A
             > lan ack 101 msn=2
             lan: read 100 A dma=64
             > wan read 100 A dma=64
             lan: send_only 101 A           # its ACK would pass the READ's answer
             lan: send_only 101 A           # gone back again, and not for the READ
             > lan ack 101 msn=2");
    }

    #[test]
    fn a_responder_far_behind_costs_a_little_at_a_time() {
        let config = Config {
            flow_bytes_max: 1 << 20,
            ack_window_bytes: 64 << 10,
            wan_pacing: Pacing::Unlimited,
            rto_min: Duration::from_ms(500),
            rto_initial: Duration::from_ms(500),
            ..config()
        };
        let mut script = run_with(config, "connect psn=100 mtu=4096");
        for psn in 100..200 {
            let bytes = script.wire.requester_frame(&format!("write_only {psn} A len=4096"));
            script::deliver(&mut script.accel, script.now, LAN, &bytes);
        }
        let acked = |script: &Script| script.status().unacknowledged_psn.get() - 100;
        script.accel.poll_transmit(script.now, &mut script::Sink::default());
        let at_first = acked(&script);
        assert!((14..=16).contains(&at_first), "{at_first} packets are 64 KiB");
        for _ in 0..2 {
            let before = acked(&script);
            script.now += Duration::from_ms(10);
            script.accel.handle_timeout(script.now);
            script.accel.poll_transmit(script.now, &mut script::Sink::default());
            let more = acked(&script) - before;
            assert!((14..=16).contains(&more), "{more} more after 10 ms");
        }
    }

    #[test]
    fn small_deliveries_do_not_postpone_the_next_ack() {
        let config = Config {
            flow_bytes_max: 16 << 20,
            ack_first_bytes: 1 << 20,
            rto_min: Duration::from_ms(500),
            rto_initial: Duration::from_ms(500),
            ..config()
        };
        let mut script = run_with(config, "connect psn=100 mtu=4096");
        for psn in 100..1000 {
            let bytes = script.wire.requester_frame(&format!("write_only {psn} A len=4096"));
            script::deliver(&mut script.accel, script.now, LAN, &bytes);
        }
        let mut acked = Vec::new();
        for delivered in 100..150 {
            script.accel.poll_transmit(script.now, &mut script::Sink::default());
            acked.push(script.status().unacknowledged_psn.get());
            script.now += Duration::from_ms(4);
            script.accel.handle_timeout(script.now);
            let ack =
                script.wire.responder_frame(&format!("ack {delivered} msn={}", delivered - 99));
            script::deliver(&mut script.accel, script.now, WAN, &ack);
        }
        // One packet per 4 ms is less than the smallest allowance: the requester depends on the
        // packets that are acknowledged every 10 ms.
        let longest = acked.chunk_by(|one, next| one == next).map(<[_]>::len).max();
        assert!(longest <= Some(4), "no ACK in {longest:?} times 4 ms: {acked:?}");
    }

    #[test]
    fn flows_share_a_paced_wan_by_turns() {
        let rate = BitRate::from_gbps(1).unwrap();
        let mut script = run_with(
            Config { wan_pacing: Pacing::Own(rate), burst_bytes: 10_000, ..config() },
            "connect psn=100 mtu=1024",
        );
        let second =
            frames::Wire { requester_qpn: 0x44, responder_qpn: 0x45, ..frames::Wire::default() };
        let first = std::mem::replace(&mut script.wire, second);
        for (side, line) in
            [(LAN, "req psn=100 mtu=1024"), (WAN, "rep psn=100 mtu=1024"), (LAN, "rtu")]
        {
            let wire = &script.wire;
            let bytes =
                if side == LAN { wire.requester_frame(line) } else { wire.responder_frame(line) };
            script::deliver(&mut script.accel, script.now, side, &bytes);
        }
        for wire in [
            first,
            frames::Wire { requester_qpn: 0x44, responder_qpn: 0x45, ..frames::Wire::default() },
        ] {
            for psn in 100..300 {
                let bytes = wire.requester_frame(&format!("write_only {psn} A len=1024"));
                script::deliver(&mut script.accel, script.now, LAN, &bytes);
            }
        }
        let mut sent = [0_u32; 2];
        while sent[0] + sent[1] < 128 {
            let mut sink = script::Sink::default();
            script.accel.poll_transmit(script.now, &mut sink);
            for (_, bytes) in
                sink.out.iter().filter(|(side, bytes)| *side == WAN && bytes.len() > 1024)
            {
                let head = Head::copy_of(bytes);
                let frame = Frame::received(&head, bytes).unwrap();
                let packet = Packet::parse(frame.head).unwrap().unwrap();
                sent[usize::from(packet.dest_qp() == Qpn::new(0x45))] += 1;
            }
            script.now = script.accel.poll_timeout().expect("more to send").at.max(script.now);
            script.accel.handle_timeout(script.now);
        }
        assert!(sent[0].abs_diff(sent[1]) <= 32, "{sent:?}");
    }
}

/// Tags before the IP header.
mod tags {
    use super::*;

    fn in_vlan(script: &mut Script, vlan: u16) {
        script.wire.requester.vlan = Some(vlan);
        script.wire.responder.vlan = Some(vlan);
    }

    #[test]
    fn the_same_addresses_and_numbers_in_two_vlans_are_two_flows() {
        let mut script = run("");
        in_vlan(&mut script, 5);
        script.go_on(
            "connect psn=100\n lan: write_only 100 A\n > wan write_only 100 A\n \
                    > lan ack 100 msn=1",
        );
        in_vlan(&mut script, 6);
        script.go_on(
            "lan: write_only 700 A\n > wan write_only 700 A\n wan: ack 700 msn=9\n \
             > lan ack 700 msn=9",
        );
        in_vlan(&mut script, 5);
        script.go_on(
            "lan: write_only 101 A\n > wan write_only 101 A\n > lan ack 101 msn=2\n \
             wan: ack 101 msn=2",
        );
        assert_eq!(script.accel.counters().flows_reset, 0);
        let mut vlans: Vec<u16> = script.accel.flows().map(|flow| flow.key.vlan).collect();
        vlans.sort_unstable();
        assert_eq!(vlans, [5, 6]);
    }

    #[test]
    fn priority_is_no_part_of_a_vlan() {
        let mut script = run("");
        in_vlan(&mut script, 3 << 13 | 5);
        script.wire.responder.vlan = Some(5);
        script.go_on(
            "connect psn=100\n lan: write_only 100 A\n > wan write_only 100 A\n \
                    > lan ack 100 msn=1",
        );
    }

    #[test]
    fn packets_behind_two_tags_or_another_type_of_tag_pass_untouched() {
        let mut script = run("connect psn=100");
        let plain = script.wire.requester_frame("write_only 100 A");
        for tags in [&[0x88, 0xa8, 0, 5, 0x81, 0, 0, 6][..], &[0x88, 0xa8, 0, 5]] {
            let tagged = [&plain[..12], tags, &plain[12..]].concat();
            script.inject(LAN, &tagged);
            script.go_on("> wan write_only 100 A");
            assert_eq!(script.last.last(), Some(&(WAN, tagged)));
        }
        assert_eq!(script.accel.counters().stored_packets, 0);
        script.go_on("lan: write_only 100 A\n > wan write_only 100 A\n > lan ack 100 msn=1");
    }
}

/// Rule 17: packets acknowledged by a box that has ended are not waited for in vain.
mod lost_promises {
    use super::*;

    /// A flow whose requester was acknowledged everything before 500, and whose responder lacks
    /// 480.
    fn after_a_restart() -> Script {
        run("lan: write_only 500 A
             > wan write_only 500 A
             wan: nak 480 sequence msn=3
             > lan nak 480 sequence msn=3")
    }

    /// The question to the responder when 500 or 501 make no progress.
    fn question(psn: u32) -> String {
        format!("> wan write_middle {} A len=0", psn + (1 << 24) - (1 << 17))
    }

    /// The requester repeats `psn` `times` times, and each time the responder is asked.
    fn repeat_asked(script: &mut Script, psn: u32, times: usize) {
        for _ in 0..times {
            let asked = question(psn);
            script.go_on(&format!(
                "after 5ms\nlan: write_only {psn} A\n > wan write_only {psn} A\n {asked}"
            ));
        }
    }

    /// The requester repeats `psn` `times` times.
    fn repeat(script: &mut Script, psn: u32, times: usize) {
        for _ in 0..times {
            script.go_on(&format!("after 5ms\nlan: write_only {psn} A\n > wan write_only {psn} A"));
        }
    }

    #[test]
    fn a_requester_that_cannot_go_back_far_enough_is_told() {
        let mut script = after_a_restart();
        repeat(&mut script, 500, 3);
        script.go_on(
            "after 5ms
             lan: write_only 500 A
             > wan write_only 500 A
             > lan nak 500 operational msn=3
             lan: write_only 501 A
             > lan nak 500 operational msn=3",
        );
        let counters = script.accel.counters();
        assert_eq!((counters.flows_failed, counters.fatal_naks), (1, 2));
    }

    #[test]
    fn one_that_does_is_not() {
        let mut script = after_a_restart();
        repeat(&mut script, 500, 3);
        repeat(&mut script, 480, 1);
        repeat(&mut script, 500, 2);
        repeat_asked(&mut script, 500, 8);
        assert_eq!(script.accel.counters().flows_failed, 0);
    }

    #[test]
    fn what_the_lan_duplicates_is_no_repetition() {
        let mut script = after_a_restart();
        for _ in 0..20 {
            script.go_on("lan: write_only 500 A\n > wan write_only 500 A");
        }
        assert_eq!(script.accel.counters().flows_failed, 0);
    }

    #[test]
    fn what_follows_a_repetition_is_none_itself() {
        let mut script = run("lan: write_only 500 A
             > wan write_only 500 A
             lan: write_only 501 A
             > wan write_only 501 A
             lan: write_only 500 A
             > wan write_only 500 A
             wan: nak 480 sequence msn=3
             > lan nak 480 sequence msn=3");
        repeat(&mut script, 501, 1);
        // From here on the LAN loses 500.
        repeat(&mut script, 501, 3);
        assert_eq!(script.accel.counters().flows_failed, 0);
        repeat(&mut script, 500, 3);
        assert_eq!(script.accel.counters().flows_failed, 0);
        script.go_on(
            "after 5ms
             lan: write_only 500 A
             > wan write_only 500 A
             > lan nak 500 operational msn=3",
        );
    }

    #[test]
    fn what_was_sent_before_the_restart_is_acknowledged_to_its_requester() {
        let mut script = run("lan: write_only 500 A
             > wan write_only 500 A
             lan: write_only 501 A
             > wan write_only 501 A
             wan: ack 500 msn=3
             > lan ack 500 msn=3
             wan: ack 501 msn=4
             > lan ack 501 msn=4
             lan: write_only 502 A len=0    # gone back to; 503 and 504 were sent before the restart
             > wan write_only 502 A len=0
             wan: ack 504 msn=7
             > lan ack 504 msn=7");
        assert_eq!(script.status().state, FlowState::Terminated);
        script.go_on("lan: write_only 505 A\n > wan write_only 505 A");
        assert_eq!(script.status().state, FlowState::Learning);
        assert_eq!(script.accel.counters().stored_lost, 0);
    }

    #[test]
    fn an_ack_ahead_of_a_requester_that_leaves_nothing_out_releases_nothing() {
        let mut script = run("lan: write_only 500 A
             > wan write_only 500 A
             lan: write_only 501 A
             > wan write_only 501 A
             wan: ack 500 msn=3
             > lan ack 500 msn=3
             wan: ack 501 msn=4
             > lan ack 501 msn=4
             wan: ack 503 msn=6            # of another life of the QPs
             > lan ack 503 msn=6");
        for psn in 502..505 {
            script.go_on(&format!(
                "lan: write_only {psn} A\n > wan write_only {psn} A\n > lan ack {psn} msn={}",
                psn - 497
            ));
        }
        assert_eq!(script.status().stored_frames, 3);
    }

    #[test]
    fn progress_shows_that_nothing_is_lost() {
        let mut script = after_a_restart();
        repeat(&mut script, 500, 3);
        script.go_on("wan: ack 500 msn=4\n > lan ack 500 msn=4");
        repeat(&mut script, 501, 2);
        repeat_asked(&mut script, 501, 8);
        assert_eq!(script.accel.counters().flows_failed, 0);
    }

    #[test]
    fn a_nak_that_can_be_another_flows_says_nothing() {
        let mut script = run("lan: write_only 500 A\n > wan write_only 500 A");
        script.wire.responder_qpn = 0x33;
        script.go_on("lan: write_only 470 A\n > wan write_only 470 A");
        script.go_on("lan: write_only 471 A\n > wan write_only 471 A");
        script.wire.responder_qpn = 0x22;
        for times in 1..10 {
            script.go_on("wan: nak 471 sequence msn=3\n > lan nak 471 sequence msn=3");
            match times {
                1 => repeat(&mut script, 500, 1),
                _ => repeat_asked(&mut script, 500, 1),
            }
        }
        assert_eq!(script.accel.counters().flows_failed, 0);
    }
}

/// A responder's network is congested.
mod congestion {
    use super::*;

    const SLOWED: &str = "connect psn=100
        lan: write_only 100 A
        > wan write_only 100 A
        > lan ack 100 msn=1
        wan: cnp 0 len=16                # halves 100 Gbit/s, and nothing is saved up
        > lan cnp 0 len=16               # the requester hears of it too
        lan: write_only 101 A
        > lan ack 101 msn=2";

    #[test]
    fn slows_down_the_flow_and_is_passed_on() {
        let mut script = run(SLOWED);
        let deadline = script.accel.poll_timeout().unwrap();
        assert_eq!(deadline.reason, "rate that congestion leaves");
        assert_eq!(script.accel.counters().rp_cnp_handled, 1);
        script.go_on("after 20us\n > wan write_only 101 A\n wan: ack 101 msn=2");
    }

    #[test]
    fn of_another_queue_pair_or_damaged_changes_nothing() {
        let mut script = run("connect psn=100
            lan: write_only 100 A
            > wan write_only 100 A
            > lan ack 100 msn=1
            wan: cnp 0 len=16 damaged
            > lan cnp 0 len=16 damaged");
        script.wire.requester_qpn += 1;
        script.go_on("wan: cnp 0 len=16\n > lan cnp 0 len=16");
        assert_eq!(script.accel.counters().rp_cnp_handled, 0);
        script.go_on("lan: write_only 101 A\n > wan write_only 101 A\n > lan ack 101 msn=2");
    }

    #[test]
    fn is_only_passed_where_another_box_sends_to_the_responder() {
        let [near, _] = config().halves(Duration::from_ms(10));
        let script = run_with(
            near,
            &SLOWED.replace("> lan ack 101 msn=2", "> wan write_only 101 A\n > lan ack 101 msn=2"),
        );
        assert_eq!(script.accel.counters().rp_cnp_handled, 0);
    }
}

/// A requester's process ended with data stored, and its QPN is reused with another responder.
#[test]
fn what_is_stored_for_a_requester_whose_number_lives_again_is_delivered() {
    let mut script = run("connect psn=100
        lan: write_only 100 A
        > wan write_only 100 A
        > lan ack 100 msn=1");
    let old = script.wire.responder_qpn;
    script.wire.responder_qpn += 1;
    script.go_on(
        "lan: write_only 500000 A
        > wan write_only 500000 A
        wan: ack 500000 msn=7
        > lan ack 500000 msn=7           # passed: not what the old flow ever sent
        lan: write_only 500001 A
        > wan write_only 500001 A
        wan: ack 500001 msn=8
        > lan ack 500001 msn=8
        lan: write_only 500002 A
        > wan write_only 500002 A
        > lan ack 500002 msn=9
        wan: ack 500002 msn=9",
    );
    assert_eq!(script.accel.flows().count(), 2);
    script.wire.responder_qpn = old;
    script.go_on(
        "after 100ms
        > wan write_only 100 A
        wan: ack 100 msn=1",
    );
    assert_eq!(script.accel.flows().count(), 1);
    assert_eq!(script.accel.counters().stored_lost, 0);
}
