//! The requester of a bandwidth test: perftest's loop, which posts while the send queue has room
//! and otherwise polls.

use super::{Nic, Op, Posted, Seen};
use longhaul_rnic::Status;
use longhaul_units::{Duration, Instant};
use std::collections::VecDeque;

/// End condition of a test.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Goal {
    /// After this number of messages of each QP.
    Messages(u64),
    /// After this time; messages still in flight do not count.
    Time(Duration),
}

/// Parameters of a test.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Plan {
    pub op: Op,
    pub size: u32,
    pub tx_depth: u64,
    /// Messages posted together.
    pub post_list: u64,
    /// Interval of signaled messages.
    pub cq_mod: u64,
    pub goal: Goal,
    /// Messages completed before this time do not count.
    pub counts_from: Instant,
}

impl Plan {
    /// Returns whether a queue's message of this index is signaled.
    pub fn signals(&self, index: u64) -> bool {
        index % self.cq_mod == self.cq_mod - 1 || self.goal == Goal::Messages(index + 1)
    }
}

#[derive(Debug, Default)]
struct Queue {
    slot: usize,
    posted: u64,
    completed: u64,
    /// Messages known to the device.
    begun: u64,
    is_ready: bool,
    /// Post times of the outstanding signaled messages.
    posted_at: VecDeque<Instant>,
}

/// The program.
pub(crate) struct Bandwidth {
    plan: Plan,
    queues: Vec<Queue>,
    /// Queue of each slot.
    by_slot: Vec<usize>,
    /// Queues with room.
    ready: VecDeque<usize>,
    /// Doorbells: time, queue and number of messages.
    doorbells: VecDeque<(Instant, usize, u64)>,
    seen: VecDeque<Seen>,
    busy_until: Instant,
    began: Instant,
    stops_at: Option<Instant>,
    /// Time of the last polled completion.
    pub last: Instant,
    /// Messages completed.
    pub messages: u64,
    /// Those that do not count.
    pub early: u64,
    unfinished: usize,
    /// Latencies of signaled messages, from post to polled completion.
    pub latencies: Vec<Duration>,
    /// Status of the first failed message.
    pub failure: Option<Status>,
    /// Completions out of order.
    pub out_of_order: u64,
}

impl Bandwidth {
    pub fn new(plan: Plan) -> Self {
        Bandwidth {
            plan,
            queues: Vec::new(),
            by_slot: Vec::new(),
            ready: VecDeque::new(),
            doorbells: VecDeque::new(),
            seen: VecDeque::new(),
            busy_until: Instant::ZERO,
            began: Instant::ZERO,
            stops_at: None,
            last: Instant::ZERO,
            messages: 0,
            early: 0,
            unfinished: 0,
            latencies: Vec::new(),
            failure: None,
            out_of_order: 0,
        }
    }

    pub fn start(&mut self, at: Instant, slots: Vec<usize>, _nic: &mut Nic) {
        let highest = slots.iter().max().copied().unwrap_or(0);
        self.by_slot = vec![usize::MAX; highest + 1];
        for (queue, slot) in slots.into_iter().enumerate() {
            self.by_slot[slot] = queue;
            self.queues.push(Queue { slot, is_ready: true, ..Queue::default() });
            self.ready.push_back(queue);
        }
        self.unfinished = self.queues.len();
        (self.began, self.last, self.busy_until) = (at, at, at);
        if let Goal::Time(time) = self.plan.goal {
            self.stops_at = Some(at + time);
        }
    }

    /// The test's parameters.
    pub fn plan(&self) -> &Plan {
        &self.plan
    }

    /// Time of the first post.
    pub fn began(&self) -> Instant {
        self.began
    }

    /// `true` after success or failure.
    pub fn is_done(&self) -> bool {
        self.failure.is_some() || self.unfinished == 0
    }

    pub fn complete(&mut self, seen: Seen) {
        self.seen.push_back(seen);
    }

    pub fn next_at(&self) -> Option<Instant> {
        let doorbell = self.doorbells.front().map(|&(at, ..)| at);
        if self.is_done() {
            return None;
        }
        let turn = if self.ready.is_empty() {
            self.seen.front().map(|seen| seen.at)
        } else {
            Some(self.began)
        };
        let turn = turn.map(|at| at.max(self.busy_until));
        [doorbell, turn, self.stops_at].into_iter().flatten().min()
    }

