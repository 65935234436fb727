//! The WAN transport between two boxes: each frame that enters at one box leaves the other once and
//! in the order of its stream, although the paths between them lose, delay, duplicate and damage
//! datagrams.
//!
//! A [`Transport`] is a [`longhaul_node::Node`]: side 0 ([`INNER`]) faces the hosts, sides 1 and up
//! are the WAN paths. It handles frames and streams, and does not interpret the state of a reliable
//! connection.
//!
//! **Lifecycle.** The first RC, UC or UD frame (multicast aside) to an unknown address makes the
//! transport ask along the path whether a box serves that address ([`Hello`]). Until a box answers,
//! and where none does, everything passes untunnelled. A session with a far box holds streams and
//! paths. It ends when the far box closes it, restarts, or is silent for [`Config::dead_after`].
//! Frames in flight are then lost, and reliable connections retransmit them by their own sequence
//! numbers.
//!
//! **Tunnelled frames** keep their Ethernet and IP headers. The UDP port changes, and a 24-byte
//! header precedes the BTH (`docs/spec/wan-transport.md`). The far box delivers the frame byte for
//! byte, except for the fields that routers change.
//!
//! **Reliability.** Each transmission has a number of its own on its path, and the far box reports
//! each arrival three times. A number that later ones overtook, by longer than the reordering seen
//! so far, is lost: its frame is retransmitted under another number, in as many copies as the
//! path's loss demands. After a silence the last frames are retransmitted as a probe, and then the
//! path is given up for the others.
//!
//! **Parity** ([`Parity`], `longhaul_fec`) saves a lost frame the round trip. It covers the frames
//! of a path in the order of their numbers, and a frame that the far box computes from it counts as
//! arrived.
//!
//! **UC and UD** have no acknowledgements that pace their senders. Their frames are repaired as
//! RC's are, but wait in one queue per source; frames beyond a source's share are dropped before
//! they enter a stream (`unpaced`).
//!
//! **Memory** is bounded at both ends. The far box advertises its room and never evicts what it has
//! acknowledged; the near box accepts no more than it can keep ([`longhaul_node::Node::intake`]).
//!
//! **Length** ([`PathStatus::mtu`]): padded PINGs find the path MTU. A longer frame is split into
//! parts, each numbered, acknowledged and protected by parity as a frame is; the far box
//! reassembles them.
//!
//! **Rate** ([`Rate`]): the configured rate, the port's, or the rate that the path's bottleneck has
//! room for ([`longhaul_cc::PathRate`]).
//!
//! **Limits.** The transport does not encrypt, so an attacker who can read the path can forge
//! datagrams. It does not split frames that pass untunnelled.
#![forbid(unsafe_code)]

mod addresses;
mod arrivals;
mod config;
mod counters;
mod far;
mod flight;
pub mod format;
mod handshake;
mod incoming;
mod inner_queue;
mod key;
mod long_losses;
mod mtu;
mod outgoing;
mod pace;
mod parity_in;
mod parity_out;
mod partial;
mod path;
mod rtt;
#[cfg(test)]
mod samples;
mod session;
mod sessions;
mod shared;
mod silence;
mod status;
mod transport;
mod unpaced;
mod waiting;

pub use config::{Config, ConfigError, Parity, PathConfig, Rate};
pub use counters::{Counters, DropReason, Drops};
pub use far::FarBox;
pub use format::{Hello, Refusal, VERSION};
pub use key::StreamKey;
pub use longhaul_secret::Seed;
pub use status::{FarStatus, PathStatus, Refused, SessionStatus};
pub use transport::{INNER, Transport};

impl std::fmt::Debug for Transport {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Transport").field("counters", self.counters()).finish_non_exhaustive()
    }
}
