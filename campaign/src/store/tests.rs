//! What a store keeps, and what it refuses.

use super::*;
use longhaul_bench::{Provenance, Source};

/// A directory that is removed when dropped.
struct Place(PathBuf);

impl Place {
    fn new(name: &str) -> Self {
        let path =
            std::env::temp_dir().join(format!("longhaul-store-{name}-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&path);
        Place(path)
    }

    fn open(&self, digest: &str) -> Result<Store, StoreError> {
        Store::open("campaign", &self.0, digest, Path::new("x.toml"))
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn point(qps: u32) -> Point {
    Point::new().with("qps", qps)
}

fn record(qps: u32, repeat: u32) -> Record {
    let provenance = Provenance { repeat: Some(repeat), ..Provenance::default() };
    Record::new("x", Source::Measured, point(qps)).value("a", 1.0).from_run(provenance)
}

#[test]
fn what_was_added_is_there_after_a_cut() {
    let place = Place::new("cut");
    let mut store = place.open("one").unwrap();
    store.add(&record(1, 1)).unwrap();
    store.add(&record(1, 2)).unwrap();
    let path = store.path().to_owned();
    drop(store);
    let mut text = std::fs::read_to_string(&path).unwrap();
    text += "{\"schema\":1,\"expe";
    std::fs::write(&path, text).unwrap();
    let mut store = place.open("one").unwrap();
    assert!(store.has(&point(1), 1) && store.has(&point(1), 2));
    assert!(!store.has(&point(1), 3) && !store.has(&point(2), 1));
    store.add(&record(2, 1)).unwrap();
    drop(store);
    assert_eq!(place.open("one").unwrap().records().len(), 3);
}

#[test]
fn results_of_something_else_are_refused() {
    let place = Place::new("else");
    let mut store = place.open("one").unwrap();
    store.add(&record(1, 1)).unwrap();
    assert!(matches!(place.open("one"), Err(StoreError::Busy { .. })));
    drop(store);
    assert!(matches!(place.open("two"), Err(StoreError::OtherVersion { .. })));
    let results = place.0.join("results.jsonl");
    let other = std::fs::read_to_string(&results).unwrap().replace("\"schema\":1", "\"schema\":9");
    std::fs::write(&results, other).unwrap();
    let refused = place.open("one").err().unwrap().to_string();
    assert!(refused.contains("line 1: schema 9; this program reads schema 1"), "{refused}");
    std::fs::remove_file(place.0.join("campaign.json")).unwrap();
    assert!(matches!(place.open("one"), Err(StoreError::NotOurs { .. })));
}

#[test]
fn failed_runs_are_forgotten_and_others_kept() {
    let place = Place::new("failed");
    let mut store = place.open("one").unwrap();
    store.describe(&Experiment::new("x", "title")).unwrap();
    store.add(&record(1, 1)).unwrap();
    store.add(&Record { values: [].into(), ..record(2, 1) }.failure("a", "hung")).unwrap();
    assert_eq!((store.forget_failed().unwrap(), store.forget_failed().unwrap()), (1, 0));
    assert!(store.has(&point(1), 1) && !store.has(&point(2), 1));
    assert!(matches!(place.open("one"), Err(StoreError::Busy { .. })), "still locked");
    store.add(&record(2, 1)).unwrap();
    drop(store);
    let there = ResultFile::read(&place.0.join("results.jsonl")).unwrap();
    assert_eq!((there.experiments.len(), there.records.len()), (1, 2));
}

#[test]
fn results_of_tasks_are_collected_once_and_their_unfinished_runs_are_known() {
    let place = Place::new("tasks");
    let store = place.open("one").unwrap();
    assert!(matches!(
        Store::open_share("campaign", &place.0, "two", 0),
        Err(StoreError::OtherTask { .. })
    ));
    let share = |number| Store::open_share("campaign", &place.0, "one", number).unwrap();
    let (mut ended, mut writes) = (share(0), share(1));
    ended.begin(&record(1, 1)).unwrap();
    ended.add(&record(1, 1)).unwrap();
    ended.begin(&record(1, 2)).unwrap();
    writes.add(&record(2, 1)).unwrap();
    assert_eq!(store.results_of_tasks(), 2);
    drop((ended, store));
    // The results of a task that writes are left to it.
    let mut store = place.open("one").unwrap();
    assert!(store.has(&point(1), 1) && !store.has(&point(2), 1));
    assert!(matches!(store.collect(), Err(StoreError::Busy { .. })));
    drop(writes);
    store.collect().unwrap();
    assert!(store.has(&point(2), 1));
    let unfinished = store.take_unfinished().unwrap();
    assert_eq!(unfinished, [(0, record(1, 2))]);
    assert!(!store.has_record(&record(1, 2)) && store.has_record(&record(1, 1)));
    assert_eq!(store.take_unfinished().unwrap(), []);
    // A task that starts again knows what was collected.
    assert!(share(0).has(&point(1), 1));
}
