//! The link as a node with two sides, with one [`Direction`](crate::Direction) each way.

use crate::config::{LinkConfig, LinkError};
use crate::counters::LinkCounters;
use crate::direction::Direction;
use crate::rule::RuleCounters;
use longhaul_node::{Deadline, Frame, Node, Side, Transmit};
use longhaul_units::{Instant, Rng, SplitMix64};

/// An emulated fibre with two sides, 0 and 1: frames that enter on one leave on the other.
///
/// `now` must never decrease from one call to the next. A frame that is due while the far side has
/// no room stays, in order, until there is room; it counts against the memory bound.
pub struct Link {
    config: LinkConfig,
    /// By the side on which frames enter.
    directions: [Direction; 2],
}

impl Link {
    /// Creates a link with no frame in flight.
    ///
    /// # Errors
    /// [`LinkError::Memory`] if the frames in flight could exceed the memory; any other error if a
    /// part of the configuration is invalid.
    pub fn new(config: LinkConfig) -> Result<Self, LinkError> {
        let mut seeds = SplitMix64::new(config.seed);
        let mut direction = |entry| Direction::new(&config, entry, seeds.next_u64());
        let directions = [direction(0)?, direction(1)?];
        Ok(Link { config, directions })
    }

    /// Returns the configuration in force.
    pub fn config(&self) -> &LinkConfig {
        &self.config
    }

    /// Returns the counters of the direction that frames enter on side `entry`, 0 or 1.
    ///
    /// # Panics
    /// If `entry` is neither 0 nor 1.
    pub fn counters(&self, entry: Side) -> LinkCounters {
        self.directions[entry].counters()
    }

    /// Counters of each rule for frames that enter on side `entry`, 0 or 1; empty without rules for
    /// these.
    ///
    /// # Panics
    /// If `entry` is neither 0 nor 1.
    pub fn rule_counters(&self, entry: Side) -> &[RuleCounters] {
        self.directions[entry].rule_counters()
    }
}

impl Node for Link {
    #[inline]
    fn handle_frame(&mut self, now: Instant, side: Side, frame: &Frame<'_>) {
        self.directions[side].enter(now, frame);
    }

    /// Does nothing: a due frame leaves by [`Node::poll_transmit`].
    fn handle_timeout(&mut self, _now: Instant) {}

    #[inline]
    fn poll_transmit(&mut self, now: Instant, out: &mut dyn Transmit) {
        let [from_0, from_1] = &mut self.directions;
        from_0.leave(now, 1, out);
        from_1.leave(now, 0, out);
    }

    #[inline]
    fn poll_timeout(&self) -> Option<Deadline> {
        let due = |direction: &Direction| {
            direction.next_due().map(|at| Deadline { at, reason: "propagation" })
        };
        Deadline::earliest(due(&self.directions[0]), due(&self.directions[1]))
    }
}
