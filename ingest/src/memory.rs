//! Memory of a region, allocated here or by the user.

use longhaul_rdma::{Keeper, SharedBytes};
use rustix::mm::{Advice, madvise};
use std::alloc::{Layout, alloc, dealloc, handle_alloc_error};
use std::ptr::NonNull;

/// A huge page, so that the kernel can use one.
const ALIGNMENT: usize = 2 << 20;

/// Memory that a device may write to at any time. It is accessed by copies alone.
pub struct Memory {
    at: NonNull<u8>,
    len: usize,
    owner: Owner,
}

enum Owner {
    Allocated(Layout),
    Lent(#[expect(dead_code, reason = "held, so that the memory stays mapped")] Keeper),
}

// SAFETY: the memory is reached by address, through copies alone, which tolerate races.
unsafe impl Send for Memory {}
// SAFETY: as above.
unsafe impl Sync for Memory {}

impl Drop for Memory {
    fn drop(&mut self) {
        if let Owner::Allocated(layout) = self.owner {
            // SAFETY: allocated with this layout.
            unsafe { dealloc(self.at.as_ptr(), layout) };
        }
    }
}

impl Memory {
    /// Allocates `len` bytes (at least 1) of any contents.
    ///
    /// # Panics
    /// If `len` exceeds the address space.
    #[must_use]
    pub fn allocate(len: usize) -> Self {
        let layout = Layout::from_size_align(len.max(1), ALIGNMENT).expect("a possible length");
        // SAFETY: the layout is not empty.
        let Some(at) = NonNull::new(unsafe { alloc(layout) }) else { handle_alloc_error(layout) };
        if len >= ALIGNMENT {
            // A kernel that refuses uses small pages, which fault more often.
            // SAFETY: just allocated, and the advice changes no bytes.
            let _ = unsafe { madvise(at.as_ptr().cast(), len, Advice::LinuxHugepage) };
        }
        Memory { at, len, owner: Owner::Allocated(layout) }
    }

    /// Uses `len` bytes at `at` that belong to `keeper`, for example a numpy array.
    ///
    /// # Safety
    /// The memory must stay mapped, readable and writable while `keeper` lives. Devices and peers
    /// write to it at any time, so that nobody may hold a Rust reference to it.
    #[must_use]
    pub unsafe fn lent(at: NonNull<u8>, len: usize, keeper: Keeper) -> Self {
        Memory { at, len, owner: Owner::Lent(keeper) }
    }

    /// Length in bytes.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// True if the length is 0.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Address of the first byte.
    #[must_use]
    pub fn as_ptr(&self) -> NonNull<u8> {
        self.at
    }

    fn bytes(&self, offset: usize, len: usize) -> SharedBytes {
        let is_inside = offset.checked_add(len).is_some_and(|end| end <= self.len);
        assert!(is_inside, "{len} bytes at {offset} of {}", self.len);
        // SAFETY: inside the memory, which is mapped while `self` lives, and never referred to.
        unsafe { SharedBytes::new(self.at.as_ptr().add(offset), len) }
    }

    /// Copies from the memory.
    ///
    /// # Panics
    /// If the range is outside the memory.
    pub fn read(&self, offset: usize, to: &mut [u8]) {
        self.bytes(offset, to.len()).load(to);
    }

    /// Copies to the memory.
    ///
    /// # Panics
    /// If the range is outside the memory.
    pub fn write(&self, offset: usize, from: &[u8]) {
        self.bytes(offset, from.len()).store(from);
    }
}
