//! Health, metrics and state of a running program, for probes and scrapers: a server of plain HTTP,
//! and Prometheus' text format.

mod http;
mod metrics;

pub use http::{Address, AddressError, Probed, listen, serve};
pub use metrics::{Metrics, labels};
