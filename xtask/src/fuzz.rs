//! `cargo xtask fuzz`: coverage-guided fuzzing by libFuzzer, on the stable toolchain.
//!
//! The compiler inserts the counters (LLVM's sanitizer coverage pass, which `-Cpasses` enables
//! without `-Z`). The crate `libfuzzer-sys` builds libFuzzer, which is C++. Stable has no
//! AddressSanitizer, so findings are panics, hangs and excessive memory; `cargo xtask sanitize`
//! runs the unsafe code under AddressSanitizer.

use crate::cargo;
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::time::Instant;

/// Wall-clock seconds after which an input counts as a hang; generous, because the machine may be
/// loaded.
const TIMEOUT: &str = "-timeout=120";

/// Flags of cargo-fuzz without a sanitizer.
const INSTRUMENTATION: [&str; 5] = [
    "-Cpasses=sancov-module",
    "-Cllvm-args=-sanitizer-coverage-level=4",
    "-Cllvm-args=-sanitizer-coverage-inline-8bit-counters",
    "-Cllvm-args=-sanitizer-coverage-pc-table",
    "-Cllvm-args=-sanitizer-coverage-trace-compares",
];
/// Name prefix of the project's crates. Other crates are not instrumented: libFuzzer scans all
/// counters after each input, and would be called for each comparison in cipher arithmetic.
const OURS: &str = "longhaul";
/// Environment variable of the compiler that [`instrument`] wraps.
const INSTRUMENTS: &str = "LONGHAUL_FUZZ_INSTRUMENTS";
/// An explicit target, so that its flags do not apply to builds for the host.
const PLATFORM: &str = "x86_64-unknown-linux-gnu";
/// Maximum input length of a target in bytes, if not the default.
const LENGTHS_MAX: &[(&str, u32)] = &[
    ("accelerator", 1024),
    ("capture", 2048),
    ("memif_control", 1200),
    ("memif_rings", 600),
    ("reliable", 1024),
    ("segments", 2000),
    ("segments_described", 2000),
    ("session", 512),
];
const LENGTH_MAX: u32 = 512;
/// Maximum bytes of all committed corpora together.
const COMMITTED_MAX: u64 = 2 << 20;
/// Inputs longer than this are not committed.
const COMMITTED_INPUT_MAX: u64 = 1024;

/// Limit of fuzzing a target.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Limit {
    Seconds(u64),
    Runs(u64),
}

#[derive(Debug, PartialEq, Eq)]
struct Asked {
    /// Empty: all.
    targets: Vec<String>,
    limit: Limit,
    /// Add new inputs to the committed corpus.
    minimises: bool,
    lists: bool,
}

/// Fuzzes as the arguments say: `[TARGET …] [--time SECONDS | --runs N] [--minimise] [--list]`.
pub fn run(root: &Path, words: &[String]) -> Result<(), String> {
    let all = targets(root)?;
    let asked = parse(words, &all)?;
    if asked.lists {
        all.iter().for_each(|name| println!("{name}"));
        return Ok(());
    }
    let targets = if asked.targets.is_empty() { &all } else { &asked.targets };
    let program = build(root)?;
    if asked.minimises {
        return minimise(root, &program, targets);
    }
    each(root, &program, targets, asked.limit)
}

/// Fuzzes every target, `seconds` in total.
pub fn all(root: &Path, seconds: u64) -> Result<(), String> {
    let targets = targets(root)?;
    let program = build(root)?;
    let limit = Limit::Seconds((seconds / targets.len() as u64).max(1));
    each(root, &program, &targets, limit)
}

/// The targets are the folders of committed corpora.
fn targets(root: &Path) -> Result<Vec<String>, String> {
    let folder = corpus(root, "");
    let unreadable = |e| format!("{}: {e}", folder.display());
    let mut names = Vec::new();
    for entry in fs::read_dir(&folder).map_err(unreadable)? {
        names.push(entry.map_err(unreadable)?.file_name().to_string_lossy().into_owned());
    }
    names.sort();
    Ok(names)
}

fn parse(words: &[String], all: &[String]) -> Result<Asked, String> {
    let mut asked =
        Asked { targets: vec![], limit: Limit::Seconds(60), minimises: false, lists: false };
    let mut words = words.iter();
    let number = |of: &str, word: Option<&String>| {
        let word = word.ok_or(format!("{of} needs a number, as in '{of} 600'"))?;
        word.parse::<u64>().map_err(|_| format!("{of} {word}: '{word}' is no number"))
    };
    while let Some(word) = words.next() {
        match word.as_str() {
            "--time" => asked.limit = Limit::Seconds(number("--time", words.next())?),
            "--runs" => asked.limit = Limit::Runs(number("--runs", words.next())?),
            "--minimise" => asked.minimises = true,
            "--list" => asked.lists = true,
            name if all.iter().any(|target| target == name) => asked.targets.push(name.to_owned()),
            other => {
                return Err(format!(
                    "there is no target '{other}'; the targets are {}",
                    all.join(", ")
                ));
            }
        }
    }
    Ok(asked)
}

