//! `cargo xtask count`: instructions per packet, independent of the machine's load.
//!
//! The examples of the protocol crates run one code path a given number of times. The difference of
//! two runs under callgrind is the cost of one round without start-up. Valgrind does not support
//! AVX-512, so the ICRC takes more instructions here than on the CPU. The figures depend on the
//! compiler, and neither on the machine nor on its load.

use crate::cargo;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The committed figures, below the workspace's root.
const COMMITTED: &str = "xtask/counts.json";
/// Percentage by which a figure may exceed the committed one.
const TOLERANCE: u64 = 3;

const WITHOUT_VALGRIND: &str = "valgrind is not installed: apt-get install valgrind";

/// Rounds of the two runs; multiples of every example's batch.
const SHORT: u64 = 6_400;
const LONG: u64 = 19_200;

/// One row of the table. `N` in the arguments is the number of rounds.
struct Counted {
    package: &'static str,
    example: &'static str,
    what: &'static str,
    arguments: &'static str,
    /// Arguments of the preparations alone, whose cost is subtracted.
    preparations: Option<&'static str>,
}

const fn wire(what: &'static str, arguments: &'static str) -> Counted {
    Counted {
        package: "wire",
        example: "count_parse_build",
        what,
        arguments,
        preparations: Some("nothing N"),
    }
}

const fn rnic(what: &'static str, arguments: &'static str) -> Counted {
    Counted { package: "rnic", example: "per_packet", what, arguments, preparations: None }
}

const fn accel(what: &'static str, arguments: &'static str, preparations: &'static str) -> Counted {
    Counted {
        package: "accel",
        example: "count",
        what,
        arguments,
        preparations: Some(preparations),
    }
}

const fn wan(what: &'static str, arguments: &'static str, preparations: &'static str) -> Counted {
    Counted {
        package: "wan",
        example: "count_tunnelled",
        what,
        arguments,
        preparations: Some(preparations),
    }
}

const fn link(what: &'static str, arguments: &'static str) -> Counted {
    Counted { package: "link", example: "count_frames", what, arguments, preparations: None }
}

const COUNTED: &[Counted] = &[
    wire("take a frame apart", "split N"),
    wire("parse BTH and RETH", "parse N"),
    wire("build a WRITE's headers", "build_write N"),
    wire("build an ACK's headers", "build_ack N"),
    wire("ICRC of an ACK", "icrc_ack N"),
    wire("ICRC of 512 B", "icrc_512 N"),
    wire("ICRC of 4 KiB", "icrc_4096 N"),
    rnic("WRITE of 0 B, both ends", "0 N"),
    rnic("WRITE of 64 B, both ends", "64 N"),
    rnic("WRITE of 4 KiB, both ends", "4096 N"),
    link("62 B", "short N"),
    link("62 B, a rule for others", "short_with_rule N"),
    link("4 KiB with copy", "copied_4096 N"),
    accel("4 KiB, own work", "own N", "own N build"),
    accel("4 KiB with copy", "copied N", "copied N build"),
    accel("4 KiB with copy and ICRC", "received N", "received N build"),
    wan("512 B, own work, both boxes", "own N 512", "build N 512"),
    wan("512 B, own work, 64 streams", "own N 512 64", "build N 512 64"),
    wan("512 B, as over ports", "copied N 512", "build N 512"),
];

/// Figures by row, and the compiler that they are of.
#[derive(Serialize, Deserialize)]
struct Counts {
    rustc: String,
    instructions: BTreeMap<String, u64>,
}

/// Counts, prints, and does what `words` say: nothing, `--check` or `--commit`.
pub fn run(root: &Path, words: &[String]) -> Result<(), String> {
    match words {
        [] => count(root).map(drop),
        [word] if word == "--check" => check(root)?.map_or(Ok(()), Err),
        [word] if word == "--commit" => {
            let text = serde_json::to_string_pretty(&count(root)?).map_err(|e| e.to_string())?;
            fs::write(root.join(COMMITTED), text + "\n").map_err(|e| format!("{COMMITTED}: {e}"))
        }
        _ => Err("count: the options are --check and --commit".to_owned()),
    }
}

/// Counts, and compares with the committed figures. Returns why nothing was compared, if so.
///
/// # Errors
/// If a figure exceeds its committed one by more than the tolerance.
pub fn check(root: &Path) -> Result<Option<String>, String> {
    if !has_valgrind() {
        return Ok(Some(format!("instruction counts: {WITHOUT_VALGRIND}")));
    }
    let text = fs::read_to_string(root.join(COMMITTED)).map_err(|e| format!("{COMMITTED}: {e}"))?;
    let committed: Counts = serde_json::from_str(&text).map_err(|e| format!("{COMMITTED}: {e}"))?;
    let rustc = rustc()?;
    if committed.rustc != rustc {
        let why = format!("they are of {}, this is {rustc}", committed.rustc);
        return Ok(Some(format!("instruction counts: {why}")));
    }
    compare(&committed.instructions, &count(root)?.instructions).map(|()| None)
}

