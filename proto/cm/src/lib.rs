//! The connection manager, as a pure state machine over MADs: set-up and teardown of connections,
//! and resolution of datagram services.
//!
//! A [`ConnectionManager`] holds many connections. Its owner passes it received MADs
//! ([`ConnectionManager::handle_mad`]) and the time, sends its MADs
//! ([`ConnectionManager::poll_mad`]) and processes its events ([`ConnectionManager::poll_event`]).
//! It has no QPs: the owner moves its QP when an event requires it.
//!
//! Calls and events correspond to those of librdmacm:
//!
//! | librdmacm | here |
//! |---|---|
//! | `rdma_listen` | [`ConnectionManager::listen`] |
//! | `rdma_connect` | [`ConnectionManager::connect`] |
//! | `RDMA_CM_EVENT_CONNECT_REQUEST` | [`Event::ConnectRequest`] |
//! | `rdma_accept` (passive) | QP to RTR and RTS, then [`ConnectionManager::accept`] |
//! | `rdma_reject` | [`ConnectionManager::reject`] |
//! | `RDMA_CM_EVENT_CONNECT_RESPONSE`, or `ESTABLISHED` where the library moves the QP | [`Event::ConnectResponse`]: QP to RTR and RTS, then [`ConnectionManager::ready_to_use`] |
//! | `RDMA_CM_EVENT_ESTABLISHED` (passive) | [`Event::Established`] |
//! | `RDMA_CM_EVENT_REJECTED`, `UNREACHABLE` | [`Event::Rejected`], [`Event::Unreachable`]: the id is gone |
//! | `rdma_disconnect` | QP to error, then [`ConnectionManager::disconnect`] |
//! | `RDMA_CM_EVENT_DISCONNECTED` | [`Event::Disconnected`] |
//! | `RDMA_CM_EVENT_TIMEWAIT_EXIT` | [`Event::TimewaitExit`]: the id is gone |
//! | `rdma_destroy_id` | [`ConnectionManager::destroy`] |
//!
//! Datagram services (the UDP and IPoIB port spaces) are resolved to a QP and a queue key instead:
//!
//! | librdmacm | here |
//! |---|---|
//! | `rdma_connect` | [`ConnectionManager::sidr_request`] |
//! | `RDMA_CM_EVENT_CONNECT_REQUEST` | [`Event::SidrRequest`] |
//! | `rdma_accept`, `rdma_reject` | [`ConnectionManager::sidr_accept`], [`ConnectionManager::sidr_reject`]: the id is gone |
//! | `RDMA_CM_EVENT_ESTABLISHED` (active) | [`Event::SidrResponse`] with status `Valid`: the id is gone |
//! | `RDMA_CM_EVENT_UNREACHABLE` | [`Event::SidrResponse`] with another status, [`Event::SidrUnreachable`] |
//! | `rdma_destroy_id` before that | [`ConnectionManager::sidr_destroy`] |
//!
//! Not implemented: alternate paths (RoCE has none; LAP and APR are ignored, as in Linux) and XRC.
//!
//! Source: IBTA, volume 1, chapter 12. Timers, defaults and unspecified cases follow Linux `ib_cm`.
#![forbid(unsafe_code)]

mod active;
mod call;
mod config;
mod connection;
mod counters;
mod event;
mod manager;
mod message;
mod mra;
mod output;
mod passive;
mod queue;
mod receive;
mod rejection;
mod release;
mod resolve;
mod sidr;
mod state;
mod tables;
#[cfg(test)]
mod tests;
mod transitions;

pub use call::{
    Accept, CallError, ConnectError, ConnectRequest, ListenError, SidrRequest, Transport,
};
pub use config::Config;
pub use connection::{ConnectionInfo, ConnectionState, Role};
pub use counters::{ByAttribute, Counters, DropReason, Drops};
pub use event::{
    DisconnectCause, Event, PrivateData, ReplyInfo, RequestInfo, SidrRequestInfo, Waited,
};
pub use longhaul_wire::mad::{Mad, RdmaCmHeader, RejectReason, ServiceId, SidrStatus};
pub use manager::ConnectionManager;
pub use sidr::SidrId;

/// Identifies a listener of a [`ConnectionManager`]; never reused.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, PartialOrd, Ord)]
pub struct ListenId(pub(crate) u64);

/// Identifies a connection of a [`ConnectionManager`] by its local communication id on the wire.
///
/// Reused only after 2^24 (without prefix 2^32) further connections.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, PartialOrd, Ord)]
pub struct ConnectionId(pub(crate) u32);

impl ConnectionId {
    /// The communication id on the wire.
    pub const fn comm_id(self) -> u32 {
        self.0
    }
}
