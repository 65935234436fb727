//! Arithmetic of GF(2⁸) over byte slices, and the coefficients of the code.
//!
//! The field is that of polynomial x⁸+x⁴+x³+x²+1 (0x11d). A slice is multiplied by a constant with
//! two tables of 16 entries, one for each half of a byte, in which a byte shuffle looks up 32 or 64
//! at a time.
//!
//! Source of the technique: Plank, Greenan, Miller, "Screaming fast Galois field arithmetic using
//! Intel SIMD instructions", FAST 2013. [`Kernel::detect`] queries the processor once.
//!
//! The field is implemented here because no maintained library keeps running sums; they code whole
//! groups at once.

use crate::ROWS_MAX;

/// Columns of the code: the maximum symbols of a group. A prime, see [`coefficient`].
pub(crate) const COLUMNS: u64 = 241;

const POLYNOMIAL: u16 = 0x11d;

const fn double(a: u8) -> u8 {
    let wide = (a as u16) << 1;
    (if wide & 0x100 == 0 { wide } else { wide ^ POLYNOMIAL }) as u8
}

/// Powers of 2, repeated so that a sum of two logarithms needs no reduction.
const EXP: [u8; 510] = {
    let mut exp = [0; 510];
    let (mut i, mut value) = (0, 1);
    while i < 510 {
        exp[i] = value;
        value = double(value);
        i += 1;
    }
    exp
};

const LOG: [u8; 256] = {
    let mut log = [0; 256];
    let mut i = 0;
    while i < 255 {
        log[EXP[i] as usize] = i as u8;
        i += 1;
    }
    log
};

/// The product of `a` and `b`.
pub(crate) const fn mul(a: u8, b: u8) -> u8 {
    if a == 0 || b == 0 { 0 } else { EXP[LOG[a as usize] as usize + LOG[b as usize] as usize] }
}

/// The multiplicative inverse of `a`; 1 for 0.
pub(crate) const fn inverse(a: u8) -> u8 {
    EXP[255 - LOG[a as usize] as usize]
}

/// The factor of DATA `number` in parity row `row`.
///
/// A Cauchy matrix 1 / (x + y) with x = row and y = 8 + number mod 241, each column scaled so that
/// row 0 is all ones: parity 0 is the XOR of the group, and every square submatrix is invertible,
/// so that any losses up to the number of parities can be repaired. Because 241 is a prime, up to
/// 241 numbers at a constant stride below it have distinct columns, however groups are cut or
/// joined.
pub(crate) fn coefficient(row: u8, number: u64) -> u8 {
    COEFFICIENTS[usize::from(row)][(number % COLUMNS) as usize]
}

static COEFFICIENTS: [[u8; COLUMNS as usize]; ROWS_MAX] = {
    let mut table = [[0; COLUMNS as usize]; ROWS_MAX];
    let mut row = 0;
    while row < ROWS_MAX {
        let mut column = 0;
        while column < COLUMNS as usize {
            let y = (ROWS_MAX + column) as u8;
            table[row][column] = mul(y, inverse(row as u8 ^ y));
            column += 1;
        }
        row += 1;
    }
    table
};

/// Products of each constant with the 16 low halves and the 16 high halves of a byte.
static HALVES: [[[u8; 16]; 2]; 256] = {
    let mut tables = [[[0; 16]; 2]; 256];
    let mut c = 0;
    while c < 256 {
        let mut i = 0;
        while i < 16 {
            tables[c][0][i] = mul(c as u8, i as u8);
            tables[c][1][i] = mul(c as u8, (i << 4) as u8);
            i += 1;
        }
        c += 1;
    }
    tables
};

/// The processor's instructions for the field arithmetic.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Kernel {
    #[cfg(target_arch = "x86_64")]
    Avx512(pulp::x86::V4),
    #[cfg(target_arch = "x86_64")]
    Avx2(pulp::x86::V3),
    Portable,
}

impl Kernel {
    pub(crate) fn detect() -> Self {
        #[cfg(target_arch = "x86_64")]
        {
            if let Some(simd) = pulp::x86::V4::try_new() {
                return Kernel::Avx512(simd);
            }
            if let Some(simd) = pulp::x86::V3::try_new() {
                return Kernel::Avx2(simd);
            }
        }
        Kernel::Portable
    }

    /// `out[i] += c · input[i]`, for slices of equal length.
    pub(crate) fn add_product(self, out: &mut [u8], input: &[u8], c: u8) {
        self.product::<true>(out, input, c);
    }

