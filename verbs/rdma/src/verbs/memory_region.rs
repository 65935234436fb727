//! Registered memory, which its region owns or borrows from an owner that it keeps alive.

use std::any::Any;
use std::ptr::NonNull;
use std::sync::Arc;

use longhaul_rnic::{Access, MrKeys, Sge};
use longhaul_units::RKey;
use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous, munmap};

use super::ProtectionDomain;
use crate::error::RdmaError;
use crate::shared_bytes::SharedBytes;

/// Memory that peers may write to at any time.
struct Bytes {
    at: NonNull<u8>,
    owner: Owner,
}

enum Owner {
    /// A mapping of this length.
    Region(usize),
    /// Another object, which keeps the memory mapped while it lives.
    Other(#[expect(dead_code, reason = "held, so that the memory stays mapped")] Keeper),
}

/// Keeps memory mapped while it lives.
pub type Keeper = Arc<dyn Any + Send + Sync>;

// SAFETY: the memory is reached by address, through copies alone; copies tolerate races.
unsafe impl Send for Bytes {}
// SAFETY: as above.
unsafe impl Sync for Bytes {}

impl Drop for Bytes {
    fn drop(&mut self) {
        if let Owner::Region(len) = self.owner {
            // SAFETY: mapped with this length, and nobody refers to it. Only an invalid range makes
            // it fail.
            let _ = unsafe { munmap(self.at.as_ptr().cast(), len) };
        }
    }
}

/// A registered region.
///
/// The program copies in and out, because the device and peers write to the memory at any time, so
/// that a reference into it would be unsound. Synchronising copies with such writes is up to the
/// program, as with any RDMA memory.
pub struct MemoryRegion {
    pd: ProtectionDomain,
    keys: MrKeys,
    len: usize,
    /// `None` only during the drop.
    bytes: Option<Bytes>,
}

/// A part of a region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece(pub(super) Sge);

impl ProtectionDomain {
    /// Registers `len` bytes (at least 1) of new, zeroed memory, which the kernel provides as it is
    /// used.
    ///
    /// # Errors
    /// [`RdmaError::Verbs`]; [`RdmaError::Io`] if there is no memory.
    pub fn register(&self, len: usize, access: Access) -> Result<MemoryRegion, RdmaError> {
        let mapped = len.max(1);
        let (protection, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE);
        // SAFETY: a new mapping, at an address that the kernel chooses.
        let at = unsafe { mmap_anonymous(std::ptr::null_mut(), mapped, protection, flags) };
        let at = at.map_err(|error| RdmaError::Io { operation: "mmap", source: error.into() })?;
        let at = NonNull::new(at.cast())
            .ok_or(longhaul_rnic::VerbsError::Invalid("address of a region"))?;
        self.register_bytes(Bytes { at, owner: Owner::Region(mapped) }, len, access)
    }

    /// Registers `len` bytes at `at`, which belong to `keeper`. Their contents are left alone.
    ///
    /// # Safety
    /// The memory must stay mapped, readable and writable while `keeper` lives. The device, peers
    /// and copies by the region may access it at any time, so that nobody may hold a reference to
    /// it.
    ///
    /// # Errors
    /// [`RdmaError::Verbs`].
    pub unsafe fn register_at(
        &self,
        at: NonNull<u8>,
        len: usize,
        access: Access,
        keeper: Keeper,
    ) -> Result<MemoryRegion, RdmaError> {
        self.register_bytes(Bytes { at, owner: Owner::Other(keeper) }, len, access)
    }

    fn register_bytes(
        &self,
        bytes: Bytes,
        len: usize,
        access: Access,
    ) -> Result<MemoryRegion, RdmaError> {
        let address = bytes.at.as_ptr() as u64;
        let keys = self
            .0
            .engine
            .with(|rnic, _| rnic.reg_mr(self.0.id, address, len as u64, address, access))??;
        Ok(MemoryRegion { pd: self.clone(), keys, len, bytes: Some(bytes) })
    }
}

impl MemoryRegion {
    fn at(&self) -> *mut u8 {
        self.bytes.as_ref().map_or(std::ptr::null_mut(), |bytes| bytes.at.as_ptr())
    }

    fn bytes_at(&self, offset: usize, len: usize) -> SharedBytes {
        let is_inside = offset.checked_add(len).is_some_and(|end| end <= self.len);
        assert!(is_inside, "{len} bytes at {offset} of a region of {} bytes", self.len);
        // SAFETY: inside the region, which is mapped while `self` is and never referred to.
        unsafe { SharedBytes::new(self.at().add(offset), len) }
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

    /// Address of the byte at `offset`, for peers.
    #[must_use]
    pub fn address(&self, offset: usize) -> u64 {
        self.at() as u64 + offset as u64
    }

    /// The key for peers.
    #[must_use]
    pub fn rkey(&self) -> RKey {
        self.keys.rkey
    }

    /// A part for a work request. The device checks it: a part outside the region causes an error
    /// on use.
    #[must_use]
    pub fn piece(&self, offset: usize, len: u32) -> Piece {
        Piece(Sge { address: self.address(offset), len, lkey: self.keys.lkey })
    }

    /// Copies `from` into the region.
    ///
    /// # Panics
    /// If the range is outside the region.
    pub fn write(&self, offset: usize, from: &[u8]) {
        self.bytes_at(offset, from.len()).store(from);
    }

    /// Copies from the region.
    ///
    /// # Panics
    /// If the range is outside the region.
    pub fn read(&self, offset: usize, to: &mut [u8]) {
        self.bytes_at(offset, to.len()).load(to);
    }

    /// A copy of a part.
    ///
    /// # Panics
    /// If the range is outside the region.
    #[must_use]
    pub fn to_vec(&self, offset: usize, len: usize) -> Vec<u8> {
        let mut out = vec![0; len];
        self.read(offset, &mut out);
        out
    }
}

impl Drop for MemoryRegion {
    fn drop(&mut self) {
        let engine = Arc::clone(&self.pd.0.engine);
        let deregistered = engine.with(|rnic, _| rnic.dereg_mr(self.keys.lkey));
        if !matches!(deregistered, Ok(Ok(()))) {
            // The device may still write there, so the memory is leaked and not reused.
            std::mem::forget(self.bytes.take());
        }
    }
}
