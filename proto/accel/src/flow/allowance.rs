//! How far a requester may run ahead of its responder.
//!
//! Packets that are acknowledged early must still be delivered, and later requests wait for their
//! delivery. A READ cannot be answered early: its requester's timer starts when everything before
//! the READ is acknowledged, and only the response stops it. The acknowledged bytes in the store
//! must therefore be deliverable soon, at the pace at which the responder takes them. That pace is
//! measured: over a path without loss it is the path's rate; with go-back-N it is the bytes between
//! two losses per round trip, about a hundred packets at a loss rate of 1e-2 on a path of any rate.
//!
//! The allowance is the bytes that the responder took in the last epoch, so that a READ waits for
//! about an epoch and a round trip: less than one local ACK timeout of 67 ms over 1000 km. An epoch
//! is at least two round trips, so that the allowance is twice the capacity of a path, and doubles
//! per epoch while it is the limit. In its first epoch a flow starts with the bytes that a lossy
//! path delivers in about a quarter of the usual budget of eight timeouts, and gains two bytes for
//! each byte delivered.

use super::rtt::Rtt;
use crate::Config;
use longhaul_units::{Duration, Instant};

/// Shortest epoch: covers the recovery of several losses, and is half of the shortest common ACK
/// timeout.
const EPOCH_MIN: Duration = Duration::from_ms(32);
/// Smallest allowance, in bytes of memory: a few packets.
const LEAST: u64 = 64 << 10;

/// Bytes of memory that may be acknowledged and undelivered in one flow's store.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Allowance {
    /// `None`: nothing was measured yet.
    bytes: Option<u64>,
    /// In the first epoch: a delivery raises the allowance at once.
    starts: bool,
    epoch_began: Option<Instant>,
    delivered: u64,
    /// While pseudo-ACKs are withheld: when a few packets are acknowledged nevertheless.
    withheld_until: Option<Instant>,
}

impl Allowance {
    /// For a flow without measurements.
    pub(crate) fn new() -> Self {
        Allowance {
            bytes: None,
            starts: true,
            epoch_began: None,
            delivered: 0,
            withheld_until: None,
        }
    }

    /// The allowance in bytes.
    pub(crate) fn bytes(&self, config: &Config) -> u64 {
        self.bytes.unwrap_or_else(|| first_bytes(config))
    }

    /// Notes that the responder has taken `bytes`. `idle`: it has taken everything stored, so that
    /// the epoch measures the requester's rate, not the path's.
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
            // One bad epoch at most halves the allowance.
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

    /// Notes that undelivered bytes are stored, which begins an epoch if none is in progress.
    #[inline]
    pub(crate) fn note_busy(&mut self, now: Instant) {
        if self.epoch_began.is_none() {
            self.begin(now);
        }
    }

    /// Withholds pseudo-ACKs; at `until` a few packets are acknowledged.
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
