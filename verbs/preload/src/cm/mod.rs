//! The connection manager's C interface: event channels, identifiers, events, connections.
//!
//! It does what librdmacm does on top of the kernel, on top of the engine: address and route resolution
//! answer at once through the channel, connections follow `longhaul_cm`, and queue pairs that belong to an
//! identifier are moved through their states when an event is read.

mod addrinfo;
mod attributes;
mod connect;
mod endpoint;
mod event;
mod id;
mod name;
mod unsupported;

#[cfg(test)]
pub(crate) use id::rdma_destroy_id as destroy_for_test;
