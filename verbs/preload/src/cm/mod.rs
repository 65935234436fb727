//! The connection manager's C interface: event channels, identifiers, events, connections.
//!
//! It does what librdmacm does on top of the kernel, on top of the engine: address and route
//! resolution answer at once through the channel, connections and requests for datagram services
//! follow `longhaul_cm`, and queue pairs that belong to an identifier are moved through their
//! states when an event is read.
//!
//! Calls that wait (those of identifiers without a channel, and `rdma_get_cm_event`) may be
//! cancelled there, by `pthread_cancel`: they do so outside of `guarded` and hold nothing then, see
//! [`crate::guard::wait_for_event`].

mod addrinfo;
mod attributes;
mod connect;
mod datagram;
mod ece;
mod endpoint;
mod event;
mod id;
mod multicast;
mod name;
mod option;
mod port;
mod queues;

#[cfg(test)]
pub(crate) use id::rdma_destroy_id as destroy_for_test;
