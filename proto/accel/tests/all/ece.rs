//! Enhanced connection establishment, message by message: the box clears what NICs offer each other
//! where it accelerates, and both ends agree.

use crate::script::{Script, config, deliver, run, run_with};
use longhaul_accel::{Accelerator, Advice, Config, EceMode, LAN, Mode, Policy, Rule, WAN};
use longhaul_node::{Node as _, Side};
use longhaul_wire::Udp;

fn cleared(script: &Script) -> u64 {
    let advised: Vec<_> = script.accel.advice().iter().map(|one| one.advice).collect();
    let count = script.accel.counters().ece_cleared;
    assert_eq!(advised, if count > 0 { vec![Advice::EceCleared] } else { vec![] });
    count
}

#[test]
fn the_offer_and_its_answer_are_cleared_and_the_connection_is_accelerated() {
    let script = run("lan: req ece=5
         > wan req
         wan: rep ece=5
         > lan rep
         lan: rtu
         > wan rtu
         lan: write_only 100 A
         > wan write_only 100 A
         > lan ack 100 msn=1");
    assert_eq!(cleared(&script), 1);
}

#[test]
fn the_answer_is_cleared_too_if_its_sender_keeps_to_its_own_options() {
    // librdmacm answers with its QP's own options, if the REQ names no vendor.
    let script = run("lan: req ece=5
         > wan req
         wan: rep ece=9
         > lan rep");
    assert_eq!(cleared(&script), 1);
}

#[test]
fn a_connection_counts_once_however_often_its_messages_are_repeated() {
    let script = run("lan: req ece=5
         > wan req
         lan: req ece=5
         > wan req
         wan: rep ece=5
         > lan rep
         wan: rep ece=5
         > lan rep");
    assert_eq!(cleared(&script), 1);
}

#[test]
fn a_req_from_the_wan_is_cleared_as_well() {
    let mut script = run("");
    std::mem::swap(&mut script.wire.requester, &mut script.wire.responder);
    let req = script.wire.requester_frame("req ece=5");
    std::mem::swap(&mut script.wire.requester, &mut script.wire.responder);
    script.inject(WAN, &req);
    script.go_on("> lan req");
    assert_eq!(cleared(&script), 1);
    let advised = script.accel.advice()[0];
    assert_eq!(advised.requester, crate::script::frames::REQUESTER_IP);
}

#[test]
fn nothing_is_changed_in_messages_without_ece() {
    let mut script = run("");
    for (side, line) in [(LAN, "req"), (WAN, "rep"), (LAN, "rtu"), (LAN, "dreq"), (WAN, "drep")] {
        let bytes = match side {
            LAN => script.wire.requester_frame(line),
            _ => script.wire.responder_frame(line),
        };
        script.passes(side, &bytes);
    }
    assert_eq!(cleared(&script), 0);
}

#[test]
fn it_passes_where_the_setting_says_so() {
    let mut script = run_with(Config { ece: EceMode::Pass, ..config() }, "");
    pass_both(&mut script);
}

#[test]
fn it_passes_where_the_box_does_not_accelerate() {
    let policy = Policy::all(Mode::Off);
    pass_both(&mut run_with(Config { policy, ..config() }, ""));
    let rule = Rule { source: Some("10.77.0.1".parse().unwrap()), ..Rule::new(Mode::Off) };
    let policy = Policy::new(vec![rule], Mode::Early).unwrap();
    pass_both(&mut run_with(Config { policy, ..config() }, ""));
}

/// A REQ and a REP with ECE pass, bit for bit.
fn pass_both(script: &mut Script) {
    let (req, rep) =
        (script.wire.requester_frame("req ece=5"), script.wire.responder_frame("rep ece=5"));
    script.passes(LAN, &req);
    script.passes(WAN, &rep);
    assert_eq!(cleared(script), 0);
}

/// Were the answer cleared, its sender would use features that the other end does not.
#[test]
fn an_answer_to_an_offer_that_passed_passes_even_if_the_setting_has_changed() {
    let mut script = run_with(Config { ece: EceMode::Pass, ..config() }, "");
    let (req, rep) =
        (script.wire.requester_frame("req ece=5"), script.wire.responder_frame("rep ece=5"));
    script.passes(LAN, &req);
    script.accel.reconfigure(config()).unwrap();
    script.passes(LAN, &req);
    script.passes(WAN, &rep);
    assert_eq!(cleared(&script), 0);
}

#[test]
fn a_box_that_drains_clears_too_because_it_may_accelerate_the_connection_later() {
    let mut script = run("");
    script.accel.set_draining(script.now, true);
    script.go_on(
        "lan: req ece=5
         > wan req
         wan: rep ece=5
         > lan rep",
    );
    assert_eq!(cleared(&script), 1);
}

#[test]
fn an_answer_without_an_offer_passes() {
    let mut script = run("");
    let rep = script.wire.responder_frame("rep ece=5");
    script.passes(WAN, &rep);
    script.go_on("lan: req\n > wan req");
    script.passes(WAN, &rep);
    assert_eq!(cleared(&script), 0);
}

#[test]
fn a_udp_checksum_is_left_out_with_the_ece() {
    let mut script = run("");
    let mut req = script.wire.requester_frame("req ece=5");
    let udp = Udp::find(&req).unwrap();
    let right = (1..=u16::MAX).find(|sum| {
        udp.set_checksum(&mut req, *sum);
        let (head, behind) = req.split_at(udp.payload());
        udp.checksum_is_right(head, &[behind])
    });
    assert!(right.is_some());
    script.inject(LAN, &req);
    script.go_on("> wan req");
    assert_eq!(cleared(&script), 1);
}

/// Two boxes in a row: only the first finds something to clear.
#[test]
fn the_far_box_sees_a_plain_connection() {
    let mut far = Accelerator::new(config()).unwrap();
    let script = run("lan: req ece=5\n > wan req");
    let sent = |last: &[(Side, Vec<u8>)]| last[0].1.clone();
    deliver(&mut far, script.now, WAN, &sent(&script.last));
    let mut sink = crate::script::Sink::default();
    far.poll_transmit(script.now, &mut sink);
    assert_eq!(sent(&sink.out), sent(&script.last), "it passes untouched");
    assert_eq!((far.counters().ece_cleared, far.advice().len()), (0, 0));
}