    #[inline]
    pub fn run(&mut self, now: Instant, nic: &mut Nic) {
        if self.is_done() {
            return;
        }
        if self.stops_at.is_some_and(|at| at <= now) {
            self.unfinished = 0;
            self.last = now;
            return;
        }
        let (post, poll) = nic.costs();
        let mut at = self.busy_until;
        // Posts cannot be influenced from outside, so they are made ahead of time until there is no
        // more room.
        while at <= now {
            if let Some(queue) = self.ready.pop_front() {
                at = self.post(at.max(now), queue, post, nic);
            } else if let Some(seen) = self.seen.front().copied()
                && seen.at <= now
            {
                self.seen.pop_front();
                at = at.max(now) + poll;
                self.take(at, &seen);
            } else {
                break;
            }
        }
        self.busy_until = at;
        self.ring(now, nic);
    }

    /// Fills one queue; returns the time at which that is done.
    fn post(&mut self, mut at: Instant, index: usize, cost: Duration, nic: &mut Nic) -> Instant {
        let (plan, queue) = (&self.plan, &mut self.queues[index]);
        queue.is_ready = false;
        while queue.has_room(plan) {
            let mut count = plan.post_list;
            if let Goal::Messages(goal) = plan.goal {
                count = count.min(goal - queue.posted);
            }
            at += cost.times(count) + nic.list_cost();
            for _ in 0..count {
                if plan.signals(queue.posted) {
                    queue.posted_at.push_back(at);
                }
                queue.posted += 1;
            }
            let known = nic.doorbell(at);
            match self.doorbells.back_mut() {
                Some((when, last, messages)) if *when == known && *last == index => {
                    *messages += count
                }
                _ => self.doorbells.push_back((known, index, count)),
            }
        }
        at
    }

    /// Passes messages whose doorbell has arrived to the NIC.
    fn ring(&mut self, now: Instant, nic: &mut Nic) {
        while let Some(&mut (at, index, ref mut messages)) = self.doorbells.front_mut()
            && at <= now
        {
            if let Err(later) = nic.begin_message(now) {
                self.doorbells[0].0 = later;
                return;
            }
            let (plan, queue) = (&self.plan, &mut self.queues[index]);
            let signaled = plan.signals(queue.begun);
            let posted = Posted {
                op: plan.op,
                size: plan.size,
                wr_id: queue.begun,
                signaled,
                solicited: false,
                offset: 0,
                capsule: None,
            };
            if !nic.post(now, queue.slot, &posted) {
                self.out_of_order += 1;
            }
            queue.begun += 1;
            *messages -= 1;
            if *messages == 0 {
                self.doorbells.pop_front();
            }
        }
    }

    fn take(&mut self, at: Instant, seen: &Seen) {
        if seen.completion.status != Status::Success {
            self.failure.get_or_insert(seen.completion.status);
            return;
        }
        let index = self.by_slot[seen.slot];
        let queue = &mut self.queues[index];
        let next = match self.plan.goal {
            Goal::Messages(goal) => (queue.completed + self.plan.cq_mod).min(goal),
            Goal::Time(_) => queue.completed + self.plan.cq_mod,
        };
        self.out_of_order += u64::from(seen.completion.wr_id + 1 != next);
        let done = next - queue.completed;
        self.messages += done;
        self.early += if at < self.plan.counts_from { done } else { 0 };
        queue.completed = next;
        self.last = at;
        if let Some(posted) = queue.posted_at.pop_front() {
            self.latencies.push(at.since(posted));
        }
        if self.plan.goal == Goal::Messages(next) {
            self.unfinished -= 1;
        } else if !queue.is_ready && queue.has_room(&self.plan) {
            queue.is_ready = true;
            self.ready.push_back(index);
        }
    }
}

impl Queue {
    fn has_room(&self, plan: &Plan) -> bool {
        let is_wanted = match plan.goal {
            Goal::Messages(goal) => self.posted < goal,
            Goal::Time(_) => true,
        };
        is_wanted && self.posted - self.completed + plan.post_list <= plan.tx_depth
    }
}
