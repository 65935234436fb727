//! A lab's directory: its description, its sockets and its locks.
//!
//! The daemon holds `lock` as long as it lives, so that a directory without a lock holder is debris
//! of a killed daemon, whatever files it still has. Each program that runs on a host holds that
//! host's lock for its slot.

use crate::error::Error;
use crate::spec::{HostName, LabName, Spec};
use longhaul_boxes::PathError;
use longhaul_boxes::runtime_dir::{base, check_private, is_preloadable};
use std::fs::{self, File, OpenOptions, TryLockError};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, symlink};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Where a lab keeps its files.
#[derive(Clone, Debug)]
pub struct LabDir {
    name: LabName,
    /// Of all labs of this user, and of nobody else.
    base: PathBuf,
    path: PathBuf,
}

impl LabDir {
    /// The directory of the lab called `name`, whether or not it exists.
    ///
    /// # Errors
    /// When the directory around it is open to others: what lies in it decides which memory
    /// programs share.
    pub fn of(name: &LabName) -> Result<Self, Error> {
        let base = base();
        check_private(&base)?;
        Ok(LabDir { name: name.clone(), path: base.join(name.as_str()), base })
    }

    /// The lab's name.
    pub fn name(&self) -> &LabName {
        &self.name
    }

    /// The memif socket that programs on `host` attach to.
    pub fn memif_socket(&self, host: HostName) -> PathBuf {
        self.path.join(format!("host-{host}.memif"))
    }

    /// Where the device of the program in `slot` of `host` keeps its counters.
    pub fn counters(&self, host: HostName, slot: usize) -> PathBuf {
        self.path.join("counters").join(host.to_string()).join(slot.to_string())
    }

    /// Where the devices of all programs that run or have run on `host` keep their counters.
    pub fn counter_dirs(&self, host: HostName) -> Vec<PathBuf> {
        let of_host = self.path.join("counters").join(host.to_string());
        let mut dirs: Vec<PathBuf> = fs::read_dir(of_host)
            .into_iter()
            .flatten()
            .flatten()
            .map(|entry| entry.path())
            .collect();
        dirs.retain(|dir| dir.join("class").is_dir());
        dirs.sort();
        dirs
    }

    /// The socket that `status` and `down` use.
    pub(crate) fn control_socket(&self) -> PathBuf {
        self.path.join("control")
    }

    /// Where the daemon writes what it has to say.
    pub fn log(&self) -> PathBuf {
        self.path.join("log")
    }

    /// The end of the log, on one line; `None` where there is none.
    pub(crate) fn last_words(&self) -> Option<String> {
        const LINES: usize = 4;
        let text = fs::read_to_string(self.log()).ok()?;
        let lines: Vec<&str> = text.lines().filter(|line| !line.is_empty()).collect();
        let last = &lines[lines.len().saturating_sub(LINES)..];
        (!last.is_empty()).then(|| last.join("; "))
    }

    fn description(&self) -> PathBuf {
        self.path.join("lab.json")
    }

