//! memif: Ethernet frames between two processes through shared memory, without privileges.
//!
//! Implements the published memif protocol, version 2.0, which VPP, libmemif and DPDK's `net_memif`
//! speak, in both roles, with one queue pair per interface:
//!
//! * the **slave** (client) allocates the memory, connects to a UNIX socket, and reconnects
//!   automatically whenever the link is down: [`MemifPort::slave`];
//! * the **master** (server) listens on the socket and maps the regions of slaves. One socket
//!   serves any number of interfaces, identified by number: [`Listener`], or [`MemifPort::master`]
//!   for one.
//!
//! Lifecycle of a port: down; handshake; up; down again when the peer disconnects or violates the
//! protocol, or when the port is dropped. All of it happens inside
//! [`longhaul_port::Port::service`], which never blocks. Frames that a departed peer had published
//! can still be received.
//!
//! Trust: a peer may write arbitrary bytes into the shared memory and the control channel at any
//! time. The port copies every value from there to private memory once, and checks it before use; a
//! violation disconnects the peer and is reported as [`longhaul_port::PortError::PeerViolation`]. A
//! peer can corrupt the frames that it sends itself, and with a forged interrupt descriptor it can
//! stall the thread that wakes it.
//!
//! Deliberately absent: several queue pairs, private headers, IP mode, zero-copy reception from
//! foreign memory.
//!
//! System calls go through `rustix`, which passes descriptors over sockets and seals memory files
//! in safe code; only mappings and the rings in them need unsafe code.

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
