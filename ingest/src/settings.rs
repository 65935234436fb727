//! Settings of a receiver, as a file states them.

use crate::device::{Endpoint, Transport};
use crate::layout::{Layout, Shape};
use crate::ring::Delivery;
use serde::{Deserialize, Serialize};
use std::net::{IpAddr, SocketAddr};

/// Receive queues.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Receives {
    /// A receive queue of this depth for each queue pair.
    PerPair(u32),
    /// One queue of this depth for all queue pairs of a completion thread.
    Shared(u32),
}

/// How completion threads wait.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Wait {
    /// They sleep until a completion event, and poll through silences of microseconds.
    #[default]
    Events,
    /// They sleep until the event of a message that its sender marked as solicited.
    Solicited,
    /// They poll.
    Poll,
}

/// A sender without a session, such as one in hardware. It announces nothing, and it stays until
/// the receiver stops.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StaticSender {
    /// Its number, from 0.
    pub stream: u32,
    /// Address of its port: its GID, or the IPv4 address of an IPv4-mapped GID.
    pub address: IpAddr,
    /// Path MTU of its packets, in bytes.
    #[serde(default = "path_mtu_max")]
    pub path_mtu: u32,
    /// The first window that it sends.
    #[serde(default)]
    pub first_window: u64,
    /// Slot s is sent by queue pair s modulo their number.
    pub queue_pairs: Vec<Endpoint>,
}

fn path_mtu_max() -> u32 {
    4096
}

/// Settings of a receiver.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Settings {
    /// TCP address for sessions.
    pub listen: SocketAddr,
    /// Transport service.
    pub transport: Transport,
    /// Layout of the immediate data.
    pub layout: Layout,
    /// Streams in total.
    pub streams: u32,
    /// Streams whose windows form a chunk together.
    pub streams_per_ring: u32,
    /// Messages of a stream per window.
    pub slots: u32,
    /// Bytes of a message.
    pub message_bytes: u32,
    /// Regions of a ring.
    pub regions: u32,
    /// Incomplete windows that wait for late messages.
    pub lateness: u32,
    /// Order of delivery.
    pub delivery: Delivery,
    /// Receive queues.
    pub receives: Receives,
    /// Completion threads; ring r is served by thread r modulo their number.
    pub threads: u32,
    /// Processors for the completion threads, one each; empty: any.
    pub cores: Vec<usize>,
    /// How completion threads wait.
    pub wait: Wait,
    /// Most queue pairs of a sender.
    pub queue_pairs_max: u32,
    /// Milliseconds without a message after which the windows of a sender that has ended are
    /// closed.
    pub linger_ms: u64,
    /// Milliseconds without a message after which all windows of a ring are closed; 0: never.
    pub idle_ms: u64,
    /// Senders without a session.
    pub senders: Vec<StaticSender>,
}

impl Default for Settings {
    fn default() -> Self {
        Settings {
            listen: SocketAddr::from(([0, 0, 0, 0], 7700)),
            transport: Transport::default(),
            layout: Layout::default(),
            streams: 1,
            streams_per_ring: 1,
            slots: 256,
            message_bytes: 8192,
            regions: 16,
            lateness: 2,
            delivery: Delivery::default(),
            receives: Receives::Shared(8192),
            threads: 1,
            cores: Vec::new(),
            wait: Wait::default(),
            queue_pairs_max: 4096,
            linger_ms: 300,
            idle_ms: 2000,
            senders: Vec::new(),
        }
    }
}

impl Settings {
    /// Shape of the memory.
    #[must_use]
    pub fn shape(&self) -> Shape {
        Shape {
            layout: self.layout,
            streams: self.streams,
            streams_per_ring: self.streams_per_ring,
            slots: self.slots,
            message_bytes: self.message_bytes,
            regions: self.regions,
            lateness: self.lateness,
        }
    }
}
