//! The verbs layer for this project's programs, and the engine that the preloaded library shares
//! with it.
//!
//! **Purpose.** One software RNIC per process, attached by shared memory to a lab or to a second
//! process, by a UDP socket to other machines, or to an Ethernet segment by a TAP device or an
//! interface. The program's own polling drives it ([`Engine`]).
//!
//! **Deliberately absent.** C layouts, which belong to `preload`.

mod acknowledgements;
pub mod attach;
mod busy_poll;
mod connection;
mod counter_files;
mod device_state;
mod engine;
mod engine_thread;
mod error;
mod event_queue;
mod groups;
mod hand_over;
mod host_routes;
mod memory;
mod placement;
mod segment;
#[cfg_attr(loom, path = "semaphore_model.rs")]
mod semaphore;
mod shared_bytes;
mod slot;
pub mod sysfs;
mod verbs;

pub use acknowledgements::Acknowledgements;
pub use attach::{Attach, AttachError, Line, Network, Role};
pub use busy_poll::BusyPoll;
pub use connection::{ConnectionEvent, ConnectionSink, Happening};
pub use device_state::{AsyncEvent, AsyncSink, CqSinks, EngineCounters};
pub use engine::Engine;
pub use error::{RdmaError, errno_of_post};
pub use event_queue::EventQueue;
pub use memory::ProcessMemory;
pub use shared_bytes::SharedBytes;
pub use slot::SlotError;
pub use verbs::{
    CompletionQueue, Connection, ConnectionRequest, Device, Endpoint, Keeper, Listener,
    MemoryRegion, PathSettings, Piece, ProtectionDomain, QueuePair, QueuePairSettings, Request,
    SharedReceiveQueue,
};

pub use longhaul_rnic::{Access, Completion, CompletionOp, Mtu, QpKind, QpState, SendOp, Status};
pub use longhaul_units::{Psn, Qpn, RKey};
