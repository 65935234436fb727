//! DCQCN: what a sender does on congestion notification packets (the reaction point, one per QP),
//! and when a receiver sends them (the notification point, one per QP).
//!
//! The algorithm is that of Zhu et al., "Congestion Control for Large-Scale RDMA Deployments",
//! SIGCOMM 2015; the parameters, their names, units and defaults are those of NVIDIA's adapters
//! ("DCQCN Parameters", Mellanox community DOC-2790, and "DCQCN CC Parameters" in the DOCA
//! documentation), because those are what operators know and what
//! `/sys/class/net/DEVICE/ecn/roce_rp` and `roce_np` show.
//!
//! A sender that no notification has reached has no state and costs nothing. One that was told to
//! slow down is evaluated when somebody asks: the increases that its timer would have made are
//! caught up on at once, in a bounded number of steps however long it was idle, and the outcome
//! does not depend on how often it was asked.
//!
//! Marking belongs to whoever holds the queue, counters to the owner, pacing to
//! [`crate::RateLimiter`].

mod config;
mod notification;
mod reaction;

pub use config::{ConfigError, Dcqcn, NotificationConfig, ReactionConfig};
pub use notification::{CeOutcome, NotificationPoint};
pub use reaction::{CnpOutcome, ReactionPoint};
