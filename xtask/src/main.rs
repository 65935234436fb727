//! Developer tasks: `cargo xtask tidy`, `quick`, `ci`, `program`, `sanitize`, `interop`, `dpdk`,
//! `python`, `soak`, `nightly`, `fuzz`, `count`; `cargo xtask --help` says what each does.

mod cargo;
mod ci;
mod count;
mod disk;
mod executables;
mod fuzz;
mod interop;
mod metadata;
mod nightly;
mod program;
mod python;
mod quick;
mod skips;
mod steps;
mod tidy;

use std::path::PathBuf;
use std::process::ExitCode;

const USAGE: &str = "\
usage: cargo xtask COMMAND

  tidy      layering, unsafe code, names and sizes of files, lines of code and documents
  quick     minutes: tidy, format, clippy, unit tests and tests in virtual time
  ci        half an hour: all of quick, documentation, programs end to end, orders of execution;
            '--strict' (quick too) fails where a test skips itself
  program   the program that end-to-end tests run, and its preloaded library
  sanitize  tests of unsafe code under AddressSanitizer, by a nightly toolchain
  interop   the kernel's rxe in guests against our device and through our boxes, and boxes as
            services of systemd: all scenarios, or those whose names contain one of the words that
            follow; 'interop shell' gives commands to a guest with rxe
  dpdk      what is built with DPDK, where it is installed: part of ci
  python    the Python package's wheel and tests: part of ci
  soak      half an hour, or as many minutes as are given, of transfers through boxes over a fibre
            that loses and is cut, between hosts that die and come again
  nightly   everything that takes too long for ci: all stages, or those named; '--list' lists them
            and how long they take, '--minutes N' ends each after N minutes
  fuzz      coverage-guided fuzzing on the stable toolchain: every target for a minute, or
            [TARGET ...] [--time SECONDS | --runs N]; '--list' lists the targets, '--minimise'
            puts into the committed corpora what was found and covers something new
  count     instructions per packet of the hot paths, by valgrind's callgrind; '--check' fails if
            one is 3 % above its committed figure (part of ci), '--commit' replaces those";

fn main() -> ExitCode {
    if let Some(ended) = fuzz::instrument(&std::env::args().skip(1).collect::<Vec<_>>()) {
        return ended;
    }
    let mut arguments = std::env::args().skip(1);
    let outcome = match arguments.next().as_deref() {
        Some("tidy") => tidy::run(&workspace()),
        Some("ci") => strict(arguments).and_then(|strict| ci::run(&workspace(), strict)),
        Some("quick") => strict(arguments).and_then(|strict| quick::run(&workspace(), strict)),
        Some("program") => program::build(&workspace()),
        Some("sanitize") => ci::sanitize(&workspace()),
        Some("python") => python::run_alone(&workspace()),
        Some("dpdk") => ci::dpdk(&workspace()),
        Some("interop") => interop::run(&workspace(), arguments.collect()),
        Some("soak") => ci::soak(&workspace(), arguments.next().as_deref().unwrap_or("30")),
        Some("nightly") => {
            let words = arguments.collect::<Vec<_>>();
            if let [option, stage] = &words[..]
                && option == "--stage"
            {
                return nightly::run_stage(&workspace(), stage);
            }
            nightly::run(&workspace(), &words)
        }
        Some("fuzz") => fuzz::run(&workspace(), &arguments.collect::<Vec<_>>()),
        Some("count") => count::run(&workspace(), &arguments.collect::<Vec<_>>()),
        Some("--help" | "-h") => {
            println!("{USAGE}");
            Ok(())
        }
        _ => {
            eprintln!("{USAGE}");
            return ExitCode::from(2);
        }
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => {
            eprintln!("xtask: {message}");
            ExitCode::FAILURE
        }
    }
}

/// Whether `--strict` was given, the only option.
fn strict(words: impl Iterator<Item = String>) -> Result<bool, String> {
    let mut strict = false;
    for word in words {
        if word != "--strict" {
            return Err(format!("'{word}': the only option is --strict"));
        }
        strict = true;
    }
    Ok(strict)
}

/// The workspace's root folder.
fn workspace() -> PathBuf {
    let manifest = PathBuf::from(env!("CARGO_MANIFEST_DIR"));
    match manifest.parent() {
        Some(root) => root.to_path_buf(),
        None => manifest,
    }
}
