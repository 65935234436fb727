//! Answers that bypass the boxes: routes that differ by direction, from the start or from some time
//! on.
//!
//! No connection may fail, and boxes report the reason.

use crate::fleet;
use crate::fleet::boxes::Boxes;
use crate::fleet::plan::Mix;
use crate::fleet::{Connect, Fleet, Outcome, Setup};
use longhaul_accel::{FlowState, Mode, PassReason};
use longhaul_link::LinkConfig;
use longhaul_units::{Duration, Instant};

fn show(outcome: &Outcome) -> String {
    let Outcome { ended, failures, violations, unfinished, flows, .. } = outcome;
    let first: Vec<_> = failures.iter().take(8).collect();
    format!(
        "after {ended}: {} failures, the first: {first:#?}\nviolations: {violations:#?}\n\
         unfinished: {unfinished:#?}\n{}",
        failures.len(),
        flows.join("\n")
    )
}

fn setup(seed: u64, boxes: Boxes, mode: Mode, connect: Connect, from: Instant) -> Setup {
    let setup = Setup::new(seed, boxes);
    let fibre = LinkConfig::fibre_km(100, setup.rate);
    Setup {
        mode,
        connect,
        qps: 2,
        both_ways: seed.is_multiple_of(2),
        mix: Mix::Everything,
        messages: 200,
        size_max: 32 << 10,
        depth: 32,
        fibre,
        detour_from: Some(from),
        ..setup
    }
}

const MODES: [Mode; 4] = [Mode::Early, Mode::Far, Mode::Tail, Mode::Off];
const BOXES: [Boxes; 4] = [Boxes::One, Boxes::Both, Boxes::Paired, Boxes::Whole];
const CONNECTS: [Connect; 2] = [Connect::Aside, Connect::Manager];

fn every_setup(from: Instant, change: impl Fn(&mut Setup)) {
    let (mut seed, mut worse) = (0, Vec::new());
    for boxes in BOXES {
        for mode in MODES {
            for connect in CONNECTS {
                seed += 1;
                let mut setup = setup(seed, boxes, mode, connect, from);
                change(&mut setup);
                let outcome = fleet::run(&setup);
                if !outcome.is_clean() {
                    worse.push(format!(
                        "{boxes:?}, {mode}, {connect:?}, seed {seed}: {}",
                        show(&outcome)
                    ));
                }
            }
        }
    }
    assert!(worse.is_empty(), "{} of {seed}\n{}", worse.len(), worse.join("\n"));
}

#[test]
fn from_the_start_nobody_notices() {
    every_setup(Instant::ZERO, |_| ());
}

#[test]
fn from_the_start_with_loss_nobody_notices() {
    every_setup(Instant::ZERO, |setup| setup.fibre.loss = 1e-3);
}

#[test]
fn after_a_while_nobody_notices() {
    every_setup(Instant::ZERO + Duration::from_ms(2), |_| ());
}

#[test]
fn after_a_while_with_loss_nobody_notices() {
    every_setup(Instant::ZERO + Duration::from_ms(2), |setup| setup.fibre.loss = 1e-3);
}

/// For one flow of the connection manager: its state in the near box at the end of the run, and the
/// number of packets that were sent but are not known to have arrived.
fn of_one_flow(setup: &Setup) -> (FlowState, Option<PassReason>, u64) {
    let setup = Setup { qps: 1, both_ways: false, connect: Connect::Manager, ..setup.clone() };
    let mut fleet = Fleet::new(&setup);
    let outcome = fleet.run();
    assert!(outcome.is_clean(), "{}", show(&outcome));
    let later = fleet.now() + Duration::from_ms(60_000);
    fleet.run_until(later);
    let accelerators = fleet.accelerators();
    let flow = accelerators[0].flows().next().expect("a flow");
    assert_eq!((flow.stored_bytes, accelerators[0].stored_bytes()), (0, 0));
    let counters = accelerators[0].counters();
    assert_eq!(counters.flows_failed, 0);
    assert_eq!(counters.flows_one_way, u64::from(flow.pass_reason == Some(PassReason::OneWay)));
    (flow.state, flow.pass_reason, counters.stored_unconfirmed)
}

#[test]
fn boxes_say_what_they_see() {
    for mode in [Mode::Early, Mode::Tail] {
        for (from_ms, boxes) in
            [(0, Boxes::One), (0, Boxes::Whole), (2, Boxes::One), (2, Boxes::Whole)]
        {
            let from = Instant::ZERO + Duration::from_ms(from_ms);
            let setup = setup(1, boxes, mode, Connect::Manager, from);
            let (state, reason, _) = of_one_flow(&setup);
            assert_eq!(
                (state, reason),
                (FlowState::Passing, Some(PassReason::OneWay)),
                "{mode}, {boxes:?}, {from_ms}"
            );
        }
        let setup = Setup {
            detour_from: None,
            ..setup(1, Boxes::One, mode, Connect::Manager, Instant::ZERO)
        };
        assert_eq!(of_one_flow(&setup), (FlowState::Terminated, None, 0), "{mode}");
    }
}

