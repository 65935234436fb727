//! Reliable connected transport: requester and responder as separate pure state machines.
//!
//! Both follow IBTA volume 1, chapter 9, like a good hardware RNIC: go-back-N, one sequence NAK per
//! gap, coalesced ACKs, implied NAKs, RNR, end-to-end credits, and duplicate atomics that return
//! the original result. Neither accesses memory regions, completion queues or addresses directly: a
//! [`longhaul_work::Context`] and a [`longhaul_wire::PathTemplate`] provide them. Packets are built
//! when they are sent, with payload by reference to registered memory, so that nothing is copied or
//! allocated per packet.
//!
//! Path migration is not supported.
#![forbid(unsafe_code)]

mod requester;
mod responder;

pub use requester::{PROBE_ABOVE, Requester, RequesterConfig, RequesterSnapshot, WINDOW_MAX};
pub use responder::{Fault, Responder, ResponderConfig, ResponderSnapshot};
