//! Two devices transfer data over perfect and over impaired wires.

use crate::pair::*;
use longhaul_rnic::*;
use longhaul_units::Duration;

#[test]
fn send_write_and_read_move_the_bytes() {
    let mut pair = Pair::new(1, 1 << 20);
    let ends = pair.connect(&Link::default());
    pair.fill(0, 0, 300_000, 7);
    pair.recv(1, &ends, 50, 400_000, 100_000);
    pair.post(0, ends.qp[0], &wr(1, SEND, &[sge(&ends, 0, 0, 100_000)]));
    pair.post(0, ends.qp[0], &wr(2, write_to(&ends, 1, 0), &[sge(&ends, 0, 100_000, 100_001)]));
    pair.post(0, ends.qp[0], &wr(3, read_from(&ends, 1, 0), &[sge(&ends, 0, 600_000, 100_001)]));
    assert!(pair.settle(Duration::from_ms(1000)));
    let done = pair.completions(0, ends.cq[0]);
    assert_eq!(
        done.iter().map(|c| (c.wr_id, c.status)).collect::<Vec<_>>(),
        [(1, Status::Success), (2, Status::Success), (3, Status::Success)]
    );
    let received = pair.completions(1, ends.cq[1]);
    assert_eq!(received.len(), 1);
    assert_eq!((received[0].wr_id, received[0].byte_len), (50, 100_000));
    assert_eq!(pair.bytes(1, 400_000, 100_000), pair.bytes(0, 0, 100_000));
    assert_eq!(pair.bytes(1, 0, 100_001), pair.bytes(0, 100_000, 100_001));
    assert_eq!(pair.bytes(0, 600_000, 100_001), pair.bytes(0, 100_000, 100_001));
}

#[test]
fn long_messages_survive_loss() {
    const LEN: usize = 16 << 20;
    let mut pair = Pair::new(5, 2 * LEN);
    let link = Link { psn: [0xff_fff0, 0xff_ffff], timeout: 10, ..Link::default() };
    let ends = pair.connect(&link);
    pair.set_wire(Wire { loss: 1e-3, ..Wire::default() });
    pair.fill(0, 0, LEN, 5);
    pair.post(0, ends.qp[0], &wr(1, write_to(&ends, 1, 0), &[sge(&ends, 0, 0, LEN as u32)]));
    pair.post(0, ends.qp[0], &wr(2, read_from(&ends, 1, 0), &[sge(&ends, 0, LEN, LEN as u32)]));
    assert!(pair.settle(Duration::from_ms(60_000)));
    assert_eq!(pair.completions(0, ends.cq[0]).len(), 2);
    assert!(pair.bytes(1, 0, LEN) == pair.bytes(0, 0, LEN), "written");
    assert!(pair.bytes(0, LEN, LEN) == pair.bytes(0, 0, LEN), "read back");
    let counters = pair.nodes[0].counters();
    assert!(counters.get(Counter::PacketSeqErr) > 3 && counters.get(Counter::ImpliedNakSeqErr) > 3);
}

mod any_wire {
    use super::*;
    use longhaul_units::{Instant, Rng, SplitMix64};
    use std::collections::VecDeque;

    const MEMORY: usize = 12 << 20;
    const HALF: usize = MEMORY / 2;

    /// A posted request and the location of its bytes afterwards: (from node, at, to node, at,
    /// length).
    #[derive(Clone, Copy, Debug)]
    struct Posted {
        wr_id: u64,
        op: CompletionOp,
        len: usize,
        from: (usize, usize),
        to: (usize, usize),
        immediate: Option<[u8; 4]>,
        visible: bool,
    }

    struct Run {
        pair: Pair,
        ends: Ends,
        rng: SplitMix64,
        link: Link,
        outstanding: [VecDeque<Posted>; 2],
        receives: [VecDeque<u64>; 2],
        expected_receives: [VecDeque<Posted>; 2],
        next_id: u64,
    }

