//! Unreliable connected transport: requester and responder as separate pure state machines.
//!
//! Both follow IBTA volume 1, sections 9.8.2 and 9.9: packets are numbered as those of a reliable
//! connection, but nothing is acknowledged and nothing is retransmitted. A work request is done
//! when its last packet has left. A message of which a packet is missing vanishes at the responder,
//! and the next one that begins is taken. Neither half knows a memory region, a completion queue or
//! an address: these come with a [`longhaul_work::Context`] and a [`longhaul_wire::PathTemplate`].
//! Packets are built when they leave, with payload by reference to registered memory, so that
//! nothing is copied or allocated per packet.
//!
//! Not here: path migration.
#![forbid(unsafe_code)]

mod requester;
mod responder;

pub use requester::{Requester, RequesterConfig, RequesterSnapshot};
pub use responder::{Fault, Responder, ResponderConfig, ResponderSnapshot};