fn compare(
    committed: &BTreeMap<String, u64>,
    counted: &BTreeMap<String, u64>,
) -> Result<(), String> {
    let mut faults = Vec::new();
    for (row, count) in counted {
        match committed.get(row) {
            None => faults.push(format!("{row}: no committed figure")),
            Some(before) if count * 100 > before * (100 + TOLERANCE) => {
                let more = 100.0 * (*count as f64 / *before as f64 - 1.0);
                faults.push(format!("{row}: {count}, {more:.1} % above {before}"));
            }
            Some(_) => {}
        }
    }
    let gone = committed.keys().filter(|row| !counted.contains_key(*row));
    faults.extend(gone.map(|row| format!("{row}: no longer counted")));
    if faults.is_empty() {
        return Ok(());
    }
    let faults = faults.join("\n  ");
    Err(format!(
        "instructions per packet:\n  {faults}\nwhere that has a reason: cargo xtask count --commit"
    ))
}

fn has_valgrind() -> bool {
    Command::new("valgrind").arg("--version").output().is_ok()
}

/// Name and version of the compiler.
fn rustc() -> Result<String, String> {
    let out = Command::new("rustc").arg("--version").output();
    let out = out.map_err(|e| format!("cannot run rustc: {e}"))?;
    Ok(String::from_utf8_lossy(&out.stdout).trim().to_owned())
}

/// Counts and prints every row.
fn count(root: &Path) -> Result<Counts, String> {
    if !has_valgrind() {
        return Err(WITHOUT_VALGRIND.to_owned());
    }
    let folder = build_examples(root)?;
    println!("{:<8} {:<28} {:>24}", "crate", "path", "instructions per packet");
    let mut instructions = BTreeMap::new();
    for counted in COUNTED {
        let program = folder.join(counted.example);
        let mut each = per_round(&program, counted.arguments)?;
        if let Some(preparations) = counted.preparations {
            each -= per_round(&program, preparations)?;
        }
        println!("{:<8} {:<28} {:>24.0}", counted.package, counted.what, each);
        instructions.insert(format!("{}: {}", counted.package, counted.what), each.round() as u64);
    }
    Ok(Counts { rustc: rustc()?, instructions })
}

/// Builds the examples and returns their folder.
fn build_examples(root: &Path) -> Result<PathBuf, String> {
    let mut build = cargo::command(root, &["build", "--release", "--quiet", "--examples"]);
    // Incremental builds have other figures.
    build.env("CARGO_INCREMENTAL", "0");
    for package in ["wire", "rnic", "link", "accel", "wan"] {
        build.args(["-p", &format!("longhaul-{package}")]);
    }
    let status = build.status().map_err(|e| format!("cannot run cargo: {e}"))?;
    if !status.success() {
        return Err("cargo build --examples failed".to_string());
    }
    Ok(cargo::target(root).join("release/examples"))
}

fn per_round(program: &Path, arguments: &str) -> Result<f64, String> {
    let (short, long) =
        (instructions(program, arguments, SHORT)?, instructions(program, arguments, LONG)?);
    Ok(long.saturating_sub(short) as f64 / (LONG - SHORT) as f64)
}

fn instructions(program: &Path, arguments: &str, rounds: u64) -> Result<u64, String> {
    let rounds = rounds.to_string();
    let arguments =
        arguments.split(' ').map(|word| if word == "N" { rounds.as_str() } else { word });
    let mut valgrind = Command::new("valgrind");
    valgrind
        .args(["--tool=callgrind", "--callgrind-out-file=/dev/null"])
        .arg(program)
        .args(arguments);
    let out = valgrind.output().map_err(|e| format!("cannot run valgrind: {e}"))?;
    let text = String::from_utf8_lossy(&out.stderr);
    let total = text.lines().find_map(|line| line.split_once("Collected :")?.1.trim().parse().ok());
    total.ok_or_else(|| format!("callgrind gave no count for {valgrind:?}:\n{text}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counts<const N: usize>(rows: [(&str, u64); N]) -> BTreeMap<String, u64> {
        rows.into_iter().map(|(row, count)| (row.to_owned(), count)).collect()
    }

    #[test]
    fn a_row_that_grew_came_or_went_is_named() {
        let committed = counts([("accel: own", 1000), ("wire: parse", 100)]);
        assert_eq!(compare(&committed, &committed), Ok(()));
        let within = counts([("accel: own", 1030), ("wire: parse", 50)]);
        assert_eq!(compare(&committed, &within), Ok(()));
        let others = counts([("accel: own", 1031), ("wan: both", 7)]);
        let error = compare(&committed, &others).unwrap_err();
        for part in [
            "accel: own: 1031, 3.1 % above 1000",
            "wan: both: no committed figure",
            "wire: parse: no longer counted",
            "cargo xtask count --commit",
        ] {
            assert!(error.contains(part), "{error}");
        }
    }

    #[test]
    fn every_row_has_a_committed_figure() {
        let text = include_str!("../counts.json");
        let committed: Counts = serde_json::from_str(text).unwrap();
        let counted = COUNTED.iter().map(|row| (format!("{}: {}", row.package, row.what), 0));
        assert_eq!(compare(&committed.instructions, &counted.collect()), Ok(()));
    }
}
