//! A latency test: one message at a time, to and fro for WRITE and SEND.

use super::{Nic, Op, Posted, Seen};
use longhaul_rnic::{CompletionOp, Status};
use longhaul_units::{Duration, Instant};
use std::collections::VecDeque;

/// End of the test.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Role {
    /// Begins, and measures.
    Client,
    /// Answers.
    Server,
}

/// The program. WRITE watches its memory, SEND and WRITE with immediate data their receives, READ
/// and atomics their completions.
pub(crate) struct Latency {
    role: Role,
    op: Op,
    size: u32,
    goal: u64,
    slot: usize,
    /// Messages sent, and received from the peer (READ: completed).
    sent: u64,
    heard: u64,
    posted_at: Instant,
    /// Time of the first post, and of the last message received.
    pub began: Instant,
    pub last: Instant,
    doorbell: Option<Instant>,
    /// Times at which the program sees arrivals.
    coming: VecDeque<Instant>,
    /// Latency of each round: half of it for WRITE and SEND, as in perftest.
    pub latencies: Vec<Duration>,
    /// Status of the first failed message.
    pub failure: Option<Status>,
    /// Messages detected in memory.
    arrived: u64,
}

impl Latency {
    pub fn new(role: Role, op: Op, size: u32, goal: u64) -> Self {
        Latency {
            role,
            op,
            size,
            goal,
            slot: 0,
            sent: 0,
            heard: 0,
            posted_at: Instant::ZERO,
            began: Instant::ZERO,
            last: Instant::ZERO,
            doorbell: None,
            coming: VecDeque::new(),
            latencies: Vec::new(),
            failure: None,
            arrived: 0,
        }
    }

    pub fn start(&mut self, at: Instant, slots: Vec<usize>, nic: &mut Nic) {
        self.slot = slots.first().copied().unwrap_or(0);
        (self.began, self.last) = (at, at);
        if self.op.takes_receive() {
            nic.post_receive(self.slot, self.size);
            nic.post_receive(self.slot, self.size);
        }
        if self.role == Role::Client {
            self.send(at, nic);
        }
    }

    /// `true` after success or failure.
    pub fn is_done(&self) -> bool {
        self.role == Role::Server || self.failure.is_some() || self.heard == self.goal
    }

    fn is_one_sided(&self) -> bool {
        matches!(self.op, Op::Read | Op::Atomic)
    }

    fn send(&mut self, at: Instant, nic: &mut Nic) {
        let (post, _) = nic.costs();
        self.posted_at = at;
        self.doorbell = Some(nic.doorbell(at + post));
    }

    pub fn complete(&mut self, seen: Seen) {
        if seen.completion.status != Status::Success {
            self.failure.get_or_insert(seen.completion.status);
            return;
        }
        let counts = match seen.completion.op {
            CompletionOp::Recv | CompletionOp::RecvWriteImmediate => true,
            _ => self.is_one_sided(),
        };
        if counts {
            self.coming.push_back(seen.at);
        }
    }

    pub fn next_at(&self) -> Option<Instant> {
        [self.doorbell, self.coming.front().copied()].into_iter().flatten().min()
    }

    pub fn run(&mut self, now: Instant, nic: &mut Nic) {
        if self.op == Op::Write && nic.messages(self.slot) > self.arrived {
            self.arrived += 1;
            self.coming.push_back(nic.seen(now));
        }
        if self.doorbell.is_some_and(|at| at <= now) {
            self.doorbell = None;
            let posted = Posted {
                op: self.op,
                size: self.size,
                wr_id: self.sent,
                signaled: true,
                solicited: false,
                offset: 0,
                capsule: None,
            };
            nic.post(now, self.slot, &posted);
            self.sent += 1;
        }
        while self.coming.front().is_some_and(|&at| at <= now) {
            self.coming.pop_front();
            self.hear(now, nic);
        }
    }

    /// Handles the peer's message, or a READ's data.
    fn hear(&mut self, now: Instant, nic: &mut Nic) {
        let (_, poll) = nic.costs();
        let at = now + poll;
        self.heard += 1;
        self.last = at;
        if self.op.takes_receive() {
            nic.post_receive(self.slot, self.size);
        }
        if self.role == Role::Client {
            let round = at.since(self.posted_at);
            self.latencies.push(if self.is_one_sided() { round } else { round.divided_by(2) });
        }
        let goes_on = match self.role {
            Role::Client => self.heard < self.goal,
            Role::Server => true,
        };
        if goes_on {
            self.send(at, nic);
        }
    }
}
