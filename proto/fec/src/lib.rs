//! Erasure coding over groups of DATA datagrams of one path: the far end recovers losses from
//! parity, without the round trip of a retransmission.
//!
//! An [`Encoder`] takes every DATA datagram with its number and returns [`Parity`] for each group.
//! A [`Decoder`] takes the received datagrams and returns the lost ones. [`Adaptation`] chooses the
//! [`Layout`] of groups from the path's loss. Datagrams are coded as symbols: a head block of real
//! bytes and a body that is bytes or, in a simulation, a length alone.
//!
//! The code is systematic Reed–Solomon of GF(2⁸) in Cauchy's form; with one parity it is the XOR of
//! the group. The encoder keeps only running sums, no data; the decoder keeps references.
//!
//! ```text
//!  block of k·d numbers, stride d = 3     group 0: 0 3 6 9    parity rows, m = 2
//!   0  1  2                               group 1: 1 4 7 10    p0,0 p1,0 p2,0
//!   3  4  5                               group 2: 2 5 8 11    p0,1 p1,1 p2,1
//!   6  7  8      in the order of sending: 0 1 2 3 4 … 11 p0,0 p1,0 p2,0 p0,1 p1,1 p2,1
//!   9 10 11      any d·m in a row take at most m of each group
//! ```
//! (The stride is a power of two; the picture uses 3 for clarity.)
//!
//! The crate handles no time, frames or acknowledgements and authenticates nothing: the caller must
//! check numbers. A peer's errors are counted ([`Counters`]) and have no other effect.
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

/// Longest head block of a parity, in bytes: the symbol's lengths precede its head.
pub const HEAD_BLOCK_MAX: usize = symbol::LENGTHS + HEAD_MAX;

/// Longest body of a symbol, in bytes.
pub const BODY_MAX: usize = 16 * 1024;

/// Maximum symbols of a group.
pub const SYMBOLS_MAX: usize = 128;

/// Maximum parities of a group.
pub const ROWS_MAX: usize = 8;

/// Maximum number of interleaved groups.
pub const STRIDE_MAX: usize = 64;

/// Layout of groups in the sequence of numbers: blocks of `symbols × stride` numbers, each with
/// `stride` interleaved groups of `rows` parities.
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
    /// `stride` (d, a power of two up to [`STRIDE_MAX`]) of them interleaved.
    ///
    /// # Errors
    /// A value is out of bounds.
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

    /// Interleaved groups: d.
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

    /// Returns the group, and the index in it, of the number `offset` after the start of its block.
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
