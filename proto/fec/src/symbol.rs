//! Symbols, the coded form of datagrams, and their sums.

use crate::field::Kernel;
use crate::{BODY_MAX, HEAD_BLOCK_MAX, HEAD_MAX};

/// Bytes before the head in a head block: length of the head, then that of the body in 3 bytes,
/// whose highest bit marks a virtual body.
pub(crate) const LENGTHS: usize = 4;

const VIRTUAL: u32 = 1 << 23;

/// The body of a symbol or of a parity.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Body<'a> {
    /// Bytes, in up to three consecutive pieces.
    Bytes([&'a [u8]; 3]),
    /// A length without bytes, in a simulation.
    Virtual(usize),
}

impl<'a> Body<'a> {
    /// No body.
    pub const EMPTY: Body<'static> = Body::Bytes([&[]; 3]);

    /// Bytes in one piece.
    pub fn bytes(bytes: &'a [u8]) -> Self {
        Body::Bytes([bytes, &[], &[]])
    }

    /// Length in bytes.
    pub fn len(&self) -> usize {
        match self {
            Body::Bytes(pieces) => pieces.iter().map(|piece| piece.len()).sum(),
            Body::Virtual(len) => *len,
        }
    }

    /// Returns whether the body is empty.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    fn is_virtual(&self) -> bool {
        matches!(self, Body::Virtual(_))
    }
}

/// A head, preceded by the lengths.
pub(crate) struct HeadBlock {
    bytes: [u8; HEAD_BLOCK_MAX],
    len: usize,
}

impl HeadBlock {
    pub(crate) const fn new() -> Self {
        HeadBlock { bytes: [0; HEAD_BLOCK_MAX], len: LENGTHS }
    }

    /// Returns the space for a head, to be completed by [`fill`](Self::fill).
    pub(crate) fn room(&mut self) -> &mut [u8; HEAD_MAX] {
        self.bytes.last_chunk_mut().expect("a head block is longer than a head")
    }

    /// Completes a head of `head_len` bytes in [`room`](Self::room). Returns `false`, with
    /// undefined contents, if a length is out of bounds.
    pub(crate) fn fill(&mut self, head_len: usize, body: &Body<'_>) -> bool {
        let body_len = body.len();
        if head_len > HEAD_MAX || body_len > BODY_MAX {
            return false;
        }
        let word =
            (head_len as u32) << 24 | if body.is_virtual() { VIRTUAL } else { 0 } | body_len as u32;
        self.bytes[..LENGTHS].copy_from_slice(&word.to_be_bytes());
        self.len = LENGTHS + head_len;
        true
    }

    pub(crate) fn as_bytes(&self) -> &[u8] {
        &self.bytes[..self.len]
    }
}

/// A weighted sum of symbols: a running parity, or one being reduced to a symbol. Shorter symbols
/// are padded with zeros.
pub(crate) struct Sum {
    head: [u8; HEAD_BLOCK_MAX],
    head_len: usize,
    /// Grows to its longest body and never shrinks.
    body: Vec<u8>,
    body_len: usize,
    is_virtual: bool,
}

impl Sum {
    pub(crate) const fn new() -> Self {
        Sum {
            head: [0; HEAD_BLOCK_MAX],
            head_len: 0,
            body: Vec::new(),
            body_len: 0,
            is_virtual: false,
        }
    }

    pub(crate) fn clear(&mut self) {
        self.head_len = 0;
        self.body_len = 0;
        self.is_virtual = false;
    }

