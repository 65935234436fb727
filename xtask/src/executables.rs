//! Test executables: cargo builds them, and they run without it, which holds a lock while it builds
//! others.

use crate::cargo::output;
use serde::Deserialize;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::Instant;

/// One test executable.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
pub struct Executable {
    path: PathBuf,
    /// The folder of its package, in which it runs, as under `cargo test`.
    folder: PathBuf,
    target: String,
}

/// A message of `cargo --message-format=json`, as far as it matters here.
#[derive(Deserialize)]
struct Message {
    executable: Option<PathBuf>,
    manifest_path: Option<PathBuf>,
    profile: Option<Profile>,
    target: Option<Target>,
}

#[derive(Deserialize)]
struct Profile {
    test: bool,
}

#[derive(Deserialize)]
struct Target {
    name: String,
}

/// Reads one message, if it names a test executable.
fn executable(line: &str) -> Option<Executable> {
    let Message { executable, manifest_path, profile, target } = serde_json::from_str(line).ok()?;
    profile?.test.then_some(())?;
    let folder = manifest_path?.parent()?.to_path_buf();
    Some(Executable { path: executable?, folder, target: target?.name })
}

/// Builds the test executables that `cargo test SELECTION` would run.
pub fn build(root: &Path, selection: &[&str]) -> Result<BTreeSet<Executable>, String> {
    const BUILD: &[&str] = &["--no-run", "--quiet", "--message-format=json-render-diagnostics"];
    let messages = output(root, &[selection, BUILD].concat())?;
    Ok(messages.lines().filter_map(executable).collect())
}

/// Runs `executables` one after another with `variables` added to the environment. A failure does
/// not keep the others from running. Prints one line each, and the output of those that fail.
pub fn run<'a>(
    executables: impl IntoIterator<Item = &'a Executable>,
    variables: &[(&str, &str)],
) -> Result<(), String> {
    let run = |executable: &Executable| executable.run(variables).err();
    let failed: Vec<String> = executables.into_iter().filter_map(run).collect();
    if failed.is_empty() { Ok(()) } else { Err(format!("failed: {}", failed.join(", "))) }
}

impl Executable {
    /// The package's folder and the target: `accel all`.
    fn name(&self) -> String {
        let package = self.folder.file_name().unwrap_or_default().to_string_lossy();
        format!("{package} {}", self.target)
    }

    /// Returns its name if a test fails.
    fn run(&self, variables: &[(&str, &str)]) -> Result<(), String> {
        let started = Instant::now();
        let outcome = Command::new(&self.path)
            .current_dir(&self.folder)
            .env("CARGO_MANIFEST_DIR", &self.folder)
            .envs(variables.iter().copied())
            .output();
        let name = self.name();
        let Output { status, stdout, stderr } =
            outcome.map_err(|e| format!("{name} (cannot run: {e})"))?;
        let text = String::from_utf8_lossy(&stdout);
        let took = started.elapsed().as_secs_f64();
        if status.success() {
            eprintln!("{name}: {} in {took:.1} s", result(&text));
            return Ok(());
        }
        eprintln!("{text}{}", String::from_utf8_lossy(&stderr));
        eprintln!("{name}: FAILED ({status}), {} in {took:.1} s", result(&text));
        Err(name)
    }
}

/// The counts of libtest's last line: `12 passed, 1 ignored`.
fn result(output: &str) -> String {
    const RELEVANT: &[&str] = &["passed", "failed", "ignored"];
    let last = output.rsplit_once("test result: ").and_then(|(_, line)| line.split_once(". "));
    let Some((_, counts)) = last else { return "no result".to_owned() };
    let is_relevant = |count: &&str| {
        !count.starts_with("0 ") && RELEVANT.iter().any(|word| count.ends_with(word))
    };
    counts.split("; ").filter(is_relevant).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_test_executables_count() {
        let message = |test: bool, executable: &str| {
            format!(
                r#"{{"reason":"compiler-artifact","manifest_path":"/w/proto/accel/Cargo.toml",
                "target":{{"name":"all"}},"profile":{{"test":{test}}},"executable":{executable}}}"#
            )
        };
        let found = executable(&message(true, r#""/t/all-1""#)).expect("a test executable");
        assert_eq!(found.name(), "accel all");
        assert!(executable(&message(false, r#""/t/all-1""#)).is_none(), "an example");
        assert!(executable(&message(true, "null")).is_none(), "a library");
        assert!(executable(r#"{"reason":"build-finished","success":true}"#).is_none());
    }

    #[test]
    fn counts_are_those_of_the_last_line() {
        let text = "test result: FAILED. 4 passed; 2 failed; 0 ignored; 0 measured; \
                    250 filtered out; finished in 17.52s\n";
        assert_eq!(result(text), "4 passed, 2 failed");
        assert_eq!(result("killed"), "no result");
    }
}