/// Committed hand-written inputs, and findings.
fn corpus(root: &Path, target: &str) -> PathBuf {
    root.join("checks/fuzz/corpus").join(target)
}

/// Committed inputs from the fuzzer.
fn found(root: &Path, target: &str) -> PathBuf {
    root.join("checks/fuzz/found").join(target)
}

/// The fuzzer's inputs between runs.
fn learnt(root: &Path, target: &str) -> PathBuf {
    cargo::target(root).join("fuzz-corpus").join(target)
}

pub fn build(root: &Path) -> Result<PathBuf, String> {
    let folder = cargo::target(root).join("fuzz");
    let folder_argument = format!("--target-dir={}", folder.display());
    let manifest = "--manifest-path=checks/fuzz/Cargo.toml";
    let platform = format!("--target={PLATFORM}");
    let arguments = ["build", "--release", "--quiet", manifest, &platform, &folder_argument];
    if Command::new("c++").arg("--version").output().is_err() {
        return Err("libFuzzer needs a C++ compiler: apt-get install g++".to_owned());
    }
    let this = std::env::current_exe().map_err(|e| format!("where is this program? {e}"))?;
    let this = this.to_string_lossy();
    let variables = [("RUSTC_WRAPPER", &*this), (INSTRUMENTS, "1"), ("RUSTFLAGS", "--cfg fuzzing")];
    cargo::cargo(root, &arguments, &variables)?;
    Ok(folder.join(PLATFORM).join("release/longhaul-fuzz"))
}

/// As cargo's compiler wrapper, runs the compiler, with instrumentation for the project's crates;
/// `None` if not started by cargo.
pub fn instrument(arguments: &[String]) -> Option<ExitCode> {
    std::env::var_os(INSTRUMENTS)?;
    let (compiler, rest) = arguments.split_first()?;
    let mut command = Command::new(compiler);
    command.args(rest);
    if is_ours(rest) {
        command.args(INSTRUMENTATION);
    }
    let status = command.status().ok().and_then(|status| status.code());
    Some(ExitCode::from(status.and_then(|code| u8::try_from(code).ok()).unwrap_or(1)))
}

fn is_ours(arguments: &[String]) -> bool {
    let name = arguments.iter().skip_while(|argument| *argument != "--crate-name").nth(1);
    name.is_some_and(|name| name.starts_with(OURS))
}

/// Fuzzes one target after the other; a finding ends only its own target.
fn each(root: &Path, program: &Path, targets: &[String], limit: Limit) -> Result<(), String> {
    let (mut findings, mut executions) = (Vec::new(), 0);
    for target in targets {
        match one(root, program, target, limit) {
            Ok(count) => executions += count,
            Err(error) => {
                eprintln!("{error}");
                findings.push(target.as_str());
            }
        }
    }
    println!("{executions} executions of {} targets", targets.len());
    if findings.is_empty() { Ok(()) } else { Err(format!("findings: {}", findings.join(", "))) }
}

/// Returns the input folders, the fuzzer's own first, and the path prefix of findings.
fn folders(root: &Path, target: &str) -> Result<([PathBuf; 3], String), String> {
    let inputs = [learnt(root, target), found(root, target), corpus(root, target)];
    let findings = cargo::target(root).join("fuzz-findings");
    for folder in inputs.iter().chain([&findings]) {
        fs::create_dir_all(folder).map_err(|e| format!("{}: {e}", folder.display()))?;
    }
    Ok((inputs, format!("{}/{target}-", findings.display())))
}

fn fuzzer(program: &Path, target: &str) -> Command {
    let mut command = Command::new(program);
    let length =
        LENGTHS_MAX.iter().find(|(of, _)| *of == target).map_or(LENGTH_MAX, |(_, max)| *max);
    command.env("LONGHAUL_FUZZ_TARGET", target).arg(format!("-max_len={length}"));
    command
}

