//! This process' ends of the rings: it produces entries for the kernel, or consumes entries of the
//! kernel.
//!
//! Indices are free-running 32-bit numbers. Each value that the kernel writes is read once,
//! checked, and not read again.

use std::fmt;
use std::sync::atomic::{Ordering, fence};

use crate::memory::RingMemory;

/// Flag of a descriptor: the frame continues in the next one.
const GOES_ON: u32 = libc::XDP_PKT_CONTD;

/// A violation by the kernel: the rule and the offending value.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Violation(pub(crate) String);

impl fmt::Display for Violation {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(&self.0)
    }
}

/// A frame, or a part of one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Descriptor {
    /// Start address, in bytes from the first buffer.
    pub(crate) address: u64,
    pub(crate) len: u32,
    pub(crate) goes_on: bool,
}

impl Descriptor {
    fn second_word(self) -> u64 {
        let mut word = [0; 8];
        word[..4].copy_from_slice(&self.len.to_ne_bytes());
        word[4..].copy_from_slice(&(if self.goes_on { GOES_ON } else { 0 }).to_ne_bytes());
        u64::from_ne_bytes(word)
    }

    fn of(address: u64, second: u64) -> Self {
        let [a, b, c, d, options @ ..] = second.to_ne_bytes();
        let goes_on = u32::from_ne_bytes(options) & GOES_ON != 0;
        Self { address, len: u32::from_ne_bytes([a, b, c, d]), goes_on }
    }
}

/// A ring that this process fills.
#[derive(Debug)]
pub(crate) struct Producing {
    memory: RingMemory,
    /// Next entry to write.
    next: u32,
}

impl Producing {
    pub(crate) fn new(memory: RingMemory) -> Self {
        Self { memory, next: 0 }
    }

    /// Continues where another process stopped, which had published all that it had written.
    pub(crate) fn resume(memory: RingMemory) -> Self {
        let next = memory.producer().load(Ordering::Acquire);
        Self { memory, next }
    }

    /// Entries that the kernel has not consumed, including unpublished ones.
    #[inline]
    pub(crate) fn pending(&self) -> Result<u32, Violation> {
        let taken = self.memory.consumer().load(Ordering::Acquire);
        let pending = self.next.wrapping_sub(taken);
        if pending > self.memory.size() {
            return Err(Violation(format!(
                "index {taken} is taken of a ring that ends at {}",
                self.next
            )));
        }
        Ok(pending)
    }

    #[inline]
    pub(crate) fn room(&self) -> Result<u32, Violation> {
        Ok(self.memory.size() - self.pending()?)
    }

    /// Writes a buffer's address; there must be space.
    #[inline]
    pub(crate) fn push_address(&mut self, address: u64) {
        self.memory.word(self.next, 0).store(address, Ordering::Relaxed);
        self.next = self.next.wrapping_add(1);
    }

    /// Writes a descriptor; there must be space.
    #[inline]
    pub(crate) fn push(&mut self, descriptor: Descriptor) {
        self.memory.word(self.next, 0).store(descriptor.address, Ordering::Relaxed);
        self.memory.word(self.next, 1).store(descriptor.second_word(), Ordering::Relaxed);
        self.next = self.next.wrapping_add(1);
    }

    /// Publishes the written entries to the kernel.
    #[inline]
    pub(crate) fn publish(&self) {
        self.memory.producer().store(self.next, Ordering::Release);
    }

    /// True if the kernel requests a system call after publishing.
    #[inline]
    pub(crate) fn wants_call(&self) -> bool {
        // The kernel sets the flag and then reads the index; this side writes and reads in the
        // opposite order.
        fence(Ordering::SeqCst);
        self.memory.flags().load(Ordering::Relaxed) & libc::XDP_RING_NEED_WAKEUP != 0
    }

    #[cfg(test)]
    pub(crate) fn memory(&self) -> &RingMemory {
        &self.memory
    }
}

/// A ring that the kernel fills.
#[derive(Debug)]
pub(crate) struct Consuming {
    memory: RingMemory,
    /// Next entry to read.
    next: u32,
}

impl Consuming {
    pub(crate) fn new(memory: RingMemory) -> Self {
        Self { memory, next: 0 }
    }

    /// Continues where another process stopped.
    pub(crate) fn resume(memory: RingMemory) -> Self {
        let next = memory.consumer().load(Ordering::Acquire);
        Self { memory, next }
    }

