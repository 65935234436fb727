//! Pauses that the link's other end asks for, by priority.
//!
//! On real ports the MAC obeys pause frames and hands none of them up. Here they come where no MAC
//! is: over shared memory from a software switch, and in virtual time.

use crate::{DropReason, Memory, Rnic};
use longhaul_node::{Deadline, Frame};
use longhaul_units::Instant;
use longhaul_wire::{PRIORITIES, Pause, priority_of};
use longhaul_work::Counter;

/// The priority of what has no DSCP: management datagrams, neighbour solicitations.
pub(crate) const MANAGEMENT: u8 = 0;
/// The priority of CNPs: DSCP 48.
pub(crate) const NOTIFICATIONS: u8 = 6;

/// Which priorities are paused, and whose turns wait for them.
#[derive(Debug, Default)]
pub(crate) struct Pauses {
    /// A bit for each priority.
    paused: u8,
    since: [Instant; PRIORITIES],
    until: [Instant; PRIORITIES],
    /// QPs that have something to send, and whose priority is paused.
    waiting: Vec<u32>,
}

impl Pauses {
    /// True while any priority is paused.
    #[inline]
    pub fn is_any(&self) -> bool {
        self.paused != 0
    }

    /// Whether this priority is paused.
    #[inline]
    pub fn holds(&self, priority: u8) -> bool {
        self.paused >> priority & 1 != 0
    }

    /// Keeps a QP's turn until its priority may go on.
    pub fn keep(&mut self, slot: u32) {
        self.waiting.push(slot);
    }

    /// A QP is gone.
    pub fn forget(&mut self, slot: u32) {
        self.waiting.retain(|&waiting| waiting != slot);
    }

    /// The next moment at which a priority may go on by itself.
    #[inline]
    pub fn deadline(&self) -> Option<Deadline> {
        if !self.is_any() {
            return None;
        }
        let paused = (0..PRIORITIES as u8).filter(|priority| self.holds(*priority));
        let at = paused.map(|priority| self.until[usize::from(priority)]).min()?;
        Some(Deadline { at, reason: "paused by the link's other end" })
    }
}

impl<M: Memory> Rnic<M> {
    /// A frame that is neither RoCEv2 nor about neighbours.
    pub(crate) fn accept_pause(
        &mut self,
        now: Instant,
        frame: &Frame<'_>,
    ) -> Result<(), DropReason> {
        if !Pause::is_mac_control(frame.head) {
            return Err(DropReason::NotRoce);
        }
        let pause = Pause::parse(frame.head).ok_or(DropReason::MacControl)?;
        let rate = self.config.link_rate.ok_or(DropReason::MacControl)?;
        self.env.counters.count(Counter::RxPause);
        for (priority, quanta) in pause.quanta.iter().enumerate() {
            let Some(quanta) = quanta else { continue };
            self.count_pause(now, priority);
            self.pauses.since[priority] = now;
            self.pauses.until[priority] = now + Pause::time(*quanta, rate);
            self.pauses.paused |= 1 << priority;
        }
        self.end_pauses(now);
        Ok(())
    }

    /// Counts what there was of a pause until now.
    fn count_pause(&mut self, now: Instant, priority: usize) {
        if self.pauses.holds(priority as u8) {
            let paused = self.pauses.until[priority].min(now).since(self.pauses.since[priority]);
            self.env.counters.add(Counter::RxPausedNs, paused.as_ns());
        }
    }

    /// Lets those priorities go on whose pause is over.
    #[cold]
    pub(crate) fn end_pauses(&mut self, now: Instant) {
        let before = self.pauses.paused;
        for priority in 0..PRIORITIES {
            if self.pauses.holds(priority as u8) && self.pauses.until[priority] <= now {
                self.count_pause(now, priority);
                self.pauses.paused &= !(1 << priority);
            }
        }
        if self.pauses.paused != before {
            self.pauses.waiting.drain(..).for_each(|slot| self.ready_qps.push(slot));
        }
    }

    /// Whether the QP in `slot`, whose turn it is, has to wait; it then keeps its turn.
    #[cold]
    pub(crate) fn waits_for_link(&mut self, slot: u32) -> bool {
        let Some(Some(qp)) = self.qps.get(slot as usize) else { return false };
        let waits = self.pauses.holds(priority_of(qp.template.bytes()));
        if waits {
            self.pauses.keep(slot);
        }
        waits
    }
}
