//! The thread of a box that competes for a core: it alternates between running and waiting, and
//! while it waits, arrivals stay in its ports.

use longhaul_node::{Deadline, Frame, FrameBuf, FramePool, Node, Side};
use longhaul_units::{Duration, Instant, Rng, SplitMix64};
use longhaul_wan::Transport;
use std::collections::VecDeque;

/// Frames that one driver turn takes from the ports, and the duration of a turn.
const BATCH: usize = 64;
const TURN: Duration = Duration::from_us(40);

pub struct Starved {
    rng: SplitMix64,
    /// Maximum time that it runs, and that it waits, without interruption.
    runs: Duration,
    waits: Duration,
    is_running: bool,
    /// Time at which it starts or stops running.
    changes_at: Instant,
    turn_at: Instant,
    ports: VecDeque<(Side, FrameBuf)>,
    pool: FramePool,
}

impl Starved {
    /// Runs for up to `runs` and waits for up to `waits`, at random.
    pub fn new(seed: u64, runs: Duration, waits: Duration) -> Self {
        Starved {
            rng: SplitMix64::new(seed),
            runs,
            waits,
            is_running: true,
            changes_at: Instant::ZERO,
            turn_at: Instant::ZERO,
            ports: VecDeque::new(),
            pool: FramePool::new(),
        }
    }

    pub fn is_running(&self) -> bool {
        self.is_running
    }

    pub fn keep(&mut self, side: Side, frame: &Frame<'_>) {
        self.ports.push_back((side, self.pool.hold(frame)));
    }

    /// Starts or stops running when it is time.
    pub fn pass_time(&mut self, now: Instant) {
        while self.changes_at <= now {
            self.is_running = !self.is_running;
            let most = if self.is_running { self.runs } else { self.waits };
            let lasts = Duration::from_ns(self.rng.next_u64() % most.as_ns().max(1));
            self.changes_at = self.changes_at.max(now) + lasts;
        }
    }

    /// Runs one driver turn: a batch of arrivals, then the deadline if it has passed. Returns
    /// `false` if there was nothing to do.
    pub fn turn(&mut self, now: Instant, node: &mut Transport) -> bool {
        let due = node.poll_timeout().is_some_and(|due| due.at <= now);
        if !self.is_running || self.turn_at > now || self.ports.is_empty() && !due {
            return false;
        }
        let count = self.ports.len().min(BATCH);
        for (side, frame) in self.ports.drain(..count) {
            node.handle_frame(now, side, &frame.as_frame());
        }
        if due {
            node.handle_timeout(now);
        }
        self.turn_at = now + TURN;
        true
    }

    /// Time at which it resumes; until then its deadlines wait.
    pub fn deadline(&self, node: &Transport) -> Option<Deadline> {
        let changes = Some(Deadline { at: self.changes_at, reason: "a core" });
        if !self.is_running {
            return changes;
        }
        let turn =
            (!self.ports.is_empty()).then_some(Deadline { at: self.turn_at, reason: "a turn" });
        let due = node.poll_timeout().map(|due| Deadline { at: due.at.max(self.turn_at), ..due });
        [turn, due].into_iter().fold(changes, Deadline::earliest)
    }
}
