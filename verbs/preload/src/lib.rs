//! The interposing library: unmodified verbs programs on the software RNIC.
//!
//! **Purpose.** Preloaded into a program (by `longhaul exec`), it defines the public symbols of
//! libibverbs and librdmacm, so that the program finds the device `longhaul0`. The real libraries
//! stay loaded, because vendor libraries that a program links need them; only their string
//! functions are used. A program that loads them at run time, and looks the verbs up by name, finds
//! these symbols as well (`lookup`). A program that reads the device's files finds them below
//! `/sys` (`sysfs`).
//!
//! **Lifecycle.** Loading the library has no effect. The first call reads the environment (see
//! `longhaul_rdma::attach`); the first queue pair or connection attaches the port and starts the
//! engine thread. The child of a fork starts anew.
//!
//! **Trust.** Pointers from the program are checked as far as C allows: null, misaligned and
//! wrong-kind pointers, and most pointers to destroyed objects, are refused with EINVAL. A panic
//! never crosses into C: the call fails with EIO.
//!
//! **Deliberately absent.** Everything in `unsupported`, memory windows, on-demand paging, XRC, raw
//! packets, device memory: their slots are empty or fail, as on a device without them.

#![allow(
    clippy::missing_safety_doc,
    reason = "entry points have the contracts of the verbs manual pages"
)]

mod address;
mod async_event;
mod cm;
mod completion;
mod critical_section;
mod device;
mod domain;
mod extended_cq;
mod guard;
#[cfg(all(target_os = "linux", target_env = "gnu", target_arch = "x86_64"))]
mod lookup;
mod memory;
mod object;
mod posting;
mod process;
mod qp_attributes;
mod queue_pair;
mod shared_queue;
#[cfg(all(target_os = "linux", target_env = "gnu", target_arch = "x86_64"))]
mod sysfs;
mod trace;
mod unsupported;
mod work_builder;

#[cfg(test)]
mod hostile_tests;
