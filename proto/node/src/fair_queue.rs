//! A queue that is fair to its flows and bounds the time that frames wait in it.

use crate::{FrameBuf, Side, Transmit, transmit_marked};
use longhaul_cc::{Codel, CodelConfig, Signal};
use longhaul_units::Instant;
use longhaul_wire::{Ecn, flow_hash};
use std::collections::VecDeque;

/// Queues; flows share one if their hashes collide.
const FLOWS: usize = 256;
/// Bytes of a flow's turn: a frame of full length.
const QUANTUM: i64 = 1514;
/// Most frames dropped at once from the longest queue.
const DROPPED_AT_ONCE: usize = 64;

/// Frames of many flows that wait for room on one side: flow-queue CoDel.
///
/// Each flow has a queue of its own, and flows take turns by bytes; one that was idle comes first.
/// Each queue drops frames by [`Codel`], or marks those whose sender reacts to marks, so that a
/// flow that fills its queue keeps it short and delays no other. Memory is bounded too: beyond the
/// bound, frames of the longest queue are dropped from its front.
///
/// Source: RFC 8290.
#[derive(Debug)]
pub struct FairQueue {
    config: CodelConfig,
    /// Empty until the first frame.
    flows: Vec<Flow>,
    /// Flows that were idle when their first frame arrived, and the other ones with frames.
    fresh: VecDeque<u16>,
    backlogged: VecDeque<u16>,
    frames: usize,
    /// Memory of the frames, in bytes ([`FrameBuf::footprint`]).
    bytes: u64,
    bytes_max: u64,
    frame_len_max: u64,
    late: Late,
}

/// Frames that waited too long.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Late {
    /// Dropped.
    pub dropped: u64,
    /// Marked and sent.
    pub marked: u64,
}

/// A frame that leaves a queue.
#[derive(Debug)]
pub struct Leaving {
    frame: FrameBuf,
    is_marked: bool,
}

#[derive(Debug, Default)]
struct Flow {
    frames: VecDeque<(Instant, FrameBuf)>,
    /// Lengths of the frames, in bytes.
    backlog: u64,
    deficit: i64,
    is_listed: bool,
    codel: Codel,
}

impl Leaving {
    /// A frame that is sent as it is.
    #[inline]
    pub(crate) fn unmarked(frame: FrameBuf) -> Self {
        Leaving { frame, is_marked: false }
    }

    /// Length of the frame in bytes.
    #[inline]
    pub fn frame_len(&self) -> usize {
        self.frame.len()
    }

    /// The frame, before it is marked.
    #[inline]
    pub fn frame(&self) -> &FrameBuf {
        &self.frame
    }

    /// Transmits the frame, marked if it waited too long.
    #[inline]
    pub fn transmit(&self, side: Side, out: &mut dyn Transmit) {
        if self.is_marked {
            transmit_marked(&self.frame.as_frame(), side, out);
        } else {
            out.transmit_held(side, &self.frame);
        }
    }
}

impl FairQueue {
    /// An empty queue for at most `bytes_max` bytes ([`FrameBuf::footprint`]).
    pub fn new(config: CodelConfig, bytes_max: u64) -> Self {
        FairQueue {
            config,
            flows: Vec::new(),
            fresh: VecDeque::new(),
            backlogged: VecDeque::new(),
            frames: 0,
            bytes: 0,
            bytes_max,
            frame_len_max: 0,
            late: Late::default(),
        }
    }

    /// Applies `config` to frames that leave from here on.
    pub fn reconfigure(&mut self, config: CodelConfig) {
        self.config = config;
    }

