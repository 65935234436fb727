//! Real time: the loop that drives a [`Node`](longhaul_node::Node) over
//! [`Port`](longhaul_port::Port)s.
//!
//! [`turn`] is one bounded step: receive, act, send. [`Driver`] repeats it on a thread of its own
//! until it is stopped, yields the processor while there is little to do, and sleeps when there is
//! nothing. A loop of another crate (the verbs engine) uses [`receive`], [`transmit`], [`Clock`],
//! [`WakeUp`] and [`Parker`] directly.
//!
//! Several cores share ports by [`join`]: each has a [`Driver`] with a node of its own, and frames
//! that arrive at the wrong one are handed over. [`placement`] says which processors they run on.
//!
//! It knows no protocol, and it is made for machines with fewer processors than busy threads:
//! unless it is told to ([`DriverConfig::spins`]), it never spins without offering the processor to
//! others.

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
