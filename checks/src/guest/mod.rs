//! Virtual machines with Debian's kernel under QEMU's software emulation: for what needs a kernel
//! that has RDMA, whatever the kernel of this machine has.
//!
//! A guest has an initramfs made for it and no disk: busybox, the programs asked for with their
//! shared libraries, modules. Commands go in and their output comes back over a virtual serial
//! port. It says nothing about absolute speed; ratios between two things measured in one guest are
//! worth something.
//!
//! Kernels are downloaded once for each version of Debian's package and kept under `guest/` in the
//! target directory; nothing is installed. QEMU, busybox and kmod are.

pub mod against_rxe;
mod archive;
mod control;
mod kernel;
mod machine;
mod programs;

pub use kernel::{Kernel, NoKernel};
pub use machine::{Guest, GuestConfig, Job, Netdev, Tap};

use std::io::Write;

/// Says on the terminal, past what catches the output of passing tests, that `what` was not
/// checked, and why, and records it.
pub fn skip_loudly(what: &str, reason: &dyn std::fmt::Display) {
    // Without a terminal there is nobody to tell.
    let _ = writeln!(std::io::stderr(), "\n!!! SKIPPED: {what}: {reason}\n");
    longhaul_namespace::record(format_args!("{what}: {reason}"));
}
