//! What can be between two ports, and what it says about itself.

use super::status::{AcceleratorState, FibreState};
use crate::state::{LinkStatus, Named};
use longhaul_accel::{Accelerator, FlowStatus};
use longhaul_link::Link;
use longhaul_node::Node;

/// Flows that [`Element::flows`] gives at once: no frame waits for more than these to be copied, however many there are.
pub const FLOWS_AT_ONCE: usize = 256;

/// A node with two sides that a box is made of.
pub trait Element: Node + Send + 'static {
    /// What its sides are called.
    const SIDES: [&'static str; 2];

    /// As an accelerator, without its flows.
    fn accelerator(&self) -> Option<AcceleratorState> {
        None
    }

    /// Its flows in the slots from `first` on, with their slots, [`FLOWS_AT_ONCE`] at most.
    fn flows(&self, _first: u32) -> Vec<(u32, FlowStatus)> {
        Vec::new()
    }

    /// As a fibre.
    fn fibre(&self) -> Option<FibreState> {
        None
    }
}

impl Element for Accelerator {
    const SIDES: [&'static str; 2] = ["lan", "wan"];

    fn accelerator(&self) -> Option<AcceleratorState> {
        let counters = self.counters();
        Some(AcceleratorState {
            stored_bytes: self.stored_bytes(),
            stored_bytes_max: self.config().total_bytes_max,
            counters: named(counters.values()),
            drops: named(counters.drops.iter().map(|(reason, n)| (reason.name(), n))),
            flows: Vec::new(),
        })
    }

    fn flows(&self, first: u32) -> Vec<(u32, FlowStatus)> {
        self.flows_from(first).take(FLOWS_AT_ONCE).collect()
    }
}

impl Element for Link {
    const SIDES: [&'static str; 2] = ["a", "b"];

    fn fibre(&self) -> Option<FibreState> {
        let config = self.config();
        Some(FibreState {
            delay_us: config.delay.as_secs_f64() * 1e6,
            rate_bits_per_s: config.rate.map_or(0, |rate| rate.as_bps()),
            memory_bytes: (0..2).map(|side| self.counters(side).memory_bytes).sum(),
            memory_bytes_max: config.memory_bytes_max,
            directions: LinkStatus::of(self),
        })
    }
}

/// Counters by name.
pub fn named(values: impl Iterator<Item = (&'static str, u64)>) -> Named {
    values.map(|(name, n)| (name.to_string(), n)).collect()
}
