//! Floods of RoCEv2 without a connection: known flows stay known, and new ones are learnt.

use crate::script;
use crate::script::frames::Wire;
use crate::script::{Script, Sink, deliver, run_with};
use longhaul_accel::{Config, FlowState, LAN};
use longhaul_node::Node;
use longhaul_units::Duration;

/// Sends two consecutive packets to each of `count` unused QPs, 10 µs apart, and discards the
/// output.
fn flood(script: &mut Script, count: u32) {
    for qpn in 0x10_0000..0x10_0000 + count {
        let mut wire = Wire { responder_qpn: qpn, ..Wire::default() };
        wire.requester.source_ip = [10, 77, 0, 9].into();
        for psn in 0..2 {
            let bytes = wire.requester_frame(&format!("write_only {psn} len=8"));
            deliver(&mut script.accel, script.now, LAN, &bytes);
            script.accel.poll_transmit(script.now, &mut Sink::default());
            script.now += Duration::from_us(10);
        }
    }
}

fn script() -> Script {
    run_with(Config { flows_max: 99, ..script::config() }, "connect psn=100 mtu=1024")
}

#[test]
fn an_idle_flow_stays_known() {
    let mut script = script();
    script.go_on(
        "lan: write_only 100 A len=64
         > wan write_only 100 A
         > lan ack 100 msn=1
         wan: ack 100 msn=1",
    );
    flood(&mut script, 5000);
    assert!(script.accel.flows().any(|flow| flow.state == FlowState::Terminated), "it was evicted");
    assert_eq!(script.accel.counters().flow_table_full, 0);
    script.go_on(
        "lan: write_only 101 A len=64
         > wan write_only 101 A
         > lan ack 101 msn=2",
    );
}

#[test]
fn a_new_flow_is_learnt_between_frames_of_the_flood() {
    let mut script = run_with(Config { flows_max: 999, ..script::config() }, "");
    flood(&mut script, 2000);
    for (psn, msn) in [(7, 1), (8, 2), (9, 3)] {
        let request = script.wire.requester_frame(&format!("write_only {psn} A len=64"));
        deliver(&mut script.accel, script.now, LAN, &request);
        flood(&mut script, 10);
        let answer = script.wire.responder_frame(&format!("ack {psn} msn={msn}"));
        deliver(&mut script.accel, script.now, longhaul_accel::WAN, &answer);
        flood(&mut script, 10);
    }
    let learnt = script.accel.flows().filter(|flow| flow.state == FlowState::Terminated).count();
    assert_eq!(learnt, 1, "{:?}", script.accel.counters());
}
