//! The stages. Their lengths are in the environment, which every cargo inherits.

use super::{BUILT, Done, LENGTHS, in_force};
use crate::cargo::{RELEASE, cargo, target};
use crate::program;
use crate::{ci, fuzz as fuzzer, interop as scenarios};
use std::path::Path;
use std::process::Command;

/// Test targets of checks/ with their own stages.
const APART: [&str; 4] = [scenarios::TARGET, "stress", "kills", "many_qps"];
/// Tests that are `#[ignore]`d but not part of the tier: they need a seed from the user, write into
/// the source tree, or are the stage `reproduce`.
const BY_HAND: [&str; 4] = [
    "--skip=those_of_some_seeds",
    "--skip=lasts_in_a_survey",
    "--skip=write_seeds",
    "--skip=every_experiment_is_as_expected",
];

/// Builds, and then runs, the tests that `arguments` of `cargo test` select.
fn tests(root: &Path, arguments: &[&str]) -> Result<Done, String> {
    build_tests(root, arguments)?;
    built();
    cargo(root, &[&["test"], arguments].concat(), &[])?;
    Ok(Done::Passed)
}

fn build_tests(root: &Path, arguments: &[&str]) -> Result<(), String> {
    let which: Vec<&str> =
        arguments.iter().copied().take_while(|argument| *argument != "--").collect();
    cargo(root, &[&["test", "--no-run", "--quiet"], &which[..]].concat(), &[])
}

/// Marks the end of builds for the time limit.
fn built() {
    println!("{BUILT}");
}

/// Returns a length from the environment, which the parent process has set.
fn length(variable: &str) -> Result<u64, String> {
    let usual =
        LENGTHS.iter().find(|length| length.variable == variable).map_or(0, |length| length.value);
    let text = in_force(variable, usual);
    text.parse().map_err(|_| format!("{variable}={text}: a number is needed"))
}

fn is_there(program: &str, arguments: &[&str]) -> bool {
    Command::new(program).args(arguments).output().is_ok_and(|out| out.status.success())
}

pub fn deny(root: &Path) -> Result<Done, String> {
    built();
    if !is_there("cargo", &["deny", "--version"]) {
        return Ok(Done::Skipped(
            "cargo-deny is missing: cargo install --locked cargo-deny".to_owned(),
        ));
    }
    // The fuzzer is a separate workspace.
    let manifests = ["--manifest-path=Cargo.toml", "--manifest-path=checks/fuzz/Cargo.toml"];
    let check = |manifest: &str, what: &[&str]| {
        let quiet = "-A=license-exception-not-encountered";
        let arguments = ["deny", manifest, "--config=deny.toml", "check", quiet];
        cargo(root, &[&arguments[..], what].concat(), &[])
    };
    for manifest in manifests {
        check(manifest, &["licenses", "sources"])?;
    }
    if cargo(root, &["deny", "--config=deny.toml", "fetch", "db"], &[]).is_err() {
        let why = "licences and sources are right, advisories were NOT checked: \
                   their database cannot be fetched";
        return Ok(Done::Skipped(format!("{why}; run this with access to github.com")));
    }
    for manifest in manifests {
        check(manifest, &["advisories"])?;
    }
    Ok(Done::Passed)
}

pub fn properties(root: &Path) -> Result<Done, String> {
    build_tests(root, &["-p=longhaul-checks", "--test=fuzz_corpus"])?;
    let workspace = tests(root, &["--workspace", "--exclude=longhaul-checks", "--no-fail-fast"]);
    tests(root, &["-p=longhaul-checks", "--test=fuzz_corpus", "--no-fail-fast"])?;
    workspace
}

pub fn ignored(root: &Path) -> Result<Done, String> {
    let packages = ["--workspace", "--exclude=longhaul-checks", "--no-fail-fast"];
    tests(root, &[&packages[..], &["--", "--ignored"], &BY_HAND].concat())
}

/// Runs every test target of checks/ that neither boots guests nor has its own stage.
pub fn end_to_end(root: &Path) -> Result<Done, String> {
    program::build(root)?;
    let folder = root.join("checks/tests");
    let unreadable = |e| format!("{}: {e}", folder.display());
    let mut targets = Vec::new();
    for entry in std::fs::read_dir(&folder).map_err(unreadable)? {
        let path = entry.map_err(unreadable)?.path();
        let name = path.file_stem().and_then(|name| name.to_str()).unwrap_or_default();
        let is_target =
            path.extension().is_some_and(|e| e == "rs") || path.join("main.rs").is_file();
        if is_target && !APART.contains(&name) {
            targets.push(format!("--test={name}"));
        }
    }
    targets.sort();
    let mut arguments = vec!["-p=longhaul-checks", "--no-fail-fast"];
    arguments.extend(targets.iter().map(String::as_str));
    arguments.extend(["--", "--ignored", "--nocapture"]);
    arguments.extend(BY_HAND);
    tests(root, &arguments)
}

