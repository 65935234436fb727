//! Quantities and identifiers that every protocol crate speaks in.
//!
//! Newtypes keep a QPN from being taken for a PSN and a rate for a size. Nothing here allocates,
//! reads a clock or knows a wire format.
#![forbid(unsafe_code)]

mod keys;
mod rate;
mod rng;
mod sequence;
mod time;
mod written;

pub use keys::{LKey, Qpn, RKey};
pub use rate::{BitRate, ParseBitRateError};
pub use rng::{Rng, SplitMix64};
pub use sequence::{Msn, Psn};
pub use time::{Duration, Instant};
pub use written::{QuantityError, distance_m, size_bytes};
