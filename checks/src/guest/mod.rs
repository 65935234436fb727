//! Virtual machines with Debian's kernel under QEMU's software emulation, for tests that need a
//! kernel with RDMA, whatever this machine's kernel.
//!
//! A guest has its own initramfs and no disk: busybox, the requested programs with their shared
//! libraries, and modules. Commands and their output pass over a virtual serial port. Absolute
//! speed in a guest is meaningless; ratios between two measurements in one guest are useful.
//!
//! Kernels are downloaded once per version of Debian's package and kept under `guest/` in the
//! target directory; they are not installed. QEMU, busybox and kmod must be.

pub mod against_rxe;
mod archive;
mod control;
mod kernel;
mod machine;
mod programs;
mod systemd;

pub use kernel::{Kernel, NoKernel};
pub use machine::{Guest, GuestConfig, Job, Netdev, Tap};
pub use systemd::{NoSystemd, Service};

use std::io::Write;

/// Reports on the terminal, even if the output of passing tests is captured, that `what` was not
/// checked, and why, and records it.
pub fn skip_loudly(what: &str, reason: &dyn std::fmt::Display) {
    // Without a terminal there is no reader.
    let _ = writeln!(std::io::stderr(), "\n!!! SKIPPED: {what}: {reason}\n");
    longhaul_namespace::record(format_args!("{what}: {reason}"));
}
