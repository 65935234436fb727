//! NVMe over Fabrics: the planner against figures of the simulator, recorded from runs of
//! `longhaul sim` in steady state at 100 Gbit/s with queues of 128 commands.

use longhaul_planner::{Limit, NicProfile, Op, Path, Prediction, Storage, Workload};

const MEMORY: Storage = Storage {
    in_capsule: 4096,
    cores: 1,
    command_ns: 0.0,
    drive_bps: f64::INFINITY,
    drive_latency_ns: 0.0,
};

fn predict(storage: &Storage, nic: &str, op: Op, size: u64, qps: u32, km: f64) -> Prediction {
    let work = Workload { op, size, qps, tx_depth: 128, cq_mod: 1, iterations: None };
    predict_work(storage, nic, &work, km)
}

fn predict_work(storage: &Storage, nic: &str, work: &Workload, km: f64) -> Prediction {
    let nic = NicProfile::named(nic).unwrap();
    storage.predict(&Path::of_km(km, 100e9), &nic, work).unwrap()
}

fn assert_near(found: f64, expected: f64) {
    assert!((found / expected - 1.0).abs() < 0.03, "{found} instead of {expected}");
}

#[test]
fn round_trips_bound_what_is_outstanding() {
    let outstanding = 16.0 * 128.0 * 16384.0 * 8.0;
    let read = predict(&MEMORY, "ideal", Op::Read, 16384, 16, 1000.0);
    assert_near(read.goodput_bps, outstanding / 0.010);
    let write = predict(&MEMORY, "ideal", Op::Write, 16384, 16, 1000.0);
    assert_near(write.goodput_bps, outstanding / 0.020);
    let in_capsule = Storage { in_capsule: 16384, ..MEMORY };
    let write = predict(&in_capsule, "ideal", Op::Write, 16384, 16, 1000.0);
    assert_near(write.goodput_bps, outstanding / 0.010);
    assert_eq!(write.limit, Limit::QueueDepth);
}

#[test]
fn a_nic_limits_outstanding_reads_and_the_wqes_of_data_and_responses() {
    let write = predict(&MEMORY, "connectx6", Op::Write, 8192, 2, 100.0);
    assert_eq!(write.limit, Limit::OutstandingReads);
    assert_near(write.goodput_bps, 2.0 * 16.0 * 8192.0 * 8.0 / 0.001);
    let read = predict(&MEMORY, "connectx6", Op::Read, 16384, 1, 1000.0);
    assert_eq!(read.limit, Limit::OutstandingWqes);
    assert_near(read.goodput_bps, 64.0 * 16384.0 * 8.0 / 0.010);
}

#[test]
fn a_target_has_processors_and_drives() {
    let busy = Storage { command_ns: 4000.0, cores: 3, ..MEMORY };
    let read = predict(&busy, "ideal", Op::Read, 4096, 8, 0.0);
    assert_eq!(read.limit, Limit::Target);
    assert_near(read.goodput_bps, 750e3 * 4096.0 * 8.0);
    let slow = Storage { drive_bps: 8e9, ..MEMORY };
    let read = predict(&slow, "ideal", Op::Read, 4096, 8, 0.0);
    assert_eq!(read.limit, Limit::Drives);
    assert_near(read.goodput_bps, 8e9);
}

#[test]
fn a_command_takes_its_round_trips_or_waits_for_its_turn() {
    let far = Storage { drive_latency_ns: 80e3, ..MEMORY };
    let alone = |op, size| {
        let work = Workload { op, size, qps: 1, tx_depth: 1, cq_mod: 1, iterations: None };
        predict_work(&far, "ideal", &work, 1000.0).latency_ns
    };
    assert_near(alone(Op::Read, 4096), 10_080e3);
    assert_near(alone(Op::Write, 16384), 20_080e3);
    // 128 commands, 16 per round trip.
    let waits = predict(&MEMORY, "connectx6", Op::Write, 16384, 1, 100.0);
    assert_near(waits.latency_ns, 8e6);
}
