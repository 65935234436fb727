//! Uses of a long path, and their requirements.

use crate::workload::Op;
use serde::Serialize;
use std::fmt;
use std::str::FromStr;
use thiserror::Error;

/// A use of RDMA over distance.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum UseCase {
    /// Cyber-physical systems, area management: sensor data fetched from edge sites.
    Cps,
    /// Flash storage: NVMe over Fabrics, NFS.
    Storage,
    /// Database access.
    Database,
    /// Live migration of virtual machines.
    Migration,
    /// Radio telescopes and other instruments.
    Telescope,
    /// Training over several sites: NCCL, UCX.
    Training,
}

impl UseCase {
    /// All of them.
    pub const ALL: [UseCase; 6] = [
        UseCase::Cps,
        UseCase::Storage,
        UseCase::Database,
        UseCase::Migration,
        UseCase::Telescope,
        UseCase::Training,
    ];

    /// Name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            UseCase::Cps => "cps",
            UseCase::Storage => "storage",
            UseCase::Database => "database",
            UseCase::Migration => "migration",
            UseCase::Telescope => "telescope",
            UseCase::Training => "training",
        }
    }

    /// Description, and the source of its figures.
    pub fn about(self) -> &'static str {
        match self {
            UseCase::Cps => {
                "CPS area management: 1 to 4 MB, READ (IOWN GF RDMA over Open APN PoC report \
                 2024-06, appendix F)"
            }
            UseCase::Storage => {
                "flash storage: 4 KB to 4 MB; a READ is what an NVMe-oF target does for a write \
                 (IOWN GF RDMA over Open APN PoC report 2024-06, appendix F)"
            }
            UseCase::Database => {
                "database access: up to a few MB, as in bulk inserts; above 40 Gbit/s at 1534 km \
                 (IOWN GF RDMA over Open APN PoC report 2024-06, appendix F)"
            }
            UseCase::Migration => {
                "VM live migration: QEMU writes pages merged up to 2 MiB (migration/rdma.c, \
                 RDMA_MERGE_MAX)"
            }
            UseCase::Telescope => {
                "instrument streams: 90 Gbit/s into one 100 Gbit/s receiver (W.M. de Laat, TU \
                 Delft 2022, R4)"
            }
            UseCase::Training => {
                "training over several sites: NCCL sends chunks of 128 KiB by default \
                 (NCCL_P2P_NET_CHUNKSIZE)"
            }
        }
    }

    /// Its main operation.
    pub fn op(self) -> Op {
        match self {
            UseCase::Cps | UseCase::Storage | UseCase::Database => Op::Read,
            UseCase::Migration | UseCase::Telescope | UseCase::Training => Op::Write,
        }
    }

    /// Minimum and maximum message size in bytes.
    pub fn sizes(self) -> (u64, u64) {
        match self {
            UseCase::Cps => (1 << 20, 4 << 20),
            UseCase::Storage | UseCase::Database => (4 << 10, 4 << 20),
            UseCase::Migration => (4 << 10, 2 << 20),
            UseCase::Telescope => (8 << 10, 1 << 20),
            UseCase::Training => (64 << 10, 4 << 20),
        }
    }

    /// Required goodput in bits per second, if its document states one.
    pub fn target_bps(self) -> Option<f64> {
        match self {
            UseCase::Database => Some(40e9),
            UseCase::Telescope => Some(90e9),
            _ => None,
        }
    }
}

impl fmt::Display for UseCase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// No use has this name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("not a use that is known: {}", UseCase::ALL.map(UseCase::name).join(", "))]
pub struct UnknownUse;

impl FromStr for UseCase {
    type Err = UnknownUse;

    fn from_str(text: &str) -> Result<Self, UnknownUse> {
        let mut all = UseCase::ALL.into_iter();
        all.find(|case| case.name().eq_ignore_ascii_case(text)).ok_or(UnknownUse)
    }
}