    /// Number of available entries.
    #[inline]
    pub(crate) fn available(&self) -> Result<u32, Violation> {
        let end = self.memory.producer().load(Ordering::Acquire);
        let available = end.wrapping_sub(self.next);
        if available > self.memory.size() {
            return Err(Violation(format!("a ring ends at {end} of which {} was read", self.next)));
        }
        Ok(available)
    }

    /// The address in entry `ahead` after the first, which must be available.
    #[inline]
    pub(crate) fn address(&self, ahead: u32) -> u64 {
        self.memory.word(self.next.wrapping_add(ahead), 0).load(Ordering::Relaxed)
    }

    /// The descriptor in entry `ahead` after the first, which must be available.
    #[inline]
    pub(crate) fn descriptor(&self, ahead: u32) -> Descriptor {
        let at = self.next.wrapping_add(ahead);
        let words = (self.memory.word(at, 0), self.memory.word(at, 1));
        Descriptor::of(words.0.load(Ordering::Relaxed), words.1.load(Ordering::Relaxed))
    }

    /// Returns the first `count` entries.
    #[inline]
    pub(crate) fn release(&mut self, count: u32) {
        self.next = self.next.wrapping_add(count);
        self.memory.consumer().store(self.next, Ordering::Release);
    }

    #[cfg(test)]
    pub(crate) fn memory(&self) -> &RingMemory {
        &self.memory
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::memory::Layout;
    use proptest::prelude::*;

    const LAYOUT: Layout = Layout { producer: 0, consumer: 64, flags: 128, entries: 192 };

    /// A private ring of descriptors or of addresses.
    pub(crate) fn memory(size: u32, entry_words: usize) -> RingMemory {
        RingMemory::private(LAYOUT, size, entry_words).unwrap()
    }

    proptest! {
        #[test]
        fn descriptors_are_read_as_they_were_written(
            address in any::<u64>(),
            len in any::<u32>(),
            goes_on in any::<bool>(),
        ) {
            let descriptor = Descriptor { address, len, goes_on };
            prop_assert_eq!(Descriptor::of(address, descriptor.second_word()), descriptor);
        }

        #[test]
        fn no_index_of_the_kernels_is_believed(next in any::<u32>(), index in any::<u32>()) {
            let mut producing = Producing::new(memory(64, 2));
            producing.next = next;
            producing.memory.consumer().store(index, Ordering::Relaxed);
            let is_right = next.wrapping_sub(index) <= 64;
            prop_assert_eq!(producing.room().is_ok(), is_right);
            let mut consuming = Consuming::new(memory(64, 2));
            consuming.next = next;
            consuming.memory.producer().store(index, Ordering::Relaxed);
            let is_right = index.wrapping_sub(next) <= 64;
            prop_assert_eq!(consuming.available().is_ok(), is_right);
        }

        #[test]
        fn what_is_produced_is_consumed_in_order_past_the_end_of_the_indices(
            start in prop_oneof![Just(0_u32), Just(u32::MAX - 3)],
            batches in proptest::collection::vec(0..20_u32, 1..40),
        ) {
            // The same memory, from both ends.
            let mut producing = Producing::new(memory(16, 2));
            let mut consuming = Consuming::new(memory(16, 2));
            (producing.next, consuming.next) = (start, start);
            producing.memory.consumer().store(start, Ordering::Relaxed);
            let (mut written, mut read) = (0_u64, 0_u64);
            for batch in batches {
                let room = producing.room().unwrap().min(batch);
                for _ in 0..room {
                    let word = |word| consuming.memory.word(producing.next, word);
                    let descriptor = Descriptor { address: written, len: 9, goes_on: false };
                    word(0).store(descriptor.address, Ordering::Relaxed);
                    word(1).store(descriptor.second_word(), Ordering::Relaxed);
                    producing.push(descriptor);
                    written += 1;
                }
                producing.publish();
                let end = producing.memory.producer().load(Ordering::Relaxed);
                consuming.memory.producer().store(end, Ordering::Relaxed);
                let available = consuming.available().unwrap();
                prop_assert_eq!(u64::from(available), written - read);
                for ahead in 0..available {
                    prop_assert_eq!(consuming.descriptor(ahead).address, read);
                    read += 1;
                }
                consuming.release(available);
                let taken = consuming.memory.consumer().load(Ordering::Relaxed);
                producing.memory.consumer().store(taken, Ordering::Relaxed);
            }
        }
    }
}
