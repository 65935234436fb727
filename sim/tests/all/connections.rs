//! Connections that the RDMA connection manager makes and ends, over the network that the traffic
//! takes.

use crate::network::*;
use longhaul_sim::*;
use longhaul_units::Duration;
use longhaul_wire::pcap;
use std::io::{self, Write};
use std::sync::{Arc, Mutex};

const RTT_MS: u64 = 10;
const ONE_WAY: Duration = Duration::from_ms(RTT_MS / 2);

fn by_cm(flow: Flow) -> Flow {
    Flow { connect: Connect::ConnectionManager { listens: true }, ..flow }
}

fn with(mut scenario: Scenario, flow: Flow) -> Scenario {
    scenario.flows.push(flow);
    scenario
}

fn setup(outcome: &Outcome) -> Setup {
    outcome.flows[0].setup.expect("all QPs are connected")
}

fn counter(counters: &[(String, u64)], name: &str) -> u64 {
    counters.iter().find(|(known, _)| known == name).map_or(0, |(_, count)| *count)
}

/// Milliseconds of the first end's frames in a capture that `is` accepts, by their bytes from the
/// BTH on.
fn times_ms(capture: &[u8], is: impl Fn(&[u8]) -> bool) -> Vec<f64> {
    let records = pcap::records(capture).map(|record| record.expect("a record"));
    let those = records.filter(|record| is(&record.data[42..]));
    those.map(|record| (record.timestamp_ns.expect("a time") - EPOCH_NS) as f64 / 1e6).collect()
}

/// The attribute of a MAD: bytes from the BTH on, to QP 1.
fn attribute(packet: &[u8]) -> Option<u16> {
    let is_mad = packet[0] == 0x64 && packet[5..8] == [0, 0, 1];
    is_mad.then(|| u16::from_be_bytes([packet[36], packet[37]]))
}

const REQ: u16 = 0x10;
const RTU: u16 = 0x14;
const DREQ: u16 = 0x15;

#[derive(Clone, Default)]
struct Shared(Arc<Mutex<Vec<u8>>>);

impl Write for Shared {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().write(bytes)
    }
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// The outcome, and what the first end of the first cable sent.
fn captured(scenario: Scenario) -> (Outcome, Vec<u8>) {
    let capture = Shared::default();
    let simulation = Simulation::new(scenario, |cable, end| {
        (cable == 0 && end == 0).then(|| Recorder::new(Box::new(capture.clone()), 64).unwrap())
    });
    let outcome = simulation.unwrap().run(1, |_| true);
    assert_eq!((outcome.unfinished.as_ref(), outcome.violations.len()), (None, 0), "{outcome:?}");
    let bytes = capture.0.lock().unwrap().clone();
    (outcome, bytes)
}

mod set_up {
    use super::*;

    #[test]
    fn takes_a_round_trip_and_data_follow_at_once() {
        for test in [bandwidth(16, 20), Test::Latency { iterations: 20 }] {
            for op in [Op::Write, Op::WriteImmediate, Op::Send, Op::Read] {
                let flow = by_cm(flow(op, 1000, 1, test));
                let (outcome, capture) =
                    captured(with(pair(&NicProfile::default(), ONE_WAY, 0.0), flow));
                assert_eq!(
                    (outcome.flows[0].messages, outcome.flows[0].failure.as_ref()),
                    (20, None)
                );
                let Setup { mean_ns, max_ns } = setup(&outcome);
                assert_eq!(mean_ns, max_ns);
                assert!((10e6..10.01e6).contains(&max_ns), "{op:?}: {max_ns}");
                let is_mad = |packet: &[u8]| attribute(packet).is_some();
                let [req, rtu, .., dreq] = times_ms(&capture, is_mad)[..] else { panic!("{op:?}") };
                assert_eq!(times_ms(&capture, |packet| attribute(packet) == Some(REQ)), [req]);
                assert_eq!(times_ms(&capture, |packet| attribute(packet) == Some(RTU)), [rtu]);
                assert_eq!(times_ms(&capture, |packet| attribute(packet) == Some(DREQ)), [dreq]);
                let data = times_ms(&capture, |packet| attribute(packet).is_none());
                assert_eq!(req, 0.0);
                assert!(
                    (10.0..10.01).contains(&rtu) && (rtu..rtu + 0.01).contains(&data[0]),
                    "{rtu} {data:?}"
                );
                assert!(dreq >= data[data.len() - 1]);
            }
        }
    }

