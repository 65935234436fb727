//! `cargo xtask interop`: the scenarios with the kernel's rxe, by name, or a shell in a guest.

use crate::cargo::{RELEASE, cargo};
use std::path::Path;

/// Test targets that boot guests.
pub const SCENARIOS: [&str; 7] = [
    "kernel_guest",
    "interop_rnic",
    "interop_rnic_ports",
    "interop_chain",
    "interop_faults",
    "interop_storage",
    "interop_storage_over_distance",
];

pub fn run(root: &Path, words: Vec<String>) -> Result<(), String> {
    cargo(root, RELEASE, &[])?;
    if words.first().is_some_and(|word| word == "shell") {
        return cargo(root, &["run", "--quiet", "-p=longhaul-checks", "--bin=rxe_guest"], &[]);
    }
    let targets = SCENARIOS.map(|name| format!("--test={name}"));
    let mut arguments = vec!["test", "-p=longhaul-checks"];
    arguments.extend(targets.iter().map(String::as_str));
    // Those too that take too long for every run.
    arguments.extend(["--", "--nocapture", "--include-ignored"]);
    arguments.extend(words.iter().map(String::as_str));
    cargo(root, &arguments, &[])
}
