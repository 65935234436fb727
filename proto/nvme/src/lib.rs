//! NVMe over Fabrics, RDMA transport: capsules, and target and host as state machines.
//!
//! **Purpose.** [`Target`] and the host's [`host::Admin`] and [`host::IoQueue`] own neither time,
//! memory, devices nor connections. Their driver passes in what arrived, and carries out what they
//! return: RDMA READs and WRITEs, SENDs, accesses to namespaces. The same state machines run over a
//! device, in tests and in virtual time.
//!
//! **Bytes of the peer are hostile.** A command that a target cannot execute is completed with one
//! of NVMe's status codes. A capsule that is none ends the connection. Nothing panics.
//!
//! **Limits.** One SGL descriptor per command: a keyed data block, or an offset into the capsule.
//! No metadata, fused commands, reservations, ANA, authentication or CQ flow control.
//!
//! Sources: NVM Express Base Specification 2.0; NVM Command Set Specification 1.0; NVM Express RDMA
//! Transport Specification 1.0.
#![forbid(unsafe_code)]

mod capsule;
mod connect;
mod connection;
mod fields;
pub mod host;
mod identify;
mod log;
mod nqn;
mod opcode;
mod property;
mod sgl;
mod status;
pub mod target;

pub use capsule::{CQE_LEN, Command, Completion, SQE_LEN};
pub use connect::{CONNECT_DATA_LEN, ConnectData, DYNAMIC_CONTROLLER, HostId};
pub use connection::{
    ACCEPT_LEN, Accept, QueueRequest, REQUEST_LEN, Refusal, RefusalReason, RequestError,
};
pub use identify::{ControllerData, ControllerKind, IDENTIFY_LEN, NamespaceData};
pub use log::{AddressFamily, DISCOVERY_ENTRY_LEN, DiscoveryEntry, DiscoveryHeader, SubsystemKind};
pub use nqn::{DISCOVERY_NQN, Nqn, NqnError};
pub use opcode::{admin, fabrics, feature, io, log_page};
pub use property::{Capabilities, Configuration, ControllerStatus, Property};
pub use sgl::{DataPointer, Remote};
pub use status::Status;
pub use target::Target;

/// Registered port of NVMe over RDMA.
pub const PORT: u16 = 4420;
