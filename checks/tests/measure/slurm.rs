//! `--executor slurm` with Debian's Slurm on this machine. Skipped, loudly, without the packages or
//! root.

use super::*;
use longhaul_checks::Slurm;

/// Programs of this machine. Each run adds a line to the file `ran`.
fn scripts(points: u32, script: &str) -> String {
    let values: Vec<String> = (1..=points).map(|number| number.to_string()).collect();
    format!(
        "name = \"check\"\nrepeats = 2\nretries = 0\nlimit_s = 600\n[axes]\nqps = [{}]\n\
         [[program]]\nname = \"p\"\nclient = '''sh -c \"echo {{qps}} >> $PWD/ran; {script}; echo \
         a={{qps}}\"'''\npattern = \"a=(?<a>[0-9]+)\"\n",
        values.join(", ")
    )
}

/// A cluster, and a directory with a campaign.
struct Cluster {
    place: Place,
    slurm: Slurm,
}

impl Cluster {
    fn new(campaign: &str) -> Option<Self> {
        let place = Place::new(campaign);
        let slurm = Slurm::start(&place.runtime.path().join("slurm"))?;
        Some(Cluster { place, slurm })
    }

    fn start(&self, more: &str) -> Program {
        let line = format!("measure x.toml --out o --executor slurm {more}");
        Program::start_group(self.slurm.of(&mut self.place.runtime.longhaul_inside(&line)))
    }

    /// Runs that were begun.
    fn begun(&self) -> usize {
        let path = self.place.runtime.path().join("ran");
        fs::read_to_string(path).unwrap_or_default().lines().count()
    }

    /// Results in the files of tasks.
    fn results_of_tasks(&self) -> usize {
        let entries = fs::read_dir(self.place.runtime.path().join("o")).into_iter().flatten();
        let files = entries.flatten().map(|entry| entry.path());
        let files = files.filter(|path| path.extension().is_some_and(|end| end == "jsonl"));
        files
            .map(|file| fs::read_to_string(file).unwrap_or_default().matches("\"point\"").count())
            .sum()
    }

    /// The number of the job that was submitted.
    fn job(&self) -> String {
        let path = self.place.runtime.path().join("o/campaign.json");
        let job = || {
            let manifest: Value = serde_json::from_str(&fs::read_to_string(&path).ok()?).ok()?;
            Some(manifest["job"].as_str()?.to_owned())
        };
        self.slurm.wait("a job", || job().is_some());
        job().unwrap()
    }

    fn wait_for_results_of_tasks(&self, count: usize) {
        self.slurm.wait("results", || self.results_of_tasks() >= count);
    }

    /// Waits until no task is left.
    fn wait_for_end(&self) {
        self.slurm.wait("the end of a job", || self.slurm.ask("squeue --noheader").is_empty());
    }
}

/// Results are complete, each is that of its point, and only runs in progress at `ends` ends of
/// tasks were begun twice.
fn assert_complete(cluster: &Cluster, points: usize, ends: usize) {
    let results = cluster.place.results();
    assert_eq!(results.len(), 2 * points, "{:?}", results.keys());
    for (key, result) in &results {
        assert_eq!(result["values"]["a"].as_f64(), result["point"]["qps"].as_f64(), "{key}");
    }
    let begun = cluster.begun();
    assert!((2 * points..=2 * points + ends).contains(&begun), "{begun} runs were begun");
}

#[test]
fn a_job_array_measures_what_is_missing() {
    let Some(cluster) = Cluster::new(&scripts(4, "true")) else { return };
    let done = cluster.start("--tasks 3 --json").succeed(LIMIT);
    assert!(done.stderr.contains("submitted job"), "{done}");
    assert_eq!(json(&done)["measured"], 8, "{done}");
    assert_complete(&cluster, 4, 0);
    // The directory has a description, as after a campaign without Slurm.
    assert!(cluster.place.text().starts_with("{\"schema\":1,\"description\""));
    let more = scripts(6, "true");
    fs::write(cluster.place.runtime.path().join("x.toml"), more).unwrap();
    let again = cluster.start("--json").succeed(LIMIT);
    assert_eq!(json(&again)["measured"], 4, "{again}");
    assert_complete(&cluster, 6, 0);
    let none = cluster.start("").succeed(LIMIT);
    assert!(!none.stderr.contains("submitted"), "{none}");
}

#[test]
fn a_job_that_is_cancelled_or_killed_loses_no_finished_run_and_repeats_none() {
    let Some(cluster) = Cluster::new(&scripts(20, "sleep 0.2")) else { return };
    let waits = cluster.start("--tasks 2");
    cluster.wait_for_results_of_tasks(5);
    cluster.slurm.ask(&format!("scancel {}", cluster.job()));
    let ended = waits.finish(LIMIT);
    assert_eq!(ended.status.code(), Some(1), "{ended}");
    assert!(ended.stderr.contains("of 40 runs are missing; "), "{ended}");
    assert!(ended.stderr.contains("the same command continues with them"), "{ended}");
    let there = cluster.place.results().len();
    assert!((5..40).contains(&there), "{there}: {ended}");
    // The next job's tasks and their waiter are killed.
    let waits = cluster.start("--tasks 2");
    cluster.wait_for_results_of_tasks(there + 5);
    waits.signal(libc::SIGKILL);
    waits.finish(LIMIT);
    cluster.slurm.ask(&format!("scancel --signal=KILL --full {}", cluster.job()));
    cluster.wait_for_end();
    let resumed = cluster.start("--tasks 2").succeed(LIMIT);
    assert!(resumed.stderr.contains("submitted job"), "{resumed}");
    assert_complete(&cluster, 20, 4);
}

