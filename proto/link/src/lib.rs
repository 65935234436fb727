//! The emulated fibre: a [`Link`] is a [`Node`](longhaul_node::Node) with two sides and, in each
//! direction, a queue that may mark, a rate, random loss (independent or in bursts) and a fixed
//! delay.
//!
//! An arriving frame waits in the queue until the wire is free, occupies the wire for its length at
//! the rate, may be lost there, and leaves on the other side one delay after its last bit was sent.
//! Each direction is one FIFO ring with one deadline, that of its first frame, so that the cost per
//! frame does not depend on the distance. The same seed and the same frames at the same times give
//! the same drops and marks.
//!
//! Frames can also be late, so that others overtake them, arrive twice, or arrive with a flipped
//! bit ([`Impairments`]). A [`Rule`] acts on selected frames by their properties as RoCEv2 packets;
//! a [`Change`] gives the link other properties from a given time on.
#![forbid(unsafe_code)]

mod chance;
mod config;
mod counters;
mod direction;
mod fault_injector;
mod link;
mod rule;
mod schedule;
mod serialiser;
mod text;
mod wire;

pub use config::{Bursts, Cut, Impairments, LinkConfig, LinkError};
pub use counters::{DropReason, Drops, LinkCounters};
pub use direction::Direction;
pub use link::Link;
pub use longhaul_cc::RedConfig;
pub use rule::{
    Action, FrameMatch, Occurrence, PacketKind, PacketKinds, RULES_MAX, Rule, RuleCounters,
    Selection,
};
pub use schedule::{CHANGES_MAX, Change, Setting};
pub use text::TextError;
pub use wire::{Arrival, Wire, corrupt};
