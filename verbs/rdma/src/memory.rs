//! Registered memory of the process itself: addresses are the program's own.

use std::sync::atomic::{AtomicU64, Ordering, fence};

use longhaul_node::{Gather, Payload};
use longhaul_rnic::Memory;

/// Reads and writes the process's memory at the addresses of its registered regions.
///
/// The device calls it only with ranges inside a registered region whose permissions it has checked; what a
/// program registered and then unmapped faults, as it does with hardware (there the page stays pinned).
#[derive(Clone, Copy, Debug)]
pub struct ProcessMemory {
    _private: (),
}

impl ProcessMemory {
    /// The memory of this process.
    ///
    /// # Safety
    /// Until it is dropped, every range that the device is told to use (regions given to `reg_mr`, and
    /// segments of inline work requests during the call that posts them) must stay mapped, and its bytes
    /// may be read and written at any time by this type, concurrently with whatever else touches them.
    #[must_use]
    pub const unsafe fn new() -> Self {
        Self { _private: () }
    }
}

impl Gather for ProcessMemory {
    #[inline]
    fn gather(&self, address: u64, out: &mut [u8]) {
        // SAFETY: whoever made this value vouched for registered ranges, and the device checked that this
        // one is registered; `out` is private memory of the caller and cannot overlap it.
        unsafe { std::ptr::copy_nonoverlapping(address as *const u8, out.as_mut_ptr(), out.len()) };
    }
}

impl Memory for ProcessMemory {
    /// The last byte is written last, because programs poll it to learn that a WRITE has arrived.
    #[inline]
    fn scatter(&mut self, address: u64, payload: &Payload<'_>) {
        let len = payload.len();
        let Some(body) = len.checked_sub(1) else { return };
        let target = address as *mut u8;
        if let Some(bytes) = payload.as_bytes() {
            // SAFETY: whoever made this value vouched for registered ranges, and the device checked that
            // this one is registered and `len` long.
            unsafe {
                std::ptr::copy(bytes.as_ptr(), target, body);
                fence(Ordering::Release);
                target.add(body).write_volatile(bytes[body]);
            }
        } else {
            // SAFETY: as above.
            let out = unsafe { std::slice::from_raw_parts_mut(target, len) };
            payload.copy_to(out);
        }
    }

    fn fetch_add(&mut self, address: u64, add: u64) -> u64 {
        word(address).fetch_add(add, Ordering::SeqCst)
    }

    fn compare_swap(&mut self, address: u64, compare: u64, swap: u64) -> u64 {
        let swapped = word(address).compare_exchange(compare, swap, Ordering::SeqCst, Ordering::SeqCst);
        swapped.unwrap_or_else(|found| found)
    }
}

/// The 8 bytes at `address`, which programs may be using with atomic instructions of their own.
fn word<'a>(address: u64) -> &'a AtomicU64 {
    // SAFETY: whoever made the memory vouched for registered ranges, and the device checked that this one is
    // registered, 8 bytes long and aligned.
    unsafe { AtomicU64::from_ptr(address as *mut u64) }
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
