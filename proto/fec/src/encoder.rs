//! The sender's side.

use crate::field::{Kernel, coefficient};
use crate::symbol::{HeadBlock, Sum};
use crate::{BODY_MAX, Body, HEAD_MAX, Layout, Parity, ParityId};

/// Makes the parities of one path's DATA.
///
/// [`add`](Self::add) each DATA in the order of its number; when that says that parities are due,
/// take them with [`next_parity`](Self::next_parity) and send them in that order, between DATA or
/// at once. When the path falls idle, [`flush`](Self::flush).
///
/// Memory: two sets of `stride × rows` sums, each as long as the longest body it saw; for 16 groups
/// of 2 parities over frames of 4 KiB, 270 KB. Nothing is allocated once bodies have shown their
/// length and layouts do not grow.
pub struct Encoder {
    kernel: Kernel,
    /// What the block under way is laid out by.
    layout: Option<Layout>,
    /// What the next block will be laid out by.
    next_layout: Option<Layout>,
    /// Number of the first DATA of the block under way.
    base: u64,
    /// DATA in the block under way.
    count: usize,
    /// One is being summed up while the other is handed out. Row `j` of group `g` is at
    /// `g · rows + j`.
    sets: [Vec<Sum>; 2],
    filling: usize,
    due: Due,
    overrun: u64,
    scratch: HeadBlock,
}

/// The parities that wait to be taken.
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

    /// Where the next one's sum is in its set.
    fn next(&self) -> usize {
        self.taken % self.groups() * self.rows + self.taken / self.groups()
    }
}

/// A DATA that cannot be coded; it goes unprotected.
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
    /// An encoder that starts with `layout`; `None` codes nothing.
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

    /// Lays out the blocks that follow the one under way by `layout`; `None` codes them no more.
    pub fn set_layout(&mut self, layout: Option<Layout>) {
        self.next_layout = layout;
    }

    /// The layout that the next block will have.
    pub fn next_layout(&self) -> Option<Layout> {
        self.next_layout
    }

    /// Takes DATA `number` into its group's sums and returns how many parities are due.
    ///
    /// Numbers go up by one; where one is left out the block ends as if flushed.
    ///
    /// # Errors
    /// When head or body are too long to be coded. The block then ends before this number.
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

    /// Ends the block under way, so that what was sent last is protected at once, and returns how
    /// many parities are due. Groups that are far from full are joined first: a block of `n` DATA
    /// gets no more than `max(1, 2n / k) · m` parities.
    pub fn flush(&mut self) -> usize {
        if let (true, Some(layout)) = (self.count > 0, self.layout) {
            let stride = self.join_groups(layout);
            self.close(layout, stride);
        }
        self.due.left()
    }

    /// The next parity that is due, in the order of sending: the first of every group, then the
    /// second of every group.
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

    /// Bytes of the next parity's head block and body; `None` when none is due.
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

    /// DATA since the last block ended: those that no parity covers yet.
    pub fn unprotected(&self) -> usize {
        self.count
    }

    /// Parities that were not taken before the next block ended, and are gone.
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

    /// Joins groups pairwise as long as what comes out has at most k members; returns the stride
    /// that is left.
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
