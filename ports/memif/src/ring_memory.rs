//! Layout of a ring's fields, and access to them.
//!
//! Layout (memif protocol version 2.0), in bytes from the ring's start: cookie at 0 (32 bits),
//! flags at 4 (16 bits), head at 6 (16 bits), tail at 64 (16 bits), and 16-byte descriptors from
//! 128: flags (16 bits), region (16 bits), length (32 bits), offset (32 bits), metadata (32 bits).

use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU16, AtomicU32, AtomicU64};
pub(crate) use std::sync::atomic::{Ordering, fence};

use crate::region::Region;

const FLAGS_AT: usize = 4;
const HEAD_AT: usize = 6;
const TAIL_AT: usize = 64;
pub(crate) const DESCRIPTORS_AT: usize = 128;
pub(crate) const DESCRIPTOR_BYTES: usize = 16;

/// Memory of one ring, which two processes share.
#[derive(Debug)]
pub(crate) struct RingMemory {
    base: NonNull<u8>,
    /// Keeps the mapping under `base` alive.
    _region: Arc<Region>,
}

// SAFETY: `base` points into a mapping that `_region` keeps alive on whichever thread; all access
// through it is atomic.
unsafe impl Send for RingMemory {}

impl RingMemory {
    /// The memory at `offset`, a multiple of 16, if all of the ring lies inside the region.
    pub(crate) fn new(region: &Arc<Region>, offset: u32, size_log2: u8) -> Option<Self> {
        let base = region.address(offset, DESCRIPTORS_AT + (DESCRIPTOR_BYTES << size_log2))?;
        Some(Self { base, _region: Arc::clone(region) })
    }

    #[inline]
    fn u16_at(&self, at: usize) -> &AtomicU16 {
        // SAFETY: `new` checked that the ring lies inside its mapping, which `_region` keeps alive.
        // The callers pass the three even constants above, and mappings and ring offsets are
        // multiples of 16, so the field is aligned. All sides access it atomically.
        unsafe { AtomicU16::from_ptr(self.base.add(at).cast().as_ptr()) }
    }

    #[inline]
    pub(crate) fn flags(&self) -> &AtomicU16 {
        self.u16_at(FLAGS_AT)
    }

    #[inline]
    pub(crate) fn head(&self) -> &AtomicU16 {
        self.u16_at(HEAD_AT)
    }

    #[inline]
    pub(crate) fn tail(&self) -> &AtomicU16 {
        self.u16_at(TAIL_AT)
    }

    /// The two halves of the descriptor in `slot`, which must be smaller than the ring.
    #[inline]
    pub(crate) fn words(&self, slot: usize) -> (&AtomicU64, &AtomicU64) {
        let at = DESCRIPTORS_AT + slot * DESCRIPTOR_BYTES;
        // SAFETY: `Ring` masks the slot to the ring, which `new` checked to lie inside its mapping;
        // both words are multiples of 8 from an address that is a multiple of 16.
        unsafe {
            (
                AtomicU64::from_ptr(self.base.add(at).cast().as_ptr()),
                AtomicU64::from_ptr(self.base.add(at + 8).cast().as_ptr()),
            )
        }
    }

    pub(crate) fn cookie(&self) -> &AtomicU32 {
        // SAFETY: as in `u16_at`; the cookie is the first field of the ring.
        unsafe { AtomicU32::from_ptr(self.base.cast().as_ptr()) }
    }
}
