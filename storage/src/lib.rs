//! NVMe over Fabrics in real time: a target with namespaces, and a host that generates load.
//!
//! The layers, from below: `medium` (where a namespace's bytes lie), `target` (driver of
//! [`longhaul_nvme::Target`]), `host` (driver of a host's queues), `load` (what a host does with
//! them, and what it measured).
#![deny(unsafe_code)]

pub mod host;
pub mod load;
pub mod medium;
pub mod target;

use std::time::Duration;
use thiserror::Error;

/// Longest time without completions that a thread polls through. Above it an operation takes so
/// long that the wake-ups of host and target are a small part of it.
const SPIN: Duration = Duration::from_micros(200);

/// Why a device refused.
#[derive(Debug, Error)]
#[error("cannot {action}: {cause}")]
pub struct DeviceError {
    action: &'static str,
    cause: longhaul_rdma::RdmaError,
}

fn cannot(action: &'static str) -> impl Fn(longhaul_rdma::RdmaError) -> DeviceError {
    move |cause| DeviceError { action, cause }
}
