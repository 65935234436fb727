//! External programs that check our packets.

use std::io::Write as _;
use std::path::PathBuf;
use std::process::{Command, Stdio};

/// Runs `command` with `input` on its standard input and returns its standard output.
///
/// # Panics
/// If the program is missing, with the name of its Debian `package`, or if it fails.
pub fn output(command: &mut Command, package: &str, input: &[u8]) -> String {
    let name = command.get_program().to_string_lossy().into_owned();
    let mut child = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap_or_else(|e| {
            panic!("{name}: {e}. This test needs the package {package}: apt-get install {package}")
        });
    let mut stdin = child.stdin.take().expect("piped");
    let input = input.to_vec();
    let feeder = std::thread::spawn(move || stdin.write_all(&input));
    let done = child.wait_with_output().expect("waiting for a child");
    let _ = feeder.join();
    let errors = String::from_utf8_lossy(&done.stderr);
    assert!(done.status.success(), "{name} (package {package}) failed, {}: {errors}", done.status);
    String::from_utf8(done.stdout).expect("UTF-8 output")
}

/// A file of this test run, replaced if it exists.
pub fn scratch_file(name: &str, content: &[u8]) -> PathBuf {
    let path = std::env::temp_dir().join(format!("longhaul-checks-{}-{name}", std::process::id()));
    std::fs::write(&path, content).unwrap_or_else(|e| panic!("writing {}: {e}", path.display()));
    path
}
