//! The program that end-to-end tests run, and its preloaded library.

use crate::cargo::{cargo, target};
use std::path::{Path, PathBuf};

/// The profile of both, and the folder in which the tests find them. The development build is too
/// slow: in an emulated guest its polling threads starve each other.
const PROFILE: &str = "test-program";
const BUILD: &[&str] =
    &["build", "--profile=test-program", "--quiet", "-p=longhaul", "-p=longhaul-preload"];

/// Features of what is built with DPDK, in the whole workspace, so that all tests share one build.
pub const DPDK: &str = "--features=longhaul/dpdk,longhaul-dpdk/libdpdk";
/// The development profile takes half as long to build, for the same result here. A test beside the
/// program selects the tests' features of dependencies, so that both share all libraries.
const BUILD_WITH_DPDK: &[&str] =
    &["build", "--workspace", "--bin=longhaul", "--test=dpdk", DPDK, "--quiet"];

/// Builds both.
pub fn build(root: &Path) -> Result<(), String> {
    cargo(root, BUILD, &[])
}

/// Path of the program.
pub fn path(root: &Path) -> PathBuf {
    target(root).join(PROFILE).join("longhaul")
}

/// Builds the program with DPDK, and returns its path.
pub fn build_with_dpdk(root: &Path) -> Result<String, String> {
    cargo(root, BUILD_WITH_DPDK, &[])?;
    Ok(target(root).join("debug/longhaul").to_string_lossy().into_owned())
}