/// Runs the fuzzer on one target; returns the number of executions.
fn one(root: &Path, program: &Path, target: &str, limit: Limit) -> Result<u64, String> {
    let (inputs, findings) = folders(root, target)?;
    let limit = match limit {
        Limit::Seconds(seconds) => format!("-max_total_time={seconds}"),
        Limit::Runs(runs) => format!("-runs={runs}"),
    };
    let started = Instant::now();
    let mut child = fuzzer(program, target)
        .args([&limit, "-print_final_stats=1", TIMEOUT, "-rss_limit_mb=2048", "-reload=0"])
        .arg(format!("-artifact_prefix={findings}"))
        .args(&inputs)
        .stderr(Stdio::piped())
        .spawn()
        .map_err(|e| format!("cannot run {}: {e}", program.display()))?;
    let (mut executions, mut rest) = (0, String::new());
    for line in child
        .stderr
        .take()
        .map(BufReader::new)
        .into_iter()
        .flat_map(BufRead::lines)
        .map_while(Result::ok)
    {
        if let Some(count) = line.strip_prefix("stat::number_of_executed_units:") {
            executions = count.trim().parse().unwrap_or(0);
        }
        if !line.starts_with('#') && !line.starts_with("stat::") {
            rest.push_str(&line);
            rest.push('\n');
        }
    }
    let status = child.wait().map_err(|e| format!("{target}: {e}"))?;
    let seconds = started.elapsed().as_secs_f64();
    note(root, target, executions, seconds)?;
    println!(
        "{target}: {executions} executions in {seconds:.0} s, {:.0}/s",
        executions as f64 / seconds
    );
    if status.success() {
        return Ok(executions);
    }
    Err(format!(
        "{rest}{target}: {status}; the input is {findings}*: put it into {}",
        inputs[2].display()
    ))
}

/// Adds a line to the journal of executions.
fn note(root: &Path, target: &str, executions: u64, seconds: f64) -> Result<(), String> {
    let path = cargo::target(root).join("fuzz-executions.tsv");
    let file = fs::OpenOptions::new().create(true).append(true).open(&path);
    file.and_then(|mut file| writeln!(file, "{target}\t{executions}\t{seconds:.0}"))
        .map_err(|e| format!("{}: {e}", path.display()))
}

/// Adds inputs that increase the coverage of the committed ones, shortest first.
fn minimise(root: &Path, program: &Path, targets: &[String]) -> Result<(), String> {
    for target in targets {
        let ([learnt, found, corpus], _) = folders(root, target)?;
        let short = cargo::target(root).join("fuzz-short").join(target);
        let _ = fs::remove_dir_all(&short);
        copy_short(&learnt, &short).map_err(|e| format!("{}: {e}", short.display()))?;
        copy_short(&corpus, &short).map_err(|e| format!("{}: {e}", short.display()))?;
        let before = count(&found);
        let merged = fuzzer(program, target)
            .arg("-merge=1")
            .args([&found, &short])
            .stderr(Stdio::null())
            .status()
            .map_err(|e| format!("cannot run {}: {e}", program.display()))?;
        if !merged.success() {
            return Err(format!("{target}: merging its corpus: {merged}"));
        }
        println!("{target}: {before} inputs, now {}", count(&found));
    }
    let bytes = bytes_of(&corpus(root, "")) + bytes_of(&found(root, ""));
    println!("{bytes} bytes in all");
    if bytes > COMMITTED_MAX {
        return Err(format!(
            "the corpora have {bytes} bytes, more than {COMMITTED_MAX}: remove the longest inputs"
        ));
    }
    Ok(())
}

fn copy_short(from: &Path, to: &Path) -> std::io::Result<()> {
    fs::create_dir_all(to)?;
    for entry in fs::read_dir(from)? {
        let entry = entry?;
        if entry.metadata()?.len() <= COMMITTED_INPUT_MAX {
            fs::copy(entry.path(), to.join(entry.file_name()))?;
        }
    }
    Ok(())
}

fn count(folder: &Path) -> usize {
    fs::read_dir(folder).map_or(0, Iterator::count)
}

fn bytes_of(folder: &Path) -> u64 {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let of = |entry: fs::DirEntry| match entry.metadata() {
        Ok(data) if data.is_dir() => bytes_of(&entry.path()),
        Ok(data) => data.len(),
        Err(_) => 0,
    };
    entries.map(of).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn crates_of_ours_alone_are_instrumented() {
        let is_ours = |line: &str| is_ours(&line.split(' ').map(str::to_owned).collect::<Vec<_>>());
        assert!(is_ours("--crate-name longhaul_wire --edition=2024 proto/wire/src/lib.rs"));
        assert!(!is_ours("--crate-name build_script_build --edition=2024"));
        assert!(!is_ours("--crate-name snow --edition=2024") && !is_ours("-vV"));
    }

    #[test]
    fn targets_and_limits_are_read_and_anything_else_is_refused() {
        let all = ["frame".to_owned(), "mad".to_owned()];
        let of = |words: &str| {
            parse(&words.split_whitespace().map(str::to_owned).collect::<Vec<_>>(), &all)
        };
        let asked = of("mad --runs 1000").unwrap();
        assert_eq!((asked.targets, asked.limit), (vec!["mad".to_owned()], Limit::Runs(1000)));
        assert_eq!(of("--time 5").unwrap().limit, Limit::Seconds(5));
        assert!(of("fame").unwrap_err().contains("'fame'; the targets are frame, mad"));
        assert!(of("--time").unwrap_err().contains("--time 600"));
        assert!(of("--runs many").unwrap_err().contains("'many' is no number"));
    }
}
