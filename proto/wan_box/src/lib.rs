//! Composition and sizing of a site's box, shared by `accelerate`, `lab` and `sim`.
//!
//! A [`WanBox`] is an accelerator alone, or both its halves with the WAN transport behind them.
//! [`Sizing`] converts the known properties of the path and machine (rate, delay, memory, cores)
//! into the configuration of each part; [`Config`] holds these, and the dependencies between them.

#![forbid(unsafe_code)]

mod config;
mod sizing;
mod wan_box;

pub use config::{Config, ConfigError, Halves, Identity, Whole};
pub use sizing::{Path, Sizing};
pub use wan_box::WanBox;
