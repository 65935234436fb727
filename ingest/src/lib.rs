//! Telescope ingest: senders WRITE each message to its place in the receiver's memory, and the
//! immediate data names the place.
//!
//! **Purpose.** The device places the data; software only keeps count. [`ring::Ring`] turns
//! completions into windows with one [`ring::Fate`] per message, without device, clock or memory,
//! so that a model can check it.
//!
//! The layers, from below: `layout` (immediate data, shape of the memory), `ring` (bookkeeping),
//! `memory` and `device` (registered memory, queue pairs), `session` (set-up over TCP), `receiver`
//! with its `chunk`s, and `sender`.

mod affinity;
pub mod chunk;
pub mod device;
pub mod layout;
pub mod memory;
pub mod pattern;
pub mod receiver;
pub mod ring;
pub mod sender;
pub mod session;
pub mod settings;
pub mod sink;
