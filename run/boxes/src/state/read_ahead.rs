//! State of a box's read-ahead, as text and as JSON.
#![allow(missing_docs, reason = "fields are the keys of the JSON, which has them by these names")]

use super::{Named, named, nonzero};
use crate::figures::{bytes, count};
use longhaul_readahead::{ConnectionStatus, ReadAhead};
use serde::{Deserialize, Serialize};
use std::fmt::{Result, Write};

/// Maximum number of connections in a snapshot.
const LISTED_MAX: usize = 256;

/// State of a box's read-ahead.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ReadAheadState {
    /// Enabled protocols.
    pub protocols: Vec<String>,
    /// Memory reserved for fetched data.
    pub held_bytes: u64,
    pub held_bytes_max: u64,
    pub counters: Named,
    /// The first 256 connections.
    pub connections: Vec<ReadAheadConnection>,
}

/// A connection of one of the protocols.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ReadAheadConnection {
    pub protocol: String,
    pub initiator: String,
    pub initiator_qpn: u32,
    pub target: String,
    pub target_qpn: u32,
    /// True if the initiator is at this site, false if the target is.
    pub initiator_is_here: bool,
    /// Both boxes read ahead for the connection.
    pub is_ready: bool,
    /// Fetches in progress, and READs that are being answered.
    pub under_way: usize,
    pub held_bytes: u64,
    /// Offset of the local NIC's PSNs from those on the path.
    pub psn_shift: u64,
}

impl ReadAheadState {
    /// Converts a node's status.
    pub fn of(node: &ReadAhead) -> Self {
        let config = node.config();
        ReadAheadState {
            protocols: config.protocols.iter().map(|(protocol, _)| protocol.to_string()).collect(),
            held_bytes: node.held_bytes(),
            held_bytes_max: config.held_bytes_max,
            counters: named(node.counters().values()),
            connections: node.connections().take(LISTED_MAX).map(connection).collect(),
        }
    }
}

fn connection(status: ConnectionStatus) -> ReadAheadConnection {
    ReadAheadConnection {
        protocol: status.protocol.to_string(),
        initiator: status.initiator.to_string(),
        initiator_qpn: status.initiator_qpn.get(),
        target: status.target.to_string(),
        target_qpn: status.target_qpn.get(),
        initiator_is_here: status.initiator_is_on_lan,
        is_ready: status.is_ready,
        under_way: status.under_way,
        held_bytes: status.held_bytes,
        psn_shift: status.shift,
    }
}

/// Writes text lines about `state`.
pub fn write_read_ahead(state: &ReadAheadState, text: &mut String) -> Result {
    let ready = state.connections.iter().filter(|connection| connection.is_ready).count();
    writeln!(
        text,
        "  read-ahead for {}: {}, {ready} ready; {} of {} held; {}",
        state.protocols.join(", "),
        count(state.connections.len() as u64, "connection"),
        bytes(state.held_bytes),
        bytes(state.held_bytes_max),
        nonzero(&state.counters)
    )
}
