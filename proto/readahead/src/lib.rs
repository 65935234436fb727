//! READ read-ahead: when a command passes, the box fetches the data that the command lets its
//! target READ, and the data waits near the target.
//!
//! An NVMe-oF target or an NFS server answers a writing command with an RDMA READ of the
//! initiator's memory, which costs a second round trip. A [`ReadAhead`] is a
//! [`longhaul_node::Node`] with two sides, [`LAN`] and [`INNER`], between the LAN and the
//! accelerators of a box, at both sites. The one near the initiator at once READs the memory that a
//! command announces, on the same connection; the one near the target answers the target's READ.
//! Everything else passes.
//!
//! **Which memory, and why the data is not stale.** Only memory of commands whose protocol
//! guarantees that the initiator does not change it before the command is answered ([`Protocol`],
//! docs/read-ahead.md). Data held for a command answers no READ after the command's answer, nor
//! after a later command that names the same memory.
//!
//! **Numbers.** A fetch consumes PSNs of the initiator's NIC that the target's NIC does not use,
//! and a READ answered here consumes PSNs of the target's NIC that the initiator's NIC does not
//! use. The path between the boxes uses neither: each box translates PSN and MSN for its own NIC
//! independently, whether fetched data is ever READ or not.
//!
//! **Lifecycle of a connection.** The boxes learn it from the connection manager: port, private
//! data and numbers. The box near the initiator offers to read ahead by a reserved bit in the
//! initiator's requests, which NICs ignore. The box near the target accepts by marking the target's
//! requests with a transport header version that no NIC accepts; the first box removes the mark. It
//! fetches once everything without the mark is acknowledged. The connection then needs both boxes:
//! if one is gone or has lost its memory, NICs drop marked packets, and the connection ends by its
//! timeouts; no request is ever mistaken for another.
//! **Limits.** Fetches never exceed the READs that the initiator's NIC serves at once, the target's
//! own READs included; these wait if necessary. [`Config`] limits held bytes, fetches, remembered
//! ranges and queues.
//!
//! **Not implemented.** It learns no connection from traffic, fetches nothing twice, and does not
//! tell the far box which commands it ignored. It clears the UDP checksum, which RoCEv2 does not
//! need, in frames that it changes.
#![forbid(unsafe_code)]

mod command;
mod config;
mod connections;
mod counters;
mod held;
mod initiator;
mod local;
mod numbering;
mod nvme;
mod read_ahead;
mod rpc;
mod shared;
mod status;
mod target;

pub use command::{Command, Protocol, RANGES_MAX, Range, UnknownProtocol};
pub use config::{Config, ConfigError};
pub use counters::Counters;
pub use read_ahead::ReadAhead;
pub use shared::{INNER, LAN};
pub use status::ConnectionStatus;