    /// `out[i] = c · input[i]`, for slices of equal length.
    pub(crate) fn set_product(self, out: &mut [u8], input: &[u8], c: u8) {
        if c == 1 { out.copy_from_slice(input) } else { self.product::<false>(out, input, c) }
    }

    fn product<const ADD: bool>(self, out: &mut [u8], input: &[u8], c: u8) {
        debug_assert_eq!(out.len(), input.len());
        match self {
            #[cfg(target_arch = "x86_64")]
            Kernel::Avx512(simd) => simd.vectorize(x86::Wide::<ADD> { simd, out, input, c }),
            #[cfg(target_arch = "x86_64")]
            Kernel::Avx2(simd) => simd.vectorize(x86::Narrow::<ADD> { simd, out, input, c }),
            Kernel::Portable => portable::<ADD>(out, input, c),
        }
    }
}

#[inline(always)]
fn portable<const ADD: bool>(out: &mut [u8], input: &[u8], c: u8) {
    if c == 1 {
        for (out, input) in out.iter_mut().zip(input) {
            *out = if ADD { *out ^ input } else { *input };
        }
        return;
    }
    let [low, high] = &HALVES[usize::from(c)];
    for (out, input) in out.iter_mut().zip(input) {
        let product = low[usize::from(input & 15)] ^ high[usize::from(input >> 4)];
        *out = if ADD { *out ^ product } else { product };
    }
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use super::{HALVES, portable};
    use pulp::{NullaryFnOnce, as_arrays, as_arrays_mut, cast};
    use std::arch::x86_64::{__m256i, __m512i};

    pub(super) struct Wide<'a, const ADD: bool> {
        pub(super) simd: pulp::x86::V4,
        pub(super) out: &'a mut [u8],
        pub(super) input: &'a [u8],
        pub(super) c: u8,
    }

    impl<const ADD: bool> NullaryFnOnce for Wide<'_, ADD> {
        type Output = ();

        #[inline(always)]
        fn call(self) {
            let Wide { simd, out, input, c } = self;
            if c == 1 {
                return portable::<ADD>(out, input, 1);
            }
            let (f, bw) = (simd.avx512f, simd.avx512bw);
            let [low, high] = HALVES[usize::from(c)];
            let (low, high): (__m512i, __m512i) = (cast([low; 4]), cast([high; 4]));
            let mask = f._mm512_set1_epi8(15);
            let (outs, out_rest) = as_arrays_mut::<64, u8>(out);
            let (inputs, input_rest) = as_arrays::<64, u8>(input);
            for (out, input) in outs.iter_mut().zip(inputs) {
                let input: __m512i = cast(*input);
                let shifted = bw._mm512_srli_epi16::<4>(input);
                let a = bw._mm512_shuffle_epi8(low, f._mm512_and_si512(input, mask));
                let b = bw._mm512_shuffle_epi8(high, f._mm512_and_si512(shifted, mask));
                let product = f._mm512_xor_si512(a, b);
                *out = cast(if ADD { f._mm512_xor_si512(product, cast(*out)) } else { product });
            }
            portable::<ADD>(out_rest, input_rest, c);
        }
    }

    pub(super) struct Narrow<'a, const ADD: bool> {
        pub(super) simd: pulp::x86::V3,
        pub(super) out: &'a mut [u8],
        pub(super) input: &'a [u8],
        pub(super) c: u8,
    }

    impl<const ADD: bool> NullaryFnOnce for Narrow<'_, ADD> {
        type Output = ();

        #[inline(always)]
        fn call(self) {
            let Narrow { simd, out, input, c } = self;
            if c == 1 {
                return portable::<ADD>(out, input, 1);
            }
            let avx2 = simd.avx2;
            let [low, high] = HALVES[usize::from(c)];
            let (low, high): (__m256i, __m256i) = (cast([low; 2]), cast([high; 2]));
            let mask = simd.avx._mm256_set1_epi8(15);
            let (outs, out_rest) = as_arrays_mut::<32, u8>(out);
            let (inputs, input_rest) = as_arrays::<32, u8>(input);
            for (out, input) in outs.iter_mut().zip(inputs) {
                let input: __m256i = cast(*input);
                let shifted = avx2._mm256_srli_epi16::<4>(input);
                let a = avx2._mm256_shuffle_epi8(low, avx2._mm256_and_si256(input, mask));
                let b = avx2._mm256_shuffle_epi8(high, avx2._mm256_and_si256(shifted, mask));
                let product = avx2._mm256_xor_si256(a, b);
                *out = cast(if ADD { avx2._mm256_xor_si256(product, cast(*out)) } else { product });
            }
            portable::<ADD>(out_rest, input_rest, c);
        }
    }
}

