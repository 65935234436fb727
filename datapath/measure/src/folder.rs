//! A private folder for the sockets between two processes.

use std::fs::DirBuilder;
use std::io;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use thiserror::Error;

/// A private folder cannot be created.
#[derive(Debug, Error)]
#[error("cannot make {}: {error}", path.display())]
pub struct FolderError {
    path: PathBuf,
    error: io::Error,
}

/// A private folder, removed on drop.
pub(crate) struct Folder(PathBuf);

impl Folder {
    /// Creates a new one.
    pub(crate) fn new() -> Result<Self, FolderError> {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let path =
            std::env::temp_dir().join(format!("longhaul-bench-{}-{number}", std::process::id()));
        match DirBuilder::new().mode(0o700).create(&path) {
            Ok(()) => Ok(Folder(path)),
            Err(error) => Err(FolderError { path, error }),
        }
    }

    /// Its path.
    pub(crate) fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        // At worst unused sockets remain.
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_is_new_and_goes_with_its_holder() {
        let [one, other] = [Folder::new().unwrap(), Folder::new().unwrap()];
        assert!(one.path().is_dir() && one.path() != other.path());
        let path = one.path().to_owned();
        drop(one);
        assert!(!path.exists() && other.path().is_dir());
    }
}
