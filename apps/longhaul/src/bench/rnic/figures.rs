//! What one end did while it was measured.

use longhaul_datapath::{End, EndCounters, PartTicks, StepTicks, processor_time, resident_bytes};
use longhaul_port::Port;
use serde::{Deserialize, Serialize};
use std::time::{Duration, Instant};

/// An end at one moment.
pub struct Snapshot {
    at: Instant,
    used: Duration,
    counters: EndCounters,
    steps: StepTicks,
    parts: Option<PartTicks>,
    resident_bytes: u64,
}

impl Snapshot {
    /// Now, by the thread that steps it.
    pub fn of<P: Port>(end: &End<P>) -> Self {
        Snapshot {
            at: Instant::now(),
            used: processor_time(),
            counters: end.counters(),
            steps: end.step_ticks(),
            parts: end.part_ticks(),
            resident_bytes: resident_bytes(),
        }
    }

    /// What was done since; `most` is the most memory that was in use meanwhile, as far as anybody looked.
    pub fn since(&self, start: &Snapshot, most: u64) -> EndFigures {
        let parts = self.parts.zip(start.parts).map(|(now, before)| {
            let mut parts = now;
            parts.iter_mut().zip(before).for_each(|(now, before)| *now -= before);
            parts
        });
        let [first, last] = [start.resident_bytes, self.resident_bytes];
        EndFigures {
            elapsed_ns: (self.at - start.at).as_nanos() as u64,
            used_ns: (self.used - start.used).as_nanos() as u64,
            busy_ticks: self.steps.busy - start.steps.busy,
            idle_ticks: self.steps.idle - start.steps.idle,
            busy_steps: self.steps.busy_steps - start.steps.busy_steps,
            messages: self.counters.messages - start.counters.messages,
            tx_frames: self.counters.tx_frames - start.counters.tx_frames,
            rx_frames: self.counters.rx_frames - start.counters.rx_frames,
            retransmits: self.counters.retransmits - start.counters.retransmits,
            drops: self.counters.drops - start.counters.drops,
            parts,
            resident_bytes: [first, last, most.max(first).max(last)],
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
    pub messages: u64,
    pub tx_frames: u64,
    pub rx_frames: u64,
    pub retransmits: u64,
    pub drops: u64,
    pub parts: Option<PartTicks>,
    /// As it began, at its end, and at most.
    pub resident_bytes: [u64; 3],
}
