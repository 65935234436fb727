//! `cargo xtask nightly`: everything that takes longer than `cargo xtask ci` may.

use crate::cargo::{RELEASE, cargo, target};
use crate::{ci, fuzz, interop};
use std::fmt;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

/// How long the long forms of tests are. A variable that is set already keeps its value.
const LENGTHS: &[(&str, &str)] = &[
    // Set for all of it: a test with a long form and no count of its own asks for this one.
    ("LONGHAUL_NIGHTLY", "1"),
    // Cases of each property test that states no number of its own (256 otherwise).
    ("PROPTEST_CASES", "5000"),
    // Episodes of random verbs calls in proto/rnic/tests/model.
    ("LONGHAUL_MODEL_EPISODES", "20000"),
    // Mutations of each entry of a fuzz target's corpus.
    ("LONGHAUL_FUZZ_ROUNDS", "5000"),
    // Minutes of coverage-guided fuzzing, all targets together.
    ("LONGHAUL_FUZZ_MINUTES", "60"),
    // Minutes of transfers over a fibre that loses and is cut.
    ("LONGHAUL_SOAK_MINUTES", "30"),
];

struct Stage {
    name: &'static str,
    what: &'static str,
    /// Expected duration on two idle cores, without the builds.
    minutes: u64,
    work: fn(&Path) -> Result<Done, String>,
}

/// How a stage ends that does not fail.
enum Done {
    Passed,
    /// Something that the stage needs is missing; says what, and how to get it.
    Skipped(String),
}

const STAGES: &[Stage] = &[
    Stage { name: "deny", what: "advisories, licences and sources of dependencies", minutes: 1, work: deny },
    Stage {
        name: "properties",
        what: "unit and property tests with high counts",
        minutes: 20,
        work: properties,
    },
    Stage { name: "ignored", what: "tests marked #[ignore], without programs", minutes: 45, work: ignored },
    Stage { name: "end-to-end", what: "those of checks/, with programs", minutes: 10, work: end_to_end },
    Stage {
        name: "interop",
        what: "all scenarios with the kernel's rxe in guests",
        minutes: 60,
        work: guests,
    },
    Stage { name: "dpdk", what: "ports of DPDK's, with what is #[ignore]d", minutes: 3, work: dpdk },
    Stage { name: "reproduce", what: "every published experiment, checked", minutes: 15, work: reproduce },
    Stage {
        name: "fuzz",
        what: "coverage-guided fuzzing from the committed corpora",
        minutes: 60,
        work: fuzzing,
    },
    Stage { name: "soak", what: "transfers over a fibre that loses and is cut", minutes: 31, work: soak },
    Stage { name: "sanitize", what: "unsafe code under AddressSanitizer", minutes: 5, work: sanitize },
];

/// Runs the stages that `words` name, or all of them; `--list` lists them.
pub fn run(root: &Path, words: &[String]) -> Result<(), String> {
    if words.iter().any(|word| word == "--list") {
        list();
        return Ok(());
    }
    let stages = chosen(words)?;
    let minutes: u64 = stages.iter().map(|stage| stage.minutes).sum();
    eprintln!("== stages: {}, about {minutes} minutes without builds", stages.len());
    let outcomes: Vec<Outcome> =
        stages.iter().enumerate().map(|(at, stage)| one(root, stage, at + 1, stages.len())).collect();
    summarise(&outcomes)
}

fn list() {
    println!("{:<12} {:>7}  checks", "stage", "minutes");
    for stage in STAGES {
        println!("{:<12} {:>7}  {}", stage.name, stage.minutes, stage.what);
    }
    println!("\nlengths, which the environment overrides:");
    for (name, _) in LENGTHS {
        println!("  {name}={}", length(name));
    }
}

fn chosen(words: &[String]) -> Result<Vec<&'static Stage>, String> {
    if words.is_empty() {
        return Ok(STAGES.iter().collect());
    }
    let named = |word: &String| {
        STAGES.iter().find(|stage| stage.name == word).ok_or_else(|| {
            let names: Vec<_> = STAGES.iter().map(|stage| stage.name).collect();
            format!("there is no stage '{word}'; the stages are {}", names.join(", "))
        })
    };
    words.iter().map(named).collect()
}

/// The value in force of a variable of [`LENGTHS`].
fn length(name: &str) -> String {
    let default = LENGTHS.iter().find(|(of, _)| *of == name).map_or("", |(_, value)| value);
    std::env::var(name).unwrap_or_else(|_| default.to_owned())
}

