//! `cargo xtask count`: instructions per packet, independent of the machine's load.
//!
//! The examples of the protocol crates run one code path a given number of times. The difference of
//! two runs under callgrind is the cost of one round without start-up. Valgrind does not support
//! AVX-512, so the ICRC takes more instructions here than on the CPU.

use crate::cargo;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Rounds of the two runs; multiples of every example's batch.
const SHORT: u64 = 6_400;
const LONG: u64 = 64_000;

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
    wan("the same, 64 streams", "own N 512 64", "build N 512 64"),
    wan("512 B, as over ports", "copied N 512", "build N 512"),
];

pub fn run(root: &Path) -> Result<(), String> {
    if Command::new("valgrind").arg("--version").output().is_err() {
        return Err("valgrind is not installed: apt-get install valgrind".to_string());
    }
    let folder = build_examples(root)?;
    println!("{:<8} {:<28} {:>24}", "crate", "path", "instructions per packet");
    for counted in COUNTED {
        let program = folder.join(counted.example);
        let mut each = per_round(&program, counted.arguments)?;
        if let Some(preparations) = counted.preparations {
            each -= per_round(&program, preparations)?;
        }
        println!("{:<8} {:<28} {:>24.0}", counted.package, counted.what, each);
    }
    Ok(())
}

/// Builds the examples and returns their folder.
fn build_examples(root: &Path) -> Result<PathBuf, String> {
    let mut build = cargo::command(root, &["build", "--release", "--quiet", "--examples"]);
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
