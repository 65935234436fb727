//! NVMe over Fabrics over a lab: what a host writes is what it reads, and refusals name a cure.

use longhaul_checks::guest::skip_loudly;
use longhaul_checks::{Finished, Program, RuntimeDir, TestLab, longhaul};
use serde_json::Value;
use std::fs;
use std::time::{Duration, Instant};

const LIMIT: Duration = Duration::from_secs(120);
const TARGET: &str = "10.77.0.2";

/// A lab whose host b serves.
struct Storage {
    lab: TestLab,
}

fn program() -> String {
    longhaul().display().to_string()
}

fn json(finished: &Finished) -> Value {
    serde_json::from_str(&finished.stdout).unwrap_or_else(|e| panic!("{e}: {finished}"))
}

impl Storage {
    fn over(path: &str) -> Self {
        Storage { lab: TestLab::up(path) }
    }

    fn target(&self, options: &str) -> Program {
        self.lab.exec("b", &format!("{} storage target --json {options}", program()))
    }

    /// A host that waits until the target listens.
    fn host(&self, options: &str) -> Program {
        let line = format!("{} storage host {TARGET} --wait 100 --json {options}", program());
        self.lab.exec("a", &line)
    }

    /// Runs a load with verification, and returns its job's figures.
    fn verified(&self, options: &str) -> Value {
        let finished = self.host(&format!("--verify {options}")).succeed(LIMIT);
        let job = json(&finished)["jobs"][0].clone();
        assert_eq!(job["verify"]["mismatches"], 0, "{finished}");
        assert!(job["verify"]["verified"].as_u64().unwrap() > 0, "{finished}");
        job
    }
}

#[test]
fn what_is_written_is_read_over_every_kind_of_path() {
    for path in [
        "--distance 0km --rate 10G",
        "--distance 100km --rate 10G --loss 1e-3",
        "--distance 1000km --rate 10G --loss 1e-3 --accelerate transport",
    ] {
        let storage = Storage::over(path);
        let target = storage.target("--namespace memory:64M --namespace null:1M");
        for (options, operations) in [
            ("--rw randrw --bs 4K --depth 32 --ops 1000", 1000),
            ("--rw write --bs 64K --depth 16 --jobs 2 --ops 100", 200),
        ] {
            let job = storage.verified(options);
            let count = |side: &str| job[side]["total_ios"].as_u64().unwrap();
            assert_eq!(count("read") + count("write"), operations, "{path}: {job}");
            let latency = &job["write"]["clat_ns"];
            assert_eq!(latency["N"], job["write"]["total_ios"]);
            assert!(latency["percentile"]["99.000000"].as_u64() <= latency["max"].as_u64());
        }
        target.signal(libc::SIGINT);
        let totals = json(&target.succeed(LIMIT));
        // An admin queue and one or two I/O queues.
        assert_eq!(totals["connections"], 5, "{path}: {totals}");
        let written = totals["written_bytes"].as_u64().unwrap();
        assert!(written >= 200 << 16, "{path}: {totals}");
    }
}

#[test]
fn a_host_of_a_target_that_dies_is_told_and_may_return() {
    let storage = Storage::over("--distance 10km --rate 10G");
    let files = RuntimeDir::new();
    let image = files.path().join("disk.img");
    let options = format!("--namespace file:{}:16M --block 4096", image.display());
    let mut target = storage.target(&options);
    storage.verified("--rw randwrite --bs 8K --ops 500");
    let before = fs::read(&image).unwrap();
    assert!(before.len() == 16 << 20 && before.iter().any(|byte| *byte != 0));
    let job = storage.host("--rw randwrite --bs 8K --verify --seed 2 --runtime 100");
    let begun = Instant::now();
    while fs::read(&image).unwrap() == before {
        assert!(begun.elapsed() < LIMIT, "the host writes nothing");
        std::thread::sleep(Duration::from_millis(10));
    }
    target.signal(libc::SIGKILL);
    target.wait(LIMIT);
    let lost = job.finish(LIMIT);
    // By the retries of this queue or of the admin queue, or by the keep-alive.
    let reasons = ["the connection of queue", "the association ended"];
    let is_told = reasons.iter().any(|reason| lost.stderr.contains(reason));
    assert!(!lost.status.success() && is_told, "{lost}");
    assert!(lost.stderr.contains("see whether the target still runs"), "{lost}");
    let _again = storage.target(&options);
    storage.verified("--rw randrw --bs 8K --ops 500");
}

