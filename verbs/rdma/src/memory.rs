//! Registered memory of the process itself, at the program's own addresses.

use std::sync::atomic::Ordering;

use longhaul_node::{Gather, Payload};
use longhaul_rnic::Memory;

use crate::shared_bytes::SharedBytes;

/// Reads and writes the process's memory at the addresses of its registered regions.
///
/// The device calls it only with ranges inside a registered region whose permissions it has
/// checked. Memory that a program registered and then unmapped causes a fault, unlike with
/// hardware, which pins its pages.
#[derive(Clone, Copy, Debug)]
pub struct ProcessMemory {
    _private: (),
}

impl ProcessMemory {
    /// The memory of this process.
    ///
    /// # Safety
    /// Until it is dropped, every range that the device is told to use (regions given to `reg_mr`,
    /// and segments of inline work requests during the call that posts them) must stay mapped, and
    /// this type may read and write its bytes at any time, concurrently with other accesses.
    #[must_use]
    pub const unsafe fn new() -> Self {
        Self { _private: () }
    }

    /// Copies `to.len()` bytes from `address`.
    #[inline]
    pub fn load(&self, address: u64, to: &mut [u8]) {
        at(address, to.len()).load(to);
    }
}

impl Gather for ProcessMemory {
    #[inline]
    fn gather(&self, address: u64, out: &mut [u8]) {
        self.load(address, out);
    }
}

impl Memory for ProcessMemory {
    /// The last byte is written last, because programs poll it to detect a WRITE.
    #[inline]
    fn scatter(&mut self, address: u64, payload: &Payload<'_>) {
        match payload.as_bytes() {
            Some(bytes) => at(address, bytes.len()).publish(bytes),
            None => scatter_pieces(address, payload),
        }
    }

    fn fetch_add(&mut self, address: u64, add: u64) -> u64 {
        at(address, size_of::<u64>()).word().fetch_add(add, Ordering::SeqCst)
    }

    fn compare_swap(&mut self, address: u64, compare: u64, swap: u64) -> u64 {
        let word = at(address, size_of::<u64>()).word();
        let swapped = word.compare_exchange(compare, swap, Ordering::SeqCst, Ordering::SeqCst);
        swapped.unwrap_or_else(|found| found)
    }
}

/// A payload of several pieces; ports receive none.
#[cold]
fn scatter_pieces(address: u64, payload: &Payload<'_>) {
    let mut bytes = vec![0; payload.len()];
    payload.copy_to(&mut bytes);
    at(address, bytes.len()).publish(&bytes);
}

/// A range of registered memory.
#[inline]
fn at(address: u64, len: usize) -> SharedBytes {
    // SAFETY: the creator of the memory guaranteed registered ranges, and the device checked that
    // this one is registered, `len` bytes long and, for an atomic, aligned.
    unsafe { SharedBytes::new(address as *mut u8, len) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_scattered_is_gathered() {
        let mut region = vec![0_u8; 64];
        let address = region.as_mut_ptr() as u64;
        // SAFETY: `region` outlives the memory and is not used in between.
        let mut memory = unsafe { ProcessMemory::new() };
        let bytes: Vec<u8> = (1..=9).collect();
        memory.scatter(address + 8, &Payload::Bytes(&bytes));
        memory.scatter(address, &Payload::Bytes(&[]));
        let mut back = [0; 11];
        memory.gather(address + 7, &mut back);
        assert_eq!(back, [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 0]);
    }
}
