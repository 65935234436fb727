//! Copies between private memory and memory that a peer may write at any time.
//!
//! Only this module accesses the bytes of frames in a region. A reference to them would be unsound:
//! the compiler assumes that bytes behind `&[u8]` do not change, but another process may change
//! these. A [`Stretch`] is an address and a length instead. It moves bytes by `asm!` instructions,
//! which are opaque to the compiler, so no access is repeated, merged or omitted. A peer that
//! writes during a copy only affects which bytes are copied.
//!
//! Invariants:
//!
//! * a stretch lies inside the region that it borrows, and the region stays mapped at its full size
//!   meanwhile;
//! * each copy accesses each byte once, in ascending order: headers before payload;
//! * copied bytes are examined only after the copy, in private memory.

use core::arch::asm;
use core::arch::x86_64::{__m128i, __m256i};
use std::marker::PhantomData;
use std::ptr::NonNull;

use crate::region::Region;

/// Minimum length for 32-byte moves, if the processor supports them.
const WIDE_MIN: usize = 256;
/// Bytes per iteration of the wide loops.
const WIDE: usize = 128;

/// Bytes of a region.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Stretch<'a> {
    base: NonNull<u8>,
    len: usize,
    region: PhantomData<&'a Region>,
}

/// Loads a `$kind` from `$from` with one instruction.
macro_rules! load {
    ($class:ident, $kind:ty, $instruction:literal, $from:expr) => {{
        let value: $kind;
        asm!(
            $instruction,
            value = out($class) value,
            from = in(reg) $from,
            options(nostack, preserves_flags)
        );
        value
    }};
}

/// Stores `$value` at `$to` with one instruction.
macro_rules! store {
    ($class:ident, $instruction:literal, $to:expr, $value:expr) => {
        asm!(
            $instruction,
            to = in(reg) $to,
            value = in($class) $value,
            options(nostack, preserves_flags)
        )
    };
}

/// Copies the first `len` bytes, rounded down to whole iterations of [`WIDE`], from shared to
/// private memory. Returns the number of bytes.
///
/// # Safety `len` bytes at `from` can be read, as many at `to` are private and can be written, and
/// the processor has AVX.
#[target_feature(enable = "avx")]
unsafe fn copy_wide_to(from: *const u8, to: *mut u8, len: usize) -> usize {
    let mut done = 0;
    while len - done >= WIDE {
        // SAFETY: there are `WIDE` more bytes on both sides.
        unsafe {
            let from = from.add(done);
            let a = load!(ymm_reg, __m256i, "vmovdqu {value}, [{from}]", from);
            let b = load!(ymm_reg, __m256i, "vmovdqu {value}, [{from} + 32]", from);
            let c = load!(ymm_reg, __m256i, "vmovdqu {value}, [{from} + 64]", from);
            let d = load!(ymm_reg, __m256i, "vmovdqu {value}, [{from} + 96]", from);
            to.add(done).cast::<[__m256i; 4]>().write_unaligned([a, b, c, d]);
        }
        done += WIDE;
    }
    done
}

/// As [`copy_wide_to`], from private to shared memory.
///
/// # Safety
/// As there, with the directions exchanged.
#[target_feature(enable = "avx")]
unsafe fn copy_wide_from(from: *const u8, to: *mut u8, len: usize) -> usize {
    let mut done = 0;
    while len - done >= WIDE {
        // SAFETY: there are `WIDE` more bytes on both sides.
        unsafe {
            let to = to.add(done);
            let [a, b, c, d] = from.add(done).cast::<[__m256i; 4]>().read_unaligned();
            store!(ymm_reg, "vmovdqu [{to}], {value}", to, a);
            store!(ymm_reg, "vmovdqu [{to} + 32], {value}", to, b);
            store!(ymm_reg, "vmovdqu [{to} + 64], {value}", to, c);
            store!(ymm_reg, "vmovdqu [{to} + 96], {value}", to, d);
        }
        done += WIDE;
    }
    done
}

