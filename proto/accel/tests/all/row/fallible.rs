//! A box that may crash, with its cables.

use longhaul_accel::Accelerator;
use longhaul_node::{Deadline, Frame, Node, Side, Transmit};
use longhaul_units::{Duration, Instant};

/// A box in the row; side 0 is the requester's.
pub trait Boxed: Node {
    /// The same box with empty memory, as after a restart.
    fn reborn(&self) -> Self;

    /// The accelerator in it that acknowledges the row's requests.
    fn serving(&self) -> &Accelerator;
}

impl Boxed for Accelerator {
    fn reborn(&self) -> Self {
        Accelerator::new(self.config().clone()).expect("valid")
    }

    fn serving(&self) -> &Accelerator {
        self
    }
}

/// When a box crashes, and how long it is down.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Crash {
    /// After this event of the box: a frame received, a frame sent, a timer.
    pub after: u64,
    pub away: Duration,
}

/// A box that may crash, with its cables, which may lose frames.
pub struct Fallible<B> {
    pub node: B,
    pub events: u64,
    pub crash: Option<Crash>,
    /// Lost before reception: side, and number of the frame among those received on it.
    pub lost: Vec<(Side, u64)>,
    /// Lost after transmission: side and number likewise.
    pub lost_behind: Vec<(Side, u64)>,
    left: [u64; 2],
    came: [u64; 2],
    away_until: Instant,
}

impl<B: Boxed> Fallible<B> {
    pub fn new(node: B) -> Self {
        Fallible {
            node,
            events: 0,
            crash: None,
            lost: Vec::new(),
            lost_behind: Vec::new(),
            left: [0; 2],
            came: [0; 2],
            away_until: Instant::ZERO,
        }
    }

    fn note(&mut self, now: Instant, events: u64) {
        let before = self.events;
        self.events += events;
        let Some(crash) = self.crash else { return };
        if (before + 1..=self.events).contains(&crash.after) {
            self.node = self.node.reborn();
            self.away_until = now + crash.away;
        }
    }

    fn is_away(&self, now: Instant) -> bool {
        self.away_until > now
    }
}

/// Counts sent frames, and drops all after `left`.
struct Counted<'a> {
    out: &'a mut dyn Transmit,
    left: u64,
    sent: u64,
    lost: &'a [(Side, u64)],
    by_side: &'a mut [u64; 2],
}

impl Transmit for Counted<'_> {
    fn room(&mut self, side: Side) -> usize {
        if self.left == 0 { 0 } else { self.out.room(side) }
    }

    fn transmit(&mut self, side: Side, frame: &Frame<'_>) {
        if self.left > 0 {
            self.left -= 1;
            self.sent += 1;
            self.by_side[side] += 1;
            if !self.lost.contains(&(side, self.by_side[side])) {
                self.out.transmit(side, frame);
            }
        }
    }
}

impl<B: Boxed> Node for Fallible<B> {
    fn handle_frame(&mut self, now: Instant, side: Side, frame: &Frame<'_>) {
        self.came[side] += 1;
        if self.is_away(now) || self.lost.contains(&(side, self.came[side])) {
            return;
        }
        self.node.handle_frame(now, side, frame);
        self.note(now, 1);
    }

    fn handle_timeout(&mut self, now: Instant) {
        if self.is_away(now) {
            return;
        }
        let is_due = self.node.poll_timeout().is_some_and(|due| due.at <= now);
        self.node.handle_timeout(now);
        self.note(now, u64::from(is_due));
    }

    fn poll_transmit(&mut self, now: Instant, out: &mut dyn Transmit) {
        if self.is_away(now) {
            return;
        }
        let ahead = self.crash.filter(|crash| crash.after > self.events);
        let left = ahead.map_or(u64::MAX, |crash| crash.after - self.events);
        let mut counted =
            Counted { out, left, sent: 0, lost: &self.lost_behind, by_side: &mut self.left };
        self.node.poll_transmit(now, &mut counted);
        let sent = counted.sent;
        self.note(now, sent);
    }

    fn poll_timeout(&self) -> Option<Deadline> {
        let back = Deadline { at: self.away_until, reason: "away" };
        let due = self.node.poll_timeout();
        due.map(|due| Deadline { at: due.at.max(back.at), ..due })
    }
}
