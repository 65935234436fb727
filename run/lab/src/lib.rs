//! Labs: hosts, accelerators and a fibre of any length on this machine.
//!
//! A [`Lab`] starts a daemon, whose main function is [`serve`] and which drives accelerators and
//! link between the hosts' ports; a [`Daemon`] runs in this process. Programs find their ports
//! through a [`LabDir`], and [`control`] sends requests to the daemon's socket.

pub mod control;
mod daemon;
mod dir;
mod error;
mod fabric;
mod holder;
mod log;
mod network;
mod node;
mod process;
mod spec;
mod status;

pub use daemon::{Daemon, box_config, serve};
pub use dir::{LabDir, preloadable};
pub use error::Error;
pub use holder::{INTERFACE, hold};
pub use log::Stderr;
pub use network::{Entrance, HostNamespaces, Network};
pub use node::HostCounters;
pub use process::{Lab, Lifetime, die_with_parent};
pub use spec::{
    Accelerate, HostName, HostNameError, LabName, LabNameError, NetworkChoice, NoSuchHost, Spec,
};
pub use status::{AcceleratorStatus, HostStatus, LabStatus, SwitchPort, SwitchStatus};