    impl Run {
        fn new(seed: u64) -> Self {
            let mut rng = SplitMix64::new(seed);
            let psn = |rng: &mut SplitMix64| {
                if rng.chance(0.5) {
                    0xff_ffff - rng.below(300) as u32
                } else {
                    rng.below(1 << 24) as u32
                }
            };
            let link = Link {
                mtu: Mtu::from_code(1 + rng.below(5) as u8).unwrap(),
                psn: [psn(&mut rng), psn(&mut rng)],
                timeout: 8,
                reads: 1 + rng.below(6) as u8,
                depth: 1 << rng.below(7),
                ..Link::default()
            };
            let credits = rng.chance(0.4);
            let window = 1 << (3 + rng.below(21));
            let mut pair = Pair::with(seed, MEMORY, |c| {
                c.report_credits = credits;
                c.window_packets = window;
            });
            let ends = pair.connect(&link);
            pair.set_wire(Wire {
                delay: Duration::from_us(1 + rng.below(100)),
                jitter: if rng.chance(0.5) {
                    Duration::ZERO
                } else {
                    Duration::from_us(rng.below(20))
                },
                loss: [0.0, 0.001, 0.01, 0.03][rng.below(4) as usize],
                duplication: [0.0, 0.01][rng.below(2) as usize],
                corruption: [0.0, 0.005][rng.below(2) as usize],
                marking: 0.0,
            });
            for n in 0..2 {
                pair.fill(n, 0, MEMORY, seed ^ n as u64);
            }
            Run {
                pair,
                ends,
                rng,
                link,
                outstanding: Default::default(),
                receives: Default::default(),
                expected_receives: Default::default(),
                next_id: 1,
            }
        }

        fn len(&mut self) -> usize {
            match self.rng.below(10) {
                0 => 0,
                1..=4 => self.rng.below(300) as usize,
                5..=8 => self.rng.below(20_000) as usize,
                _ => self.rng.below(1 << 20) as usize,
            }
        }

        /// Posts one random request on `n`; sources are in the lower half, each target alone in the
        /// upper half.
        fn post(&mut self, n: usize, round: usize) {
            let len = self.len();
            let from_at = self.rng.below((HALF - len) as u64) as usize;
            // Slots of 1 MiB: within a round, no two requests have the same target.
            let to_at = HALF + (round % 5) * (1 << 20);
            let id = self.next_id;
            self.next_id += 1;
            let peer = 1 - n;
            let immediate = self.rng.chance(0.3).then(|| (id as u32).to_be_bytes());
            let kind = self.rng.below(3);
            let (op, from, to, completion) = match kind {
                0 => (
                    SendOp::Send { immediate, invalidate: None },
                    (n, from_at),
                    (peer, to_at),
                    CompletionOp::Send,
                ),
                1 => (
                    SendOp::Write {
                        remote_address: BASE + to_at as u64,
                        rkey: self.ends.mr[peer].rkey,
                        immediate,
                    },
                    (n, from_at),
                    (peer, to_at),
                    CompletionOp::Write,
                ),
                _ => (
                    read_from(&self.ends, peer, from_at),
                    (peer, from_at),
                    (n, to_at),
                    CompletionOp::Read,
                ),
            };
            let immediate = if kind == 2 { None } else { immediate };
            let receive = (kind == 0 || immediate.is_some()).then(|| {
                let id = self.next_id;
                self.next_id += 1;
                id
            });
            let local = if kind == 2 { to_at } else { from_at };
            // Two pieces, split at random.
            let cut = self.rng.below(len as u64 + 1) as usize;
            let segments = [
                sge(&self.ends, n, local, cut as u32),
                sge(&self.ends, n, local + cut, (len - cut) as u32),
            ];
            let visible = self.rng.chance(0.7);
            let wr = SendWr {
                wr_id: id,
                op,
                segments: &segments,
                inline: kind != 2 && len <= 256 && self.rng.chance(0.5),
                signaled: visible,
                solicited: self.rng.chance(0.2),
                fence: self.rng.chance(0.1),
            };
            self.pair.post(n, self.ends.qp[n], &wr);
            let posted = Posted { wr_id: id, op: completion, len, from, to, immediate, visible };
            self.outstanding[n].push_back(posted);
            if let Some(receive) = receive {
                self.expected_receives[peer].push_back(posted);
                self.receives[peer].push_back(receive);
                // Sometimes the receive is posted late, and the sender gets an RNR NAK.
                let late = self.rng.chance(0.2);
                if late {
                    for _ in 0..self.rng.below(30) {
                        self.pair.step();
                    }
                }
                let cut = self.rng.below(len as u64 + 1) as usize;
                let segments = [
                    sge(&self.ends, peer, to_at, cut as u32),
                    sge(&self.ends, peer, to_at + cut, (len - cut) as u32 + 1),
                ];
                let wr = RecvWr { wr_id: receive, segments: &segments };
                self.pair.nodes[peer].post_recv(self.ends.qp[peer], &wr).unwrap();
            }
        }