/// Inverts the `n`×`n` matrix in the upper left of `a`; `None` when it is singular.
pub(crate) fn invert(mut a: Square, n: usize) -> Option<Square> {
    let mut out = [[0; ROWS_MAX]; ROWS_MAX];
    for (i, row) in out.iter_mut().enumerate() {
        row[i] = 1;
    }
    for i in 0..n {
        let pivot = (i..n).find(|&r| a[r][i] != 0)?;
        a.swap(i, pivot);
        out.swap(i, pivot);
        let scale = inverse(a[i][i]);
        for column in 0..n {
            a[i][column] = mul(a[i][column], scale);
            out[i][column] = mul(out[i][column], scale);
        }
        for r in (0..n).filter(|&r| r != i) {
            let factor = a[r][i];
            for column in 0..n {
                a[r][column] ^= mul(factor, a[i][column]);
                out[r][column] ^= mul(factor, out[i][column]);
            }
        }
    }
    Some(out)
}

/// A square matrix of the maximum number of parities.
pub(crate) type Square = [[u8; ROWS_MAX]; ROWS_MAX];

#[cfg(test)]
mod tests {
    use super::*;
    use longhaul_units::{Rng, SplitMix64};

    #[test]
    fn multiplication_is_that_of_polynomials() {
        for a in 0..=255_u8 {
            for b in 0..=255_u8 {
                let (mut expected, mut shifted) = (0, a);
                for bit in 0..8 {
                    expected ^= if b >> bit & 1 == 1 { shifted } else { 0 };
                    shifted = double(shifted);
                }
                assert_eq!(mul(a, b), expected);
            }
            assert!(a == 0 || mul(a, inverse(a)) == 1);
        }
    }

    #[test]
    fn every_kernel_gives_the_same_bytes() {
        let mut rng = SplitMix64::new(1);
        let input: Vec<u8> = (0..333).map(|_| rng.next_u64() as u8).collect();
        let before: Vec<u8> = (0..333).map(|_| rng.next_u64() as u8).collect();
        let mut kernels = vec![Kernel::Portable, Kernel::detect()];
        #[cfg(target_arch = "x86_64")]
        kernels.extend(pulp::x86::V3::try_new().map(Kernel::Avx2));
        for len in [0, 1, 31, 32, 63, 64, 65, 200, 333] {
            for c in 0..=255 {
                for kernel in &kernels {
                    let (mut sum, mut set) = (before.clone(), before.clone());
                    kernel.add_product(&mut sum[..len], &input[..len], c);
                    kernel.set_product(&mut set[..len], &input[..len], c);
                    for i in 0..333 {
                        let product = mul(c, input[i]);
                        assert_eq!(sum[i], if i < len { before[i] ^ product } else { before[i] });
                        assert_eq!(set[i], if i < len { product } else { before[i] });
                    }
                }
            }
        }
    }

    #[test]
    fn parity_0_is_the_xor() {
        assert!((0..COLUMNS).all(|number| coefficient(0, number) == 1));
    }

    #[test]
    fn any_square_part_can_be_inverted() {
        let mut rng = SplitMix64::new(2);
        for _ in 0..20_000 {
            let n = 1 + rng.below(8) as usize;
            let (mut rows, mut columns) = (Vec::new(), Vec::new());
            while rows.len() < n {
                let row = rng.below(8) as u8;
                if !rows.contains(&row) {
                    rows.push(row);
                }
            }
            while columns.len() < n {
                let column = rng.below(COLUMNS);
                if !columns.contains(&column) {
                    columns.push(column);
                }
            }
            let mut a = [[0; ROWS_MAX]; ROWS_MAX];
            for (i, &row) in rows.iter().enumerate() {
                for (j, &column) in columns.iter().enumerate() {
                    a[i][j] = coefficient(row, column);
                }
            }
            let b = invert(a, n).expect("a Cauchy matrix");
            for (i, line) in a.iter().enumerate().take(n) {
                for j in 0..n {
                    let cell = line.iter().zip(&b).fold(0, |sum, (x, y)| sum ^ mul(*x, y[j]));
                    assert_eq!(cell, u8::from(i == j));
                }
            }
        }
    }
}
