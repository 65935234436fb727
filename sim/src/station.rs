//! Stations of a network.

use crate::host::Host;
use crate::oracle::Watched;
use longhaul_node::node_by_variant;
use longhaul_switch::Switch;

/// A node of the network: the code that runs on real ports, except for the host around the RNIC.
pub(crate) enum Station {
    Host(Box<Host>),
    Box(Box<Watched>),
    Switch(Box<Switch>),
}

node_by_variant!(Station: Host, Box, Switch);
