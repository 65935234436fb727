//! The connection manager's C interface: event channels, identifiers, events, connections.
//!
//! It implements on the engine what librdmacm implements on the kernel: address and route
//! resolution answer immediately through the channel, connections and requests for datagram
//! services follow `longhaul_cm`, and queue pairs of an identifier change state when an event is
//! read.
//!
//! Calls that block (those of identifiers without a channel, and `rdma_get_cm_event`) may be
//! cancelled by `pthread_cancel`: they block outside of `guarded` and then hold nothing, see
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
