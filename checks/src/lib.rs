//! Shared by the checks. For end-to-end checks: labs that clean up after themselves and programs
//! with a time limit. For wire formats: packets as plain fields, external decoders, and the fuzz
//! targets.
//!
//! The checks run the program that `cargo xtask program` builds, and benches that of a release;
//! `cargo xtask ci` builds the former first.

mod back_to_back;
pub mod counting;
mod environment;
pub mod fuzz;
pub mod guest;
pub mod interop;
mod lab;
mod lab_hosts;
pub mod network;
pub mod outside;
pub mod packets;
mod pair;
pub mod perftest;
pub mod perftest_matrix;
pub mod process;
mod program;
pub mod qperf;
pub mod rendezvous;
pub mod samples;
pub mod segments;
mod slurm;
pub mod testpmd;
pub mod two_processes;

pub use back_to_back::{BackToBack, CLIENT_IP, SERVER_IP};
pub use environment::from_environment;
pub use lab::{RuntimeDir, TestLab, Turn};
pub use lab_hosts::{LabHosts, Ranks};
pub use pair::{Ready, free_tcp_port, wait_for_listener, wait_until_asleep};
pub use program::{
    Finished, Program, kill, longhaul, longhaul_with_dpdk, members_of_group, python, require,
};
pub use slurm::Slurm;
