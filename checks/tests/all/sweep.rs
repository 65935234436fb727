//! `longhaul sweep`: grids of points, recovery from an interruption, a full disk and a kill, and
//! Slurm.

mod slurm;

use longhaul_checks::{Finished, Program, RuntimeDir, longhaul};
use serde_json::Value;
use std::collections::BTreeMap;
use std::fs;
use std::process::Command;
use std::time::{Duration, Instant};

const LIMIT: Duration = Duration::from_secs(240);

const SCENARIO: &str = r#"
name = "check"
seed = 3
[path]
distance = "10km"
loss = 1e-4
[[flow]]
op = "write"
size = "64K"
iterations = 100
"#;

/// A directory with the scenario in `x.toml`, in which programs run.
struct Place {
    runtime: RuntimeDir,
}

impl Place {
    fn new() -> Self {
        let runtime = RuntimeDir::new();
        fs::write(runtime.path().join("x.toml"), SCENARIO).unwrap();
        Place { runtime }
    }

    fn command(&self, arguments: &str) -> Command {
        self.runtime.longhaul_inside(arguments)
    }

    fn run(&self, arguments: &str) -> Finished {
        Program::start(&mut self.command(arguments)).finish(LIMIT)
    }

    fn succeed(&self, arguments: &str) -> Finished {
        Program::start(&mut self.command(arguments)).succeed(LIMIT)
    }

    fn text(&self, name: &str) -> String {
        fs::read_to_string(self.runtime.path().join(name)).unwrap_or_default()
    }

    /// Complete lines of a sweep's results.
    fn lines(&self, out: &str) -> usize {
        self.text(&format!("{out}/results.jsonl")).matches('\n').count()
    }

    /// Values by point and seed: everything that does not depend on time and place of the run. No
    /// point is listed twice.
    fn results(&self, out: &str) -> BTreeMap<String, Value> {
        let mut results = BTreeMap::new();
        for line in self.text(&format!("{out}/results.jsonl")).lines() {
            let record: Value =
                serde_json::from_str(line).unwrap_or_else(|e| panic!("{line}: {e}"));
            let key = format!("{} {}", record["point"], record["provenance"]["seed"]);
            let before = results.insert(key, record["values"].clone());
            assert_eq!(before, None, "{line}");
        }
        results
    }

