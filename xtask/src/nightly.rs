//! `cargo xtask nightly`: the tests that take too long for `cargo xtask ci`.
//!
//! Each stage is a separate process of this program, with [`LENGTHS`] in its environment: its
//! failure does not end the others, and its output is also logged.

mod process;
mod stages;

use process::Ending;
use std::fmt;
use std::path::Path;
use std::process::ExitCode;
use std::time::{Duration, Instant};

/// Length of the long form of a test.
struct Length {
    variable: &'static str,
    value: u64,
    counts: Counts,
}

/// Unit of a [`Length`], which determines how `--minutes` bounds it.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Counts {
    /// Nothing: the variable only marks the nightly tier.
    Nothing,
    /// Runs, cases, rounds: scaled with the stage's time.
    Times,
    Seconds,
    Minutes,
}

const fn length(variable: &'static str, value: u64, counts: Counts) -> Length {
    Length { variable, value, counts }
}

/// Environment of every stage. A variable that is already set keeps its value.
const LENGTHS: [Length; 8] = [
    // For tests with a long form but no count.
    length("LONGHAUL_NIGHTLY", 1, Counts::Nothing),
    // Cases of each property test, in place of its own number or 256.
    length("PROPTEST_CASES", 5000, Counts::Times),
    // Episodes of random verbs calls in proto/rnic/tests/all/model.
    length("LONGHAUL_MODEL_EPISODES", 20_000, Counts::Times),
    // Mutations of each entry of a fuzz target's corpus.
    length("LONGHAUL_FUZZ_ROUNDS", 5000, Counts::Times),
    // Coverage-guided fuzzing, all targets together.
    length("LONGHAUL_FUZZ_MINUTES", 60, Counts::Minutes),
    // Transfers over a fibre with losses and cuts.
    length("LONGHAUL_SOAK_MINUTES", 30, Counts::Minutes),
    // Trials of checks/tests/stress.rs, drawn one after the other.
    length("LONGHAUL_STRESS_SECONDS", 3600, Counts::Seconds),
    // Kills of boxes in checks/tests/kills.rs, in every mode.
    length("LONGHAUL_KILLS_SECONDS", 3600, Counts::Seconds),
];

struct Stage {
    name: &'static str,
    /// Expected duration on two idle cores, without the builds.
    minutes: u64,
    what: &'static str,
    work: fn(&Path) -> Result<Done, String>,
}

/// Result of a stage that did not fail.
enum Done {
    Passed,
    /// A requirement is missing; says which, and how to install it.
    Skipped(String),
}

const fn stage(
    name: &'static str,
    minutes: u64,
    what: &'static str,
    work: fn(&Path) -> Result<Done, String>,
) -> Stage {
    Stage { name, minutes, what, work }
}

const STAGES: [Stage; 13] = [
    stage("deny", 1, "advisories, licences and sources of dependencies", stages::deny),
    stage("properties", 20, "unit and property tests with high counts", stages::properties),
    stage("ignored", 45, "tests marked #[ignore], without programs", stages::ignored),
    stage("end-to-end", 10, "those of checks/, with programs", stages::end_to_end),
    stage("stress", 62, "every operation under every impairment", stages::stress),
    stage("kills", 62, "boxes killed at random, every byte accounted for", stages::kills),
    stage("many-qps", 20, "2,000 QPs at every path MTU", stages::many_qps),
    stage("interop", 60, "guests: the kernel's rxe, services under systemd", stages::interop),
    stage("dpdk", 3, "ports of DPDK's, with what is #[ignore]d", stages::dpdk),
    stage("reproduce", 15, "every published experiment, checked", stages::reproduce),
    stage("fuzz", 60, "coverage-guided fuzzing from the committed corpora", stages::fuzz),
    stage("soak", 31, "transfers over a fibre that loses and is cut", stages::soak),
    stage("sanitize", 5, "unsafe code under AddressSanitizer", stages::sanitize),
];

/// Multiple of the expected duration after which a stage counts as hung.
const PATIENCE: u64 = 4;
/// Additional time for a stage's builds.
const GRACE: Duration = Duration::from_secs(3600);
/// Exit status of a skipped stage: Automake's.
const SKIPPED: u8 = 77;
/// Line that a stage prints after its builds: its limit starts there.
const BUILT: &str = "== built";
/// Prefix of the line with the reason.
const SKIPPED_BECAUSE: &str = "!!! SKIPPED: ";

#[derive(Default)]
struct Asked {
    lists: bool,
    /// Bound of each stage.
    minutes: Option<u64>,
    /// Empty: all.
    stages: Vec<&'static Stage>,
}

