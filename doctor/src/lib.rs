//! Analyses captures of RoCEv2 traffic: its flows, their limits, stalls and errors.
//!
//! [`Doctor`] takes packets one by one ([`Doctor::feed`]) and returns a [`Report`]
//! ([`Doctor::finish`]); [`examine`] does that for a whole pcap or pcapng file. Memory is bounded
//! by flows and outstanding packets, independent of the capture's length. [`text`] formats a report
//! for a terminal; a [`Trace`] has the packets of one flow for a plot.
//!
//! The layers, from below: `link` and `frame` parse a frame; `flows` assigns packets to flows;
//! `requests` follows one direction of requests with `window` (outstanding packets), `messages`
//! (operations and sizes), `stalls` (silences) and `recovery` (retransmissions); `limits`
//! determines a flow's limit; `findings`, `events` and `verdict` produce the text.
//!
//! It does not reassemble tunnels, follow a flow over two capture points, or inspect payload.
#![forbid(unsafe_code)]

mod connections;
mod doctor;
mod events;
mod findings;
mod flows;
mod frame;
mod histogram;
mod limits;
mod link;
mod messages;
mod others;
mod quantity;
mod reader;
mod recovery;
pub mod report;
mod requests;
mod stalls;
mod summary;
pub mod text;
mod trace;
mod verdict;
mod window;

pub use connections::{Agreed, ConnectionManager, Features, Rejected};
pub use doctor::{Doctor, End, Options};
pub use histogram::Quantiles;
pub use link::link_type_name;
pub use others::OtherTraffic;
pub use reader::{ReadError, examine};
pub use report::Report;
pub use trace::{Mark, Trace};
