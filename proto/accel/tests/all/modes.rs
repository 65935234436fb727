//! Which packets boxes acknowledge in each mode; one module per mode.

use crate::script::{Script, config, run_with};
use longhaul_accel::{Config, FlowState, Mode, Policy, Prefix, Role, Rule};

/// DSCP of the scripts' requests.
const DSCP: u8 = 26;

fn in_mode(mode: Mode, role: Role) -> Config {
    Config { policy: Policy::all(mode), role, ..config() }
}

fn run(mode: Mode, role: Role, text: &str) -> Script {
    run_with(in_mode(mode, role), text)
}

const ACKNOWLEDGED: &str = "connect psn=100
     lan: write_only 100 A
     > wan write_only 100 A
     > lan ack 100 msn=1
     wan: ack 100 msn=1";

const PASSED: &str = "connect psn=100
     lan: write_only 100 A
     > wan write_only 100 A
     wan: ack 100 msn=1
     > lan ack 100 msn=1
     lan: send_only 101 A
     > wan send_only 101 A
     wan: rnr 101 timer=12 msn=1
     > lan rnr 101 msn=1
     lan: send_only 101 A
     > wan send_only 101 A
     wan: nak 101 invalid msn=1
     > lan nak 101 invalid msn=1
     after 2000ms";

#[test]
fn early_is_acknowledged_by_both_boxes_and_far_by_the_far_one_alone() {
    for (mode, role) in
        [(Mode::Early, Role::Near), (Mode::Early, Role::Far), (Mode::Far, Role::Far)]
    {
        let status = run(mode, role, ACKNOWLEDGED).status();
        assert_eq!((status.state, status.mode, status.role), (FlowState::Terminated, mode, role));
    }
    run(Mode::Far, Role::Near, PASSED);
}

/// Off in both boxes, far in the near one: everything passes, and the flow is reported.
mod passing {
    use super::*;

    #[test]
    fn nothing_is_answered_stored_or_sent_again() {
        for (mode, role) in
            [(Mode::Off, Role::Near), (Mode::Off, Role::Far), (Mode::Far, Role::Near)]
        {
            let script = run(mode, role, PASSED);
            let status = script.status();
            assert_eq!((status.state, status.mode), (FlowState::Passing, mode));
            assert_eq!((status.stored_frames, status.counters.passed_packets), (0, 3));
            assert_eq!((status.expected_psn.get(), status.undelivered_psn.get()), (102, 102));
            let counters = script.accel.counters();
            assert_eq!(
                (counters.pseudo_acks, counters.stored_packets, counters.acks_absorbed),
                (0, 0, 0)
            );
        }
    }

    #[test]
    fn a_flow_without_the_connection_manager_passes_too() {
        let script = run(
            Mode::Off,
            Role::Near,
            "lan: write_only 100 A
             > wan write_only 100 A
             wan: ack 100 msn=1
             > lan ack 100 msn=1
             lan: write_only 101 A
             > wan write_only 101 A
             wan: ack 101 msn=2
             > lan ack 101 msn=2
             lan: write_only 102 A
             > wan write_only 102 A",
        );
        assert_eq!((script.status().state, script.status().mode), (FlowState::Passing, Mode::Off));
    }

    #[test]
    fn the_end_of_the_connection_ends_the_flow() {
        let script = run(
            Mode::Off,
            Role::Near,
            "connect psn=100
             lan: write_only 100 A
             > wan write_only 100 A
             lan: dreq
             > wan dreq
             wan: drep
             > lan drep",
        );
        assert_eq!(script.accel.flows().count(), 0);
    }
}

/// Only the responder acknowledges the last packet of a message.
mod tail {
    use super::*;

    fn tail(text: &str) -> Script {
        run(Mode::Tail, Role::Near, text)
    }

    #[test]
    fn a_message_is_acknowledged_up_to_its_last_packet_which_the_responder_acknowledges() {
        for role in [Role::Near, Role::Far] {
            run(
                Mode::Tail,
                role,
                "connect psn=100
                 lan: write_first 100 A
                 > wan write_first 100 A
                 > lan ack 100 msn=0
                 lan: write_middle 101 A          # AckReq within the message
                 > wan write_middle 101 A
                 > lan ack 101 msn=0
                 lan: write_last 102 A
                 > wan write_last 102 A
                 wan: ack 102 msn=1
                 > lan ack 102 msn=1",
            );
        }
    }

