//! Pacing of a sender, and the gate that enforces it.

use crate::{JointPacer, JointRate, Pacer};
use longhaul_units::{BitRate, Instant};

/// Rate limit of a sender.
#[derive(Clone, Debug, Default, PartialEq)]
pub enum Pacing {
    /// The rate at which the port accepts frames.
    #[default]
    Unlimited,
    /// A rate of its own.
    Own(BitRate),
    /// A rate shared with other senders: each may use what the others leave.
    Shared(JointRate),
}

impl Pacing {
    /// The rate that all senders together do not exceed, if there is one.
    pub fn rate(&self) -> Option<BitRate> {
        match self {
            Pacing::Unlimited => None,
            Pacing::Own(rate) => Some(*rate),
            Pacing::Shared(joint) => Some(joint.rate()),
        }
    }
}

impl From<Option<BitRate>> for Pacing {
    fn from(rate: Option<BitRate>) -> Self {
        rate.map_or(Pacing::Unlimited, Pacing::Own)
    }
}

/// Admits frames at a sender's [`Pacing`], and remembers until when a frame waits.
#[derive(Debug)]
pub struct Gate {
    pacer: GatePacer,
    waiting_until: Option<Instant>,
}

#[derive(Debug)]
enum GatePacer {
    Unlimited,
    Own(Pacer),
    Shared(JointPacer),
}

impl Gate {
    /// Creates a gate. `burst_bytes` may be sent back to back after a pause; a shared rate has no
    /// burst.
    pub fn new(pacing: &Pacing, burst_bytes: u64) -> Self {
        let pacer = match pacing {
            Pacing::Unlimited => GatePacer::Unlimited,
            Pacing::Own(rate) => GatePacer::Own(Pacer::new(*rate, burst_bytes)),
            Pacing::Shared(joint) => GatePacer::Shared(JointPacer::new(joint.clone())),
        };
        Gate { pacer, waiting_until: None }
    }

    /// `true` if a frame may be sent at `now`; otherwise a frame counts as waiting.
    #[inline]
    pub fn is_open(&mut self, now: Instant) -> bool {
        let ready = match &self.pacer {
            GatePacer::Unlimited => return true,
            GatePacer::Own(pacer) => pacer.ready_at(now),
            GatePacer::Shared(pacer) => pacer.ready_at(now),
        };
        self.waiting_until = (ready > now).then_some(ready);
        ready <= now
    }

    /// Counts `bytes` on the wire as sent at `now`.
    #[inline]
    pub fn take(&mut self, now: Instant, bytes: u64) {
        match &mut self.pacer {
            GatePacer::Unlimited => {}
            GatePacer::Own(pacer) => pacer.take(now, bytes),
            GatePacer::Shared(pacer) => pacer.take(now, bytes),
        }
    }

    /// Paces to a rate of its own from `now` on. Credit and debt of a previous own rate carry over,
    /// as in [`Pacer::retune`].
    pub fn retune(&mut self, now: Instant, rate: BitRate, burst_bytes: u64) {
        match &mut self.pacer {
            GatePacer::Own(pacer) => pacer.retune(now, rate, burst_bytes),
            pacer => *pacer = GatePacer::Own(Pacer::new(rate, burst_bytes)),
        }
    }

    /// The sender's own rate, if it has one.
    pub fn own_rate(&self) -> Option<BitRate> {
        match &self.pacer {
            GatePacer::Own(pacer) => Some(pacer.rate()),
            GatePacer::Unlimited | GatePacer::Shared(_) => None,
        }
    }

    /// Notes that no frame waits.
    pub fn stop_waiting(&mut self) {
        self.waiting_until = None;
    }

    /// Time at which the gate admits the frame that waits.
    pub fn waiting_until(&self) -> Option<Instant> {
        self.waiting_until
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FRAME: u64 = 1250;

    #[test]
    fn a_frame_that_is_not_admitted_waits_until_its_time() {
        let now = Instant::ZERO;
        let rate = BitRate::from_gbps(1).unwrap();
        for pacing in [Pacing::Own(rate), Pacing::Shared(JointRate::new(rate))] {
            let mut gate = Gate::new(&pacing, FRAME);
            assert_eq!(pacing.rate(), Some(rate));
            while gate.is_open(now) {
                assert_eq!(gate.waiting_until(), None);
                gate.take(now, FRAME);
            }
            let at = gate.waiting_until().unwrap();
            assert!(at > now && gate.is_open(at) && gate.waiting_until().is_none());
        }
    }

    #[test]
    fn an_unlimited_gate_is_open_until_it_gets_a_rate() {
        let now = Instant::ZERO;
        let mut gate = Gate::new(&Pacing::from(None), FRAME);
        (0..1000).for_each(|_| gate.take(now, FRAME));
        assert!(gate.is_open(now) && gate.own_rate().is_none());
        gate.retune(now, BitRate::from_gbps(1).unwrap(), FRAME);
        assert_eq!(gate.own_rate(), BitRate::from_gbps(1));
        gate.take(now, FRAME);
        assert!(!gate.is_open(now));
        gate.stop_waiting();
        assert_eq!(gate.waiting_until(), None);
    }
}
