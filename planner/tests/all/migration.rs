//! Live migration: phases, what ends the passes, and the path's part.

use longhaul_planner::{End, Migrated, Migration, NicProfile, Op, Path, Workload};

const GIB: f64 = (1_u64 << 30) as f64;

/// A gibibyte of memory of an idle guest, without a disk.
const IDLE: Migration = Migration {
    setup_ns: 0.0,
    disk_bytes: 0.0,
    disk_bps: f64::INFINITY,
    memory_bytes: GIB,
    memory_bps: f64::INFINITY,
    working_set_bytes: 0.0,
    dirty_bps: f64::INFINITY,
    dirty_pause_ns: 0.0,
    downtime_limit_ns: 300e6,
    timeout_ns: 120e9,
};

fn predict(migration: &Migration, size: u64, tx_depth: u32, km: f64) -> Migrated {
    let work = Workload { op: Op::Write, size, qps: 1, tx_depth, cq_mod: 1, iterations: None };
    let nic = NicProfile::named("ideal").unwrap();
    migration.predict(&Path::of_km(km, 100e9), &nic, &work).unwrap()
}

fn predict_near(migration: &Migration) -> Migrated {
    predict(migration, 1 << 20, 128, 100.0)
}

fn assert_near(found: f64, expected: f64) {
    assert!((found / expected - 1.0).abs() < 0.01, "{found} instead of {expected}");
}

#[test]
fn an_idle_guest_moves_in_one_pass_behind_its_disk() {
    let migration =
        Migration { setup_ns: 5e8, disk_bytes: GIB, disk_bps: 4e9, memory_bps: 8e9, ..IDLE };
    let migrated = predict_near(&migration);
    assert_eq!((migrated.end, migrated.passes), (End::Arrival, 1.0));
    assert_near(migrated.disk_ns, GIB * 8.0 / 4.0);
    // The guest stops when the rest takes 300 ms.
    assert_near(migrated.pre_copy_ns + 3e8, GIB);
    assert_near(migrated.downtime_ns, 3e8);
    assert_near(migrated.total_ns(), 5e8 + GIB * 2.0 + GIB);
}

#[test]
fn passes_shrink_by_what_the_guest_dirties_meanwhile() {
    let busy = Migration {
        memory_bytes: 4.0 * GIB,
        memory_bps: 16e9,
        working_set_bytes: GIB,
        dirty_bps: 8e9,
        ..IDLE
    };
    let migrated = predict_near(&busy);
    // All of the working set after the first pass; then each pass leaves half of what it sends, but
    // for what the 300 ms of the stop hold anyway.
    let rest = 0.3 * 2e9;
    assert_near(migrated.memory_bytes, 4.0 * GIB + GIB / (1.0 - 0.5 * (1.0 - rest / GIB)));
    assert_near(migrated.downtime_ns, 300e6);
    // The pause of the guest counts as time in which it dirties nothing.
    let pauses = Migration { dirty_pause_ns: GIB, ..busy };
    assert!(predict_near(&pauses).total_ns() < migrated.total_ns());
}

#[test]
fn a_guest_that_dirties_faster_than_is_sent_does_not_arrive() {
    let busy = Migration { memory_bps: 8e9, working_set_bytes: GIB, dirty_bps: 20e9, ..IDLE };
    assert_eq!(predict_near(&busy).end, End::Diverges);
    let slower = Migration { dirty_bps: 7e9, ..busy };
    let migrated = predict_near(&slower);
    assert_eq!(migrated.end, End::Arrival);
    let late = Migration { timeout_ns: migrated.total_ns() - 1.0, ..slower };
    assert_eq!(predict_near(&late).end, End::TooSlow);
    // What is small enough for the downtime limit is sent once more at most.
    let small = Migration { working_set_bytes: 200e6, ..busy };
    assert_eq!(predict_near(&small).passes, 2.0);
}

#[test]
fn a_downtime_limit_of_zero_is_that_of_a_message() {
    let strict = Migration {
        memory_bps: 8e9,
        working_set_bytes: GIB,
        dirty_bps: 4e9,
        downtime_limit_ns: 0.0,
        ..IDLE
    };
    let migrated = predict_near(&strict);
    assert_eq!(migrated.end, End::Arrival);
    assert!((10.0..=11.0).contains(&migrated.passes), "{migrated:?}");
}

#[test]
fn a_window_limits_a_long_path() {
    let window = 16.0 * 65_536.0;
    let migrated = predict(&IDLE, 65_536, 16, 1000.0);
    assert_near(migrated.total_ns(), GIB / window * 10e6);
}

/// Mean total times of `longhaul sim` in seconds, with seeds 1 to 4: over 100 km at 100 Gbit/s, a
/// guest of 16 GiB by working set in GiB, whose program pauses for a second.
#[test]
fn total_times_are_those_of_the_simulator() {
    for (working_set, seconds) in
        [(0.0, 5.287), (2.0, 6.265), (4.0, 7.132), (7.0, 9.856), (10.0, 12.006), (13.0, 12.430)]
    {
        let migration = Migration {
            memory_bytes: 16.0 * GIB,
            memory_bps: 26e9,
            working_set_bytes: working_set * GIB,
            dirty_bps: 18.5e9,
            dirty_pause_ns: 1e9,
            ..IDLE
        };
        let predicted = predict_near(&migration).total_ns() / 1e9;
        let off = predicted / seconds - 1.0;
        assert!(off.abs() < 0.05, "{working_set} GiB: {predicted:.3} s instead of {seconds}");
    }
}