    #[test]
    fn no_acknowledgement_passes_a_last_packet_that_the_responder_does_not_have() {
        tail(
            "connect psn=100
             lan: write_only 100 A
             > wan write_only 100 A
             lan: write_first 101 A
             > wan write_first 101 A
             lan: write_middle 102 A
             > wan write_middle 102 A
             wan: ack 100 msn=1
             > lan ack 102 msn=1",
        );
    }

    #[test]
    fn a_responder_that_acknowledges_several_messages_at_once_completes_them_at_once() {
        tail(
            "connect psn=100
             lan: send_only 100
             > wan send_only 100
             lan: send_only 101
             > wan send_only 101
             lan: send_only 102 A
             > wan send_only 102 A
             wan: ack 102 msn=3
             > lan ack 102 msn=3",
        );
    }

    #[test]
    fn a_requester_without_ack_requests_hears_often_enough_within_a_message() {
        let mut script = tail("connect psn=100\n lan: write_first 100\n > wan write_first 100");
        for psn in 101..=300 {
            // 64 packets after the last ACK.
            let ack =
                if (psn - 99) % 64 == 0 { format!("> lan ack {psn} msn=0") } else { String::new() };
            script.go_on(&format!("lan: write_middle {psn}\n > wan write_middle {psn}\n {ack}"));
        }
    }

    #[test]
    fn time_makes_no_promises() {
        // The window fills at once, so that pseudo-ACKs are withheld and trickle.
        let config = Config { ack_window_bytes: 4 << 10, ..in_mode(Mode::Tail, Role::Near) };
        run_with(
            config,
            "connect psn=100
             lan: write_only 100 A len=1024
             > wan write_only 100 A len=1024
             lan: write_only 101 A len=1024
             > wan write_only 101 A len=1024
             lan: write_first 102 A len=1024
             > wan write_first 102 A
             after 95ms
             wan: ack 101 msn=2
             > lan ack 102 msn=2",
        );
    }

    #[test]
    fn a_repetition_is_absorbed_and_completes_nothing() {
        tail(
            "connect psn=100
             lan: write_first 100 A
             > wan write_first 100 A
             > lan ack 100 msn=0
             lan: write_last 101 A
             > wan write_last 101 A
             lan: write_last 101 A
             > lan ack 100 msn=0
             wan: ack 101 msn=1
             > lan ack 101 msn=1",
        );
    }

    #[test]
    fn a_gap_on_the_lan_is_asked_for_without_acknowledging_what_lies_before() {
        tail(
            "connect psn=100
             lan: write_only 100 A
             > wan write_only 100 A
             lan: write_only 102 A                # 101 is lost
             > lan nak 100 sequence msn=0
             lan: write_only 100 A
             lan: write_only 101 A
             > wan write_only 101 A
             lan: write_only 102 A
             > wan write_only 102 A
             wan: ack 102 msn=3
             > lan ack 102 msn=3",
        );
    }

    #[test]
    fn what_is_stored_is_delivered_like_in_any_mode() {
        tail(
            "connect psn=100
             lan: send_first 100 A
             > wan send_first 100 A
             > lan ack 100 msn=0
             lan: send_last 101 A
             > wan send_last 101 A
             wan: rnr 100 timer=12 msn=0          # 0.64 ms
             after 1ms
             > wan send_first 100 A
             > wan send_last 101 A
             wan: nak 101 sequence msn=0
             > wan send_last 101 A
             wan: ack 101 msn=1
             > lan ack 101 msn=1",
        );
    }

    #[test]
    fn the_responders_error_is_that_of_the_work_request_that_it_refuses() {
        tail(
            "connect psn=100
             lan: write_only 100 A
             > wan write_only 100 A
             lan: write_first 101 A
             > wan write_first 101 A
             wan: ack 100 msn=1
             > lan ack 101 msn=1
             lan: write_last 102 A
             > wan write_last 102 A
             wan: nak 101 access msn=1            # 101 was acknowledged, its message was not
             > lan nak 102 access msn=1",
        );
    }