/// One box, frame by frame.
mod step_by_step {
    use super::*;
    use crate::script::{Script, config, run, run_with};
    use longhaul_accel::{Config, Policy};

    /// A script after the responder's silence has exceeded the box's limit: all acknowledged
    /// packets have been retransmitted.
    fn after_silence() -> Script {
        run("connect psn=100
             lan: write_only 100
             > wan write_only 100
             lan: write_only 101 A
             > wan write_only 101 A
             > lan ack 101 msn=2
             after 100ms
             > wan write_only 100 A
             after 200ms
             > wan write_only 100 A
             after 400ms
             > wan write_only 100 A
             after 800ms
             > wan write_only 100
             > wan write_only 101 A")
    }

    fn is_one_way(script: &Script) -> bool {
        let status = script.status();
        (status.state, status.pass_reason) == (FlowState::Passing, Some(PassReason::OneWay))
    }

    #[test]
    fn what_was_acknowledged_is_sent_again_a_few_times_and_let_go() {
        let mut script = after_silence();
        assert!(is_one_way(&script));
        assert_eq!(script.status().stored_frames, 2);
        script.go_on(
            "lan: write_only 102 A
             > wan write_only 102 A
             after 100ms
             > wan write_only 100
             > wan write_only 101 A
             after 200ms
             > wan write_only 100
             > wan write_only 101 A
             after 400ms
             after 10000ms
             lan: write_only 103 A
             > wan write_only 103 A",
        );
        let counters = script.accel.counters();
        assert_eq!((counters.flows_one_way, counters.flows_failed), (1, 0));
        assert_eq!((counters.stored_unconfirmed, counters.stored_lost), (2, 0));
        assert_eq!(script.status().stored_frames, 0);
    }

    #[test]
    fn an_answer_to_what_passed_shows_that_all_before_is_delivered() {
        let mut script = after_silence();
        script.go_on(
            "lan: write_only 102 A
             > wan write_only 102 A
             wan: ack 101 msn=2
             lan: write_only 103 A
             > wan write_only 103 A
             wan: ack 102 msn=3
             > lan ack 102 msn=3
             wan: ack 103 msn=4
             > lan ack 103 msn=4
             after 10000ms",
        );
        let counters = script.accel.counters();
        assert_eq!((counters.stored_unconfirmed, counters.stored_lost), (0, 0));
    }

    #[test]
    fn a_nak_for_what_is_kept_is_answered_by_it() {
        let mut script = after_silence();
        script.go_on(
            "lan: write_only 102 A
             > wan write_only 102 A
             wan: nak 101 sequence msn=1
             > wan write_only 101 A
             wan: ack 101 msn=2
             lan: write_only 102 A
             > wan write_only 102 A
             wan: ack 102 msn=3
             > lan ack 102 msn=3
             after 10000ms",
        );
        assert_eq!(script.accel.counters().flows_failed, 0);
    }

    #[test]
    fn a_flow_whose_answers_come_by_again_is_learnt_anew() {
        let mut script = after_silence();
        script.go_on("wan: ack 101 msn=2");
        for (psn, msn) in [(102, 3), (103, 4)] {
            script.go_on(&format!(
                "lan: write_only {psn} A\n > wan write_only {psn} A\n wan: ack {psn} msn={msn}\n \
                 > lan ack {psn} msn={msn}"
            ));
        }
        assert_eq!(script.status().state, FlowState::Terminated);
        script.go_on("lan: write_only 104 A\n > wan write_only 104 A\n > lan ack 104 msn=5");
    }

    /// A path that was cut for longer than the box waits: acknowledged packets are lost, and the
    /// requester must be told.
    #[test]
    fn a_nak_for_what_was_let_go_fails_the_flow() {
        let mut script = after_silence();
        script.go_on(
            "after 100ms
             > wan write_only 100
             > wan write_only 101 A
             after 200ms
             > wan write_only 100
             > wan write_only 101 A
             after 400ms
             after 10000ms
             lan: write_only 102 A
             > wan write_only 102 A
             wan: nak 100 sequence msn=0
             > lan nak 102 operational msn=2",
        );
        assert_eq!(script.status().state, FlowState::Failed);
        assert_eq!(
            (script.accel.counters().flows_failed, script.accel.counters().stored_lost),
            (1, 1)
        );
    }

    #[test]
    fn another_life_behind_what_was_let_go_is_its_own_affair() {
        let mut script = after_silence();
        script.go_on(
            "after 100ms
             > wan write_only 100
             > wan write_only 101 A
             after 200ms
             > wan write_only 100
             > wan write_only 101 A
             after 400ms
             after 10000ms
             lan: write_only 50 A
             > wan write_only 50 A
             lan: write_only 51 A
             > wan write_only 51 A
             wan: ack 50 msn=1
             > lan ack 50 msn=1
             wan: nak 51 sequence msn=1
             > lan nak 51 sequence msn=1",
        );
        assert_eq!(script.accel.counters().flows_failed, 0);
    }

    #[test]
    fn a_requester_that_goes_back_behind_what_it_was_acknowledged_has_other_answers() {
        let mut script = run("connect psn=100
             lan: write_only 100 A
             > wan write_only 100 A
             > lan ack 100 msn=1
             wan: ack 100 msn=1
             lan: read 101 dma=1024
             > wan read 101 dma=1024
             lan: write_only 102
             > wan write_only 102
             lan: write_only 103
             > wan write_only 103
             lan: write_only 104 A
             > wan write_only 104 A
             after 2ms
             lan: write_only 103
             > lan ack 100 msn=1
             > wan read 101 A dma=1024
             lan: write_only 104 A
             > lan ack 100 msn=1
             after 2ms
             lan: write_only 103
             > wan write_only 103
             lan: write_only 104 A
             > wan write_only 104 A
             lan: write_only 105 A
             > wan write_only 105 A");
        assert!(is_one_way(&script));
        script.go_on("after 10000ms");
    }

    #[test]
    fn what_the_lan_loses_of_a_going_back_is_no_sign_of_it() {
        let mut script = run("connect psn=100
             lan: read 100 dma=1024
             > wan read 100 dma=1024
             lan: write_only 101 A
             > wan write_only 101 A
             after 2ms
             lan: write_only 101 A
             after 2ms
             wan: read_only 100 len=1024
             > lan read_only 100 len=1024 msn=0
             > lan ack 101 msn=2
             lan: write_only 101 A
             > lan ack 101 msn=2
             after 2ms
             lan: write_only 101 A
             > lan ack 101 msn=2");
        assert_eq!(script.status().state, FlowState::Terminated);
        script.go_on("wan: ack 101 msn=2");
    }

    #[test]
    fn packets_that_the_lan_reorders_are_no_sign_of_it() {
        let mut script = run("connect psn=100
             lan: write_only 100 A
             > wan write_only 100 A
             > lan ack 100 msn=1");
        for late in (101..).step_by(2).take(6) {
            let early = late + 1;
            script.go_on(&format!(
                "after 2ms
                 lan: write_only {early}
                 > lan nak {late} sequence msn={}
                 lan: write_only {late}
                 > wan write_only {late}
                 lan: write_only {late}         # the NAK asked for it
                 > lan ack {late} msn={}
                 lan: write_only {early}
                 > wan write_only {early}",
                late - 100,
                late - 99
            ));
        }
        assert!(!is_one_way(&script));
    }

    #[test]
    fn a_requester_that_is_never_answered_has_its_own_way() {
        let script = run("connect psn=100
             lan: write_only 100 A
             > wan write_only 100 A
             > lan ack 100 msn=1
             lan: read 101 dma=1024
             > wan read 101 dma=1024
             after 67ms
             lan: read 101 dma=1024
             > wan read 101 dma=1024
             > wan write_only 100 A
             after 67ms
             lan: read 101 dma=1024
             > wan read 101 dma=1024
             > wan write_only 100 A
             after 67ms
             lan: read 101 dma=1024
             > wan read 101 dma=1024
             > wan write_only 100 A");
        assert!(is_one_way(&script));
    }

    fn in_tail(text: &str) -> Script {
        let policy = Policy::all(Mode::Tail);
        run_with(Config { policy, rto_initial: Duration::from_ms(1000), ..config() }, text)
    }

    #[test]
    fn retries_sooner_than_a_round_trip_are_no_sign_of_it() {
        let mut script = in_tail(
            "connect psn=100
             lan: write_only 100 A
             > wan write_only 100 A
             after 60ms
             wan: ack 100 msn=1
             > lan ack 100 msn=1
             lan: write_only 101 A
             > wan write_only 101 A",
        );
        for _ in 0..5 {
            script.go_on("after 10ms\n lan: write_only 101 A\n > lan ack 100 msn=1");
        }
        assert!(!is_one_way(&script));
        script.go_on("after 10ms\n wan: ack 101 msn=2\n > lan ack 101 msn=2");
    }

    /// Adaptive retransmission: each wait is twice the one before, up to the QP's timeout.
    #[test]
    fn retries_after_longer_and_longer_waits_are_no_sign_of_it() {
        let mut script =
            in_tail("connect psn=100\n lan: write_only 100 A\n > wan write_only 100 A");
        let mut go_back_after = |waits_ms: &[u64]| {
            for &wait_ms in waits_ms {
                let probe = if wait_ms > 2 { "> wan write_only 100 A" } else { "" };
                script.go_on(&format!("after {wait_ms}ms\n lan: write_only 100 A\n {probe}"));
            }
            is_one_way(&script)
        };
        assert!(!go_back_after(&[2, 4, 8, 16, 32, 64]));
        assert!(go_back_after(&[67, 67]), "a constant timeout is one");
    }
}
