//! `longhaul measure`: campaigns in a lab and on this machine, killed, interrupted and resumed;
//! programs that hang, are missing or print nothing; presets, topologies, ssh, Slurm,
//! pscheduler, powertop.

mod power;
mod presets;
mod pscheduler;
mod queues;
mod slurm;
mod ssh;
mod topologies;

use longhaul_checks::{Finished, Program, RuntimeDir, Turn, longhaul, members_of_group, require};
use serde_json::Value;
use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

const LIMIT: Duration = Duration::from_secs(300);

/// Two programs over two paths. The hosts share this machine's network, so that the campaign runs
/// where there are no namespaces.
const LAB: &str = r#"
name = "check"
title = "perftest and storage"
repeats = 2
limit_s = 60
[lab]
rate = "10G"
network = "none"
[axes]
distance = ["0km", "10km"]
[[program]]
name = "write"
client = "ib_write_bw -d longhaul0 -F -s {message_bytes} -n 500"
axes = { message_bytes = ["4K", "64K"] }
[[program]]
name = "storage"
server = "longhaul storage target --namespace memory:16M"
client = "longhaul storage host --rw randrw --bs 4K --depth 8 --ops 500 --wait 60"
"#;

/// Runs of [`LAB`]: 2 sizes and storage, over 2 paths, twice.
const RUNS: usize = 12;

/// A directory with a campaign in `x.toml`, in which programs run.
struct Place {
    runtime: RuntimeDir,
}

impl Place {
    fn new(campaign: &str) -> Self {
        let runtime = RuntimeDir::new();
        fs::write(runtime.path().join("x.toml"), campaign).unwrap();
        Place { runtime }
    }

    fn start(&self, arguments: &str) -> Program {
        Program::start_group(&mut self.runtime.longhaul_inside(&format!("measure {arguments}")))
    }

    fn run(&self, arguments: &str) -> Finished {
        self.start(arguments).finish(LIMIT)
    }

    fn succeed(&self, arguments: &str) -> Finished {
        self.start(arguments).succeed(LIMIT)
    }

    fn text(&self) -> String {
        let path = self.runtime.path().join("o/results.jsonl");
        fs::read_to_string(path).unwrap_or_default()
    }

    /// Results by point and repeat. None is listed twice.
    fn results(&self) -> BTreeMap<String, Value> {
        let mut results = BTreeMap::new();
        for line in self.text().lines() {
            let line: Value = serde_json::from_str(line).unwrap_or_else(|e| panic!("{line}: {e}"));
            if line["description"].is_object() {
                continue;
            }
            let key = format!("{} {}", line["point"], line["provenance"]["repeat"]);
            let before = results.insert(key, line.clone());
            assert_eq!(before, None, "{line}");
        }
        results
    }

