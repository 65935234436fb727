//! How far a requester is let run ahead of its responder.
//!
//! What is acknowledged early still has to be delivered, and whatever the requester sends next
//! waits for that. A READ cannot be answered early: its requester's timer runs from when everything
//! before it is acknowledged, and nothing but the response stops it. So what lies acknowledged in
//! the store must be deliverable soon, at the pace at which the responder takes it. That pace is
//! measured: over a path without loss it is the path's rate; with go-back-N it is what lies between
//! two losses, once per round trip, which is a hundred packets at a loss of 1e-2 however fast the
//! path.
//!
//! The allowance is what the responder took in the last epoch, so that a READ waits for about an
//! epoch and a round trip: below one local ACK timeout of 67 ms over 1000 km. An epoch is at least
//! two round trips, so that the allowance is twice what a path can hold, and doubles per epoch
//! while it is the limit. In its first epoch, a flow starts with what a lossy path delivers in
//! about a quarter of the usual budget of eight timeouts, and gains two bytes for each one
//! delivered.

use super::rtt::Rtt;
use crate::Config;
use longhaul_units::{Duration, Instant};

/// Shortest time over which delivery is measured: some losses' recovery, half of the shortest
/// common ACK timeout.
const EPOCH_MIN: Duration = Duration::from_ms(32);
/// The least allowance, in bytes of memory: some packets.
const LEAST: u64 = 64 << 10;

/// The bytes of memory that may lie acknowledged and undelivered in one flow's store.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Allowance {
    /// `None`: nothing was measured.
    bytes: Option<u64>,
    /// No epoch has passed: what is delivered shows at once that the path is fast.
    starts: bool,
    epoch_began: Option<Instant>,
    delivered: u64,
    /// While pseudo-ACKs are withheld: when a little is acknowledged nevertheless.
    withheld_until: Option<Instant>,
}

impl Allowance {
    /// Of a flow of which nothing is known.
    pub(crate) fn new() -> Self {
        Allowance {
            bytes: None,
            starts: true,
            epoch_began: None,
            delivered: 0,
            withheld_until: None,
        }
    }

    /// The bytes allowed.
    pub(crate) fn bytes(&self, config: &Config) -> u64 {
        self.bytes.unwrap_or_else(|| first_bytes(config))
    }

    /// The responder has taken `bytes`. `idle`: it has everything that was stored, so that the
    /// epoch tells what the requester sent and not what the path could do.
    pub(crate) fn note_delivered(
        &mut self,
        now: Instant,
        config: &Config,
        rtt: &Rtt,
        bytes: u64,
        idle: bool,
    ) {
        self.delivered += bytes;
        let Some(began) = self.epoch_began else { return };
        let epoch = rtt.smoothed().unwrap_or_default().times(2).max(EPOCH_MIN);
        let elapsed = now.since(began);
        let before = self.bytes(config);
        if elapsed >= epoch {
            let scaled = u128::from(self.delivered) * u128::from(epoch.as_ns())
                / u128::from(elapsed.as_ns().max(1));
            let measured = u64::try_from(scaled).unwrap_or(u64::MAX);
            // One bad epoch halves it at most.
            self.bytes = Some(measured.clamp((before / 2).max(LEAST), u64::MAX >> 8));
            self.starts = false;
            self.begin(now);
        } else {
            let grown =
                if self.starts { first_bytes(config) + 2 * self.delivered } else { self.delivered };
            self.bytes = self.bytes.max(Some(grown));
        }
        if idle {
            self.epoch_began = None;
        }
    }

    /// Something was stored that the responder does not have: an epoch begins unless one is under
    /// way.
    #[inline]
    pub(crate) fn note_busy(&mut self, now: Instant) {
        if self.epoch_began.is_none() {
            self.begin(now);
        }
    }

    /// Pseudo-ACKs are withheld, but for a little at `until`.
    pub(crate) fn withhold(&mut self, until: Instant) {
        self.withheld_until = Some(until);
    }

    #[inline]
    pub(crate) fn stop_withholding(&mut self) {
        self.withheld_until = None;
    }

    #[inline]
    pub(crate) fn withheld_until(&self) -> Option<Instant> {
        self.withheld_until
    }

    fn begin(&mut self, now: Instant) {
        self.epoch_began = Some(now);
        self.delivered = 0;
    }
}

fn first_bytes(config: &Config) -> u64 {
    let first = config.ack_first_bytes;
    config.wan_pacing.rate().map_or(first, |rate| rate.bytes_in(EPOCH_MIN)).clamp(LEAST, first)
}
