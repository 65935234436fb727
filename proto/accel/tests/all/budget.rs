//! Both hosts of the lab's chain are busy at once, in virtual time: no work request may run out of
//! retries.

use crate::host::{BASE, LOCAL, REMOTE};
use crate::line::{Line, Setup};
use longhaul_rnic::{RecvWr, SendOp, SendWr, Status};
use longhaul_units::{Duration, Rng, SplitMix64};

const HOSTS: [usize; 2] = [LOCAL, REMOTE];
const RECEIVES: u64 = 1 << 32;

#[derive(Clone, Copy, PartialEq, Debug)]
enum Op {
    Write,
    Send,
    Read,
}

/// Messages of all sizes up to `longest`, with a total of about `bytes`.
fn plan(seed: u64, bytes: usize, longest: usize) -> Vec<(Op, usize)> {
    let mut rng = SplitMix64::new(seed);
    let mut steps = Vec::new();
    let mut planned = 0;
    while planned < bytes {
        let op = [Op::Write, Op::Send, Op::Read, Op::Write][rng.below(4) as usize];
        let power = 1 << rng.below(u64::from(longest.ilog2()) + 1);
        let len = if rng.chance(0.5) { 1 + rng.below(20_000) } else { power + rng.below(power) };
        let len = (len as usize).clamp(1, longest);
        steps.push((op, len));
        planned += len;
    }
    steps
}

/// Memory of each host: its own buffers in the first half, the peer's targets in the second,
/// message by message at the same offset.
struct BothWays {
    line: Line,
    depth: usize,
    plans: [Vec<(Op, usize)>; 2],
    half: usize,
    posted: [usize; 2],
    posted_bytes: [usize; 2],
    completed: [usize; 2],
}

impl BothWays {
    fn new(setup: Setup, bytes: usize, longest: usize) -> BothWays {
        let plans = [1, 2].map(|host| plan(setup.seed * 4 + host, bytes, longest));
        let half =
            plans.iter().map(|plan| plan.iter().map(|&(_, len)| len).sum()).max().unwrap_or(0);
        let mut line = Line::new(Setup { memory: 2 * half, ..setup });
        let mut rng = SplitMix64::new(setup.seed);
        for host in HOSTS {
            for chunk in line.host_mut(host).memory_mut().0.chunks_mut(8) {
                chunk.copy_from_slice(&rng.next_u64().to_le_bytes()[..chunk.len()]);
            }
            let mut at = half;
            for (i, &(op, len)) in plans[1 - host].iter().enumerate() {
                if op == Op::Send {
                    let segments = [line.ends[host].segment(at, len)];
                    let wr = RecvWr { wr_id: RECEIVES + i as u64, segments: &segments };
                    let qp = line.ends[host].qpn;
                    line.host_mut(host).post_recv(qp, &wr).unwrap();
                }
                at += len;
            }
        }
        let depth = setup.depth as usize;
        BothWays {
            line,
            depth,
            plans,
            half,
            posted: [0; 2],
            posted_bytes: [0; 2],
            completed: [0; 2],
        }
    }

    fn may_post(&self, host: usize) -> bool {
        self.posted[host] < self.plans[host].len()
            && self.posted[host] - self.completed[host] < self.depth
    }

    fn post(&mut self, host: usize) {
        let line = &mut self.line;
        let (op, len) = self.plans[host][self.posted[host]];
        let at = self.posted_bytes[host];
        let (remote_address, rkey) =
            (BASE + (self.half + at) as u64, line.ends[1 - host].keys.rkey);
        let wr = SendWr {
            wr_id: self.posted[host] as u64,
            op: match op {
                Op::Write => SendOp::Write { remote_address, rkey, immediate: None },
                Op::Send => SendOp::Send { immediate: None, invalidate: None },
                Op::Read => SendOp::Read { remote_address, rkey },
            },
            segments: &[line.ends[host].segment(at, len)],
            inline: false,
            signaled: true,
            solicited: false,
            fence: false,
        };
        let (now, qp) = (line.now, line.ends[host].qpn);
        line.host_mut(host).post_send(now, qp, &wr).unwrap();
        self.posted[host] += 1;
        self.posted_bytes[host] += len;
    }

