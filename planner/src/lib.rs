//! Predicts the goodput of a path, a NIC and a workload by arithmetic alone.
//!
//! [`Prediction::new`] takes a [`Path`], a [`NicProfile`] and a [`Workload`] and returns the
//! expected goodput and its limit. [`Plan::new`] does so for a range of message sizes and adds the
//! requirements of a target: queue pairs, queue depth, timeouts, memory, the effect of an
//! accelerator, the commands to configure it all ([`Step`]), and warnings.
//!
//! Times are nanoseconds and rates bits per second, as `f64`: a prediction's error is per cent, not
//! rounding. The model has messages and windows, not packets; docs/spec/planner.md derives it and
//! names the published cells to which its constants are fitted.
//!
//! It does not simulate or measure, shares no code with what it predicts, and does not model
//! congestion by other traffic.
#![forbid(unsafe_code)]

mod accelerator;
mod advice;
pub mod figures;
mod memory;
mod migration;
mod needs;
mod nic;
mod path;
mod plan;
mod predict;
mod run;
mod storage;
mod timeout;
mod transport;
mod uses;
mod window;
mod wire;
mod workload;

pub use accelerator::Accelerator;
pub use advice::{Step, Where};
pub use memory::Memory;
pub use migration::{End, Migrated, Migration};
pub use needs::{Needs, Raised, Reach};
pub use nic::{NicError, NicProfile};
pub use path::{FIBRE_NS_PER_KM, Path};
pub use plan::{Boxes, Plan, QueueDepth, Request, Row};
pub use predict::{Bound, Limit, Prediction};
pub use storage::Storage;
pub use timeout::{Timeouts, timeout_ns};
pub use uses::{UnknownUse, UseCase};
pub use window::Window;
pub use wire::{MTUS, Message, interface_mtu, roce_mtu};
pub use workload::{Op, UnknownOp, Workload};

use thiserror::Error;

/// An invalid input: the value and its valid range.
#[derive(Clone, Debug, PartialEq, Error)]
#[error("{what} {value} is out of range: {range}")]
pub struct Invalid {
    /// Name of the value, in the caller's terms.
    pub what: &'static str,
    /// As given.
    pub value: String,
    /// Valid range.
    pub range: &'static str,
}

impl Invalid {
    pub(crate) fn new(what: &'static str, value: impl ToString, range: &'static str) -> Self {
        Invalid { what, value: value.to_string(), range }
    }
}
