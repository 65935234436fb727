//! Pacing of one session on a path whose rate adapts.

use crate::config::{PathConfig, Rate};
use crate::flight::Flight;
use longhaul_cc::{Gate, Heard, Pacing, PathRate};
use longhaul_units::{Duration, Instant};

/// Share of the in-flight limit that may leave back to back, and its minimum: one frame of full
/// length and one more.
const BURST_PART: u64 = 32;
const BURST_MIN: u64 = 8500;

pub(crate) struct Pace {
    rate: PathRate,
    gate: Gate,
    seed: u64,
    burst_bytes: u64,
    /// Bytes on the wire sent so far.
    sent_bytes: u64,
    /// Congestion-marked datagrams, as counted by the far box, unwrapped.
    marked: u64,
    marked_low: Option<u32>,
    largest: Option<u64>,
}

impl Pace {
    /// `None` if the path's rate does not adapt.
    pub(crate) fn new(path: &PathConfig, seed: u64) -> Option<Self> {
        let Rate::Adaptive { most } = path.rate else { return None };
        Some(Pace {
            rate: PathRate::new(seed, most),
            gate: Gate::new(&Pacing::Unlimited, 0),
            seed,
            burst_bytes: path.burst_bytes,
            sent_bytes: 0,
            marked: 0,
            marked_low: None,
            largest: None,
        })
    }

    pub(crate) fn rate(&self) -> &PathRate {
        &self.rate
    }

    /// `true` if a datagram may be sent at `now`. `may_exceed`: it need not wait for
    /// acknowledgements.
    #[inline]
    pub(crate) fn is_open(&mut self, now: Instant, in_flight_bytes: u64, may_exceed: bool) -> bool {
        (may_exceed || in_flight_bytes < self.rate.in_flight_max()) && self.gate.is_open(now)
    }

    /// Counts a transmission.
    #[inline]
    pub(crate) fn take(&mut self, now: Instant, bytes: u64) {
        self.sent_bytes += bytes;
        self.gate.take(now, bytes);
    }

    /// Notes that no transmission waits.
    pub(crate) fn stop_waiting(&mut self) {
        self.gate.stop_waiting();
    }

    pub(crate) fn waiting_until(&self) -> Option<Instant> {
        self.gate.waiting_until()
    }

    /// Notes an RTT measured by a PING.
    pub(crate) fn note_rtt(&mut self, now: Instant, rtt: Duration) {
        self.rate.note_rtt(now, rtt);
        self.retune(now);
    }

    /// Handles an acknowledgement; `marked_low` is the low half of the far box's count.
    pub(crate) fn hear(&mut self, now: Instant, flight: &Flight, marked_low: u32) {
        let before = self.marked_low.replace(marked_low).unwrap_or(0);
        // A reordered acknowledgement carries an older count.
        let more = marked_low.wrapping_sub(before) as i32;
        self.marked = self.marked.saturating_add_signed(more.into());
        let largest = flight.largest_arrived();
        let is_fresh = largest > self.largest;
        self.largest = largest;
        self.rate.hear(
            now,
            &Heard {
                next: flight.next_number(),
                arrived_to: largest.map_or(0, |largest| largest + 1),
                arrived: flight.arrived,
                lost: flight.lost,
                marked: self.marked,
                sent_bytes: self.sent_bytes,
                arrived_bytes: flight.arrived_bytes,
                rtt: if is_fresh { flight.newest_rtt() } else { Duration::ZERO },
            },
        );
        self.retune(now);
    }

    /// Starts again: the path is down, and may be another one when it answers.
    pub(crate) fn reset(&mut self) {
        self.seed = self.seed.wrapping_add(1);
        self.rate.restart(self.seed);
    }

    fn retune(&mut self, now: Instant) {
        let burst = (self.rate.in_flight_max() / BURST_PART).max(BURST_MIN).min(self.burst_bytes);
        self.gate.retune(now, self.rate.rate(), burst);
    }
}
