//! Advice about hosts' settings, by what flows reveal: frame by frame.

use crate::script::frames::{REQUESTER_IP, RESPONDER_IP};
use crate::script::{Script, config, run, run_with};
use longhaul_accel::{Advice, Advised, Config, Mode, Policy, Role};

/// The kinds of advice given so far; all are about the script's two hosts, and are counted.
fn given(script: &Script) -> Vec<Advice> {
    let advised = script.accel.advice();
    assert_eq!(script.accel.counters().advice_given, advised.len() as u64);
    let kind = |one: &Advised| {
        assert_eq!((one.requester, one.responder), (REQUESTER_IP, RESPONDER_IP));
        one.advice
    };
    advised.iter().map(kind).collect()
}

#[test]
fn each_kind_has_a_name_of_its_own_and_one_sentence() {
    let names: std::collections::BTreeSet<_> = Advice::ALL.iter().map(|it| it.name()).collect();
    assert_eq!(names.len(), Advice::ALL.len());
    for advice in Advice::ALL {
        let text = advice.text();
        assert!(text.contains(": ") && !text.ends_with('.') && !text.contains("  "), "{text}");
    }
}

/// In mode tail, with a round trip of 20 ms that the box has measured.
fn with_a_round_trip() -> Script {
    let tail = Config { policy: Policy::all(Mode::Tail), ..config() };
    run_with(
        tail,
        "connect psn=100
         lan: write_only 100 A
         > wan write_only 100 A
         after 20ms
         wan: ack 100 msn=1
         > lan ack 100 msn=1
         lan: write_only 101 A
         > wan write_only 101 A",
    )
}

/// In mode tail only the responder can acknowledge, and its round trip is longer than the timer.
#[test]
fn a_timer_below_the_round_trip_is_an_early_retry() {
    let mut script = with_a_round_trip();
    for n in 0..3 {
        assert_eq!(given(&script), [], "after {n}");
        script.go_on("after 2ms\n lan: write_only 101 A\n > lan ack 100 msn=1");
    }
    assert_eq!(given(&script), [Advice::EarlyRetries]);
}

#[test]
fn a_read_repeated_before_its_answer_can_come_is_an_early_retry() {
    let mut script = run("connect psn=100
         lan: write_only 100 A
         > wan write_only 100 A
         > lan ack 100 msn=1
         after 20ms
         wan: ack 100 msn=1
         lan: read 101 dma=1024
         > wan read 101 dma=1024");
    for _ in 0..3 {
        assert_eq!(given(&script), []);
        script.go_on("after 2ms\n lan: read 101 dma=1024");
    }
    assert_eq!(given(&script), [Advice::EarlyRetries]);
}

#[test]
fn repeating_what_was_acknowledged_is_a_missed_ack() {
    let mut script = run("connect psn=100
         lan: write_only 100 A
         > wan write_only 100 A
         > lan ack 100 msn=1");
    for _ in 0..3 {
        assert_eq!(given(&script), []);
        script.go_on("after 2ms\n lan: write_only 100 A\n > lan ack 100 msn=1");
    }
    assert_eq!(given(&script), [Advice::AcksMissed]);
}

#[test]
fn copies_of_a_packet_that_the_lan_made_are_no_retries() {
    let mut script = run("connect psn=100
         lan: write_only 100 A
         > wan write_only 100 A
         > lan ack 100 msn=1");
    for _ in 0..9 {
        script.go_on("after 100us\n lan: write_only 100 A\n > lan ack 100 msn=1");
    }
    assert_eq!(given(&script), [], "they come within a millisecond");
}

/// The box asks for more than is missing, because it may not acknowledge the rest.
#[test]
fn a_retry_that_a_nak_has_asked_for_is_not_counted() {
    let mut script = with_a_round_trip();
    for _ in 0..3 {
        script.go_on(
            "lan: write_only 103
             > lan nak 101 sequence msn=1
             after 2ms
             lan: write_only 101 A
             > lan ack 100 msn=1",
        );
    }
    assert_eq!(given(&script), []);
}

#[test]
fn a_lan_with_many_gaps() {
    let mut script = run("connect psn=100");
    for n in 0..8 {
        assert_eq!(given(&script), []);
        let (psn, next, msn) = (100 + 2 * n, 101 + 2 * n, 2 * n);
        script.go_on(&format!(
            "lan: write_only {next} A
             > lan nak {psn} sequence msn={msn}"
        ));
        if n == 7 {
            break;
        }
        for (psn, msn) in [(psn, msn + 1), (next, msn + 2)] {
            script.go_on(&format!(
                "lan: write_only {psn} A
                 > wan write_only {psn} A
                 > lan ack {psn} msn={msn}
                 wan: ack {psn} msn={msn}"
            ));
        }
    }
    assert_eq!(given(&script), [Advice::LanGaps]);
}

/// A responder that misses eight packets in a row.
fn responder_gaps(config: Config) -> Vec<Advice> {
    let mut script = run_with(config, "connect psn=100");
    for n in 0..8 {
        let (psn, msn) = (100 + n, 1 + n);
        script.go_on(&format!(
            "lan: write_only {psn} A
             > wan write_only {psn} A
             > lan ack {psn} msn={msn}
             after 1ms
             wan: nak {psn} sequence msn={n}
             > wan write_only {psn} A
             after 1ms
             wan: ack {psn} msn={msn}"
        ));
    }
    given(&script)
}

#[test]
fn a_responder_that_misses_packets_is_behind_a_bad_path_or_in_a_bad_lan() {
    assert_eq!(responder_gaps(config()), [Advice::PathGaps]);
    assert_eq!(responder_gaps(Config { role: Role::Far, ..config() }), [Advice::ResponderGaps]);
    let [near, far] = config().halves(longhaul_units::Duration::from_ms(1));
    assert_eq!(responder_gaps(near), [], "the far half NAKs for lack of room");
    assert_eq!(responder_gaps(far), [Advice::ResponderGaps]);
}

#[test]
fn a_long_rnr_timer_is_named_and_a_short_one_is_not() {
    // 0: 655 ms; 24: 41 ms; 31: 492 ms.
    for (timer, expected) in
        [(0, vec![Advice::LongRnrTimer]), (24, vec![]), (31, vec![Advice::LongRnrTimer])]
    {
        let mut script = run(&format!(
            "connect psn=100
             lan: send_only 100 A
             > wan send_only 100 A
             > lan ack 100 msn=1
             wan: rnr 100 timer={timer} msn=0"
        ));
        assert_eq!(given(&script), expected, "timer {timer}");
        script.go_on(&format!("wan: rnr 100 timer={timer} msn=0"));
        assert_eq!(given(&script), expected, "once");
    }
}

#[test]
fn many_cnps_are_named() {
    let mut script = run("connect psn=100
         lan: write_only 100 A
         > wan write_only 100 A
         > lan ack 100 msn=1");
    for n in 0..16 {
        assert_eq!(given(&script), [], "after {n}");
        script.go_on("after 1ms\n wan: cnp 0\n > lan cnp 0");
    }
    assert_eq!(given(&script), [Advice::Congestion]);
}

#[test]
fn a_path_mtu_below_1024_is_named() {
    assert_eq!(given(&run("connect psn=100 mtu=512")), [Advice::ShortMtu]);
    assert_eq!(given(&run("connect psn=100 mtu=1024")), []);
}