impl<'a> Stretch<'a> {
    /// # Safety
    /// `len` bytes from `base` lie in a mapping that `_region` keeps, and that cannot shrink.
    pub(crate) unsafe fn new(_region: &'a Region, base: NonNull<u8>, len: usize) -> Self {
        Self { base, len, region: PhantomData }
    }

    pub(crate) fn len(self) -> usize {
        self.len
    }

    /// The first `len` bytes.
    ///
    /// # Panics
    /// If there are fewer.
    #[inline]
    pub(crate) fn first(self, len: usize) -> Self {
        assert!(len <= self.len, "{len} of {} bytes", self.len);
        Self { len, ..self }
    }

    /// Copies all bytes to `out`.
    ///
    /// # Panics
    /// If `out` has another length.
    #[inline]
    pub(crate) fn copy_to(self, out: &mut [u8]) {
        assert_eq!(out.len(), self.len, "lengths differ");
        let (mut from, mut to) = (self.base.as_ptr().cast_const(), out.as_mut_ptr());
        let mut left = self.len;
        // SAFETY: by the invariants, loads from the first `left` bytes at `from` do not fault;
        // `out` has as many. Both pointers move and `left` shrinks by what was copied, and no step
        // copies more than `left`.
        unsafe {
            if left >= WIDE_MIN && is_x86_feature_detected!("avx") {
                let done = copy_wide_to(from, to, left);
                (from, to, left) = (from.add(done), to.add(done), left - done);
            }
            while left >= 64 {
                let a = load!(xmm_reg, __m128i, "movdqu {value}, [{from}]", from);
                let b = load!(xmm_reg, __m128i, "movdqu {value}, [{from} + 16]", from);
                let c = load!(xmm_reg, __m128i, "movdqu {value}, [{from} + 32]", from);
                let d = load!(xmm_reg, __m128i, "movdqu {value}, [{from} + 48]", from);
                to.cast::<[__m128i; 4]>().write_unaligned([a, b, c, d]);
                (from, to, left) = (from.add(64), to.add(64), left - 64);
            }
            while left >= 16 {
                let value = load!(xmm_reg, __m128i, "movdqu {value}, [{from}]", from);
                to.cast::<__m128i>().write_unaligned(value);
                (from, to, left) = (from.add(16), to.add(16), left - 16);
            }
            if left >= 8 {
                to.cast::<u64>().write_unaligned(load!(reg, u64, "mov {value}, [{from}]", from));
                (from, to, left) = (from.add(8), to.add(8), left - 8);
            }
            if left >= 4 {
                to.cast::<u32>().write_unaligned(load!(reg, u32, "mov {value:e}, [{from}]", from));
                (from, to, left) = (from.add(4), to.add(4), left - 4);
            }
            while left > 0 {
                to.write(load!(reg_byte, u8, "mov {value}, [{from}]", from));
                (from, to, left) = (from.add(1), to.add(1), left - 1);
            }
        }
    }

    /// Copies `bytes` to the start. Returns the rest.
    ///
    /// # Panics
    /// If `bytes` is longer.
    #[inline]
    pub(crate) fn copy_first_from(self, bytes: &[u8]) -> Self {
        self.first(bytes.len()).copy_from(bytes);
        // SAFETY: `first` checked that there are this many bytes.
        let base = unsafe { self.base.add(bytes.len()) };
        Self { base, len: self.len - bytes.len(), ..self }
    }

