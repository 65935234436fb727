//! Memory that other threads and processes access while this process copies it.

use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};

/// A range of memory that the program, its other threads, other processes and the device may read
/// and write at any time. It is only accessed by copies.
///
/// Invariants, on which every `unsafe` block of this module relies:
///
/// - The creator of a value guarantees that the range is mapped while the value is in use, readable
///   for loads and writable for stores.
/// - No reference to the range exists. A `&[u8]` would promise that nobody writes, and a `&mut
///   [u8]` that nobody even reads; neither holds. Atomics are the exception: they promise nothing
///   about other accesses.
/// - A copy is one relaxed atomic access per byte, in any order. A concurrently written byte is
///   copied with its old or its new value; consistency between bytes is the protocol's concern.
#[derive(Clone, Copy, Debug)]
pub struct SharedBytes {
    at: *mut u8,
    len: usize,
}

impl SharedBytes {
    /// The `len` bytes at `at`.
    ///
    /// # Safety
    /// The invariants of the type must hold.
    #[inline]
    pub const unsafe fn new(at: *mut u8, len: usize) -> Self {
        SharedBytes { at, len }
    }

    /// Copies the range to `to`, which has the same length.
    #[inline]
    pub fn load(self, to: &mut [u8]) {
        assert_eq!(to.len(), self.len, "a copy of another length");
        // SAFETY: both ranges have this length. `to` is private.
        unsafe { copy(to.as_mut_ptr(), self.at, self.len) };
    }

    /// Copies `from`, which has the same length, to the range.
    #[inline]
    pub fn store(self, from: &[u8]) {
        assert_eq!(from.len(), self.len, "a copy of another length");
        // SAFETY: both ranges have this length.
        unsafe { copy(self.at, from.as_ptr(), self.len) };
    }

    /// As [`SharedBytes::store`], but a reader that sees the last byte also sees all others.
    #[inline]
    pub fn publish(self, from: &[u8]) {
        assert_eq!(from.len(), self.len, "a copy of another length");
        let Some((last, body)) = from.split_last() else { return };
        // SAFETY: `body` is one byte shorter than both ranges.
        unsafe { copy(self.at, body.as_ptr(), body.len()) };
        // SAFETY: the range is not empty, and bytes are aligned anywhere.
        unsafe { AtomicU8::from_ptr(self.at.add(body.len())) }.store(*last, Ordering::Release);
    }

    /// The range as an atomic number.
    ///
    /// # Panics
    /// Unless it is 8 aligned bytes.
    #[inline]
    pub(crate) fn word<'a>(self) -> &'a AtomicU64 {
        let word = self.at.cast::<AtomicU64>();
        assert!(self.len == size_of::<AtomicU64>() && word.is_aligned(), "no word");
        // SAFETY: mapped, of this length, and aligned, as just asserted.
        unsafe { &*word }
    }
}

/// Copies `len` bytes as relaxed atomic accesses of one byte each would.
///
/// The assembly hides the accesses from the compiler; machine code cannot tear a byte. It calls the
/// C library's routine, the fastest for each processor, in its version for overlapping ranges,
/// because a program may register any memory of its process.
///
/// # Safety
/// Both ranges must be mapped; one is private to the caller or has the invariants of
/// [`SharedBytes`].
#[cfg(all(target_arch = "x86_64", target_os = "linux", not(miri)))]
#[inline]
unsafe fn copy(to: *mut u8, from: *const u8, len: usize) {
    // SAFETY: a call by the C convention, with the stack aligned for it, that touches these ranges
    // alone.
    unsafe {
        std::arch::asm!(
            "call {memmove}",
            memmove = sym libc::memmove,
            in("rdi") to,
            in("rsi") from,
            in("rdx") len,
            clobber_abi("C"),
        );
    }
}

/// The same in Rust, for other processors and for checkers.
///
/// # Safety
/// As [`copy`].
#[cfg(not(all(target_arch = "x86_64", target_os = "linux", not(miri))))]
#[inline]
unsafe fn copy(to: *mut u8, from: *const u8, len: usize) {
    // SAFETY: passed on to the caller.
    unsafe { copy_bytes(to, from, len) };
}

