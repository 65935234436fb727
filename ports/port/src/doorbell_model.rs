//! The doorbell as loom sees it: what the kernel promises of an eventfd, and nothing of the
//! kernel's.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};

use loom::sync::{Arc, Condvar, Mutex};
use rustix::event::{EventfdFlags, eventfd};

/// Stands in for the real one under `cfg(loom)`.
#[derive(Debug)]
pub struct Doorbell {
    /// Never rings; only for those who want a descriptor.
    fd: OwnedFd,
    eventfd: Arc<Eventfd>,
}

#[derive(Debug)]
struct Eventfd {
    rings: Mutex<bool>,
    rang: Condvar,
}

impl Doorbell {
    /// A new silent doorbell.
    ///
    /// # Errors
    /// When the process is out of descriptors.
    pub fn new() -> io::Result<Self> {
        Self::from_peer(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?)
    }

    /// A new silent doorbell, whatever the descriptor.
    ///
    /// # Errors
    /// None.
    pub fn from_peer(fd: OwnedFd) -> io::Result<Self> {
        Ok(Self {
            fd,
            eventfd: Arc::new(Eventfd { rings: Mutex::new(false), rang: Condvar::new() }),
        })
    }

    /// The same doorbell, as a peer has it that was sent the descriptor.
    ///
    /// # Errors
    /// When the process is out of descriptors.
    pub fn of_peer(&self) -> io::Result<Self> {
        Ok(Self { fd: self.fd.try_clone()?, eventfd: Arc::clone(&self.eventfd) })
    }

    /// Makes the doorbell readable.
    ///
    /// # Errors
    /// None.
    pub fn ring(&self) -> io::Result<()> {
        *self.eventfd.rings.lock().unwrap() = true;
        self.eventfd.rang.notify_all();
        Ok(())
    }

    /// Silences the doorbell. Returns whether it had been ringing.
    ///
    /// # Errors
    /// None.
    pub fn clear(&self) -> io::Result<bool> {
        Ok(std::mem::take(&mut *self.eventfd.rings.lock().unwrap()))
    }

    /// Blocks while the doorbell is silent, as `ppoll` without a time limit does. Loom reports a
    /// model in which nobody rings any more as a deadlock: a lost wake-up.
    pub fn wait(&self) {
        let mut rings = self.eventfd.rings.lock().unwrap();
        while !*rings {
            rings = self.eventfd.rang.wait(rings).unwrap();
        }
    }
}

impl AsFd for Doorbell {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl AsRawFd for Doorbell {
    fn as_raw_fd(&self) -> RawFd {
        self.fd.as_raw_fd()
    }
}