#[test]
fn what_cannot_be_done_is_refused_with_a_cure() {
    let storage = Storage::over("--distance 0km --rate 10G");
    let line = |rest: &str| format!("{} storage {rest}", program());
    let refused = storage.lab.exec("a", &line(&format!("host {TARGET}"))).finish(LIMIT);
    assert!(!refused.status.success(), "{refused}");
    assert!(refused.stderr.contains("start 'longhaul storage target' there first"), "{refused}");
    let target = storage.target("--host nqn.2026-01.org.example:friend --queues 2");
    let friend = "--host-nqn nqn.2026-01.org.example:friend --ops 10";
    storage.verified(&format!("--rw write {friend}"));
    for (options, text) in [
        ("", "admit this one there with 'longhaul storage target --host NQN'"),
        ("--nqn nqn.2026-01.org.example:none", "list the subsystems with 'longhaul storage disc"),
        (&format!("{friend} --bs 1000"), "no multiple of the namespace's blocks of 512 bytes"),
        (&format!("{friend} --bs 1M"), "raise the target's --max-transfer"),
        (&format!("{friend} --depth 500"), "use a smaller --depth"),
        (&format!("{friend} --jobs 3"), "grants 2 I/O queues for 3 jobs"),
        (&format!("{friend} --namespace 7"), "no namespace 7"),
        ("--fabric tcp", "give --engine spdk=DIR"),
    ] {
        let refused = storage.host(options).finish(LIMIT);
        assert!(!refused.status.success() && refused.stderr.contains(text), "{text}: {refused}");
    }
    let discover = |options: &str| {
        let line = line(&format!("discover {TARGET} --json {options}"));
        let found = json(&storage.lab.exec("a", &line).succeed(LIMIT));
        found.as_array().unwrap().iter().map(|one| one["subnqn"].clone()).collect::<Vec<_>>()
    };
    let discovery = "nqn.2014-08.org.nvmexpress.discovery";
    assert_eq!(discover(""), [discovery]);
    let found = discover("--host-nqn nqn.2026-01.org.example:friend");
    assert_eq!(found, [discovery, "nqn.2026-01.longhaul:storage"]);
    target.signal(libc::SIGTERM);
    target.succeed(LIMIT);

    let files = RuntimeDir::new();
    let outside = Program::start(&mut files.longhaul("storage host 127.0.0.1")).finish(LIMIT);
    assert!(outside.stderr.contains("run it with 'longhaul exec'"), "{outside}");
    for (options, text) in [
        ("--namespace file:/nonexistent/disk", "give a size to create it"),
        ("--engine spdk=/nonexistent", "give the directory of a built SPDK"),
        ("--engine fio", "spdk=DIR with the directory of a built SPDK, is needed"),
        ("--cores 2", "leave it out, or give --engine spdk=DIR"),
    ] {
        let refused = storage.target(options).finish(LIMIT);
        assert!(!refused.status.success() && refused.stderr.contains(text), "{text}: {refused}");
    }
}

#[test]
fn boxes_read_ahead_for_the_life_of_a_connection() {
    /// Ranges that a box remembers of a connection: what lies before them is forgotten.
    const REMEMBERED: u64 = 1024;
    let storage = Storage::over("--distance 100km --rate 10G --accelerate read-ahead");
    let _target = storage.target("--namespace memory:64M");
    storage.verified("--rw randwrite --bs 16K --depth 32 --ops 4000");
    let status = storage.lab.status();
    let counters = |site: usize| &status["accelerators"][site]["read_ahead"]["counters"];
    let (fetched, answered) = (&counters(0)["fetched"], &counters(1)["answered"]);
    // On a loaded machine READs wait too long for their announcements, and pass.
    let lasts = |count: &Value| count.as_u64().is_some_and(|count| count > REMEMBERED + 100);
    assert!(lasts(fetched) && lasts(answered), "{status}");
}

/// What fails under a load.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Failure {
    Target,
    Path,
}