    /// Creates the directory and takes its lock: done once per lab, by its daemon.
    pub(crate) fn claim(&self) -> Result<File, Error> {
        // A daemon that ends at this moment removes the directory, and its lock with it.
        const PATIENCE: Duration = Duration::from_millis(100);
        const LOOK_AGAIN: Duration = Duration::from_millis(5);
        let deadline = Instant::now() + PATIENCE;
        loop {
            match self.try_claim() {
                Ok(Some(lock)) => return Ok(lock),
                Ok(None) | Err(_) if Instant::now() < deadline => std::thread::sleep(LOOK_AGAIN),
                Ok(None) => {
                    return Err(Error::UpAlready(self.name.clone()));
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// The lock, or `None` while somebody else has it.
    fn try_claim(&self) -> Result<Option<File>, Error> {
        for path in [&self.base, &self.path] {
            match fs::DirBuilder::new().mode(0o700).create(path) {
                Err(e) if e.kind() != io::ErrorKind::AlreadyExists => {
                    return Err(PathError::new("create", path, e).into());
                }
                _ => check_private(path)?,
            }
        }
        let lock = self.open_lock("lock")?;
        match lock.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => return Ok(None),
            Err(TryLockError::Error(e)) => return Err(PathError::new("lock", &self.path, e).into()),
        }
        // The lock of a file that is no longer there keeps nobody out.
        let held = lock.metadata().map_err(|e| PathError::new("lock", &self.path, e))?;
        let there =
            fs::metadata(self.path.join("lock")).is_ok_and(|there| there.ino() == held.ino());
        Ok(there.then_some(lock))
    }

    /// True while a daemon holds the lock.
    pub fn is_up(&self) -> bool {
        let Ok(lock) = OpenOptions::new().read(true).write(true).open(self.path.join("lock"))
        else {
            return false;
        };
        // Shared, so that those who ask at the same time do not see each other.
        matches!(lock.try_lock_shared(), Err(TryLockError::WouldBlock))
    }

    fn open_lock(&self, name: &str) -> Result<File, Error> {
        let path = self.path.join(name);
        OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            .open(&path)
            .map_err(|e| PathError::new("open", &path, e).into())
    }

    /// Writes the description that [`LabDir::spec`] reads.
    pub(crate) fn describe(&self, spec: &Spec) -> Result<(), Error> {
        let path = self.description();
        let text = serde_json::to_string_pretty(spec).map_err(Error::Describe)?;
        Ok(fs::write(&path, text).map_err(|e| PathError::new("write", &path, e))?)
    }

    /// What the lab consists of.
    ///
    /// # Errors
    /// When it is not up, or its description cannot be read.
    pub fn spec(&self) -> Result<Spec, Error> {
        if !self.is_up() {
            return Err(self.not_up());
        }
        let path = self.description();
        let text = fs::read_to_string(&path).map_err(|e| PathError::new("read", &path, e))?;
        serde_json::from_str(&text).map_err(|error| Error::OtherSpec { path, error })
    }

    /// For whoever wants something from a lab that is not there.
    pub(crate) fn not_up(&self) -> Error {
        Error::NotUp(self.name.clone())
    }

    /// Takes a free slot of the `slots` of `host`: one per running program. The lock lives as long
    /// as the file is open.
    ///
    /// # Errors
    /// When all are taken.
    pub fn take_slot(&self, host: HostName, slots: usize) -> Result<(usize, File), Error> {
        for slot in 0..slots {
            let lock = self.open_lock(&format!("host-{host}.slot-{slot}"))?;
            if lock.try_lock().is_ok() {
                return Ok((slot, lock));
            }
        }
        Err(Error::HostIsFull { host, slots })
    }

    /// Where a link to the library that programs load can stand, for the program in `slot` of
    /// `host`.
    pub fn preload_link(&self, host: HostName, slot: usize) -> PathBuf {
        self.path.join(format!("host-{host}.preload-{slot}.so"))
    }

    /// Removes the directory with everything in it, the lock last: the next daemon of this name
    /// waits for that.
    pub(crate) fn remove(&self) {
        let lock = self.path.join("lock");
        let others = fs::read_dir(&self.path).into_iter().flatten().flatten();
        // Nothing is left to do about what will not go.
        for path in others.map(|entry| entry.path()).filter(|path| *path != lock) {
            let _ = if path.is_dir() { fs::remove_dir_all(path) } else { fs::remove_file(path) };
        }
        let _ = fs::remove_file(lock);
        let _ = fs::remove_dir(&self.path);
    }
}

/// A path to `library` that LD_PRELOAD can hold: the library's own where that will do, and
/// otherwise `link`, which is made to lead there.
///
/// # Errors
/// When the link cannot be made.
pub fn preloadable(library: PathBuf, link: &Path) -> Result<PathBuf, PathError> {
    if is_preloadable(&library) {
        return Ok(library);
    }
    match fs::remove_file(link) {
        Err(e) if e.kind() != io::ErrorKind::NotFound => {
            return Err(PathError::new("remove", link, e));
        }
        _ => {}
    }
    symlink(&library, link).map_err(|e| PathError::new("create", link, e))?;
    Ok(link.to_path_buf())
}
