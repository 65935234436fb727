//! The requester of a bandwidth test whose threads wait for completion events: one for each QP.

use super::events::Threads;
use super::{Goal, Nic, Plan, Posted};
use longhaul_rnic::Status;
use longhaul_units::Instant;
use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// Steps between the lengths of the first lists of consecutive QPs: coprime to usual lengths.
const STAGGER: u64 = 61;

#[derive(Debug)]
struct Queue {
    slot: usize,
    posted: u64,
    /// Messages that the NIC has.
    begun: u64,
    completed: u64,
    /// Messages of the next list.
    list: u64,
}

/// The program.
pub(crate) struct Sender {
    plan: Plan,
    threads: Threads,
    /// Queue of each thread.
    queues: Vec<Queue>,
    /// Doorbells: time, queue, and messages of the list.
    doorbells: BinaryHeap<Reverse<(Instant, usize, u64)>>,
    stops_at: Option<Instant>,
    unfinished: usize,
    pub began: Instant,
    /// Time of the last completion.
    pub last: Instant,
    /// Messages completed.
    pub messages: u64,
    /// Those completed before the window.
    pub early: u64,
    /// Status of the first failed message.
    pub failure: Option<Status>,
}

impl Sender {
    pub fn new(plan: Plan, threads: Threads) -> Self {
        Sender {
            plan,
            threads,
            queues: Vec::new(),
            doorbells: BinaryHeap::new(),
            stops_at: None,
            unfinished: 0,
            began: Instant::ZERO,
            last: Instant::ZERO,
            messages: 0,
            early: 0,
            failure: None,
        }
    }

    pub fn plan(&self) -> &Plan {
        &self.plan
    }

    pub fn threads(&self) -> &Threads {
        &self.threads
    }

    pub fn threads_mut(&mut self) -> &mut Threads {
        &mut self.threads
    }

    /// `slots` are in the order of the threads.
    pub fn start(&mut self, at: Instant, slots: Vec<usize>, _nic: &mut Nic) {
        let list = self.plan.post_list;
        for (number, slot) in (0..).zip(slots) {
            // First lists of different lengths, so that those of many threads do not end together.
            let first = 1 + (number * STAGGER) % list;
            self.queues.push(Queue { slot, posted: 0, begun: 0, completed: 0, list: first });
        }
        (0..self.queues.len()).for_each(|thread| self.threads.start(thread, at));
        (self.began, self.last, self.unfinished) = (at, at, self.queues.len());
        if let Goal::Time(time) = self.plan.goal {
            self.stops_at = Some(at + time);
        }
    }

    pub fn is_done(&self) -> bool {
        self.failure.is_some() || self.unfinished == 0
    }

    pub fn next_at(&self) -> Option<Instant> {
        let doorbell = self.doorbells.peek().map(|Reverse((at, ..))| *at);
        if self.is_done() {
            return doorbell;
        }
        [self.threads.next_at(), doorbell, self.stops_at].into_iter().flatten().min()
    }

    pub fn run(&mut self, now: Instant, nic: &mut Nic) {
        self.ring(now, nic);
        if self.is_done() {
            return;
        }
        if self.stops_at.is_some_and(|at| at <= now) {
            (self.unfinished, self.last) = (0, now);
            return;
        }
        while !self.is_done()
            && let Some((thread, at)) = self.threads.next(now, nic)
        {
            self.work(thread, at, nic);
        }
    }

    /// Passes lists to the NIC.
    fn ring(&mut self, now: Instant, nic: &mut Nic) {
        while let Some(&Reverse((at, queue, messages))) = self.doorbells.peek()
            && at <= now
        {
            self.doorbells.pop();
            let (plan, queue) = (&self.plan, &mut self.queues[queue]);
            for left in (0..messages).rev() {
                let posted = Posted {
                    op: plan.op,
                    size: plan.size,
                    wr_id: queue.begun,
                    signaled: plan.signals(queue.begun) || left == 0,
                    solicited: left == 0,
                    offset: 0,
                    capsule: None,
                };
                if !nic.post(now, queue.slot, &posted) {
                    self.failure.get_or_insert(Status::LocalQpOperation);
                }
                queue.begun += 1;
            }
        }
    }

    /// Lets a thread post a list if there is room, and otherwise take completions.
    fn work(&mut self, thread: usize, at: Instant, nic: &mut Nic) {
        let (plan, queue) = (&self.plan, &mut self.queues[thread]);
        let left = match plan.goal {
            Goal::Messages(goal) => goal - queue.posted,
            Goal::Time(_) => u64::MAX,
        };
        let list = std::mem::replace(&mut queue.list, plan.post_list).min(left);
        if list > 0 && queue.posted - queue.completed + list <= plan.tx_depth {
            queue.posted += list;
            let (post, _) = nic.costs();
            let cost = post.times(list) + nic.list_cost();
            let until = self.threads.occupy(thread, at, cost);
            self.doorbells.push(Reverse((nic.doorbell(until), thread, list)));
            return;
        }
        let (mut latest, mut failure) = (queue.completed, None);
        let taken = self.threads.poll(thread, nic, |completion| match completion.status {
            Status::Success => latest = completion.wr_id + 1,
            status => failure = failure.or(Some(status)),
        });
        if taken == 0 {
            return self.threads.sleep(thread, at);
        }
        let done = latest - queue.completed;
        queue.completed = latest;
        self.messages += done;
        self.early += if at < self.threads.window.from { done } else { 0 };
        self.failure = self.failure.or(failure);
        self.last = at;
        if plan.goal == Goal::Messages(latest) {
            self.unfinished -= 1;
        }
        let (_, poll) = nic.costs();
        self.threads.occupy(thread, at, poll.times(taken as u64));
    }
}
