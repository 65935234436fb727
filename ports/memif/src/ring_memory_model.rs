//! A loom model of a ring's fields: the same atomics, without a layout.

use std::sync::Arc;

use loom::sync::atomic::{AtomicU16, AtomicU32, AtomicU64};
pub(crate) use loom::sync::atomic::{Ordering, fence};

use crate::region::Region;

pub(crate) const DESCRIPTORS_AT: usize = 128;
pub(crate) const DESCRIPTOR_BYTES: usize = 16;

/// Replaces the shared memory of one ring under `cfg(loom)`; clones are the same memory.
#[derive(Clone, Debug)]
pub(crate) struct RingMemory(Arc<Fields>);

#[derive(Debug)]
struct Fields {
    cookie: AtomicU32,
    flags: AtomicU16,
    head: AtomicU16,
    tail: AtomicU16,
    words: Vec<(AtomicU64, AtomicU64)>,
}

impl RingMemory {
    pub(crate) fn new(region: &Arc<Region>, offset: u32, size_log2: u8) -> Option<Self> {
        region.address(offset, DESCRIPTORS_AT + (DESCRIPTOR_BYTES << size_log2))?;
        Some(RingMemory(Arc::new(Fields {
            cookie: AtomicU32::new(0),
            flags: AtomicU16::new(0),
            head: AtomicU16::new(0),
            tail: AtomicU16::new(0),
            words: (0..1 << size_log2).map(|_| (AtomicU64::new(0), AtomicU64::new(0))).collect(),
        })))
    }

    pub(crate) fn flags(&self) -> &AtomicU16 {
        &self.0.flags
    }

    pub(crate) fn head(&self) -> &AtomicU16 {
        &self.0.head
    }

    pub(crate) fn tail(&self) -> &AtomicU16 {
        &self.0.tail
    }

    pub(crate) fn words(&self, slot: usize) -> (&AtomicU64, &AtomicU64) {
        let (first, second) = &self.0.words[slot];
        (first, second)
    }

    pub(crate) fn cookie(&self) -> &AtomicU32 {
        &self.0.cookie
    }
}
