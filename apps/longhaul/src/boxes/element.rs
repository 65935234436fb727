//! What can be between two ports, and what it says about itself.

use super::status::{AcceleratorState, FibreState};
use crate::state::{Flow, LinkStatus, Named};
use longhaul_accel::Accelerator;
use longhaul_link::Link;
use longhaul_node::Node;

/// A node with two sides that a box is made of.
pub trait Element: Node + Send + 'static {
    /// What its sides are called.
    const SIDES: [&'static str; 2];

    /// As an accelerator.
    fn accelerator(&self) -> Option<AcceleratorState> {
        None
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
            flows: self.flows().map(|flow| Flow::of(&flow)).collect(),
        })
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
