//! ARP and IPv6 neighbour discovery for a host's own addresses and its peers.
//!
//! [`Neighbours`] answers requests for our own addresses, resolves peers' addresses, and caches the
//! answers. It is driven like a node: pass it frames and the time, take its frames, and ask for its
//! next deadline.
//!
//! - **Received messages create no entries.** An entry is created when we resolve an address;
//!   received messages only update existing entries. The exception, [`Neighbours::heard`], has its
//!   own small part of the table. A flood of forged messages therefore uses no memory and evicts no
//!   entry in use.
//! - A held entry ([`Neighbours::hold`]) is never evicted, and is refreshed periodically;
//!   [`Neighbours::poll_change`] reports changes of its Ethernet address, at most once a second per
//!   entry.
//! - If the host's kernel has neighbours and routes ([`Asks::Owner`]), no frames are sent:
//!   [`Neighbours::poll_question`] returns requests, which the owner answers with
//!   [`Neighbours::answer`].
//!
//! Not implemented: router advertisements and redirects (prefixes and gateway are configured),
//! duplicate address detection before an address is used (conflicts are reported when they occur),
//! proxying.
//!
//! Sources: RFC 826 (ARP), RFC 5227 (probes and announcements), RFC 4861 (neighbour discovery), RFC
//! 1112 and RFC 2464 (groups).
#![forbid(unsafe_code)]

mod config;
mod message;
mod neighbours;
mod table;

#[cfg(test)]
mod tests;

pub use config::{Address, Asks, Config};
pub use message::{FRAME_MAX, Outgoing, multicast_mac};
pub use neighbours::{Counters, Neighbours};
pub use table::{Failure, HopId, Resolution};
