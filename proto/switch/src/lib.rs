//! An Ethernet switch with output queues: a [`Switch`] is a [`Node`](longhaul_node::Node) with one
//! side per port.
//!
//! A frame goes to the port of its destination address: as declared by [`Switch::add_static`], or
//! as learnt from the source addresses of frames. Unknown and group addresses go to every port
//! except that of arrival. Each output is one [`Direction`](longhaul_link::Direction) of a link
//! without delay: a queue with tail drop and congestion marks before a serialiser.
//!
//! A frame that leaves on several ports is stored once. The same seed and the same frames at the
//! same times give the same drops and marks.
//!
//! With [`SwitchConfig::pfc`] one priority is lossless: a port whose buffer fills with its frames
//! asks the link's other end to pause, and an output obeys such requests. See [`PfcConfig`].
//!
//! Not implemented: VLANs, spanning tree (the owner must join switches without loops) and multicast
//! snooping. Each input has its own buffer instead of a shared one, and there is one lossless
//! priority.
#![forbid(unsafe_code)]

mod addresses;
mod config;
mod counters;
mod pausable;
mod pfc;
mod switch;

pub use config::{PORTS_MAX, SwitchConfig, SwitchError};
pub use counters::{DropReason, Drops, PortCounters};
pub use pfc::{PauseCounters, Pauser, PfcConfig, PfcFault, PfcPort, SharedBuffer};
pub use switch::Switch;