struct Outcome {
    stage: &'static Stage,
    took: Duration,
    ended: Result<Done, String>,
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let seconds = self.took.as_secs();
        write!(f, "{:<12} {:>4} min {:02} s  ", self.stage.name, seconds / 60, seconds % 60)?;
        match &self.ended {
            Ok(Done::Passed) => write!(f, "passed"),
            Ok(Done::Skipped(why)) => write!(f, "SKIPPED: {why}"),
            Err(error) => {
                write!(f, "FAILED: {error}; again: cargo xtask nightly {}", self.stage.name)
            }
        }
    }
}

fn one(root: &Path, stage: &'static Stage, number: usize, of: usize) -> Outcome {
    eprintln!("\n== [{number}/{of}] {}: {} (about {} min)", stage.name, stage.what, stage.minutes);
    let started = Instant::now();
    let ended = (stage.work)(root);
    if let Ok(Done::Skipped(why)) = &ended {
        eprintln!("\n!!! SKIPPED: {}: {why}\n", stage.name);
    }
    let outcome = Outcome { stage, took: started.elapsed(), ended };
    eprintln!("== [{number}/{of}] {outcome}");
    outcome
}

fn summarise(outcomes: &[Outcome]) -> Result<(), String> {
    let of = |wanted: fn(&Outcome) -> bool| outcomes.iter().filter(|outcome| wanted(outcome)).count();
    let failed = of(|outcome| outcome.ended.is_err());
    let skipped = of(|outcome| matches!(outcome.ended, Ok(Done::Skipped(_))));
    println!("\n== summary");
    for outcome in outcomes {
        println!("{outcome}");
    }
    println!("{} passed, {failed} failed, {skipped} skipped", outcomes.len() - failed - skipped);
    if failed == 0 { Ok(()) } else { Err(format!("{failed} of {} stages failed", outcomes.len())) }
}

/// Runs cargo with the lengths.
fn long(root: &Path, arguments: &[&str]) -> Result<Done, String> {
    let values: Vec<_> = LENGTHS.iter().map(|(name, _)| (*name, length(name))).collect();
    let variables: Vec<_> = values.iter().map(|(name, value)| (*name, value.as_str())).collect();
    cargo(root, arguments, &variables)?;
    Ok(Done::Passed)
}

fn is_there(program: &str, arguments: &[&str]) -> bool {
    Command::new(program).args(arguments).output().is_ok_and(|out| out.status.success())
}

fn deny(root: &Path) -> Result<Done, String> {
    if !is_there("cargo", &["deny", "--version"]) {
        return Ok(Done::Skipped("cargo-deny is missing: cargo install --locked cargo-deny".to_owned()));
    }
    // The fuzzer is a workspace of its own.
    let manifests = ["--manifest-path=Cargo.toml", "--manifest-path=checks/fuzz/Cargo.toml"];
    let check = |manifest: &str, what: &[&str]| {
        let arguments =
            ["deny", manifest, "--config=deny.toml", "check", "-A=license-exception-not-encountered"];
        cargo(root, &[&arguments[..], what].concat(), &[])
    };
    for manifest in manifests {
        check(manifest, &["licenses", "sources"])?;
    }
    if cargo(root, &["deny", "--config=deny.toml", "fetch", "db"], &[]).is_err() {
        let why =
            "licences and sources are right, advisories were NOT checked: their database cannot be fetched";
        return Ok(Done::Skipped(format!("{why}; run this with access to github.com")));
    }
    for manifest in manifests {
        check(manifest, &["advisories"])?;
    }
    Ok(Done::Passed)
}

fn properties(root: &Path) -> Result<Done, String> {
    long(root, &["test", "--workspace", "--exclude=longhaul-checks", "--no-fail-fast"])?;
    long(root, &["test", "-p=longhaul-checks", "--test=fuzz_corpus"])
}

fn ignored(root: &Path) -> Result<Done, String> {
    let packages = ["test", "--workspace", "--exclude=longhaul-checks", "--no-fail-fast"];
    long(root, &[&packages[..], &["--", "--ignored"]].concat())
}