    /// True if no frame waits.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.frames == 0
    }

    /// Appends `frame` to the queue of its flow. Returns the number of frames dropped for lack of
    /// memory, which may include this one.
    #[must_use]
    pub fn push(&mut self, now: Instant, frame: FrameBuf) -> u64 {
        let cost = frame.footprint() as u64;
        let mut dropped = 0;
        while self.bytes + cost > self.bytes_max {
            if self.is_empty() {
                return dropped + 1;
            }
            dropped += self.drop_longest();
        }
        if self.flows.is_empty() {
            self.flows.resize_with(FLOWS, Flow::default);
        }
        let id = flow_hash(frame.head()) as usize % FLOWS;
        let flow = &mut self.flows[id];
        let len = frame.len() as u64;
        flow.backlog += len;
        flow.frames.push_back((now, frame));
        if !flow.is_listed {
            flow.is_listed = true;
            flow.deficit = QUANTUM;
            self.fresh.push_back(id as u16);
        }
        self.frames += 1;
        self.bytes += cost;
        self.frame_len_max = self.frame_len_max.max(len);
        dropped
    }

    /// Drops frames from the front of the longest queue, up to half of it. Returns their number.
    #[cold]
    fn drop_longest(&mut self) -> u64 {
        let Some(longest) = self.flows.iter_mut().max_by_key(|flow| flow.backlog) else { return 0 };
        let count = longest.frames.len().div_ceil(2).min(DROPPED_AT_ONCE);
        for (_, frame) in longest.frames.drain(..count) {
            longest.backlog -= frame.len() as u64;
            self.bytes -= frame.footprint() as u64;
        }
        self.frames -= count;
        count as u64
    }

    /// Removes the next frame. Frames that waited too long are dropped or marked.
    pub fn pop(&mut self, now: Instant) -> Option<Leaving> {
        loop {
            let is_fresh = !self.fresh.is_empty();
            let list = if is_fresh { &mut self.fresh } else { &mut self.backlogged };
            let id = *list.front()?;
            let flow = &mut self.flows[usize::from(id)];
            if flow.deficit <= 0 {
                flow.deficit += QUANTUM;
                list.pop_front();
                self.backlogged.push_back(id);
                continue;
            }
            if let Some(leaving) = self.pop_of(now, id) {
                let flow = &mut self.flows[usize::from(id)];
                flow.deficit = flow.deficit.saturating_sub_unsigned(leaving.frame_len() as u64);
                return Some(leaving);
            }
            if is_fresh {
                self.fresh.pop_front();
                self.backlogged.push_back(id);
            } else {
                self.backlogged.pop_front();
                self.flows[usize::from(id)].is_listed = false;
            }
        }
    }

    /// Removes the next frame of a flow.
    fn pop_of(&mut self, now: Instant, id: u16) -> Option<Leaving> {
        let flow = &mut self.flows[usize::from(id)];
        while let Some((arrived_at, frame)) = flow.frames.pop_front() {
            flow.backlog -= frame.len() as u64;
            self.frames -= 1;
            self.bytes -= frame.footprint() as u64;
            let signal = match Ecn::of(frame.head()) {
                Some(Ecn::Capable) => Signal::Mark,
                _ => Signal::Drop,
            };
            let is_short = flow.backlog <= self.frame_len_max;
            let sojourn = now.since(arrived_at);
            match (flow.codel.judge(&self.config, now, sojourn, is_short, signal), signal) {
                (false, _) => return Some(Leaving::unmarked(frame)),
                (true, Signal::Mark) => {
                    self.late.marked += 1;
                    return Some(Leaving { frame, is_marked: true });
                }
                (true, Signal::Drop) => self.late.dropped += 1,
            }
        }
        flow.codel.note_empty();
        None
    }

    /// Returns the frames that waited too long since the last call.
    #[inline]
    pub fn take_late(&mut self) -> Late {
        std::mem::take(&mut self.late)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Frame, FramePool};
    use longhaul_units::Duration;

    const LEN: usize = 1514;
    /// 1 Gbit/s.
    const NS_PER_BYTE: u64 = 8;

    /// A UDP packet to `port` with this ECN field.
    fn packet(pool: &mut FramePool, port: u16, ecn: u8, len: usize) -> FrameBuf {
        let mut bytes = vec![0; len];
        bytes[..12].fill(2);
        bytes[12..24].copy_from_slice(&[8, 0, 0x45, ecn, 5, 220, 0, 1, 0x40, 0, 64, 17]);
        bytes[26..34].copy_from_slice(&[10, 0, 0, 1, 10, 0, 0, 2]);
        bytes[36..38].copy_from_slice(&port.to_be_bytes());
        pool.hold(&Frame::opaque(&bytes))
    }

    fn port(leaving: &Leaving) -> u16 {
        let head = leaving.frame().head();
        u16::from_be_bytes([head[36], head[37]])
    }

    fn queue(bytes_max: u64) -> FairQueue {
        FairQueue::new(CodelConfig::default(), bytes_max)
    }

    /// A sender that reacts like TCP: it doubles its window each RTT up to the first signal, then
    /// adds 1 % to it, and once per RTT with a signal reduces it to 0.7 of it.
    struct Greedy {
        window: f64,
        in_flight: u64,
        reduced_at: Instant,
    }

    /// Lets a greedy sender with an RTT of `rtt` and these marks send through the queue at 1 Gbit/s
    /// for 20 s. Returns its goodput as a share of the rate and its mean sojourn time, both after
    /// the first 4 s, and what the queue did.
    fn run(queue: &mut FairQueue, rtt: Duration, ecn: u8) -> (f64, Duration, Late) {
        let mut pool = FramePool::new();
        let serialisation = Duration::from_ns(LEN as u64 * NS_PER_BYTE);
        let mut sender = Greedy { window: 10.0, in_flight: 0, reduced_at: Instant::ZERO };
        let (mut now, begin) = (Instant::ZERO, Instant::ZERO + Duration::from_ms(4000));
        let end = Instant::ZERO + Duration::from_ms(20_000);
        let mut acks: VecDeque<Instant> = VecDeque::new();
        let mut waited: VecDeque<Instant> = VecDeque::new();
        let (mut sent, mut sojourns, mut late) = (0_u64, 0_u64, Late::default());
        while now < end {
            while acks.front().is_some_and(|at| *at <= now) {
                acks.pop_front();
                sender.in_flight -= 1;
                let is_first = sender.reduced_at == Instant::ZERO;
                sender.window += if is_first { 1.0 } else { 0.01 };
            }
            while sender.in_flight < sender.window as u64 {
                sender.in_flight += 1;
                assert_eq!(queue.push(now, packet(&mut pool, 5, ecn, LEN)), 0);
                waited.push_back(now);
            }
            let leaving = queue.pop(now);
            let signals = queue.take_late();
            for _ in 0..signals.dropped {
                waited.pop_front();
                sender.in_flight -= 1;
            }
            if signals != Late::default() && now.since(sender.reduced_at) > rtt {
                (sender.window, sender.reduced_at) = ((sender.window * 0.7).max(2.0), now);
            }
            late.dropped += signals.dropped;
            late.marked += signals.marked;
            if leaving.is_some() {
                let arrived_at = waited.pop_front().unwrap();
                acks.push_back(now + rtt);
                if now >= begin {
                    sent += 1;
                    sojourns += now.since(arrived_at).as_ns();
                }
            }
            now += serialisation;
        }
        let slots = end.since(begin).as_ns() / serialisation.as_ns();
        (sent as f64 / slots as f64, Duration::from_ns(sojourns / sent), late)
    }

    #[test]
    fn a_greedy_sender_keeps_the_path_full_and_the_queue_short() {
        for rtt in [2, 10, 40] {
            for ecn in [0, 2] {
                let rtt = Duration::from_ms(rtt);
                let (goodput, sojourn, late) = run(&mut queue(64 << 20), rtt, ecn);
                assert!(goodput > 0.8, "{rtt:?}: {goodput}");
                assert!(sojourn < Duration::from_ms(15), "{rtt:?}: {sojourn:?}");
                let signals = if ecn == 0 { late.dropped } else { late.marked };
                assert!(signals > 0 && signals == late.dropped + late.marked, "{late:?}");
            }
        }
    }

    #[test]
    fn marked_frames_leave_with_the_mark() {
        struct Sink(Vec<Ecn>);
        impl Transmit for Sink {
            fn room(&mut self, _: Side) -> usize {
                usize::MAX
            }
            fn transmit(&mut self, _: Side, frame: &Frame<'_>) {
                self.0.extend(Ecn::of(frame.head));
            }
        }
        let (mut pool, mut queue, mut sink) = (FramePool::new(), queue(64 << 20), Sink(Vec::new()));
        for _ in 0..1000 {
            assert_eq!(queue.push(Instant::ZERO, packet(&mut pool, 5, 2, LEN)), 0);
        }
        for ms in 0..900 {
            let now = Instant::ZERO + Duration::from_ms(ms);
            queue.pop(now).unwrap().transmit(0, &mut sink);
        }
        let marked = sink.0.iter().filter(|ecn| **ecn == Ecn::Congested).count() as u64;
        assert_eq!(queue.take_late(), Late { dropped: 0, marked });
        assert!((10..200).contains(&marked), "{marked}");
        assert_eq!(sink.0.len(), 900, "a marked frame is not dropped");
    }

    #[test]
    fn flows_share_by_bytes_and_one_that_was_idle_comes_first() {
        let (mut pool, mut queue) = (FramePool::new(), queue(64 << 20));
        let now = Instant::ZERO;
        for _ in 0..1000 {
            assert_eq!(queue.push(now, packet(&mut pool, 1, 0, LEN)), 0);
            assert_eq!(queue.push(now, packet(&mut pool, 2, 0, LEN / 4)), 0);
        }
        let mut bytes = [0; 4];
        for _ in 0..500 {
            let leaving = queue.pop(now).unwrap();
            bytes[usize::from(port(&leaving))] += leaving.frame_len();
        }
        assert!(bytes[1].abs_diff(bytes[2]) <= 2 * LEN, "{bytes:?}");
        assert_eq!(queue.push(now, packet(&mut pool, 3, 0, 100)), 0);
        assert_eq!(port(&queue.pop(now).unwrap()), 3);
    }

    #[test]
    fn memory_is_bounded_at_the_expense_of_the_longest_queue() {
        let mut pool = FramePool::new();
        let cost = packet(&mut pool, 1, 0, LEN).footprint() as u64;
        let mut queue = queue(100 * cost);
        let now = Instant::ZERO;
        for _ in 0..10 {
            assert_eq!(queue.push(now, packet(&mut pool, 2, 0, LEN)), 0);
        }
        let dropped: u64 = (0..1000).map(|_| queue.push(now, packet(&mut pool, 1, 0, LEN))).sum();
        let mut left = [0; 3];
        while let Some(leaving) = queue.pop(now) {
            left[usize::from(port(&leaving))] += 1;
        }
        assert_eq!((left[2], left[1] + dropped), (10, 1000));
        assert!(left[1] <= 90 && queue.is_empty());
        assert_eq!(queue.push(now, packet(&mut pool, 1, 0, LEN)), 0);
        let mut small = super::FairQueue::new(CodelConfig::default(), cost - 1);
        assert_eq!(small.push(now, packet(&mut pool, 1, 0, LEN)), 1, "longer than the bound");
    }
}
