//! The protocol code in virtual time: a discrete-event simulator.
//!
//! The stations of a network are the very RNIC, accelerator and switch that run on real ports, and
//! what decides when and whether a frame arrives is the very code of the emulated link. Around the
//! RNIC stand a NIC's limits and costs ([`NicProfile`]) and programs that do what perftest does.
//! Payload is a length; time is whole picoseconds.
//!
//! - One entry per station and cable end in the schedule: nothing is queued but packets under way,
//!   64 bytes each.
//! - Regions that only long cables join run by themselves for a part of those cables' delay, then
//!   exchange: on several threads, with the same outcome as on one.
//! - The same scenario gives the same outcome and the same captures, byte for byte.
//! - Oracles are always on: every message completes once and in order, every byte is placed once
//!   and in order, queues keep their bounds. What they find stands in [`Outcome::violations`].
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
mod record;
mod region;
mod scenario;
mod schedule;
mod simulation;
mod station;

pub use host::Op;
pub use nodes::Nodes;
pub use oracle::{Connection, Watched};
pub use outcome::{
    AcceleratorOutcome, FlowOutcome, HostOutcome, Latency, Outcome, PortOutcome, Setup,
    SwitchOutcome, WireOutcome,
};
pub use pfc::pfc_headroom_bytes;
pub use profile::NicProfile;
pub use record::{EPOCH_NS, Recorder};
pub use scenario::{
    Cable, Connect, Flow, Scenario, StationKind, StationPlan, Test, Until, perftest_cq_mod,
};
pub use simulation::{Progress, ScenarioError, Simulation};

pub use longhaul_accel::Config as AcceleratorConfig;
pub use longhaul_link::{Impairments, LinkConfig};
pub use longhaul_rnic::Mtu;
pub use longhaul_switch::{PfcConfig, PfcPort, SwitchConfig};
pub use longhaul_wan_box::Config as BoxConfig;