/// Every test target of checks/ that neither boots guests nor has a stage of its own.
fn end_to_end(root: &Path) -> Result<Done, String> {
    cargo(root, RELEASE, &[])?;
    let folder = root.join("checks/tests");
    let unreadable = |e| format!("{}: {e}", folder.display());
    let mut targets = Vec::new();
    for entry in std::fs::read_dir(&folder).map_err(unreadable)? {
        let path = entry.map_err(unreadable)?.path();
        let name = path.file_stem().and_then(|name| name.to_str()).unwrap_or_default();
        let is_target = path.extension().is_some_and(|e| e == "rs") || path.join("main.rs").is_file();
        if is_target && !interop::SCENARIOS.contains(&name) {
            targets.push(format!("--test={name}"));
        }
    }
    targets.sort();
    let mut arguments = vec!["test", "-p=longhaul-checks", "--no-fail-fast"];
    arguments.extend(targets.iter().map(String::as_str));
    arguments.extend(["--", "--ignored", "--nocapture"]);
    // The first is the stage `reproduce`, the second no test.
    arguments.extend(["--skip=everything_is_as_published", "--skip=write_seeds"]);
    long(root, &arguments)
}

fn guests(root: &Path) -> Result<Done, String> {
    if !is_there("qemu-system-x86_64", &["--version"]) {
        return Ok(Done::Skipped("qemu is missing: apt-get install qemu-system-x86".to_owned()));
    }
    interop::run(root, Vec::new())?;
    Ok(Done::Passed)
}

fn dpdk(root: &Path) -> Result<Done, String> {
    if !ci::has_dpdk() {
        return Ok(Done::Skipped(ci::DPDK_IS_MISSING.to_owned()));
    }
    ci::dpdk(root)?;
    long(root, &["test", "-p=longhaul-dpdk", "--features=longhaul-dpdk/libdpdk", "--", "--ignored"])
}

fn reproduce(root: &Path) -> Result<Done, String> {
    cargo(root, RELEASE, &[])?;
    let program = target(root).join("release/longhaul");
    let folder = target(root).join("nightly");
    std::fs::create_dir_all(&folder).map_err(|e| format!("{}: {e}", folder.display()))?;
    let status = Command::new(&program)
        .current_dir(&folder)
        .args(["reproduce", "--check"])
        .status()
        .map_err(|e| format!("cannot run {}: {e}", program.display()))?;
    if status.success() {
        return Ok(Done::Passed);
    }
    Err(format!("longhaul reproduce --check: {status}; the report is {}/reproduction.html", folder.display()))
}

fn fuzzing(root: &Path) -> Result<Done, String> {
    if !is_there("c++", &["--version"]) {
        return Ok(Done::Skipped("a C++ compiler is missing: apt-get install g++".to_owned()));
    }
    let minutes: u64 = length("LONGHAUL_FUZZ_MINUTES")
        .parse()
        .map_err(|_| "LONGHAUL_FUZZ_MINUTES is no number of minutes".to_owned())?;
    fuzz::all(root, 60 * minutes)?;
    Ok(Done::Passed)
}

fn soak(root: &Path) -> Result<Done, String> {
    ci::soak(root, &length("LONGHAUL_SOAK_MINUTES"))?;
    Ok(Done::Passed)
}

fn sanitize(root: &Path) -> Result<Done, String> {
    if !is_there("rustup", &["run", "nightly", "rustc", "--version"]) {
        let cure = "rustup toolchain install nightly --component rust-src";
        return Ok(Done::Skipped(format!("AddressSanitizer needs a nightly toolchain: {cure}")));
    }
    ci::sanitize(root)?;
    Ok(Done::Passed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stages_are_chosen_by_name_and_others_are_refused_with_the_names() {
        let names = |words: &[&str]| {
            let words: Vec<_> = words.iter().map(|word| (*word).to_owned()).collect();
            chosen(&words).map(|stages| stages.iter().map(|stage| stage.name).collect::<Vec<_>>())
        };
        assert_eq!(names(&[]).unwrap().len(), STAGES.len());
        assert_eq!(names(&["soak", "deny"]), Ok(vec!["soak", "deny"]));
        let error = names(&["soap"]).unwrap_err();
        assert!(error.contains("'soap'") && error.contains("soak"), "{error}");
    }

    #[test]
    fn a_failed_stage_ends_neither_the_others_nor_well() {
        let ended = [Ok(Done::Passed), Err("broken".to_owned()), Ok(Done::Skipped("not there".to_owned()))];
        let outcome = |ended| Outcome { stage: &STAGES[0], took: Duration::from_secs(61), ended };
        let outcomes: Vec<_> = ended.into_iter().map(outcome).collect();
        assert_eq!(summarise(&outcomes), Err("1 of 3 stages failed".to_owned()));
        assert_eq!(summarise(&outcomes[..1]), Ok(()));
        assert!(
            outcomes[1].to_string().contains("1 min 01 s  FAILED: broken; again: cargo xtask nightly deny")
        );
    }
}