    fn wait_for_results(&self, count: usize) {
        let deadline = Instant::now() + LIMIT;
        while self.text().matches("\"point\"").count() < count {
            assert!(Instant::now() < deadline, "no {count} results in {LIMIT:?}");
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

fn json(finished: &Finished) -> Value {
    serde_json::from_str(&finished.stdout).unwrap_or_else(|e| panic!("{e}: {finished}"))
}

/// Processes whose command line contains `word`.
fn processes_with(word: &str) -> Vec<String> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    let lines = entries.map(|entry| {
        let words = fs::read(entry.path().join("cmdline")).unwrap_or_default();
        String::from_utf8_lossy(&words).replace('\0', " ")
    });
    lines.filter(|line| line.contains(word)).collect()
}

fn wait_until_gone(word: &str) {
    let deadline = Instant::now() + LIMIT;
    while !processes_with(word).is_empty() {
        assert!(Instant::now() < deadline, "{:?}", processes_with(word));
        std::thread::sleep(Duration::from_millis(10));
    }
}

mod a_lab_campaign {
    use super::*;

    #[test]
    fn that_is_killed_loses_no_finished_run_and_repeats_none() {
        require("ib_write_bw", "perftest");
        let _turn = Turn::take();
        let place = Place::new(LAB);
        let campaign = place.start("x.toml --out o");
        let group = campaign.id();
        place.wait_for_results(3);
        campaign.signal(libc::SIGKILL);
        let killed = campaign.finish(LIMIT);
        let before = place.text();
        let there = place.results().len();
        assert!((3..RUNS).contains(&there), "{there}: {killed}");
        // Neither its lab nor its programs survive.
        let deadline = Instant::now() + LIMIT;
        while !members_of_group(group).is_empty() {
            assert!(Instant::now() < deadline, "{:?}", members_of_group(group));
            std::thread::sleep(Duration::from_millis(10));
        }
        wait_until_gone("ib_write_bw -d longhaul0 -F -s");
        let resumed = place.succeed("x.toml --out o --json");
        assert!(place.text().starts_with(&before), "{resumed}");
        assert_eq!(json(&resumed)["measured"], RUNS - there, "{resumed}");
        let results = place.results();
        assert_eq!(results.len(), RUNS);
        for (key, result) in &results {
            assert!(result["values"]["goodput_bps"].as_f64() > Some(0.0), "{key}: {result}");
            assert_eq!(result["point"]["rate_bps"].as_f64(), Some(1e10), "{key}");
        }
        let again = place.succeed("x.toml --out o");
        assert!(again.stdout.contains("0 new runs: o/results.jsonl"), "{again}");
        assert!(again.stdout.contains("8 rows with n below 5"), "{again}");
    }

    #[test]
    fn that_is_interrupted_says_how_it_goes_on() {
        require("ib_write_bw", "perftest");
        let _turn = Turn::take();
        let place = Place::new(LAB);
        let campaign = place.start("x.toml --out o");
        place.wait_for_results(1);
        campaign.interrupt_group();
        let ended = campaign.finish(LIMIT);
        assert_eq!(ended.status.code(), Some(130), "{ended}");
        assert!(ended.stderr.contains("the same command continues"), "{ended}");
        assert!(ended.stdout.contains("new run"), "{ended}");
        let there = place.results().len();
        // Values may be added meanwhile.
        let more = LAB.replace("\"0km\", \"10km\"", "\"0km\", \"10km\", \"20km\"");
        fs::write(place.runtime.path().join("x.toml"), more).unwrap();
        let resumed = place.succeed("x.toml --out o --json");
        assert_eq!(json(&resumed)["measured"], 18 - there, "{resumed}");
        assert_eq!(place.results().len(), 18);
    }

    #[test]
    fn of_storage_is_in_the_tree_and_runs_reduced() {
        let _turn = Turn::take();
        let place = Place::new("");
        let campaigns = Path::new(env!("CARGO_MANIFEST_DIR")).join("../labs/campaigns");
        let campaigns = campaigns.display();
        for (name, points) in [("storage", 1536), ("storage-beside-spdk", 288)] {
            let list = json(&place.succeed(&format!("{campaigns}/{name}.toml --list --json")));
            assert_eq!(list["points"].as_array().unwrap().len(), points, "{name}");
        }
        let file = format!("{campaigns}/storage.toml");
        let done = json(&place.succeed(&format!("{file} --reduced --out o --json")));
        assert_eq!((&done["measured"], &done["failed"]), (&8.into(), &Value::Array(vec![])));
        for (key, result) in place.results() {
            assert!(result["values"]["total_iops"].as_f64() > Some(0.0), "{key}: {result}");
        }
    }

    #[test]
    fn does_not_measure_tcp_that_does_not_cross_the_fibre() {
        require("iperf3", "iperf3");
        let _turn = Turn::take();
        let place = Place::new(
            "name = \"x\"\n[lab]\nnetwork = \"none\"\n[[program]]\nname = \"tcp\"\nclient = \
             \"iperf3 --time 1\"\n",
        );
        let refused = place.run("x.toml --out o");
        assert_eq!(refused.status.code(), Some(1), "{refused}");
        assert!(refused.stderr.contains("does not cross the fibre"), "{refused}");
    }
}

mod failures {
    use super::*;

    #[test]
    fn of_the_disk_keep_what_is_whole_and_say_so() {
        let place = Place::new(
            "name = \"x\"\nrepeats = 20\n[[program]]\nname = \"a\"\nclient = \"echo \
             1\"\npattern = \"(?<a>1)\"\n",
        );
        let measure = "measure x.toml --out o";
        let mut full = Command::new("bash");
        let script = format!("ulimit -f 8; trap '' XFSZ; exec {} {measure}", longhaul().display());
        full.current_dir(place.runtime.path()).args(["-c", &script]);
        let ended = Program::start(&mut full).finish(LIMIT);
        assert_eq!(ended.status.code(), Some(1), "{ended}");
        let there = place.results().len();
        assert!((1..20).contains(&there), "{there}: {ended}");
        for part in ["File too large", "the runs that ended before are complete", "free some space"]
        {
            assert!(ended.stderr.contains(part), "{part:?} is missing: {ended}");
        }
        place.succeed("x.toml --out o");
        assert_eq!(place.results().len(), 20);
    }

    /// Programs of this machine, one of which is well.
    const PROGRAMS: &str = r#"
name = "check"
repeats = 1
retries = 1
limit_s = 1
order = "listed"
[[program]]
name = "hangs"
client = "sleep 1000.25"
pattern = "(?<a>1)"
[[program]]
name = "says-nothing"
client = "echo nothing"
pattern = "(?<a>[0-9]+)"
[[program]]
name = "is-missing"
client = "no-such-program"
pattern = "(?<a>1)"
[[program]]
name = "fails"
client = "sh -c 'echo the disk is on fire >&2; exit 3'"
pattern = "(?<a>1)"
[[program]]
name = "has-no-server"
client = "true"
server = "false {port}"
pattern = "(?<a>1)"
[[program]]
name = "is-well"
client = "echo bandwidth 2.5 MB/s"
pattern = 'bandwidth (?<bandwidth>[\d.]+) (?<bandwidth_unit>\S+)'
"#;

    #[test]
    fn of_a_run_are_results_with_a_reason_and_the_others_go_on() {
        let place = Place::new(PROGRAMS);
        let ended = place.run("x.toml --out o --json");
        assert_eq!(ended.status.code(), Some(1), "{ended}");
        assert!(ended.stderr.contains("--retry-failed measures them once more"), "{ended}");
        wait_until_gone("sleep 1000.25");
        let results = place.results();
        let of = |program: &str| &results[&format!("{{\"program\":\"{program}\"}} 1")];
        for (program, reason) in [
            ("hangs", "the client, sleep did not end within 1 s"),
            ("says-nothing", "the pattern '(?<a>[0-9]+)' matches nothing; its output: o/output/"),
            ("is-missing", "no program 'no-such-program' is installed"),
            ("fails", "the client, sh: exit status: 3: the disk is on fire"),
            ("has-no-server", "the server, false: exit status: 1"),
        ] {
            let found = of(program)["failed"]["a"].as_str().unwrap_or_default();
            assert!(found.starts_with(reason), "{found}\n{ended}");
            // What is not installed is not tried again.
            let note = if program == "is-missing" { Value::Null } else { "attempt 2".into() };
            assert_eq!(of(program)["note"], note, "{program}");
        }
        assert_eq!(of("is-well")["values"]["bandwidth_bps"], 2e7);
        assert_eq!(json(&ended)["failed"].as_array().unwrap().len(), 5);
        // Failures are results, until they are forgotten.
        let again = place.run("x.toml --out o");
        assert_eq!(again.stdout.matches("failed: program ").count(), 5, "{again}");
        assert_eq!(json(&place.run("x.toml --out o --json"))["measured"], 0);
        let once_more = place.run("x.toml --out o --json --retry-failed");
        assert_eq!(json(&once_more)["failed"].as_array().unwrap().len(), 5, "{once_more}");
        assert_eq!(place.results().len(), 6);
    }

    #[test]
    fn of_a_file_come_before_anything_is_made() {
        let program = |keys: &str| format!("name = \"x\"\n[[program]]\nname = \"a\"\n{keys}\n");
        for (campaign, part) in [
            ("name = \"x\"\nrepeat = 1\n".to_owned(), "x.toml:2: unknown field `repeat`"),
            (program("client = \"dd\""), "x.toml:4: the output of 'dd' is unknown: give a"),
            (program("client = \"ib_write_bw {x}\""), "x.toml:4: no axis is called 'x'"),
            (program("client = \"ib_write_bw\"\n[lab]\nloss = 2"), "x.toml:6: invalid value '2'"),
            (String::new(), "x.toml:1: missing field `name`"),
        ] {
            let place = Place::new(&campaign);
            let refused = place.run("x.toml --out o");
            assert_eq!(refused.status.code(), Some(2), "{refused}");
            assert!(refused.stderr.contains(part), "{part:?} is missing: {refused}");
            assert_eq!(refused.stderr.lines().count(), 1, "{refused}");
            assert!(!place.runtime.path().join("o").exists(), "{refused}");
        }
        let none = Place::new("").run("none.toml");
        assert_eq!((none.status.code(), none.stdout.as_str()), (Some(2), ""), "{none}");
    }

    #[test]
    fn of_results_that_do_not_belong_here_name_a_cure() {
        let one = "name = \"x\"\nrepeats = 1\n[[program]]\nname = \"a\"\nclient = \"echo \
                   1\"\npattern = \"(?<a>1)\"\n";
        let place = Place::new(one);
        place.succeed("x.toml --out o");
        let results = place.runtime.path().join("o/results.jsonl");
        let text = place.text();
        fs::write(&results, text.replace("\"schema\":1", "\"schema\":7")).unwrap();
        let refused = place.run("x.toml --out o");
        let part = "line 1: schema 7; this program reads schema 1; give another --out, or use";
        assert!(refused.stderr.contains(part), "{refused}");
        fs::write(&results, &text).unwrap();
        let other = one.replace("echo 1", "echo 11");
        fs::write(place.runtime.path().join("x.toml"), other).unwrap();
        let refused = place.run("x.toml --out o");
        assert_eq!(refused.status.code(), Some(2), "{refused}");
        let part = "o has results of a previous version of x.toml, or of another version of this \
                    program; give another --out";
        assert!(refused.stderr.contains(part), "{refused}");
        assert_eq!(place.text(), text);
    }

    #[test]
    fn of_two_campaigns_in_one_directory_are_prevented() {
        let place = Place::new(
            "name = \"x\"\nlimit_s = 600\n[[program]]\nname = \"a\"\nclient = \"sleep \
             600.5\"\npattern = \"(?<a>1)\"\n",
        );
        let mut campaign = place.start("x.toml --out o");
        campaign.wait_for_output("[1/5", LIMIT);
        let refused = place.run("x.toml --out o");
        assert!(refused.stderr.contains("another campaign is writing o/results"), "{refused}");
        campaign.interrupt_group();
        assert_eq!(campaign.finish(LIMIT).status.code(), Some(130));
        wait_until_gone("sleep 600.5");
    }
}

mod the_example {
    use super::*;

    #[test]
    fn is_a_campaign() {
        let place = Place::new("");
        let example = place.succeed("--example").stdout;
        fs::write(place.runtime.path().join("x.toml"), &example).unwrap();
        let whole = json(&place.succeed("x.toml --list --json"));
        // WRITE: 3 distances, 2 losses, 2 boxes, 2 sizes; latency: 3 distances; TCP: 3 distances, 2
        // losses, 2 numbers of connections; ping: 3 distances.
        assert_eq!(whole["points"].as_array().unwrap().len(), 24 + 3 + 12 + 3);
        let reduced = place.succeed("x.toml --list --reduced");
        assert!(reduced.stdout.ends_with("write-over-distance: 20 points, 20 runs\n"), "{reduced}");
        assert!(!place.runtime.path().join("out").exists());
    }
}
