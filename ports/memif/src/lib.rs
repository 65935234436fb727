//! memif: Ethernet frames between two processes through shared memory, without privileges.
//!
//! This is the published memif protocol, version 2.0, as VPP, libmemif and DPDK's `net_memif` speak
//! it, in both roles, with one queue pair per interface:
//!
//! * the **slave** (client) allocates the memory, connects to a UNIX socket, and reconnects by
//!   itself whenever the link is down: [`MemifPort::slave`];
//! * the **master** (server) listens on the socket and maps what slaves offer. One socket serves
//!   any number of interfaces, told apart by a number: [`Listener`], or [`MemifPort::master`] for
//!   one.
//!
//! Lifecycle of a port: down; handshake; up; down again when the peer leaves, when it breaks a
//! rule, or when the port is dropped. All of it happens inside [`longhaul_port::Port::service`],
//! which never blocks. Frames that a departed peer had published can still be received.
//!
//! Trust: a peer may write anything into the shared memory and onto the control channel at any
//! time. Everything from there is copied to private memory once, and checked before use; a broken
//! rule disconnects the peer and is reported as [`longhaul_port::PortError::PeerViolation`]. It can
//! garble the frames that it sends itself, and with a forged interrupt descriptor it can stall the
//! thread that wakes it.
//!
//! Deliberately absent: several queue pairs, private headers, IP mode, zero-copy out of foreign
//! memory.
//!
//! `rustix` is used for system calls because it passes descriptors over sockets and seals memory
//! files in safe code; unsafe is left to mapping memory and to the rings in it.

mod config;
mod control;
mod handshake;
#[cfg(all(feature = "hostile", not(loom)))]
pub mod hostile;
mod listener;
mod message;
mod port;
mod receiver;
mod region;
mod ring;
#[cfg_attr(loom, path = "ring_memory_model.rs")]
mod ring_memory;
mod sender;
mod socket;
mod stretch;
mod violation;

#[cfg(all(test, not(loom)))]
mod tests;
#[cfg(all(test, loom))]
mod under_loom;

pub use config::{MemifConfig, MemifError, RING_SIZE_LOG2_MAX};
pub use listener::Listener;
pub use port::MemifPort;
