//! Threads that wait for completion events, and the processor time that they take.

use super::Nic;
use crate::profile::NicProfile;
use longhaul_rnic::{Completion, CqId, VerbsError};
use longhaul_units::{Duration, Instant};
use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// Completions that one call takes.
const POLLED: usize = 64;

/// The time during which a flow is measured.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Window {
    pub from: Instant,
    pub until: Instant,
}

impl Window {
    /// Without beginning and end.
    pub const ALWAYS: Window = Window { from: Instant::ZERO, until: Instant::from_ps(u64::MAX) };

    /// Returns whether `at` is within.
    pub fn holds(&self, at: Instant) -> bool {
        self.from <= at && at < self.until
    }

    /// The shortest window that covers both.
    pub fn joined(self, other: Window) -> Window {
        Window { from: self.from.min(other.from), until: self.until.max(other.until) }
    }
}

/// What a program's threads did within its window.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Load {
    /// Processor time of all threads.
    pub busy: Duration,
    /// Events taken from completion channels.
    pub events: u64,
    /// Events that woke a sleeping thread.
    pub wakeups: u64,
}

/// State of a thread. All but [`State::Asleep`] have one entry in the schedule.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum State {
    /// Waits for an event.
    Asleep,
    /// About to take an event from the channel.
    Woken,
    /// About to request the next event.
    Arming,
    /// At work.
    Running,
}

struct Thread {
    cq: CqId,
    state: State,
    /// An event waits in the channel.
    has_event: bool,
}

/// The threads of a program, each with a completion queue and a channel of its own.
pub(crate) struct Threads {
    all: Vec<Thread>,
    steps: BinaryHeap<Reverse<(Instant, usize)>>,
    solicited_only: bool,
    /// The thread that took the last event.
    last: usize,
    pub window: Window,
    pub load: Load,
}

impl Threads {
    /// No threads. Those that are added wait for solicited events only, or for all.
    pub fn new(solicited_only: bool, window: Window) -> Self {
        Threads {
            all: Vec::new(),
            steps: BinaryHeap::new(),
            solicited_only,
            last: 0,
            window,
            load: Load::default(),
        }
    }

    /// Number of threads.
    pub fn len(&self) -> usize {
        self.all.len()
    }

    /// Adds a thread to program number `program`, with a completion queue of `depth`. Returns its
    /// number and the queue.
    pub fn add(
        &mut self,
        program: usize,
        depth: u32,
        nic: &mut Nic,
    ) -> Result<(usize, CqId), VerbsError> {
        let thread = self.all.len();
        let cq = nic.create_cq(depth, (program, thread))?;
        self.all.push(Thread { cq, state: State::Asleep, has_event: false });
        Ok((thread, cq))
    }

    /// The completion queue of a thread.
    pub fn cq(&self, thread: usize) -> CqId {
        self.all[thread].cq
    }

    /// Starts a thread that has not begun yet.
    pub fn start(&mut self, thread: usize, at: Instant) {
        self.put(thread, at, State::Arming);
    }

    /// Handles an event that a thread can see at `at`.
    pub fn notify(&mut self, thread: usize, at: Instant, nic: &Nic) {
        match self.all[thread].state {
            State::Asleep => {
                self.load.wakeups += u64::from(self.window.holds(at));
                let wakeup = Duration::from_ns(nic.profile.wakeup_ns);
                self.put(thread, at + wakeup, State::Woken);
            }
            _ => self.all[thread].has_event = true,
        }
    }

    /// Time of the next step.
    pub fn next_at(&self) -> Option<Instant> {
        self.steps.peek().map(|Reverse((at, _))| *at)
    }

    /// Returns the next thread that is at work at `now`, and since when. The caller then calls
    /// [`Threads::occupy`] or [`Threads::sleep`].
    pub fn next(&mut self, now: Instant, nic: &mut Nic) -> Option<(usize, Instant)> {
        while let Some(&Reverse((at, thread))) = self.steps.peek()
            && at <= now
        {
            self.steps.pop();
            match self.all[thread].state {
                State::Asleep => {}
                State::Woken => {
                    self.load.events += u64::from(self.window.holds(at));
                    let is_other = std::mem::replace(&mut self.last, thread) != thread;
                    let NicProfile { event_ns, switch_ns, .. } = nic.profile;
                    let ns = event_ns + if is_other { switch_ns } else { 0 };
                    let until = self.charge(at, Duration::from_ns(ns));
                    self.put(thread, until, State::Arming);
                }
                State::Arming => {
                    nic.arm(self.all[thread].cq, self.solicited_only);
                    self.all[thread].state = State::Running;
                    return Some((thread, at));
                }
                State::Running => return Some((thread, at)),
            }
        }
        None
    }

    /// Lets a thread work for `cost` from `at` on. Returns the end of it, when it runs again.
    pub fn occupy(&mut self, thread: usize, at: Instant, cost: Duration) -> Instant {
        let until = self.charge(at, cost);
        self.put(thread, until, State::Running);
        until
    }

    /// Lets a thread wait for its next event, which may be there already.
    pub fn sleep(&mut self, thread: usize, at: Instant) {
        if std::mem::take(&mut self.all[thread].has_event) {
            self.put(thread, at, State::Woken);
        } else {
            self.all[thread].state = State::Asleep;
        }
    }

    /// Takes completions from a thread's queue.
    pub fn poll(&self, thread: usize, nic: &mut Nic, take: impl FnMut(Completion)) -> usize {
        nic.rnic.poll_cq(self.all[thread].cq, POLLED, take)
    }

    fn charge(&mut self, at: Instant, cost: Duration) -> Instant {
        if self.window.holds(at) {
            self.load.busy = self.load.busy + cost;
        }
        at + cost
    }

    fn put(&mut self, thread: usize, at: Instant, state: State) {
        self.all[thread].state = state;
        self.steps.push(Reverse((at, thread)));
    }
}
