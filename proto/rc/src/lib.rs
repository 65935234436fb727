//! Reliable connected transport: requester and responder as separate pure state machines.
//!
//! Both follow IBTA volume 1, chapter 9, the way a good hardware RNIC does: go-back-N, one sequence
//! NAK per gap, coalesced ACKs, implied NAKs, RNR, end-to-end credits, atomics whose repetition
//! gets the first result. Neither knows a memory region, a completion queue or an address: these
//! come with a [`longhaul_work::Context`] and a [`longhaul_wire::PathTemplate`]. Packets are built
//! when they leave, with payload by reference to registered memory, so that nothing is copied or
//! allocated per packet.
//!
//! Not here: path migration.
#![forbid(unsafe_code)]

mod requester;
mod responder;

pub use requester::{PROBE_ABOVE, Requester, RequesterConfig, RequesterSnapshot, WINDOW_MAX};
pub use responder::{Fault, Responder, ResponderConfig, ResponderSnapshot};
