//! The frame port: the one contract between a frame loop and whatever moves Ethernet frames.
//!
//! A [`Port`] hands received frames out by reference and lets frames be built in place, so the only
//! copy on either side is the one that its user decides on; a port that owns what it received
//! [lends](Received::Lent) it beyond the call. It knows no protocol above the frame.
//!
//! Lifecycle: a port is constructed by its own crate, starts [`LinkState::Down`] or
//! [`LinkState::Up`], is polled with [`Port::receive`], [`Port::transmit`] and [`Port::flush`], and
//! is kept alive by [`Port::service`]. A thread that wants to sleep calls [`Port::arm`], polls
//! [`Port::descriptors`], and on waking calls [`Port::disarm`] and [`Port::service`].
//!
//! Three ports live here because they need nothing but memory:
//! * [`null`]: swallows what it is given and never receives;
//! * [`loopback`]: two ports in one process, joined back to back;
//! * [`tap`]: wraps any port and records both directions in a capture file.
//!
//! [`circuit`] wraps any port too: its frames go inside others, between two stations of a layer-2
//! circuit.
//!
//! Deliberately absent: any queue that can grow.
//!
//! `rustix` is used for eventfd because it returns owned descriptors and typed errors, which leaves
//! no unsafe block around a system call.

pub mod circuit;
mod counters;
mod descriptors;
#[cfg_attr(loom, path = "doorbell_model.rs")]
mod doorbell;
mod error;
mod forward;
pub mod loopback;
pub mod null;
mod port;
pub mod tap;

pub use circuit::{Circuit, CircuitPort};
pub use counters::{DropReason, Drops, PortCounters};
pub use descriptors::Descriptors;
pub use doorbell::Doorbell;
pub use error::PortError;
pub use longhaul_lease::Lease;
pub use loopback::LoopbackPort;
pub use null::NullPort;
pub use port::{FRAME_BYTES_MIN, LinkState, Port, PortCapabilities, Received, check_length, join};
pub use tap::TapPort;
