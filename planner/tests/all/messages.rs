//! The closed formulae against perftest's loop, message by message.
//!
//! The loop uses no formula: each message starts when the program has posted it, the NIC has room,
//! and the line is free; its acknowledgement arrives one round trip after it has left.

use longhaul_planner::{NicProfile, Op, Path, Prediction, Workload};
use proptest::prelude::*;
use std::collections::VecDeque;

/// Returns the duration of `iterations` messages of one queue pair on an otherwise idle line, in
/// ns.
fn run(path: &Path, nic: &NicProfile, work: &Workload, iterations: u64) -> f64 {
    let message = Prediction::new(path, nic, work).unwrap().message;
    let reverse_ns = message.reverse_bytes * 8e9 / path.rate_bps;
    let answered = if work.op == Op::Read { nic.outstanding_reads } else { nic.outstanding_wqes };
    let (depth, lot) = (u64::from(work.tx_depth), u64::from(work.cq_mod));
    let (mut program, mut line) = (0.0_f64, 0.0_f64);
    // The time at which the NIC learns of each acknowledgement.
    let mut answers: Vec<f64> = Vec::new();
    let mut completed = 0;
    let mut waiting: VecDeque<u64> = VecDeque::new();
    let mut last = 0.0;
    for number in 0..iterations {
        while number - completed >= depth {
            let signalled = waiting.pop_front().unwrap();
            let seen = answers[signalled as usize] + nic.completion_ns as f64;
            program = program.max(seen) + nic.poll_ns as f64;
            completed += lot;
        }
        program += nic.post_ns as f64;
        let known = program + nic.doorbell_ns as f64;
        let room =
            number.checked_sub(u64::from(answered)).map_or(0.0, |before| answers[before as usize]);
        let start = known.max(room).max(line);
        line = start + message.busy_ns;
        answers.push(line + reverse_ns + path.rtt_ns() + 2.0 * nic.responder_ns as f64);
        if number % lot == lot - 1 || number == iterations - 1 {
            waiting.push_back(number);
        }
        last = answers[number as usize] + (nic.completion_ns + nic.poll_ns) as f64;
    }
    last
}

fn endless(path: &Path, nic: &NicProfile, work: &Workload) -> f64 {
    // Whole turns, in steady state.
    let turn = u64::from(work.tx_depth / work.cq_mod * work.cq_mod);
    let (from, to) = (20 * turn, 60 * turn);
    let time = run(path, nic, work, to) - run(path, nic, work, from);
    (to - from) as f64 * work.size as f64 * 8.0 / time * 1e9
}

fn nic(outstanding_wqes: u32, post_ns: u64) -> NicProfile {
    NicProfile { outstanding_wqes, post_ns, ..NicProfile::named("connectx6").unwrap() }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    #[test]
    fn goodput_agrees_within_2_percent(
        km in 10.0..3000.0_f64,
        log in 6..20_u32,
        depth in 1..512_u32,
        lot in 1..128_u32,
        is_read: bool,
    ) {
        let cq_mod = lot.min(depth);
        let nic = nic(128, 100);
        let op = if is_read { Op::Read } else { Op::Write };
        let work =
            Workload { op, size: 1 << log, qps: 1, tx_depth: depth, cq_mod, iterations: None };
        let path = Path::of_km(km, 100e9);
        let (predicted, looped) =
            (Prediction::new(&path, &nic, &work).unwrap().goodput_bps, endless(&path, &nic, &work));
        prop_assert!((predicted / looped - 1.0).abs() < 0.02, "{predicted} {looped} {work:?} {km}");
    }

    #[test]
    fn a_run_of_finite_length_agrees_within_2_percent(
        km in 10.0..3000.0_f64,
        log in 6..20_u32,
        depth in 16..512_u32,
        iterations in 100..3000_u64,
    ) {
        let nic = nic(128, 100);
        let work = Workload {
            iterations: Some(iterations),
            ..Workload::perftest(Op::Write, 1 << log, 1, depth)
        };
        let path = Path::of_km(km, 100e9);
        let predicted = Prediction::new(&path, &nic, &work).unwrap().goodput_bps;
        let looped =
            iterations as f64 * work.size as f64 * 8.0 / run(&path, &nic, &work, iterations) * 1e9;
        prop_assert!((predicted / looped - 1.0).abs() < 0.02, "{predicted} {looped} {work:?} {km}");
    }

    #[test]
    fn where_two_windows_are_equally_wide_the_nic_runs_dry_for_part_of_a_lot(
        km in 10.0..3000.0_f64,
        depth in 100..512_u32,
        wqes in 16..256_u32,
        lot in 1..100_u32,
    ) {
        let nic = nic(wqes, 100);
        let work = Workload { cq_mod: lot, ..Workload::perftest(Op::Write, 4096, 1, depth) };
        let path = Path::of_km(km, 100e9);
        let predicted = Prediction::new(&path, &nic, &work).unwrap().goodput_bps;
        let looped = endless(&path, &nic, &work);
        prop_assert!((predicted / looped - 1.0).abs() < 0.02, "{predicted} {looped} {work:?} \
                                                               {wqes} {km}");
    }
}
