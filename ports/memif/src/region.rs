//! Shared memory regions: created and sealed by the slave, checked and mapped by the master.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr::{NonNull, null_mut};

use rustix::fs::{
    MemfdFlags, SealFlags, fcntl_add_seals, fcntl_get_seals, fstat, ftruncate, memfd_create,
};
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

use crate::stretch::Stretch;
use crate::violation::{Violation, violation};

/// A mapped region. The peer can change its bytes at any time; nothing here reads them.
#[derive(Debug)]
pub(crate) struct Region {
    base: NonNull<u8>,
    bytes: usize,
    fd: OwnedFd,
}

// SAFETY: the mapping is process-wide and lives until drop; `Region` only hands out raw pointers.
unsafe impl Send for Region {}
// SAFETY: as above; no method changes the region.
unsafe impl Sync for Region {}

impl Region {
    /// Creates a zeroed region, sealed against shrinking.
    pub(crate) fn create(bytes: usize) -> io::Result<Self> {
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let fd = memfd_create("memif region 0", flags)?;
        ftruncate(&fd, bytes as u64)?;
        fcntl_add_seals(&fd, SealFlags::SHRINK)?;
        Self::map(fd, bytes)
    }

    /// Maps a peer's region, after checks that no access to it can fault.
    ///
    /// A file that is shorter than announced, or that the peer can still shorten, would turn a read
    /// into SIGBUS.
    pub(crate) fn from_peer(fd: OwnedFd, bytes: u64) -> Result<Self, Violation> {
        let seals = fcntl_get_seals(&fd)
            .map_err(|errno| violation!("the region is not a memory file: {errno}"))?;
        if !seals.contains(SealFlags::SHRINK) {
            return Err(violation!("the region is not sealed against shrinking"));
        }
        let status =
            fstat(&fd).map_err(|errno| violation!("the size of the region is unknown: {errno}"))?;
        let actual = u64::try_from(status.st_size).unwrap_or(0);
        if bytes == 0 || bytes > actual {
            return Err(violation!("region of {actual} bytes announced as {bytes} bytes"));
        }
        let bytes = usize::try_from(bytes)
            .map_err(|_| violation!("region of {bytes} bytes does not fit this machine"))?;
        Self::map(fd, bytes).map_err(|error| violation!("mapping the region: {error}"))
    }

    fn map(fd: OwnedFd, bytes: usize) -> io::Result<Self> {
        // SAFETY: a new mapping at an address that the kernel chooses touches no existing memory.
        let base = unsafe {
            mmap(
                null_mut(),
                bytes,
                ProtFlags::READ | ProtFlags::WRITE,
                // Populating the pages now keeps the first pass over the ring fast.
                MapFlags::SHARED | MapFlags::POPULATE,
                &fd,
                0,
            )?
        };
        let base = NonNull::new(base.cast::<u8>())
            .ok_or_else(|| io::Error::other("the kernel mapped a region at address zero"))?;
        Ok(Self { base, bytes, fd })
    }

    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Address of `offset`, if `len` bytes from there lie inside the region.
    #[inline]
    pub(crate) fn address(&self, offset: u32, len: usize) -> Option<NonNull<u8>> {
        let offset = offset as usize;
        if offset.checked_add(len)? > self.bytes {
            return None;
        }
        // SAFETY: `offset` is at most the mapped size, checked above.
        Some(unsafe { self.base.add(offset) })
    }

    /// The `len` bytes at `offset`, if they lie inside the region.
    #[inline]
    pub(crate) fn at(&self, offset: u32, len: usize) -> Option<Stretch<'_>> {
        let address = self.address(offset, len)?;
        // SAFETY: `address` checked that these bytes lie in the mapping, which is there until drop.
        // `create` and `from_peer` saw to it that the file behind it cannot shrink.
        Some(unsafe { Stretch::new(self, address, len) })
    }
}

impl AsFd for Region {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        // SAFETY: `base` and `bytes` are the mapping made in `map`. Every pointer into it is held
        // by a ring or a queue that also holds this region by Arc, so none outlives it.
        let _ = unsafe { munmap(self.base.as_ptr().cast(), self.bytes) };
    }
}
