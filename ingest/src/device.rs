//! What ingest needs of an RDMA device.
//!
//! [`software`] is the project's own device, in this process. [`ibverbs`] is any device that
//! libibverbs knows: a hardware NIC, the kernel's rxe, or the preloaded library.

pub mod ibverbs;
pub mod software;

use crate::memory::Memory;
use serde::{Deserialize, Serialize};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;
use thiserror::Error;

/// Transport service of the queue pairs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Transport {
    /// Unreliable connected: a lost message is missing, and the others are not delayed.
    #[default]
    Uc,
    /// Reliable connected: the device retransmits.
    Rc,
}

/// Why a device refused.
#[derive(Debug, Error)]
#[error("cannot {action}: {cause}")]
pub struct DeviceError {
    /// What was to be done.
    pub action: &'static str,
    /// The device's reason.
    pub cause: String,
}

impl DeviceError {
    /// An error while trying to `action`.
    pub fn new(action: &'static str, cause: impl ToString) -> Self {
        DeviceError { action, cause: cause.to_string() }
    }
}

/// Settings of a queue pair.
#[derive(Clone, Copy, Debug)]
pub struct PairSettings {
    /// Transport service.
    pub transport: Transport,
    /// Capacity for send work requests.
    pub send_depth: u32,
    /// Capacity for receive work requests of its own queue.
    pub receive_depth: u32,
}

/// One side of a connection, as the session carries it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Endpoint {
    /// Queue pair number, 24 bits.
    pub qpn: u32,
    /// First PSN that it sends, 24 bits.
    pub psn: u32,
}

/// The path to the peer.
#[derive(Clone, Copy, Debug)]
pub struct Path {
    /// The peer's address; the GID is the address or its IPv4-mapped form.
    pub address: IpAddr,
    /// Path MTU in bytes: 256, 512, 1024, 2048 or 4096.
    pub mtu: u32,
}

/// A completion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Completion {
    /// Number of its queue pair.
    pub qpn: u32,
    /// What completed.
    pub kind: CompletionKind,
}

/// What completed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CompletionKind {
    /// A WRITE with immediate data arrived.
    Arrived {
        /// Immediate data in network byte order.
        immediate: [u8; 4],
        /// Length of the message.
        bytes: u32,
    },
    /// Posted WRITEs were executed, up to the one with this `tag`.
    Sent {
        /// As posted.
        tag: u64,
    },
    /// A work request failed, or was flushed; its queue pair has failed.
    Failed {
        /// The status's number, as `enum ibv_wc_status`.
        status: u32,
    },
    /// Something that a sender of ingest does not send.
    Foreign,
}

/// A WRITE with immediate data.
#[derive(Clone, Copy, Debug)]
pub struct Write {
    /// Returned in its completion.
    pub tag: u64,
    /// First byte in the local memory.
    pub offset: usize,
    /// Length.
    pub bytes: u32,
    /// First byte at the peer.
    pub remote_address: u64,
    /// The peer's key.
    pub rkey: u32,
    /// Immediate data in network byte order.
    pub immediate: [u8; 4],
    /// Whether a completion reports it.
    pub signaled: bool,
    /// Whether it raises a solicited event at the peer.
    pub solicited: bool,
}

/// A registered [`Memory`].
pub trait Registration: Send + Sync + 'static {
    /// Address for peers.
    fn address(&self) -> u64;
    /// Key for peers.
    fn rkey(&self) -> u32;
}

/// A completion queue.
pub trait Completions: Send + Sync + 'static {
    /// Appends at most `max` completions to `found`; never blocks.
    ///
    /// # Errors
    /// If the device has failed.
    fn poll(&self, max: usize, found: &mut Vec<Completion>) -> Result<(), DeviceError>;

    /// Requests an event at the next completion, or at the next solicited one.
    ///
    /// # Errors
    /// If the device has failed.
    fn arm(&self, solicited_only: bool) -> Result<(), DeviceError>;

    /// Sleeps until the requested event, for at most `limit`.
    ///
    /// # Errors
    /// If the device has failed. A time limit that expires is no error.
    fn wait(&self, limit: Duration) -> Result<(), DeviceError>;
}

/// A receive queue that queue pairs share.
pub trait SharedReceives: Send + Sync + 'static {
    /// Posts `count` receives without memory.
    ///
    /// # Errors
    /// If they do not fit.
    fn post(&self, count: u32) -> Result<(), DeviceError>;
}

/// A queue pair; destroyed when dropped.
pub trait Pair: Send + Sync + 'static {
    /// Its device's registrations.
    type Registration: Registration;

    /// Its number.
    fn qpn(&self) -> u32;

    /// Moves it to ready to receive and ready to send; it sends from PSN `psn` on.
    ///
    /// # Errors
    /// If the device refuses the peer or the path.
    fn connect(&self, psn: u32, peer: Endpoint, path: Path) -> Result<(), DeviceError>;

    /// Posts `count` receives without memory.
    ///
    /// # Errors
    /// If they do not fit.
    fn post_receives(&self, count: u32) -> Result<(), DeviceError>;

    /// Posts a list of WRITEs from `memory`.
    ///
    /// # Errors
    /// If one is refused; those before it are posted.
    fn post_writes(&self, memory: &Self::Registration, writes: &[Write])
    -> Result<(), DeviceError>;
}

/// An open device.
pub trait Device: Send + Sync + 'static {
    /// Registered memory.
    type Registration: Registration;
    /// Completion queues.
    type Completions: Completions;
    /// Shared receive queues.
    type SharedReceives: SharedReceives;
    /// Queue pairs.
    type Pair: Pair<Registration = Self::Registration>;

    /// Address of its port.
    fn address(&self) -> IpAddr;

    /// MAC address of its port; `None` if it is not known.
    fn mac(&self) -> Option<[u8; 6]> {
        None
    }

    /// Largest path MTU of its port, in bytes.
    fn path_mtu(&self) -> u32;

    /// Registers memory for WRITEs of peers and of this side.
    ///
    /// # Errors
    /// If the device refuses.
    fn register(&self, memory: &Arc<Memory>) -> Result<Self::Registration, DeviceError>;

    /// Creates a completion queue for `depth` completions.
    ///
    /// # Errors
    /// If the device refuses.
    fn completions(&self, depth: u32) -> Result<Self::Completions, DeviceError>;

    /// Creates a shared receive queue for `depth` receives.
    ///
    /// # Errors
    /// If the device refuses.
    fn shared_receives(&self, depth: u32) -> Result<Self::SharedReceives, DeviceError>;

    /// Creates a queue pair in state initialized, with a receive queue of its own or `shared`.
    ///
    /// # Errors
    /// If the device refuses.
    fn pair(
        &self,
        completions: &Self::Completions,
        settings: &PairSettings,
        shared: Option<&Self::SharedReceives>,
    ) -> Result<Self::Pair, DeviceError>;

    /// A PSN to begin with, not used recently.
    fn fresh_psn(&self) -> u32;

    /// Messages dropped so far because no receive was posted; `None` if the device does not count
    /// them.
    fn out_of_buffer(&self) -> Option<u64>;
}
