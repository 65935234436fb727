//! Mapped memory: frame buffers, and the rings shared with the kernel.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr::{NonNull, null_mut};
use std::sync::atomic::{AtomicU32, AtomicU64};

use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, fcntl_get_seals, fstat, ftruncate};
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

/// A memory mapping.
#[derive(Debug)]
struct Mapping {
    base: NonNull<u8>,
    bytes: usize,
}

// SAFETY: the mapping is process-wide and lives until drop.
unsafe impl Send for Mapping {}

impl Mapping {
    fn new(base: *mut std::ffi::c_void, bytes: usize) -> io::Result<Self> {
        let base = NonNull::new(base.cast());
        let base =
            base.ok_or_else(|| io::Error::other("the kernel mapped memory at address zero"))?;
        Ok(Self { base, bytes })
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the mapping made for this one; all references into it borrow this one.
        let _ = unsafe { munmap(self.base.as_ptr().cast(), self.bytes) };
    }
}

/// The memory of all buffers, each [`Buffers::EACH`] bytes long and identified by its number.
#[derive(Debug)]
pub(crate) struct Buffers {
    mapping: Mapping,
    /// The memory itself, which another process can map too.
    memory: OwnedFd,
}

impl Buffers {
    /// Bytes of a buffer: the page size, which is the kernel's maximum.
    pub(crate) const EACH: usize = 4096;

    pub(crate) fn new(count: u32) -> io::Result<Self> {
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let memory = rustix::fs::memfd_create("longhaul frames", flags)?;
        ftruncate(&memory, u64::from(count) * Self::EACH as u64)?;
        fcntl_add_seals(&memory, SealFlags::SHRINK | SealFlags::GROW)?;
        Self::with(memory, count, MapFlags::SHARED | MapFlags::POPULATE)
    }

    /// Maps the buffers of another process, of which there must be `count`.
    pub(crate) fn map(memory: OwnedFd, count: u32) -> io::Result<Self> {
        // Memory that shrinks would end this process when it touches a frame.
        if !fcntl_get_seals(&memory)?.contains(SealFlags::SHRINK)
            || u64::try_from(fstat(&memory)?.st_size) != Ok(u64::from(count) * Self::EACH as u64)
        {
            return Err(io::Error::other(format!("this is no memory of {count} frames")));
        }
        // The pages exist, and mapping them now would take as long as all else of a take-over.
        Self::with(memory, count, MapFlags::SHARED)
    }

    fn with(memory: OwnedFd, count: u32, flags: MapFlags) -> io::Result<Self> {
        let bytes = count as usize * Self::EACH;
        let access = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping at an address that the kernel chooses touches no existing memory.
        let base = unsafe { mmap(null_mut(), bytes, access, flags, &memory, 0)? };
        Ok(Self { mapping: Mapping::new(base, bytes)?, memory })
    }

    pub(crate) fn address(&self) -> u64 {
        self.mapping.base.as_ptr() as u64
    }

    pub(crate) fn bytes(&self) -> usize {
        self.mapping.bytes
    }

    /// `len` bytes at address `at`, counted from the first buffer. The caller must own the buffer:
    /// the kernel does not write to it.
    ///
    /// # Panics
    /// If the range exceeds the mapping.
    #[inline]
    pub(crate) fn at(&mut self, at: u64, len: usize) -> &mut [u8] {
        let start = at as usize;
        assert!(
            start.checked_add(len).is_some_and(|end| end <= self.mapping.bytes),
            "{len} bytes at {at}"
        );
        // SAFETY: inside the mapping, as was checked, and borrowed exclusively with it.
        unsafe { std::slice::from_raw_parts_mut(self.mapping.base.add(start).as_ptr(), len) }
    }
}

impl AsFd for Buffers {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.memory.as_fd()
    }
}

/// Offsets of a ring's parts in its mapping, in bytes, as the kernel reports them.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Layout {
    pub(crate) producer: u64,
    pub(crate) consumer: u64,
    pub(crate) flags: u64,
    pub(crate) entries: u64,
}

/// Memory of one ring, which this process and the kernel share. All accesses are atomic.
#[derive(Debug)]
pub(crate) struct RingMemory {
    mapping: Mapping,
    producer: usize,
    consumer: usize,
    flags: usize,
    entries: usize,
    size: u32,
    /// 64-bit words per entry.
    entry_words: usize,
}

