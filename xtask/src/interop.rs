//! `cargo xtask interop`: the scenarios with the kernel's rxe, by name, or a shell in a guest.

use crate::cargo::cargo;
use crate::program;
use std::path::Path;

/// The test target that boots guests.
pub const TARGET: &str = "interop";

pub fn run(root: &Path, words: Vec<String>) -> Result<(), String> {
    program::build(root)?;
    if words.first().is_some_and(|word| word == "shell") {
        return cargo(root, &["run", "--quiet", "-p=longhaul-checks", "--bin=rxe_guest"], &[]);
    }
    let target = format!("--test={TARGET}");
    let mut arguments = vec!["test", "-p=longhaul-checks", &target];
    // Including the scenarios that are too long for every run.
    arguments.extend(["--", "--nocapture", "--include-ignored"]);
    arguments.extend(words.iter().map(String::as_str));
    cargo(root, &arguments, &[])
}
