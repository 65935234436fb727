//! The host of an association: keeps commands outstanding on each I/O queue.

use super::{Commands, RESPONSE};
use crate::host::doorbells::Doorbells;
use crate::host::{Goal, Nic, Seen};
use longhaul_rnic::Status;
use longhaul_units::{Duration, Instant};
use std::collections::VecDeque;

/// An I/O queue, with a thread of its own that polls.
struct Queue {
    slot: usize,
    submitted: u64,
    completed: u64,
    /// Submission times of the outstanding commands. A response counts as that of the oldest, which
    /// leaves the mean of all latencies what it is.
    submitted_at: VecDeque<Instant>,
    responses: VecDeque<Seen>,
    busy_until: Instant,
}

/// The program.
pub(crate) struct Initiator {
    commands: Commands,
    queues: Vec<Queue>,
    /// Queue of each slot.
    by_slot: Vec<usize>,
    doorbells: Doorbells,
    pub began: Instant,
    stops_at: Option<Instant>,
    unfinished: usize,
    /// Time of the last polled response.
    pub last: Instant,
    /// Commands completed, and those of them that do not count.
    pub messages: u64,
    pub early: u64,
    /// Times from submission to polled response.
    pub latencies: Vec<Duration>,
    /// Status of the first failed work request.
    pub failure: Option<Status>,
}

impl Initiator {
    pub fn new(commands: Commands) -> Self {
        Initiator {
            commands,
            queues: Vec::new(),
            by_slot: Vec::new(),
            doorbells: Doorbells::default(),
            began: Instant::ZERO,
            stops_at: None,
            unfinished: 0,
            last: Instant::ZERO,
            messages: 0,
            early: 0,
            latencies: Vec::new(),
            failure: None,
        }
    }

    pub fn commands(&self) -> &Commands {
        &self.commands
    }

    /// Work requests for which a send queue had no room.
    pub fn refused(&self) -> u64 {
        self.doorbells.refused
    }

    pub fn start(&mut self, at: Instant, slots: Vec<usize>, nic: &mut Nic) {
        let highest = slots.iter().max().copied().unwrap_or(0);
        self.by_slot = vec![usize::MAX; highest + 1];
        for (index, slot) in slots.into_iter().enumerate() {
            self.by_slot[slot] = index;
            for _ in 0..Commands::receives(self.commands.depth) {
                nic.post_capsule_receive(slot, RESPONSE);
            }
            self.queues.push(Queue {
                slot,
                submitted: 0,
                completed: 0,
                submitted_at: VecDeque::new(),
                responses: VecDeque::new(),
                busy_until: at,
            });
        }
        self.unfinished = self.queues.len();
        (self.began, self.last) = (at, at);
        if let Goal::Time(time) = self.commands.goal {
            self.stops_at = Some(at + time);
        }
    }

    /// `true` after success or failure.
    pub fn is_done(&self) -> bool {
        self.failure.is_some() || self.unfinished == 0
    }

    pub fn complete(&mut self, seen: Seen) {
        self.queues[self.by_slot[seen.slot]].responses.push_back(seen);
    }

    pub fn next_at(&self) -> Option<Instant> {
        if self.is_done() {
            return None;
        }
        let turns = self.queues.iter().filter_map(|queue| {
            let work = if queue.has_room(&self.commands) {
                Some(self.began)
            } else {
                queue.responses.front().map(|seen| seen.at)
            };
            work.map(|at| at.max(queue.busy_until))
        });
        turns.chain(self.doorbells.next_at()).chain(self.stops_at).min()
    }

    pub fn run(&mut self, now: Instant, nic: &mut Nic) {
        if self.is_done() || now < self.began {
            return;
        }
        if self.stops_at.is_some_and(|at| at <= now) {
            self.unfinished = 0;
            self.last = now;
            return;
        }
        for index in 0..self.queues.len() {
            while self.queues[index].busy_until <= now && self.turn(now, index, nic) {}
        }
        self.doorbells.ring(now, nic);
    }

    /// One step of a queue's thread. `false` if there is nothing to do.
    fn turn(&mut self, now: Instant, index: usize, nic: &mut Nic) -> bool {
        let (post, poll) = nic.costs();
        let queue = &mut self.queues[index];
        if queue.has_room(&self.commands) {
            queue.busy_until = queue.busy_until.max(now) + post + nic.list_cost();
            let command = self.commands.command(queue.submitted, nic.own_memory(queue.slot));
            queue.submitted += 1;
            queue.submitted_at.push_back(queue.busy_until);
            self.doorbells.add(nic.doorbell(queue.busy_until), queue.slot, command);
            return true;
        }
        let Some(seen) = queue.responses.front().copied().filter(|seen| seen.at <= now) else {
            return false;
        };
        queue.responses.pop_front();
        if seen.completion.status != Status::Success {
            self.failure.get_or_insert(seen.completion.status);
            return false;
        }
        nic.post_capsule_receive(seen.slot, RESPONSE);
        let at = queue.busy_until.max(now) + poll + post;
        queue.busy_until = at;
        queue.completed += 1;
        self.messages += 1;
        self.early += u64::from(at < self.commands.counts_from);
        self.last = at;
        if let Some(submitted) = queue.submitted_at.pop_front() {
            self.latencies.push(at.since(submitted));
        }
        if self.commands.goal == Goal::Messages(queue.completed) {
            self.unfinished -= 1;
        }
        true
    }
}

impl Queue {
    fn has_room(&self, commands: &Commands) -> bool {
        let is_wanted = match commands.goal {
            Goal::Messages(goal) => self.submitted < goal,
            Goal::Time(_) => true,
        };
        is_wanted && self.submitted - self.completed < u64::from(commands.depth)
    }
}
