//! Queues for UC and UD frames, whose senders are not paced. Frames beyond the paths' capacity must
//! be dropped before they take a position in a stream, and must not take other sources' capacity:
//! each source address has a queue and a share of the memory.

use crate::key::{Map, map};
use slab::Slab;
use std::collections::VecDeque;

struct Source {
    address: u128,
    streams: u32,
    /// Unsent records.
    queue: VecDeque<u32>,
    queued_bytes: u64,
    /// Memory of unacknowledged records, queued or in flight.
    bytes: u64,
}

pub(crate) struct Unpaced {
    sources: Slab<Source>,
    by_address: Map<u128, u32>,
    /// Sources with queued records; the front is next.
    turns: VecDeque<u32>,
    /// Sources with unacknowledged records.
    active: u64,
    queued_max: u64,
    bytes_max: u64,
}

impl Unpaced {
    /// All sources together queue at most `queued_max` bytes and keep at most `bytes_max`, except
    /// that each source may have one frame.
    pub(crate) fn new(queued_max: u64, bytes_max: u64, seed: u64) -> Self {
        Unpaced {
            sources: Slab::new(),
            by_address: map(seed),
            turns: VecDeque::new(),
            active: 0,
            queued_max,
            bytes_max,
        }
    }

    /// Adds a stream of this source.
    pub(crate) fn join(&mut self, address: u128) -> u32 {
        let sources = &mut self.sources;
        let make =
            || Source { address, streams: 0, queue: VecDeque::new(), queued_bytes: 0, bytes: 0 };
        let id = *self.by_address.entry(address).or_insert_with(|| sources.insert(make()) as u32);
        sources[id as usize].streams += 1;
        id
    }

    /// Removes a stream of this source; all of it is acknowledged.
    pub(crate) fn leave(&mut self, id: u32) {
        let Some(source) = self.sources.get_mut(id as usize) else { return };
        source.streams -= 1;
        if source.streams == 0 {
            self.by_address.remove(&source.address);
            self.sources.remove(id as usize);
        }
    }

    /// Queues `record` of this source. Returns `false` if that exceeds its share.
    pub(crate) fn push(&mut self, id: u32, record: u32, cost: u32) -> bool {
        let Some(source) = self.sources.get_mut(id as usize) else { return false };
        let cost = u64::from(cost);
        let (is_first, is_active) = (source.queue.is_empty(), source.bytes > 0);
        let queues = self.turns.len() as u64 + u64::from(is_first);
        let sources = self.active + u64::from(!is_active);
        let fits = (is_first || source.queued_bytes + cost <= self.queued_max / queues)
            && (!is_active || source.bytes + cost <= self.bytes_max / sources);
        if fits {
            source.queue.push_back(record);
            source.queued_bytes += cost;
            source.bytes += cost;
            self.active = sources;
            if is_first {
                self.turns.push_back(id);
            }
        }
        fits
    }

    /// The next record to send.
    #[inline]
    pub(crate) fn front(&self) -> Option<u32> {
        let id = *self.turns.front()?;
        self.front_of(id)
    }

    fn front_of(&self, id: u32) -> Option<u32> {
        self.sources.get(id as usize)?.queue.front().copied()
    }

    /// Removes the front record, of `cost` bytes; the next source has its turn.
    pub(crate) fn pop(&mut self, cost: u64) {
        let Some(id) = self.turns.pop_front() else { return };
        let Some(source) = self.sources.get_mut(id as usize) else { return };
        source.queue.pop_front();
        source.queued_bytes -= cost;
        if !source.queue.is_empty() {
            self.turns.push_back(id);
        }
    }

    /// Releases `cost` bytes that were acknowledged of this source.
    pub(crate) fn acknowledge(&mut self, id: u32, cost: u32) {
        let Some(source) = self.sources.get_mut(id as usize) else { return };
        source.bytes -= u64::from(cost);
        self.active -= u64::from(source.bytes == 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const COST: u32 = 100;

    /// Pushes until the source's share is exhausted. Returns the number of frames.
    fn fill(unpaced: &mut Unpaced, id: u32) -> u64 {
        (0..).take_while(|n| unpaced.push(id, id * 1000 + n, COST)).count() as u64
    }

    #[test]
    fn a_source_has_all_of_the_queue_alone_and_its_share_beside_others() {
        let mut unpaced = Unpaced::new(10_000, 100_000, 1);
        let (one, two) = (unpaced.join(1), unpaced.join(2));
        assert_eq!(fill(&mut unpaced, one), 100);
        assert_eq!(fill(&mut unpaced, two), 50, "half, although the other one has it all");
        assert!(!unpaced.push(one, 0, COST), "more than its half");
    }

    #[test]
    fn sources_take_turns() {
        let mut unpaced = Unpaced::new(10_000, 100_000, 1);
        let (one, two) = (unpaced.join(1), unpaced.join(2));
        fill(&mut unpaced, one);
        unpaced.push(two, 7, COST);
        unpaced.pop(u64::from(COST));
        assert_eq!(unpaced.front(), Some(7), "it does not wait for the other one's queue");
    }

    #[test]
    fn what_is_not_acknowledged_is_bounded() {
        let mut unpaced = Unpaced::new(10_000, 20_000, 1);
        let one = unpaced.join(1);
        let mut sent = 0;
        while unpaced.push(one, sent, COST) {
            unpaced.pop(u64::from(COST));
            sent += 1;
        }
        assert_eq!(sent, 200);
        unpaced.acknowledge(one, COST);
        assert!(unpaced.push(one, sent, COST));
    }

    #[test]
    fn a_source_without_streams_is_forgotten() {
        let mut unpaced = Unpaced::new(10_000, 20_000, 1);
        for _ in 0..2 {
            let one = unpaced.join(1);
            assert_eq!(one, unpaced.join(1));
            unpaced.push(one, 0, COST);
            unpaced.pop(u64::from(COST));
            unpaced.acknowledge(one, COST);
            unpaced.leave(one);
            unpaced.leave(one);
            assert_eq!(
                (unpaced.sources.len(), unpaced.by_address.len(), unpaced.active),
                (0, 0, 0)
            );
        }
    }
}
