//! DCQCN: the sender's reaction to congestion notification packets (the reaction point, one per
//! QP), and the receiver's notifications (the notification point, one per QP).
//!
//! The algorithm is that of Zhu et al., "Congestion Control for Large-Scale RDMA Deployments",
//! SIGCOMM 2015. Parameters, their names, units and defaults are those of NVIDIA's adapters ("DCQCN
//! Parameters", Mellanox community DOC-2790, and "DCQCN CC Parameters" in the DOCA documentation),
//! which operators know and `/sys/class/net/DEVICE/ecn/roce_rp` and `roce_np` show.
//!
//! A sender without notifications has no state and no cost. A notified sender is evaluated on
//! demand: the increases that its timer would have made are applied at once, in a bounded number of
//! steps after any idle time, and the result does not depend on the number of evaluations.
//!
//! The owner of a queue marks, the owner of a QP counts, and [`crate::RateLimiter`] paces.

mod config;
mod notification;
mod reaction;

pub use config::{ConfigError, Dcqcn, NotificationConfig, ReactionConfig};
pub use notification::{CeOutcome, NotificationPoint};
pub use reaction::{CnpOutcome, ReactionPoint};