    #[test]
    fn begins_when_the_flow_does() {
        let starts_at = Duration::from_ms(30);
        let flow = Flow { starts_at, ..by_cm(flow(Op::Write, 1000, 2, bandwidth(16, 20))) };
        let (outcome, capture) = captured(with(pair(&NicProfile::default(), ONE_WAY, 0.0), flow));
        let first = times_ms(&capture, |_| true)[0];
        assert!((30.0..30.01).contains(&first), "{first}");
        assert!((10e6..10.01e6).contains(&setup(&outcome).max_ns));
    }

    #[test]
    fn changes_nothing_of_what_the_traffic_reaches() {
        let scenario = || pair(&NicProfile::default(), ONE_WAY, 1e-4);
        let plain = flow(Op::Read, 65536, 4, bandwidth(64, 500));
        let aside = run(with(scenario(), plain.clone()));
        let through = run(with(scenario(), by_cm(plain)));
        let (aside, through) = (goodput_gbps(&aside), goodput_gbps(&through));
        assert!((through / aside - 1.0).abs() < 0.1, "{aside} {through}");
    }

    #[test]
    fn of_a_thousand_qps_in_both_directions_takes_a_round_trip() {
        let mut scenario = pair(&NicProfile::default(), ONE_WAY, 0.0);
        scenario.flows.push(by_cm(flow(Op::Write, 4096, 1000, bandwidth(4, 4))));
        scenario.flows.push(Flow {
            name: "back".into(),
            from: 1,
            to: 0,
            ..by_cm(flow(Op::Send, 100, 1000, bandwidth(4, 4)))
        });
        let outcome = run(scenario);
        for flow in &outcome.flows {
            assert_eq!(flow.messages, 4000);
            let Setup { mean_ns, max_ns } = flow.setup.unwrap();
            // 1000 MADs of 326 bytes and what frames take besides: 28 µs at 100 Gbit/s.
            assert!(mean_ns < max_ns && (10.02e6..10.2e6).contains(&max_ns), "{mean_ns} {max_ns}");
        }
    }

    #[test]
    fn is_none_of_flows_that_connect_out_of_band() {
        let outcome = run(with(
            pair(&NicProfile::default(), ONE_WAY, 0.0),
            flow(Op::Write, 100, 1, bandwidth(4, 4)),
        ));
        assert!(outcome.flows[0].setup.is_none());
    }
}

mod with_accelerators {
    use super::*;

    fn boxes(flow: Flow) -> Outcome {
        run(with(accelerated_pair(&NicProfile::default(), ONE_WAY, 0.0), flow))
    }

    #[test]
    fn a_flow_is_terminated_from_its_first_packet_on() {
        let one = flow(Op::Write, 65536, 1, bandwidth(1, 1));
        let [learnt, told] = [boxes(one.clone()), boxes(by_cm(one))];
        let elapsed = |outcome: &Outcome| outcome.flows[0].elapsed_ns;
        assert!(
            elapsed(&learnt) > RTT_MS * 1_000_000,
            "from traffic nothing is known yet: {learnt:?}"
        );
        assert!(elapsed(&told) < 100_000, "the box answers: {told:?}");
        for (outcome, flows) in [(&learnt, 0), (&told, 1)] {
            let near = outcome.accelerators.iter().find(|it| it.name == "near").unwrap();
            assert_eq!(counter(&near.counters, "flows_from_cm"), flows, "{near:?}");
        }
    }

