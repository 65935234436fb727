//! Pools of buffers.

use crate::eal;
use crate::error::DpdkError;
use crate::shim::{self, Pool};
use std::ffi::CString;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, Ordering};

/// Overhead per buffer, in bytes: DPDK's headroom, its structure and the pool's.
const AROUND_BUFFER: usize = 128 + 128 + 64;
const ENOMEM: i32 = -12;

/// Buffer pool of one port.
pub(crate) struct BufferPool {
    pool: NonNull<Pool>,
    buffers: u32,
    /// Frame bytes per buffer.
    pub(crate) buffer_bytes: usize,
}

// SAFETY: a pool's functions may be called from any thread, and all at once.
unsafe impl Send for BufferPool {}
// SAFETY: as above.
unsafe impl Sync for BufferPool {}

impl BufferPool {
    /// `socket` is the NUMA node of the memory, or -1.
    pub(crate) fn new(buffers: u32, buffer_bytes: usize, socket: i32) -> Result<Self, DpdkError> {
        let name = Self::name();
        // SAFETY: DPDK runs, and the name is zero-terminated; it is copied.
        let pool = unsafe { shim::lh_pool(name.as_ptr(), buffers, buffer_bytes as u32, socket) };
        Self::made(pool, buffers, buffer_bytes)
    }

    /// Buffers without memory, which refer to other buffers' memory.
    pub(crate) fn of_references(buffers: u32, socket: i32) -> Result<Self, DpdkError> {
        let name = Self::name();
        // SAFETY: as in `new`.
        let pool = unsafe { shim::lh_reference_pool(name.as_ptr(), buffers, socket) };
        Self::made(pool, buffers, 0)
    }

    fn name() -> CString {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let name = format!("longhaul_{}", NEXT.fetch_add(1, Ordering::Relaxed));
        CString::new(name).expect("no zero in it")
    }

    fn made(pool: *mut Pool, buffers: u32, buffer_bytes: usize) -> Result<Self, DpdkError> {
        let Some(pool) = NonNull::new(pool) else {
            let megabytes = (((buffer_bytes + AROUND_BUFFER) * buffers as usize) >> 20) + 64;
            let reason = eal::reason(ENOMEM);
            return Err(DpdkError::NoMemory { buffers, bytes: buffer_bytes, reason, megabytes });
        };
        Ok(Self { pool, buffers, buffer_bytes })
    }

    pub(crate) fn as_ptr(&self) -> *mut Pool {
        self.pool.as_ptr()
    }

    /// Number of free buffers.
    pub(crate) fn free_buffers(&self) -> usize {
        // SAFETY: the pool lives as long as this.
        unsafe { shim::lh_pool_free_buffers(self.pool.as_ptr()) as usize }
    }
}

impl Drop for BufferPool {
    fn drop(&mut self) {
        // Another port's device may hold some, as the devices of one ring do; the pool is then
        // leaked.
        if self.free_buffers() == self.buffers as usize {
            // SAFETY: all buffers have been returned, and nobody else uses the pool.
            unsafe { shim::lh_pool_free(self.pool.as_ptr()) };
        }
    }
}
