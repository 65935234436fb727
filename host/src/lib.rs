//! Real time: the loop that drives a [`Node`](longhaul_node::Node) over
//! [`Port`](longhaul_port::Port)s.
//!
//! [`turn`] is one bounded step: receive, handle, send. [`Driver`] repeats it on its own thread
//! until it is stopped, yields the processor while there is little to do, and sleeps when there is
//! nothing. A loop of another crate (the verbs engine) uses [`receive`], [`transmit`], [`Clock`],
//! [`WakeUp`] and [`Parker`] directly.
//!
//! Several cores share ports by [`join`]: each has a [`Driver`] with its own node, and frames that
//! arrive at the wrong core are handed over. [`placement`] assigns processors to cores.
//!
//! This crate knows no protocol. It is designed for machines with fewer processors than busy
//! threads: unless told to ([`DriverConfig::spins`]), it never busy-polls without yielding.

mod alarm;
mod clock;
mod driver;
mod mesh;
mod parker;
pub mod placement;
mod turn;
mod wake;

pub use clock::Clock;
pub use driver::{Driver, DriverConfig, DriverCounters, Finished, Handle, Hook, Stopped};
pub use mesh::{CorePort, HandedOver, Spread, join};
pub use parker::{Parker, Woken};
pub use turn::{
    MalformedFrames, PORTS_MAX, TransmitLimit, Turn, TurnConfig, receive, transmit, turn,
};
pub use wake::WakeUp;
