//! `cargo xtask count`: instructions per packet, which do not depend on what else the machine does.
//!
//! Every example called `count_*` runs one hot path as often as its second argument says; its first argument
//! names the path, and without arguments it lists the paths. Two runs of different length under callgrind give
//! the cost of one round without that of starting up.

use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::Command;

const SHORT: u64 = 1_000;
const LONG: u64 = 11_000;

pub fn run(root: &Path) -> Result<(), String> {
    if Command::new("valgrind").arg("--version").output().is_err() {
        return Err("valgrind is not installed: apt-get install valgrind".to_string());
    }
    println!("{:<28} {:<32} {:>14}", "example", "path", "instructions");
    for (example, program) in build_examples(root)? {
        let listed = output(Command::new(&program))?;
        for path in listed.lines() {
            let short = instructions(&program, path, SHORT)?;
            let long = instructions(&program, path, LONG)?;
            let each = (long - short) as f64 / (LONG - SHORT) as f64;
            println!("{example:<28} {path:<32} {each:>14.0}");
        }
    }
    Ok(())
}

/// Builds the workspace's examples; name and file of each that counts.
fn build_examples(root: &Path) -> Result<Vec<(String, PathBuf)>, String> {
    let mut build = Command::new(env!("CARGO"));
    build.current_dir(root).args([
        "build",
        "--release",
        "--workspace",
        "--examples",
        "--message-format=json",
        "--quiet",
    ]);
    let mut examples = Vec::new();
    for line in output(build)?.lines() {
        let Ok(message) = serde_json::from_str::<Value>(line) else { continue };
        let name = message["target"]["name"].as_str().unwrap_or_default();
        if let (true, Some(file)) = (name.starts_with("count_"), message["executable"].as_str()) {
            examples.push((name.to_string(), PathBuf::from(file)));
        }
    }
    if examples.is_empty() {
        return Err("no example called count_* was built".to_string());
    }
    Ok(examples)
}

fn instructions(program: &Path, path: &str, rounds: u64) -> Result<u64, String> {
    let mut valgrind = Command::new("valgrind");
    valgrind
        .args(["--tool=callgrind", "--callgrind-out-file=/dev/null"])
        .arg(program)
        .arg(path)
        .arg(rounds.to_string());
    let out = valgrind.output().map_err(|e| format!("cannot run valgrind: {e}"))?;
    let text = String::from_utf8_lossy(&out.stderr);
    let total = text.lines().find_map(|line| line.split_once("Collected :")?.1.trim().parse().ok());
    total.ok_or_else(|| format!("callgrind gave no count for {} {path}:\n{text}", program.display()))
}

fn output(mut command: Command) -> Result<String, String> {
    let out = command.output().map_err(|e| format!("cannot run {command:?}: {e}"))?;
    if !out.status.success() {
        return Err(format!("{command:?} failed:\n{}", String::from_utf8_lossy(&out.stderr)));
    }
    Ok(String::from_utf8_lossy(&out.stdout).into_owned())
}
