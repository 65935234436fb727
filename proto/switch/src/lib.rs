//! An Ethernet switch with queues at its outputs: a [`Switch`] is a [`Node`](longhaul_node::Node)
//! with as many sides as it has ports.
//!
//! A frame goes to the port behind which its destination address lives: as declared by
//! [`Switch::add_static`], or as learnt from the source addresses of frames. Unknown and group
//! addresses go to every port except that of their arrival. Each output is one
//! [`Direction`](longhaul_link::Direction) of a link without length: a queue with tail drop and
//! congestion marks in front of a serialiser.
//!
//! Frames that leave by several ports are kept once. The same seed and the same frames at the same
//! times give the same drops and marks.
//!
//! With [`SwitchConfig::pfc`] one priority is lossless: a port whose frames of it fill its buffer
//! asks the link's other end to pause, and an output pauses when it is asked to. See [`PfcConfig`].
//!
//! It deliberately has no VLANs, no spanning tree (its owner joins switches without loops) and no
//! multicast snooping; buffers are each input's own instead of shared, and there is one lossless
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
pub use pfc::{PauseCounters, Pauser, PfcConfig, PfcFault, PfcPort};
pub use switch::Switch;