impl RingMemory {
    /// Maps the socket's ring at `offset`, after a check of the layout that the kernel reports.
    pub(crate) fn map(
        socket: BorrowedFd<'_>,
        offset: u64,
        layout: Layout,
        size: u32,
        entry_words: usize,
    ) -> io::Result<Self> {
        let bytes = bytes(layout, size, entry_words)?;
        let (access, flags) =
            (ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED | MapFlags::POPULATE);
        // SAFETY: a new mapping at an address that the kernel chooses touches no existing memory.
        let base = unsafe { mmap(null_mut(), bytes, access, flags, socket, offset)? };
        Self::of(Mapping::new(base, bytes)?, layout, size, entry_words)
    }

    /// A ring in private memory.
    #[cfg(test)]
    pub(crate) fn private(layout: Layout, size: u32, entry_words: usize) -> io::Result<Self> {
        let bytes = bytes(layout, size, entry_words)?;
        // SAFETY: as in `map`.
        let base = unsafe {
            rustix::mm::mmap_anonymous(
                null_mut(),
                bytes,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::PRIVATE,
            )?
        };
        Self::of(Mapping::new(base, bytes)?, layout, size, entry_words)
    }

    fn of(mapping: Mapping, layout: Layout, size: u32, entry_words: usize) -> io::Result<Self> {
        let [producer, consumer, flags, entries] =
            [layout.producer, layout.consumer, layout.flags, layout.entries].map(|at| at as usize);
        Ok(Self { mapping, producer, consumer, flags, entries, size, entry_words })
    }

    pub(crate) fn size(&self) -> u32 {
        self.size
    }

    #[inline]
    fn index(&self, at: usize) -> &AtomicU32 {
        // SAFETY: `bytes` checked that the word lies inside the mapping, and is aligned in it.
        unsafe { AtomicU32::from_ptr(self.mapping.base.add(at).cast().as_ptr()) }
    }

    #[inline]
    pub(crate) fn producer(&self) -> &AtomicU32 {
        self.index(self.producer)
    }

    #[inline]
    pub(crate) fn consumer(&self) -> &AtomicU32 {
        self.index(self.consumer)
    }

    #[inline]
    pub(crate) fn flags(&self) -> &AtomicU32 {
        self.index(self.flags)
    }

    /// A word of the entry at a free-running index.
    #[inline]
    pub(crate) fn word(&self, index: u32, word: usize) -> &AtomicU64 {
        debug_assert!(word < self.entry_words);
        let slot = (index & (self.size - 1)) as usize;
        let at = self.entries + (slot * self.entry_words + word % self.entry_words) * 8;
        // SAFETY: `bytes` checked that all entries lie inside the mapping, and that the first is
        // aligned; the slot is below the size, which is a power of two, and the word below the
        // words of an entry.
        unsafe { AtomicU64::from_ptr(self.mapping.base.add(at).cast().as_ptr()) }
    }
}

/// Size of such a ring in bytes.
///
/// # Errors
/// If the layout is implausible.
fn bytes(layout: Layout, size: u32, entry_words: usize) -> io::Result<usize> {
    let wrong =
        || io::Error::other(format!("the kernel describes a ring that cannot be: {layout:?}"));
    let entries = u64::from(size) * entry_words as u64 * 8;
    let end = layout.entries.checked_add(entries).filter(|end| *end < 1 << 30).ok_or_else(wrong)?;
    let words = [layout.producer, layout.consumer, layout.flags];
    let are_words = words
        .iter()
        .all(|at| at.is_multiple_of(4) && at.checked_add(4).is_some_and(|at| at <= end));
    if !size.is_power_of_two() || !layout.entries.is_multiple_of(8) || !are_words {
        return Err(wrong());
    }
    Ok(end as usize)
}

#[cfg(test)]
mod tests {
    use super::*;

    const LAYOUT: Layout = Layout { producer: 0, consumer: 64, flags: 128, entries: 192 };

    #[test]
    fn a_ring_that_cannot_be_is_refused() {
        assert!(RingMemory::private(LAYOUT, 64, 2).is_ok());
        for layout in [
            Layout { producer: 1, ..LAYOUT },
            Layout { consumer: u64::MAX - 3, ..LAYOUT },
            Layout { flags: 192 + 64 * 16, ..LAYOUT },
            Layout { entries: 196, ..LAYOUT },
            Layout { entries: u64::MAX - 7, ..LAYOUT },
            Layout { entries: 1 << 30, ..LAYOUT },
        ] {
            assert!(RingMemory::private(layout, 64, 2).is_err(), "{layout:?}");
        }
        assert!(RingMemory::private(LAYOUT, 63, 2).is_err());
    }

    #[test]
    #[should_panic(expected = "2 bytes at 8191")]
    fn no_byte_behind_the_last_buffer_is_reached() {
        Buffers::new(2).unwrap().at(8191, 2);
    }
}
