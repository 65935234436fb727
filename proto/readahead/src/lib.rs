//! READ read-ahead: data that a command lets its target READ is fetched as the command passes, and
//! waits near the target.
//!
//! An NVMe-oF target, or an NFS server, answers a command that writes by an RDMA READ of the
//! initiator's memory: a second round trip. A [`ReadAhead`] is a [`longhaul_node::Node`] with two
//! sides, [`LAN`] and [`INNER`], and stands between the LAN and the accelerators of a box, at both
//! sites. That near the initiator READs at once what a command announces, on the same connection;
//! the one near the target answers the target's READ. Everything else passes.
//!
//! **Whose memory, and why it is not stale.** Only that of commands whose protocol says that the
//! initiator does not change it before the command is answered ([`Protocol`], docs/read-ahead.md).
//! What is held for a command is used for no READ after the command's answer, nor after a later
//! command that names the same memory.
//!
//! **Numbers.** A fetch takes PSNs of the initiator's NIC that the target's does not know of, and a
//! READ answered here takes PSNs of the target's NIC that the initiator's does not know of. Between
//! the boxes the connection has neither: each box translates PSN and MSN for its own NIC, alone,
//! whether what was fetched is ever READ or not.
//!
//! **Lifecycle of a connection.** Learnt from the connection manager: port, private data and
//! numbers. The box near the initiator offers to read ahead by a reserved bit in the initiator's
//! requests, which NICs ignore. The box near the target answers by giving the target's requests a
//! transport header version that no NIC accepts, which the first box takes away again. It fetches
//! once everything without that mark is acknowledged. From then on the connection needs both boxes:
//! when one is gone, or has lost its memory, NICs drop what has the mark, and the connection ends
//! by its timeouts; no request is taken for another one.
//!
//! **Bounds.** Fetches never exceed what the initiator's NIC serves at once, the target's own READs
//! included; these wait where they would. Held bytes, fetches, remembered ranges and queues have
//! limits in [`Config`].
//!
//! **What it does not do.** It learns no connection from traffic, fetches nothing twice, and does
//! not tell the far box which commands it left alone. UDP checksums, which RoCEv2 does without, are
//! left out of frames that it changes.
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
