//! The UNIX socket of an interface: binding, connecting, and removing its file.

use std::fs::{self, File, Permissions};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, SocketAddrUnix, SocketFlags, SocketType, accept_with, bind, connect, listen,
    socket_with,
};

use crate::config::MemifError;

/// Connections that the kernel holds until they are accepted.
const BACKLOG: i32 = 64;

fn seqpacket() -> io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    Ok(socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?)
}

/// Connects to a listening socket without blocking.
pub(crate) fn connect_to(path: &Path) -> io::Result<OwnedFd> {
    let socket = seqpacket()?;
    connect(&socket, &SocketAddrUnix::new(path)?)?;
    Ok(socket)
}

/// A listening socket. Dropping it removes its file.
#[derive(Debug)]
pub(crate) struct ListeningSocket {
    socket: OwnedFd,
    path: PathBuf,
    /// Device and inode of the socket file, so that only this socket's own file is removed.
    identity: Option<(u64, u64)>,
}

impl ListeningSocket {
    /// Listens at `path`, for its owner only. Replaces the stale socket file of a dead process.
    pub(crate) fn bind(path: &Path) -> Result<Self, MemifError> {
        let io_error = |operation| {
            move |source: io::Error| MemifError::Io { path: path.to_owned(), operation, source }
        };
        let address = SocketAddrUnix::new(path)
            .map_err(io::Error::from)
            .map_err(io_error("using the path as a socket address"))?;
        let socket = seqpacket().map_err(io_error("making a socket"))?;
        let _lock = lock_directory(path);
        match bind(&socket, &address) {
            Err(Errno::ADDRINUSE) => {
                remove_stale(path)?;
                bind(&socket, &address)
            }
            result => result,
        }
        .map_err(io::Error::from)
        .map_err(io_error("binding"))?;
        let identity = identity(path);
        let listening = Self { socket, path: path.to_owned(), identity };
        // Nobody can connect before `listen`, so the socket is never open to others.
        fs::set_permissions(path, Permissions::from_mode(0o600))
            .map_err(io_error("restricting access"))?;
        listen(&listening.socket, BACKLOG)
            .map_err(io::Error::from)
            .map_err(io_error("listening"))?;
        Ok(listening)
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Accepts the next waiting connection, if there is one.
    pub(crate) fn accept(&self) -> io::Result<Option<OwnedFd>> {
        loop {
            match accept_with(&self.socket, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK) {
                Ok(socket) => return Ok(Some(socket)),
                Err(Errno::AGAIN) => return Ok(None),
                Err(Errno::INTR | Errno::CONNABORTED) => {}
                Err(errno) => return Err(errno.into()),
            }
        }
    }
}

impl AsFd for ListeningSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl Drop for ListeningSocket {
    fn drop(&mut self) {
        if self.identity.is_some() && identity(&self.path) == self.identity {
            let _ = fs::remove_file(&self.path);
        }
    }
}

fn identity(path: &Path) -> Option<(u64, u64)> {
    let metadata = fs::symlink_metadata(path).ok()?;
    Some((metadata.dev(), metadata.ino()))
}

/// Removes a socket file without a listener.
fn remove_stale(path: &Path) -> Result<(), MemifError> {
    let io_error = |operation, source| MemifError::Io { path: path.to_owned(), operation, source };
    let metadata = match fs::symlink_metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        result => result.map_err(|error| io_error("examining the old file", error))?,
    };
    if !metadata.file_type().is_socket() {
        return Err(MemifError::NotASocket { path: path.to_owned() });
    }
    match connect_to(path) {
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {
            fs::remove_file(path).map_err(|error| io_error("removing the stale socket", error))
        }
        // EPROTOTYPE: a listener of another socket type. EAGAIN: one with a full backlog.
        Ok(_) | Err(_) => Err(MemifError::AddressInUse { path: path.to_owned() }),
    }
}

/// Prevents two processes from replacing the same stale socket at once. The lock is held while the
/// returned file is open. It is advisory: if others hold the directory's lock for long, or it
/// cannot be opened, the caller proceeds without it.
fn lock_directory(path: &Path) -> Option<File> {
    let directory = path.parent().filter(|parent| !parent.as_os_str().is_empty());
    let file = File::open(directory.unwrap_or(Path::new("."))).ok()?;
    for _ in 0..100 {
        if flock(&file, FlockOperation::NonBlockingLockExclusive).is_ok() {
            break;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    Some(file)
}
