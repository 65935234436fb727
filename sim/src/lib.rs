//! The protocol code in virtual time: a discrete-event simulator.
//!
//! Stations are the RNIC, accelerator and switch that run on real ports, and the code of the
//! emulated link decides when and whether a frame arrives. Around the RNIC are a NIC's limits and
//! costs ([`NicProfile`]) and programs that behave like perftest. A payload is a length; time is in
//! whole picoseconds.
//!
//! - The schedule has one entry per station and cable end: only packets in flight are queued, with
//!   64 bytes each.
//! - Regions that are joined only by long cables run alone for a part of those cables' delay, then
//!   exchange frames: several threads have the same outcome as one.
//! - The same scenario gives the same outcome and the same captures, byte for byte.
//! - Oracles are always on: every message completes once and in order, every byte is placed once
//!   and in order, queues keep their bounds. [`Outcome::violations`] lists their findings.
#![forbid(unsafe_code)]

mod addresses;
mod cable;
pub mod file;
mod host;
mod network;
mod nodes;
mod oracle;
mod outcome;
mod packed;
mod pfc;
mod profile;
mod programs;
mod record;
mod region;
mod scenario;
mod schedule;
mod simulation;
mod station;

pub use host::{Migration, Op, Storage, Writes};
pub use nodes::Nodes;
pub use oracle::{Connection, Watched};
pub use outcome::{
    AcceleratorOutcome, Arrivals, FlowOutcome, HostOutcome, Latency, Load, Migrated, Outcome,
    PortOutcome, Setup, SwitchOutcome, WireOutcome,
};
pub use pfc::pfc_headroom_bytes;
pub use profile::NicProfile;
pub use record::{EPOCH_NS, Recorder};
pub use scenario::{
    Cable, Connect, Events, Flow, Scenario, StationKind, StationPlan, Test, Transport, Until,
    perftest_cq_mod,
};
pub use simulation::{Progress, ScenarioError, Simulation};

pub use longhaul_accel::Config as AcceleratorConfig;
pub use longhaul_link::{Impairments, LinkConfig};
pub use longhaul_rnic::Mtu;
pub use longhaul_switch::{PfcConfig, PfcPort, SharedBuffer, SwitchConfig};
pub use longhaul_wan_box::Config as BoxConfig;
