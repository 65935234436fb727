//! A descriptor ring in shared memory.
//!
//! Indices are free-running 16-bit numbers, masked for use.
//!
//! The peer can change every byte at any time. A descriptor is therefore read once, with two
//! relaxed loads, into a private copy that the callers check; nothing is ever read back.

use std::sync::Arc;

use crate::config::RING_SIZE_LOG2_MAX;
use crate::region::Region;
use crate::ring_memory::{DESCRIPTOR_BYTES, DESCRIPTORS_AT, Ordering, RingMemory, fence};
use crate::violation::{Violation, violation};

const COOKIE: u32 = 0x03E3_1F20;
/// Ring flag: the consumer polls and wants no interrupts.
const FLAG_MASK_INTERRUPT: u16 = 1;
/// Descriptor flag: the frame continues in the next descriptor.
pub(crate) const FLAG_NEXT: u16 = 1;

/// A private copy of one descriptor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Descriptor {
    pub(crate) flags: u16,
    pub(crate) region: u16,
    pub(crate) length: u32,
    pub(crate) offset: u32,
}

impl Descriptor {
    fn first_word(self) -> u64 {
        let mut word = [0; 8];
        word[..2].copy_from_slice(&self.flags.to_ne_bytes());
        word[2..4].copy_from_slice(&self.region.to_ne_bytes());
        word[4..].copy_from_slice(&self.length.to_ne_bytes());
        u64::from_ne_bytes(word)
    }

    fn second_word(self) -> u64 {
        let mut word = [0; 8];
        word[..4].copy_from_slice(&self.offset.to_ne_bytes());
        u64::from_ne_bytes(word)
    }

    fn from_words(first: u64, second: u64) -> Self {
        let [f0, f1, r0, r1, l0, l1, l2, l3] = first.to_ne_bytes();
        let [o0, o1, o2, o3, ..] = second.to_ne_bytes();
        Self {
            flags: u16::from_ne_bytes([f0, f1]),
            region: u16::from_ne_bytes([r0, r1]),
            length: u32::from_ne_bytes([l0, l1, l2, l3]),
            offset: u32::from_ne_bytes([o0, o1, o2, o3]),
        }
    }
}

/// A ring of `2^n` descriptors.
#[derive(Debug)]
pub(crate) struct Ring {
    memory: RingMemory,
    mask: u16,
}

impl Ring {
    /// Bytes of a ring with this number of descriptors.
    pub(crate) fn bytes(size_log2: u8) -> usize {
        DESCRIPTORS_AT + (DESCRIPTOR_BYTES << size_log2)
    }

    /// A ring at `offset` of a region. Checks that all of it lies inside.
    pub(crate) fn new(region: &Arc<Region>, offset: u32, size_log2: u8) -> Result<Self, Violation> {
        if size_log2 > RING_SIZE_LOG2_MAX {
            let max = RING_SIZE_LOG2_MAX;
            return Err(violation!("ring of 2^{size_log2} descriptors is over 2^{max}"));
        }
        if !(offset as usize).is_multiple_of(DESCRIPTOR_BYTES) {
            return Err(violation!("ring offset {offset} is not a multiple of {DESCRIPTOR_BYTES}"));
        }
        let memory = RingMemory::new(region, offset, size_log2).ok_or_else(|| {
            let bytes = region.bytes();
            violation!("ring at offset {offset} leaves its region of {bytes} bytes")
        })?;
        Ok(Self { memory, mask: (1u16 << size_log2) - 1 })
    }

    /// The peer's view of the same ring.
    #[cfg(all(test, loom))]
    pub(crate) fn of_peer(&self) -> Self {
        Self { memory: self.memory.clone(), mask: self.mask }
    }

    /// Number of descriptors in the ring.
    #[inline]
    pub(crate) fn size(&self) -> u16 {
        self.mask + 1
    }

    /// The slot of a free-running index.
    #[inline]
    pub(crate) fn slot(&self, index: u16) -> usize {
        usize::from(index & self.mask)
    }

    /// Initialises a new ring of zeroed memory: each slot gets a buffer of `length` bytes in region
    /// 0, the first at offset `first` and each next one `stride` bytes further.
    pub(crate) fn format(&self, first: u32, stride: u32, length: u32) {
        for slot in 0..self.size() {
            let offset = first + u32::from(slot) * stride;
            self.write(slot, Descriptor { flags: 0, region: 0, length, offset });
        }
        self.memory.cookie().store(COOKIE, Ordering::Relaxed);
    }

    /// Checks that the peer has formatted this ring.
    pub(crate) fn check_cookie(&self) -> Result<(), Violation> {
        match self.memory.cookie().load(Ordering::Acquire) {
            COOKIE => Ok(()),
            other => Err(violation!("ring cookie is {other:#x} instead of {COOKIE:#x}")),
        }
    }