/// The definition of [`copy`].
///
/// # Safety
/// As [`copy`].
#[cfg(any(test, not(all(target_arch = "x86_64", target_os = "linux", not(miri)))))]
unsafe fn copy_bytes(to: *mut u8, from: *const u8, len: usize) {
    for at in 0..len {
        // SAFETY: within the ranges. Loading needs no write access, whatever the pointer's type
        // says.
        let (to, from) = unsafe {
            (AtomicU8::from_ptr(to.add(at)), AtomicU8::from_ptr(from.add(at).cast_mut()))
        };
        to.store(from.load(Ordering::Relaxed), Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::UnsafeCell;
    use std::sync::atomic::AtomicBool;

    struct Region(UnsafeCell<Vec<u8>>);

    // SAFETY: only accessed through [`SharedBytes`].
    unsafe impl Sync for Region {}

    impl Region {
        fn of(bytes: usize) -> Self {
            Region(UnsafeCell::new(vec![0; bytes]))
        }

        fn part(&self, at: usize, len: usize) -> SharedBytes {
            // SAFETY: no other reference to the vector exists meanwhile.
            let bytes = unsafe { &mut *self.0.get() };
            assert!(at + len <= bytes.len());
            // SAFETY: within the vector, which the region outlives.
            unsafe { SharedBytes::new(bytes.as_mut_ptr().add(at), len) }
        }
    }

    #[test]
    fn every_length_at_every_alignment_is_copied_and_nothing_beside_it() {
        for len in (0..70).chain([255, 256, 257, 1023, 1024, 4096]) {
            for at in 0..9 {
                let region = Region::of(len + 18);
                let bytes: Vec<u8> = (1..=len).map(|n| n as u8 | 1).collect();
                region.part(at, len).store(&bytes);
                let mut back = vec![9; len + 18];
                region.part(0, len + 18).load(&mut back);
                assert_eq!(back[at..at + len], bytes);
                assert!(back[..at].iter().chain(&back[at + len..]).all(|byte| *byte == 0));
                let mut same = vec![0; len];
                // SAFETY: both are private here, and as long.
                unsafe { copy_bytes(same.as_mut_ptr(), bytes.as_ptr(), len) };
                assert_eq!(same, bytes);
            }
        }
    }

    #[test]
    fn a_program_that_sees_the_last_byte_sees_all() {
        const LEN: usize = 1021;
        let rounds = if cfg!(miri) { 3 } else { 250 };
        let region = Region::of(LEN);
        let whole = region.part(0, LEN);
        let address = whole.at as u64;
        let taken = AtomicBool::new(true);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for round in 1..=rounds {
                    while !taken.swap(false, Ordering::Acquire) {
                        std::thread::yield_now();
                    }
                    // SAFETY: the region outlives the scope.
                    unsafe { SharedBytes::new(address as *mut u8, LEN) }.publish(&[round; LEN]);
                }
            });
            // SAFETY: within the region.
            let last = unsafe { AtomicU8::from_ptr(whole.at.add(LEN - 1)) };
            for round in 1..=rounds {
                while last.load(Ordering::Acquire) != round {
                    std::thread::yield_now();
                }
                let mut seen = [0; LEN];
                whole.load(&mut seen);
                assert_eq!(seen, [round; LEN]);
                taken.store(true, Ordering::Release);
            }
        });
    }

    #[test]
    fn bytes_that_are_written_meanwhile_are_copied_as_they_were_or_will_be() {
        let region = Region::of(64);
        let address = region.part(0, 64).at as u64;
        let is_over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                // SAFETY: the region outlives the scope.
                let shared = unsafe { SharedBytes::new(address as *mut u8, 64) };
                while !is_over.load(Ordering::Relaxed) {
                    shared.store(&[0x55; 64]);
                    shared.store(&[0xaa; 64]);
                }
            });
            for _ in 0..if cfg!(miri) { 5 } else { 2000 } {
                let mut seen = [0; 64];
                region.part(0, 64).load(&mut seen);
                assert!(seen.iter().all(|byte| [0, 0x55, 0xaa].contains(byte)), "{seen:x?}");
            }
            is_over.store(true, Ordering::Relaxed);
        });
    }

    #[test]
    #[should_panic(expected = "a copy of another length")]
    fn a_range_of_another_length_is_refused() {
        Region::of(8).part(0, 8).store(&[0; 9]);
    }

    #[test]
    #[should_panic(expected = "no word")]
    fn a_word_is_aligned() {
        let region = Region::of(24);
        let odd = (0..8).find(|at| region.part(*at, 8).at as usize % 8 == 4).unwrap_or(1);
        let _ = region.part(odd, 8).word();
    }
}
