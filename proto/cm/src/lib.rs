//! The connection manager: REQ, REP, RTU and what ends a connection, as a pure state machine over
//! MADs.
//!
//! A [`ConnectionManager`] holds many connections. Its owner feeds it received MADs
//! ([`ConnectionManager::handle_mad`]) and the time, sends what it asks for
//! ([`ConnectionManager::poll_mad`]) and hands events on ([`ConnectionManager::poll_event`]). It
//! knows no QP: when an event says so, the owner moves its QP.
//!
//! The calls and events are those of librdmacm, one to one:
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
//! Deliberately absent: alternate paths (RoCE has none; LAP and APR are ignored, as Linux does),
//! and XRC.
//!
//! Source: IBTA, volume 1, chapter 12; timers, defaults and unclear corners as Linux `ib_cm` has
//! them.
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
pub use counters::{Counters, Drop};
pub use event::{
    DisconnectCause, Event, PrivateData, ReplyInfo, RequestInfo, SidrRequestInfo, Waited,
};
pub use longhaul_wire::mad::{Mad, RdmaCmHeader, RejectReason, ServiceId, SidrStatus};
pub use manager::ConnectionManager;
pub use sidr::SidrId;

/// One listener of a [`ConnectionManager`]; never used twice.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, PartialOrd, Ord)]
pub struct ListenId(pub(crate) u64);

/// One connection of a [`ConnectionManager`]: its local communication id on the wire.
///
/// Not used again before the 2^24 (without prefix 2^32) following connections have been.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, PartialOrd, Ord)]
pub struct ConnectionId(pub(crate) u32);

impl ConnectionId {
    /// The communication id on the wire.
    pub const fn comm_id(self) -> u32 {
        self.0
    }
}
