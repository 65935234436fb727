//! Tests that skip themselves: said on the terminal, and recorded for whoever runs them all.

use std::fmt::Display;
use std::fs::OpenOptions;
use std::io::Write;

/// Names the file that skipped tests are recorded in, a line each; `cargo xtask` sets it.
pub const ENV_SKIPS: &str = "LONGHAUL_SKIPS";

/// Says that the calling test is skipped, and why, and records it.
pub fn skip(reason: impl Display) {
    eprintln!("SKIPPED: {reason}");
    record(reason);
}

/// Records that the calling test is skipped, and why. Nothing happens without [`ENV_SKIPS`].
///
/// # Panics
/// When the file cannot be written: a skip that nobody hears of is worse than a failure.
pub fn record(reason: impl Display) {
    let Some(path) = std::env::var_os(ENV_SKIPS) else { return };
    let package = std::env::var("CARGO_PKG_NAME").unwrap_or_default();
    let reason = reason.to_string();
    let reason = reason.split_whitespace().collect::<Vec<_>>().join(" ");
    let line = format!("{package} {}: {reason}\n", test_name());
    // One write in append mode: lines of several processes do not mix.
    let file = OpenOptions::new().create(true).append(true).open(&path);
    let written = file.and_then(|mut file| file.write_all(line.as_bytes()));
    written.unwrap_or_else(|error| panic!("{}: {error}", path.display()));
}

/// Name of the calling test, which its thread has from the harness.
#[must_use]
pub fn test_name() -> String {
    std::thread::current().name().unwrap_or("a test").to_owned()
}

#[cfg(test)]
mod tests {
    #[test]
    fn a_thread_of_a_test_has_its_name() {
        assert_eq!(super::test_name(), "skip::tests::a_thread_of_a_test_has_its_name");
    }
}
