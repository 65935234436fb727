//! Live migration: the passes over a guest's memory, what ends them, and the path's part.

use longhaul_sim::file::ScenarioFile;
use longhaul_sim::*;

const GIB: f64 = (1_u64 << 30) as f64;

/// The outcome of a migration over `km` with these further keys of path and flow.
fn simulate(km: u32, path: &str, flow: &str) -> (Migrated, FlowOutcome) {
    let text = format!(
        "train_packets = 64\n[path]\ndistance = \"{km}km\"\nrate = \"100G\"\n{path}\n[[flow]]\n\
         test = \"migration\"\n{flow}"
    );
    let file = ScenarioFile::parse("x.toml", &text);
    let loaded = file.and_then(|file| file.load(&mut |name| Err(format!("no file {name}"))));
    let scenario = loaded.unwrap_or_else(|error| panic!("{error}\n{text}")).scenario;
    let outcome = Simulation::new(scenario, |_, _| None).unwrap().run(1, |_| true);
    assert_eq!(outcome.violations, Vec::<String>::new(), "{text}");
    assert_eq!(outcome.unfinished, None, "{text}");
    let flow = outcome.flows.into_iter().next().unwrap();
    assert_eq!(flow.failure, None, "{text}");
    (flow.migration.unwrap(), flow)
}

fn seconds(ns: u64) -> f64 {
    ns as f64 / 1e9
}

fn assert_near(found: f64, expected: f64) {
    assert!((found / expected - 1.0).abs() < 0.02, "{found} instead of {expected}");
}

#[test]
fn an_idle_guest_moves_in_one_pass_behind_its_disk() {
    let keys = "setup = \"500ms\"\ndisk = \"1G\"\ndisk_rate = \"4G\"\nmemory = \"2G\"\n\
                memory_rate = \"8G\"";
    let (migrated, flow) = simulate(100, "", keys);
    assert!(migrated.finished);
    assert_eq!((migrated.passes, migrated.left_bytes), (1, 0));
    assert_eq!((migrated.disk_bytes, migrated.memory_bytes), (1 << 30, (2 << 30) + (1 << 20)));
    assert_eq!(flow.bytes, migrated.disk_bytes + migrated.memory_bytes);
    assert_near(seconds(migrated.setup_ns.unwrap()), 0.5);
    assert_near(seconds(migrated.disk_ns.unwrap()), GIB * 8.0 / 4e9);
    // The guest stops when the rest takes 300 ms.
    let downtime = seconds(migrated.downtime_ns.unwrap());
    assert_near(downtime, 0.3);
    assert_near(seconds(migrated.pre_copy_ns.unwrap()) + downtime, 2.0 * GIB * 8.0 / 8e9);
}

#[test]
fn passes_shrink_by_what_the_guest_dirties_meanwhile() {
    let keys = "memory = \"4G\"\nmemory_rate = \"16G\"\nworking_set = \"1G\"\ndirty_rate = \"8G\"";
    let (migrated, _) = simulate(100, "", keys);
    assert!(migrated.finished && migrated.passes > 2, "{migrated:?}");
    // All of the working set after the first pass; then each pass leaves half of what it sends, or
    // less: what is still to be sent does not become dirty once more.
    let sent = migrated.memory_bytes as f64 / GIB;
    assert!((5.2..6.0).contains(&sent), "{sent}");
    assert_near(seconds(migrated.total_ns), migrated.memory_bytes as f64 / 2e9);
}

#[test]
fn a_guest_that_dirties_faster_than_is_sent_stays_where_it_is() {
    let keys = "memory = \"1G\"\nmemory_rate = \"8G\"\nworking_set = \"1G\"\ndirty_rate = \"20G\"\n\
                timeout = \"10s\"";
    let (migrated, flow) = simulate(100, "", keys);
    assert!(!migrated.finished);
    assert_eq!(migrated.total_ns, 10_000_000_000);
    assert_eq!(migrated.downtime_ns, None);
    assert!(migrated.left_bytes > 0);
    assert_near(flow.goodput_bps, 8e9);
}

#[test]
fn a_pass_within_the_guests_pause_is_the_last() {
    let keys = "memory = \"1G\"\nmemory_rate = \"16G\"\nworking_set = \"1G\"\n\
                dirty_rate = \"90G\"\ntimeout = \"20s\"";
    assert!(!simulate(0, "", keys).0.finished);
    assert!(simulate(0, "", &format!("{keys}\ndirty_pause = \"1s\"")).0.finished);
}

#[test]
fn a_window_limits_a_long_path_and_boxes_lift_it() {
    let keys = "memory = \"256M\"\nsize = \"64K\"\ntx_depth = 16";
    let window = 16.0 * 65_536.0;
    let (plain, _) = simulate(1000, "", keys);
    assert_near(seconds(plain.total_ns), GIB / 4.0 / window * 0.01);
    let (boxed, _) = simulate(1000, "accelerators = \"both\"\nlan_delay = \"1us\"", keys);
    assert!(boxed.total_ns * 20 < plain.total_ns, "{boxed:?} {plain:?}");
}

#[test]
fn a_lossy_path_costs_time_and_no_byte() {
    let keys = "memory = \"128M\"";
    let (lossy, flow) = simulate(10, "loss = 1e-4", keys);
    assert!(lossy.finished);
    assert_eq!(flow.bytes, (128 << 20) + (1 << 20));
    assert!(lossy.total_ns > simulate(10, "", keys).0.total_ns);
}
