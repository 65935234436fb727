//! Priority-based pauses requested by the link partner.
//!
//! On real ports the MAC obeys pause frames and delivers none of them. Here they arrive without a
//! MAC: over shared memory from a software switch, and in virtual time.

use crate::{DropReason, Memory, Rnic};
use longhaul_node::{Deadline, Frame};
use longhaul_units::Instant;
use longhaul_wire::{PRIORITIES, Pause, priority_of};
use longhaul_work::Counter;

/// Priority of packets without a DSCP: management datagrams, neighbour solicitations.
pub(crate) const MANAGEMENT: u8 = 0;
/// Priority of CNPs: DSCP 48.
pub(crate) const NOTIFICATIONS: u8 = 6;

/// Paused priorities, and the QPs that wait for them.
#[derive(Debug, Default)]
pub(crate) struct Pauses {
    /// One bit per priority.
    paused: u8,
    since: [Instant; PRIORITIES],
    until: [Instant; PRIORITIES],
    /// QPs with packets to send whose priority is paused.
    waiting: Vec<u32>,
}

impl Pauses {
    /// `true` if any priority is paused.
    #[inline]
    pub fn is_any(&self) -> bool {
        self.paused != 0
    }

    /// `true` if this priority is paused.
    #[inline]
    pub fn holds(&self, priority: u8) -> bool {
        self.paused >> priority & 1 != 0
    }

    /// Keeps a QP's turn until its priority is resumed.
    pub fn keep(&mut self, slot: u32) {
        self.waiting.push(slot);
    }

    /// Removes a destroyed QP.
    pub fn forget(&mut self, slot: u32) {
        self.waiting.retain(|&waiting| waiting != slot);
    }

    /// Earliest time at which a pause expires.
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
    /// Handles a frame that belongs neither to RoCEv2 nor to neighbour discovery.
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

    /// Counts the time paused up to `now`.
    fn count_pause(&mut self, now: Instant, priority: usize) {
        if self.pauses.holds(priority as u8) {
            let paused = self.pauses.until[priority].min(now).since(self.pauses.since[priority]);
            self.env.counters.add(Counter::RxPausedNs, paused.as_ns());
        }
    }

    /// Resumes the priorities whose pause has expired.
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

    /// `true` if the QP in `slot`, whose turn it is, must wait; it then keeps its turn.
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
