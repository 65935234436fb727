//! Disk space for a build from nothing.

use crate::cargo::target;
use std::path::Path;

/// Bytes that all checks leave in an empty target folder, and a quarter more.
const NEEDED: u64 = 6_000_000_000;

/// Fails if the target folder is empty and its disk is too full for all checks, which would end
/// them in a linker's or a test's error many minutes later.
pub fn check(root: &Path) -> Result<(), String> {
    let folder = target(root);
    if folder.join("debug/deps").exists() {
        return Ok(());
    }
    let disk = rustix::fs::statvfs(&folder).map_err(|e| format!("{}: {e}", folder.display()))?;
    enough(disk.f_bavail * disk.f_frsize, &folder)
}

fn enough(free: u64, folder: &Path) -> Result<(), String> {
    if free >= NEEDED {
        return Ok(());
    }
    let in_gb = |bytes: u64| bytes as f64 / 1e9;
    Err(format!(
        "{:.1} GB free at {}, and the checks need {:.0} GB: free some, or set CARGO_TARGET_DIR to \
         a folder on another disk",
        in_gb(free),
        folder.display(),
        in_gb(NEEDED)
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn too_little_space_is_told_with_what_is_there_and_what_is_needed() {
        assert_eq!(enough(NEEDED, Path::new("/t")), Ok(()));
        let told = enough(287_000_000, Path::new("/t")).unwrap_err();
        assert!(told.starts_with("0.3 GB free at /t, and the checks need 6 GB"), "{told}");
    }
}
