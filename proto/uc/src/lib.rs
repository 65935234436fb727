//! Unreliable connected transport: requester and responder as separate pure state machines.
//!
//! Both follow IBTA volume 1, sections 9.8.2 and 9.9: packets are numbered as in a reliable
//! connection, but nothing is acknowledged or retransmitted. A work request is complete when its
//! last packet has been sent. The responder discards a message with a missing packet, and accepts
//! the next one that begins. Neither half accesses memory regions, completion queues or addresses
//! directly: a [`longhaul_work::Context`] and a [`longhaul_wire::PathTemplate`] provide them.
//! Packets are built when they are sent, with payload by reference to registered memory, so that
//! nothing is copied or allocated per packet.
//!
//! Path migration is not supported.
#![forbid(unsafe_code)]

mod requester;
mod responder;

pub use requester::{Requester, RequesterConfig, RequesterSnapshot};
pub use responder::{Responder, ResponderConfig, ResponderSnapshot};
