//! Transparent boxes: an accelerator or a fibre between two ports of this machine.
//!
//! Each pair of ports has its own thread, or one thread per core if several cores share it. An idle
//! thread sleeps in the kernel. Threads share processors by the system's scheduler, and none waits
//! for the frames of another.
//!
//! [`run`] runs a box with the settings of a command line and a file, until it is told to stop.
//! [`control`] reaches running boxes. Errors are types that name the cause; the program adds the
//! cure.

pub mod carrier;
mod claim;
pub mod control;
mod cores;
mod element;
mod error;
pub mod fibre;
pub mod figures;
mod health;
mod journal;
mod merge;
pub mod number;
mod operation;
mod pair;
mod plan;
mod port;
mod port_counters;
mod privileges;
pub mod prometheus;
pub mod quantity;
mod replace;
mod run;
pub mod runtime_dir;
mod service_manager;
mod session_news;
pub mod settings;
pub mod socket;
pub mod state;
pub mod status;
mod stillness;
mod xdp;

pub use cores::CoresError;
pub use error::{Cause, Error, PathError};
pub use plan::{Given, PlanError, Process};
pub use port::{PortError, PortName, PortNameError};
pub use privileges::PrivilegesError;
pub use replace::ReplaceError;
pub use run::{Ended, Entry, run};
pub use xdp::{Xdp, XdpNameError};

use std::hash::{BuildHasher, RandomState};

/// A random seed, unpredictable to other processes.
pub fn random_seed() -> u64 {
    RandomState::new().hash_one(std::process::id())
}
