//! Wire format of PARITY datagrams.

use crate::decoder::Refusal;
use crate::{BODY_MAX, Body, HEAD_BLOCK_MAX, ROWS_MAX, STRIDE_MAX, SYMBOLS_MAX, symbol};

/// Length of [`Parity::header`], in bytes.
pub const PARITY_HEADER_LEN: usize = 12;

/// Identifies a parity and its group: DATA `base`, `base + stride`, … `symbols` of them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ParityId {
    /// Number of the group's first DATA.
    pub base: u64,
    /// DATA in the group, 1 to [`SYMBOLS_MAX`]: k, or fewer after a flush.
    pub symbols: u8,
    /// Distance between numbers of the group, a power of two up to [`STRIDE_MAX`]: d.
    pub stride: u8,
    /// Parities of the group, 1 to [`ROWS_MAX`]: m.
    pub rows: u8,
    /// Index of this parity, from 0: j.
    pub row: u8,
}

impl ParityId {
    /// The number of the last DATA of the group; `None` if it overflows.
    pub(crate) fn last(&self) -> Option<u64> {
        let span = u64::from(self.symbols.saturating_sub(1)) * u64::from(self.stride);
        // The ring uses the highest number for "none".
        self.base.checked_add(span).filter(|&last| last < u64::MAX)
    }

    pub(crate) fn members(&self) -> impl Iterator<Item = u64> + use<> {
        let (base, stride) = (self.base, u64::from(self.stride));
        (0..u64::from(self.symbols)).map(move |i| base + i * stride)
    }

    pub(crate) fn is_same_group(&self, other: &ParityId) -> bool {
        ParityId { row: 0, ..*self } == ParityId { row: 0, ..*other }
    }

    fn is_sound(&self) -> bool {
        (1..=SYMBOLS_MAX).contains(&usize::from(self.symbols))
            && self.stride.is_power_of_two()
            && usize::from(self.stride) <= STRIDE_MAX
            && (1..=ROWS_MAX).contains(&usize::from(self.rows))
            && self.row < self.rows
            && self.last().is_some()
    }
}

/// A parity: its id and the sums.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Parity<'a> {
    /// Parity and group.
    pub id: ParityId,
    /// Sum of the head blocks, at most [`HEAD_BLOCK_MAX`] bytes.
    pub head: &'a [u8],
    /// Sum of the bodies, as long as the longest.
    pub body: Body<'a>,
}

impl<'a> Parity<'a> {
    /// The header, to be followed by `head` and then `body`: base 8 bytes, symbols 1, stride 1,
    /// rows 4 bits, row 4 bits, length of `head` 1; big-endian.
    pub fn header(&self) -> [u8; PARITY_HEADER_LEN] {
        let ParityId { base, symbols, stride, rows, row } = self.id;
        let mut out = [0; PARITY_HEADER_LEN];
        out[..8].copy_from_slice(&base.to_be_bytes());
        out[8..].copy_from_slice(&[symbols, stride, rows << 4 | row, self.head.len() as u8]);
        out
    }

    /// Parses [`header`](Self::header) and the head behind it from `bytes`. Returns also the rest
    /// of `bytes`: the body, or its beginning.
    ///
    /// # Errors
    /// [`Refusal::Malformed`] if it is truncated or has invalid values.
    pub fn parse(bytes: &'a [u8]) -> Result<(ParityId, &'a [u8], &'a [u8]), Refusal> {
        let (header, rest) =
            bytes.split_first_chunk::<PARITY_HEADER_LEN>().ok_or(Refusal::Malformed)?;
        let [b0, b1, b2, b3, b4, b5, b6, b7, symbols, stride, rows_row, head_len] = *header;
        let base = u64::from_be_bytes([b0, b1, b2, b3, b4, b5, b6, b7]);
        let id = ParityId { base, symbols, stride, rows: rows_row >> 4, row: rows_row & 15 };
        let (head, body) =
            rest.split_at_checked(usize::from(head_len)).ok_or(Refusal::Malformed)?;
        let parity = Parity { id, head, body: Body::EMPTY };
        if parity.is_sound() { Ok((id, head, body)) } else { Err(Refusal::Malformed) }
    }

    /// Returns whether all fields are within their bounds.
    pub(crate) fn is_sound(&self) -> bool {
        self.id.is_sound()
            && (symbol::LENGTHS..=HEAD_BLOCK_MAX).contains(&self.head.len())
            && self.body.len() <= BODY_MAX
    }
}
