//! What the checks share. For the end-to-end ones: labs that clean up after themselves and programs with a time
//! limit. For the wire formats: packets as plain fields, other people's decoders, what the fuzz targets do.
//!
//! The checks run the release build of the program, as a user does; `cargo xtask ci` builds it first.

pub mod fuzz;
mod lab;
pub mod outside;
pub mod packets;
pub mod perftest;
mod program;

pub use lab::{Ready, RuntimeDir, TestLab, Turn, free_tcp_port, wait_for_listener};
pub use program::{Finished, Program, longhaul, members_of_group, require};
