//! Quantities and identifiers shared by all protocol crates.
//!
//! Newtypes distinguish a QPN from a PSN and a rate from a size. The crate does not allocate, read
//! a clock or handle a wire format.
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
pub use written::{QuantityError, distance_m, probability, size_bytes};
