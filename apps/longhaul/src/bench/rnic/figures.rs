//! What one end did while it was measured.

use longhaul_datapath::{End, EndCounters, PartTicks, processor_time, resident_bytes};
use longhaul_port::Port;
use serde::{Deserialize, Serialize};
use std::time::{Duration, Instant};

/// An end as it begins to be measured.
pub struct Start {
    at: Instant,
    used: Duration,
    counters: EndCounters,
    resident_bytes: u64,
}

impl Start {
    /// Now, by the thread that steps it.
    pub fn of<P: Port>(end: &mut End<P>) -> Self {
        end.measure_anew();
        Start {
            at: Instant::now(),
            used: processor_time(),
            counters: end.counters(),
            resident_bytes: resident_bytes(),
        }
    }

    /// What was done since; `most` is the most memory that was in use meanwhile, as far as anybody
    /// looked.
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

/// What an end did from one moment to another.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct EndFigures {
    pub elapsed_ns: u64,
    /// How long its thread had a processor.
    pub used_ns: u64,
    /// In steps in which anything happened.
    pub busy_ticks: u64,
    pub idle_ticks: u64,
    pub busy_steps: u64,
    /// With payload.
    pub packets: u64,
    /// Of busy steps, as the median of stretches.
    pub ticks_per_packet: f64,
    pub messages: u64,
    pub retransmits: u64,
    pub drops: u64,
    /// Of busy steps.
    pub parts: Option<PartTicks>,
    /// As it began, at its end, and at most.
    pub resident_bytes: [u64; 3],
}
