//! Erasure coding over groups of DATA datagrams of one path: what a lossy path drops is computed
//! from parity at the far end, without waiting a round trip for a repetition.
//!
//! An [`Encoder`] is shown every DATA datagram with its number and hands out [`Parity`] for each
//! group. A [`Decoder`] is shown what arrives and gives back what did not. [`Adaptation`] chooses
//! the [`Layout`] of groups from what the path loses. Datagrams are coded as symbols: a head block
//! of real bytes and a body that is bytes or, in a simulation, a length alone.
//!
//! The code is systematic Reed–Solomon of GF(2⁸) in Cauchy's form; with one parity it is the XOR of
//! the group. The encoder keeps running sums alone, no data; the decoder keeps references.
//!
//! ```text
//!  block of k·d numbers, stride d = 3     group 0: 0 3 6 9    parity rows, m = 2
//!   0  1  2                               group 1: 1 4 7 10    p0,0 p1,0 p2,0
//!   3  4  5                               group 2: 2 5 8 11    p0,1 p1,1 p2,1
//!   6  7  8      in the order of sending: 0 1 2 3 4 … 11 p0,0 p1,0 p2,0 p0,1 p1,1 p2,1
//!   9 10 11      any d·m in a row take at most m of each group
//! ```
//! (The stride is a power of two; 3 is for the picture.)
//!
//! Nothing here knows time, frames or acknowledgements, and nothing is authenticated: numbers must
//! have passed the caller's own checks. What a peer does wrong is counted ([`Counters`]) and
//! changes nothing.
#![forbid(unsafe_code)]

mod adaptation;
mod decoder;
mod encoder;
mod field;
mod residual;
mod ring;
mod symbol;
mod wire;

pub use adaptation::{Adaptation, Choice, LatencyGoal, Measured, Report, choose};
pub use decoder::{Counters, Decoder, DecoderConfig, Recovered, Refusal, Symbol};
pub use encoder::{AddError, Encoder};
pub use residual::{PathLoss, residual_loss};
pub use symbol::Body;
pub use wire::{PARITY_HEADER_LEN, Parity, ParityId};

/// Longest head of a symbol, in bytes.
pub const HEAD_MAX: usize = 192;

/// Longest head block of a parity, in bytes: the symbol's own lengths stand before its head.
pub const HEAD_BLOCK_MAX: usize = symbol::LENGTHS + HEAD_MAX;

/// Longest body of a symbol, in bytes.
pub const BODY_MAX: usize = 16 * 1024;

/// Most symbols in a group.
pub const SYMBOLS_MAX: usize = 128;

/// Most parities of a group.
pub const ROWS_MAX: usize = 8;

/// Most groups side by side.
pub const STRIDE_MAX: usize = 64;

/// How groups lie in the row of numbers: blocks of `symbols × stride` numbers, in each `stride`
/// groups side by side, each with `rows` parities.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Layout {
    symbols: u8,
    stride: u8,
    rows: u8,
}

/// A layout outside the bounds.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error(
    "{symbols} symbols with {rows} parities, stride {stride}: symbols are 1 to {SYMBOLS_MAX}, \
     parities 1 to {ROWS_MAX}, the stride a power of two up to {STRIDE_MAX}"
)]
pub struct BadLayout {
    symbols: usize,
    rows: usize,
    stride: usize,
}

impl Layout {
    /// Groups of `symbols` (k, 1 to [`SYMBOLS_MAX`]) with `rows` parities (m, 1 to [`ROWS_MAX`]),
    /// `stride` (d, a power of two up to [`STRIDE_MAX`]) of them side by side.
    ///
    /// # Errors
    /// When one is out of bounds.
    pub fn new(symbols: usize, rows: usize, stride: usize) -> Result<Layout, BadLayout> {
        let fits = (1..=SYMBOLS_MAX).contains(&symbols)
            && (1..=ROWS_MAX).contains(&rows)
            && stride.is_power_of_two()
            && stride <= STRIDE_MAX;
        if fits {
            Ok(Layout { symbols: symbols as u8, stride: stride as u8, rows: rows as u8 })
        } else {
            Err(BadLayout { symbols, rows, stride })
        }
    }

    /// Symbols of a group: k.
    pub fn symbols(self) -> usize {
        usize::from(self.symbols)
    }

    /// Parities of a group: m.
    pub fn rows(self) -> usize {
        usize::from(self.rows)
    }

    /// Groups side by side: d.
    pub fn stride(self) -> usize {
        usize::from(self.stride)
    }

    /// Numbers of a block: k·d.
    pub fn block(self) -> usize {
        self.symbols() * self.stride()
    }

    /// Parity per DATA, in symbols: m / k.
    pub fn overhead(self) -> f64 {
        f64::from(self.rows) / f64::from(self.symbols)
    }

    /// The group of the number `offset` places behind the start of its block, and the place in that
    /// group.
    pub fn place(self, offset: usize) -> (usize, usize) {
        (offset % self.stride(), offset / self.stride())
    }
}

impl std::fmt::Display for Layout {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}+{}", self.symbols, self.rows)?;
        if self.stride > 1 { write!(f, " ×{}", self.stride) } else { Ok(()) }
    }
}
