//! A counting allocator, for tests of allocations; each such test is a program of its own.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};

/// The system's allocator, with calls and bytes in use counted; for `#[global_allocator]`.
#[derive(Default)]
pub struct Counting {
    calls: AtomicU64,
    bytes: AtomicI64,
}

impl Counting {
    /// Creates an allocator with zero counts.
    pub const fn new() -> Self {
        Counting { calls: AtomicU64::new(0), bytes: AtomicI64::new(0) }
    }

    /// Allocations so far, reallocations included.
    pub fn calls(&self) -> u64 {
        self.calls.load(Ordering::Relaxed)
    }

    /// Bytes in use.
    pub fn bytes(&self) -> i64 {
        self.bytes.load(Ordering::Relaxed)
    }
}

// SAFETY: every call is forwarded to the system's allocator with the same arguments; counting does
// not access the memory.
unsafe impl GlobalAlloc for Counting {
    // SAFETY: the caller keeps the contract of `GlobalAlloc`, which is the system allocator's too.
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        self.calls.fetch_add(1, Ordering::Relaxed);
        self.bytes.fetch_add(layout.size() as i64, Ordering::Relaxed);
        // SAFETY: as above.
        unsafe { System.alloc(layout) }
    }

    // SAFETY: the caller keeps the contract of `GlobalAlloc`, which is the system allocator's too.
    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        self.bytes.fetch_sub(layout.size() as i64, Ordering::Relaxed);
        // SAFETY: as above.
        unsafe { System.dealloc(pointer, layout) }
    }
}
