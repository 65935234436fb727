//! Developer tasks: `cargo xtask tidy`, `cargo xtask ci`, `cargo xtask sanitize`,
//! `cargo xtask interop`, `cargo xtask dpdk`, `cargo xtask soak`, `cargo xtask nightly`,
//! `cargo xtask fuzz`, `cargo xtask count`.

mod cargo;
mod ci;
mod count;
mod fuzz;
mod interop;
mod nightly;
mod tidy;

use std::path::PathBuf;
use std::process::ExitCode;

const USAGE: &str = "\
usage: cargo xtask COMMAND

  tidy      layering, unsafe code, names and sizes of files
  ci        every check: format, clippy, tidy, tests, programs end to end
  sanitize  tests of unsafe code under AddressSanitizer, by a nightly toolchain
  interop   the kernel's rxe in guests against our device and through our boxes: all scenarios, or
            those whose names contain one of the words that follow; 'interop shell' gives commands
            to a guest with rxe
  dpdk      what is built with DPDK, where it is installed: part of ci
  soak      half an hour, or as many minutes as are given, of transfers through boxes over a fibre
            that loses and is cut, between hosts that die and come again
  nightly   everything that takes too long for ci: all stages, or those named; '--list' lists them
            and how long they take, '--minutes N' ends each after N minutes
  fuzz      coverage-guided fuzzing on the stable toolchain: every target for a minute, or
            [TARGET ...] [--time SECONDS | --runs N]; '--list' lists the targets, '--minimise'
            puts into the committed corpora what was found and covers something new
  count     instructions per packet of the hot paths, by valgrind's callgrind";

fn main() -> ExitCode {
    if let Some(ended) = fuzz::instrument(&std::env::args().skip(1).collect::<Vec<_>>()) {
        return ended;
    }
    let mut arguments = std::env::args().skip(1);
    let outcome = match arguments.next().as_deref() {
        Some("tidy") => tidy::run(&workspace()),
        Some("ci") => ci::run(&workspace()),
        Some("sanitize") => ci::sanitize(&workspace()),
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
        Some("count") => count::run(&workspace()),
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

/// The workspace's root folder.
fn workspace() -> PathBuf {
    let manifest = PathBuf::from(env!("CARGO_MANIFEST_DIR"));
    match manifest.parent() {
        Some(root) => root.to_path_buf(),
        None => manifest,
    }
}