    /// Adds `factor` times a symbol or parity. The head block is at most [`HEAD_BLOCK_MAX`] long.
    pub(crate) fn add(&mut self, kernel: Kernel, factor: u8, head_block: &[u8], body: &Body<'_>) {
        accumulate(kernel, &mut self.head, &mut self.head_len, 0, head_block, factor);
        match body {
            Body::Virtual(len) => {
                self.is_virtual = true;
                self.body_len = self.body_len.max(*len);
            }
            Body::Bytes(_) if self.is_virtual => self.body_len = self.body_len.max(body.len()),
            Body::Bytes(pieces) => {
                if body.len() > self.body.len() {
                    self.body.resize(body.len(), 0);
                }
                let mut offset = 0;
                for piece in pieces {
                    accumulate(kernel, &mut self.body, &mut self.body_len, offset, piece, factor);
                    offset += piece.len();
                }
            }
        }
    }

    /// Adds `factor` times another sum.
    pub(crate) fn add_sum(&mut self, kernel: Kernel, factor: u8, other: &Sum) {
        self.add(kernel, factor, other.head(), &other.body());
    }

    pub(crate) fn head(&self) -> &[u8] {
        &self.head[..self.head_len]
    }

    pub(crate) fn body(&self) -> Body<'_> {
        if self.is_virtual {
            Body::Virtual(self.body_len)
        } else {
            Body::bytes(&self.body[..self.body_len])
        }
    }

    /// Returns whether the lengths equal those of the parity's head block and body.
    pub(crate) fn is_shaped_like(&self, head_block: &[u8], body: &Body<'_>) -> bool {
        self.head_len == head_block.len()
            && self.body_len == body.len()
            && self.is_virtual == body.is_virtual()
    }

    /// Returns whether this equals the parity's head block and body.
    pub(crate) fn is_equal(&self, head_block: &[u8], body: &Body<'_>) -> bool {
        let mut bytes = self.body[..if self.is_virtual { 0 } else { self.body_len }].iter();
        let same_bytes = match body {
            Body::Bytes(pieces) => {
                pieces.iter().all(|piece| bytes.by_ref().take(piece.len()).eq(*piece))
            }
            Body::Virtual(_) => true,
        };
        self.is_shaped_like(head_block, body) && self.head() == head_block && same_bytes
    }

    /// Returns whether a symbol of these lengths can be part of this sum.
    pub(crate) fn can_contain(&self, head_block: &[u8], body: &Body<'_>) -> bool {
        head_block.len() <= self.head_len
            && body.len() <= self.body_len
            && (self.is_virtual || !body.is_virtual())
    }

    /// Returns head and body if the sum is a single symbol: valid lengths, and zeros behind them.
    pub(crate) fn as_symbol(&self) -> Option<(&[u8], Body<'_>)> {
        let (lengths, head) = self.head().split_first_chunk::<LENGTHS>()?;
        let word = u32::from_be_bytes(*lengths);
        let (head_len, body_len) = ((word >> 24) as usize, (word & (VIRTUAL - 1)) as usize);
        let (head, head_rest) = head.split_at_checked(head_len)?;
        if body_len > self.body_len || head_rest.iter().any(|&byte| byte != 0) {
            return None;
        }
        let says_virtual = word & VIRTUAL != 0;
        let body = match self.body() {
            _ if says_virtual && self.is_virtual => Body::Virtual(body_len),
            _ if says_virtual => return None,
            Body::Virtual(_) if body_len > 0 => return None,
            Body::Virtual(_) => Body::EMPTY,
            Body::Bytes([bytes, ..]) => {
                let (body, rest) = bytes.split_at(body_len);
                if rest.iter().any(|&byte| byte != 0) {
                    return None;
                }
                Body::bytes(body)
            }
        };
        Some((head, body))
    }
}

/// Adds `factor · input` to `sum[offset..]`, of which the first `len` bytes are valid.
fn accumulate(
    kernel: Kernel,
    sum: &mut [u8],
    len: &mut usize,
    offset: usize,
    input: &[u8],
    factor: u8,
) {
    let end = offset + input.len();
    let both = (*len).clamp(offset, end);
    let (added, set) = input.split_at(both - offset);
    kernel.add_product(&mut sum[offset..both], added, factor);
    kernel.set_product(&mut sum[both..end], set, factor);
    *len = end.max(*len);
}