    #[test]
    fn reads_and_keep_alives_are_the_responders_as_ever() {
        tail(
            "connect psn=100
             lan: write_only 100 A len=0 dma=0
             > wan write_only 100 A len=0
             lan: read 101 A dma=64
             > wan read 101 A dma=64
             wan: ack 100 msn=1
             > lan ack 100 msn=1
             wan: read_only 101 msn=2
             > lan read_only 101 msn=2",
        );
    }

    #[test]
    fn finite_credits_are_those_of_the_responder() {
        tail(
            "connect psn=100
             lan: send_only 100 A
             > wan send_only 100 A
             wan: ack 100 msn=1 credits=2
             > lan ack 100 msn=1 credits=2
             lan: send_first 101 A
             > wan send_first 101 A
             > lan ack 101 msn=1 credits=2
             lan: send_last 102 A
             > wan send_last 102 A
             wan: ack 102 msn=2 credits=1
             > lan ack 102 msn=2 credits=1",
        );
    }

    #[test]
    fn a_flow_learnt_from_traffic_is_held_to_it_from_its_first_acknowledgement() {
        tail(
            "lan: write_only 500 A
             > wan write_only 500 A
             wan: ack 500 msn=77
             > lan ack 500 msn=77
             lan: write_only 501 A
             > wan write_only 501 A
             lan: write_first 502 A
             > wan write_first 502 A
             lan: write_last 503 A
             > wan write_last 503 A
             wan: ack 501 msn=78
             > lan ack 501 msn=78
             > lan ack 502 msn=78
             wan: ack 503 msn=79
             > lan ack 503 msn=79",
        );
    }

    #[test]
    fn a_dreq_waits_for_what_was_acknowledged() {
        tail(
            "connect psn=100
             lan: write_only 100 A
             > wan write_only 100 A
             lan: dreq
             wan: ack 100 msn=1
             > lan ack 100 msn=1
             > wan dreq",
        );
    }
}

/// The mode of a flow.
mod policy {
    use super::*;

    #[test]
    fn the_first_rule_that_fits_decides_and_the_requests_have_the_dscp() {
        let rule = |dscp, mode| Rule { dscp: Some(dscp), ..Rule::new(mode) };
        let source = Some("10.77.0.0/16".parse::<Prefix>().unwrap());
        for (rules, mode) in [
            (vec![rule(0, Mode::Off), rule(DSCP, Mode::Tail)], Mode::Tail),
            (vec![Rule { source, ..Rule::new(Mode::Off) }, rule(DSCP, Mode::Tail)], Mode::Off),
            (vec![Rule { destination: source, ..rule(0, Mode::Off) }], Mode::Early),
        ] {
            let policy = Policy::new(rules, Mode::Early).unwrap();
            let script = run_with(
                Config { policy, ..config() },
                "connect psn=100\n lan: write_first 100\n > wan write_first 100",
            );
            assert_eq!(script.status().mode, mode);
        }
    }

    #[test]
    fn a_qp_that_begins_anew_has_the_mode_of_its_requests() {
        let rule = Rule { dscp: Some(DSCP), ..Rule::new(Mode::Off) };
        let policy = Policy::new(vec![rule], Mode::Tail).unwrap();
        let mut script = run_with(
            Config { policy, ..config() },
            "lan: write_only 100 A\n > wan write_only 100 A",
        );
        assert_eq!(script.status().state, FlowState::Passing);
        script.wire.requester.traffic_class = 0;
        script.go_on("lan: write_only 101 A\n > wan write_only 101 A");
        assert_eq!((script.status().state, script.status().mode), (FlowState::Passing, Mode::Off));
        script.go_on("lan: write_only 70000 A\n > wan write_only 70000 A");
        assert_eq!(
            (script.status().state, script.status().mode),
            (FlowState::Learning, Mode::Tail)
        );
    }

    #[test]
    fn another_policy_holds_for_flows_learnt_afterwards() {
        let mut script = run(Mode::Early, Role::Near, ACKNOWLEDGED);
        script.accel.set_policy(Policy::all(Mode::Off));
        script.go_on(
            "lan: write_only 101 A\n > wan write_only 101 A\n > lan ack 101 msn=2\n \
             wan: ack 101 msn=2",
        );
        assert_eq!(script.status().mode, Mode::Early);
        script.go_on("connect psn=500\n lan: write_only 500 A\n > wan write_only 500 A");
        assert_eq!((script.status().mode, script.status().state), (Mode::Off, FlowState::Passing));
    }
}
