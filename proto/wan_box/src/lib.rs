//! The box of a site, composed and sized in one place: what `accelerate` and `lab` run is what
//! `sim` simulates.
//!
//! A [`WanBox`] is an accelerator alone, or both its halves with the WAN transport behind them.
//! [`Sizing`] turns what is known of the path (rate, delay, memory, cores) into the configuration
//! of each part; [`Config`] holds these and what follows from one part for another.

#![forbid(unsafe_code)]

mod config;
mod sizing;
mod wan_box;

pub use config::{Config, ConfigError, Halves, Identity, Whole};
pub use sizing::{Path, Sizing};
pub use wan_box::WanBox;
