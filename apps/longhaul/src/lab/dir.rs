//! A lab's directory: its description, its sockets and its locks.
//!
//! The daemon holds `lock` as long as it lives, so that a directory without a lock holder is debris of a killed
//! daemon, whatever files it still has. Each program that runs on a host holds that host's lock for its slot.

use super::spec::{HostName, LabName, Spec};
use crate::problem::Problem;
use std::fs::{self, File, OpenOptions, TryLockError};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// Programs that one host can run at a time.
pub const SLOTS: usize = 16;

/// Where a lab keeps its files.
#[derive(Clone, Debug)]
pub struct LabDir {
    name: LabName,
    path: PathBuf,
}

impl LabDir {
    /// The directory of the lab called `name`, whether or not it exists.
    pub fn of(name: &LabName) -> Self {
        // SAFETY: getuid has no preconditions.
        let uid = unsafe { libc::getuid() };
        let base = match std::env::var_os("XDG_RUNTIME_DIR") {
            // Socket paths are limited to 107 bytes, of which a lab's own part takes up to 60.
            Some(dir) if !dir.is_empty() && dir.len() < 40 && Path::new(&dir).is_dir() => {
                PathBuf::from(dir).join("longhaul")
            }
            _ => PathBuf::from(format!("/tmp/longhaul-{uid}")),
        };
        LabDir { name: name.clone(), path: base.join(name.as_str()) }
    }

    /// The lab's name.
    pub fn name(&self) -> &LabName {
        &self.name
    }

    /// The memif socket that programs on `host` attach to.
    pub fn memif_socket(&self, host: HostName) -> PathBuf {
        self.path.join(format!("host-{host}.memif"))
    }

    /// The socket that `status` and `down` use.
    pub fn control_socket(&self) -> PathBuf {
        self.path.join("control")
    }

    /// Where the daemon writes what it has to say.
    pub fn log(&self) -> PathBuf {
        self.path.join("log")
    }

    fn description(&self) -> PathBuf {
        self.path.join("lab.json")
    }

    /// Creates the directory and takes its lock: done once per lab, by its daemon.
    pub fn claim(&self) -> Result<File, Problem> {
        fs::DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(&self.path)
            .map_err(|e| Problem::io("create", &self.path, &e))?;
        let lock = self.open_lock("lock")?;
        match lock.try_lock() {
            Ok(()) => Ok(lock),
            Err(TryLockError::WouldBlock) => Err(Problem::new(
                format!("a lab called '{}' is up already", self.name),
                format!("stop it with 'longhaul lab down --name {}' or choose another --name", self.name),
            )),
            Err(TryLockError::Error(e)) => Err(Problem::io("lock", &self.path, &e)),
        }
    }

    /// True while a daemon holds the lock.
    pub fn is_up(&self) -> bool {
        let Ok(lock) = OpenOptions::new().read(true).write(true).open(self.path.join("lock")) else {
            return false;
        };
        matches!(lock.try_lock(), Err(TryLockError::WouldBlock))
    }

    fn open_lock(&self, name: &str) -> Result<File, Problem> {
        let path = self.path.join(name);
        OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            .open(&path)
            .map_err(|e| Problem::io("open", &path, &e))
    }

    /// Writes the description that [`LabDir::spec`] reads.
    pub fn describe(&self, spec: &Spec) -> Result<(), Problem> {
        let path = self.description();
        let text = serde_json::to_string_pretty(spec)
            .map_err(|e| Problem::plain(format!("cannot describe the lab: {e}")))?;
        fs::write(&path, text).map_err(|e| Problem::io("write", &path, &e))
    }

    /// What the lab consists of.
    pub fn spec(&self) -> Result<Spec, Problem> {
        if !self.is_up() {
            return Err(self.not_up());
        }
        let path = self.description();
        let text = fs::read_to_string(&path).map_err(|e| Problem::io("read", &path, &e))?;
        serde_json::from_str(&text).map_err(|e| {
            Problem::new(format!("{} was written by another version: {e}", path.display()), "restart the lab")
        })
    }

    /// What to tell a user who wants something from a lab that is not there.
    pub fn not_up(&self) -> Problem {
        let name = &self.name;
        let option = if *name == LabName::default() { String::new() } else { format!(" --name {name}") };
        Problem::new(
            format!("no lab called '{name}' is up"),
            format!("start it with 'longhaul lab up{option} --distance 1000km'"),
        )
    }

    /// Takes a free slot of `host`: one per running program. The lock lives as long as the file is open.
    pub fn take_slot(&self, host: HostName) -> Result<(usize, File), Problem> {
        for slot in 0..SLOTS {
            let lock = self.open_lock(&format!("host-{host}.slot-{slot}"))?;
            if lock.try_lock().is_ok() {
                return Ok((slot, lock));
            }
        }
        Err(Problem::new(
            format!("host {host} runs {SLOTS} programs already"),
            "wait for one to end, or start a second lab with --name",
        ))
    }

    /// Removes the directory with everything in it.
    pub fn remove(&self) {
        // Nothing is left to do about a directory that will not go.
        let _ = fs::remove_dir_all(&self.path);
    }
}
