//! Figures of one end during the measurement.

use longhaul_datapath::{End, EndCounters, PartTicks, processor_time, resident_bytes};
use longhaul_port::Port;
use serde::{Deserialize, Serialize};
use std::time::{Duration, Instant};

/// Counters of an end at the start of the measurement.
pub struct Start {
    at: Instant,
    used: Duration,
    counters: EndCounters,
    resident_bytes: u64,
}

impl Start {
    /// Reads the counters, on the thread that steps the end.
    pub fn of<P: Port>(end: &mut End<P>) -> Self {
        end.measure_anew();
        Start {
            at: Instant::now(),
            used: processor_time(),
            counters: end.counters(),
            resident_bytes: resident_bytes(),
        }
    }

    /// Returns the figures since then; `most` is the highest memory sample meanwhile.
    pub fn until_now<P: Port>(&self, end: &End<P>, most: u64) -> EndFigures {
        let (counters, steps, last) = (end.counters(), end.step_ticks(), resident_bytes());
        EndFigures {
            elapsed_ns: self.at.elapsed().as_nanos() as u64,
            used_ns: (processor_time().saturating_sub(self.used)).as_nanos() as u64,
            busy_ticks: steps.busy,
            idle_ticks: steps.idle,
            busy_steps: steps.busy_steps,
            packets: steps.packets,
            ticks_per_packet: end.ticks_per_packet(),
            messages: counters.messages - self.counters.messages,
            retransmits: counters.retransmits - self.counters.retransmits,
            drops: counters.drops - self.counters.drops,
            parts: end.part_ticks(),
            resident_bytes: [self.resident_bytes, last, most.max(self.resident_bytes).max(last)],
        }
    }
}

/// Figures of an end between two times.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct EndFigures {
    pub(super) elapsed_ns: u64,
    /// Processor time of its thread.
    pub(super) used_ns: u64,
    /// Ticks in steps that did work.
    pub(super) busy_ticks: u64,
    pub(super) idle_ticks: u64,
    pub(super) busy_steps: u64,
    /// Packets with payload.
    pub(super) packets: u64,
    /// Ticks per packet in busy steps: median over stretches.
    pub(super) ticks_per_packet: f64,
    pub(super) messages: u64,
    pub(super) retransmits: u64,
    pub(super) drops: u64,
    /// Ticks of each part in busy steps.
    pub(super) parts: Option<PartTicks>,
    /// Resident memory at the start, at the end, and its peak.
    pub(super) resident_bytes: [u64; 3],
}
