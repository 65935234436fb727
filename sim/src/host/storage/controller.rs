//! The target of an association: fetches data, accesses drives and responds.

use super::Commands;
use crate::host::doorbells::Doorbells;
use crate::host::{Nic, Op, Posted, Seen};
use longhaul_rnic::Status;
use longhaul_units::{Duration, Instant};
use std::collections::BTreeMap;

/// `wr_id` of READs; receives have 0.
const FETCH: u64 = 1;

/// What a processor has to do for a command of a slot.
#[derive(Clone, Copy)]
enum Step {
    /// Its capsule is here.
    Begin,
    /// Its data are here.
    Fetched,
    /// Its data are read or written.
    Respond,
}

/// Progress of a slot's commands. As many READs as the NIC begins are posted, so that none delays a
/// response.
#[derive(Clone, Copy, Default)]
struct Queue {
    posted: u32,
    waiting: u32,
    /// Commands whose data were or are being fetched, and that were responded to.
    fetched: u64,
    responded: u64,
}

#[derive(Default)]
struct Core {
    steps: BTreeMap<(Instant, u64), (Step, usize)>,
    busy_until: Instant,
}

/// The program.
pub(crate) struct Controller {
    commands: Commands,
    cores: Vec<Core>,
    /// Core of each slot.
    by_slot: Vec<usize>,
    /// Queue of each slot.
    queues: Vec<Queue>,
    /// Number of the next step.
    count: u64,
    doorbells: Doorbells,
    /// End of the drives' last transfer.
    transferred_at: Instant,
    /// Time and status of the first failed work request.
    pub failure: Option<(Instant, Status)>,
}

impl Controller {
    pub fn new(commands: Commands) -> Self {
        Controller {
            commands,
            cores: (0..commands.storage.cores.max(1)).map(|_| Core::default()).collect(),
            by_slot: Vec::new(),
            queues: Vec::new(),
            count: 0,
            doorbells: Doorbells::default(),
            transferred_at: Instant::ZERO,
            failure: None,
        }
    }

    /// Work requests for which a send queue had no room.
    pub fn refused(&self) -> u64 {
        self.doorbells.refused
    }

    pub fn start(&mut self, _at: Instant, slots: Vec<usize>, nic: &mut Nic) {
        let highest = slots.iter().max().copied().unwrap_or(0);
        self.by_slot = vec![0; highest + 1];
        self.queues = vec![Queue::default(); highest + 1];
        for (index, slot) in slots.into_iter().enumerate() {
            self.by_slot[slot] = index % self.cores.len();
            for _ in 0..Commands::receives(self.commands.depth) {
                nic.post_capsule_receive(slot, self.commands.capsule());
            }
        }
    }

    pub fn complete(&mut self, seen: Seen) {
        if seen.completion.status != Status::Success {
            self.failure.get_or_insert((seen.at, seen.completion.status));
            return;
        }
        let step = if seen.completion.wr_id == FETCH { Step::Fetched } else { Step::Begin };
        self.add(seen.at, step, seen.slot);
    }

    pub fn next_at(&self) -> Option<Instant> {
        let turns = self.cores.iter().filter_map(|core| {
            core.steps.first_key_value().map(|((at, _), _)| (*at).max(core.busy_until))
        });
        turns.chain(self.doorbells.next_at()).min()
    }

    pub fn run(&mut self, now: Instant, nic: &mut Nic) {
        for index in 0..self.cores.len() {
            while self.cores[index].busy_until <= now
                && let Some(entry) =
                    self.cores[index].steps.first_entry().filter(|entry| entry.key().0 <= now)
            {
                let (step, slot) = entry.remove();
                let begins_at = self.cores[index].busy_until.max(now);
                self.cores[index].busy_until = self.carry_out(begins_at, step, slot, nic);
            }
        }
        self.doorbells.ring(now, nic);
    }

    fn add(&mut self, at: Instant, step: Step, slot: usize) {
        self.count += 1;
        self.cores[self.by_slot[slot]].steps.insert((at, self.count), (step, slot));
    }

    /// Returns the time at which the processor has done a step that begins at `at`.
    fn carry_out(&mut self, at: Instant, step: Step, slot: usize, nic: &mut Nic) -> Instant {
        let (post, poll) = nic.costs();
        match step {
            Step::Begin => {
                nic.post_capsule_receive(slot, self.commands.capsule());
                let at = at + poll + post + self.commands.storage.command;
                if self.commands.op == Op::Read || self.commands.is_in_capsule() {
                    return self.access(at, slot, nic);
                }
                let queue = &mut self.queues[slot];
                if queue.posted >= nic.reads_max() {
                    queue.waiting += 1;
                    return at;
                }
                queue.posted += 1;
                self.fetch(at, slot, nic)
            }
            Step::Fetched => {
                let queue = &mut self.queues[slot];
                let at = at + poll;
                let at = if queue.waiting > 0 {
                    queue.waiting -= 1;
                    self.fetch(at, slot, nic)
                } else {
                    queue.posted -= 1;
                    at
                };
                self.access(at, slot, nic)
            }
            Step::Respond => self.respond(at, slot, nic),
        }
    }

    /// Posts a READ of a command's data.
    fn fetch(&mut self, at: Instant, slot: usize, nic: &Nic) -> Instant {
        let (post, _) = nic.costs();
        let at = at + post + nic.list_cost();
        let queue = &mut self.queues[slot];
        let offset = self.commands.offset(queue.fetched);
        queue.fetched += 1;
        self.doorbells.add(nic.doorbell(at), slot, self.data(Op::Read, true, offset));
        at
    }

    /// Accesses the drives, which transfer one after the other, and responds if that takes no time.
    fn access(&mut self, at: Instant, slot: usize, nic: &Nic) -> Instant {
        let Commands { size, storage, .. } = self.commands;
        let transfer =
            storage.drive_rate.map_or(Duration::ZERO, |it| it.time_for_bytes(size.into()));
        let ends_at = (at + storage.drive_latency).max(self.transferred_at) + transfer;
        self.transferred_at = ends_at;
        if ends_at <= at {
            return self.respond(at, slot, nic);
        }
        self.add(ends_at, Step::Respond, slot);
        at
    }

    /// Posts the response, behind the data of a read.
    fn respond(&mut self, at: Instant, slot: usize, nic: &Nic) -> Instant {
        let (post, _) = nic.costs();
        let is_read = self.commands.op == Op::Read;
        let at = at + post.times(1 + u64::from(is_read)) + nic.list_cost();
        if is_read {
            self.doorbells.add(nic.doorbell(at), slot, self.data(Op::Write, false, 0));
        }
        let queue = &mut self.queues[slot];
        let response = self.commands.response(queue.responded);
        queue.responded += 1;
        self.doorbells.add(nic.doorbell(at), slot, response);
        at
    }

    /// An RDMA operation on a command's data, at this offset in the host's memory.
    fn data(&self, op: Op, signaled: bool, offset: u64) -> Posted {
        Posted {
            op,
            size: self.commands.size,
            wr_id: FETCH,
            signaled,
            solicited: false,
            offset,
            capsule: None,
        }
    }
}