#[test]
fn a_wait_that_is_interrupted_goes_on_while_tasks_run() {
    let Some(cluster) = Cluster::new(&scripts(10, "sleep 0.3")) else { return };
    let waits = cluster.start("--tasks 2");
    cluster.wait_for_results_of_tasks(2);
    waits.interrupt_group();
    let ended = waits.finish(LIMIT);
    assert_eq!(ended.status.code(), Some(130), "{ended}");
    assert!(ended.stderr.contains("continues; the same command waits for it"), "{ended}");
    let mut local = cluster.place.runtime.longhaul_inside("measure x.toml --out o");
    let local = Program::start(cluster.slurm.of(&mut local)).finish(LIMIT);
    assert!(local.stderr.contains("works on these runs"), "{local}");
    let again = cluster.start("--tasks 2").succeed(LIMIT);
    assert!(again.stderr.contains("which was submitted before"), "{again}");
    assert_complete(&cluster, 10, 0);
}

#[test]
fn a_task_that_exceeds_its_memory_leaves_a_failure_with_the_reason() {
    // A shell that holds 600 MB at the third point.
    let hungry =
        "if [ {qps} = 3 ]; then x=$(head -c 600000000 /dev/zero | tr '\\\\0' x); sleep 60; fi";
    let campaign = scripts(4, hungry).replace("repeats = 2", "repeats = 1");
    let Some(cluster) = Cluster::new(&campaign) else { return };
    let ended = cluster.start("--tasks 4 --sbatch=--mem=300M").finish(LIMIT);
    assert_eq!(ended.status.code(), Some(1), "{ended}");
    let results = cluster.place.results();
    assert_eq!(results.len(), 4, "{ended}");
    let (failed, fine): (Vec<_>, Vec<_>) =
        results.values().partition(|result| result["failed"].is_object());
    assert_eq!((failed.len(), fine.len()), (1, 3), "{ended}");
    assert_eq!(failed[0]["point"]["qps"], 3, "{ended}");
    let why = failed[0]["failed"]["a"].as_str().unwrap();
    assert!(why.starts_with("Slurm killed task ") && why.contains("out of memory"), "{why}");
    assert!(ended.stdout.contains(why.split(';').next().unwrap()), "{ended}");
    // It is a result, until it is measured once more.
    let again = cluster.start("").finish(LIMIT);
    assert!(!again.stderr.contains("submitted"), "{again}");
    let fed = campaign.replace("600000000", "600");
    fs::write(cluster.place.runtime.path().join("x.toml"), fed).unwrap();
    let other = cluster.start("--retry-failed").finish(LIMIT);
    assert!(other.stderr.contains("a previous version of x.toml"), "{other}");
}

/// Slurm's time limits are whole minutes.
#[test]
#[ignore = "nightly: takes two minutes"]
fn a_task_that_exceeds_its_time_leaves_a_failure_with_the_reason() {
    let slow = "if [ {qps} = 2 ]; then sleep 400; fi";
    let campaign = scripts(2, slow).replace("repeats = 2", "repeats = 1");
    let Some(cluster) = Cluster::new(&campaign) else { return };
    let ended = cluster.start("--tasks 2 --sbatch=--time=1").finish(LIMIT);
    assert_eq!(ended.status.code(), Some(1), "{ended}");
    let results = cluster.place.results();
    let of = |qps: u32| &results[&format!("{{\"program\":\"p\",\"qps\":{qps}}} 1")];
    assert_eq!(of(1)["values"]["a"], 1, "{ended}");
    let why = of(2)["failed"]["a"].as_str().unwrap_or_default();
    assert!(
        why.starts_with("Slurm killed task ") && why.contains("its time limit"),
        "{why}: {ended}"
    );
}

/// 500 points: 5 distances, 10 sizes and 10 numbers of messages, each task in labs of its own.
const LAB_500: &str = r#"
name = "check"
title = "500 points"
repeats = 1
limit_s = 60
[lab]
rate = "10G"
network = "none"
memory = "256M"
[axes]
distance = ["0km", "1km", "2km", "5km", "10km"]
message_bytes = [64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384, 32768]
messages = [10, 20, 30, 40, 50, 60, 70, 80, 90, 100]
[[program]]
name = "write"
client = "ib_write_bw -d longhaul0 -F -s {message_bytes} -n {messages}"
"#;

#[test]
#[ignore = "nightly: 500 runs in labs"]
fn five_hundred_points_of_a_lab_survive_kills() {
    const LONG: Duration = Duration::from_secs(1800);
    require("ib_write_bw", "perftest");
    let _turn = Turn::take();
    let Some(cluster) = Cluster::new(LAB_500) else { return };
    let mut there = 0;
    for cancelled in [true, false] {
        let waits = cluster.start("--tasks 2");
        cluster.wait_for_results_of_tasks(there + 40);
        if cancelled {
            cluster.slurm.ask(&format!("scancel {}", cluster.job()));
            assert_eq!(waits.finish(LONG).status.code(), Some(1));
        } else {
            waits.signal(libc::SIGKILL);
            waits.finish(LONG);
            cluster.slurm.ask(&format!("scancel --signal=KILL --full {}", cluster.job()));
            cluster.wait_for_end();
        }
        there = cluster.results_of_tasks();
        assert!(there < 500, "it was over too soon");
    }
    let resumed = cluster.start("--tasks 2 --json").succeed(LONG);
    let results = cluster.place.results();
    assert_eq!(results.len(), 500, "{resumed}");
    for (key, result) in &results {
        assert!(result["values"]["goodput_bps"].as_f64() > Some(0.0), "{key}: {result}");
    }
}
