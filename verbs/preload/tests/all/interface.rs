//! Tests of the C interface by dedicated programs: the refusals of rdma-core and kernel devices,
//! and the properties of completions, memory and events.
//!
//! They are compiled against the installed headers, including inline functions.

use crate::alone::alone;
use std::path::{Path, PathBuf};
use std::process::Command;

pub fn compile(name: &str, library: Option<&str>) -> PathBuf {
    let source =
        Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/c").join(name).with_extension("c");
    let program = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    let output = Command::new("cc")
        .args(["-O1", "-Wall", "-Wextra", "-Werror", "-o"])
        .arg(&program)
        .arg(source)
        .args(library)
        .output()
        .expect("cc is missing: apt-get install gcc libibverbs-dev");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    program
}

fn run(name: &str) {
    run_linked(name, Some("-libverbs"));
}

fn run_linked(name: &str, library: Option<&str>) {
    let _alone = alone();
    let program = compile(name, library);
    let library = std::env::current_exe().unwrap().with_file_name("liblonghaul_preload.so");
    let socket = std::env::temp_dir().join(format!("longhaul-{name}-{}.sock", std::process::id()));
    let output = Command::new(program)
        .env("LD_PRELOAD", library)
        .env("LONGHAUL_MEMIF_SOCKET", socket)
        .env("LONGHAUL_MEMIF_ROLE", "master")
        .env("LONGHAUL_IP", "10.77.0.2")
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{}\n{text}", output.status);
    assert!(text.ends_with("0 failures\n"), "{text}");
}

#[test]
fn refuses_as_kernel_devices_do() {
    run("refusals");
}

#[test]
fn does_as_the_manual_pages_say() {
    run("pair");
}

#[test]
fn is_found_by_programs_that_load_the_libraries_while_they_run() {
    run_linked("loaded", None);
}

#[test]
fn is_found_as_nccl_searches() {
    run_linked("discovery", None);
}
