//! The runtime directory, in which a user's boxes and labs have their sockets.

use crate::error::PathError;
use std::fs;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};
use thiserror::Error;

/// Why a directory cannot be used.
#[derive(Debug, Error)]
pub enum RuntimeDirError {
    /// It cannot be inspected or created.
    #[error(transparent)]
    Path(#[from] PathError),
    /// Another user owns it, or may read it.
    #[error("{} is not a directory of yours alone", .0.display())]
    NotPrivate(PathBuf),
}

/// Returns this user's directory of this name, and creates it if missing.
///
/// # Errors
/// If it cannot be created, or its parent is open to other users.
pub fn private_dir(name: &str) -> Result<PathBuf, RuntimeDirError> {
    let base = base();
    check_private(&base)?;
    let dir = base.join(name);
    fs::DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(&dir)
        .map_err(|e| PathError::new("create", &dir, e))?;
    Ok(dir)
}

/// Parent directory of the sockets of all that this user runs.
pub fn base() -> PathBuf {
    if let Some(dir) = std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from) {
        // Socket paths are limited to 107 bytes, of which a lab's own part takes up to 60.
        let is_short = dir.as_os_str().len() < 40;
        if dir.is_absolute() && is_short && is_preloadable(&dir) && dir.is_dir() {
            return dir.join("longhaul");
        }
    }
    PathBuf::from(format!("/tmp/longhaul-{}", uid()))
}

fn uid() -> u32 {
    rustix::process::getuid().as_raw()
}

/// Refuses a directory that another user owns or may read. A missing one is accepted.
///
/// # Errors
/// If it is not private to this user, or cannot be inspected.
pub fn check_private(dir: &Path) -> Result<(), RuntimeDirError> {
    let found = match fs::symlink_metadata(dir) {
        Ok(found) => found,
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(e) => return Err(PathError::new("examine", dir, e).into()),
    };
    if found.is_dir() && found.uid() == uid() && found.mode() & 0o077 == 0 {
        return Ok(());
    }
    Err(RuntimeDirError::NotPrivate(dir.to_owned()))
}

/// True if `path` can stand in LD_PRELOAD, where spaces and colons are separators.
pub fn is_preloadable(path: &Path) -> bool {
    !path.as_os_str().as_bytes().iter().any(|byte| b" :$\t\n".contains(byte))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::{PermissionsExt, symlink};

    #[test]
    fn a_directory_that_others_may_look_into_is_refused() {
        let dir = std::env::temp_dir().join(format!("longhaul-dir-{}", std::process::id()));
        assert!(check_private(&dir).is_ok(), "what is not there can be created");
        fs::DirBuilder::new().mode(0o700).create(&dir).unwrap();
        assert!(check_private(&dir).is_ok());
        let link = dir.join("link");
        symlink(&dir, &link).unwrap();
        assert!(check_private(&link).is_err(), "a link may lead anywhere");
        fs::set_permissions(&dir, fs::Permissions::from_mode(0o750)).unwrap();
        assert!(check_private(&dir).is_err());
        fs::remove_dir_all(&dir).unwrap();
    }

    #[test]
    fn paths_that_the_dynamic_linker_would_take_apart_are_told() {
        assert!(is_preloadable(Path::new("/home/me/longhaul/target/release/lib.so")));
        for path in ["/home/my files/lib.so", "/a:b/lib.so", "/$LIB/lib.so"] {
            assert!(!is_preloadable(Path::new(path)), "{path}");
        }
    }
}
