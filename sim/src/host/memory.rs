//! Registered memory without bytes: it knows the next expected byte, and counts all other writes.

use longhaul_node::{Gather, Payload};
use longhaul_rnic::Memory;

/// Address of the first span.
const BASE: u64 = 1 << 40;
/// Address space of a span: the longest message has 2 GiB.
const SPAN: u64 = 1 << 32;
/// Offset of a span's second half, where capsules may overlap.
const CAPSULES: u64 = SPAN / 2;

/// Bytes of a capsule in memory; a shorter one is padded with zeros.
pub(crate) type Capsule = [u8; 64];

/// A span of memory for each QP. Every message begins at the start of its span.
#[derive(Default)]
pub(crate) struct Spans {
    spans: Vec<Span>,
    /// The capsule to be posted, which the NIC copies into its work request.
    capsule: Option<Capsule>,
}

#[derive(Clone, Copy, Default)]
struct Span {
    /// Message size in bytes.
    size: u64,
    /// Offset of the next byte.
    next: u64,
    messages: u64,
    /// Out-of-place writes.
    misplaced: u64,
    /// The QP's transport does not retransmit: a message may end before it is complete.
    is_unreliable: bool,
    /// Messages that ended before they were complete.
    incomplete: u64,
    word: u64,
}

impl Spans {
    /// The first byte of a span.
    pub fn address(span: usize) -> u64 {
        BASE + span as u64 * SPAN
    }

    /// The first byte of a span's memory for capsules, which are not checked.
    pub fn capsules(span: usize) -> u64 {
        Self::address(span) + CAPSULES
    }

    /// Extent of all spans: first byte and length.
    pub fn extent(spans: usize) -> (u64, u64) {
        (BASE, spans as u64 * SPAN)
    }

    /// Bytes of a span in front of its memory for capsules.
    pub const DATA_MAX: u64 = CAPSULES;

    /// Writes the capsule to be posted. Returns its address.
    pub fn load(&mut self, span: usize, capsule: &Capsule) -> u64 {
        self.capsule = Some(*capsule);
        Self::capsules(span)
    }

    /// Adds a span for messages of `size` bytes.
    pub fn add(&mut self, size: u64, is_unreliable: bool) {
        self.spans.push(Span { size, is_unreliable, ..Span::default() });
    }

    /// Messages that another followed before they were complete.
    pub fn incomplete(&self, span: usize) -> u64 {
        self.spans[span].incomplete
    }

    /// Messages received completely, each byte once and in order.
    pub fn messages(&self, span: usize) -> u64 {
        self.spans[span].messages
    }

    /// Out-of-place writes.
    pub fn misplaced(&self, span: usize) -> u64 {
        self.spans[span].misplaced
    }

    #[inline]
    fn span(&mut self, address: u64) -> &mut Span {
        &mut self.spans[((address - BASE) / SPAN) as usize]
    }
}

impl Gather for Spans {
    fn gather(&self, address: u64, out: &mut [u8]) {
        out.fill(0);
        if let Some(capsule) = self.capsule.filter(|_| (address - BASE) % SPAN >= CAPSULES) {
            out.iter_mut().zip(capsule).for_each(|(to, byte)| *to = byte);
        }
    }
}

impl Memory for Spans {
    #[inline]
    fn scatter(&mut self, address: u64, payload: &Payload<'_>) {
        let span = self.span(address);
        let offset = (address - BASE) % SPAN;
        if offset >= CAPSULES {
            return;
        }
        if offset == 0 && span.next > 0 && span.is_unreliable {
            span.incomplete += 1;
            span.next = 0;
        }
        span.misplaced += u64::from(offset != span.next);
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