    fn collect(&mut self, host: usize) {
        for completion in self.line.completions(host) {
            let flows = || self.line.boxes().flat_map(|b| b.flows()).collect::<Vec<_>>();
            let what = self.plans[host].get(completion.wr_id as usize);
            let (id, now) = (completion.wr_id, self.line.now);
            let status = completion.status;
            assert_eq!(
                status,
                Status::Success,
                "host {host} {id:x} {what:?} at {now:?}: {:#?}",
                flows()
            );
            if id < RECEIVES {
                assert_eq!(id, self.completed[host] as u64, "each once, in order");
                self.completed[host] += 1;
            }
        }
    }

    /// Runs until everything is completed and delivered, and compares all bytes.
    fn run(&mut self) {
        let end = self.line.now + Duration::from_ms(600_000);
        while HOSTS.into_iter().any(|host| self.completed[host] < self.plans[host].len()) {
            for host in HOSTS {
                while self.may_post(host) {
                    self.post(host);
                }
            }
            HOSTS.into_iter().for_each(|host| self.collect(host));
            assert!(self.line.now < end, "not done: {:?}", self.completed);
            let more = HOSTS.into_iter().any(|host| self.may_post(host));
            assert!(more || self.line.step(), "asleep at {:?}", self.completed);
        }
        while self.line.boxes().any(|b| b.flows().any(|f| f.stored_frames > 0)) {
            assert!(
                self.line.step() && self.line.now < end,
                "asleep before everything was delivered"
            );
        }
        for host in HOSTS {
            let mut at = 0;
            for (i, &(op, len)) in self.plans[host].iter().enumerate() {
                let own = &self.line.host(host).memory().0[at..at + len];
                let theirs =
                    &self.line.host(1 - host).memory().0[self.half + at..self.half + at + len];
                assert!(own == theirs, "host {host}, message {i}, {op:?} of {len} bytes");
                at += len;
            }
        }
    }
}

fn both_ways(setup: Setup, bytes: usize, longest: usize) -> Line {
    let mut both = BothWays::new(setup, bytes, longest);
    both.run();
    both.line
}

mod a_budget_of_eight_times_67_ms {
    use super::*;

    /// READs behind megabytes of messages that go-back-N delivers a hundred packets at a time.
    #[test]
    fn lasts_for_every_request_at_a_loss_of_one_in_a_hundred() {
        for seed in [7, 10, 15, 20] {
            let setup = Setup { seed, loss: 1e-2, hold_ups: true, ..Setup::default() };
            both_ways(setup, 24_000_000, 8 << 20);
        }
    }

    /// The same with larger amounts.
    #[test]
    fn lasts_for_transfers_that_take_seconds() {
        both_ways(Setup { seed: 15, loss: 1e-2, ..Setup::default() }, 60_000_000, 8 << 20);
    }

    #[test]
    fn lasts_at_a_loss_of_one_in_ten_thousand() {
        for seed in 0..4 {
            let setup = Setup { seed, loss: 1e-4, hold_ups: true, ..Setup::default() };
            both_ways(setup, 24_000_000, 8 << 20);
        }
    }

    /// Parameters come from the environment: LOSS, FROM and TO (seeds), MB, HOLD, BOX.
    #[test]
    #[ignore = "a survey over many seeds takes minutes"]
    fn lasts_in_a_survey() {
        let get =
            |name: &str, default: f64| std::env::var(name).map_or(default, |v| v.parse().unwrap());
        let (loss, from, to) = (get("LOSS", 1e-2), get("FROM", 0.0) as u64, get("TO", 10.0) as u64);
        let (mb, hold_ups) = (get("MB", 24.0), get("HOLD", 0.0) > 0.0);
        let boxes = [get("BOX", 1.0) > 0.0; 2];
        let mut failed = 0;
        for seed in from..to {
            let done = std::panic::catch_unwind(|| {
                let setup = Setup { seed, loss, hold_ups, boxes, ..Setup::default() };
                let line = both_ways(setup, (mb * 1e6) as usize, 8 << 20);
                let drops = line.boxes().map(|b| b.counters().drops.iter().collect::<Vec<_>>());
                println!("seed {seed}: {:?} {:?}", line.now, drops.collect::<Vec<_>>());
            });
            failed += usize::from(done.is_err());
        }
        assert_eq!(failed, 0, "of {}", to - from);
    }
}