        fn check(&mut self, n: usize) {
            for c in self.pair.completions(n, self.ends.cq[n]) {
                assert_eq!(c.status, Status::Success, "{c:?}");
                if matches!(c.op, CompletionOp::Recv | CompletionOp::RecvWriteImmediate) {
                    let posted =
                        self.expected_receives[n].pop_front().expect("a receive nobody expects");
                    let id = self.receives[n].pop_front().unwrap();
                    assert_eq!(c.wr_id, id);
                    assert_eq!(c.immediate, posted.immediate);
                    assert_eq!(c.byte_len as usize, posted.len);
                } else {
                    let posted = loop {
                        let posted = self.outstanding[n].pop_front().expect("completed twice");
                        if posted.visible {
                            break posted;
                        }
                    };
                    assert_eq!(
                        (c.wr_id, c.op, c.byte_len as usize),
                        (posted.wr_id, posted.op, posted.len)
                    );
                }
            }
        }

        fn round(&mut self) {
            let per_side = self.link.depth.min(5) as usize;
            let mut all = Vec::new();
            let counts = [
                self.rng.below(per_side as u64 + 1) as usize,
                self.rng.below(per_side as u64 + 1) as usize,
            ];
            // Each target slot belongs to one request of a round, counted over both sides.
            let mut slot = 0;
            for i in 0..per_side {
                for (n, &count) in counts.iter().enumerate() {
                    if i < count && slot < 5 {
                        self.post(n, slot);
                        all.push(*self.outstanding[n].back().unwrap());
                        slot += 1;
                    }
                }
            }
            let start = self.pair.now;
            assert!(self.pair.settle(Duration::from_ms(60_000)), "not quiet after a minute");
            assert!(self.pair.now.since(start) < Duration::from_ms(60_000));
            for n in 0..2 {
                self.check(n);
                assert!(
                    self.outstanding[n].iter().all(|p| !p.visible),
                    "not completed: {:?}",
                    self.outstanding[n]
                );
                assert!(self.expected_receives[n].is_empty());
                self.outstanding[n].clear();
            }
            for p in all {
                assert_eq!(
                    self.pair.bytes(p.from.0, p.from.1, p.len),
                    self.pair.bytes(p.to.0, p.to.1, p.len),
                    "bytes of {p:?}"
                );
            }
            for node in self.pair.nodes.iter() {
                for qp in node.qp_snapshots() {
                    assert_eq!(qp.state, QpState::ReadyToSend);
                    let (requester, responder) = qp.reliable.expect("a reliable connection");
                    assert_eq!(requester.outstanding_packets, 0);
                    assert_eq!(responder.reads, 0);
                }
            }
        }
    }

    fn run(seed: u64) -> [Counters; 2] {
        let mut run = Run::new(seed);
        for _ in 0..6 {
            run.round();
        }
        assert!(run.pair.now > Instant::ZERO);
        [0, 1].map(|n| run.pair.nodes[n].counters().clone())
    }

    /// Counters that must be non-zero, or the impairments proved nothing.
    const MET: [Counter; 11] = [
        Counter::Icrc,
        Counter::OutOfSequence,
        Counter::DuplicateRequest,
        Counter::PacketSeqErr,
        Counter::ImpliedNakSeqErr,
        Counter::LocalAckTimeoutErr,
        Counter::RxRnrNak,
        Counter::TxRetransmits,
        Counter::GhostAck,
        Counter::ResponseGap,
        Counter::NakIgnored,
    ];

    #[test]
    fn every_byte_and_completion_is_right_once_and_in_order() {
        let seeds = match std::env::var("LONGHAUL_SEED") {
            Ok(seed) => vec![seed.parse().expect("LONGHAUL_SEED is a number")],
            Err(_) => (0..40).collect::<Vec<u64>>(),
        };
        let many = seeds.len() > 1;
        let mut met = Counters::default();
        for seed in seeds {
            match std::panic::catch_unwind(|| run(seed)) {
                Ok(counters) => {
                    counters.iter().flat_map(Counters::iter).for_each(|(c, n)| met.add(c, n));
                }
                Err(panic) => {
                    let test = "cargo test -p longhaul-rnic --test all transfers::any_wire";
                    eprintln!("reproduce: LONGHAUL_SEED={seed} {test}");
                    std::panic::resume_unwind(panic);
                }
            }
        }
        for counter in MET {
            assert!(!many || met.get(counter) > 0, "{} was never met", counter.name());
        }
    }
}
