//! Who has which Ethernet address: ARP and IPv6 neighbour discovery for a host's own addresses and
//! for its peers.
//!
//! [`Neighbours`] answers requests for addresses that are ours, asks for those of peers, and
//! remembers the answers. It is driven like a node: hand it frames and the time, take frames from
//! it, ask it for its next deadline.
//!
//! - **Nobody else fills the table.** An entry comes into being when we ask for an address; what
//!   others send only changes entries that are there. The exception, [`Neighbours::heard`], has a
//!   small part of the table to itself. So a flood of forged messages takes no memory, and drives
//!   out nothing that is used.
//! - An entry that somebody holds ([`Neighbours::hold`]) is kept and asked for again now and then;
//!   a change of its Ethernet address is told by [`Neighbours::poll_change`], at most once a second
//!   per entry.
//! - Where the host's kernel knows neighbours and routes ([`Asks::Owner`]), nothing is sent:
//!   questions come out of [`Neighbours::poll_question`], and whoever owns this answers with
//!   [`Neighbours::answer`].
//!
//! Not here: routers' advertisements and redirects (prefixes and the gateway are given), duplicate
//! address detection before an address is used (a conflict is reported when it shows), proxying.
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