    #[inline]
    pub(crate) fn head(&self) -> u16 {
        self.memory.head().load(Ordering::Acquire)
    }

    #[inline]
    pub(crate) fn tail(&self) -> u16 {
        self.memory.tail().load(Ordering::Acquire)
    }

    #[inline]
    pub(crate) fn publish_head(&self, head: u16) {
        self.memory.head().store(head, Ordering::Release);
    }

    #[inline]
    pub(crate) fn publish_tail(&self, tail: u16) {
        self.memory.tail().store(tail, Ordering::Release);
    }

    /// Consumer side: whether producers must raise interrupts. A fence follows a change, so that an
    /// index read after requesting interrupts is at least as new as any that a producer published
    /// while it still saw them masked.
    pub(crate) fn request_interrupts(&self, wanted: bool) {
        let flags = if wanted { 0 } else { FLAG_MASK_INTERRUPT };
        self.memory.flags().store(flags, Ordering::Relaxed);
        if wanted {
            fence(Ordering::SeqCst);
        }
    }

    /// Producer side, after publishing: whether the consumer requests a wake-up.
    #[inline]
    pub(crate) fn interrupts_requested(&self) -> bool {
        // Pairs with the fence in `request_interrupts`.
        fence(Ordering::SeqCst);
        self.memory.flags().load(Ordering::Relaxed) & FLAG_MASK_INTERRUPT == 0
    }

    /// Copies a descriptor from shared memory.
    #[inline]
    pub(crate) fn descriptor(&self, index: u16) -> Descriptor {
        let (first, second) = self.memory.words(self.slot(index));
        Descriptor::from_words(first.load(Ordering::Relaxed), second.load(Ordering::Relaxed))
    }

    /// Writes a whole descriptor.
    #[inline]
    pub(crate) fn write(&self, index: u16, descriptor: Descriptor) {
        let (first, second) = self.memory.words(self.slot(index));
        first.store(descriptor.first_word(), Ordering::Relaxed);
        second.store(descriptor.second_word(), Ordering::Relaxed);
    }

    /// Writes flags, region and length of a descriptor, and keeps its offset.
    #[inline]
    pub(crate) fn write_length(&self, index: u16, flags: u16, region: u16, length: u32) {
        let descriptor = Descriptor { flags, region, length, offset: 0 };
        self.memory.words(self.slot(index)).0.store(descriptor.first_word(), Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ring(bytes: usize, offset: u32, size_log2: u8) -> Result<Ring, Violation> {
        Ring::new(&Arc::new(Region::create(bytes).unwrap()), offset, size_log2)
    }

    #[test]
    fn a_ring_must_lie_inside_its_region() {
        assert!(ring(128 + 16 * 4, 0, 2).is_ok());
        assert!(ring(128 + 16 * 4, 16, 2).unwrap_err().0.contains("leaves its region"));
        assert!(ring(4096, u32::MAX - 15, 2).unwrap_err().0.contains("leaves its region"));
        assert!(ring(4096, 8, 2).unwrap_err().0.contains("multiple"));
        assert!(ring(1 << 21, 0, 15).unwrap_err().0.contains("2^15"));
        assert!(ring(1 << 21, 0, 255).unwrap_err().0.contains("2^255"));
    }

    #[test]
    fn fields_lie_where_the_published_layout_has_them() {
        let region = Arc::new(Region::create(4096).unwrap());
        let ring = Ring::new(&region, 64, 2).unwrap();
        ring.format(0, 64, 64);
        ring.publish_head(0x1234);
        ring.publish_tail(0x5678);
        ring.request_interrupts(false);
        let descriptor = Descriptor { flags: 1, region: 2, length: 3, offset: 4 };
        ring.write(5, descriptor);
        assert_eq!(ring.descriptor(1), descriptor);
        ring.write_length(5, 9, 8, 7);
        assert_eq!(ring.descriptor(1), Descriptor { flags: 9, region: 8, length: 7, offset: 4 });
        let mut bytes = [0; 256];
        region.at(64, 256).unwrap().copy_to(&mut bytes);
        assert_eq!(bytes[0..4], COOKIE.to_ne_bytes());
        assert_eq!(bytes[4..6], 1u16.to_ne_bytes());
        assert_eq!(bytes[6..8], 0x1234u16.to_ne_bytes());
        assert_eq!(bytes[64..66], 0x5678u16.to_ne_bytes());
        assert_eq!(bytes[128 + 16 + 4..128 + 16 + 8], 7u32.to_ne_bytes());
        assert_eq!(bytes[128 + 16 + 8..128 + 16 + 12], 4u32.to_ne_bytes());
    }
}
