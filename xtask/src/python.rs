//! The Python package: builds its wheel, installs it beside its libraries and runs its tests.

use crate::cargo::target;
use crate::skips::Skips;
use std::path::Path;
use std::process::Command;

const TOOLS_ARE_MISSING: &str =
    "the Python package: './longhaul test' installs maturin, pytest and libraries from PyPI";

/// Runs the tests, or records that they are skipped where the tools are missing.
pub fn test(root: &Path, skips: &Skips) -> Result<(), String> {
    let place = target(root).join("python");
    let interpreter = place.join("bin/python");
    if !interpreter.exists() {
        return skips.add(TOOLS_ARE_MISSING);
    }
    let (variable, file) = skips.variable();
    let module = |name: &str| {
        // Modules are not found in the current folder.
        let mut command = Command::new(&interpreter);
        command.current_dir(root).args(["-P", "-m", name]).env(variable, &file);
        command.env("PYTHONDONTWRITEBYTECODE", "1").env("CARGO_INCREMENTAL", "0");
        command
    };
    let wheels = place.join("wheels");
    let mut build = module("maturin");
    build.args(["build", "--locked", "--quiet", "--manifest-path=python/Cargo.toml", "--out"]);
    run("maturin", build.arg(&wheels).arg("--interpreter").arg(&interpreter))?;
    let install =
        ["install", "--quiet", "--no-deps", "--no-index", "--force-reinstall", "longhaul"];
    run("pip", module("pip").args(install).arg("--find-links").arg(&wheels))?;
    run("pytest", module("pytest").args(["--quiet", "-p", "no:cacheprovider", "python/tests"]))
}

/// As [`test()`], by itself.
pub fn run_alone(root: &Path) -> Result<(), String> {
    let skips = Skips::begin(root)?;
    let outcome = test(root, &skips);
    skips.report(false)?;
    outcome
}

fn run(name: &str, command: &mut Command) -> Result<(), String> {
    let status = command.status().map_err(|error| format!("cannot run {name}: {error}"))?;
    if status.success() { Ok(()) } else { Err(format!("{name} failed")) }
}
