//! The program that end-to-end tests run, and its preloaded library.

use crate::cargo::{cargo, target};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// In the development profile, which the tests are built in too. A test beside the program selects
/// the tests' features of dependencies, so that both share all libraries.
const BUILD: &[&str] =
    &["build", "--workspace", "--lib", "--bin=longhaul", "--test=dpdk", "--quiet"];

/// Features of what is built with DPDK, in the whole workspace, so that all tests share one build.
pub const DPDK: &str = "--features=longhaul/dpdk,longhaul-dpdk/libdpdk";

/// Where the tests find both files: a build with other features does not replace them.
const PLACE: &str = "test-program";

/// Builds both files into their place, without debugging information, because guests hold them in
/// memory.
pub fn build(root: &Path) -> Result<(), String> {
    cargo(root, BUILD, &[])?;
    let (built, place) = (target(root).join("debug"), target(root).join(PLACE));
    fs::create_dir_all(&place).map_err(|e| format!("{}: {e}", place.display()))?;
    for name in ["longhaul", "liblonghaul_preload.so"] {
        let stripped = place.join(format!("{name}.new"));
        let status = Command::new("strip")
            .arg("--strip-debug")
            .arg("-o")
            .args([&stripped, &built.join(name)])
            .status();
        let status = status.map_err(|e| format!("strip (package binutils): {e}"))?;
        if !status.success() {
            return Err(format!("strip {name}: {status}"));
        }
        // A lab that still runs keeps the old one.
        fs::rename(&stripped, place.join(name)).map_err(|e| format!("{name}: {e}"))?;
    }
    Ok(())
}

/// Path of the program that the tests run.
pub fn path(root: &Path) -> PathBuf {
    target(root).join(PLACE).join("longhaul")
}

/// Builds the program with DPDK, and returns its path.
pub fn build_with_dpdk(root: &Path) -> Result<String, String> {
    cargo(root, &[BUILD, &[DPDK]].concat(), &[])?;
    Ok(target(root).join("debug/longhaul").to_string_lossy().into_owned())
}
