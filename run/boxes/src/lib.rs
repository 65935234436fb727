//! Transparent boxes: an accelerator or a fibre between two ports of this machine.
//!
//! Each pair of ports has a thread of its own, or one for each of the cores that share it. An idle
//! one sleeps in the kernel, so that many pairs cost nothing; busy ones share the processors as the
//! scheduler sees fit, and none waits for another's frames.
//!
//! [`run`] runs a box by what a command line and a file say, until it is told to stop. [`control`]
//! reaches boxes that run. Errors are types: what a user can do about one is for the program to
//! say.

pub mod control;
mod cores;
mod element;
mod error;
pub mod fibre;
mod http;
mod journal;
mod merge;
mod operation;
mod pair;
mod plan;
mod port;
mod privileges;
pub mod prometheus;
pub mod quantity;
mod run;
pub mod runtime_dir;
pub mod settings;
pub mod socket;
pub mod state;
pub mod status;
mod xdp;

pub use cores::CoresError;
pub use error::{Cause, Error, PathError};
pub use plan::{Given, PlanError, Process};
pub use port::{PortError, PortName, PortNameError};
pub use privileges::PrivilegesError;
pub use run::{Ended, run};
pub use xdp::{Xdp, XdpNameError};

use std::hash::{BuildHasher, RandomState};

/// A seed that nobody knows.
pub fn random_seed() -> u64 {
    RandomState::new().hash_one(std::process::id())
}