/// Runs a load through a failure. None of its acknowledged writes may be lost.
fn assert_writes_survive(storage: &Storage, failure: Failure) {
    let place = |name: &str| storage.lab.runtime().path().join(name);
    let (image, record) = (place("disk.img"), place("writes.json"));
    let served = format!("--namespace file:{}:32M", image.display());
    let mut target = storage.target(&served);
    let mut job = storage.host(&format!(
        "--rw randwrite --bs 8K --verify --runtime 6 --keep-alive 5 --record {}",
        record.display()
    ));
    let begun = Instant::now();
    let is_written = || fs::read(&image).is_ok_and(|bytes| bytes.iter().any(|byte| *byte != 0));
    while job.is_running() && !is_written() {
        assert!(begun.elapsed() < LIMIT, "the host writes nothing");
        std::thread::sleep(Duration::from_millis(10));
    }
    let _again = match failure {
        Failure::Target => {
            target.signal(libc::SIGKILL);
            target.wait(LIMIT);
            let ended = job.finish(LIMIT);
            assert!(!ended.status.success(), "its target was killed: {ended}");
            Some(storage.target(&served))
        }
        // By the cut's length and the load of this machine it ends well or gives up.
        Failure::Path => {
            job.finish(LIMIT);
            None
        }
    };
    let check = format!("storage host {TARGET} --wait 100 --json --check {}", record.display());
    let line = format!("{} {check}", program());
    let checked = json(&storage.lab.exec("a", &line).succeed(LIMIT));
    assert_eq!(checked["lost"], 0, "{checked}");
    assert!(checked["checked"].as_u64().unwrap() > 0, "{checked}");
}

fn over_all_boxes(path: &str, failure: Failure) {
    for boxes in ["none", "both", "transport", "read-ahead"] {
        let path = format!("--distance 100km --rate 10G --accelerate {boxes} {path}");
        assert_writes_survive(&Storage::over(&path), failure);
    }
}

const CUT_OFTEN: &str = "--cut-for 1s --cut-every 3s";

#[test]
fn no_acknowledged_write_is_lost_with_a_killed_target() {
    over_all_boxes("", Failure::Target);
}

#[test]
fn no_acknowledged_write_is_lost_with_a_path_that_is_cut() {
    over_all_boxes(CUT_OFTEN, Failure::Path);
}

#[test]
#[ignore = "minutes"]
fn no_acknowledged_write_is_lost_in_many_failures() {
    for _ in 0..5 {
        over_all_boxes("", Failure::Target);
        over_all_boxes(CUT_OFTEN, Failure::Path);
    }
    for boxes in ["none", "both", "transport", "read-ahead"] {
        let path = ["--distance", "100km", "--accelerate", boxes, "--at", "2s cut 60s"];
        assert_writes_survive(&Storage { lab: TestLab::up_with(path) }, Failure::Path);
    }
}

/// SPDK's target and load generator beside ours, each with each, and over NVMe/TCP.
#[test]
fn spdk_serves_us_and_loads_us() {
    let Some(dir) = std::env::var_os("LONGHAUL_SPDK") else {
        return skip_loudly("SPDK as target and host", &"LONGHAUL_SPDK names no built SPDK");
    };
    let spdk = format!("--engine spdk={}", dir.display());
    let storage = Storage::over("--network kernel --distance 1km --rate 10G");
    let served = "--namespace memory:64M --block 4096";
    let loaded = |options: &str| {
        let line = format!("{} storage host {TARGET} --json --runtime 1 {options}", program());
        let job = json(&storage.lab.exec("a", &line).succeed(LIMIT))["jobs"][0].clone();
        assert_eq!(job["jobname"], "spdk");
        assert!(job["read"]["total_ios"].as_u64().unwrap() > 0, "{job}");
        assert!(job["read"]["clat_ns"]["percentile"]["99.000000"].as_u64() > Some(0), "{job}");
    };
    for (engine, fabrics) in [("", &["rdma"][..]), (&*spdk, &["rdma", "tcp"])] {
        for fabric in fabrics {
            let mut target = storage.target(&format!("{served} --fabric {fabric} {engine}"));
            target.wait_for_output("serving ", LIMIT);
            loaded(&format!("{spdk} --fabric {fabric}"));
            if *fabric == "rdma" {
                storage.verified("--rw randrw --bs 8K --ops 2000");
            }
            target.signal(libc::SIGTERM);
            target.succeed(LIMIT);
        }
    }
}
