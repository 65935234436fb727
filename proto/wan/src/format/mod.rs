//! Version 2 of the wire format, specified in `docs/spec/wan-transport.md`.
//!
//! No input makes this module panic or allocate.

mod control;
mod header;
mod parity;
mod part;
mod tunnel;

pub use control::{Ack, AckEntry, Close, Hello, HelloStep, Ping, PingStep, Refusal};
pub(crate) use control::{BODY_MAX, Datagram, ProbeDatagram, body_of, ping_body_of};
pub use header::{DatagramKind, HEADER_LEN, Header, VERSION};
pub(crate) use parity::{ParityBody, ParityDatagram, Prefix, ProtectedHeader, symbol_body};
pub(crate) use part::{Extent, Piece, assemble, piece_len, take_piece};
pub(crate) use tunnel::{Outer, encapsulate, take_out};
