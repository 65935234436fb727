//! Live migration by QEMU: drives both ends over QMP, with a guest that checks its memory.
//!
//! The layers, from below: `qmp` (a client of QEMU's machine protocol), `drive` (the phases of a
//! migration) with `disk` (the copy of the guest's disk), `guest` (a guest of about 1.2 KB, and
//! what it reports), `machine` (QEMU processes with that guest).
#![forbid(unsafe_code)]

pub mod disk;
pub mod drive;
pub mod guest;
pub mod machine;
pub mod qmp;

pub use drive::{End, Migration, Outcome, Plan, Reason, Transport, migrate};