fn with_labs(root: &Path, name: &str) -> Result<Done, String> {
    program::build(root)?;
    let test = format!("--test={name}");
    tests(root, &["-p=longhaul-checks", &test, "--no-fail-fast", "--", "--ignored", "--nocapture"])
}

pub fn stress(root: &Path) -> Result<Done, String> {
    with_labs(root, "stress")
}

pub fn kills(root: &Path) -> Result<Done, String> {
    with_labs(root, "kills")
}

pub fn many_qps(root: &Path) -> Result<Done, String> {
    with_labs(root, "many_qps")
}

pub fn interop(root: &Path) -> Result<Done, String> {
    if !is_there("qemu-system-x86_64", &["--version"]) {
        return Ok(Done::Skipped("qemu is missing: apt-get install qemu-system-x86".to_owned()));
    }
    program::build(root)?;
    build_tests(root, &["-p=longhaul-checks", &format!("--test={}", scenarios::TARGET)])?;
    built();
    scenarios::run(root, Vec::new())?;
    Ok(Done::Passed)
}

pub fn dpdk(root: &Path) -> Result<Done, String> {
    if !ci::has_dpdk() {
        return Ok(Done::Skipped(ci::DPDK_IS_MISSING.to_owned()));
    }
    built();
    ci::dpdk(root)?;
    tests(root, &["-p=longhaul-dpdk", "--features=longhaul-dpdk/libdpdk", "--", "--ignored"])
}

pub fn reproduce(root: &Path) -> Result<Done, String> {
    cargo(root, RELEASE, &[])?;
    built();
    let program = target(root).join("release/longhaul");
    let folder = target(root).join("nightly");
    std::fs::create_dir_all(&folder).map_err(|e| format!("{}: {e}", folder.display()))?;
    let status = Command::new(&program)
        .current_dir(&folder)
        .args(["reproduce", "--check"])
        .status()
        .map_err(|e| format!("cannot run {}: {e}", program.display()))?;
    if status.success() {
        return Ok(Done::Passed);
    }
    let report = folder.join("reproduction.html");
    Err(format!("longhaul reproduce --check: {status}; the report is {}", report.display()))
}

pub fn fuzz(root: &Path) -> Result<Done, String> {
    if !is_there("c++", &["--version"]) {
        return Ok(Done::Skipped("a C++ compiler is missing: apt-get install g++".to_owned()));
    }
    fuzzer::build(root)?;
    built();
    fuzzer::all(root, 60 * length("LONGHAUL_FUZZ_MINUTES")?)?;
    Ok(Done::Passed)
}

pub fn soak(root: &Path) -> Result<Done, String> {
    program::build(root)?;
    build_tests(root, &["-p=longhaul-checks", "--test=integrity"])?;
    built();
    ci::soak(root, &length("LONGHAUL_SOAK_MINUTES")?.to_string())?;
    Ok(Done::Passed)
}

pub fn sanitize(root: &Path) -> Result<Done, String> {
    if !is_there("rustup", &["run", "nightly", "rustc", "--version"]) {
        let cure = "rustup toolchain install nightly --component rust-src";
        return Ok(Done::Skipped(format!("AddressSanitizer needs a nightly toolchain: {cure}")));
    }
    built();
    ci::sanitize(root)?;
    Ok(Done::Passed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tests_that_are_left_out_are_there() {
        let root = crate::workspace();
        let folders = ["proto/accel/tests/all", "checks/tests", "checks/tests/all"];
        let folders = folders.map(|folder| root.join(folder));
        let files = folders.iter().flat_map(|folder| std::fs::read_dir(folder).unwrap());
        let files = files.map(|entry| entry.unwrap().path()).filter(|path| path.is_file());
        let all: String = files.map(|path| std::fs::read_to_string(path).unwrap()).collect();
        for skip in BY_HAND {
            let name = skip.strip_prefix("--skip=").unwrap();
            assert!(all.contains(&format!("fn {name}()")), "there is no test {name}");
        }
    }
}
