//! Tests of the ingest library.

mod model;
mod sinks;
mod static_senders;
mod transfer;
mod windows;
