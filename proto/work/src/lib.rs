//! Work queues and completions, shared by the transports RC, UC and UD.
//!
//! Programs post [`SendWr`]s and [`RecvWr`]s. They wait in a [`SendQueue`] and a [`RecvQueue`]
//! until a transport's requester or responder has served them and reports a [`Completion`]. Memory
//! regions, completion queues and counters belong to the device: a transport accesses them through
//! a [`Context`], and passes the frames that it builds to an [`Emit`].
#![forbid(unsafe_code)]

mod completion;
mod context;
mod counters;
mod incoming_send;
mod pieces;
mod recv_queue;
mod request;
mod send_queue;

pub use completion::{Completion, CompletionOp, Grh, Status};
pub use context::{Context, Denied, Emit, Intent, RemoteIntent, total_len};
pub use counters::{Counter, Counters, DropReason};
pub use incoming_send::{IncomingSend, PlaceFault};
pub use pieces::scatter_list;
pub use recv_queue::{Receive, RecvQueue, RecvRefused};
pub use request::{
    AhId, Destination, MESSAGE_MAX, Mtu, RecvWr, SGE_MAX, SendOp, SendRefused, SendWr, Sge,
};
pub use send_queue::{SendQueue, SendWqe};
