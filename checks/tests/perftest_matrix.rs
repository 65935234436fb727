//! perftest's matrix: every combination of its programs, transports, connection methods and
//! options.
//!
//! The whole matrix writes its table, as Markdown and JSON, into `perftest-matrix` in the target
//! directory, whatever the outcome. `LONGHAUL_MATRIX='ib_send_bw UD'` runs only the cases whose
//! description contains these words; a failure prints the words to use.

use longhaul_checks::perftest_matrix::{Case, Outcome, PROGRAMS, Run, TABLES, json, markdown, run};
use longhaul_checks::{Turn, longhaul, require};
use std::collections::VecDeque;
use std::sync::Mutex;
use std::{env, fs, thread};

/// Concurrent pairs: perftest's client sleeps for a second before it connects over TCP.
const AT_A_TIME: usize = 6;

fn run_all(cases: Vec<Case>) -> Vec<Run> {
    let waiting: Mutex<VecDeque<_>> = Mutex::new(cases.into_iter().enumerate().collect());
    let done = Mutex::new(Vec::new());
    thread::scope(|scope| {
        for _ in 0..AT_A_TIME {
            scope.spawn(|| {
                loop {
                    let next = waiting.lock().expect("no panic").pop_front();
                    let Some((number, case)) = next else { return };
                    let run = run(case);
                    done.lock().expect("no panic").push((number, run));
                }
            });
        }
    });
    let mut done = done.into_inner().expect("no panic");
    done.sort_by_key(|(number, _)| *number);
    done.into_iter().map(|(_, run)| run).collect()
}

fn write_tables(runs: &[Run]) {
    let release = longhaul().with_file_name("");
    let dir = release.parent().expect("the target directory").join("perftest-matrix");
    fs::create_dir_all(&dir).unwrap_or_else(|e| panic!("{}: {e}", dir.display()));
    for (name, content) in
        [("matrix.md", markdown(runs)), ("matrix.json", format!("{:#}\n", json(runs)))]
    {
        let path = dir.join(name);
        fs::write(&path, content).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    }
    eprintln!("the table: {}", dir.join("matrix.md").display());
}

#[test]
#[ignore = "minutes: ./longhaul nightly end-to-end"]
fn every_combination_runs_to_its_end_or_is_refused_by_perftest_with_reason() {
    let wanted = env::var("LONGHAUL_MATRIX").unwrap_or_default();
    let mut cases = Case::all();
    cases.retain(|case| wanted.split_whitespace().all(|word| case.to_string().contains(word)));
    assert!(!cases.is_empty(), "no case has all of {wanted:?}");
    let runs = check(cases);
    if wanted.is_empty() {
        write_tables(&runs);
    }
}

/// A sample that covers every table and every program.
#[test]
fn one_in_five_combinations_runs_to_its_end_or_is_refused_by_perftest_with_reason() {
    let cases: Vec<_> = Case::all().into_iter().step_by(5).collect();
    for (transport, by) in TABLES {
        assert!(cases.iter().any(|case| case.transport == transport && case.by == by));
    }
    for (verb, measure) in PROGRAMS {
        assert!(cases.iter().any(|case| case.verb == verb && case.measure == measure));
    }
    check(cases);
}

/// Runs `cases`, none of which may fail.
fn check(cases: Vec<Case>) -> Vec<Run> {
    require("ib_write_bw", "perftest");
    let _turn = Turn::take();
    let runs = run_all(cases);
    let failed: Vec<String> = runs
        .iter()
        .filter_map(|run| match &run.outcome {
            Outcome::Failed(text) => Some(format!("##### {}\n{}\n{text}", run.case, run.line)),
            _ => None,
        })
        .collect();
    assert!(failed.is_empty(), "{} of {} fail:\n{}", failed.len(), runs.len(), failed.join("\n"));
    runs
}
