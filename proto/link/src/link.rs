//! The link as a node with two sides, one [`Direction`](crate::Direction) each way.

use crate::config::{LinkConfig, LinkError};
use crate::counters::LinkCounters;
use crate::direction::Direction;
use crate::rule::RuleCounters;
use longhaul_node::{Deadline, Frame, Node, Side, Transmit};
use longhaul_units::{Instant, Rng, SplitMix64};

/// An emulated fibre with two sides, 0 and 1: what enters by one leaves by the other.
///
/// Its `now` never decreases from one call to the next. A frame that is due while the far side has
/// no room stays, in order, until there is; it counts against the memory bound.
pub struct Link {
    config: LinkConfig,
    /// By the side that frames enter at.
    directions: [Direction; 2],
}

impl Link {
    /// A link with nothing in flight.
    ///
    /// # Errors
    /// [`LinkError::Memory`] when more could be in flight than the memory given holds; any other
    /// when something in the configuration makes no sense.
    pub fn new(config: LinkConfig) -> Result<Self, LinkError> {
        let mut seeds = SplitMix64::new(config.seed);
        let mut direction = |entry| Direction::new(&config, entry, seeds.next_u64());
        let directions = [direction(0)?, direction(1)?];
        Ok(Link { config, directions })
    }

    /// The configuration in effect.
    pub fn config(&self) -> &LinkConfig {
        &self.config
    }

    /// Counters of the direction that frames enter by side `entry`, 0 or 1.
    ///
    /// # Panics
    /// For any other side.
    pub fn counters(&self, entry: Side) -> LinkCounters {
        self.directions[entry].counters()
    }

    /// What each rule of the configuration did to frames that entered by side `entry`, 0 or 1;
    /// empty without rules for these.
    ///
    /// # Panics
    /// For any other side.
    pub fn rule_counters(&self, entry: Side) -> &[RuleCounters] {
        self.directions[entry].rule_counters()
    }
}

impl Node for Link {
    #[inline]
    fn handle_frame(&mut self, now: Instant, side: Side, frame: &Frame<'_>) {
        self.directions[side].enter(now, frame);
    }

    /// Nothing changes by itself: a due frame leaves by [`Node::poll_transmit`].
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
