//! Connections with an alternate path (APM), frame by frame: they pass, on both paths.

use crate::script::frames::{ALTERNATE_IPS, REQUESTER_IP, RESPONDER_IP};
use crate::script::{Script, run};
use longhaul_accel::{FlowState, FlowStatus, PassReason};

fn migrate(script: &mut Script, [requester, responder]: [std::net::IpAddr; 2]) {
    let wire = &mut script.wire;
    (wire.requester.source_ip, wire.requester.destination_ip) = (requester, responder);
    (wire.responder.source_ip, wire.responder.destination_ip) = (responder, requester);
}

/// Requests from `psn` on pass, and so do their ACKs.
fn pass(script: &mut Script, psn: u32, msn: u32) {
    for n in 0..4 {
        let (psn, msn) = (psn + n, msn + n);
        script.go_on(&format!(
            "lan: write_only {psn} A\n > wan write_only {psn} A\n wan: ack {psn} msn={msn}\n \
             > lan ack {psn} msn={msn}"
        ));
    }
}

fn on(script: &Script, requester: std::net::IpAddr) -> FlowStatus {
    script.accel.flows().find(|flow| flow.key.requester == requester).expect("a flow")
}

fn all_pass(script: &Script) {
    for requester in [REQUESTER_IP, ALTERNATE_IPS[0]] {
        let flow = on(script, requester);
        assert_eq!(
            (flow.state, flow.pass_reason),
            (FlowState::Passing, Some(PassReason::AlternatePath))
        );
        assert_eq!(flow.stored_frames, 0);
    }
    assert_eq!(script.accel.counters().alternate_paths, 1);
}

#[test]
fn one_that_the_req_asks_for_makes_the_connection_pass() {
    let mut script = run("");
    script.go_on(
        "lan: req alternate
         > wan req
         wan: rep
         > lan rep",
    );
    pass(&mut script, 100, 1);
    migrate(&mut script, ALTERNATE_IPS);
    pass(&mut script, 104, 5);
    migrate(&mut script, [REQUESTER_IP, RESPONDER_IP]);
    pass(&mut script, 108, 9);
    all_pass(&script);
}

#[test]
fn one_that_the_responder_refuses_is_none() {
    let script = run("lan: req alternate
         > wan req
         wan: rep failover=2
         > lan rep
         lan: write_only 100 A
         > wan write_only 100 A
         > lan ack 100 msn=1");
    assert_eq!(script.status().state, FlowState::Terminated);
    assert_eq!(script.accel.counters().alternate_paths, 0);
}

/// Packets acknowledged before the LAP are delivered, on the path on which they were sent.
fn by_a_lap(lap: &str) {
    let mut script = run("connect psn=100
         lan: write_only 100 A
         > wan write_only 100 A
         > lan ack 100 msn=1
         wan: ack 100 msn=1
         lan: write_only 101 A
         > wan write_only 101 A
         > lan ack 101 msn=2
         lan: read 102 dma=1024
         > wan read 102 dma=1024");
    script.go_on(lap);
    script.go_on(
        "lan: write_only 103 A
         > wan write_only 103 A",
    );
    assert_eq!(script.status().stored_frames, 1, "what was promised");
    script.go_on(
        "wan: nak 101 sequence msn=1
         > wan write_only 101 A
         wan: ack 101 msn=2
         wan: read_only 102 len=1024 msn=3
         > lan read_only 102 len=1024 msn=3
         wan: ack 103 msn=4
         > lan ack 103 msn=4
         lan: dreq
         > wan dreq",
    );
    migrate(&mut script, ALTERNATE_IPS);
    pass(&mut script, 104, 5);
    migrate(&mut script, [REQUESTER_IP, RESPONDER_IP]);
    pass(&mut script, 108, 9);
    all_pass(&script);
    script.go_on("wan: drep\n > lan drep");
    assert_eq!(script.accel.flows().count(), 0);
}

#[test]
fn one_that_the_requester_asks_for_later_makes_the_connection_pass() {
    by_a_lap("lan: lap\n > wan lap");
}

#[test]
fn one_that_the_responder_asks_for_later_makes_the_connection_pass() {
    by_a_lap("wan: lap id=2 rid=1\n > lan lap");
}
