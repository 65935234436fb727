//! The closed formulae against perftest's loop, packet by packet, for a NIC whose packet window
//! holds no whole number of messages.
//!
//! The loop uses no formula: each packet leaves after its predecessor, when the NIC has its message
//! and the window has room; both ends count their acknowledgement intervals as they send and
//! receive.

use longhaul_planner::{Limit, NicProfile, Op, Path, Prediction, Workload};
use proptest::prelude::*;
use std::collections::VecDeque;

const MTU: u64 = 4096;

/// Returns the completion times of the signalled messages of one queue pair, in ns.
fn completions(path: &Path, nic: &NicProfile, work: &Workload, messages: u64) -> Vec<f64> {
    let packets = work.size.div_ceil(MTU);
    let packet_ns = Prediction::new(path, nic, work).unwrap().message.busy_ns / packets as f64;
    let reverse_ns =
        Prediction::new(path, nic, work).unwrap().message.reverse_bytes * 8e9 / path.rate_bps;
    let answer_ns = reverse_ns + path.rtt_ns() + 2.0 * nic.responder_ns as f64;
    let (depth, lot) = (u64::from(work.tx_depth), u64::from(work.cq_mod));
    let mut seen = Vec::new();
    // The time at which the NIC learns of an acknowledgement, and the packets that it covers.
    let mut coming: VecDeque<(f64, u64)> = VecDeque::new();
    let (mut acknowledged, mut sent, mut asked, mut answered) = (0, 0, 0, 0);
    let (mut program, mut line) = (0.0_f64, 0.0_f64);
    for message in 0..messages {
        if message >= depth && (message - depth) % lot == 0 {
            program = program.max(seen[((message - depth) / lot) as usize]) + nic.poll_ns as f64;
        }
        program += nic.post_ns as f64;
        let known = program + nic.doorbell_ns as f64;
        for packet in 1..=packets {
            let mut start = line.max(known);
            while sent - acknowledged >= u64::from(nic.outstanding_psns) {
                let (at, covered) = coming.pop_front().unwrap();
                (start, acknowledged) = (start.max(at), covered);
            }
            line = start + packet_ns;
            (sent, asked, answered) = (sent + 1, asked + 1, answered + 1);
            let is_asked =
                packet == packets || asked == nic.ack_request_every.min(nic.outstanding_psns);
            if is_asked {
                asked = 0;
            }
            if is_asked || answered == nic.ack_every {
                answered = 0;
                coming.push_back((line + answer_ns, sent));
            }
        }
        if message % lot == lot - 1 {
            seen.push(line + answer_ns + nic.completion_ns as f64);
        }
    }
    seen
}

/// Minimum round trips between the two completions. Messages complete in bursts of up to a queue,
/// one burst per round trip; a span that begins or ends inside a burst is off by one round trip.
const ROUND_TRIPS: u64 = 200;

fn endless(path: &Path, nic: &NicProfile, work: &Workload) -> f64 {
    let (lot, depth) = (u64::from(work.cq_mod), u64::from(work.tx_depth));
    let warm = 20 + 2 * (depth / lot);
    let lots = 300.max((ROUND_TRIPS * depth).div_ceil(lot));
    let seen = completions(path, nic, work, (warm + lots) * lot);
    let time = seen[seen.len() - 1] - seen[warm as usize - 1];
    lots as f64 * (lot * work.size) as f64 * 8.0 / time * 1e9
}

fn deviation(path: &Path, nic: &NicProfile, work: &Workload) -> f64 {
    Prediction::new(path, nic, work).unwrap().goodput_bps / endless(path, nic, work) - 1.0
}

fn rxe() -> NicProfile {
    NicProfile::named("rxe").unwrap()
}

fn write(size: u64, tx_depth: u32, cq_mod: u32) -> Workload {
    Workload { op: Op::Write, size, qps: 1, tx_depth, cq_mod, iterations: None }
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 64,
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn goodput_agrees_within_2_percent(
        km in 20.0..1000.0_f64,
        kib in 4..1200_u64,
        depth in 4..160_u32,
        lot in 1..128_u32,
        window in 16..400_u32,
        asked_every in 8..100_u32,
        every in 8..100_u32,
    ) {
        let nic = NicProfile {
            outstanding_psns: window,
            ack_request_every: asked_every,
            ack_every: every,
            ..rxe()
        };
        let (path, work) = (Path::of_km(km, 100e9), write(kib << 10, depth, lot.min(depth)));
        let deviation = deviation(&path, &nic, &work);
        prop_assert!(
            deviation.abs() < 0.02,
            "{deviation} {work:?} {km} {window} {asked_every} {every}"
        );
    }
}

#[test]
fn a_queue_of_one_lot_waits_for_parts_of_messages() {
    // 75 packets: one and a part of the next in the window of 129, acknowledged at the 66th and the
    // last.
    let path = Path::of_km(100.0, 100e9);
    for (depth, lot) in [(16, 16), (16, 8), (19, 16), (4, 4), (100, 100)] {
        let work = write(300 << 10, depth, lot);
        let deviation = deviation(&path, &rxe(), &work);
        assert!(deviation.abs() < 0.01, "{depth} in lots of {lot}: {deviation}");
    }
    let prediction = Prediction::new(&path, &rxe(), &write(300 << 10, 4, 4)).unwrap();
    assert_eq!(prediction.limit, Limit::QueueDepth);
}

#[test]
fn what_is_left_of_a_window_beyond_whole_messages_gives_nothing() {
    // 15 packets, of which 129 are 8.6: 8 move per turn, as they do in a window of 120.
    let path = Path::of_km(1000.0, 100e9);
    let goodput = |window| {
        let nic = NicProfile { outstanding_psns: window, ..rxe() };
        Prediction::new(&path, &nic, &write(60 << 10, 128, 100)).unwrap().goodput_bps
    };
    assert!((goodput(129) / goodput(120) - 1.0).abs() < 0.01, "{} {}", goodput(129), goodput(120));
}
