//! `cargo xtask ci`: every check. What reads the code runs beside the tests of programs.

use crate::cargo::cargo;
use crate::count;
use crate::disk;
use crate::executables;
use crate::metadata;
use crate::program::{self, DPDK};
use crate::python;
use crate::skips::Skips;
use crate::steps::Steps;
use crate::tidy;
use std::path::Path;
use std::process::Command;

pub const FORMAT: &[&str] = &["fmt", "--all", "--check"];
pub const CLIPPY: &[&str] =
    &["clippy", "--workspace", "--all-targets", "--quiet", "--", "-D", "warnings"];

/// A step that cargo does.
type Step = (&'static str, &'static [&'static str]);

/// Takes seconds, and so comes first.
const QUICK: &[Step] = &[
    ("format", FORMAT),
    // The fuzzer is a separate workspace, whose Cargo.lock no other step checks.
    ("the fuzzer's Cargo.lock", &["tree", "--depth=0", "--manifest-path=checks/fuzz/Cargo.toml"]),
];
const READING: &[Step] =
    &[("clippy", CLIPPY), ("documentation", &["doc", "--workspace", "--no-deps", "--quiet"])];
const READING_WITH_DPDK: &[Step] =
    &[("clippy with DPDK", DPDK_CLIPPY), ("documentation with DPDK", DPDK_DOC)];

const DPDK_CLIPPY: &[&str] =
    &["clippy", "--workspace", DPDK, "--all-targets", "--quiet", "--", "-D", "warnings"];
const DPDK_DOC: &[&str] =
    &["doc", "-p=longhaul-dpdk", "--features=longhaul-dpdk/libdpdk", "--no-deps", "--quiet"];
/// The test target that runs boxes over DPDK.
const DPDK_BOXES: &str = "--test=dpdk";

/// Fixed cases of every property test; `cargo xtask nightly` draws new ones.
pub const SAME_CASES: (&str, &str) = ("PROPTEST_RNG_SEED", "1");

/// Explores every interleaving, with a bounded number of preemptions, of data that threads or
/// processes share without a plain mutex. `cfg(loom)` replaces atomics and locks, hence the
/// separate target folder.
const LOOM: (&[&str], &[(&str, &str)]) = (
    &[
        "test",
        "--quiet",
        "--lib",
        "--target-dir=target/loom",
        "-p=longhaul-port",
        "-p=longhaul-memif",
        "-p=longhaul-host",
        "-p=longhaul-rdma",
        "under_loom",
    ],
    &[("RUSTFLAGS", "--cfg loom"), ("LOOM_MAX_PREEMPTIONS", "3"), ("CARGO_PROFILE_DEV_DEBUG", "0")],
);

/// Runs every step; with `strict` a skipped test is a failure.
pub fn run(root: &Path, strict: bool) -> Result<(), String> {
    let steps = Steps::begin();
    eprintln!("== all checks: about half an hour on two cores");
    let skips = Skips::begin(root)?;
    disk::check(root)?;
    let outcome = all(root, &steps, &skips);
    eprint!("{}", steps.table());
    let skipped = skips.report(strict);
    outcome.and(skipped)?;
    eprintln!("== all checks passed");
    Ok(())
}

fn all(root: &Path, steps: &Steps, skips: &Skips) -> Result<(), String> {
    steps.run("tidy", || tidy::run(root))?;
    run_all(root, steps, QUICK)?;
    steps.run("program", || program::build(root))?;
    let (variable, file) = skips.variable();
    let mut variables = vec![SAME_CASES, (variable, &file)];
    if !has_dpdk() {
        skips.add(&format!("everything with DPDK: {DPDK_IS_MISSING}"))?;
        return tests(root, steps, skips, &Features { names: &[], reading: &[] }, &variables);
    }
    let program = steps.run("program with DPDK", || program::build_with_dpdk(root))?;
    variables.push((PROGRAM_WITH_DPDK, &program));
    let features = Features { names: &[DPDK], reading: READING_WITH_DPDK };
    tests(root, steps, skips, &features, &variables)
}

/// What the tests are built with.
struct Features {
    names: &'static [&'static str],
    /// Steps that read the code that has these features.
    reading: &'static [Step],
}

fn run_all(root: &Path, steps: &Steps, all: &[Step]) -> Result<(), String> {
    all.iter().try_for_each(|(name, arguments)| steps.run(name, || cargo(root, arguments, &[])))
}

/// Runs every test with these features. Those of programs, labs and guests often wait, and must not
/// be starved; everything else is compiled, read and runs beside them at a low priority.
fn tests(
    root: &Path,
    steps: &Steps,
    skips: &Skips,
    features: &Features,
    variables: &[(&str, &str)],
) -> Result<(), String> {
    let selection = [&["test", "--workspace"], features.names].concat();
    let of_programs = tests_of_programs(root)?;
    let of_programs: Vec<&str> = of_programs.iter().map(String::as_str).collect();
    let build = || executables::build(root, &[&selection[..], &of_programs].concat());
    let of_programs = steps.run("build of programs' tests", build)?;
    let others = || {
        // On Linux the priority of this thread, and of the processes that it starts.
        rustix::process::nice(10).map_err(|e| format!("cannot lower the priority: {e}"))?;
        let read = joined([READING, features.reading].map(|all| run_all(root, steps, all)));
        let build = || executables::build(root, &selection);
        let others = steps.run("build of all others", build)?;
        let outcomes = [
            read,
            steps.run("all other tests", || {
                executables::run(others.difference(&of_programs), variables)
            }),
            steps.run("examples in documentation", || {
                cargo(root, &[&selection[..], &["--doc", "--quiet"]].concat(), variables)
            }),
            steps.run("Python package", || python::test(root, skips)),
            steps.run("instruction counts", || {
                count::check(root)?.map_or(Ok(()), |why| skips.add(&why))
            }),
            steps.run("orders of execution", || cargo(root, LOOM.0, LOOM.1)),
        ];
        joined(outcomes)
    };
    std::thread::scope(|scope| {
        let others = scope.spawn(others);
        let passed = steps.run("tests of programs", || executables::run(&of_programs, variables));
        let panicked = |_| Err("the thread of all other tests panicked".to_owned());
        joined([passed, others.join().unwrap_or_else(panicked)])
    })
}

/// `--test=NAME` for every test target that starts programs.
fn tests_of_programs(root: &Path) -> Result<Vec<String>, String> {
    let package = metadata::packages(root)?.into_iter().find(|it| it.name == PROGRAMS);
    let Some(package) = package else { return Err(format!("there is no package {PROGRAMS}")) };
    let targets = package.targets.into_iter().filter(|it| it.kind == ["test"]);
    // `all` is what runs in virtual time, in every crate.
    let targets = targets.map(|it| it.name).filter(|name| name != "all");
    Ok(targets.map(|name| format!("--test={name}")).collect())
}

/// The package whose test targets start programs, labs and guests.
const PROGRAMS: &str = "longhaul-checks";

/// All errors, one a line.
fn joined(outcomes: impl IntoIterator<Item = Result<(), String>>) -> Result<(), String> {
    let errors: Vec<String> = outcomes.into_iter().filter_map(Result::err).collect();
    if errors.is_empty() { Ok(()) } else { Err(errors.join("\n")) }
}

/// The variable in which the tests get the path of the program with DPDK.
const PROGRAM_WITH_DPDK: &str = "LONGHAUL_WITH_DPDK";

pub const DPDK_IS_MISSING: &str =
    "DPDK is not installed: apt-get install pkg-config libdpdk-dev dpdk-dev";

pub fn has_dpdk() -> bool {
    let found = Command::new("pkg-config").args(["--atleast-version=22.11", "libdpdk"]).status();
    found.is_ok_and(|status| status.success())
}

/// Runs what is built with DPDK: the port's own tests and, end to end, boxes over it. Reports a
/// skip if DPDK is not installed, because the default build must not need it.
pub fn dpdk(root: &Path) -> Result<(), String> {
    if !has_dpdk() {
        eprintln!("\n!!! SKIPPED: everything with DPDK: {DPDK_IS_MISSING}\n");
        return Ok(());
    }
    cargo(root, DPDK_CLIPPY, &[])?;
    cargo(root, DPDK_DOC, &[])?;
    program::build(root)?;
    let program = program::build_with_dpdk(root)?;
    let quiet_test = |package, features, name: &[&str]| {
        cargo(root, &[&["test", "--quiet", "--lib", package, features], name].concat(), &[])
    };
    quiet_test("-p=longhaul-dpdk", "--features=longhaul-dpdk/libdpdk", &[])?;
    quiet_test("-p=longhaul-boxes", "--features=longhaul-boxes/dpdk", &["port_counters"])?;
    let boxes = ["test", "--workspace", DPDK_BOXES, DPDK];
    cargo(root, &boxes, &[(PROGRAM_WITH_DPDK, &program)])
}

/// Runs the long form of the soak test, which otherwise takes half a minute.
pub fn soak(root: &Path, minutes: &str) -> Result<(), String> {
    let minutes: u64 = minutes
        .parse()
        .map_err(|_| format!("'{minutes}' is no number of minutes: give one, as 30"))?;
    program::build(root)?;
    let test = ["test", "-p=longhaul-checks", "--test=integrity", "soak::", "--", "--nocapture"];
    cargo(root, &test, &[("LONGHAUL_SOAK_SECONDS", &(60 * minutes).to_string())])
}

/// Runs the tests of crates with unsafe code under AddressSanitizer, which needs a nightly
/// toolchain. Excludes programs with the preloaded library, which would have to be built with it
/// too.
pub fn sanitize(root: &Path) -> Result<(), String> {
    let status = Command::new("rustup")
        .current_dir(root)
        .args([
            "run",
            "nightly",
            "cargo",
            "test",
            "--locked",
            "--lib",
            "--no-fail-fast",
            "--target-dir=target/sanitize",
        ])
        // An explicit target, because otherwise build scripts would be sanitized too.
        .args([
            "--target=x86_64-unknown-linux-gnu",
            "-p=longhaul-port",
            "-p=longhaul-memif",
            "-p=longhaul-udp",
        ])
        .args(["-p=longhaul-host", "-p=longhaul-rdma", "-p=longhaul-preload"])
        .env("RUSTFLAGS", "-Zsanitizer=address")
        .status()
        .map_err(|e| format!("cannot run rustup: {e}"))?;
    if status.success() { Ok(()) } else { Err("tests under AddressSanitizer failed".to_owned()) }
}
