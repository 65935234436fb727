//! The encoder at the sender.

use crate::field::{Kernel, coefficient};
use crate::symbol::{HeadBlock, Sum};
use crate::{BODY_MAX, Body, HEAD_MAX, Layout, Parity, ParityId};

/// Computes the parities of one path's DATA.
///
/// Call [`add`](Self::add) for each DATA in the order of numbers. When it reports due parities,
/// take them with [`next_parity`](Self::next_parity) and send them in that order, between DATA or
/// at once. Call [`flush`](Self::flush) when the path becomes idle.
///
/// Memory: two sets of `stride × rows` sums, each as long as its longest body; 270 KB for 16 groups
/// of 2 parities over frames of 4 KiB. It allocates nothing once bodies and layouts have reached
/// their maximum.
pub struct Encoder {
    kernel: Kernel,
    /// Layout of the current block.
    layout: Option<Layout>,
    /// Layout of the next block.
    next_layout: Option<Layout>,
    /// Number of the first DATA of the current block.
    base: u64,
    /// DATA in the current block.
    count: usize,
    /// One set accumulates while the other is sent. Row `j` of group `g` is at `g · rows + j`.
    sets: [Vec<Sum>; 2],
    filling: usize,
    due: Due,
    overrun: u64,
    scratch: HeadBlock,
}

/// Parities that are due.
#[derive(Clone, Copy, Default)]
struct Due {
    base: u64,
    /// DATA in the block.
    count: usize,
    stride: usize,
    rows: usize,
    taken: usize,
}

impl Due {
    fn groups(&self) -> usize {
        self.stride.min(self.count)
    }

    fn left(&self) -> usize {
        self.groups() * self.rows - self.taken
    }

    /// Index of the next parity's sum in its set.
    fn next(&self) -> usize {
        self.taken % self.groups() * self.rows + self.taken / self.groups()
    }
}

/// A DATA that cannot be coded and is sent unprotected.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum AddError {
    /// The head is longer than [`HEAD_MAX`].
    #[error("head of {0} bytes: at most {HEAD_MAX} can be protected")]
    Head(usize),
    /// The body is longer than [`BODY_MAX`].
    #[error("body of {0} bytes: at most {BODY_MAX} can be protected")]
    Body(usize),
}

impl Encoder {
    /// Creates an encoder with `layout`; `None` disables coding.
    pub fn new(layout: Option<Layout>) -> Self {
        Encoder {
            kernel: Kernel::detect(),
            layout: None,
            next_layout: layout,
            base: 0,
            count: 0,
            sets: [Vec::new(), Vec::new()],
            filling: 0,
            due: Due::default(),
            overrun: 0,
            scratch: HeadBlock::new(),
        }
    }

    /// Sets the layout from the next block on; `None` disables coding.
    pub fn set_layout(&mut self, layout: Option<Layout>) {
        self.next_layout = layout;
    }

    /// The layout of the next block.
    pub fn next_layout(&self) -> Option<Layout> {
        self.next_layout
    }

    /// Adds DATA `number` to its group's sums and returns the number of due parities.
    ///
    /// Numbers increase by one; a gap ends the block like a flush.
    ///
    /// # Errors
    /// Head or body are too long. The block then ends before this number.
    pub fn add(&mut self, number: u64, head: &[u8], body: &Body<'_>) -> Result<usize, AddError> {
        if self.count > 0 && self.base.checked_add(self.count as u64) != Some(number) {
            self.flush();
        }
        if self.count == 0 {
            self.layout = self.next_layout;
            self.base = number;
        }
        let Some(layout) = self.layout else { return Ok(self.due.left()) };
        if head.len() > HEAD_MAX || body.len() > BODY_MAX {
            self.flush();
            return Err(match head.len() > HEAD_MAX {
                true => AddError::Head(head.len()),
                false => AddError::Body(body.len()),
            });
        }
        if self.count == 0 {
            self.start_block(layout);
        }
        self.scratch.room()[..head.len()].copy_from_slice(head);
        self.scratch.fill(head.len(), body);
        let (group, _) = layout.place(self.count);
        let rows = layout.rows();
        let sums = &mut self.sets[self.filling][group * rows..][..rows];
        for (row, sum) in (0..).zip(sums) {
            sum.add(self.kernel, coefficient(row, number), self.scratch.as_bytes(), body);
        }
        self.count += 1;
        if self.count == layout.block() {
            self.close(layout, layout.stride());
        }
        Ok(self.due.left())
    }

    /// Ends the current block, so that its DATA are protected at once, and returns the number of
    /// due parities. Sparse groups are joined first: a block of `n` DATA gets at most
    /// `max(1, 2n / k) · m` parities.
    pub fn flush(&mut self) -> usize {
        if let (true, Some(layout)) = (self.count > 0, self.layout) {
            let stride = self.join_groups(layout);
            self.close(layout, stride);
        }
        self.due.left()
    }

    /// Returns the next due parity in sending order: the first of every group, then the second of
    /// every group.
    pub fn next_parity(&mut self) -> Option<Parity<'_>> {
        let due = &mut self.due;
        if due.left() == 0 {
            return None;
        }
        let (row, group) = (due.taken / due.groups(), due.taken % due.groups());
        let sum = &self.sets[self.filling ^ 1][due.next()];
        due.taken += 1;
        let id = ParityId {
            base: due.base + group as u64,
            symbols: (due.count - group).div_ceil(due.stride) as u8,
            stride: due.stride as u8,
            rows: due.rows as u8,
            row: row as u8,
        };
        Some(Parity { id, head: sum.head(), body: sum.body() })
    }

    /// Length of the next parity's head block and body in bytes; `None` if none is due.
    pub fn next_len(&self) -> Option<usize> {
        let sum = self.next_sum()?;
        Some(sum.head().len() + sum.body().len())
    }

    fn next_sum(&self) -> Option<&Sum> {
        let due = &self.due;
        let index = (due.left() > 0).then(|| due.next())?;
        self.sets[self.filling ^ 1].get(index)
    }

    /// Parities that are due.
    pub fn due(&self) -> usize {
        self.due.left()
    }

    /// DATA since the end of the last block, which no parity covers yet.
    pub fn unprotected(&self) -> usize {
        self.count
    }

    /// Parities discarded because they were not taken before the next block ended.
    pub fn overrun(&self) -> u64 {
        self.overrun
    }

    fn start_block(&mut self, layout: Layout) {
        let (set, sums) = (&mut self.sets[self.filling], layout.stride() * layout.rows());
        if set.len() < sums {
            set.resize_with(sums, Sum::new);
        }
        set[..sums].iter_mut().for_each(Sum::clear);
    }

    /// Joins groups pairwise while the result has at most k members; returns the remaining stride.
    fn join_groups(&mut self, layout: Layout) -> usize {
        let rows = layout.rows();
        let mut stride = layout.stride();
        while stride > 1 && self.count.div_ceil(stride / 2) <= layout.symbols() {
            stride /= 2;
            let (kept, joined) = self.sets[self.filling].split_at_mut(stride * rows);
            let groups = self.count.saturating_sub(stride).min(stride);
            for (kept, joined) in kept.iter_mut().zip(&joined[..groups * rows]) {
                kept.add_sum(self.kernel, 1, joined);
            }
        }
        stride
    }

    fn close(&mut self, layout: Layout, stride: usize) {
        self.overrun += self.due.left() as u64;
        self.due =
            Due { base: self.base, count: self.count, stride, rows: layout.rows(), taken: 0 };
        self.filling ^= 1;
        self.count = 0;
    }
}
