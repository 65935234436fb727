//! Registered memory without bytes: it knows what should come next, and notices anything else.

use longhaul_node::{Gather, Payload};
use longhaul_rnic::Memory;

/// Where the first span begins.
const BASE: u64 = 1 << 40;
/// Room for a span: the longest message has 2 GiB.
const SPAN: u64 = 1 << 32;

/// A span of memory for each QP. Messages are written to it from its beginning, one after the
/// other.
#[derive(Default)]
pub(crate) struct Spans(Vec<Span>);

#[derive(Clone, Copy, Default)]
struct Span {
    /// Of each message, in bytes.
    size: u64,
    /// Where the next byte belongs.
    next: u64,
    messages: u64,
    /// Bytes that came where others belonged.
    misplaced: u64,
    word: u64,
}

impl Spans {
    /// The first byte of a span.
    pub fn address(span: usize) -> u64 {
        BASE + span as u64 * SPAN
    }

    /// All of it together: first byte and length.
    pub fn extent(spans: usize) -> (u64, u64) {
        (BASE, spans as u64 * SPAN)
    }

    /// One more, for messages of `size` bytes.
    pub fn add(&mut self, size: u64) {
        self.0.push(Span { size, ..Span::default() });
    }

    /// Messages of which all bytes have come, each once and in order.
    pub fn messages(&self, span: usize) -> u64 {
        self.0[span].messages
    }

    /// Writes that were not in their place.
    pub fn misplaced(&self, span: usize) -> u64 {
        self.0[span].misplaced
    }

    #[inline]
    fn span(&mut self, address: u64) -> &mut Span {
        &mut self.0[((address - BASE) / SPAN) as usize]
    }
}

impl Gather for Spans {
    fn gather(&self, _address: u64, out: &mut [u8]) {
        out.fill(0);
    }
}

impl Memory for Spans {
    #[inline]
    fn scatter(&mut self, address: u64, payload: &Payload<'_>) {
        let span = self.span(address);
        span.misplaced += u64::from((address - BASE) % SPAN != span.next);
        span.next += payload.len() as u64;
        if span.next >= span.size {
            span.next = 0;
            span.messages += 1;
        }
    }

    fn fetch_add(&mut self, address: u64, add: u64) -> u64 {
        let span = self.span(address);
        let found = span.word;
        span.word = found.wrapping_add(add);
        found
    }

    fn compare_swap(&mut self, address: u64, compare: u64, swap: u64) -> u64 {
        let span = self.span(address);
        let found = span.word;
        if found == compare {
            span.word = swap;
        }
        found
    }
}
