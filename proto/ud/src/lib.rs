//! Unreliable datagram transport: requester and responder as separate pure state machines.
//!
//! One work request is one packet. It goes to whatever QP the work request names, by an address
//! handle, and is complete when it leaves. A receive gets the sender's IP header in its first 40
//! bytes and the datagram behind them; [`NetworkHeader`] reads that header back, for whoever wants
//! to answer. Neither side knows a memory region, a completion queue or an address: these come with
//! a [`longhaul_work::Context`].
//!
//! Not here: which QPs are attached to a multicast group. The owner hands the same packet to the
//! responder of each.
#![forbid(unsafe_code)]

mod grh;
mod requester;
mod responder;

pub use grh::{GRH_LEN, NetworkHeader};
pub use requester::{Requester, RequesterConfig, RequesterSnapshot};
pub use responder::{Fault, Responder, ResponderConfig, ResponderSnapshot};