    /// Waits until a sweep has some results.
    fn wait_for_lines(&self, out: &str, count: usize) {
        let deadline = Instant::now() + LIMIT;
        while self.lines(out) < count {
            assert!(Instant::now() < deadline, "no {count} results in {LIMIT:?}");
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

mod a_grid {
    use super::*;

    #[test]
    fn has_each_combination_once_and_the_same_results_on_any_number_of_cores() {
        let place = Place::new();
        let vary =
            "--vary flow.size=4K..64K,x4 --vary path.distance=1km,10km --vary flow.op=write,read";
        place.succeed(&format!("sweep x.toml {vary} --repeat 2 --jobs 1 --out one"));
        let results = place.results("one");
        assert_eq!(results.len(), 3 * 2 * 2 * 2);
        let key = r#"{"flow.op":"read","flow.size_bytes":16384,"path.distance_m":1000} 4"#;
        assert!(results.contains_key(key), "{:?}", results.keys());
        place.succeed(&format!("sweep x.toml {vary} --repeat 2 --jobs 4 --out four"));
        assert_eq!(place.results("four"), results);
    }

    #[test]
    fn goes_on_with_what_is_missing() {
        let place = Place::new();
        let first = "sweep x.toml --vary flow.size=4K..64K,x2 --out o";
        place.succeed(first);
        let said = place.succeed("sweep x.toml --vary flow.size=4K..256K,x2 --out o");
        assert!(said.stderr.contains("5 of 7 points already have results"), "{said}");
        assert!(said.stdout.starts_with("2 new points"), "{said}");
        assert_eq!(place.results("o").len(), 7);
        assert!(place.succeed(first).stdout.starts_with("0 new points"));
    }
}

mod an_interrupted_sweep {
    use super::*;

    const MANY: &str =
        "sweep x.toml --set flow.iterations=3000 --vary flow.size=60000..65000,+50 --jobs 2 --out";

    fn interrupted(how: fn(&Program)) {
        let place = Place::new();
        let mut command = place.command(&format!("{MANY} o"));
        let program = Program::start_group(&mut command);
        place.wait_for_lines("o", 3);
        how(&program);
        let ended = program.finish(LIMIT);
        assert!(!ended.status.success(), "it was over too soon: {ended}");
        let there = place.lines("o");
        assert!((3..101).contains(&there), "{there} of 101: {ended}");
        // A line truncated by a power failure.
        let path = place.runtime.path().join("o/results.jsonl");
        let mut text = fs::read_to_string(&path).unwrap();
        text.truncate(text.rfind('\n').map_or(0, |at| at + 1));
        fs::write(&path, format!("{text}{{\"schema\":1,\"experi")).unwrap();
        let resumed = place.succeed(&format!("{MANY} o"));
        assert!(
            resumed.stderr.contains(&format!("{there} of 101 points already have results")),
            "{resumed}"
        );
        place.succeed(&format!("{MANY} whole"));
        assert_eq!(place.results("o"), place.results("whole"));
    }

    #[test]
    fn by_ctrl_c_loses_no_finished_point() {
        interrupted(Program::interrupt_group);
    }

    #[test]
    fn by_a_kill_loses_no_finished_point() {
        interrupted(|program| {
            // SAFETY: kill has no preconditions; the child was not waited for, so its process id is
            // not reused.
            unsafe { libc::kill(program.id() as libc::pid_t, libc::SIGKILL) };
        });
    }

    #[test]
    fn by_a_full_disk_keeps_what_is_whole_and_says_so() {
        let place = Place::new();
        let sweep = "sweep x.toml --vary flow.size=4K..64K,+4K --out o";
        let mut full = Command::new("bash");
        let script = format!("ulimit -f 4; trap '' XFSZ; exec {} {sweep}", longhaul().display());
        full.current_dir(place.runtime.path()).args(["-c", &script]);
        let ended = Program::start(&mut full).finish(LIMIT);
        assert_eq!(ended.status.code(), Some(1), "{ended}");
        let there = place.results("o").len();
        assert!((1..16).contains(&there), "{there}");
        for part in [
            "File too large",
            &format!("the {there} points finished before are complete"),
            "free some space",
        ] {
            assert!(ended.stderr.contains(part), "{part:?} is missing: {ended}");
        }
        place.succeed(sweep);
        assert_eq!(place.results("o").len(), 16);
    }
}

mod refusals {
    use super::*;

    #[test]
    fn come_before_anything_is_made() {
        let place = Place::new();
        for (arguments, part) in [
            ("--vary flow.iterations=1..1000000000,+1", "1000000000 points are more than 100000"),
            (
                "--vary flow.size=4K..64K --repeat 4000000000",
                "20000000000 points are more than 100000",
            ),
            ("--vary flow.size=4K..64K --max-points 4", "5 points are more than 4"),
            ("--vary flow.sise=4K", "did you mean 'size'?"),
            ("--vary flow.size=8M..4K", "runs backwards"),
            ("--vary flow.size=4K --vary flow.size=8K", "is given twice"),
            ("--vary flow.size=1K,2K --set flow.cq_mod=500", "flow.cq_mod=500: "),
            ("--vary flow.cq_mod=1,500", "flow.cq_mod=500: "),
            ("--vary flow.size=4K --tasks 3", "add --executor slurm"),
            ("", "--vary"),
        ] {
            let refused = place.run(&format!("sweep x.toml {arguments} --out o"));
            assert_eq!(refused.status.code(), Some(2), "{refused}");
            assert!(refused.stderr.contains(part), "{part:?} is missing: {refused}");
            assert!(!place.runtime.path().join("o").exists(), "{refused}");
        }
    }

    #[test]
    fn keep_results_of_different_files_apart() {
        let place = Place::new();
        place.succeed("sweep x.toml --vary flow.size=4K --out o");
        fs::write(place.runtime.path().join("x.toml"), SCENARIO.replace("10km", "11km")).unwrap();
        let refused = place.run("sweep x.toml --vary flow.size=4K --out o");
        assert_eq!(refused.status.code(), Some(2), "{refused}");
        assert!(
            refused.stderr.contains("o has results of a previous version of x.toml"),
            "{refused}"
        );
        fs::create_dir(place.runtime.path().join("p")).unwrap();
        fs::write(place.runtime.path().join("p/results.jsonl"), "").unwrap();
        let refused = place.run("sweep x.toml --vary flow.size=4K --out p");
        assert!(refused.stderr.contains("p/results.jsonl does not belong to a sweep"), "{refused}");
    }

    #[test]
    fn keep_two_sweeps_out_of_one_directory() {
        let place = Place::new();
        let mut command = place.command(
            "sweep x.toml --set flow.iterations=1000000 --vary flow.size=64K..128K,+1K --jobs 1 \
             --out o",
        );
        let mut program = Program::start_group(&mut command);
        // Its last handler; before, it opens and locks its results.
        program.wait_for_handler(libc::SIGTERM, LIMIT);
        let refused = place.run("sweep x.toml --vary flow.size=4K --out o");
        assert!(refused.stderr.contains("another sweep is writing o/results.jsonl"), "{refused}");
        program.interrupt_group();
        assert_eq!(program.finish(LIMIT).status.code(), Some(130));
    }

    #[test]
    fn say_that_slurm_is_missing_before_anything_is_made() {
        let place = Place::new();
        let mut command =
            place.command("sweep x.toml --vary flow.size=4K --executor slurm --out o");
        command.env("PATH", place.runtime.path());
        let refused = Program::start(&mut command).finish(LIMIT);
        assert!(!refused.status.success(), "{refused}");
        assert!(
            refused.stderr.contains("Slurm is not available: there is no 'sbatch'"),
            "{refused}"
        );
        assert!(refused.stderr.contains("--executor local"), "{refused}");
        assert!(!place.runtime.path().join("o").exists());
    }
}
