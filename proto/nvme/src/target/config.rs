//! What a target serves, and its limits.

use crate::{NamespaceData, Nqn};
use std::collections::{BTreeMap, BTreeSet};

/// Configuration of a [`super::Target`].
#[derive(Clone, Debug)]
pub struct TargetConfig {
    /// Subsystems; the discovery subsystem exists in addition.
    pub subsystems: Vec<Subsystem>,
    /// I/O queues of a controller.
    pub queues_max: u16,
    /// Entries of a queue, at least 2.
    pub entries_max: u16,
    /// In-capsule data of I/O queues in bytes, a multiple of 16.
    pub in_capsule: u32,
    /// Largest transfer in bytes: 4 KiB times a power of two.
    pub transfer_max: u32,
    /// Controllers of all hosts.
    pub controllers_max: usize,
    /// Connections of all hosts.
    pub connections_max: usize,
}

impl Default for TargetConfig {
    fn default() -> Self {
        TargetConfig {
            subsystems: Vec::new(),
            queues_max: 64,
            entries_max: 1024,
            in_capsule: 4096,
            transfer_max: 128 << 10,
            controllers_max: 256,
            connections_max: 1024,
        }
    }
}

impl TargetConfig {
    /// Code of the largest transfer in Identify Controller.
    pub(super) fn transfer_max_code(&self) -> u8 {
        (self.transfer_max / 4096).checked_ilog2().unwrap_or(0) as u8
    }
}

/// Which hosts may connect.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Hosts {
    /// All.
    Any,
    /// Those with these names.
    Only(BTreeSet<Nqn>),
}

impl Hosts {
    /// True if `host` may connect.
    #[must_use]
    pub fn admit(&self, host: &Nqn) -> bool {
        match self {
            Hosts::Any => true,
            Hosts::Only(names) => names.contains(host),
        }
    }
}

/// A subsystem.
#[derive(Clone, Debug)]
pub struct Subsystem {
    /// Name.
    pub nqn: Nqn,
    /// Serial number, up to 20 characters.
    pub serial: String,
    /// Model, up to 40 characters.
    pub model: String,
    /// Which hosts may connect.
    pub hosts: Hosts,
    /// Namespaces by number, from 1.
    pub namespaces: BTreeMap<u32, Namespace>,
}

/// A namespace.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Namespace {
    /// Number of blocks.
    pub blocks: u64,
    /// Bytes of a block: 2^this, 9 to 16.
    pub block_shift: u8,
    /// Globally unique identifier.
    pub id: [u8; 16],
    /// Writes need a flush to be kept.
    pub volatile_cache: bool,
}

impl Namespace {
    pub(super) fn data(&self) -> NamespaceData {
        NamespaceData {
            blocks: self.blocks,
            block_shift: self.block_shift,
            metadata: 0,
            nguid: self.id,
        }
    }

    /// Offset and length in bytes of `count` blocks from `first`; `None` unless all exist.
    pub(super) fn range(&self, first: u64, count: u64) -> Option<(u64, u64)> {
        let end = first.checked_add(count)?;
        let bytes = |blocks: u64| blocks.checked_mul(1 << self.block_shift);
        if end > self.blocks { None } else { Some((bytes(first)?, bytes(count)?)) }
    }
}
