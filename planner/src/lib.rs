//! What a path, a NIC and a workload give, by arithmetic: before anything is bought, and without
//! running anything.
//!
//! [`Prediction::new`] takes a [`Path`], a [`NicProfile`] and a [`Workload`] and names the goodput
//! to expect and the one thing that limits it. [`Plan::new`] does so for a range of message sizes
//! and adds what a target needs: queue pairs, queue depth, timeouts, memory, what an accelerator
//! would bring, the commands that set it all ([`Step`]), and warnings.
//!
//! Times are nanoseconds and rates bits per second, as `f64`: a prediction's error is per cent, not
//! rounding. The model is one of messages and windows, not of packets; docs/planner.md derives it
//! and says which published cells its constants were fitted to.
//!
//! What it deliberately does not do: simulate, measure, know anything of the code that it predicts,
//! or guess at congestion by others' traffic.
#![forbid(unsafe_code)]

mod accelerator;
mod advice;
mod memory;
mod needs;
mod nic;
mod path;
mod plan;
mod predict;
mod run;
mod timeout;
mod uses;
mod window;
mod wire;
mod workload;

pub use accelerator::Accelerator;
pub use advice::{Step, Where};
pub use memory::Memory;
pub use needs::{Needs, Raised, Reach};
pub use nic::{NicError, NicProfile};
pub use path::{FIBRE_NS_PER_KM, Path};
pub use plan::{Plan, QueueDepth, Request, Row};
pub use predict::{Bound, Limit, Prediction};
pub use timeout::{Timeouts, timeout_ns};
pub use uses::{UnknownUse, UseCase};
pub use window::Window;
pub use wire::{MTUS, Message, interface_mtu, roce_mtu};
pub use workload::{Op, UnknownOp, Workload};

use thiserror::Error;

/// A question that has no answer: which value is at fault, and what it may be.
#[derive(Clone, Debug, PartialEq, Error)]
#[error("{what} {value} is out of range: {range}")]
pub struct Invalid {
    /// Which value, in the caller's words.
    pub what: &'static str,
    /// As given.
    pub value: String,
    /// What it may be.
    pub range: &'static str,
}

impl Invalid {
    pub(crate) fn new(what: &'static str, value: impl ToString, range: &'static str) -> Self {
        Invalid { what, value: value.to_string(), range }
    }
}
