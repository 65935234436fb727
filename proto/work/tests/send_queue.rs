//! The send queue compared with a queue that stores each entry separately.

use longhaul_node::Gather;
use longhaul_units::{LKey, RKey};
use longhaul_wire::Verb;
use longhaul_work::{SendOp, SendQueue, SendRefused, SendWr, Sge};
use proptest::prelude::*;
use std::collections::VecDeque;

/// Memory in which each byte is derived from its address.
struct Ramp;

impl Gather for Ramp {
    fn gather(&self, address: u64, out: &mut [u8]) {
        for (i, byte) in out.iter_mut().enumerate() {
            *byte = ramp(address + i as u64);
        }
    }
}

fn ramp(address: u64) -> u8 {
    (address % 253) as u8
}

#[derive(Clone, Debug)]
enum Step {
    /// Segments, as addresses and lengths.
    Post {
        segments: Vec<(u64, u32)>,
        inline: bool,
        verb: u8,
    },
    Finish {
        entries: u64,
    },
    /// Resets the queue pair: indices restart, the memory stays.
    Restart,
}

fn steps() -> impl Strategy<Value = Step> {
    let segments = prop::collection::vec((0..1000u64, 0..24u32), 0..5);
    prop_oneof![
        12 => (segments, any::<bool>(), 0..4u8)
            .prop_map(|(segments, inline, verb)| Step::Post { segments, inline, verb }),
        4 => (0..12u64).prop_map(|entries| Step::Finish { entries }),
        1 => Just(Step::Restart),
    ]
}

/// Expected contents of an entry.
struct Entry {
    wr_id: u64,
    verb: Verb,
    len: u32,
    inline: bool,
    segments: Vec<Sge>,
    bytes: Vec<u8>,
    first_psn: u64,
}

struct Model {
    queue: SendQueue,
    entries: VecDeque<Entry>,
    done: u64,
    wr_id: u64,
}

impl Model {
    fn post(&mut self, segments: &[(u64, u32)], inline: bool, verb: u8) {
        self.wr_id += 1;
        let segments: Vec<_> =
            segments.iter().map(|&(address, len)| Sge { address, len, lkey: LKey(len) }).collect();
        let (remote_address, rkey) = (self.wr_id, RKey(7));
        let (op, verb) = match verb {
            0 => (SendOp::Send { immediate: None, invalidate: None }, Verb::Send),
            1 => (SendOp::Write { remote_address, rkey, immediate: None }, Verb::Write),
            2 => (SendOp::Read { remote_address, rkey }, Verb::ReadRequest),
            _ => (SendOp::FetchAdd { remote_address, rkey, add: self.wr_id }, Verb::FetchAdd),
        };
        let wr = SendWr {
            wr_id: self.wr_id,
            op,
            segments: &segments,
            inline,
            signaled: true,
            solicited: false,
            fence: false,
        };
        let len: u32 = segments.iter().map(|s| s.len).sum();
        let queued = self.entries.len() as u64;
        let refused = if inline && len > self.queue.inline_max() {
            Some(SendRefused::InlineTooLong { given: len.into(), max: self.queue.inline_max() })
        } else if !inline && segments.len() > self.queue.sge_max() as usize {
            Some(SendRefused::TooManySegments { given: segments.len(), max: self.queue.sge_max() })
        } else if queued == self.queue.depth() {
            Some(SendRefused::Full(self.queue.depth() as u32))
        } else {
            None
        };
        assert_eq!(self.queue.admit(&wr, len.into()).err(), refused);
        if refused.is_some() {
            return;
        }
        let wqe = self.queue.put(&wr, len, true, &Ramp);
        // The owner's fields must move with the entry.
        wqe.first_psn = 1000 + self.wr_id;
        let bytes =
            segments.iter().flat_map(|s| (0..u64::from(s.len)).map(|i| ramp(s.address + i)));
        let bytes = if inline { bytes.collect() } else { Vec::new() };
        let (wr_id, first_psn) = (self.wr_id, 1000 + self.wr_id);
        let segments = if inline { Vec::new() } else { segments };
        self.entries.push_back(Entry { wr_id, verb, len, inline, segments, bytes, first_psn });
    }

    fn finish(&mut self, entries: u64) {
        self.entries.drain(..entries as usize);
        self.done += entries;
        (0..entries).for_each(|_| self.queue.pop());
    }

    fn check(&self) {
        let len = self.entries.len() as u64;
        assert_eq!((self.queue.done(), self.queue.tail()), (self.done, self.done + len));
        assert_eq!((self.queue.len(), self.queue.is_empty()), (len, len == 0));
        for (index, entry) in (self.done..).zip(&self.entries) {
            let wqe = self.queue.get(index);
            assert_eq!(
                (wqe.wr_id, wqe.verb, wqe.len, wqe.inline, wqe.first_psn),
                (entry.wr_id, entry.verb, entry.len, entry.inline, entry.first_psn)
            );
            assert_eq!(self.queue.segments(index), entry.segments);
            if entry.inline {
                assert_eq!(self.queue.inline(index), entry.bytes);
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 400,
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn entries_stay_what_they_were_while_the_ring_grows_and_turns(
        depth in 0..80u32,
        sge_max in 0..5u32,
        inline_max in prop_oneof![Just(0), 1..64u32],
        steps in prop::collection::vec(steps(), 0..300),
    ) {
        let queue = SendQueue::new(depth, sge_max, inline_max);
        prop_assert_eq!(queue.depth(), u64::from(depth.max(1).next_power_of_two()));
        let mut model = Model { queue, entries: VecDeque::new(), done: 0, wr_id: 0 };
        for step in steps {
            match step {
                Step::Post { segments, inline, verb } => model.post(&segments, inline, verb),
                Step::Finish { entries } => {
                    model.finish(entries.min(model.entries.len() as u64));
                }
                Step::Restart => {
                    model.entries.clear();
                    model.done = 0;
                    model.queue.reset();
                }
            }
            model.check();
        }
    }
}

/// Every distance between the oldest entry and its slot, at every growth.
#[test]
fn the_ring_grows_wherever_its_oldest_entry_lies() {
    for turned in 0..40 {
        let queue = SendQueue::new(64, 2, 8);
        let mut model = Model { queue, entries: VecDeque::new(), done: 0, wr_id: 0 };
        for _ in 0..turned {
            model.post(&[(1, 1)], false, 0);
            model.finish(1);
        }
        for i in 0..64u64 {
            model.post(&[(i, 3), (2 * i, 4)], i % 3 == 0, (i % 4) as u8);
            model.check();
        }
        assert_eq!(model.entries.len(), 64);
        model.post(&[], false, 0);
        assert_eq!(model.entries.len(), 64);
    }
}
