//! Asking a responder which PSN it expects, for a requester that makes no progress: the requester
//! learns of packets lost with a box that has ended, even if the responder's sequence NAK was lost
//! too.

use crate::script::{Script, run};
use longhaul_accel::FlowState;

/// 2^17 PSNs before 500.
const QUESTION: &str = "write_middle 16646644 A len=0";

/// A flow whose requester has gone back to 500 three times; the responder has answered twice that
/// it has everything before `next`.
fn asked_twice(next: u32) -> Script {
    let before = next - 1;
    let mut script = run("lan: write_only 500 A\n > wan write_only 500 A");
    script.go_on("after 5ms\n lan: write_only 500 A\n > wan write_only 500 A");
    for _ in 0..2 {
        script.go_on(&format!(
            "after 5ms
             lan: write_only 500 A
             > wan write_only 500 A
             > wan {QUESTION}
             wan: ack {before} msn=3
             > lan ack {before} msn=3"
        ));
    }
    script
}

#[test]
fn a_requester_that_cannot_go_back_far_enough_is_told() {
    let mut script = asked_twice(480);
    assert_eq!(script.accel.counters().questions, 2);
    script.go_on(
        "after 5ms
         lan: write_only 500 A
         > wan write_only 500 A
         > lan nak 500 operational msn=3
         lan: write_only 501 A
         > lan nak 500 operational msn=3",
    );
    assert_eq!(script.accel.counters().flows_failed, 1);
}

#[test]
fn one_that_begins_with_a_read_is_told_too() {
    let mut script = run("");
    let repeat = "after 5ms\n lan: read 500 A dma=64\n > wan read 500 A dma=64";
    let asked = format!("> wan {QUESTION}\n wan: ack 479 msn=3\n > lan ack 479 msn=3");
    script.go_on(&format!("{repeat}\n {repeat}\n {repeat}\n {asked}\n {repeat}\n {asked}"));
    script.go_on(&format!("{repeat}\n > lan nak 500 operational msn=3"));
}

#[test]
fn one_that_does_go_back_is_not() {
    let mut script = asked_twice(480);
    script.go_on("lan: write_only 480 A\n > wan write_only 480 A");
    let repeat = "after 5ms\n lan: write_only 500 A\n > wan write_only 500 A";
    script.go_on(&format!(
        "{repeat}\n {repeat}\n {repeat}\n > wan {QUESTION}\n {repeat}\n > wan {QUESTION}"
    ));
    assert_eq!(script.accel.counters().flows_failed, 0);
}

#[test]
fn a_responder_that_lacks_nothing_fails_nobody() {
    let mut script = asked_twice(500);
    for _ in 0..5 {
        script.go_on(&format!(
            "after 5ms\n lan: write_only 500 A\n > wan write_only 500 A\n > wan {QUESTION}
             wan: ack 499 msn=3\n > lan ack 499 msn=3"
        ));
    }
    assert_eq!(script.accel.counters().flows_failed, 0);
}

#[test]
fn one_answer_could_be_another_flows() {
    let mut script = run("lan: write_only 500 A\n > wan write_only 500 A");
    let repeat = "after 5ms\n lan: write_only 500 A\n > wan write_only 500 A";
    script.go_on(&format!(
        "{repeat}\n {repeat}\n > wan {QUESTION}\n wan: ack 479 msn=3\n > lan ack 479 msn=3"
    ));
    script
        .go_on(&format!("{repeat}\n > wan {QUESTION}\n wan: ack 478 msn=3\n > lan ack 478 msn=3"));
    script.go_on(&format!("{repeat}\n > wan {QUESTION}\n {repeat}\n > wan {QUESTION}"));
    assert_eq!(script.accel.counters().flows_failed, 0);
    script.go_on("wan: ack 478 msn=3\n > lan nak 500 operational msn=3\n > lan ack 478 msn=3");
}

#[test]
fn an_ack_to_what_was_not_asked_is_no_answer() {
    let mut script = run("lan: write_only 500 A\n > wan write_only 500 A");
    script.go_on(
        "wan: ack 479 msn=3\n > lan ack 479 msn=3\n wan: ack 479 msn=3\n > lan ack 479 msn=3",
    );
    let repeat = "after 5ms\n lan: write_only 500 A\n > wan write_only 500 A";
    script.go_on(&format!("{repeat}\n {repeat}\n > wan {QUESTION}\n {repeat}\n > wan {QUESTION}"));
    script.go_on(&format!("{repeat}\n > wan {QUESTION}\n {repeat}\n > wan {QUESTION}"));
    assert_eq!(script.accel.counters().flows_failed, 0);
}

#[test]
fn a_box_that_has_terminated_the_flow_answers_itself() {
    let script = run("connect psn=100
         lan: write_only 100 A
         > wan write_only 100 A
         > lan ack 100 msn=1
         lan: write_middle 16646244 A len=0
         > lan ack 100 msn=1
         wan: ack 100 msn=1
         lan: write_middle 16646244 A len=0
         > lan ack 100 msn=1");
    assert_eq!(script.status().state, FlowState::Terminated);
}

#[test]
fn a_box_that_knows_nothing_passes_it_and_learns_nothing_from_it() {
    let mut script = run("lan: write_middle 77 A len=0\n > wan write_middle 77 A len=0");
    assert_eq!(script.accel.flows().count(), 0);
    script.go_on(
        "lan: write_only 500 A
         > wan write_only 500 A
         lan: write_middle 77 A len=0
         > wan write_middle 77 A len=0
         wan: ack 500 msn=7
         > lan ack 500 msn=7
         lan: write_only 501 A
         > wan write_only 501 A
         wan: ack 501 msn=8
         > lan ack 501 msn=8",
    );
    assert_eq!(script.status().state, FlowState::Terminated);
}
