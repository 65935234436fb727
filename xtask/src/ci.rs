//! `cargo xtask ci`: every check, in the order in which failures are cheap.

use crate::tidy;
use std::path::Path;
use std::process::Command;
use std::time::Instant;

const STEPS: &[(&str, &[&str])] = &[
    ("format", &["fmt", "--all", "--check"]),
    ("clippy", &["clippy", "--workspace", "--all-targets", "--quiet", "--", "-D", "warnings"]),
    ("documentation", &["doc", "--workspace", "--no-deps", "--quiet"]),
    // End-to-end tests run the program and the library that it preloads.
    ("build", &["build", "--release", "--quiet", "-p", "longhaul", "-p", "longhaul-preload"]),
    ("tests", &["test", "--workspace", "--no-fail-fast"]),
];

pub fn run(root: &Path) -> Result<(), String> {
    let started = Instant::now();
    step("tidy", || tidy::run(root))?;
    for (name, arguments) in STEPS {
        step(name, || cargo(root, arguments))?;
    }
    eprintln!("== all checks passed in {:.0} s", started.elapsed().as_secs_f64());
    Ok(())
}

fn step(name: &str, work: impl FnOnce() -> Result<(), String>) -> Result<(), String> {
    eprintln!("== {name}");
    let started = Instant::now();
    work().map_err(|e| format!("{name}: {e}"))?;
    eprintln!("== {name}: {:.0} s", started.elapsed().as_secs_f64());
    Ok(())
}

fn cargo(root: &Path, arguments: &[&str]) -> Result<(), String> {
    let status = Command::new(env!("CARGO"))
        .current_dir(root)
        .env("RUSTDOCFLAGS", "-D warnings")
        .args(arguments)
        .status()
        .map_err(|e| format!("cannot run cargo: {e}"))?;
    if status.success() { Ok(()) } else { Err(format!("cargo {} failed", arguments.join(" "))) }
}
