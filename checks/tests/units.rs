//! The units of `packaging/systemd`, as systemd reads them. Skipped, loudly, without
//! systemd-analyze.

use longhaul_checks::{RuntimeDir, longhaul};
use longhaul_namespace::skip;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The units, with the program that was built in the place of the installed one.
fn units(into: &Path) -> Vec<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../packaging/systemd");
    let entries = fs::read_dir(folder).expect("units").map(|entry| entry.expect("an entry").path());
    let mut units: Vec<PathBuf> = entries
        .map(|unit| {
            let text = fs::read_to_string(&unit).expect("a unit");
            let copy = into.join(unit.file_name().expect("a name"));
            let program = longhaul().display().to_string();
            fs::write(&copy, text.replace("/usr/bin/longhaul", &program)).expect("a copy");
            copy
        })
        .collect();
    units.sort();
    units
}

/// What systemd finds wrong in `units`; `None` if it cannot be asked.
fn faults(units: &[PathBuf]) -> Option<String> {
    let verified = Command::new("systemd-analyze").arg("verify").args(units).output();
    let verified =
        verified.inspect_err(|e| skip(format!("systemd-analyze (package systemd): {e}"))).ok()?;
    let told = String::from_utf8_lossy(&verified.stderr).into_owned();
    let is_clean = verified.status.success() && told.is_empty();
    Some(if is_clean { String::new() } else { format!("{}: {told}", verified.status) })
}

#[test]
fn are_units_that_systemd_takes_whole() {
    let desk = RuntimeDir::new();
    let units = units(desk.path());
    assert_eq!(units.len(), 4, "{units:?}");
    let Some(found) = faults(&units) else { return };
    assert_eq!(found, "");
}

#[test]
fn with_a_fault_are_refused() {
    let desk = RuntimeDir::new();
    let units = units(desk.path());
    let text = fs::read_to_string(&units[0]).expect("a unit");
    fs::write(&units[0], text.replace("RestartSec=2", "RestartSeconds=2")).expect("a unit");
    let Some(found) = faults(&units) else { return };
    assert!(found.contains("RestartSeconds"), "{found}");
}

/// A service that cannot start because of its configuration tells its manager so by the exit code
/// that the units name, and says in a line what is missing.
#[test]
fn do_not_restart_a_box_without_its_key() {
    let desk = RuntimeDir::new();
    let key = desk.path().join("longhaul-accelerate-west.key");
    let config = desk.path().join("west.toml");
    let peer = "east=CQAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=";
    let text = format!(
        "[[pair]]\nlan = 'tap:lhu0'\nwan = 'tap:lhu1'\ntransport = true\nkey = '{}'\npeer = \
         ['{peer}']\n",
        key.display()
    );
    fs::write(&config, text).expect("a file");
    let run = || {
        let arguments = format!("accelerate --config {}", config.display());
        let mut command = desk.longhaul(&arguments);
        command.env("CREDENTIALS_DIRECTORY", desk.path()).output().expect("the program")
    };
    let done = run();
    let told = String::from_utf8_lossy(&done.stderr).into_owned();
    assert_eq!((done.status.code(), told.lines().count()), (Some(2), 1), "{told}");
    assert!(told.contains(&key.display().to_string()), "{told}");
    for unit in &units(desk.path()) {
        let text = fs::read_to_string(unit).expect("a unit");
        assert!(text.contains("RestartPreventExitStatus=2\n"), "{}", unit.display());
    }
}