    /// Copies `bytes` over all bytes.
    ///
    /// # Panics
    /// If `bytes` has another length.
    #[inline]
    pub(crate) fn copy_from(self, bytes: &[u8]) {
        assert_eq!(bytes.len(), self.len, "lengths differ");
        let (mut from, mut to) = (bytes.as_ptr(), self.base.as_ptr());
        let mut left = self.len;
        // SAFETY: as in `copy_to`, with the directions exchanged. The mapping is writable.
        unsafe {
            if left >= WIDE_MIN && is_x86_feature_detected!("avx") {
                let done = copy_wide_from(from, to, left);
                (from, to, left) = (from.add(done), to.add(done), left - done);
            }
            while left >= 64 {
                let [a, b, c, d] = from.cast::<[__m128i; 4]>().read_unaligned();
                store!(xmm_reg, "movdqu [{to}], {value}", to, a);
                store!(xmm_reg, "movdqu [{to} + 16], {value}", to, b);
                store!(xmm_reg, "movdqu [{to} + 32], {value}", to, c);
                store!(xmm_reg, "movdqu [{to} + 48], {value}", to, d);
                (from, to, left) = (from.add(64), to.add(64), left - 64);
            }
            while left >= 16 {
                store!(
                    xmm_reg,
                    "movdqu [{to}], {value}",
                    to,
                    from.cast::<__m128i>().read_unaligned()
                );
                (from, to, left) = (from.add(16), to.add(16), left - 16);
            }
            if left >= 8 {
                store!(reg, "mov [{to}], {value}", to, from.cast::<u64>().read_unaligned());
                (from, to, left) = (from.add(8), to.add(8), left - 8);
            }
            if left >= 4 {
                store!(reg, "mov [{to}], {value:e}", to, from.cast::<u32>().read_unaligned());
                (from, to, left) = (from.add(4), to.add(4), left - 4);
            }
            while left > 0 {
                store!(reg_byte, "mov [{to}], {value}", to, from.read());
                (from, to, left) = (from.add(1), to.add(1), left - 1);
            }
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn every_length_at_every_place_is_copied_and_nothing_beside_it() {
        let region = Region::create(4096).unwrap();
        let all = region.at(0, 512).unwrap();
        // Covers every loop: several wide iterations, and all remainders of one.
        let bytes: Vec<u8> = (0..=250).cycle().skip(1).take(WIDE_MIN + WIDE + 64).collect();
        for offset in 0..17 {
            for len in 0..=bytes.len() {
                all.copy_from(&[0xee; 512]);
                let stretch = region.at(offset, len).unwrap();
                stretch.copy_from(&bytes[..len]);
                let mut out = [0xdd; 480];
                stretch.copy_to(&mut out[8..8 + len]);
                assert_eq!(out[8..8 + len], bytes[..len]);
                assert!(
                    out[..8].iter().chain(&out[8 + len..]).all(|byte| *byte == 0xdd),
                    "{offset} {len}"
                );
                let mut around = [0; 512];
                all.copy_to(&mut around);
                let (at, end) = (offset as usize, offset as usize + len);
                assert!(
                    around[..at].iter().chain(&around[end..]).all(|byte| *byte == 0xee),
                    "{offset} {len}"
                );
            }
        }
    }

    /// A peer that keeps writing changes bytes, but a copy only holds bytes that were there.
    #[test]
    fn a_copy_has_nothing_but_what_was_there_while_a_peer_writes() {
        let region = Region::create(1 << 16).unwrap();
        let stretch = region.at(3, 1001).unwrap();
        stretch.copy_from(&[1; 1001]);
        let done = std::sync::atomic::AtomicBool::new(false);
        std::thread::scope(|scope| {
            let (region, done) = (&region, &done);
            scope.spawn(move || {
                let stretch = region.at(3, 1001).unwrap();
                for round in 0..2000 {
                    stretch.copy_from(&[1 + (round & 1) as u8; 1001]);
                }
                done.store(true, std::sync::atomic::Ordering::Relaxed);
            });
            let mut out = [0; 1001];
            while !done.load(std::sync::atomic::Ordering::Relaxed) {
                stretch.copy_to(&mut out);
                assert!(out.iter().all(|byte| [1, 2].contains(byte)));
            }
        });
    }

    #[test]
    #[should_panic(expected = "lengths differ")]
    fn a_shorter_buffer_is_refused() {
        Region::create(4096).unwrap().at(0, 64).unwrap().copy_to(&mut [0; 63]);
    }
}
