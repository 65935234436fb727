//! Receive queues, of one queue pair or shared by many.

use crate::context::total_len;
use crate::send_queue::NO_SGE;
use crate::{RecvWr, SGE_MAX, Sge};
use std::collections::VecDeque;

/// Posted receive work requests, first in, first out.
///
/// A message takes the oldest entry when it begins and returns it when it ends, so that several
/// queue pairs can fill receives of one queue at once. A taken entry counts against the depth. The
/// queue allocates as it fills, so that an idle queue pair costs little.
#[derive(Debug)]
pub struct RecvQueue {
    wqes: Vec<RecvWqe>,
    segments: Vec<Sge>,
    /// Unused entries; the most recently used, which is in the cache, is reused first.
    free: Vec<u32>,
    ready: VecDeque<u32>,
    depth: u32,
    sge_max: usize,
}

#[derive(Clone, Copy, Debug, Default)]
struct RecvWqe {
    wr_id: u64,
    segments: u8,
}

/// A receive work request that a message has taken. [`RecvQueue::release`] returns it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Receive {
    /// Length of its memory in bytes.
    pub capacity: u64,
    slot: u32,
}

/// Reason to refuse a receive work request.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum RecvRefused {
    /// All entries are in use.
    #[error("receive queue of {0} is full")]
    Full(u32),
    /// More segments than the queue supports.
    #[error("{given} segments, at most {max}")]
    TooManySegments {
        /// Segments posted.
        given: usize,
        /// Maximum of the queue.
        max: u32,
    },
}

impl RecvQueue {
    /// An empty queue; `depth` is rounded up to a power of two, 0 takes nothing.
    pub fn new(depth: u32, sge_max: u32) -> Self {
        RecvQueue {
            wqes: Vec::new(),
            segments: Vec::new(),
            free: Vec::new(),
            ready: VecDeque::new(),
            depth: if depth == 0 { 0 } else { depth.next_power_of_two() },
            sge_max: (sge_max as usize).clamp(1, SGE_MAX),
        }
    }

    /// Capacity in entries.
    pub fn depth(&self) -> u32 {
        self.depth
    }

    /// Maximum segments of an entry.
    pub fn sge_max(&self) -> u32 {
        self.sge_max as u32
    }

    /// Entries that no message has taken.
    #[inline]
    pub fn len(&self) -> u32 {
        self.ready.len() as u32
    }

    /// True if no entry waits for a message.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.ready.is_empty()
    }

    /// Entries in use, waiting or taken.
    pub fn in_use(&self) -> u32 {
        (self.wqes.len() - self.free.len()) as u32
    }

    /// Changes the depth, rounded up to a power of two. Returns `false`, and changes nothing, if
    /// more entries are in use.
    #[must_use]
    pub fn resize(&mut self, depth: u32) -> bool {
        let depth = depth.max(1).next_power_of_two();
        // Slots beyond the new depth stay usable; the depth bounds only how many are in use.
        let fits = self.in_use() <= depth;
        if fits {
            self.depth = depth;
        }
        fits
    }

    /// Queues a receive work request.
    ///
    /// # Errors
    /// [`RecvRefused`], and nothing is queued.
    #[inline]
    pub fn post(&mut self, wr: &RecvWr<'_>) -> Result<(), RecvRefused> {
        if wr.segments.len() > self.sge_max {
            return Err(RecvRefused::TooManySegments {
                given: wr.segments.len(),
                max: self.sge_max as u32,
            });
        }
        if self.in_use() >= self.depth {
            return Err(RecvRefused::Full(self.depth));
        }
        let slot = self.free.pop().unwrap_or_else(|| {
            self.wqes.push(RecvWqe::default());
            self.segments.resize(self.segments.len() + self.sge_max, NO_SGE);
            self.wqes.len() as u32 - 1
        });
        let start = slot as usize * self.sge_max;
        self.segments[start..start + wr.segments.len()].copy_from_slice(wr.segments);
        self.wqes[slot as usize] = RecvWqe { wr_id: wr.wr_id, segments: wr.segments.len() as u8 };
        self.ready.push_back(slot);
        Ok(())
    }

    /// Takes the oldest entry for a message that begins; `None` if none waits.
    #[inline]
    pub fn take(&mut self) -> Option<Receive> {
        let slot = self.ready.pop_front()?;
        let mut receive = Receive { capacity: 0, slot };
        receive.capacity = total_len(self.segments(&receive));
        Some(receive)
    }

    /// The segments of a taken entry.
    #[inline]
    pub fn segments(&self, receive: &Receive) -> &[Sge] {
        let start = receive.slot as usize * self.sge_max;
        &self.segments[start..start + usize::from(self.wqes[receive.slot as usize].segments)]
    }

    /// Puts a taken entry back; returns its `wr_id`.
    #[inline]
    pub fn release(&mut self, receive: Receive) -> u64 {
        self.free.push(receive.slot);
        self.wqes[receive.slot as usize].wr_id
    }

    /// Removes the oldest entry; returns its `wr_id`.
    #[inline]
    pub fn pop(&mut self) -> Option<u64> {
        let slot = self.ready.pop_front()?;
        self.free.push(slot);
        Some(self.wqes[slot as usize].wr_id)
    }

    /// Drops all waiting entries without completions. Taken entries stay taken.
    pub fn clear(&mut self) {
        self.free.extend(self.ready.drain(..));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use longhaul_units::LKey;

    fn post(queue: &mut RecvQueue, wr_id: u64, len: u32) -> Result<(), RecvRefused> {
        queue.post(&RecvWr { wr_id, segments: &[Sge { address: wr_id, len, lkey: LKey(1) }] })
    }

    #[test]
    fn taken_entries_end_in_any_order_and_count_until_then() {
        let mut queue = RecvQueue::new(2, 1);
        post(&mut queue, 1, 10).unwrap();
        post(&mut queue, 2, 20).unwrap();
        let (first, second) = (queue.take().unwrap(), queue.take().unwrap());
        assert_eq!((first.capacity, second.capacity, queue.len()), (10, 20, 0));
        assert_eq!(post(&mut queue, 3, 30), Err(RecvRefused::Full(2)));
        assert_eq!(queue.release(second), 2);
        post(&mut queue, 3, 30).unwrap();
        assert_eq!(queue.segments(&first)[0].address, 1);
        assert_eq!(queue.release(first), 1);
        assert_eq!(queue.pop(), Some(3));
        assert!(queue.take().is_none());
    }

    #[test]
    fn a_queue_shrinks_to_no_less_than_what_is_in_use() {
        let mut queue = RecvQueue::new(8, 1);
        for wr_id in 0..5 {
            post(&mut queue, wr_id, 1).unwrap();
        }
        assert!(!queue.resize(4));
        let taken = queue.take().unwrap();
        assert!(!queue.resize(4));
        queue.release(taken);
        assert!(queue.resize(4));
        assert_eq!(post(&mut queue, 9, 1), Err(RecvRefused::Full(4)));
        assert!((1..5).all(|wr_id| queue.pop() == Some(wr_id)));
    }

    #[test]
    fn an_empty_queue_holds_no_memory() {
        let queue = RecvQueue::new(1 << 16, 16);
        assert_eq!(queue.segments.capacity() + queue.wqes.capacity() + queue.ready.capacity(), 0);
    }
}
