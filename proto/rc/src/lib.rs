//! Reliable connected transport: requester and responder as separate pure state machines.
//!
//! Both follow IBTA volume 1, chapter 9, the way a good hardware RNIC does: go-back-N, one sequence NAK per gap,
//! coalesced ACKs, implied NAKs, RNR, end-to-end credits. Neither knows a memory region, a completion queue or
//! an address: these come with a [`Context`] and a [`longhaul_wire::PathTemplate`]. Packets are built when they
//! leave, with payload by reference to registered memory, so that nothing is copied or allocated per packet.
//!
//! Not here: atomics, shared receive queues, path migration, congestion control.
#![forbid(unsafe_code)]

mod context;
mod counters;
mod pieces;
mod queue;
mod requester;
mod responder;
mod work;

pub use context::{Context, Denied, Emit, Intent, RemoteIntent};
pub use counters::{Counter, Counters, DropReason};
pub use queue::{RecvQueue, RecvRefused};
pub use requester::{Requester, RequesterConfig, RequesterSnapshot, SendRefused, WINDOW_MAX};
pub use responder::{Fault, Responder, ResponderConfig, ResponderSnapshot};
pub use work::{Completion, CompletionOp, MESSAGE_MAX, Mtu, RecvWr, SGE_MAX, SendOp, SendWr, Sge, Status};