/// Runs the stages that `words` name, or all of them: `[--list] [--minutes N] [STAGE …]`.
pub fn run(root: &Path, words: &[String]) -> Result<(), String> {
    let asked = parse(words)?;
    if asked.lists {
        list();
        return Ok(());
    }
    let stages = if asked.stages.is_empty() { STAGES.iter().collect() } else { asked.stages };
    let minutes =
        |stage: &Stage| asked.minutes.map_or(stage.minutes, |bound| bound.min(stage.minutes));
    let all: u64 = stages.iter().map(|stage| minutes(stage)).sum();
    eprintln!("== stages: {}, about {all} minutes without builds", stages.len());
    let of = stages.len();
    let run = |(at, stage): (usize, &&'static Stage)| {
        let place = format!("[{}/{of}] {}", at + 1, stage.name);
        eprintln!("\n== {place}: {} (about {} min)", stage.what, minutes(stage));
        let outcome = one(root, stage, &place, asked.minutes);
        eprintln!("== [{}/{of}] {outcome}", at + 1);
        outcome
    };
    let outcomes: Vec<Outcome> = stages.iter().enumerate().map(run).collect();
    summarise(&outcomes)
}

/// The process of one stage.
pub fn run_stage(root: &Path, name: &str) -> ExitCode {
    let Some(stage) = STAGES.iter().find(|stage| stage.name == name) else {
        eprintln!("xtask: there is no stage '{name}'");
        return ExitCode::from(2);
    };
    match (stage.work)(root) {
        Ok(Done::Passed) => ExitCode::SUCCESS,
        Ok(Done::Skipped(why)) => {
            eprintln!("\n{SKIPPED_BECAUSE}{why}\n");
            ExitCode::from(SKIPPED)
        }
        Err(error) => {
            eprintln!("{}{error}", process::FAILED_BECAUSE);
            ExitCode::FAILURE
        }
    }
}

fn parse(words: &[String]) -> Result<Asked, String> {
    let mut asked = Asked::default();
    let mut words = words.iter();
    while let Some(word) = words.next() {
        match word.as_str() {
            "--list" => asked.lists = true,
            "--minutes" => {
                let number = words.next().and_then(|word| word.parse().ok()).filter(|n| *n > 0);
                let cure = "--minutes needs a number above 0, as in '--minutes 5'";
                asked.minutes = Some(number.ok_or(cure)?);
            }
            name => asked.stages.push(STAGES.iter().find(|stage| stage.name == name).ok_or_else(
                || {
                    let names = STAGES.map(|stage| stage.name).join(", ");
                    format!("there is no stage '{name}'; the stages are {names}")
                },
            )?),
        }
    }
    Ok(asked)
}

fn list() {
    println!("{:<12} {:>7}  checks", "stage", "minutes");
    for stage in &STAGES {
        println!("{:<12} {:>7}  {}", stage.name, stage.minutes, stage.what);
    }
    println!("\nlengths, which the environment overrides:");
    for length in &LENGTHS {
        println!("  {}={}", length.variable, in_force(length.variable, length.value));
    }
    println!(
        "\n--minutes N: N minutes for each stage after its builds; lengths are cut accordingly"
    );
}

/// Returns the value in the environment, or `usual`.
fn in_force(variable: &str, usual: u64) -> String {
    std::env::var(variable).unwrap_or_else(|_| usual.to_string())
}

/// Returns the lengths of a stage, bounded by `minutes`, as variables.
fn lengths(stage: &Stage, minutes: Option<u64>) -> Vec<(&'static str, String)> {
    let bounded = |length: &Length| {
        let Some(minutes) = minutes else { return length.value };
        match length.counts {
            Counts::Nothing => length.value,
            Counts::Times => (length.value * minutes.min(stage.minutes) / stage.minutes).max(1),
            // The rest is for the build and other work.
            Counts::Minutes => length.value.min(minutes.div_ceil(2)),
            Counts::Seconds => length.value.min(30 * minutes),
        }
    };
    LENGTHS
        .iter()
        .map(|length| (length.variable, in_force(length.variable, bounded(length))))
        .collect()
}

fn one(root: &Path, stage: &'static Stage, place: &str, minutes: Option<u64>) -> Outcome {
    let started = Instant::now();
    let limit = Duration::from_secs(60 * minutes.unwrap_or(PATIENCE * stage.minutes));
    let variables = lengths(stage, minutes);
    let ending = process::run(root, stage.name, place, &variables, limit);
    let ended = ending.unwrap_or_else(|error| Ending::Failed { why: error, tests: vec![] });
    let ended = match ended {
        Ending::Late { tests } if minutes.is_none() => Ending::Failed {
            why: format!("it did not end within {} min", limit.as_secs() / 60),
            tests,
        },
        Ending::Late { tests } if !tests.is_empty() => {
            Ending::Failed { why: "and was cut short".to_owned(), tests }
        }
        other => other,
    };
    Outcome { stage, took: started.elapsed(), ended }
}

