//! A loom model of the doorbell: the guarantees of an eventfd, without the kernel.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};

use loom::sync::{Arc, Condvar, Mutex};
use rustix::event::{EventfdFlags, eventfd};

/// Replaces the real doorbell under `cfg(loom)`.
#[derive(Debug)]
pub struct Doorbell {
    /// Never readable; exists for callers that need a descriptor.
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
    /// If the process is out of descriptors.
    pub fn new() -> io::Result<Self> {
        Self::from_peer(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?)
    }

    /// A new silent doorbell; ignores the descriptor.
    ///
    /// # Errors
    /// None.
    pub fn from_peer(fd: OwnedFd) -> io::Result<Self> {
        Ok(Self {
            fd,
            eventfd: Arc::new(Eventfd { rings: Mutex::new(false), rang: Condvar::new() }),
        })
    }

    /// The same doorbell, as the peer that receives the descriptor holds it.
    ///
    /// # Errors
    /// If the process is out of descriptors.
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

    /// Silences the doorbell. Returns whether it was ringing.
    ///
    /// # Errors
    /// None.
    pub fn clear(&self) -> io::Result<bool> {
        Ok(std::mem::take(&mut *self.eventfd.rings.lock().unwrap()))
    }

    /// Blocks while the doorbell is silent, like `ppoll` without a timeout. If no thread rings any
    /// more, loom reports a deadlock: a lost wake-up.
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
