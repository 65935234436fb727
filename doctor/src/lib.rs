//! Explains captures of RoCEv2 traffic: which flows there are, what limits each, where it stalls,
//! and what went wrong.
//!
//! [`Doctor`] takes packets one by one ([`Doctor::feed`]) and hands over a [`Report`]
//! ([`Doctor::finish`]); [`examine`] does that with a whole pcap or pcapng file. Memory is bounded
//! by flows and outstanding packets, never by the capture's length. [`text`] puts a report into
//! words for a terminal; [`Trace`] and [`write_svg`] draw one flow.
//!
//! The layers, from below: `link` and `frame` take a frame apart; `flows` finds which packets
//! belong together; `requests` follows one direction of requests with `window` (what is
//! outstanding), `messages` (operations and sizes), `stalls` (silences) and `recovery` (packets
//! sent again); `limits` decides what limits a flow; `findings`, `events` and `verdict` say it in
//! words.
//!
//! What it deliberately does not do: reassemble tunnels, follow a flow over two capture points, or
//! look into payload.
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
mod plot;
mod quantity;
mod reader;
mod recovery;
pub mod report;
mod requests;
mod stalls;
mod summary;
pub mod text;
mod verdict;
mod window;

pub use connections::{Agreed, ConnectionManager, Rejected};
pub use doctor::{Doctor, End, Options};
pub use histogram::Quantiles;
pub use link::link_type_name;
pub use others::OtherTraffic;
pub use plot::{PlotError, Trace, write_svg};
pub use reader::{ReadError, examine};
pub use report::Report;
