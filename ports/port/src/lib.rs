//! The frame port: the interface between a driver loop and any carrier of Ethernet frames.
//!
//! A [`Port`] hands out received frames by reference and lets callers build frames in place, so
//! each side copies a frame only if its user chooses to. A port that owns its received bytes
//! [lends](Received::Lent) them beyond the call. A port knows no protocol above the frame.
//!
//! Lifecycle: a port is constructed by its own crate, starts [`LinkState::Down`] or
//! [`LinkState::Up`], is polled with [`Port::receive`], [`Port::transmit`] and [`Port::flush`], and
//! is kept alive by [`Port::service`]. To sleep, a thread calls [`Port::arm`] and polls
//! [`Port::descriptors`]; when it wakes, it calls [`Port::disarm`] and [`Port::service`].
//!
//! Three ports need nothing but memory, and are part of this crate:
//! * [`null`]: discards all frames and never receives one;
//! * [`loopback`]: two ports in one process, joined back to back;
//! * [`capture`]: wraps any port and records both directions in a capture file.
//!
//! [`circuit`] also wraps any port: it encapsulates frames between two stations of a layer-2
//! circuit.
//!
//! Deliberately absent: queues without a bound.
//!
//! `rustix` provides eventfd with owned descriptors and typed errors, so that no system call needs
//! an unsafe block.

pub mod capture;
pub mod circuit;
mod counters;
mod descriptors;
#[cfg_attr(loom, path = "doorbell_model.rs")]
mod doorbell;
mod error;
mod forward;
mod handover;
pub mod loopback;
pub mod null;
mod port;

pub use capture::CapturingPort;
pub use circuit::{Circuit, CircuitPort};
pub use counters::{DropReason, Drops, PortCounters};
pub use descriptors::Descriptors;
pub use doorbell::Doorbell;
pub use error::PortError;
pub use handover::Handover;
pub use longhaul_lease::Lease;
pub use loopback::LoopbackPort;
pub use null::NullPort;
pub use port::{FRAME_BYTES_MIN, LinkState, Port, PortCapabilities, Received, check_length, join};
