//! Labs: hosts, accelerators and a fibre of any length on this machine.
//!
//! A [`Lab`] starts a daemon that drives accelerators and link between the hosts' ports, with
//! [`serve`] as its main function; [`Daemon`] is one in this process. Programs attach to those
//! ports by what its [`LabDir`] says, and [`control`] asks the daemon over its socket.

pub mod control;
mod daemon;
mod dir;
mod error;
mod fabric;
mod log;
mod node;
mod process;
mod spec;
mod status;

pub use daemon::{Daemon, Stderr, box_config, serve};
pub use dir::{LabDir, preloadable};
pub use error::Error;
pub use node::HostCounters;
pub use process::{Lab, Lifetime, die_with_parent};
pub use spec::{Accelerate, HostName, HostNameError, LabName, LabNameError, NoSuchHost, Spec};
pub use status::{AcceleratorStatus, HostStatus, LabStatus, SwitchPort, SwitchStatus};
