//! A semaphore with a descriptor; the kernel provides readiness, blocking and `O_NONBLOCK`.

use std::io::{self, IoSliceMut};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::time::Duration;

use rustix::io::ReadWriteFlags;

/// A counter whose descriptor is readable while the count is not 0.
pub(crate) struct Semaphore(OwnedFd);

impl Semaphore {
    /// A semaphore with count 0.
    ///
    /// # Errors
    /// If the process is out of descriptors.
    pub(crate) fn new() -> io::Result<Self> {
        // SAFETY: no pointers are passed.
        let fd = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_SEMAPHORE) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: eventfd returned a descriptor that has no other owner.
        Ok(Semaphore(unsafe { OwnedFd::from_raw_fd(fd) }))
    }

    pub(crate) fn fd(&self) -> RawFd {
        self.0.as_raw_fd()
    }

    /// Increments the count.
    pub(crate) fn raise(&self) {
        // A raw system call, because the C library's `write` is a cancellation point of the
        // program's thread. It cannot fail: the counted objects fit into memory, so the count fits
        // into the counter.
        let _ = rustix::io::write(&self.0, &1_u64.to_ne_bytes());
    }

    /// Decrements the count; blocks at 0, unless the program made the descriptor non-blocking.
    ///
    /// # Errors
    /// `WouldBlock` on a non-blocking descriptor; `Interrupted` by a signal.
    pub(crate) fn lower(&self) -> io::Result<()> {
        let mut count = [0_u8; 8];
        // SAFETY: eight writable bytes.
        let n = unsafe { libc::read(self.fd(), count.as_mut_ptr().cast(), count.len()) };
        if n < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
    }

    /// Decrements the count unless it is 0, whatever the descriptor's flags. Returns whether it
    /// did.
    pub(crate) fn lower_now(&self) -> bool {
        let mut count = [0_u8; 8];
        // The offset stands for "no offset".
        let slices = &mut [IoSliceMut::new(&mut count)];
        rustix::io::preadv2(&self.0, slices, u64::MAX, ReadWriteFlags::NOWAIT).is_ok()
    }

    /// Waits until the count is not 0, for at most `limit` or a second; a signal ends it too.
    ///
    /// # Errors
    /// Any other error of `poll`.
    pub(crate) fn wait(&self, limit: Duration) -> io::Result<()> {
        let mut poll = libc::pollfd { fd: self.fd(), events: libc::POLLIN, revents: 0 };
        let millis = limit.as_millis().clamp(1, 1000) as libc::c_int;
        // SAFETY: one valid pollfd.
        if unsafe { libc::poll(&raw mut poll, 1, millis) } < 0 {
            let error = io::Error::last_os_error();
            if error.kind() != io::ErrorKind::Interrupted {
                return Err(error);
            }
        }
        Ok(())
    }
}
