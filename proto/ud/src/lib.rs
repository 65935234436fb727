//! Unreliable datagram transport: requester and responder as separate pure state machines.
//!
//! One work request is one packet. An address handle and the work request name its destination, and
//! it is complete when it has been sent. A receive holds the sender's IP header in its first 40
//! bytes, followed by the datagram; [`NetworkHeader`] parses that header for programs that want to
//! answer. Neither half accesses memory regions, completion queues or addresses directly: a
//! [`longhaul_work::Context`] provides them.
//!
//! Multicast attachments are the owner's: it passes the same packet to the responder of each
//! attached QP.
#![forbid(unsafe_code)]

mod grh;
mod requester;
mod responder;

pub use grh::{GRH_LEN, NetworkHeader};
pub use requester::{Requester, RequesterConfig, RequesterSnapshot};
pub use responder::{Fault, Responder, ResponderConfig, ResponderSnapshot};
