//! The WAN transport between two boxes: what goes in at one comes out at the other, once and in the
//! order of its stream, whatever the paths between them lose, delay, repeat or damage.
//!
//! A [`Transport`] is a [`longhaul_node::Node`]: side 0 ([`INNER`]) is the hosts', sides 1 and up
//! are the WAN's paths. It knows frames and streams, and nothing of what a packet means to a
//! reliable connection.
//!
//! **Lifecycle.** Frames of RC, UC and UD (multicast aside) to an address that is not known make it
//! ask along the path whether a box serves that address ([`Hello`]). Until one answers, and where
//! none does, everything passes as it is. A session with a far box holds streams and paths; it ends
//! when the far box says so, restarts, or is silent for [`Config::dead_after`]. What was in flight
//! is then lost: reliable connections retransmit it by their own sequence numbers.
//!
//! **Tunnelled frames** keep their Ethernet and IP headers. The UDP port changes and 24 bytes stand
//! before the BTH (`docs/wan-transport.md`). The far box hands out byte for byte what went in, but
//! for what routers change.
//!
//! **Reliability.** Each transmission has a number of its own on its path; the far box names those
//! that arrived, three times each. A number that others overtook, and that is then gone for longer
//! than reordering has been seen to take, is lost; its frame goes out again under another number,
//! in as many copies as the path's loss asks for. A silence is met by repeating the last frames,
//! and then by giving the path up for the others.
//!
//! **Parity** ([`Parity`], `longhaul_fec`) saves a lost frame the round trip: it goes over the
//! frames of a path in the order of their numbers, and what the far box computes from it counts as
//! arrived.
//!
//! **UC and UD** have no acknowledgements that hold their senders back. Their frames are repaired
//! as RC's are, but wait in queues of their own, one for each source; what exceeds a source's share
//! is dropped before it enters a stream (`unpaced`).
//!
//! **Memory** is bounded at both ends. The far box says how much room it has and never lets go of
//! what it has acknowledged; the near one takes no more than it may keep
//! ([`longhaul_node::Node::intake`]).
//!
//! **Length** ([`PathStatus::mtu`]): how long a datagram may be on a path is found by padded PINGs.
//! A frame that is longer goes in parts, each of which is numbered, acknowledged and under parity
//! as a frame is; the far box puts them together.
//!
//! **Rate** ([`Rate`]): that of the configuration, the port's, or what the path's bottleneck has
//! room for ([`longhaul_cc::PathRate`]).
//!
//! **What it does not do.** It does not encrypt, so that whoever can read the path can forge; it
//! does not split what passes untunnelled.
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
mod key;
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
