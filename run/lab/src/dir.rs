//! A lab's directory: its spec, its sockets and its locks.
//!
//! The daemon holds `lock` while it lives, so a directory without a lock holder is left over from a
//! killed daemon, whatever files it contains. Each process with a device holds the lock of a slot.

use crate::error::Error;
use crate::network::{self, Network};
use crate::spec::{HostName, LabName, Spec};
use longhaul_boxes::PathError;
use longhaul_boxes::runtime_dir::{base, check_private, is_preloadable};
use std::fs::{self, File, OpenOptions, TryLockError};
use std::io;
use std::net::Ipv4Addr;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, symlink};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// The directory of one lab.
#[derive(Clone, Debug)]
pub struct LabDir {
    name: LabName,
    /// Directory of all labs of this user, private to the user.
    base: PathBuf,
    path: PathBuf,
}

impl LabDir {
    /// The directory of the lab `name`, which need not exist.
    ///
    /// # Errors
    /// If other users can access its parent: its files decide which memory programs share.
    pub fn of(name: &LabName) -> Result<Self, Error> {
        let base = base();
        check_private(&base)?;
        Ok(LabDir { name: name.clone(), path: base.join(name.as_str()), base })
    }

    /// Directories of this user's running labs, by name.
    ///
    /// # Errors
    /// If other users can access their parent.
    pub fn all_up() -> Result<Vec<Self>, Error> {
        let base = base();
        if !base.exists() {
            return Ok(Vec::new());
        }
        check_private(&base)?;
        let entries = fs::read_dir(&base).map_err(|e| PathError::new("read", &base, e))?;
        let names = entries.flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok());
        let mut labs: Vec<LabDir> = names
            .map(|name: LabName| LabDir {
                path: base.join(name.as_str()),
                name,
                base: base.clone(),
            })
            .filter(LabDir::is_up)
            .collect();
        labs.sort_by(|one, other| one.name.as_str().cmp(other.name.as_str()));
        Ok(labs)
    }

    /// The lab's name.
    pub fn name(&self) -> &LabName {
        &self.name
    }

    /// The memif socket for programs on `host`.
    pub fn memif_socket(&self, host: HostName) -> PathBuf {
        self.path.join(format!("host-{host}.memif"))
    }

    /// The memif socket between the programs of two hosts back to back.
    pub fn back_to_back_socket(&self) -> PathBuf {
        self.path.join("back-to-back.memif")
    }

    /// Directory of the files of the device of `host`, counters among them.
    pub fn counters(&self, host: HostName) -> PathBuf {
        self.path.join("counters").join(host.to_string())
    }

    /// The socket of `status` and `down`.
    pub(crate) fn control_socket(&self) -> PathBuf {
        self.path.join("control")
    }

    /// The daemon's log.
    pub fn log(&self) -> PathBuf {
        self.path.join("log")
    }

    /// The end of the log on one line; `None` if it is missing or empty.
    pub(crate) fn last_words(&self) -> Option<String> {
        self.open_log().and_then(last_words)
    }

    /// Opens the log, so that its [`last_words`] can be read after the lab's directory is deleted.
    pub(crate) fn open_log(&self) -> Option<File> {
        File::open(self.log()).ok()
    }

    /// The file that is `/etc/hosts` on the lab's hosts.
    pub(crate) fn hosts_file(&self) -> PathBuf {
        self.path.join("hosts")
    }

    fn network_file(&self) -> PathBuf {
        self.path.join("network.json")
    }

    /// Writes the network for [`LabDir::network`].
    pub(crate) fn describe_network(&self, network: &Network) -> Result<(), Error> {
        network::write(network, &self.network_file())
    }

    /// The network of the lab's hosts.
    ///
    /// # Errors
    /// If the lab is not up, or its description cannot be read.
    pub fn network(&self) -> Result<Network, Error> {
        if !self.is_up() {
            return Err(self.not_up());
        }
        network::read(&self.network_file())
    }

    /// Address at which programs reach TCP servers on `host`: its own, or this machine's loopback
    /// address if they share this machine's network.
    ///
    /// # Errors
    /// As [`LabDir::network`].
    pub fn address_for_tcp(&self, host: HostName) -> Result<Ipv4Addr, Error> {
        Ok(if self.network()?.is_of_hosts() { host.ip() } else { Ipv4Addr::LOCALHOST })
    }

    fn description(&self) -> PathBuf {
        self.path.join("lab.json")
    }

    /// Creates the directory and takes its lock. Called once per lab, by its daemon.
    pub(crate) fn claim(&self) -> Result<File, Error> {
        // A daemon that is just ending deletes the directory with its lock.
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

    /// Takes the lock; `None` if another process holds it.
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
        // A lock on an unlinked file excludes nobody.
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
        // A shared lock, so that concurrent callers do not mistake each other for a daemon.
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

    /// Writes the spec for [`LabDir::spec`].
    pub(crate) fn describe(&self, spec: &Spec) -> Result<(), Error> {
        let path = self.description();
        let text = serde_json::to_string_pretty(spec).map_err(Error::Describe)?;
        Ok(fs::write(&path, text).map_err(|e| PathError::new("write", &path, e))?)
    }

    /// Reads the lab's spec.
    ///
    /// # Errors
    /// If the lab is not up, or its spec cannot be read.
    pub fn spec(&self) -> Result<Spec, Error> {
        if !self.is_up() {
            return Err(self.not_up());
        }
        let path = self.description();
        let text = fs::read_to_string(&path).map_err(|e| PathError::new("read", &path, e))?;
        serde_json::from_str(&text).map_err(|error| Error::OtherSpec { path, error })
    }

    /// The error of operations on a lab that is not up.
    pub(crate) fn not_up(&self) -> Error {
        Error::NotUp(self.name.clone())
    }

    /// Creates the slots of `host`: files, of which each process with a device locks one while it
    /// runs ([`longhaul_rdma`] claims them).
    pub(crate) fn create_slots(&self, host: HostName, slots: usize) -> Result<(), Error> {
        let dir = self.slots(host);
        fs::create_dir_all(&dir).map_err(|e| PathError::new("create", &dir, e))?;
        (0..slots).try_for_each(|slot| {
            let path = dir.join(slot.to_string());
            File::create(&path).map_err(|e| PathError::new("create", &path, e))?;
            Ok(())
        })
    }

    /// Directory of the slots of `host`.
    pub fn slots(&self, host: HostName) -> PathBuf {
        self.path.join("slots").join(host.to_string())
    }

    /// Path of a link to the library that programs load.
    pub fn preload_link(&self) -> PathBuf {
        self.path.join("preload.so")
    }

    /// Deletes the directory and its files, the lock last: the next daemon of this name waits for
    /// it.
    pub(crate) fn remove(&self) {
        let lock = self.path.join("lock");
        let others = fs::read_dir(&self.path).into_iter().flatten().flatten();
        // Files that cannot be deleted are left.
        for path in others.map(|entry| entry.path()).filter(|path| *path != lock) {
            let _ = if path.is_dir() { fs::remove_dir_all(path) } else { fs::remove_file(path) };
        }
        let _ = fs::remove_file(lock);
        let _ = fs::remove_dir(&self.path);
    }
}

/// The end of a log on one line; `None` if it is empty.
pub(crate) fn last_words(log: File) -> Option<String> {
    const LINES: usize = 4;
    let text = io::read_to_string(log).ok()?;
    let lines: Vec<&str> = text.lines().filter(|line| !line.is_empty()).collect();
    let last = &lines[lines.len().saturating_sub(LINES)..];
    (!last.is_empty()).then(|| last.join("; "))
}

/// A path to `library` that LD_PRELOAD can hold: the library's own if possible, otherwise `link`,
/// which is created or replaced.
///
/// # Errors
/// If the link cannot be created.
pub fn preloadable(library: PathBuf, link: &Path) -> Result<PathBuf, PathError> {
    if is_preloadable(&library) {
        return Ok(library);
    }
    // Others may create it at the same time, or load the library through it.
    let unique = link.with_extension(format!("{}.so", std::process::id()));
    symlink(&library, &unique)
        .and_then(|()| fs::rename(&unique, link))
        .map_err(|e| PathError::new("create", link, e))?;
    Ok(link.to_path_buf())
}