    #[test]
    fn the_end_waits_for_what_was_acknowledged_early() {
        // More than the path holds, and lost at times: the far side has it long after the requester
        // is done.
        let flow = by_cm(flow(Op::Write, 1 << 20, 4, bandwidth(16, 100)));
        let mut scenario = with(accelerated_pair(&NicProfile::default(), ONE_WAY, 1e-3), flow);
        scenario.seed = 3;
        let outcome = run(scenario);
        assert_eq!(outcome.flows[0].messages, 400);
    }
}

mod losses {
    use super::*;

    #[test]
    fn are_repaired_by_the_connection_managers_repetitions() {
        let mut scenario = with(
            pair(&NicProfile::default(), ONE_WAY, 0.2),
            by_cm(flow(
                Op::Write,
                100,
                30,
                Test::Bandwidth {
                    tx_depth: 4,
                    rx_depth: 1,
                    post_list: 1,
                    cq_mod: None,
                    until: Until::Elapsed(Duration::from_ms(50)),
                },
            )),
        );
        scenario.cables[0].loss_toward_second_only = false;
        let outcome = run(scenario);
        assert!(outcome.wires[0].lost_frames > 0);
        // A lost REQ or REP is repeated 4.3 s, and two packet lifetimes of 1.07 s, later.
        let Setup { mean_ns, max_ns } = setup(&outcome);
        assert!(max_ns > 6.4e9 && mean_ns < max_ns, "{mean_ns} {max_ns}");
    }

    #[test]
    fn of_everything_end_the_flow_with_the_cause() {
        let scenario = with(
            pair(&NicProfile::default(), ONE_WAY, 1.0),
            by_cm(flow(Op::Write, 100, 2, bandwidth(4, 4))),
        );
        let outcome = Simulation::new(scenario, |_, _| None).unwrap().run(1, |_| true);
        let failure = outcome.flows[0].failure.as_deref().unwrap();
        assert_eq!(failure, "0 of 2 QPs were connected: no answer to 16 REQs in 103 s");
        assert_eq!((outcome.unfinished, outcome.flows[0].messages), (None, 0));
        assert!(outcome.flows[0].setup.is_none());
    }
}

#[test]
fn who_does_not_listen_fails_the_flow_and_no_other() {
    let mut scenario = pair(&NicProfile::default(), ONE_WAY, 0.0);
    let one = flow(Op::Write, 100, 3, bandwidth(4, 4));
    scenario
        .flows
        .push(Flow { connect: Connect::ConnectionManager { listens: false }, ..one.clone() });
    scenario.flows.push(by_cm(Flow { name: "other".into(), ..one }));
    let outcome = Simulation::new(scenario, |_, _| None).unwrap().run(1, |_| true);
    let failure = outcome.flows[0].failure.as_deref().unwrap();
    assert_eq!(
        failure,
        "0 of 3 QPs were connected: the responder rejected the request: invalid service id: nobody \
         listens (8)"
    );
    assert_eq!((outcome.unfinished, outcome.flows[1].failure.as_ref()), (None, None));
    assert_eq!(outcome.flows[1].messages, 12);
    assert_eq!(outcome.violations, Vec::<String>::new());
}

#[test]
fn mads_are_recorded_whole_whatever_payload_is_cut_to() {
    let scenario = with(
        pair(&NicProfile::default(), ONE_WAY, 0.0),
        by_cm(flow(Op::Write, 4096, 1, bandwidth(4, 4))),
    );
    let (_, capture) = captured(scenario);
    let lengths: Vec<(usize, usize)> = pcap::records(&capture)
        .map(|record| record.unwrap())
        .map(|record| (record.data.len(), record.original_len))
        .collect();
    let mads = lengths.iter().filter(|lengths| **lengths == (322, 322)).count();
    let cut = lengths.iter().filter(|(captured, _)| *captured == 64).count();
    assert_eq!((mads, cut), (3, 4), "REQ, RTU, DREQ and four WRITEs: {lengths:?}");
}