struct Outcome {
    stage: &'static Stage,
    took: Duration,
    ended: Ending,
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let seconds = self.took.as_secs();
        write!(f, "{:<12} {:>4} min {:02} s  ", self.stage.name, seconds / 60, seconds % 60)?;
        match &self.ended {
            Ending::Passed => write!(f, "passed"),
            Ending::Skipped { why } => write!(f, "SKIPPED: {why}"),
            Ending::Late { .. } => write!(f, "CUT SHORT: nothing failed in this time"),
            Ending::Failed { why, tests } => {
                write!(f, "FAILED: {why}; again: cargo xtask nightly {}", self.stage.name)?;
                tests.iter().try_for_each(|test| write!(f, "\n{:>14}{test}", ""))
            }
        }
    }
}

fn summarise(outcomes: &[Outcome]) -> Result<(), String> {
    let of = |wanted: fn(&Ending) -> bool| {
        outcomes.iter().filter(|outcome| wanted(&outcome.ended)).count()
    };
    let passed = of(|ended| matches!(ended, Ending::Passed));
    let failed = of(|ended| matches!(ended, Ending::Failed { .. }));
    let skipped = of(|ended| matches!(ended, Ending::Skipped { .. }));
    let late = of(|ended| matches!(ended, Ending::Late { .. }));
    println!("\n== summary");
    for outcome in outcomes {
        println!("{outcome}");
    }
    println!("{passed} passed, {failed} failed, {skipped} skipped, {late} cut short");
    if failed == 0 { Ok(()) } else { Err(format!("{failed} of {} stages failed", outcomes.len())) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked(words: &str) -> Result<Asked, String> {
        parse(&words.split_whitespace().map(str::to_owned).collect::<Vec<_>>())
    }

    #[test]
    fn stages_are_chosen_by_name_and_others_are_refused_with_the_names() {
        let names = |words| {
            asked(words)
                .map(|asked| asked.stages.iter().map(|stage| stage.name).collect::<Vec<_>>())
        };
        assert_eq!(names("soak deny"), Ok(vec!["soak", "deny"]));
        let error = names("soap").unwrap_err();
        assert!(error.contains("'soap'") && error.contains("soak"), "{error}");
        assert_eq!(asked("deny --minutes 3").map(|asked| asked.minutes), Ok(Some(3)));
        assert!(asked("--minutes").is_err() && asked("--minutes 0").is_err());
    }

    #[test]
    fn minutes_bound_what_a_stage_does() {
        let of = |name: &str, minutes, variable: &str| {
            let stage = STAGES.iter().find(|stage| stage.name == name).unwrap();
            let all = lengths(stage, minutes);
            all.into_iter().find(|(of, _)| *of == variable).unwrap().1.parse::<u64>().unwrap()
        };
        assert_eq!(of("soak", None, "LONGHAUL_SOAK_MINUTES"), 30);
        assert_eq!(of("soak", Some(4), "LONGHAUL_SOAK_MINUTES"), 2);
        assert_eq!(of("stress", Some(4), "LONGHAUL_STRESS_SECONDS"), 120);
        assert_eq!(of("properties", Some(5), "LONGHAUL_MODEL_EPISODES"), 20_000 / 4);
        assert_eq!(of("properties", Some(100), "LONGHAUL_MODEL_EPISODES"), 20_000);
        assert_eq!(of("deny", Some(1), "LONGHAUL_NIGHTLY"), 1);
    }

    #[test]
    fn a_failed_stage_ends_neither_the_others_nor_well() {
        let failed = Ending::Failed { why: "broken".to_owned(), tests: vec!["a::b".to_owned()] };
        let skipped = Ending::Skipped { why: "not there".to_owned() };
        let late = Ending::Late { tests: vec![] };
        let outcome = |ended| Outcome { stage: &STAGES[0], took: Duration::from_secs(61), ended };
        let outcomes: Vec<_> =
            [Ending::Passed, failed, skipped, late].into_iter().map(outcome).collect();
        assert_eq!(summarise(&outcomes), Err("1 of 4 stages failed".to_owned()));
        assert_eq!(summarise(&outcomes[2..]), Ok(()));
        let text = outcomes[1].to_string();
        assert!(
            text.contains("1 min 01 s  FAILED: broken; again: cargo xtask nightly deny"),
            "{text}"
        );
        assert!(text.ends_with("a::b"), "{text}");
    }
}
