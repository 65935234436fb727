//! The responder of a bandwidth test whose threads wait for completion events: one for each QP, or
//! one for all QPs of a shared receive queue.

use super::Nic;
use super::events::Threads;
use longhaul_rnic::Status;
use longhaul_units::{Duration, Instant};

/// The program.
pub(crate) struct Listener {
    size: u32,
    depth: u32,
    threads: Threads,
    /// QPs that share a receive queue; 0: each has its own.
    sharing: u64,
    /// Slots of each thread whose receives are posted next.
    taken: Vec<Vec<usize>>,
    /// Status of the first failed receive.
    pub failure: Option<Status>,
}

impl Listener {
    /// Keeps `depth` receives of `size` bytes posted on each QP, or the shared queue full.
    pub fn new(size: u32, depth: u32, threads: Threads) -> Self {
        Listener { size, depth, threads, sharing: 0, taken: Vec::new(), failure: None }
    }

    pub fn threads(&self) -> &Threads {
        &self.threads
    }

    pub fn threads_mut(&mut self) -> &mut Threads {
        &mut self.threads
    }

    /// Accepts messages of `size` bytes too.
    pub fn admit(&mut self, size: u32) {
        self.size = self.size.max(size);
    }

    /// Without a shared queue, `slots` are in the order of the threads.
    pub fn start(&mut self, at: Instant, slots: Vec<usize>, nic: &mut Nic) {
        self.taken.resize(self.threads.len(), Vec::new());
        if nic.is_shared() {
            if self.sharing == 0 {
                self.threads.start(0, at);
            }
            self.sharing += slots.len() as u64;
            nic.fill_shared(self.size);
            return;
        }
        for (thread, slot) in slots.into_iter().enumerate() {
            (0..self.depth).for_each(|_| {
                nic.post_receive(slot, self.size);
            });
            self.threads.start(thread, at);
        }
    }

    pub fn next_at(&self) -> Option<Instant> {
        self.threads.next_at()
    }

    pub fn run(&mut self, now: Instant, nic: &mut Nic) {
        while let Some((thread, at)) = self.threads.next(now, nic) {
            self.work(thread, at, nic);
        }
    }

    /// Lets a thread post the receives of the last batch, and take the next.
    fn work(&mut self, thread: usize, at: Instant, nic: &mut Nic) {
        let mut slots = std::mem::take(&mut self.taken[thread]);
        for slot in slots.drain(..) {
            nic.post_receive(slot, self.size);
        }
        let mut completions = Vec::new();
        let taken = self.threads.poll(thread, nic, |completion| completions.push(completion));
        for completion in &completions {
            if completion.status != Status::Success {
                self.failure.get_or_insert(completion.status);
                continue;
            }
            slots.push(nic.arrived(at, completion));
        }
        self.taken[thread] = slots;
        if taken == 0 {
            return self.threads.sleep(thread, at);
        }
        let (post, poll) = nic.costs();
        let search = Duration::from_ps(nic.profile.search_ps.saturating_mul(self.sharing));
        let each = post + poll + search;
        self.threads.occupy(thread, at, each.times(taken as u64));
    }
}
