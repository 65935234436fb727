//! `cargo xtask quick`: the checks that changes break most often, in minutes.

use crate::cargo::cargo;
use crate::ci::{CLIPPY, FORMAT, SAME_CASES};
use crate::skips::Skips;
use crate::steps::Steps;
use crate::tidy;
use std::path::Path;

/// Unit tests and tests in virtual time: no programs, no guests, nothing that needs the
/// program built.
const TESTS: &[&str] = &[
    "test",
    "--workspace",
    "--exclude=longhaul-checks",
    "--exclude=longhaul-preload",
    "--tests",
    "--quiet",
    "--no-fail-fast",
];
/// A few cases of each property test; `ci` runs 256.
const FEW_CASES: (&str, &str) = ("PROPTEST_CASES", "32");
/// Caches that speed up the next build after a change.
const CACHES: (&str, &str) = ("CARGO_INCREMENTAL", "1");

pub fn run(root: &Path, strict: bool) -> Result<(), String> {
    let steps = Steps::begin();
    let skips = Skips::begin(root)?;
    let outcome = all(root, &steps, &skips);
    eprint!("{}", steps.table());
    let skipped = skips.report(strict);
    outcome.and(skipped)
}

fn all(root: &Path, steps: &Steps, skips: &Skips) -> Result<(), String> {
    steps.run("tidy", || tidy::run(root))?;
    steps.run("format", || cargo(root, FORMAT, &[]))?;
    steps.run("clippy", || cargo(root, CLIPPY, &[CACHES]))?;
    let (variable, file) = skips.variable();
    steps.run("tests", || cargo(root, TESTS, &[SAME_CASES, FEW_CASES, CACHES, (variable, &file)]))
}
