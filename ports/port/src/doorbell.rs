//! An eventfd used as a wake-up between threads or processes.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};

use rustix::event::{EventfdFlags, eventfd};
use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use rustix::io::Errno;

/// A wake-up: readable from the first [`Doorbell::ring`] until the next [`Doorbell::clear`].
#[derive(Debug)]
pub struct Doorbell {
    fd: OwnedFd,
}

impl Doorbell {
    /// A new silent doorbell.
    ///
    /// # Errors
    /// If the process is out of descriptors.
    pub fn new() -> io::Result<Self> {
        let fd = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Self { fd })
    }

    /// Takes ownership of an eventfd from a peer, and makes it non-blocking.
    ///
    /// The peer shares the open file and can make it blocking again, so a port must not share its
    /// thread with others if a hostile peer may not stall them.
    ///
    /// # Errors
    /// If the descriptor is not an eventfd.
    pub fn from_peer(fd: OwnedFd) -> io::Result<Self> {
        let link = format!("/proc/self/fd/{}", fd.as_raw_fd());
        // Without /proc the check is impossible, and the descriptor is accepted.
        if let Ok(target) = std::fs::read_link(link)
            && target.to_str() != Some("anon_inode:[eventfd]")
        {
            return Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                format!("the descriptor is {} instead of an eventfd", target.display()),
            ));
        }
        let flags = fcntl_getfl(&fd)?;
        fcntl_setfl(&fd, flags | OFlags::NONBLOCK)?;
        Ok(Self { fd })
    }

    /// Makes the doorbell readable. A doorbell that already rings its maximum stays readable.
    ///
    /// # Errors
    /// If the descriptor cannot be written.
    pub fn ring(&self) -> io::Result<()> {
        loop {
            match rustix::io::write(&self.fd, &1u64.to_ne_bytes()) {
                Ok(_) | Err(Errno::AGAIN) => return Ok(()),
                Err(Errno::INTR) => {}
                Err(errno) => return Err(errno.into()),
            }
        }
    }

    /// Silences the doorbell. Returns whether it was ringing.
    ///
    /// # Errors
    /// If the descriptor cannot be read.
    pub fn clear(&self) -> io::Result<bool> {
        let mut count = [0u8; 8];
        loop {
            match rustix::io::read(&self.fd, &mut count) {
                Ok(_) => return Ok(true),
                Err(Errno::AGAIN) => return Ok(false),
                Err(Errno::INTR) => {}
                Err(errno) => return Err(errno.into()),
            }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rings_until_cleared() {
        let bell = Doorbell::new().unwrap();
        assert!(!bell.clear().unwrap());
        bell.ring().unwrap();
        bell.ring().unwrap();
        assert!(bell.clear().unwrap());
        assert!(!bell.clear().unwrap());
    }

    #[test]
    fn a_full_counter_does_not_block_or_fail() {
        let bell = Doorbell::new().unwrap();
        rustix::io::write(&bell, &(u64::MAX - 1).to_ne_bytes()).unwrap();
        bell.ring().unwrap();
        assert!(bell.clear().unwrap());
    }

    #[test]
    fn refuses_what_is_no_eventfd() {
        let file = std::fs::File::open("/dev/null").unwrap();
        assert!(Doorbell::from_peer(file.into()).is_err());
    }
}
