//! The same scenario gives the same outcome, however it is run.

use crate::network::*;
use longhaul_sim::*;
use longhaul_units::Duration;
use std::io::{self, Write};
use std::sync::{Arc, Mutex};

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

/// The outcome as text, and the captures of all segments in both directions.
fn everything(scenario: Scenario, threads: usize) -> (String, Vec<Vec<u8>>) {
    let mut captures = Vec::new();
    let simulation = Simulation::new(scenario, |_, _| {
        let capture = Shared::default();
        captures.push(capture.clone());
        Some(Recorder::new(Box::new(capture), 128).unwrap())
    });
    let outcome = simulation.unwrap().run(threads, |_| true);
    assert_eq!(outcome.violations, Vec::<String>::new());
    assert_eq!(outcome.unfinished, None);
    (
        format!("{outcome:?}"),
        captures.into_iter().map(|capture| capture.0.lock().unwrap().clone()).collect(),
    )
}

fn lossy(seed: u64) -> Scenario {
    let mut scenario = accelerated_pair(&NicProfile::default(), Duration::from_us(500), 1e-3);
    scenario.seed = seed;
    scenario.flows.push(flow(Op::Write, 65536, 4, bandwidth(16, 100)));
    scenario.flows.push(Flow { from: 1, to: 0, ..flow(Op::Read, 20_000, 2, bandwidth(16, 50)) });
    scenario.flows.push(flow(Op::Send, 1000, 2, bandwidth(64, 200)));
    scenario
}

#[test]
fn one_thread_and_two_agree_to_the_byte() {
    let (alone, alone_captures) = everything(lossy(7), 1);
    let (together, together_captures) = everything(lossy(7), 2);
    assert_eq!(alone, together);
    assert!(alone_captures == together_captures, "captures differ");
    assert!(
        alone_captures.iter().all(|capture| capture.len() > 10_000),
        "all segments were recorded"
    );
}

#[test]
fn so_they_do_where_the_connection_manager_connects() {
    let connected = || {
        let mut scenario = lossy(11);
        for flow in &mut scenario.flows {
            flow.connect = Connect::ConnectionManager { listens: true };
            flow.qps *= 20;
        }
        scenario.cables[1].wire.loss = 1e-2;
        scenario
    };
    let (alone, alone_captures) = everything(connected(), 1);
    let (together, together_captures) = everything(connected(), 2);
    assert_eq!(alone, together);
    assert!(alone_captures == together_captures, "captures differ");
    assert_eq!(alone.matches("setup: Some").count(), 3, "{alone}");
}

#[test]
fn so_they_do_where_frames_are_late_come_twice_and_are_damaged() {
    let harmed = || {
        let mut scenario = lossy(9);
        scenario.cables[1].wire.impairments = Impairments {
            late: 2e-3,
            late_by: Duration::from_us(30),
            duplication: 2e-3,
            corruption: 1e-3,
        };
        scenario
    };
    let (alone, _) = everything(harmed(), 1);
    assert_eq!(alone, everything(harmed(), 2).0);
    for what in ["late_frames", "duplicated_frames", "corrupted_frames"] {
        let named = format!("{what}: ");
        let counts = alone.split(&named).skip(1);
        let counts = counts.filter_map(|rest| {
            rest.split(|c: char| !c.is_ascii_digit()).next()?.parse::<u64>().ok()
        });
        assert!(counts.sum::<u64>() > 10, "{what}");
    }
}

#[test]
fn a_seed_gives_the_same_again_and_another_one_something_else() {
    let (first, _) = everything(lossy(7), 1);
    assert_eq!(first, everything(lossy(7), 1).0);
    assert_ne!(first, everything(lossy(8), 1).0);
}
