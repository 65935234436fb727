//! Runs cargo with the committed Cargo.lock.

use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};

/// Builds the program and its preloaded library as users do.
pub const RELEASE: &[&str] =
    &["build", "--release", "--quiet", "-p=longhaul", "-p=longhaul-preload"];

/// Runs `cargo ARGUMENTS` in `root` with `variables` added to the environment. Without incremental
/// caches, which take half of the target folder, unless `variables` ask for them.
pub fn cargo(root: &Path, arguments: &[&str], variables: &[(&str, &str)]) -> Result<(), String> {
    let status = lean(root, arguments, variables).status();
    ended(arguments, status.map_err(|e| format!("cannot run cargo: {e}"))?)
}

/// As [`cargo`], but returns what cargo prints to its standard output.
pub fn output(root: &Path, arguments: &[&str]) -> Result<String, String> {
    let output = lean(root, arguments, &[]).stderr(Stdio::inherit()).output();
    let output = output.map_err(|e| format!("cannot run cargo: {e}"))?;
    ended(arguments, output.status)?;
    String::from_utf8(output.stdout).map_err(|e| format!("cargo {}: {e}", arguments.join(" ")))
}

fn lean(root: &Path, arguments: &[&str], variables: &[(&str, &str)]) -> Command {
    let mut command = command(root, arguments);
    command.env("RUSTDOCFLAGS", "-D warnings").env("CARGO_INCREMENTAL", "0");
    command.envs(variables.iter().copied());
    command
}

fn ended(arguments: &[&str], status: ExitStatus) -> Result<(), String> {
    if status.success() { Ok(()) } else { Err(format!("cargo {} failed", arguments.join(" "))) }
}

/// `cargo ARGUMENTS`, with `--locked` for each subcommand that resolves dependencies.
pub fn command(root: &Path, arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO"));
    command.current_dir(root);
    let (subcommand, rest) = arguments.split_at(1.min(arguments.len()));
    command.args(subcommand);
    if subcommand != ["fmt"] {
        command.arg("--locked");
    }
    command.args(rest);
    command
}

/// Target directory of the workspace.
pub fn target(root: &Path) -> PathBuf {
    std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root.join("target"), |dir| root.join(dir))
}
