//! Stations of a network.

use crate::host::Host;
use crate::oracle::Watched;
use longhaul_node::{Deadline, Frame, Node, Side, Transmit};
use longhaul_switch::Switch;
use longhaul_units::Instant;

/// A node of the network: the code that runs on real ports, except for the host around the RNIC.
pub(crate) enum Station {
    Host(Box<Host>),
    Box(Box<Watched>),
    Switch(Box<Switch>),
}

macro_rules! each {
    ($station:expr, $node:ident => $call:expr) => {
        match $station {
            Station::Host($node) => $call,
            Station::Box($node) => $call,
            Station::Switch($node) => $call,
        }
    };
}

impl Node for Station {
    #[inline]
    fn handle_frame(&mut self, now: Instant, side: Side, frame: &Frame<'_>) {
        each!(self, node => node.handle_frame(now, side, frame));
    }

    #[inline]
    fn handle_timeout(&mut self, now: Instant) {
        each!(self, node => node.handle_timeout(now));
    }

    #[inline]
    fn poll_transmit(&mut self, now: Instant, out: &mut dyn Transmit) {
        each!(self, node => node.poll_transmit(now, out));
    }

    #[inline]
    fn poll_timeout(&self) -> Option<Deadline> {
        each!(self, node => node.poll_timeout())
    }
}
